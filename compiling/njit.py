"""Compiles kernels: `njit`, `njit_no_refcount` for those that allocate nothing, and for callees of kernels both again.

No kernel is called from C, so none gets the function for that: a twentieth of the compiler's time. What kernels alone
call (`njit_inner`) gets none for Python either, which runs it as it stands: good for a test of a function or two.

Scalars are converted to the widest type for a call between kernels: Numba would compile a callee anew for a constant,
for int32, and for the number that a loop begins with.

Numba counts references to the arrays of a function: one up for each when it is called and one down when it returns,
with a locked instruction each time, and it finds out that they are in vain only where the function is short and
straight. For a function that is called for every posting or every buffer, with a dozen columns, that takes longer than
its work. `njit_no_refcount` leaves it out: the caller, a kernel or Python, keeps the arrays until the call is over.

Neither it nor what it calls may allocate, which the compiler refuses; and it may not return an array that it was given,
which a test looks for. The option has no public name in Numba, whose release is pinned.
"""

from collections.abc import Callable
from types import MethodType
from typing import Any

import numba
from numba.core import types


def njit(*function: Callable[..., Any], **options: Any) -> Any:
    """Decorator of a kernel, with the options of `numba.njit`."""

    def compiled(function: Callable[..., Any]) -> Any:
        kernel = numba.njit(no_cfunc_wrapper=True, **options)(function)  # pyright: ignore[reportCallIssue]
        kernel.get_call_template = MethodType(_wide_template, kernel)
        if "no_cpython_wrapper" in options:
            # Python finds nothing that is compiled, since without a function for it it would call nothing
            kernel._insert, kernel._compile_for_args = lambda *_: None, lambda *_, **__: function
        return kernel

    return compiled(*function) if function else compiled


def _wide_template(kernel: Any, args: tuple[Any, ...], kws: dict[str, Any]) -> Any:
    """What Numba asks a kernel that another one calls: how it is called with arguments of these types."""
    return type(kernel).get_call_template(kernel, tuple(map(_wide, args)), {name: _wide(kws[name]) for name in kws})


def _wide(given: Any) -> Any:
    """The type to which a scalar is converted for a call."""
    plain = types.unliteral(given)
    return types.int64 if plain in types.signed_domain else plain


#: Decorator of a kernel that borrows its arrays; otherwise as all others.
njit_no_refcount = njit(cache=True, nogil=True, _nrt=False)
#: Decorators of what kernels alone call.
njit_inner = njit(cache=True, nogil=True, no_cpython_wrapper=True)
njit_inner_no_refcount = njit(cache=True, nogil=True, no_cpython_wrapper=True, _nrt=False)
