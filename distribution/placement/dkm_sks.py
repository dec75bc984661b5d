"""DkM-SKS: by place and keywords, one subscription at a time (DkM-SKS, section 4).

The costliest subset is cut into four until there are gamma1 for each task: by place, or, if that does not reduce the
sum of costs, by assigning its subscriptions to four parts by descending cost (algorithm 2). Subsets larger than gamma2
are cut by place only. A subscription costs, in the rectangle R of its subset, the sum of P(R, w) over its keywords.
Then subset by subset, each by descending cost, every subscription goes to the least loaded task (algorithm 3), which
spreads neighbours, since one message concerns them all.

A later subscription is estimated in the rectangle that it overlaps most (equation 7), or the nearest if it overlaps
none; in the whole world if its own rectangle is that; in its own rectangle if there are no subsets.

The paper's parameters contradict its text (spec 5): printed are gamma1 = 100,000 and gamma2 = 20, two million subsets
for 20 tasks where "in practice |S| is small". Here gamma1 is 20, and gamma2 100,000.
"""

from typing import Any

import numpy as np

from distribution.placement.assign import assign, dealt_out, descending
from distribution.placement.costs import sums_of_words
from distribution.placement.demand import Demand
from distribution.placement.placement import Placed, Placement
from distribution.placement.subsets import Subset, cut, enclosing, first_subsets, overlapped, quarters
from matching.model import Float64, Int64, take_ragged

#: Subsets for each task, and largest subset for which both ways of cutting are tried.
GAMMA_1, GAMMA_2 = 20, 100_000
_PARTS = 4


class DkmSks(Placement):
    """By place and keywords.

    Attributes
    ----------
    gamma_1 : int            subsets for each task
    gamma_2 : int            largest subset that both cuts are tried on
    boxes : float64[g, 4]    rectangles of the subsets, without those that span the world
    """

    name = "dkm-sks"
    gamma_1 = GAMMA_1
    gamma_2 = GAMMA_2
    boxes: Float64 = np.zeros((0, 4))

    def together(self, demand: Demand) -> Placed:
        subsets = self.subsets(demand)
        bounded = [subset.box for subset in subsets if not demand.everywhere[subset.rows[0]]]
        self.boxes = np.array(bounded).reshape(-1, 4)
        owner, cost = np.empty(len(demand), np.int64), np.empty(len(demand))
        load = np.zeros(self.tasks)
        for rows, own in (_by_cost(subset) for subset in subsets):
            cost[rows], owner[rows] = own, assign(own, load)
        return Placed(owner, cost)

    def subsets(self, demand: Demand) -> list[Subset]:
        """Algorithm 2: subsets by descending cost."""

        def make(rows: Int64, cell: Float64) -> Subset:
            return self._subset(demand, rows, cell)

        def parts_of(subset: Subset) -> list[Subset]:
            by_place = quarters(demand, subset, make)
            if subset.rows.size > self.gamma_2 and len(by_place) > 1:
                return by_place
            dealt = _dealt(subset, make)
            # compared by the costs in the new rectangles
            if len(by_place) > 1 and _sum(by_place) < _sum(dealt):
                return by_place
            return dealt

        return cut(first_subsets(demand, self.costs.world, make), self.gamma_1 * self.tasks, parts_of)

    def price(self, demand: Demand) -> Float64:
        box = demand.box.copy()
        somewhere = np.flatnonzero(~demand.everywhere)
        if self.boxes.shape[0] and somewhere.size:
            box[somewhere] = self.boxes[overlapped(box[somewhere], self.boxes)]
        return self.costs.rounded(self.costs.of_words(box, demand.offsets, demand.words))

    def arrays(self) -> dict[str, np.ndarray]:
        return {"boxes": self.boxes}

    def describe(self) -> dict[str, Any]:
        return {"gamma_1": self.gamma_1, "gamma_2": self.gamma_2, "rectangles": self.boxes.shape[0]}

    def _subset(self, demand: Demand, rows: Int64, cell: Float64) -> Subset:
        """Equations 4 to 6. O(messages between west and east of its rectangle + keywords)."""
        box = enclosing(demand.box[rows])
        offsets, picked = take_ragged(demand.offsets, rows)
        cost = self.costs.rounded(sums_of_words(self.costs.in_box(box), offsets, demand.words[picked]))
        return Subset(rows, cell, box, cost, float(cost.sum()))


def _dealt(subset: Subset, make: Any) -> list[Subset]:
    """HYBRID-PARTITION: subscriptions by descending cost, each to the cheapest of four parts; empty parts left out."""
    part = dealt_out(subset.cost, _PARTS)
    rows = (subset.rows[part == which] for which in range(_PARTS))
    return [make(each, subset.cell) for each in rows if each.size]


def _by_cost(subset: Subset) -> tuple[Int64, Float64]:
    order = descending(subset.cost)
    return subset.rows[order], subset.cost[order]


def _sum(subsets: list[Subset]) -> float:
    return sum(subset.total for subset in subsets)
