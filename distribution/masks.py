"""Masks of query tasks by (grid cell, term), as a distribution task has them; see `distribution.influence`.

Keys are those of `matching.influence`. Of the coarsest grid, which is one cell, masks lie by term, beside those of new
subscriptions and a few bits that say in which cells a term has keys: a term costs one cache miss, and another for each
grid in which it may have the message's cell.
"""

import numpy as np

from compiling.njit import njit, njit_inner_no_refcount
from distribution.targets import place_of as _place
from distribution.targets import values_for
from matching.influence import (
    FULLEST,
    MOST_SQUARES,
    SIDES,
    KeyRows,
    cosine_of,
    count_squares,
    enter_row,
    find_row,
    squares_of,
)
from matching.model import Float64, Int32, Int64, MessageBatch, SubscriptionTable
from matching.space import Space
from matching.storage.prefetch import prefetch
from matching.storage.slots import grown
from matching.storage.squares import Earth, cell_of, home_of_key, key_of

#: Messages looked up together, so that memory latencies overlap.
_ROWS = 32
_TERM_BITS = (1 << 31) - 1
#: Bits of a term for the cells of a grid in which it has had keys: three of four look-ups in the coarse ones find none.
_BITS_A_GRID = 62 // (SIDES.shape[0] - 1)


class Masks:
    """A bit for each query task under each key.

    Parameters
    ----------
    space : Space
    tasks : int
    """

    def __init__(self, space: Space, tasks: int):
        self._earth = Earth.of(space)
        self._tasks = tasks
        self._values = values_for(tasks)
        self._keys = KeyRows(self._values)
        # by term: bits for the cells in which it has had keys; masks of the whole world; masks of new subscriptions
        self._terms = np.zeros((0, 1 + 2 * self._values), np.int64)

    @property
    def nbytes(self) -> int:
        """Memory."""
        return self._keys.rows.nbytes + self._terms.nbytes

    def ensure_terms(self, terms: Int32) -> None:
        """Have a row for each of these terms."""
        self._terms = grown(self._terms, int(np.max(terms, initial=-1)) + 1)

    def enter(self, table: SubscriptionTable, radius: Float64, task: Int64) -> None:
        """Set the bits of subscriptions with balls of `radius` (float64[n], infinite: none) at `task` (int64[n]).

        The keys are those that `InfluenceKeys` has. O(n).
        """
        self.ensure_terms(table.terms)
        keys, done, (value, bit) = self._keys, 0, _place(task)
        vector = table.vector if table.vector.shape[0] else np.zeros((0, 3))
        counts = np.diff(table.term_offsets)
        while done < len(table):
            keys.reserve(max(int(counts[done]) * MOST_SQUARES, min(1 << 16, 4 * len(table))))
            done = _enter(
                keys.rows, keys.entered, self._terms, self._earth, SIDES, table.x, table.y, vector, table.term_offsets,
                table.terms, radius, value, bit, done,
            )  # fmt: skip

    def set(self, task: int, keys: Int64) -> None:
        """Set the bit of a task under these keys."""
        self.ensure_terms(keys & _TERM_BITS)
        self._keys.reserve(keys.shape[0])
        value, bit = _place(np.int64(task))
        _set(self._keys.rows, self._keys.entered, self._terms, SIDES, keys, value, bit)

    def clear(self, task: int, keys: Int64) -> None:
        """Clear the bit of a task under these keys."""
        value, bit = _place(np.int64(task))
        _clear(self._keys.rows, self._terms, keys, value, bit)

    def set_new(self, task: int, terms: Int32) -> None:
        """Have new subscriptions of a task count under these terms everywhere."""
        value, bit = _place(np.int64(task))
        self._terms[terms, 1 + self._values + value] |= bit

    def clear_new(self, task: int, terms: Int32) -> None:
        """Have no new subscriptions of a task count under these terms."""
        value, bit = _place(np.int64(task))
        self._terms[terms, 1 + self._values + value] &= ~bit

    def mark(self, messages: MessageBatch, bits: Int64) -> None:
        """Set the bit of a task (`distribution.targets`) for messages with a key of the task. O(its terms * grids)."""
        offsets, terms = messages.term_offsets, messages.terms
        _gather(self._keys.rows, self._terms, SIDES, messages.x, messages.y, offsets, terms, bits)


@njit(cache=True, nogil=True)
def _enter(rows, entered, by_term, earth, sides, xs, ys, vector, offsets, terms, radii, value, bit, first):
    """Set bits for subscriptions from `first` on; returns how many are done. Stops where the table might be full."""
    for i in range(first, xs.shape[0]):
        if radii[i] <= 0.0:
            continue
        cosine = cosine_of(earth, vector[i, 0], vector[i, 1]) if earth.on_sphere else 1.0
        squares = squares_of(earth, sides, xs[i], ys[i], radii[i], cosine)
        if i > first and entered[0] + count_squares(squares) * (offsets[i + 1] - offsets[i]) > FULLEST * rows.shape[0]:
            return i
        grid, south, north, begin, end, other_begin, other_end = squares
        side = sides[grid]
        for row in range(south, north + 1):
            for low, high in ((begin, end), (other_begin, other_end)):
                for column in range(low, high + 1):
                    for at in range(offsets[i], offsets[i + 1]):
                        key = key_of(side, row * side + column, np.int64(terms[at]))
                        _set_one(rows, entered, by_term, grid, key, value[i], bit[i])
    return xs.shape[0]


@njit_inner_no_refcount
def _bit_of(grid, key):
    """The bit for the cell of a key among the bits of a term: it is set if the term has had a key in such a cell."""
    # consecutive cells have different bits, so that a cell and its neighbours share no bit
    return np.int64(1) << ((grid - 1) * _BITS_A_GRID + (key >> 31) % _BITS_A_GRID)


@njit_inner_no_refcount
def _set_one(rows, entered, by_term, grid, key, value, bit):
    term = key & _TERM_BITS
    if grid == 0:
        by_term[term, 1 + value] |= bit
    else:
        by_term[term, 0] |= _bit_of(grid, key)
        rows[enter_row(rows, entered, key), 1 + value] |= bit


@njit(cache=True, nogil=True)
def _set(rows, entered, by_term, sides, keys, value, bit):
    for key in keys:
        grid, square = 0, key >> 31
        while square >= 2 * sides[grid] * sides[grid]:
            grid += 1
        _set_one(rows, entered, by_term, grid, key, value, bit)


@njit(cache=True, nogil=True)
def _clear(rows, by_term, keys, value, bit):
    for key in keys:
        if key >> 31 == 1:  # of the grid of one cell
            by_term[key & _TERM_BITS, 1 + value] &= ~bit
        else:
            at = find_row(rows, key, home_of_key(key, rows.shape[0]))
            if at >= 0:
                rows[at, 1 + value] &= ~bit


@njit(cache=True, nogil=True)
def _gather(rows, by_term, sides, x, y, offsets, terms, bits):
    """Set the bits (int64[rows, values]) under the keys of each message."""
    count, values, grids = x.shape[0], bits.shape[1], sides.shape[0]
    most = 0
    for first in range(0, count, _ROWS):
        most = max(most, offsets[min(first + _ROWS, count)] - offsets[first])
    probes = np.empty((max(2, most * grids), 3), np.int64)
    wide, width = rows.shape[1], by_term.shape[1]
    # of a message: its cell in each grid, as in a key, and the bit of that cell
    cells, noted = np.empty(grids, np.int64), np.empty(grids, np.int64)
    for first in range(0, count, _ROWS):
        last = min(first + _ROWS, count)
        for at in range(offsets[first], offsets[last]):
            prefetch(by_term, np.int64(terms[at]) * width)
        probing = 0
        for row in range(first, last):
            for grid in range(1, grids):
                cells[grid] = key_of(sides[grid], cell_of(x[row], y[row], sides[grid]), 0)
                noted[grid] = _bit_of(grid, cells[grid])
            for at in range(offsets[row], offsets[row + 1]):
                term = np.int64(terms[at])
                # a term above all that ever had a key has none
                if term >= by_term.shape[0]:
                    continue
                for value in range(values):
                    bits[row, value] |= by_term[term, 1 + value] | by_term[term, 1 + values + value]
                there = by_term[term, 0]
                for grid in range(1, grids):
                    if there & noted[grid]:
                        key = cells[grid] | term
                        home = home_of_key(key, rows.shape[0])
                        prefetch(rows, home * wide)
                        probes[probing, 0], probes[probing, 1], probes[probing, 2] = row, key, home
                        probing += 1
        for probe in range(probing):
            found = find_row(rows, probes[probe, 1], probes[probe, 2])
            if found >= 0:
                for value in range(values):
                    bits[probes[probe, 0], value] |= rows[found, 1 + value]
