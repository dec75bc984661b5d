"""Engine `ciq`: the index of conditional influence regions of Chen et al. (ICDE 2015), for scores that do not fade.

The baseline of the Skype paper: every subscription is associated with cells of a quadtree that cover the space. In each
it has a minimum text score, by which messages of the cell that are not relevant enough are kept from it; the
subscriptions of a cell are parted into buckets by how much the cell gives them, and posted by keyword in blocks that
are skipped whole (`papers.ciq.celled_lists`). Which cells: by expected cost (`papers.ciq.cell_costs`). Blocks without
cells are no engine here: without a place some threshold in a block is low enough, and none of 14,308 was skipped.

Without fading a minimum text score is a constant between two thresholds. Texts are stored unit vectors, so what a
message can be worth to a list is a product of norms, where CIQ has the largest probability of a keyword. Of our own:
thresholds fall as well, in a refill. A subscription without one is at the root, in a bucket of its own, where no block
is skipped. Its first threshold, a lower one, and one higher by more than `rise` make a subscription be associated anew;
a smaller rise is written into its associations.
"""

import math
from typing import ClassVar

import numpy as np

from matching.model import Int32
from matching.space import Space
from matching.storage.slots import resized
from matching.topk.engine import TopkEngine
from papers.ciq.cell_bounds import order_of
from papers.ciq.cell_costs import MESSAGES, CellCosts, lifetime_of, spread
from papers.ciq.cell_walk import no_candidates
from papers.ciq.celled_lists import CelledLists
from papers.ciq.topk_history import TopkMessageHistory
from papers.ciq.topk_scan import describe, raise_thresholds, scan


class CiqTopk(TopkEngine):
    """Cells by cost. A message costs O(depth * its terms * buckets) and the postings of blocks that are not skipped."""

    name = "ciq"
    #: Levels of cells below the root at most.
    depth: ClassVar[int] = 9
    #: Buckets of a cell, 1 to 126; the paper's 16. The paper does not print how wide one is.
    buckets: ClassVar[int] = 16
    width: ClassVar[float] = 0.6
    #: Postings of a block at most, a power of two; the paper finds 128 to 1,024 best, by data set.
    block: ClassVar[int] = 32
    #: Evaluations that a posting is worth; the paper's.
    delta: ClassVar[float] = 3.5
    #: Messages that an association sees, where nothing ends: those of the paper's runs.
    longest: ClassVar[int] = 20_000
    #: How far a threshold rises before a subscription is associated anew.
    rise: ClassVar[float] = 0.05
    by_cost: ClassVar[bool] = True

    def __init__(self, space: Space):
        super().__init__(space)
        self.lists = CelledLists(self.depth, self.buckets, self.block, norms=True)
        self.history = TopkMessageHistory(self.depth)
        self._found = no_candidates(0)
        # thresholds by slot: as the associations know it, and as it was when they were made
        self._known, self._associated = np.zeros(0), np.zeros(0)
        self._lived, self._ended = 0.0, 0

    def _post(self, slots: Int32) -> None:
        """At the root, since they have no threshold."""
        capacity = self.subscriptions.capacity
        if self._known.shape[0] < capacity:
            self._known, self._associated = resized(self._known, capacity), resized(self._associated, capacity)
            self._found = no_candidates(capacity)
        self.history.meet(self.subscriptions.columns, slots)
        self._associate(slots)

    def _unpost(self, slots: Int32) -> None:
        self._drop(slots)
        self.lists.renew(self.subscriptions, order_of)

    def _apply_thresholds(self, slots: Int32) -> None:
        """O(cells * terms) for those associated anew."""
        c = self.subscriptions.columns
        now = c.threshold[slots]
        # at once, and not only in their associations: a block that kept a higher minimum would lose results. Without a
        # threshold before, its difference is infinite
        anew = (now < self._known[slots]) | (now > self._associated[slots] + self.rise)
        risen = slots[~anew & (now > self._known[slots])]
        raise_thresholds(self.lists.view, risen, describe(c, risen)[0])  # even if empty, so that warm-up compiles it
        self._known[risen] = c.threshold[risen]
        if anew.any():
            moved = np.unique(slots[anew])
            self._drop(moved)
            self._associate(moved)
            self.lists.renew(self.subscriptions, order_of)

    def _drop(self, slots: Int32) -> None:
        # without a threshold it was only at the root, which is no measure of how long associations last
        self._ended += int((self._known[slots] > -math.inf).sum())
        self.lists.drop(slots)

    def _associate(self, slots: Int32) -> None:
        """Associate slots that are in no cell with cells, by their thresholds."""
        c = self.subscriptions.columns
        if (c.threshold[slots] > -math.inf).any():
            self.history.expect(c, slots)
        lifetime = lifetime_of(self._lived, self._ended, self.longest)
        costs = CellCosts(self.depth, self.buckets, self.width, self.by_cost, self.delta, lifetime)
        scaled, alone = describe(c, slots)
        row, where, reach = spread(self.history.view, c, slots, scaled, costs, self.max_distance)
        scaled = scaled[row]
        self.lists.add(self.subscriptions, slots[row], where, scaled, reach, order_of(scaled, reach), alone[row])
        self._known[slots] = self._associated[slots] = c.threshold[slots]

    def _scan(self, batch, first_row, most_hits, slot, row, score):
        facts = self.history.view.facts
        before = facts[MESSAGES]
        done = scan(
            self.subscriptions.columns, self.lists.view, self.history.view, batch, self.depth,
            self.buckets + 2, self._found, first_row, most_hits, slot, row, score,
        )  # fmt: skip
        self._lived += len(self) * float(facts[MESSAGES] - before)
        return done

    def arrays(self) -> dict[str, np.ndarray]:
        """All arrays, to measure memory: names prefixed `subscriptions_`, `lists_`, `history_`, and others."""
        arrays = super().arrays() | {f"lists_{name}": value for name, value in self.lists.arrays().items()}
        arrays |= {f"history_{name}": value for name, value in self.history.arrays().items()}
        return arrays | {"known": self._known, "associated": self._associated}
