"""Engine `skype_paper`: the subscription index of the Skype paper in its own form, without what `skype` adds to it.

One quadtree, an inverted file in each leaf, groups by alpha in each list, and the paper's rules. `skype_paper_trees`
has the same rules over a tree of its own for each keyword, as `skype` has. Neither needs the paper's assumption that a
subscription never changes its threshold downwards.

New subscriptions are in plain lists by keyword until the tree is built again.
"""

from typing import ClassVar, NamedTuple

import numpy as np

from matching.model import Int32, MessageBatch
from matching.space import Space
from matching.storage.slots import resized
from matching.topk.engine import TopkEngine
from matching.topk.engines.skype import PAPER, Skype
from papers.skype.postings import PointPostings
from papers.skype.skype_paper_scan import COUNTERS, SCANNED, VERIFIED, scan
from papers.skype.skype_paper_tree import (
    GROUP,
    LEAF,
    build,
    empty_tree,
    needed_places,
    set_bounds,
    take_out,
    terms_of_bound,
)

#: The tree is built again when this fraction of it, and at least this number of subscriptions, is new or gone.
_CHANGED, _FEWEST = 0.125, 256
_IN_TAIL, _WITHDRAWN = -1, -2


class PaperRules(NamedTuple):
    """Which rules of the paper are applied; answers never depend on it.

    cells : skip a cell that is too far away (Lemma 6)
    groups : skip a group (Theorem 5.3)
    early_stop : stop inside a group (Theorem 5.4)
    prefix : skip a posting by sums and maxima of weights (Lemmas 3 and 4)
    inner_outer : in that, count the way out of the cell as well (Theorem 5.1)
    unseen : give up a pair that cannot reach its threshold any more (Theorem 5.2)
    """

    cells: bool = True
    groups: bool = True
    early_stop: bool = True
    prefix: bool = True
    inner_outer: bool = True
    unseen: bool = True


class SkypePaper(TopkEngine):
    """One quadtree with inverted files. A message costs O(leaves * terms), and the postings of groups that are left.

    Parameters
    ----------
    space : Space
    rules : PaperRules
    leaf, group : int    subscriptions of a leaf, postings of a group at most; the paper names no numbers, and
                         these took the least time of six at 100,000 subscriptions
    """

    name = "skype_paper"
    #: Messages that are taken together, at most.
    together: ClassVar[int] = 256

    def __init__(self, space: Space, rules: PaperRules | None = None, leaf: int = LEAF, group: int = GROUP):
        super().__init__(space)
        self.pruning = rules or PaperRules()
        self._leaf, self._group = leaf, group
        self.tree, self.tail = empty_tree(), PointPostings(bounded=False)
        self._place = np.zeros(0, np.int32)  # by slot: where it is in the tree, or one of the above
        self._gone = 0
        self._counters = np.zeros(len(COUNTERS), np.int64)

    def _post(self, slots: Int32) -> None:
        capacity = self.subscriptions.capacity
        if self._place.shape[0] < capacity:
            self._place = resized(self._place, capacity)
        self._place[slots] = _IN_TAIL
        self.tail.insert(self.subscriptions, slots, self.max_distance)

    def _unpost(self, slots: Int32) -> None:
        there = slots[self._place[slots] >= 0]
        if there.shape[0]:
            never = np.full(there.shape[0], np.inf)
            set_bounds(self.tree, self.subscriptions.columns, there, self._place, never, never)
            take_out(self.tree, self.subscriptions.columns, there)
            self._gone += there.shape[0]
        self.tail.remove(self.subscriptions, slots[self._place[slots] < 0])
        self._place[slots] = _WITHDRAWN

    def _apply_thresholds(self, slots: Int32) -> None:
        slots = slots[self._place[slots] >= 0]
        if slots.shape[0]:
            c = self.subscriptions.columns
            alpha, threshold = c.alpha[slots], c.threshold[slots]
            kappa, _ = terms_of_bound(alpha, threshold, c.max_distance[slots], self.max_distance)
            set_bounds(self.tree, c, slots, self._place, kappa, needed_places(alpha, threshold))

    def match(self, batch: MessageBatch, first_row: int = 0, most_hits: int = 1 << 21):
        """As `TopkEngine.match`; builds the tree if it is due."""
        inside = self.tree.needs.shape[0]
        if len(self) - (inside - self._gone) + self._gone > max(_FEWEST, _CHANGED * inside):
            self._build()
        return super().match(batch, first_row, most_hits)

    def _build(self) -> None:
        slots = self.subscriptions.live_slots()
        slots = slots[self._place[slots] > _WITHDRAWN]  # which are live until they are released
        self.tree, order = build(self.subscriptions.columns, slots, self.max_distance, self._leaf, self._group)
        self._place[order] = np.arange(order.shape[0])
        self.tail, self._gone = PointPostings(bounded=False), 0

    def _scan(self, batch, first_row, most_hits, slot, row, score):
        before = self._counters.copy()
        found, next_row = scan(
            self.subscriptions.columns, self.tree, self.tail.view, batch, self.max_distance, self.pruning,
            self._counters, self.together, first_row, most_hits, slot, row, score,
        )  # fmt: skip
        done = self._counters - before
        return found, next_row, int(done[SCANNED]), int(done[VERIFIED])

    def counters(self) -> dict[str, int]:
        """Postings read, and those that each rule has cut, since the engine was made.

        `nodes` are pairs of message and node tested, `cells` those cut; `lists` are lists found; `groups` and
        `early_stop` are postings never read, `scanned` those read, `prefix` those cut; `first_common` and `unseen` are
        pairs given up; `verified` are exact scores.
        """
        return dict(zip(COUNTERS, self._counters.tolist(), strict=True))

    def arrays(self) -> dict[str, np.ndarray]:
        """All arrays, for figures of size: names prefixed `subscriptions_`, `tree_` and `tail_`, and places."""
        arrays = super().arrays() | {f"tree_{name}": value for name, value in self.tree._asdict().items()}
        return arrays | {f"tail_{name}": value for name, value in self.tail.arrays().items()} | {"place": self._place}


class SkypePaperTrees(Skype):
    """The paper's rules over a tree for each keyword; see `matching.topk.engines.skype`."""

    name = "skype_paper_trees"
    pruning = PAPER
