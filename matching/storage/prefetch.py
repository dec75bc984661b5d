"""Prefetch: the one machine instruction that NumPy and Numba do not offer.

A kernel prefetches the places that it will read next and does other work meanwhile, so that cache misses overlap. A
prefetch changes no result, and one of a place that does not exist does no harm.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, overload
from numba.np.arrayobj import make_array

_READ, _KEEP_IN_ALL_CACHES, _DATA = 0, 3, 1


def prefetch(array, place):
    """Prefetch element `place` of an array (counted flat, C order); a no-op with the compiler switched off."""


@intrinsic
def _prefetch(typing_context, array, place):
    def generate(context, builder, signature, arguments):
        view = make_array(signature.args[0])(context, builder, arguments[0])
        address = builder.bitcast(builder.gep(view.data, [arguments[1]]), cgutils.voidptr_t)
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, number, number, number])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [address, number(_READ), number(_KEEP_IN_ALL_CACHES), number(_DATA)])
        return context.get_dummy_value()

    return types.void(array, types.intp), generate


@overload(prefetch)
def _compiled(array, place):
    return lambda array, place: _prefetch(array, place)  # pyright: ignore[reportCallIssue]
