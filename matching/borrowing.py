"""How kernels are compiled that only kernels call.

Numba counts references to the arrays of a function: one up for each when it is called and one down when it returns,
with a locked instruction each time, and it finds out that they are in vain only where the function is short and
straight. For a function that is called for every posting or every buffer, with a dozen columns, that takes longer than
its work. `borrowing` leaves it out: who calls has the arrays, and has them until the call is over.

It may return no array, nor call a kernel that does, since nobody would count those: a test looks at every one of them.
What allocates memory is refused by the compiler. It is not for being called from Python. Read on in
`matching.topk.results_kernels`, which is full of them.
"""

from numba import njit

#: Decorator of a kernel that borrows its arrays; otherwise as all others.
borrowing = njit(cache=True, nogil=True, _nrt=False)  # pyright: ignore[reportCallIssue]
