"""A quadtree for each keyword, all of them in one hash table by (keyword, cell): the ground of `i3`.

A cell of a keyword's quadtree is either a list of messages or, when that grows beyond the capacity, a count of the
messages below, whose lists hang on its four quadrants. A count that falls to half the capacity becomes a list again. A
cell's number is a leading one followed by two bits a level; the world is the whole earth, so that a number says the
cell. A query goes down the quadtree of each of its keywords, and never sees a message without one.

Read on in `matching.skyline.windows.i3`, which sets the capacity.
"""

from typing import ClassVar

import numpy as np
from numba import njit

from matching.errors import EngineError
from matching.skyline.windows import lists as lists_module
from matching.skyline.windows.lists import COUNT, LONGEST, key_of, slot_at
from matching.skyline.windows.messages import ask_for, inside, lived_at, write_candidate
from matching.skyline.windows.tree import TreeWindow, tables_of
from matching.space import Space
from matching.storage.prefetch import prefetch

#: Levels below the root: cells of a hundredth of a degree. A list at the deepest level may be of any length.
_DEEPEST = 15
_WEST, _SOUTH, _WIDTH, _HEIGHT = -180.0, -90.0, 360.0, 180.0
#: Keys that a message may need for one term: every level split, four quadrants each.
_KEYS = 4 * _DEEPEST + 1
#: Lists that a query reads together.
_LEAVES = 16
_READS, _WRITES, _LISTS = range(3)


class CellWindow(TreeWindow):
    """A quadtree for each keyword.

    Notes
    -----
    An arrival or an end costs, for each of its terms, a way down the term's quadtree; a query, for each of its
    keywords, the cells that its rectangle meets.
    """

    #: Messages of a cell's list at most.
    capacity: ClassVar[int]

    def __init__(self, space: Space, kept_boundaries: int = 0):
        super().__init__(space, kept_boundaries)
        self.lists = lists_module.new_lists()
        self.operations = np.zeros(3, np.int64)

    def _insert(self, slots):
        log, progress = self.log.view, np.zeros(2, np.int64)
        while not _insert(self.lists, self.operations, self.capacity, log, slots, progress):
            self.lists = lists_module.grown(self.lists, _KEYS, _words(self.lists, self.capacity))

    def _end(self, slots):
        log, progress = self.log.view, np.zeros(3, np.int64)
        while not _delete(self.lists, self.operations, self.capacity, log, slots, progress):
            self.lists = lists_module.grown(self.lists, _KEYS, _words(self.lists, self.capacity))
        missing = int(progress[2])
        if missing:
            raise EngineError(f"{self.name}: {missing} postings that ended are not where they should be; start anew")
        self.log.remove(slots)

    def _search(self, as_of, region, offsets, terms, first, ends, found):
        return _search(self.lists, self.log.view, as_of, region, offsets, terms, first, ends, found, self._visits)

    def _update_work(self) -> tuple[int, int, int, int]:
        reads, writes, lists = self.operations.tolist()
        return reads, writes, lists, 0

    def _index_bytes(self) -> int:
        return lists_module.used_bytes(self.lists)

    def _state(self) -> dict[str, dict[str, np.ndarray]]:
        return tables_of(lists=self.lists) | {"cells": {"operations": self.operations}}


@njit(cache=True, nogil=True)
def _quadrant(lon, lat, level):
    """Which quadrant of its cell at `level` a point lies in; the east and north edge of the world belong to it."""
    # always by way of the deepest level: a point is rounded once, and goes the same way down at every level
    x = min(int((lon - _WEST) / _WIDTH * (1 << _DEEPEST)), (1 << _DEEPEST) - 1)
    y = min(int((lat - _SOUTH) / _HEIGHT * (1 << _DEEPEST)), (1 << _DEEPEST) - 1)
    down = _DEEPEST - 1 - level
    return (((y >> down) & 1) << 1) | ((x >> down) & 1)


@njit(cache=True, nogil=True)
def _words(lists, capacity):
    """Words that one posting may need: every level split, and the longest list there is made longer."""
    return 2 * lists.meta[LONGEST] + (_DEEPEST + 1) * (2 * capacity + 8)


@njit(cache=True, nogil=True)
def _insert(lists, operations, capacity, log, slots, progress):
    """Insert the postings that `progress` (message, term) has not seen yet; returns whether all of them are in now."""
    moved = np.empty(capacity, np.int32)
    while progress[0] < slots.shape[0]:
        slot = slots[progress[0]]
        lon, lat = log.lon[slot], log.lat[slot]
        while progress[1] < log.term_count[slot]:
            # for each posting, with the most that it may take: a split half done could not be taken back
            if not lists_module.has_room(lists, _KEYS, _words(lists, capacity)):
                return False
            term = log.terms[log.term_start[slot] + progress[1]]
            cell, level = 1, 0
            while True:
                key = key_of(term, cell)
                entry = lists_module.find(lists, key)
                operations[_READS] += 1
                if entry >= 0 and lists.value[entry] == COUNT:
                    lists.length[entry] += 1
                    operations[_WRITES] += 1
                # the deepest list may have any length, since messages may stand at one point
                elif entry >= 0 and lists.length[entry] == capacity and level < _DEEPEST:
                    for i in range(capacity):
                        # out of the pool first: `drop` gives the block away, and `append` takes it
                        moved[i] = slot_at(lists, entry, i)
                    lists_module.drop(lists, entry)
                    # with the newcomer, which goes on down, and may split the next cell too
                    lists_module.add_to_count(lists, key, capacity + 1)
                    for i in range(capacity):
                        below = (cell << 2) | _quadrant(log.lon[moved[i]], log.lat[moved[i]], level)
                        lists_module.append(lists, key_of(term, below), moved[i])
                    operations[_WRITES] += 1
                    operations[_LISTS] += 4
                else:
                    lists_module.append(lists, key, slot)
                    operations[_LISTS] += 1
                    break
                cell = (cell << 2) | _quadrant(lon, lat, level)
                level += 1
            progress[1] += 1
        progress[0] += 1
        progress[1] = 0
    return True


@njit(cache=True, nogil=True)
def _gather(lists, operations, term, cell, out):
    """Take all lists below a cell off the quadtree of a term, into out; returns how many slots."""
    stack = np.empty(4 * _DEEPEST + 4, np.int64)
    stack[0], height, count = cell, 1, 0
    while height:
        height -= 1
        at = stack[height]
        entry = lists_module.find(lists, key_of(term, at))
        # a quadrant without messages has no entry
        if entry < 0:
            continue
        operations[_LISTS] += 1
        if lists.value[entry] == COUNT:
            for quadrant in range(4):
                stack[height] = (at << 2) | quadrant
                height += 1
        else:
            for i in range(lists.length[entry]):
                out[count] = slot_at(lists, entry, i)
                count += 1
        # no entry has moved since `find`: so far only `out` and the stack were written
        lists_module.drop(lists, entry)
    return count


@njit(cache=True, nogil=True)
def _delete(lists, operations, capacity, log, slots, progress):
    """Take out the postings that `progress` (message, term, how many were missing) has not seen yet; whether all are.

    Those missing were not where they should be.
    """
    gathered = np.empty(capacity + 1, np.int32)
    while progress[0] < slots.shape[0]:
        slot = slots[progress[0]]
        lon, lat = log.lon[slot], log.lat[slot]
        while progress[1] < log.term_count[slot]:
            # a merge writes one list anew, whose blocks may be larger than all that it gives back
            if not lists_module.has_room(lists, _KEYS, 2 * capacity + 8):
                return False
            term, cell, level = log.terms[log.term_start[slot] + progress[1]], 1, 0
            while True:
                key = key_of(term, cell)
                entry = lists_module.find(lists, key)
                operations[_READS] += 1
                # counts above are wrong now; the caller gives up the whole window
                if entry < 0:
                    progress[2] += 1
                    break
                if lists.value[entry] != COUNT:
                    progress[2] += 1 if lists_module.remove_entry(lists, key, slot) < 0 else 0
                    operations[_LISTS] += 1
                    break
                # half, so that a cell on the verge is not split and merged in turn
                if lists.length[entry] - 1 <= capacity // 2:
                    # so few are left that one list will do; `slot` is one of them
                    count = _gather(lists, operations, term, cell, gathered)
                    for i in range(count):
                        if gathered[i] != slot:
                            lists_module.append(lists, key, gathered[i])
                    operations[_LISTS] += 1
                    break
                lists.length[entry] -= 1
                operations[_WRITES] += 1
                cell = (cell << 2) | _quadrant(lon, lat, level)
                level += 1
            progress[1] += 1
        progress[0] += 1
        progress[1] = 0
    return True


@njit(cache=True, nogil=True)
def _pick(lists, log, leaves, seen, slots, picked):
    """Count the messages of these lists in `seen`, write new ones to `slots` from `picked` on; returns their end."""
    for entry in leaves:
        for i in range(lists.length[entry]):
            slot = slot_at(lists, entry, i)
            if seen[slot] == 0:
                ask_for(log, slot)
                slots[picked] = slot
                picked += 1
            # once in the list of each keyword it has: so texts are never read. A query has less than 2**12.
            seen[slot] += 1
    return picked


@njit(cache=True, nogil=True)
def _search(lists, log, as_of, region, offsets, terms, first, ends, found, visits):
    """Answer queries from `first` on; see `matching.skyline.windows.tree.TreeWindow`."""
    cells, levels = np.empty(4 * _DEEPEST + 4, np.int64), np.empty(4 * _DEEPEST + 4, np.int64)
    xs, ys = np.empty(4 * _DEEPEST + 4, np.int64), np.empty(4 * _DEEPEST + 4, np.int64)
    last = (1 << _DEEPEST) - 1
    # how many of a query's keywords have led to a message, by slot; and the slots that any has led to
    seen, slots = np.zeros(log.seq.shape[0], np.int16), np.empty(log.seq.shape[0], np.int32)
    leaves = np.empty(_LEAVES, np.int64)
    for query in range(first, region.shape[0]):
        box, keywords = region[query], terms[offsets[query] : offsets[query + 1]]
        # The deepest cells that the rectangle meets, by the very rounding that points go through.
        west = min(max(int((box[0] - _WEST) / _WIDTH * (last + 1)), 0), last)
        south = min(max(int((box[1] - _SOUTH) / _HEIGHT * (last + 1)), 0), last)
        east = min(max(int((box[2] - _WEST) / _WIDTH * (last + 1)), 0), last)
        north = min(max(int((box[3] - _SOUTH) / _HEIGHT * (last + 1)), 0), last)
        picked, waiting = 0, 0
        for k in range(keywords.shape[0]):
            cells[0], levels[0], xs[0], ys[0], height = 1, 0, 0, 0, 1
            while height:
                height -= 1
                cell, level, x, y = cells[height], levels[height], xs[height], ys[height]
                entry = lists_module.find(lists, key_of(keywords[k], cell))
                visits[0] += 1
                if entry < 0:
                    continue
                if lists.value[entry] != COUNT:
                    # read when some are together, so that their blocks come from memory meanwhile
                    if lists.length[entry] > 1:
                        prefetch(lists.pool, lists.value[entry])
                    leaves[waiting] = entry
                    waiting += 1
                    if waiting == _LEAVES:
                        picked = _pick(lists, log, leaves, seen, slots, picked)
                        waiting = 0
                    continue
                down = _DEEPEST - 1 - level
                # closed, as rectangles are: a cell that is only touched is read too
                for quadrant in range(4):
                    column, line = (x << 1) | (quadrant & 1), (y << 1) | (quadrant >> 1)
                    if west >> down <= column <= east >> down and south >> down <= line <= north >> down:
                        cells[height], levels[height] = (cell << 2) | quadrant, level + 1
                        xs[height], ys[height] = column, line
                        lists_module.ask_for(lists, key_of(keywords[k], cells[height]))
                        height += 1
        picked = _pick(lists, log, leaves[:waiting], seen, slots, picked)
        row = ends[query]
        for i in range(picked):
            slot = slots[i]
            # only what was touched is cleared: the column is as long as the window
            common, seen[slot] = seen[slot], 0
            visits[1] += common
            # cells reach beyond the edge of the rectangle
            if inside(log, slot, box) and lived_at(log, slot, as_of):
                # counted without room too: the caller learns how much is needed, and asks this query anew
                if row < found.seq.shape[0]:
                    write_candidate(log, slot, box, keywords.shape[0], np.int64(common), found, row)
                row += 1
        ends[query + 1] = row
        if row > found.seq.shape[0]:
            return query
    return region.shape[0]
