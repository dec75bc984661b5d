"""Window index `il_quadtree` of `skyline`: for each keyword a linear quadtree and a signature; for comparison.

After Zhang, Zhang, Zhang and Lin, "Inverted linear quadtree: efficient top k spatial keyword search". A query computes
once which cells of the signatures' level its rectangle meets. For each keyword it reads from the signature which of
them have messages, and visits only those among the keyword's leaves, a run for each cell. So a keyword without messages
there costs one read of a signature, and no leaf.

Queries of the paper are for messages with all keywords, or for the top k: there a signature gives the number of
keywords in a cell, which bounds the score of its messages. A window query is for all messages with any keyword,
whatever their score, so the bound only rules out cells with none of the keywords.

The structure is that of `baselines.skyline.linear_quadtrees`.
"""

import numpy as np

from baselines.skyline import linear_changes, linear_quadtrees
from baselines.skyline.cells import DEEPEST, cells_of, code_of, pick, write_picked
from baselines.skyline.keyword_table import ask_for_keyword, find_keyword
from baselines.skyline.linear_quadtrees import (
    LEAVES,
    SIGNED,
    SIGNED_SHIFT,
    box_of,
    code_at,
    count_at,
    is_leaf,
    is_signed,
    leaf_count,
    leaf_start,
    leaves_through,
    level_at,
    new_quadtrees,
    start_at,
)
from compiling.njit import njit, njit_inner
from matching.errors import EngineError
from matching.space import Space
from matching.storage.prefetch import prefetch
from papers.skyline.tree import TreeWindow, tables_of

#: Leaves that a query prefetches and reads together, so that cache misses overlap.
_TOGETHER = 16


class IlQuadtree(TreeWindow):
    """Linear quadtrees with signatures, one of each for every keyword.

    Notes
    -----
    An arrival or an end costs, for each of its terms, a bisection of the term's leaves; a query, for each of its
    keywords, a test of the signature and a bisection for each cell that both have, and the leaves found.
    """

    name = "il_quadtree"

    def __init__(self, space: Space, kept_boundaries: int = 0):
        super().__init__(space, kept_boundaries)
        self.trees = new_quadtrees()
        self.operations = np.zeros(3, np.int64)

    def _insert(self, slots):
        log, progress = self.log.view, np.zeros(2, np.int64)
        while not linear_changes.insert(self.trees, self.operations, log, slots, progress):
            self.trees = linear_quadtrees.grown(self.trees)

    def _end(self, slots):
        log, progress = self.log.view, np.zeros(3, np.int64)
        while not linear_changes.delete(self.trees, self.operations, log, slots, progress):
            self.trees = linear_quadtrees.grown(self.trees)
        missing = int(progress[2])
        if missing:
            raise EngineError(f"{self.name}: {missing} postings that ended are not where they should be; start anew")
        self.log.remove(slots)

    def _search(self, as_of, region, offsets, terms, first, ends, found):
        return _search(self.trees, self.log.view, as_of, region, offsets, terms, first, ends, found, self._visits)

    def _update_work(self) -> tuple[int, int, int, int]:
        reads, writes, lists = self.operations.tolist()
        return reads, writes, lists, 0

    def _index_bytes(self) -> int:
        return linear_quadtrees.used_bytes(self.trees)

    def _state(self) -> dict[str, dict[str, np.ndarray]]:
        columns = {name: column for name, column in self.trees._asdict().items() if name != "table"}
        return tables_of(table=self.trees.table) | {"trees": columns, "work": {"operations": self.operations}}


@njit_inner
def _signed_cells(rectangle, out):
    """The cells of level `SIGNED` that a rectangle meets, ascending by code; returns how many."""
    down, count = DEEPEST - SIGNED, 0
    for line in range(rectangle[1] >> down, (rectangle[3] >> down) + 1):
        for column in range(rectangle[0] >> down, (rectangle[2] >> down) + 1):
            code, at = code_of(np.int64(column), np.int64(line)), count
            while at > 0 and out[at - 1] > code:
                out[at] = out[at - 1]
                at -= 1
            out[at] = code
            count += 1
    return count


@njit(cache=True, nogil=True)
def _read(trees, starts, counts, rectangle, seen, slots, picked, visits):
    """Pick messages inside the rectangle from leaves (`cells.pick`); returns the new end of `slots`."""
    for leaf in range(starts.shape[0]):
        for at in range(starts[leaf], starts[leaf] + counts[leaf]):
            picked = pick(trees.pool[at], rectangle, seen, slots, picked)
        visits[1] += counts[leaf]
    return picked


@njit(cache=True, nogil=True)
def _search(trees, log, as_of, region, offsets, terms, first, ends, found, visits):
    """Answer queries from `first` on; see `papers.skyline.tree.TreeWindow`."""
    cells, rectangle = np.empty(4**SIGNED, np.int64), np.empty(4, np.int64)
    seen, slots = np.zeros(log.seq.shape[0], np.int16), np.empty(log.seq.shape[0] + 1, np.int32)
    starts, counts = np.empty(_TOGETHER, np.int64), np.empty(_TOGETHER, np.int64)
    for query in range(first, region.shape[0]):
        box, keywords = region[query], terms[offsets[query] : offsets[query + 1]]
        for term in keywords:
            ask_for_keyword(trees.table, term)
        cells_of(box, rectangle)
        met = _signed_cells(rectangle, cells)
        picked, waiting = 0, 0
        for term in keywords:
            entry = find_keyword(trees.table, term)
            visits[0] += 1
            if entry < 0:
                continue
            value = trees.table.value[entry]
            if value >= 0:
                if not is_leaf(value):
                    picked = pick(value, rectangle, seen, slots, picked)
                    visits[1] += 1
                    continue
                starts[waiting], counts[waiting] = leaf_start(value), leaf_count(value)
                prefetch(trees.pool, starts[waiting])
                waiting += 1
                if waiting == _TOGETHER:
                    picked = _read(trees, starts, counts, rectangle, seen, slots, picked, visits)
                    waiting = 0
                continue
            row = -1 - value
            visits[0] += 1
            # leaves up to here are read already: a leaf larger than a cell overlaps several cells
            next_ = 0
            for cell in cells[:met]:
                if not is_signed(trees, row, cell):
                    continue
                low = leaves_through(trees, row, cell << SIGNED_SHIFT, next_)
                # the last leaf that starts before the cell may overlap it
                for i in range(max(next_, low - 1), trees.tree[row, LEAVES]):
                    code = code_at(trees, row, i)
                    if code >= (cell + 1) << SIGNED_SHIFT:
                        break
                    next_ = i + 1
                    column, line, width = box_of(code, level_at(trees, row, i))
                    visits[0] += 1
                    if column > rectangle[2] or line > rectangle[3]:
                        continue
                    if column + width <= rectangle[0] or line + width <= rectangle[1]:
                        continue
                    starts[waiting], counts[waiting] = start_at(trees, row, i), count_at(trees, row, i)
                    prefetch(trees.pool, starts[waiting])
                    waiting += 1
                    if waiting == _TOGETHER:
                        picked = _read(trees, starts, counts, rectangle, seen, slots, picked, visits)
                        waiting = 0
        picked = _read(trees, starts[:waiting], counts[:waiting], rectangle, seen, slots, picked, visits)
        row = write_picked(log, as_of, box, keywords.shape[0], slots[:picked], seen, found, ends[query])
        ends[query + 1] = row
        if row > found.seq.shape[0]:
            return query
    return region.shape[0]
