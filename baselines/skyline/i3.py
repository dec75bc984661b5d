"""I3, the integrated inverted index: keyword cells in pages, a quadtree only for the dense ones; for comparison.

After Zhang, Tan and Tung, "Scalable top-k spatial keyword search": a keyword is dense, in all the world or in one cell,
once its messages overflow a page. A query goes from each of its keywords to a page, or down summary nodes to the pages
of the cells that the rectangle meets; in a page it reads the tuples that bear the cell's number.

The structure is that of `baselines.skyline.keyword_pages`, which says what has become of the paper's signatures. Named
in `matching.kinds`.
"""

import numpy as np

from baselines.skyline import keyword_pages, page_changes
from baselines.skyline.cells import DEEPEST, cells_of, pick, write_picked
from baselines.skyline.keyword_pages import COUNT, HOME, NEXT, NOTHING, USED, may_meet, new_pages, node_of
from baselines.skyline.keyword_table import ask_for_keyword, find_keyword
from compiling.njit import njit
from matching.errors import EngineError
from matching.space import Space
from papers.skyline.tree import TreeWindow, tables_of


class I3(TreeWindow):
    """Keyword cells the size of a page.

    Notes
    -----
    An arrival or an end costs, for each of its terms, a way down the term's summary nodes and a page; a query, for each
    of its keywords, the summary nodes that its rectangle meets and the pages that their signatures do not rule out.
    """

    name = "i3"

    def __init__(self, space: Space, kept_boundaries: int = 0):
        super().__init__(space, kept_boundaries)
        self.pages = new_pages()
        self.operations = np.zeros(3, np.int64)

    def _insert(self, slots):
        log, progress = self.log.view, np.zeros(2, np.int64)
        while not page_changes.insert(self.pages, self.operations, log, slots, progress):
            self.pages = keyword_pages.larger(self.pages)

    def _end(self, slots):
        log, progress = self.log.view, np.zeros(3, np.int64)
        while not page_changes.delete(self.pages, self.operations, log, slots, progress):
            self.pages = keyword_pages.larger(self.pages)
        missing = int(progress[2])
        if missing:
            raise EngineError(f"{self.name}: {missing} postings that ended are not where they should be; start anew")
        self.log.remove(slots)

    def _search(self, as_of, region, offsets, terms, first, ends, found):
        return _search(self.pages, self.log.view, as_of, region, offsets, terms, first, ends, found, self._visits)

    def _update_work(self) -> tuple[int, int, int, int]:
        reads, writes, lists = self.operations.tolist()
        return reads, writes, lists, 0

    def _index_bytes(self) -> int:
        return keyword_pages.used_bytes(self.pages)

    def _state(self) -> dict[str, dict[str, np.ndarray]]:
        columns = {name: column for name, column in self.pages._asdict().items() if name != "table"}
        return tables_of(table=self.pages.table) | {"pages": columns, "work": {"operations": self.operations}}


@njit(cache=True, nogil=True)
def _read(pages, cell, rectangle, seen, slots, picked, visits):
    """Pick from a keyword cell; returns the new end of `slots`."""
    while cell >= 0:
        page, count = pages.cell[cell, HOME], pages.cell[cell, COUNT]
        used = pages.page[page, USED]
        visits[0] += 1
        if count == used:
            for i in range(used):
                picked = pick(pages.word[page, i], rectangle, seen, slots, picked)
            visits[1] += used
        else:
            i, left = 0, count
            # other cells in the page are skipped by number
            while left:
                if pages.source[page, i] == cell:
                    picked = pick(pages.word[page, i], rectangle, seen, slots, picked)
                    left -= 1
                i += 1
            visits[1] += i
        cell = np.int64(pages.cell[cell, NEXT])
    return picked


@njit(cache=True, nogil=True)
def _search(pages, log, as_of, region, offsets, terms, first, ends, found, visits):
    """Answer queries from `first` on; see `papers.skyline.tree.TreeWindow`."""
    # node, level, first column and line
    stack, rectangle = np.empty((4 * DEEPEST + 4, 4), np.int64), np.empty(4, np.int64)
    seen, slots = np.zeros(log.seq.shape[0], np.int16), np.empty(log.seq.shape[0] + 1, np.int32)
    for query in range(first, region.shape[0]):
        box, keywords = region[query], terms[offsets[query] : offsets[query + 1]]
        for term in keywords:
            ask_for_keyword(pages.table, term)
        cells_of(box, rectangle)
        picked = 0
        for term in keywords:
            entry = find_keyword(pages.table, term)
            visits[0] += 1
            if entry < 0:
                continue
            reference, height = pages.table.value[entry], 0
            if reference >= 0:
                picked = _read(pages, reference, rectangle, seen, slots, picked, visits)
            else:
                stack[0, 0], stack[0, 1], stack[0, 2], stack[0, 3], height = node_of(reference), 0, 0, 0, 1
            while height:
                height -= 1
                node, level = stack[height, 0], stack[height, 1] + 1
                west, south, width = stack[height, 2], stack[height, 3], 1 << (DEEPEST - level)
                visits[0] += 1
                for quadrant in range(4):
                    child = np.int64(pages.child[node, quadrant])
                    column, line = west + (quadrant & 1) * width, south + (quadrant >> 1) * width
                    if child == NOTHING or column > rectangle[2] or line > rectangle[3]:
                        continue
                    if column + width <= rectangle[0] or line + width <= rectangle[1]:
                        continue
                    if child < NOTHING:
                        stack[height, 0], stack[height, 1] = node_of(child), level
                        stack[height, 2], stack[height, 3] = column, line
                        height += 1
                    elif may_meet(pages, node, quadrant, level, column, line, rectangle):
                        picked = _read(pages, child, rectangle, seen, slots, picked, visits)
        row = write_picked(log, as_of, box, keywords.shape[0], slots[:picked], seen, found, ends[query])
        ends[query + 1] = row
        if row > found.seq.shape[0]:
            return query
    return region.shape[0]
