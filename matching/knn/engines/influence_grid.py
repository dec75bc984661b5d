"""Engine `influence_grid`: the worker index of DkM-SKS, grid and inverted file over influence balls.

A message is looked up in the cells it lies in: for each of its terms the subscriptions whose influence ball overlaps
the cell (`matching.knn.engines.cells`). Who has fewer than k results has no ball, whatever was near before it came
(spec 5), and is found by keyword alone (`matching.knn.engines.terms`), as are balls wider than the coarsest cells.

Balls shrink. A posting learns of it when a message falls into what it takes for its ball, and is dropped if the ball
has left the cell. Once a ball fits a finer grid its subscription moves there, at the end of the batch; one of radius
zero has the nearest messages there can be, and is indexed no more.
"""

import math

import numpy as np
from numba import njit

from matching.knn.engines.balls import NOWHERE, SLACK, drop, limit_of
from matching.knn.engines.cells import (
    CellLists,
    cell_of,
    find_list,
    grid_for,
    has_left,
    home_of_key,
    key_of,
    post_cells,
    unpost_cells,
)
from matching.knn.engines.terms import TermLists, is_first_common, post_terms, unpost_terms
from matching.lasting.engine import LastingEngine
from matching.lasting.results import A_RESULT, NO_ROOM, offer
from matching.space import Space
from matching.storage.prefetch import prefetch
from matching.storage.slots import resized

#: Where a subscription is that is in no list: none yet, or never again. `_BY_TERM`: in those of its terms alone.
_NEW, _BY_TERM = -2, -1
#: Postings tested before the subscriptions of those that passed are looked at.
_FOUND = 256
#: Columns of a subscription, and of a posting, lie in rows of so many words.
_ROW_WORDS, _POSTING_WORDS = 6, 4
_HEADER_WORDS = 3


class InfluenceGrid(LastingEngine):
    """Influence balls in grids, inverted files in their cells. A message costs O(grids * its terms + postings there).

    sides : cells a side of each grid, ascending; none finer than the others together (`cells.key_of`)
    widest : how many cells wide a ball may be in its grid
    """

    name = "influence_grid"
    sides = (4, 16, 64, 256, 1024, 4096, 16384)
    widest = 1.0

    def __init__(self, space: Space):
        super().__init__(space)
        self.terms = TermLists(together=True)
        self.cells = CellLists(np.array(self.sides, np.int64))
        self._grid = np.zeros(0, np.int8)  # by slot: where it is
        self._reach = np.zeros(0)  # and with which radius it came there, slack included

    def _post(self, slots):
        c, capacity = self.subscriptions.columns, self.subscriptions.capacity
        if self._grid.shape[0] < capacity:
            self._grid, self._reach = resized(self._grid, capacity), resized(self._reach, capacity)
        self._grid[slots] = _NEW
        self.terms.ensure_terms(c, slots)
        self.cells.ensure_terms(self.terms.view.start.shape[0])
        self._place(slots)

    def _unpost(self, slots):
        c = self.subscriptions.columns
        _take_out(c, self.terms.view, self.cells.view, self.cells.sides, self.cells.held, self._grid, self._reach, slots)

    def _settle(self):
        self._place(self.best.touched)

    def _place(self, slots):
        """Move subscriptions to where their balls belong."""
        c, cells, done = self.subscriptions.columns, self.cells, 0
        while True:
            done, lacking = _place(
                c, self.terms.view, cells.view, cells.sides, cells.held, cells.entered, self.widest,
                self._grid, self._reach, slots, done,
            )  # fmt: skip
            if done == slots.shape[0]:
                return
            if lacking == _BY_TERM:
                self.terms.grow(c)
            else:
                cells.grow()

    def _scan(self, batch, first_row):
        cells = self.cells
        return _scan(
            self.subscriptions.columns, self.best.view, self.terms.view, cells.view, cells.sides, cells.held,
            batch, first_row, self.counters,
        )  # fmt: skip

    def arrays(self):
        arrays = super().arrays() | {f"terms_{name}": value for name, value in self.terms.arrays().items()}
        arrays |= {f"cells_{name}": value for name, value in self.cells.arrays().items()}
        return arrays | {"grid": self._grid, "reach": self._reach}


@njit(cache=True, nogil=True)
def _take_out_one(c, lists, cells, sides, held, grid, reach, slot):
    if grid[slot] == _BY_TERM:
        unpost_terms(c, lists, slot)
    elif 0 <= grid[slot] < sides.shape[0]:
        unpost_cells(c, cells, sides, held, slot, grid[slot], reach[slot])
    grid[slot] = _NEW


@njit(cache=True, nogil=True)
def _take_out(c, lists, cells, sides, held, grid, reach, slots):
    for slot in slots:
        _take_out_one(c, lists, cells, sides, held, grid, reach, slot)


@njit(cache=True, nogil=True)
def _place(c, lists, cells, sides, held, entered, widest, grid, reach, slots, first):
    """Move slots from `first` on; how many are done, and where there was no room for the next (a grid)."""
    for i in range(first, slots.shape[0]):
        slot = slots[i]
        radius = -c.threshold[slot]
        wanted = grid_for(sides, radius, widest)
        # nothing is strictly nearer than no distance at all
        if radius <= 0.0:
            wanted = sides.shape[0]
        # to a finer one alone: a ball never grows
        if wanted <= grid[slot]:
            continue
        _take_out_one(c, lists, cells, sides, held, grid, reach, slot)
        if wanted == sides.shape[0]:
            grid[slot] = wanted
        elif wanted == _BY_TERM:
            if not post_terms(c, lists, slot):
                unpost_terms(c, lists, slot)
                return i, _BY_TERM
            grid[slot] = wanted
        else:
            grid[slot], reach[slot] = wanted, radius + SLACK
            if not post_cells(c, cells, sides, held, entered, slot, wanted, reach[slot]):
                # what is in is taken out again, and all is begun anew when there is room
                _take_out_one(c, lists, cells, sides, held, grid, reach, slot)
                return i, wanted
    return slots.shape[0], NOWHERE


@njit(cache=True, nogil=True)
def _scan(c, best, lists, cells, sides, held, batch, first_row, counters):
    """Match rows from `first_row` on; returns the row for which there was no room, or their number."""
    most = 0
    for r in range(first_row, batch.seq.shape[0]):
        most = max(most, batch.term_offsets[r + 1] - batch.term_offsets[r])
    size = most * sides.shape[0]
    at, key = np.empty(size, np.int64), np.empty(size, np.int64)
    ordinal, grid_of = np.empty(size, np.int32), np.empty(size, np.int32)
    found = np.empty((_FOUND, 3), np.int64)
    work = np.zeros(3, np.int64)
    for r in range(first_row, batch.seq.shape[0]):
        terms = batch.terms[batch.term_offsets[r] : batch.term_offsets[r + 1]]
        x, y = batch.x[r], batch.y[r]
        asked = 0
        # all lists are asked for before the first is read, so that the waits overlap
        for i in range(terms.shape[0]):
            # a term above all that were ever posted has no list
            if terms[i] >= held.shape[0]:
                continue
            prefetch(lists.start, np.int64(terms[i]) * _HEADER_WORDS)
            for grid in range(sides.shape[0]):
                if held[terms[i], grid] > 0:
                    key[asked] = key_of(sides, grid, cell_of(x, y, sides[grid]), terms[i])
                    at[asked] = home_of_key(key[asked], cells.key.shape[0])
                    prefetch(cells.key, at[asked] * _HEADER_WORDS)
                    ordinal[asked], grid_of[asked] = i, grid
                    asked += 1
        there = 0
        for a in range(asked):
            place = find_list(cells, key[a], at[a])
            if place >= 0 and cells.count[place] > 0:
                prefetch(cells.slot, cells.start[place] * _POSTING_WORDS)
                at[there], ordinal[there], grid_of[there] = place, ordinal[a], grid_of[a]
                there += 1
        work[:] = 0
        for i in range(terms.shape[0]):
            if terms[i] < held.shape[0] and not _scan_list(
                c, best, lists, terms[i], batch, r, terms, i, np.int64(0), held[terms[i]], NOWHERE, found, work
            ):
                return r
        for a in range(there):
            grid = grid_of[a]
            if not _scan_list(
                c, best, cells, at[a], batch, r, terms, ordinal[a], sides[grid], held[terms[ordinal[a]]], grid,
                found, work,
            ):  # fmt: skip
                return r
        # whole rows alone: one that is begun anew is counted once
        counters += work
    return batch.seq.shape[0]


@njit(cache=True, nogil=True)
def _scan_list(c, best, v, at, batch, r, terms, i, side, held, grid, found, work):
    """Offer a message to those of a list in whose ball it may lie; False if a result had no room.

    From the last posting to the first: a posting is dropped by moving the last one into its place, which so has been
    looked at before.
    """
    start, count = v.start[at], v.count[at]
    work[0] += count
    x, y = np.float32(batch.x[r]), np.float32(batch.y[r])
    hits = 0
    for place in range(start + count - 1, start - 1, -1):
        dx, dy = v.x[place] - x, v.y[place] - y
        if dx * dx + dy * dy <= v.limit[place]:
            found[hits, 0], found[hits, 1] = place, v.slot[place]
            prefetch(c.x, np.int64(v.slot[place]) * _ROW_WORDS)
            hits += 1
            if hits == found.shape[0]:
                if not _offer_all(c, best, v, at, batch, r, terms, i, side, held, grid, found, hits, work):
                    return False
                hits = 0
    return hits == 0 or _offer_all(c, best, v, at, batch, r, terms, i, side, held, grid, found, hits, work)


@njit(cache=True, nogil=True)
def _offer_all(c, best, v, at, batch, r, terms, i, side, held, grid, found, hits, work):
    """Offer a message to the subscriptions of postings (place, slot), descending; False if a result had no room."""
    x, y, seq = batch.x[r], batch.y[r], batch.seq[r]
    for h in range(hits):
        slot = found[h, 1]
        prefetch(c.terms, 3 * c.term_start[slot])
        prefetch(best.start, slot)
        prefetch(best.count, slot)
    for h in range(hits):
        place, slot = found[h, 0], found[h, 1]
        # a pair meets in the lists of all terms they share
        if is_first_common(c, slot, terms, i):
            work[1] += 1
            dx, dy = c.x[slot] - x, c.y[slot] - y
            key = -math.sqrt(dx * dx + dy * dy)
            # strictly nearer: of equal distances the older stays
            if key > c.threshold[slot]:
                said = offer(c, best, slot, seq, key)
                if said == NO_ROOM:
                    return False
                work[2] += said == A_RESULT
        limit = limit_of(c.threshold[slot])
        if limit < v.limit[place]:
            v.limit[place] = limit
            # lists by term alone forget nobody here: their subscriptions know their places
            if side > 0 and has_left(c, slot, side, x, y):
                drop(v, at, place)
                held[grid] -= 1
    return True
