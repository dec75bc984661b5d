"""Rebalancing by measured work, with few moves.

The costs of each task's subscriptions are scaled so that their sums are proportional to the measured work of the tasks;
then tasks above the mean give their excess to the others, picked by hash, so that subscriptions which an algorithm has
spread stay spread.
"""

from collections.abc import Sequence

import numpy as np

from distribution.placement.assign import assign, descending
from distribution.placement.costs import PlacementCosts
from distribution.placement.placement import Placed
from matching.model import Float64, Int64

#: Largest factor of one cost change: a short measurement must not overturn the placement.
_MOST_CHANGE = 4.0


def evened(placed: Placed, number: Int64, work: Sequence[int], costs: PlacementCosts) -> Placed:
    """New owner and cost of each subscription.

    Every step is exact, or on single values: all tasks get the same result on any machine. O(n log n).

    Parameters
    ----------
    placed : Placed            of the subscriptions `number`
    number : int64[n]
    work : sequence of int     work of each task, in any unit
    costs : PlacementCosts              rounds costs
    """
    tasks = len(work)
    load = _loads(placed.owner, placed.cost, tasks)
    factor = np.ones(tasks)
    for task, mine in enumerate(load.tolist()):
        if mine:
            ratio = (work[task] / max(1, sum(work))) / (mine / float(load.sum()))
            factor[task] = min(max(ratio, 1.0 / _MOST_CHANGE), _MOST_CHANGE)
    owner, cost = placed.owner.copy(), costs.rounded(placed.cost * factor[placed.owner])
    load = _loads(owner, cost, tasks)
    mean = float(load.sum()) / tasks
    # shuffled by a multiplicative hash, the same on every machine
    mixed = np.argsort(number.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15), kind="stable")
    moved = [np.zeros(0, np.int64)]
    for task in np.flatnonzero(load > mean):
        rows = mixed[owner[mixed] == task]
        moved.append(rows[np.cumsum(cost[rows]) <= load[task] - mean])
    rows = np.sort(np.concatenate(moved))
    rows = rows[descending(cost[rows])]
    left = load - _loads(owner[rows], cost[rows], tasks)
    owner[rows] = assign(cost[rows], left)
    return Placed(owner, cost)


def _loads(owner: Int64, cost: Float64, tasks: int) -> Float64:
    load = np.zeros(tasks)
    np.add.at(load, owner, cost)
    return load
