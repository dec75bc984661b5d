"""SOP, space-oriented partition: the paper's second baseline (DkM-SKS, section 3.2).

The costliest subset is cut into four by place until there are theta for each task; a subset costs the fraction of
messages in its rectangle times the number of its subscriptions (equation 3), and goes to a task as a whole. A later
subscription costs the fraction of messages in its own rectangle (equation 2), much less than the others of its subset:
in the paper's measurements its task is overloaded.
"""

import numpy as np

from distribution.placement.assign import assign
from distribution.placement.demand import Demand
from distribution.placement.placement import Placed, Placement
from distribution.placement.subsets import Subset, cut, enclosing, first_subsets, quarters
from matching.model import Float64, Int64

#: Subsets for each task; 20 in the paper's measurements.
THETA = 20


class SpaceOriented(Placement):
    """By place alone.

    Attributes
    ----------
    theta : int    subsets for each task
    """

    name = "sop"
    theta = THETA

    def together(self, demand: Demand) -> Placed:
        subsets = self.subsets(demand)
        owners = assign(np.array([subset.total for subset in subsets], np.float64), np.zeros(self.tasks))
        owner, cost = np.empty(len(demand), np.int64), np.empty(len(demand))
        for subset, task in zip(subsets, owners, strict=True):
            owner[subset.rows], cost[subset.rows] = task, subset.cost
        return Placed(owner, cost)

    def subsets(self, demand: Demand) -> list[Subset]:
        """Subsets by descending cost, each assigned as a whole."""
        costs = self.costs

        def make(rows: Int64, cell: Float64) -> Subset:
            box = enclosing(demand.box[rows])
            each = costs.rounded(costs.of_boxes(box[None]))[0]
            return Subset(rows, cell, box, np.full(rows.shape[0], each), float(each * rows.shape[0]))

        first = first_subsets(demand, costs.world, make)
        return cut(first, self.theta * self.tasks, lambda subset: quarters(demand, subset, make))

    def price(self, demand: Demand) -> Float64:
        return self.costs.rounded(self.costs.of_boxes(demand.box))
