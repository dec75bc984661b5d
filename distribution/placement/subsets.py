"""Subsets of subscriptions that lie together, and how they are cut into smaller ones.

A subset has a cell of a quadtree, in which its places lie, and a rectangle, which encloses those of its subscriptions;
rectangles of neighbours overlap. The costliest is cut next (DkM-SKS, sections 3.2 and 4.2), until there are enough.
Subscriptions to the whole world begin as a subset of their own, since they would extend any rectangle to the world,
which the paper does not consider.
"""

import heapq
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from compiling.njit import njit
from distribution.placement.costs import areas
from distribution.placement.demand import Demand
from matching.model import Float64, Int64

#: Side of the smallest cell.
_SMALLEST_CELL = 2.0**-40


class Subset(NamedTuple):
    """Some subscriptions.

    rows : int64[n]         ascending positions in a `Demand`
    cell : float64[4]       the cell of the quadtree that their places lie in
    box : float64[4]        encloses their rectangles
    cost : float64[n]       C(s) of each, computed with this rectangle
    total : float           sum of the costs
    """

    rows: Int64
    cell: Float64
    box: Float64
    cost: Float64
    total: float


#: Makes a subset of rows in a cell.
Make = Callable[[Int64, Float64], Subset]


def first_subsets(demand: Demand, world: Float64, make: Make) -> list[Subset]:
    """One subset of the subscriptions with a rectangle, one of those to the whole world; without empty ones."""
    rows = (np.flatnonzero(~demand.everywhere), np.flatnonzero(demand.everywhere))
    return [make(each, world) for each in rows if each.size]


def cut(subsets: list[Subset], at_least: int, parts_of: Callable[[Subset], list[Subset]]) -> list[Subset]:
    """Cut the costliest subset repeatedly, until there are `at_least` or none can be cut. By descending cost."""
    queue = [(-each.total, place, each) for place, each in enumerate(subsets)]
    heapq.heapify(queue)
    whole: list[Subset] = []
    made = len(queue)
    while queue and len(queue) + len(whole) < at_least:
        costliest = heapq.heappop(queue)[2]
        parts = parts_of(costliest) if costliest.rows.size > 1 else []
        if len(parts) < 2:
            whole.append(costliest)
            continue
        for part in parts:
            made += 1  # of equally costly ones the older is cut first
            heapq.heappush(queue, (-part.total, made, part))
    return sorted(whole + [each for _, _, each in queue], key=lambda each: (-each.total, each.rows[0]))


def quarters(demand: Demand, subset: Subset, make: Make) -> list[Subset]:
    """Cut a subset by the quarters of its cell, without empty ones; returns it whole if all lie at the same place.

    A quarter that has all subscriptions is quartered in turn.
    """
    x, y, cell = demand.x[subset.rows], demand.y[subset.rows], subset.cell
    if x.min() == x.max() and y.min() == y.max():
        return [subset]
    while True:
        middle_x, middle_y = (cell[0] + cell[2]) / 2.0, (cell[1] + cell[3]) / 2.0
        quarter = (x >= middle_x) + 2 * (y >= middle_y)
        kept = np.flatnonzero(np.bincount(quarter, minlength=4))
        if kept.size > 1 or max(cell[2] - cell[0], cell[3] - cell[1]) < _SMALLEST_CELL:
            break
        cell = _quarter(cell, int(kept[0]))
    return [make(subset.rows[quarter == which], _quarter(cell, int(which))) for which in kept]


def enclosing(box: Float64) -> Float64:
    """The rectangle around rectangles (float64[n, 4], n > 0): float64[4]."""
    return np.concatenate([box[:, :2].min(axis=0), box[:, 2:].max(axis=0)])


def overlapped(box: Float64, among: Float64) -> Int64:
    """Which rectangle of `among` (float64[g, 4], g > 0) each one (float64[n, 4]) overlaps most: equation 7, int64[n].

    Ties go to the smallest, whose costs are the most exact. If it shares no area with any, as points and lines do, the
    nearest one: the paper leaves this open.

    Notes
    -----
    O(n * g).
    """
    chosen = np.empty(box.shape[0], np.int64)
    _overlapped(np.ascontiguousarray(box), np.ascontiguousarray(among), areas(among), chosen)
    return chosen


def _quarter(cell: Float64, which: int) -> Float64:
    middle_x, middle_y = (cell[0] + cell[2]) / 2.0, (cell[1] + cell[3]) / 2.0
    west, east = (middle_x, cell[2]) if which % 2 else (cell[0], middle_x)
    south, north = (middle_y, cell[3]) if which // 2 else (cell[1], middle_y)
    return np.array([west, south, east, north])


@njit(cache=True, nogil=True)
def _overlapped(box, among, area, chosen):
    for i in range(box.shape[0]):
        best, most, nearest = -1, -1.0, np.inf
        for g in range(among.shape[0]):
            width = min(box[i, 2], among[g, 2]) - max(box[i, 0], among[g, 0])
            height = min(box[i, 3], among[g, 3]) - max(box[i, 1], among[g, 1])
            # negative width or height is how far apart they are on that axis
            shared = max(width, 0.0) * max(height, 0.0)
            apart = min(width, 0.0) ** 2 + min(height, 0.0) ** 2
            # more area first, then nearer, then smaller; at equal area above 0 both lie at distance 0
            if shared > most or (shared == most and (apart < nearest or (apart == nearest and area[g] < area[best]))):
                best, most, nearest = g, shared, apart
        chosen[i] = best
