"""With which cells CIQ associates a subscription: by expected cost, or by place alone (the paper's CIQ-H).

The cells of a subscription cover the whole space without overlap. From the root down a cell is taken, or its quarters
instead of it if the evaluations that they save (Chen et al., CIQ, definition 7 and lemma 4) are worth more than the
postings that they cost: 3 more for every keyword, each as dear as `delta` evaluations (algorithm 2, equations 11 and
12). Read on in `matching.decay.engines.ciq_history` for where the probabilities come from.
"""

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from matching.decay.engines.ciq_bounds import bucket_of, is_spatial, least_text, place_of, reach_in_box, scaled_of
from matching.decay.engines.ciq_history import NOW, chance_of_cell, chance_of_keyword, chance_of_text
from matching.storage.quadtree import path_to


class Costs(NamedTuple):
    """What decides on cells.

    depth : int        levels below the root at most
    buckets : int      of a cell; one more takes those whose text counts not, and another, at the root, those that have
                       fewer than k results
    by_cost : bool     else a cell is quartered if it holds the subscription, down to `depth`
    delta : float      evaluations that a posting is worth
    lifetime : float   messages that a subscription is expected to see
    """

    depth: int
    buckets: int
    by_cost: bool
    delta: float
    lifetime: float


@njit(cache=True, nogil=True)
def expected(h, c, slot, weight, cell, scaled, reach):
    """Expected number of evaluations of a subscription in a cell (definition 7); `weight` is what no cell changes."""
    least = least_text(scaled, reach, h.facts[NOW])
    if is_spatial(c.alpha[slot]):
        chance = 1.0 if least < 0.0 else 0.0
    else:
        chance = chance_of_text(h, c.term_count[slot], least)
    return weight * chance_of_cell(h, cell) * chance


@njit(cache=True, nogil=True)
def spread(h, c, slots, costs, max_distance):
    """Associate subscriptions with cells.

    Returns
    -------
    slot, where : int32[associations]; scaled : float64[associations]; reach : float32[associations]

    Notes
    -----
    O(cells looked at), some more than are taken. A subscription without a threshold goes to the root, into a bucket of
    its own: none of the blocks there can be skipped, and it would keep others from being skipped.
    """
    room = max(16, 2 * slots.shape[0])
    out_slot, out_where = np.empty(room, np.int32), np.empty(room, np.int32)
    out_scaled, out_reach = np.empty(room), np.empty(room, np.float32)
    found = 0
    # of each level three quarters wait at most, and then the last
    cells = np.empty((3 * costs.depth + 5, 2), np.int64)
    boxes = np.empty((3 * costs.depth + 5, 4))
    path = np.empty(costs.depth + 1, np.int64)
    quarters, reaches = np.empty(4), np.empty(4, np.float32)
    for slot in slots:
        scaled = scaled_of(c.threshold[slot], c.alpha[slot])
        unfilled = c.threshold[slot] == -math.inf
        dear = 3.0 * c.term_count[slot] * costs.delta
        weight = costs.lifetime * chance_of_keyword(h, c, slot)
        if not costs.by_cost:
            path_to(c.x[slot], c.y[slot], costs.depth, path)
        reach = reach_in_box(c, slot, 0.0, 0.0, 1.0, max_distance)
        cells[0, 0], cells[0, 1] = 0, 0
        boxes[0, 0], boxes[0, 1], boxes[0, 2] = 0.0, 0.0, 1.0
        boxes[0, 3] = 0.0 if unfilled else expected(h, c, slot, weight, 0, scaled, reach)
        height = 1
        while height:
            height -= 1
            cell, level = cells[height, 0], cells[height, 1]
            west, south, side, own = boxes[height, 0], boxes[height, 1], boxes[height, 2], boxes[height, 3]
            apart = False
            if level < costs.depth and not unfilled:
                if not costs.by_cost:
                    apart = path[level] == cell
                elif own > dear:
                    apart = True
            half = side / 2.0
            if apart:
                saved = own
                for quarter in range(4):
                    box = west + half * (quarter & 1), south + half * (quarter >> 1)
                    reaches[quarter] = reach_in_box(c, slot, box[0], box[1], half, max_distance)
                    quarters[quarter] = expected(h, c, slot, weight, 4 * cell + 1 + quarter, scaled, reaches[quarter])
                    saved -= quarters[quarter]
                apart = not costs.by_cost or saved > dear
            if apart:
                for quarter in range(4):
                    cells[height, 0], cells[height, 1] = 4 * cell + 1 + quarter, level + 1
                    boxes[height, 0] = west + half * (quarter & 1)
                    boxes[height, 1] = south + half * (quarter >> 1)
                    boxes[height, 2], boxes[height, 3] = half, quarters[quarter]
                    height += 1
                continue
            if found == out_slot.shape[0]:
                out_slot, out_where = _twice(out_slot), _twice(out_where)
                out_scaled, out_reach = _twice(out_scaled), _twice(out_reach)
            reach = reach_in_box(c, slot, west, south, side, max_distance)
            bucket = costs.buckets + 1 if unfilled else bucket_of(reach, c.alpha[slot], costs.buckets)
            out_slot[found], out_where[found] = slot, place_of(cell, bucket)
            out_scaled[found], out_reach[found] = scaled, reach
            found += 1
    return out_slot[:found], out_where[:found], out_scaled[:found], out_reach[:found]


@njit(cache=True, nogil=True)
def _twice(column: np.ndarray) -> np.ndarray:
    longer = np.empty(2 * column.shape[0], column.dtype)
    longer[: column.shape[0]] = column
    return longer
