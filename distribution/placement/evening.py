"""Loads evened out by what was measured, with as few moves as it takes.

Costs are expectations; what a task works is a fact. Costs of whatever a task holds are scaled so that their sums stand
to each other as the work of the tasks did, and of those tasks that have more than their share as much is dealt out to
the others, in no order of place or keyword: those that an algorithm has spread stay spread. Used by
`distribution.placed` where a run goes on; read on there.
"""

from collections.abc import Sequence

import numpy as np

from distribution.placement.assign import assign, descending
from distribution.placement.costs import Costs
from distribution.placement.placement import Placed
from matching.model import Float64, Int64

#: By how much costs may rise or fall at once: a short measurement must not turn everything over.
_MOST_CHANGE = 4.0


def evened(placed: Placed, number: Int64, work: Sequence[int], costs: Costs) -> Placed:
    """Who holds which subscription from now on, and at what cost.

    Every step is exact, or of single values: all tasks come to the same on whatever machine. O(n log n).

    Parameters
    ----------
    placed : Placed            of subscriptions with these numbers (int64[n])
    number : int64[n]
    work : sequence of int     what each task has worked, in any unit
    costs : Costs              by which costs are rounded
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
    share = float(load.sum()) / tasks
    # a multiplicative hash, as good as any shuffle, and the same everywhere
    mixed = np.argsort(number.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15), kind="stable")
    moved = [np.zeros(0, np.int64)]
    for task in np.flatnonzero(load > share):
        rows = mixed[owner[mixed] == task]
        moved.append(rows[np.cumsum(cost[rows]) <= load[task] - share])
    rows = np.sort(np.concatenate(moved))
    rows = rows[descending(cost[rows])]
    left = load - _loads(owner[rows], cost[rows], tasks)
    owner[rows] = assign(cost[rows], left)
    return Placed(owner, cost)


def _loads(owner: Int64, cost: Float64, tasks: int) -> Float64:
    load = np.zeros(tasks)
    np.add.at(load, owner, cost)
    return load
