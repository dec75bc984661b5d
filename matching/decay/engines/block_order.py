"""Order of the postings of a list before it is cut into blocks: first by similar reach, then by place."""

import math

import numpy as np

from compiling.njit import njit, njit_inner
from matching.storage.slots import put
from matching.storage.sorting import ascending

#: Bits of a coordinate in the order of the curve.
_BITS = 16
#: Of one on the sphere, of which a town is a small part.
_SPHERE_BITS, _LOWER = 24, (1 << _BITS) - 1


@njit_inner
def spread_bits(value):
    """The low 16 bits of a number, with a gap after each."""
    value = (value | (value << 8)) & 0x00FF00FF
    value = (value | (value << 4)) & 0x0F0F0F0F
    value = (value | (value << 2)) & 0x33333333
    return (value | (value << 1)) & 0x55555555


@njit_inner
def curve_key(x, y):
    """Place of a point of the unit square along a Z-shaped curve: near keys are near points (Morton)."""
    largest = (1 << _BITS) - 1
    across = min(max(np.int64(x * largest), 0), largest)
    up = min(max(np.int64(y * largest), 0), largest)
    return spread_bits(across) | spread_bits(up) << 1


@njit_inner
def sphere_key(x, y, z):
    """Likewise of a unit vector, along the same curve through longitude and latitude.

    Places that are near in these have a small box in x, y and z as well, smaller than along a curve through cubes or
    through the faces of an octahedron.
    """
    largest = (1 << _SPHERE_BITS) - 1
    across = min(max(np.int64((math.atan2(y, x) / (2.0 * math.pi) + 0.5) * largest), 0), largest)
    up = min(max(np.int64((math.asin(min(max(z, -1.0), 1.0)) / math.pi + 0.5) * largest), 0), largest)
    high = spread_bits(across >> _BITS) | spread_bits(up >> _BITS) << 1
    return high << 2 * _BITS | spread_bits(across & _LOWER) | spread_bits(up & _LOWER) << 1


@njit(cache=True, nogil=True)
def order_postings(x, y, z, reach, block):
    """The order of n postings, int64[n]: cut into classes of reach, each along the curve. O(n log n).

    `z` is empty for points of the unit square.

    A block is skipped by its box and its largest reach, so it should be small in all three: with n / block blocks, a
    third of the cuts (by the logarithm) are spent on reach.
    """
    n = x.shape[0]
    by_reach = ascending(reach)
    classes = max(1, int(round(math.pow(n / block, 1.0 / 3.0))))
    order = np.empty(n, np.int64)
    key = np.empty(n, np.int64)
    for i in range(n):
        key[i] = sphere_key(x[i], y[i], z[i]) if z.shape[0] > 0 else curve_key(x[i], y[i])
    for nth in range(classes):
        # whole blocks, but for the last class
        first = min(n, (n * nth // classes + block - 1) // block * block)
        last = n if nth == classes - 1 else min(n, (n * (nth + 1) // classes + block - 1) // block * block)
        chosen = by_reach[first:last]
        put(order, first, chosen[ascending(key[chosen])])
    return order
