"""Cells of quadtrees over the whole earth, and the common part of queries that find messages keyword by keyword.

The deepest cells are a hundredth of a degree wide; a cell at any level is a square of them. The number of a cell along
the Z-order (its Morton code) takes two bits a level, so that the cells within a cell are a run of numbers. A posting is
an int64, called a word here: column and line of the deepest cell, and the slot of the message (`tuple_of`). By the word
a query rules out most messages outside its rectangle without a read of the log.
"""

import numpy as np

from compiling.njit import njit, njit_inner, njit_no_refcount
from papers.skyline.messages import lived_at, spatial_relevance, text_relevance

#: Levels below the root: cells of a hundredth of a degree.
DEEPEST = 15
_ACROSS = 1 << DEEPEST
_LAST = _ACROSS - 1
_WEST, _SOUTH, _WIDTH, _HEIGHT = -180.0, -90.0, 360.0, 180.0
#: Messages that `write_picked` verifies in one pass over the log.
_TOGETHER = 256
_COLUMN, _LINE, _SLOT = 47, 32, 0xFFFFFFFF


@njit(cache=True, nogil=True)
def column_of(lon):
    """Column of the deepest cell of a longitude in degrees; beyond the edge of the world that of the edge.

    Points and sides of rectangles are rounded only here, so that all levels agree on the cells of both.
    """
    return min(max(int((lon - _WEST) / _WIDTH * _ACROSS), 0), _LAST)


@njit(cache=True, nogil=True)
def line_of(lat):
    """Line of the deepest cell of a latitude in degrees."""
    return min(max(int((lat - _SOUTH) / _HEIGHT * _ACROSS), 0), _LAST)


@njit(cache=True, nogil=True)
def tuple_of(log, slot):
    """The word for a message: column, line, slot; below 2**62."""
    column, line = np.int64(column_of(log.lon[slot])), np.int64(line_of(log.lat[slot]))
    return (column << _COLUMN) | (line << _LINE) | np.int64(slot)


@njit(cache=True, nogil=True)
def column_in(word):
    """Column of the deepest cell that a word names."""
    return word >> _COLUMN


@njit(cache=True, nogil=True)
def line_in(word):
    """Line of the deepest cell that a word names."""
    return (word >> _LINE) & _LAST


@njit(cache=True, nogil=True)
def slot_in(word):
    """Slot of the message that a word names."""
    return word & _SLOT


@njit(cache=True, nogil=True)
def _spread(number):
    """The bits of a number below 2**15, a zero between any two."""
    number = (number | (number << 8)) & 0x00FF00FF
    number = (number | (number << 4)) & 0x0F0F0F0F
    number = (number | (number << 2)) & 0x33333333
    return (number | (number << 1)) & 0x55555555


@njit(cache=True, nogil=True)
def _gathered(number):
    """Every other bit of a number: what `_spread` has undone."""
    number &= 0x55555555
    number = (number | (number >> 1)) & 0x33333333
    number = (number | (number >> 2)) & 0x0F0F0F0F
    number = (number | (number >> 4)) & 0x00FF00FF
    return (number | (number >> 8)) & 0x0000FFFF


@njit_inner
def code_of(column, line):
    """Morton code of a cell."""
    return _spread(column) | (_spread(line) << 1)


@njit(cache=True, nogil=True)
def code_in(word):
    """Morton code of the deepest cell that a word names."""
    return code_of(column_in(word), line_in(word))


@njit_inner
def column_by(code):
    """Column of the cell with this Morton code."""
    return _gathered(code)


@njit_inner
def line_by(code):
    """Line of the cell with this Morton code."""
    return _gathered(code >> 1)


@njit(cache=True, nogil=True)
def cells_of(box, out):
    """The deepest cells that a rectangle touches; `box` in degrees.

    out : int64[4]    output: first column, first line, last column, last line

    Rounded like points, and closed: a cell that the rectangle only touches counts.
    """
    out[0], out[1] = column_of(box[0]), line_of(box[1])
    out[2], out[3] = column_of(box[2]), line_of(box[3])


# inlined: passing the columns of a call one by one costs more than its work
@njit_no_refcount
def pick(word, rectangle, seen, slots, picked):
    """Count the message of a word in `seen` if it may stand in the rectangle; returns the new end of `slots`.

    seen : int16[slots of the log]    by message the number of keywords that led to it, below 2**12
    slots : int32[]                   output: the messages picked; capacity for one more
    """
    column, line, slot = column_in(word), line_in(word), slot_in(word)
    # no branches: whether a message is near is unpredictable, so all four comparisons run and the slot is written
    near = (rectangle[0] <= column) & (column <= rectangle[2]) & (rectangle[1] <= line) & (line <= rectangle[3])
    slots[picked] = slot
    picked += near & (seen[slot] == 0)
    # each keyword of the message adds one, so that texts need not be read
    seen[slot] += near
    return picked


@njit_inner
def write_picked(log, as_of, box, keyword_count, slots, seen, found, row):
    """Write the candidates among the picked slots, from `row` on; returns their end.

    Clears only the touched entries of `seen`, which is as long as the window. Loops without branches, so that cache
    misses overlap.
    """
    west, south, east, north = box[0], box[1], box[2], box[3]
    place, gathered = np.empty((_TOGETHER, 2)), np.empty((_TOGETHER, 3), np.int64)
    for begin in range(0, slots.shape[0], _TOGETHER):
        kept = 0
        for slot in slots[begin : begin + _TOGETHER]:
            lon, lat = log.lon[slot], log.lat[slot]
            place[kept, 0], place[kept, 1] = lon, lat
            gathered[kept, 0], gathered[kept, 1], seen[slot] = slot, seen[slot], 0
            # cells reach beyond the edge of the rectangle
            kept += (west <= lon) & (lon <= east) & (south <= lat) & (lat <= north)
        if log.ended.shape[0]:
            near, kept = kept, 0
            for i in range(near):
                place[kept, 0], place[kept, 1] = place[i, 0], place[i, 1]
                gathered[kept, 0], gathered[kept, 1] = gathered[i, 0], gathered[i, 1]
                kept += lived_at(log, gathered[i, 0], as_of)
        # count beyond the capacity, too: the caller then grows the columns and repeats the query
        fitting = min(kept, max(0, found.seq.shape[0] - row))
        for i in range(fitting):
            slot = gathered[i, 0]
            gathered[i, 2] = log.term_count[slot]
            found.seq[row + i], found.life[row + i] = log.seq[slot], log.life[slot]
        for i in range(fitting):
            found.spatial[row + i] = spatial_relevance(place[i, 0], place[i, 1], box)
            found.text[row + i] = text_relevance(keyword_count, gathered[i, 2], gathered[i, 1])
        row += kept
    return row
