"""Compiles kernels: `njit`, and `njit_no_refcount` for kernels that allocate nothing.

No kernel is called from C, so none gets the function for that: a twentieth of the compiler's time.

Numba counts references to the arrays of a function: one up for each when it is called and one down when it returns,
with a locked instruction each time, and it finds out that they are in vain only where the function is short and
straight. For a function that is called for every posting or every buffer, with a dozen columns, that takes longer than
its work. `njit_no_refcount` leaves it out: the caller, a kernel or Python, keeps the arrays until the call is over.

Neither it nor what it calls may allocate, which the compiler refuses; and it may not return an array that it was given,
which a test looks for. The option has no public name in Numba, whose release is pinned.
"""

from functools import partial

import numba

#: Decorator of a kernel.
njit = partial(numba.njit, no_cfunc_wrapper=True)  # pyright: ignore[reportCallIssue]
#: Decorator of a kernel that borrows its arrays; otherwise as all others.
njit_no_refcount = njit(cache=True, nogil=True, _nrt=False)
