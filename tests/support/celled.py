"""What has to hold of lists by cell at every boundary, checked association by association, in plain Python."""

from collections import defaultdict
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np

from papers.ciq.celled_lists import MOST_BUCKETS
from papers.ciq.ciq import Ciq, CiqH
from papers.ciq.ciq_bounds import scaled_of


class Cramped(Ciq):
    """Cells for next to nothing, tiny blocks, and associated anew whenever a threshold rises."""

    name = "cramped"
    depth, buckets, block, delta, rise = 3, 4, 2, 0.01, 0.0


class CrampedH(CiqH):
    """The heuristic with tiny blocks."""

    name = "cramped_h"
    depth, buckets, block, rise = 3, 3, 1, 0.0


def level_of(cell: int) -> int:
    """Levels between a cell and the root."""
    level = 0
    while cell:
        cell, level = (cell - 1) // 4, level + 1
    return level


def cells_of(engine: Any) -> dict[int, list[int]]:
    """The cells of every live slot."""
    v = engine.lists.view
    cells = defaultdict(list)
    for slot in engine.subscriptions.live_slots():
        association = v.head[slot]
        while association >= 0:
            assert v.slot[association] == slot
            cells[int(slot)].append(int(v.where[association]) // MOST_BUCKETS)
            association = v.next[association]
    return cells


def check_cells(engine: Any) -> None:
    """The cells of each subscription cover the space, and none lies in another."""
    for slot, cells in cells_of(engine).items():
        assert sum(Fraction(1, 4 ** level_of(cell)) for cell in cells) == 1, f"slot {slot}: cells {cells}"
        assert len(set(cells)) == len(cells)
        for cell in cells:
            above = cell
            while above:
                above = (above - 1) // 4
                assert above not in cells, f"slot {slot}: cell {cell} lies in {above}"


def check_blocks(engine: Any, scaled_by: Callable[[float, float], float] | None = None) -> None:
    """Postings ascend, every association is posted for every keyword of an index, no block says more than holds.

    `scaled_by` a threshold and an alpha, that is; of scores that fade by default.
    """
    if scaled_by is None:
        scaled_by = partial(scaled_of, reference=engine._reference.at or 0.0)
    v, c = engine.lists.view, engine.subscriptions.columns
    posted = defaultdict(list)
    for each in range(int(v.used[1])):
        block, last = v.first[each], -1
        while block >= 0:
            count, start = int(v.count[block]), int(v.start[block])
            assert 0 <= count <= min(engine.block, 1 << v.size_class[block])
            for association in v.seq[start : start + count].tolist():
                assert association > last, "postings do not ascend"
                last = association
                if (slot := int(v.slot[association])) < 0:
                    assert v.scaled[association] == np.inf
                    continue
                assert int(v.where[association]) % MOST_BUCKETS == v.bucket[each]
                posted[association].append(int(v.key[each]) & 0x7FFFFFFF)
                scaled = scaled_by(c.threshold[slot], c.alpha[slot])
                assert v.low[block] <= v.scaled[association] <= scaled * (1.0 + 1e-12)
                assert v.high[block] >= v.reach[association]
                if engine.lists.norms:
                    behind = range(c.term_start[slot], c.term_start[slot] + c.term_count[slot])
                    weights = [c.weights[at] for at in behind if c.terms[at] >= posted[association][-1]]
                    assert v.most[block] >= np.linalg.norm(np.array(weights, np.float64))
            block = v.after[block]
    for slot in engine.subscriptions.live_slots():
        own = range(c.term_start[slot], c.term_start[slot] + c.term_count[slot])
        terms = [int(c.terms[at]) for at in own if c.position[at] >= 0]
        association = v.head[slot]
        while association >= 0:
            assert sorted(posted.get(int(association), [])) == terms
            association = v.next[association]
