"""Engine `ciq`: the index of conditional influence regions of Chen, Cong, Cao and Tan (TaSK queries, ICDE 2015).

Every subscription is associated with cells of a quadtree that cover the space. In each it has a minimum text score, by
which messages of the cell that are not relevant enough are kept from it: in a near cell little text will do, in a far
one much is needed. The subscriptions of a cell are parted into buckets by how much the cell gives them, and posted by
keyword in blocks with one bound each (`papers.ciq.celled_lists`). Which cells: by expected cost
(`papers.ciq.cell_costs`), or as `ciq_h`, the paper's heuristic, the cells on the way to its place.

The paper does not say what happens to a subscription with fewer than k results, nor when one is associated anew as its
threshold rises. Here the former stands at the root, in a bucket of its own, and is associated by cost at the end of the
batch that brings its k-th result, and again when its threshold, as of now, has grown by a factor of e ** `rise`. From
0.05 to never that makes no difference of more than 10 % at 200,000 subscriptions whose results were full from the
start; the copies of a threshold in the blocks follow it by themselves.
"""

import math
from typing import ClassVar

import numpy as np

from matching.cumulative.engine import CumulativeEngine
from matching.decay.reference import Reference
from matching.decay.scores import lift
from matching.half_life import DecayParameters
from matching.model import Float32, Float64, Int32, MessageBatch
from matching.operator import Work
from matching.space import Space
from matching.storage.slots import resized
from matching.window import NO_FLOOR
from papers.ciq.cell_bounds import order_of
from papers.ciq.cell_costs import MESSAGES, CellCosts, lifetime_of, spread
from papers.ciq.cell_walk import no_candidates
from papers.ciq.celled_lists import CelledLists
from papers.ciq.ciq_bounds import move_reference, rests_of, scale_all
from papers.ciq.ciq_history import NOW, MessageHistory
from papers.ciq.ciq_scan import scan


class Ciq(CumulativeEngine):
    """Cells by cost. A message costs O(depth * its terms * buckets) and the postings of blocks that are not skipped."""

    name = "ciq"
    #: Levels of cells below the root at most.
    depth: ClassVar[int] = 9
    #: Buckets of a cell, 1 to 126; the paper's 16. The paper does not print how wide one is.
    buckets: ClassVar[int] = 16
    width: ClassVar[float] = 0.6
    #: Postings of a block at most, a power of two. The paper finds 128 to 1,024 best, by data set; here, where those in
    #: a block are alike, 32 take a fifth less time than 128 (200,000 subscriptions).
    block: ClassVar[int] = 32
    #: Evaluations that a posting is worth; the paper's.
    delta: ClassVar[float] = 3.5
    #: Messages that a subscription sees in its life at most: those of a run of the paper, 4,000 s of 5 messages. With
    #: five times as many, at 100,000 subscriptions, it had a quarter more cells and scanned as many postings.
    longest: ClassVar[int] = 20_000
    #: How far the log of a threshold, as of now, rises before a subscription is associated anew.
    rise: ClassVar[float] = 0.2
    by_cost: ClassVar[bool] = True
    #: Associations that come together are put in order by their bounds, else in that of registration, as in the paper.
    alike: ClassVar[bool] = True

    def __init__(self, space: Space, fading: DecayParameters):
        super().__init__(space)
        self.fading = fading
        self.lists = CelledLists(self.depth, self.buckets, self.block)
        self.history = MessageHistory(self.depth, fading)
        # log of the threshold as of then, by slot; minus infinity for those at the root without one
        self._associated = np.zeros(0)
        self._waiting = np.zeros(0, np.int32)  # slots that came with results before there was a time
        self._lived, self._ended, self._messages = 0.0, 0, 0.0
        self._most_common = fading.most_of_the_missing
        self._reference = Reference()  # at which `scaled` is what is left of thresholds
        self._found = no_candidates(0)

    def match(self, batch: MessageBatch) -> Work:
        """Offer every message to the subscriptions it may reach, in order; `best.begin_batch` comes first."""
        before = self._reference.follow(batch, self.fading, len(self))
        if before is not None:
            move_reference(self.subscriptions.columns, self.lists.view, before, self._reference.at)
        if self._waiting.shape[0]:
            self._associate_waiting(batch)
        return super().match(batch)

    def _post(self, slots: Int32) -> None:
        if self.history.view.facts[NOW] == -math.inf:
            # what they are worth now depends on the stream time, which no key says: a k-th message is of any age
            is_full = self.subscriptions.columns.threshold[slots] > -math.inf
            self._waiting = np.concatenate([self._waiting, slots[is_full]])
            slots = slots[~is_full]
        self._associate(slots)

    def _associate(self, slots: Int32) -> None:
        c = self.subscriptions.columns
        if self._associated.shape[0] < self.subscriptions.capacity:
            self._associated = resized(self._associated, self.subscriptions.capacity)
            self._found = no_candidates(self.subscriptions.capacity)
        self.history.expect(c, slots)
        h = self.history.view
        lifetime = lifetime_of(self._lived, self._ended, self.longest)
        costs = CellCosts(self.depth, self.buckets, self.width, self.by_cost, self.delta, lifetime)
        scaled = scale_all(c, slots, self._reference.at or 0.0)
        row, where, reach = spread(h, c, slots, self._worth(scaled), costs, self.max_distance)
        order = self._order(scaled[row], reach) if self.alike else None
        alone = rests_of(c, slots, self.fading)[row]
        self.lists.add(self.subscriptions, slots[row], where, scaled[row], reach, order, alone)
        full = slots[c.threshold[slots] > -math.inf]
        self._associated[slots] = -math.inf
        self._associated[full] = c.threshold[full] - h.facts[NOW]

    def _unpost(self, slots: Int32) -> None:
        self._ended += slots.shape[0]
        waited = np.isin(slots, self._waiting)
        self._waiting = np.setdiff1d(self._waiting, slots[waited])
        self.lists.drop(slots[~waited])
        self.lists.renew(self.subscriptions, self._order if self.alike else None)

    def _scan(self, batch: MessageBatch, first_row: int) -> int:
        return scan(
            self.subscriptions.columns, self.best.view, self.filters, self.lists.view, self.history.view,
            batch, first_row,
            self.fading, self._reference.at or 0.0, self._most_common, self.depth, self.buckets + 2,
            self._found, self.counters,
        )  # fmt: skip

    def _settle(self) -> None:
        facts = self.history.view.facts
        self._lived += len(self) * (facts[MESSAGES] - self._messages)
        self._messages = float(facts[MESSAGES])
        touched = self.best.touched
        threshold = self.subscriptions.columns.threshold[touched]
        full = threshold > -math.inf
        slots, now = touched[full], threshold[full] - facts[NOW]
        rose = slots[now > self._associated[slots] + self.rise]
        if rose.shape[0]:
            self.lists.drop(rose)
            self._associate(rose)
            self.lists.renew(self.subscriptions, self._order if self.alike else None)

    def _associate_waiting(self, batch: MessageBatch) -> None:
        """Associate subscriptions that came with results before the first message, as of the time of this batch."""
        slots, self._waiting = self._waiting, np.zeros(0, np.int32)
        self.history.view.facts[NOW] = lift(int(batch.event_time_us.max(initial=NO_FLOOR)), self.fading)
        self._associate(slots)

    def _order(self, scaled: Float64, reach: Float32) -> Int32:
        return order_of(self._worth(scaled), reach)

    def _worth(self, scaled: Float64) -> Float64:
        """What thresholds are as of now."""
        now, reference = self.history.view.facts[NOW], self._reference.at
        if reference is None or now == -math.inf:
            return scaled
        return np.minimum(np.maximum(scaled, 0.0) * math.exp(max(-300.0, min(reference - now, 300.0))), 1e300)

    def arrays(self) -> dict[str, np.ndarray]:
        arrays = {f"lists_{name}": value for name, value in self.lists.arrays().items()}
        arrays |= {f"history_{name}": value for name, value in self.history.arrays().items()}
        return super().arrays() | arrays | {"associated": self._associated}


class CiqH(Ciq):
    """The paper's heuristic: a cell is quartered while it contains the subscription, down to a fixed level."""

    name = "ciq_h"
    depth = 4
    by_cost = False
