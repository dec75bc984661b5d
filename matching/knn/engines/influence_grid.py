"""Engine `influence_grid`: grids and inverted files over influence balls, after the worker index of DkM-SKS.

A message is looked up in its cell of each grid: for each of its terms the subscriptions whose influence ball overlaps
the cell (`matching.knn.engines.cells`). The paper has one grid (`papers.dkm_sks`); here there are several, coarse and
fine, each for balls of some sizes. A subscription with fewer than k results has no ball (spec 5) and is found by
keyword alone (`matching.knn.engines.terms`), as are balls wider than the coarsest cells, and all by a term that few
subscriptions have: one short list costs less than cells, and takes one posting.

Balls shrink. A posting is updated when a message falls into its outdated ball, and dropped if the ball has left the
cell. A ball that fits a finer grid moves there at the end of the batch; one of radius zero has the nearest messages
possible, and is no longer indexed.

Most of the time of a message is memory: lists are prefetched for several messages, found subscriptions ahead of their
use. Tried and left out: messages in order of cells (no gain of the scan beyond scatter), a third, finer grid (as fast,
a fifth more memory), longer runs of messages.
"""

import numpy as np

from compiling.njit import njit, njit_inner, njit_inner_no_refcount, njit_no_refcount
from matching.cumulative.engine import CumulativeEngine
from matching.cumulative.results import A_RESULT, LINE_ENTRIES, POOL_FULL, RESULT_WORDS, offer
from matching.filters import message_passes
from matching.geo.sphere import distance_to, point_of
from matching.knn.engines.balls import HEADER_WORDS, NOWHERE, SPHERE_WORDS, drop, is_on_sphere, limit_of, posting_words
from matching.knn.engines.cells import (
    CellLists,
    find_list,
    half_height,
    half_sides,
    has_left,
    post_cells,
    reach_of,
    unpost_cells,
)
from matching.knn.engines.terms import ANY_NUMBER, TermLists, is_first_common, post_terms, unpost_terms
from matching.space import Space
from matching.storage.point_subscriptions import ROW_WORDS, TERM_HALVES
from matching.storage.prefetch import prefetch
from matching.storage.slots import grown
from matching.storage.squares import Earth, cell_of, grid_for, home_of_key, key_of

#: Values in place of a subscription's grid: in no list yet; in the lists of its terms only.
_NEW, _BY_TERM = -2, -1
#: Messages looked up together, so that memory latencies overlap: one at a time takes twice as long.
_ROWS = 16
_FEWEST_FOUND = 1 << 12
#: Lists of which all lines are prefetched ahead of their use; postings of a line in the plane; the most prefetched.
_LISTS_AHEAD, _LINE_POSTINGS, _MOST_FETCHED = 3, 4, 64
#: Postings found for a message up to which a subscription is sought among them: cheaper than to read its terms.
_FEW = 32
#: Subscriptions prefetched ahead of their use, and lines of a result from its end, which are those that move.
_AHEAD, _LINES = 8, 4


class InfluenceGrid(CumulativeEngine):
    """Influence balls in grids, with an inverted file in each cell. A message costs O(grids * terms + postings read).

    sides : tuple of int    cells a side of each grid, each at least twice the one before (`cells.key_of`)
    widest : int            width of a ball in its grid at most, in cells
    rare : int              a term with at most this many subscriptions has one list, and none in cells
    """

    name = "influence_grid"
    serves_sphere = True
    sides = (64, 1024)
    widest = 2.0
    rare = 32

    def __init__(self, space: Space):
        super().__init__(space)
        self.terms = TermLists(True, space.on_sphere)
        self.cells = CellLists(np.array(self.sides, np.int64), space.on_sphere)
        self._earth = Earth.of(space)
        self._grid = np.zeros(0, np.int8)  # by slot: its grid
        self._reach = np.zeros(0, np.float32)  # by slot: at least its radius when it was posted there
        self._moved = np.zeros(1, np.int32)  # how many slots of this batch may fit a finer grid, and which

    def _post(self, slots):
        c, capacity = self.subscriptions.columns, self.subscriptions.capacity
        self._grid, self._reach = grown(self._grid, capacity), grown(self._reach, capacity)
        self._grid[slots] = _NEW
        self.terms.ensure_terms(c, slots)
        self.cells.ensure_terms(self.terms.view.start.shape[0])
        self._leave_lists(self.terms.count(c, slots, self.rare))
        self._place(slots)

    def _leave_lists(self, terms):
        """Move subscriptions from lists of terms that are no longer rare into cells, if their ball fits a grid."""
        v = self.terms.view
        listed = [v.slot[v.start[term] : v.start[term] + v.count[term]] for term in terms[v.count[terms] > 0]]
        if listed:
            slots = np.unique(np.concatenate(listed))
            slots = slots[self._grid[slots] >= 0]
            self._take_out(slots)
            self._place(slots)

    def _unpost(self, slots):
        self._take_out(slots)
        self.terms.discount(self.subscriptions.columns, slots)

    def _take_out(self, slots):
        c = self.subscriptions.columns
        _take_out(
            c, self._earth, self.subscriptions.unit_square, self.terms.view, self.cells.view, self.cells.sides,
            self.cells.counts, self._grid, self._reach, slots,
        )  # fmt: skip

    def _settle(self):
        # messages find subscriptions in the order of the lists, which are searched from the end (`cells`)
        self._place(self._moved[self._moved[0] : 0 : -1].copy())
        self._moved[0] = 0

    def _place(self, slots):
        """Move subscriptions to the grids for their balls."""
        c, cells, done = self.subscriptions.columns, self.cells, 0
        while True:
            done, full = _place(
                c, self._earth, self.subscriptions.unit_square, self.terms.view, cells.view, cells.sides, cells.counts,
                cells.entered, self.widest, self.rare, self._grid, self._reach, slots, done,
            )  # fmt: skip
            if done == slots.shape[0]:
                return
            terms = int(c.term_count[slots[done]])
            if full == _BY_TERM:
                self.terms.grow(c, terms)
            else:
                cells.grow(terms * (int(self.widest) + 2) ** 2)

    def _scan(self, batch, first_row):
        cells = self.cells
        # an offer that moves a subscription is logged as well
        self._moved = grown(self._moved, 1 + self.best.view.log_slot.shape[0])
        return _scan(
            self.subscriptions.columns, self._earth, self.subscriptions.unit_square, self.best.view, self.filters,
            self.terms.view, cells.view, self.terms.postings, cells.postings, cells.sides, cells.counts, self.widest,
            self._grid, self._moved, batch, first_row, self.counters,
        )  # fmt: skip

    def arrays(self):
        arrays = super().arrays() | {f"terms_{name}": value for name, value in self.terms.arrays().items()}
        arrays |= {f"cells_{name}": value for name, value in self.cells.arrays().items()}
        return arrays | {"grid": self._grid, "reach": self._reach, "moved": self._moved}


@njit_inner_no_refcount
def _take_out_one(c, earth, places, lists, cells, sides, counts, grid, reach, slot):
    if _BY_TERM <= grid[slot] < sides.shape[0]:
        if grid[slot] >= 0:
            unpost_cells(c, earth, places, cells, sides, counts, slot, grid[slot], reach[slot])
        unpost_terms(c, lists, slot)
    grid[slot] = _NEW


@njit_no_refcount
def _take_out(c, earth, places, lists, cells, sides, counts, grid, reach, slots):
    for slot in slots:
        _take_out_one(c, earth, places, lists, cells, sides, counts, grid, reach, slot)


@njit_inner
def _grid_at_most(earth, sides, radius, widest):
    """The grid for a ball of this radius, or a finer one; on the sphere a ball's box is at least as wide as high."""
    if radius <= 0.0:
        return sides.shape[0]
    return grid_for(sides, half_height(earth, radius) if earth.on_sphere else radius, widest)


@njit_no_refcount
def _place(c, earth, places, lists, cells, sides, counts, entered, widest, rare, grid, reach, slots, first):
    """Move slots from `first` on; returns the number moved, and the grid whose pool was too small for the next slot."""
    for i in range(first, slots.shape[0]):
        slot = slots[i]
        radius = -c.threshold[slot]
        wide = radius
        if earth.on_sphere and 0.0 < radius < np.inf:
            wide = max(half_sides(earth, places[1][slot], radius))
        wanted = grid_for(sides, wide, widest)
        # no message is strictly nearer than distance 0
        if radius <= 0.0:
            wanted = sides.shape[0]
        # only to a finer grid: a ball never grows
        if wanted <= grid[slot]:
            continue
        _take_out_one(c, earth, places, lists, cells, sides, counts, grid, reach, slot)
        if wanted == sides.shape[0]:
            grid[slot] = wanted
            continue
        if not post_terms(c, lists, slot, ANY_NUMBER if wanted == _BY_TERM else rare):
            unpost_terms(c, lists, slot)
            return i, _BY_TERM
        grid[slot] = wanted
        if wanted >= 0:
            reach[slot] = reach_of(earth, radius)
            if not post_cells(c, earth, places, cells, sides, counts, entered, slot, wanted, reach[slot]):
                # undo the postings; the caller extends the pool and starts again
                _take_out_one(c, earth, places, lists, cells, sides, counts, grid, reach, slot)
                return i, wanted
    return slots.shape[0], NOWHERE


@njit(cache=True, nogil=True)
def _scan(
    c, earth, places, best, filters, lists, cells, by_term, in_cells, sides, counts, widest, grids, moved, batch,
    first_row, counters,
):  # fmt: skip
    """Match rows from `first_row` on; returns the row that overflowed the results, or the number of rows."""
    rows, most = batch.seq.shape[0], 0
    for r in range(first_row, rows):
        most = max(most, batch.term_offsets[r + 1] - batch.term_offsets[r])
    lookups = np.empty((_ROWS * most * (sides.shape[0] + 1), 4), np.int64)
    found = np.empty((_FEWEST_FOUND, 4), np.int64)
    row_end, row_scanned = np.empty(_ROWS, np.int64), np.empty(_ROWS, np.int64)
    here = np.empty(sides.shape[0], np.int64)
    r = first_row
    while r < rows:
        last = min(r + _ROWS, rows)
        there = _look_up(lists, cells, sides, counts, batch, r, last, here, lookups)
        largest = _count(lists, cells, lookups, there, r, row_scanned)
        if largest > found.shape[0]:
            found = np.empty((2 * largest, 4), np.int64)
        last = _gather(lists, cells, by_term, in_cells, batch, r, last, lookups, there, row_scanned, found, row_end)
        done = _offer_all(
            c, earth, places, best, filters, lists, cells, sides, counts, widest, grids, moved, batch, r, last, lookups,
            found, row_end, row_scanned, counters,
        )  # fmt: skip
        if done < last:
            return done
        r = last
    return rows


@njit_no_refcount
def _look_up(lists, cells, sides, counts, batch, first, last, here, lookups):
    """Write the lists of the rows to `lookups`, as (row, ordinal of the term, grid or -1, list); returns how many.

    here : int64[grids]    scratch, the cells of a row
    """
    words = posting_words(is_on_sphere(cells))
    keys, places, count = cells.key, cells.key.shape[0], 0
    for i in range(batch.term_offsets[first], batch.term_offsets[last]):
        term = np.int64(batch.terms[i])
        prefetch(lists.key, term * HEADER_WORDS)
        prefetch(counts, term * sides.shape[0])
    for r in range(first, last):
        for grid in range(sides.shape[0]):
            here[grid] = cell_of(batch.x[r], batch.y[r], sides[grid])
        for i in range(batch.term_offsets[r], batch.term_offsets[r + 1]):
            term = batch.terms[i]
            # a term above all that were ever posted has no list
            if term >= counts.shape[0]:
                continue
            for grid in range(_BY_TERM, sides.shape[0]):
                if grid >= 0 and counts[term, grid] == 0:
                    continue
                lookups[count, 0], lookups[count, 1] = r, i - batch.term_offsets[r]
                lookups[count, 2], lookups[count, 3] = grid, term
                if grid >= 0:
                    key = key_of(sides[grid], here[grid], term)
                    lookups[count, 3] = key
                    prefetch(keys, home_of_key(key, places) * HEADER_WORDS)
                count += 1
    there = 0
    for a in range(count):
        at = lookups[a, 3]
        if lookups[a, 2] >= 0:
            at = find_list(keys, at, home_of_key(at, places))
            if at < 0 or cells.count[at] == 0:
                continue
            prefetch(cells.slot, cells.start[at] * words)
        elif lists.count[at] == 0:
            continue
        else:
            prefetch(lists.slot, lists.start[at] * words)
        # element by element: a slice would be copied first, since both may overlap
        lookups[there, 0], lookups[there, 1] = lookups[a, 0], lookups[a, 1]
        lookups[there, 2], lookups[there, 3] = lookups[a, 2], at
        there += 1
    return there


@njit_no_refcount
def _count(lists, cells, lookups, there, first, scanned):
    """Count the postings of each row; returns the largest count."""
    scanned[:] = 0
    most = 0
    for a in range(there):
        at, row = lookups[a, 3], lookups[a, 0] - first
        scanned[row] += cells.count[at] if lookups[a, 2] >= 0 else lists.count[at]
        most = max(most, scanned[row])
    return most


@njit_no_refcount
def _gather(lists, cells, by_term, in_cells, batch, first_row, last_row, lookups, there, scanned, found, row_end):
    """Write the postings whose balls may contain the messages to `found`: (slot, place, index of `lookups`, 0).

    `row_end` gets the end of each row. Returns the row that may overflow `found`, or `last_row`; the first fits.
    """
    hits = a = 0
    for r in range(first_row, last_row):
        if hits + scanned[r - first_row] > found.shape[0]:
            return r
        x, y, z, _ = point_of(batch, r)
        place = np.float32(x), np.float32(y), np.float32(z)
        while a < there and lookups[a, 0] == r:
            if a + _LISTS_AHEAD < there:
                at = lookups[a + _LISTS_AHEAD, 3]
                if lookups[a + _LISTS_AHEAD, 2] >= 0:
                    _prefetch_list(in_cells[0], cells.start[at], cells.count[at])
                else:
                    _prefetch_list(by_term[0], lists.start[at], lists.count[at])
            at = lookups[a, 3]
            if lookups[a, 2] >= 0:
                hits = _gather_list(in_cells, cells.start[at], cells.count[at], place, a, found, hits)
            else:
                hits = _gather_list(by_term, lists.start[at], lists.count[at], place, a, found, hits)
            a += 1
        row_end[r - first_row] = hits
    return last_row


@njit_inner
def _prefetch_list(rows, start, count):
    """Prefetch a list from its second cache line on (`_look_up` prefetches the first): too short for the hardware's
    prefetcher."""
    for line in range(_LINE_POSTINGS, min(count, _MOST_FETCHED), _LINE_POSTINGS):
        prefetch(rows, (start + line) * rows.shape[1])


@njit_inner_no_refcount
def _gather_list(postings, start, count, place, a, found, hits):
    """Append the postings of a list whose balls may contain a place to `found`; returns the new number of `found`.

    postings : as of `BallLists.postings`
    """
    slot, row = postings
    # unsigned indexes: the compiler need not handle negative ones
    first = np.uint64(start)
    last = first + np.uint64(count)
    # two loops: a test for the column that only the sphere has would slow both down
    if row.shape[1] == SPHERE_WORDS:
        for p in range(first, last):
            dx, dy, dz = row[p, 1] - place[0], row[p, 2] - place[1], row[p, 4] - place[2]
            if dx * dx + dy * dy + dz * dz <= row[p, 3]:
                found[hits, 0], found[hits, 1], found[hits, 2] = slot[p, 0], p, a
                hits += 1
    else:
        for p in range(first, last):
            dx, dy = row[p, 1] - place[0], row[p, 2] - place[1]
            if dx * dx + dy * dy <= row[p, 3]:
                found[hits, 0], found[hits, 1], found[hits, 2] = slot[p, 0], p, a
                hits += 1
    return hits


@njit(cache=True, nogil=True)
def _is_new(found, first, h):
    """Whether no entry of found[first:h] has the subscription of found[h]. O(h - first)."""
    earlier = first
    # ends at h itself
    while found[earlier, 0] != found[h, 0]:
        earlier += 1
    return earlier == h


@njit_inner
def _prefetch_rows(x, start, grids, slot):
    prefetch(x, slot * ROW_WORDS)
    prefetch(start, slot * RESULT_WORDS)
    prefetch(grids, slot)


@njit_inner
def _prefetch_result(start, count, key, slot):
    """Prefetch the end of a result, where entries move."""
    end = start[slot] + count[slot]
    for line in range(max(start[slot], end - _LINES * LINE_ENTRIES), end, LINE_ENTRIES):
        prefetch(key, 2 * line)


@njit_inner_no_refcount
def _offer_all(
    c, earth, places, best, filters, lists, cells, sides, counts, widest, grids, moved, batch, first, last, lookups,
    found, row_end, scanned, counters,
):  # fmt: skip
    """Offer messages to the subscriptions found, row by row; returns the row that overflowed the results, or `last`."""
    terms, term_start, threshold = c.terms, c.term_start, c.threshold
    total, h = row_end[last - 1 - first], 0
    for soon in range(min(2 * _AHEAD, total)):
        _prefetch_rows(c.x, best.start, grids, found[soon, 0])
    for soon in range(min(_AHEAD, total)):
        _prefetch_result(best.start, best.count, best.key, found[soon, 0])
    for r in range(first, last):
        seq, here = batch.seq[r], point_of(batch, r)
        begin, row_begin = batch.term_offsets[r], h
        few = row_end[r - first] - h <= _FEW
        verified = matched = 0
        while h < row_end[r - first]:
            # in two stages, the second reads an address that the first has fetched
            if h + 2 * _AHEAD < total:
                _prefetch_rows(c.x, best.start, grids, found[h + 2 * _AHEAD, 0])
            if h + _AHEAD < total:
                soon = found[h + _AHEAD, 0]
                _prefetch_result(best.start, best.count, best.key, soon)
                if not few:
                    prefetch(terms, TERM_HALVES * term_start[soon])
            slot, place, a = found[h, 0], found[h, 1], found[h, 2]
            # the lists of all common terms contain the pair: process it once
            if few:
                new = _is_new(found, row_begin, h)
            else:
                new = is_first_common(terms, term_start[slot], batch.terms, begin, lookups[a, 1])
            h += 1
            if new:
                verified += 1
                key = -distance_to(here, c.x[slot], c.y[slot], c.z[slot])
                # strictly nearer: of equal distances the older stays
                if key > threshold[slot] and not (
                    filters.span.shape[0] and not message_passes(filters, slot, batch, r)
                ):
                    outcome = offer(c.threshold, c.k, best, slot, seq, key)
                    if outcome == POOL_FULL:
                        return r
                    if outcome == A_RESULT:
                        matched += 1
                        # what `_place` decides for good
                        if _grid_at_most(earth, sides, -threshold[slot], widest) > grids[slot]:
                            moved[0] += 1
                            moved[moved[0]] = slot
            if threshold[slot] == -np.inf:
                continue
            at, grid = lookups[a, 3], lookups[a, 2]
            limit = limit_of(threshold[slot], earth.on_sphere)
            if grid < 0:
                lists.limit[place] = min(limit, lists.limit[place])
            # another posting may have moved to this place when an earlier one was dropped
            elif cells.slot[place] == slot and place < cells.start[at] + cells.count[at] and limit < cells.limit[place]:
                cells.limit[place] = limit
                left = has_left(
                    earth, places[0][slot], places[1][slot], threshold[slot], batch.x[r], batch.y[r], sides[grid]
                )
                if left:
                    counts[batch.terms[begin + lookups[a, 1]], grid] -= 1
                    drop(cells, at, place)
        # after the row, so that a row that starts again is counted once
        counters[0] += scanned[r - first]
        counters[1] += verified
        counters[2] += matched
    return last
