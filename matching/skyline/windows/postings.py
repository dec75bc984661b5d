"""Lists of messages by cell of a grid, in chunks: neighbours lie side by side, each with what rules most of them out.

A query reads the lists of the cells that its rectangle meets from end to end. So a posting has the place of its message
and a sign of its words, and a list is contiguous but for its chunks of doubling length, linked from the newest to the
oldest. A sign has two times one of 64 bits for each word: those of a message and a query without a common word share a
bit in both halves by chance alone, for one message in seven.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compiling.njit import njit_inner_no_refcount, njit_no_refcount
from matching.model import Float64, Int32, Int64
from matching.space import Space
from matching.storage.slots import grown

#: Cells of a side of the grid. A rectangle of a hundredth of the world's side meets few of them, one of the whole world
#: all: a cell without messages costs a nanosecond.
SIDE = 128
#: Places of the first chunk of a list, of the longest, and of a chunk's header: begin and length of the one before it.
_SHORTEST, LONGEST, HEADER = 4, 1024, 2


class CellPostings(NamedTuple):
    """Kernel view.

    chunk, size, used : int32[cells]    where the newest chunk of a cell begins (-1: no list), places of it, in use
    row : int32[pool]                   message of a posting, ascending in a list
    lon, lat : float64[pool]            degrees
    sign, other : uint64[pool]          of its words
    end : int64[2]                      places of the pool in use, cells with a list
    before : int32[SIDE + 1, SIDE + 1]  cells with a list in lower rows and columns; see `count_lists`
    """

    chunk: Int32
    size: Int32
    used: Int32
    row: Int32
    lon: Float64
    lat: Float64
    sign: NDArray[np.uint64]
    other: NDArray[np.uint64]
    end: Int64
    before: Int32


def new_postings(pool: int = 0) -> CellPostings:
    """No lists, with capacity for `pool` places."""
    none, degrees = np.zeros(SIDE * SIDE, np.int32), np.zeros(pool)
    row, sign = np.zeros(pool, np.int32), np.zeros(pool, np.uint64)
    chunk = np.full(SIDE * SIDE, -1, np.int32)
    end, before = np.zeros(2, np.int64), np.zeros((SIDE + 1, SIDE + 1), np.int32)
    return CellPostings(chunk, none, none.copy(), row, degrees, degrees.copy(), sign, sign.copy(), end, before)


def grid_of(space: Space) -> tuple[float, float, float, float]:
    """West and south of the grid over a world, and columns and rows in a degree."""
    west, south, east, north = map(float, space[:4])
    return west, south, SIDE / (east - west) if east > west else 0.0, SIDE / (north - south) if north > south else 0.0


@njit_inner_no_refcount
def place_in_grid(value, low, scale):
    """Column or row of a coordinate, 0 to `SIDE` - 1; those beyond the world belong to its edge. Monotone."""
    return np.int64(min(max((value - low) * scale, 0.0), SIDE - 1.0))


@njit_inner_no_refcount
def sign_of(terms, first, last):
    """The bits of terms[first:last] (two of uint64)."""
    sign = other = np.uint64(0)
    for at in range(first, last):
        # multiplied by 2^32 over the golden ratio, so that neighbouring ids have other bits
        mixed = np.int64(terms[at]) * 0x9E3779B1
        sign |= np.uint64(1) << np.uint64(mixed >> 26 & 63)
        other |= np.uint64(1) << np.uint64(mixed >> 14 & 63)
    return sign, other


def linked(
    postings: CellPostings, grid, lon: Float64, lat: Float64, head: Int64, terms: Int32, first: int, end: int
) -> CellPostings:
    """Append rows `first` to `end` - 1 to the lists of their cells; the last two columns of
    `head` have where the terms of each begin and end.

    O(terms), amortised.
    """
    while (first := _link(postings, grid, lon, lat, head, terms, first, end)) < end:
        needed = postings.row.shape[0] + LONGEST
        pool = {name: grown(getattr(postings, name), needed) for name in ("row", "lon", "lat", "sign", "other")}
        postings = postings._replace(**pool)
    return postings


@njit_no_refcount
def _link(p, grid, lon, lat, head, terms, first, end):
    """Returns the row for which the pool was exhausted, with which to go on, or `end`."""
    west, south, columns, rows = grid
    for row in range(first, end):
        cell = place_in_grid(lat[row], south, rows) * SIDE + place_in_grid(lon[row], west, columns)
        if p.chunk[cell] < 0 or p.used[cell] == p.size[cell]:
            size = _SHORTEST if p.chunk[cell] < 0 else min(2 * p.size[cell], LONGEST)
            if p.end[0] + size > p.row.shape[0]:
                return row
            start = p.end[0]
            p.end[1] += p.chunk[cell] < 0
            p.row[start], p.row[start + 1] = p.chunk[cell], p.size[cell]
            p.chunk[cell], p.size[cell], p.used[cell] = start, size, HEADER
            p.end[0] += size
        at = p.chunk[cell] + p.used[cell]
        p.row[at], p.lon[at], p.lat[at] = row, lon[row], lat[row]
        p.sign[at], p.other[at] = sign_of(terms, head[row, 2], head[row, 3])
        p.used[cell] += 1
    return end


@njit_inner_no_refcount
def count_lists(p):
    """Bring `before` up to date; O(1) while no cell has got its first message."""
    before = p.before
    if before[SIDE, SIDE] == p.end[1]:
        return
    for y in range(SIDE):
        in_row = np.int32(0)
        for x in range(SIDE):
            in_row += p.chunk[y * SIDE + x] >= 0
            before[y + 1, x + 1] = before[y, x + 1] + in_row
