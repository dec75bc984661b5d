"""Cell arithmetic of the cell-term index: boxes as 64-bit words, levels, and the cells a box covers.

Coordinates are rounded down to a lattice of 2**15 by 2**15 over the world square. Rounding keeps order (x <= y gives
q(x) <= q(y), outside the world too, where it stops at the rim), so unequal lattice coordinates decide a comparison for
good, and only for equal ones the degrees decide. A cell of level l is a square of 2**(15 - l) lattice steps.

A word packs a box in four lanes of 15 bits, each under a guard bit: west, -east, south, -north, the negatives counted
from the far rim, so that "the rectangles meet" is "each lane of the message is at least that of the subscription": one
subtraction, in which no lane borrows from the next because the message's guard bits are set. In a subscription's word
the guard bits carry its level.
"""

import numpy as np

from compiling.njit import njit, njit_inner

FINEST = 14
LATTICE_BITS = 15
#: Steps of the lattice along the world's longer side.
LATTICE_STEPS = 2.0**LATTICE_BITS
_RIM = (1 << LATTICE_BITS) - 1
GUARDS = np.uint64(0x8000_8000_8000_8000)
LANES = np.uint64(0x7FFF_7FFF_7FFF_7FFF)
ONE_IN_EACH_LANE = np.uint64(0x0001_0001_0001_0001)
#: The word of a posting that was removed: no message reaches it, and no level is 15.
DEAD = np.uint64(0xFFFF_FFFF_FFFF_FFFF)


@njit(cache=True, nogil=True)
def lattice(degrees, low, steps_per_degree):
    """Lattice coordinate of a longitude or latitude; NaN gives 0, which decides nothing by itself."""
    steps = (degrees - low) * steps_per_degree
    # Not "steps <= 0": that would let NaN through to the cast below, which is undefined for it.
    if not steps > 0.0:
        return np.int64(0)
    # A region may reach beyond the world: all beyond is one coordinate, and equal ones are compared in degrees.
    if steps >= _RIM:
        return np.int64(_RIM)
    return np.int64(steps)


@njit(cache=True, nogil=True)
def subscription_word(west, south, east, north):
    """Word of a box in lattice coordinates, level bits zero."""
    return (
        np.uint64(west)
        | np.uint64(_RIM - east) << np.uint64(16)
        | np.uint64(south) << np.uint64(32)
        | np.uint64(_RIM - north) << np.uint64(48)
    )


@njit(cache=True, nogil=True)
def message_word(west, south, east, north):
    """What a message's rectangle is compared with: opposite sides, guard bits set."""
    # Lane by lane: its east against their west, its west against their east; north and south likewise.
    return subscription_word(east, north, west, south) | GUARDS


@njit(cache=True, nogil=True)
def level_bits(level):
    """A level as guard bits."""
    # Four guard bits count 0 to 15; levels end at 14, which leaves 15 to DEAD.
    bits = np.uint64(level)
    one = np.uint64(1)
    return (
        (bits & one) << np.uint64(15)
        | (bits >> np.uint64(1) & one) << np.uint64(31)
        | (bits >> np.uint64(2) & one) << np.uint64(47)
        | (bits >> np.uint64(3) & one) << np.uint64(63)
    )


@njit(cache=True, nogil=True)
def level_of(word):
    """The level in a word's guard bits."""
    one = np.uint64(1)
    return np.int64(
        (word >> np.uint64(15) & one)
        | (word >> np.uint64(31) & one) << np.uint64(1)
        | (word >> np.uint64(47) & one) << np.uint64(2)
        | (word >> np.uint64(63) & one) << np.uint64(3)
    )


@njit(cache=True, nogil=True)
def box_of(word):
    """Lattice coordinates (west, south, east, north) of a subscription's word, whatever its level bits."""
    rim = np.uint64(_RIM)
    return (
        np.int64(word & rim),
        np.int64(word >> np.uint64(32) & rim),
        _RIM - np.int64(word >> np.uint64(16) & rim),
        _RIM - np.int64(word >> np.uint64(48) & rim),
    )


@njit_inner
def fitting_level(west, south, east, north, finest):
    """The finest level, not beyond `finest`, at which a box covers at most two cells a side; level 0 always does."""
    # Two cells, not one: else the smallest box across the middle of the world would stand at level 0.
    level = finest
    while level > 0:
        shift = LATTICE_BITS - level
        # abs() for a box that is inside out, see `cell_range`.
        if abs((east >> shift) - (west >> shift)) <= 1 and abs((north >> shift) - (south >> shift)) <= 1:
            break
        level -= 1
    return level


@njit_inner
def cell_range(west, south, east, north, level):
    """First and last column, first and last row of the cells that a box covers at a level."""
    shift = LATTICE_BITS - level
    a, b, c, d = west >> shift, east >> shift, south >> shift, north >> shift
    # A box that is inside out meets what covers the span between its sides, so that span is what it covers.
    return min(a, b), max(a, b), min(c, d), max(c, d)


@njit(cache=True, nogil=True)
def bucket_of(level, column, row, buckets):
    """Bucket (of a power of two) of a cell: multiplicative hashing, within 63 bits."""
    code = np.int64(level) << 28 | np.int64(row) << 14 | np.int64(column)
    # The high bits of a factor reach only the highest of a product: level and row are folded down first.
    code ^= code >> 15
    return ((code * 0x61C88647 & 0xFFFFFFFF) * np.int64(buckets)) >> 32


@njit_inner
def buckets_covered(west, south, east, north, level, buckets, out):
    """Write the distinct buckets of a subscription's cells into out (int64[4]); that of the lower left cell is first.

    Two cells of one subscription may share a bucket; it then has one posting there.
    """
    left, right, bottom, top = cell_range(west, south, east, north, level)
    count = 0
    # From the lower left on, always in this order: `blocks._collect` takes a posting in its first bucket only.
    for row in range(bottom, top + 1):
        for column in range(left, right + 1):
            bucket = bucket_of(level, column, row, buckets)
            known = False
            for i in range(count):
                known = known or out[i] == bucket
            if not known:
                out[count] = bucket
                count += 1
    return count
