"""Association of subscriptions with cells: by expected cost, or by place only (the heuristic of CIQ-H).

The cells of a subscription cover the whole space without overlap. From the root down `spread` takes a cell, or its
quarters instead if the evaluations that the quarters save (Chen et al., CIQ, definition 7 and lemma 4) are worth more
than their postings: 3 more for every keyword, each worth `delta` evaluations (algorithm 2, equations 11 and 12).

An *evaluation* is a test of a subscription against a message; an *association* is a pair of subscription and cell. The
expected number of evaluations is estimated from a history `h` of the engine's messages
(`papers.ciq.ciq_history.HistoryArrays`). This file uses of it:

    cells : float64[cells]             messages in each cell
    having : float64[terms]            messages that have each term
    above : float64[keywords, bins]    see `fraction_above`
    facts : float64[...]               messages; places counted in `cells`; texts counted in `having`
"""

import math
from typing import NamedTuple

import numpy as np

from compiling.njit import njit, njit_inner, njit_no_refcount
from matching.model import Float64, Int32
from matching.storage.slots import longer
from papers.ciq.cell_bounds import bucket_of, is_spatial, place_of, reach_in_box
from papers.ciq.quadtree import path_to

#: Indexes in `h.facts`.
MESSAGES, PLACES, TEXTS = range(3)
#: A history has one distribution of text relevance for each number of keywords up to `KEYWORDS`, of `BINS` bins, a
#: quarter of an octave wide each.
KEYWORDS, BINS, _PER_OCTAVE = 6, 80, 4.0


class CellCosts(NamedTuple):
    """Parameters of the choice of cells.

    depth : int        levels below the root at most
    buckets : int      buckets of a cell; one more has the subscriptions with alpha 1, and one more at the root those
                       with fewer than k results
    width : float      interval of the reach in a bucket
    by_cost : bool     choose by cost; else (CIQ-H) quarter every cell that contains the subscription, down to `depth`
    delta : float      cost of a posting, in evaluations
    lifetime : float   expected number of messages during the life of a subscription
    """

    depth: int
    buckets: int
    width: float
    by_cost: bool
    delta: float
    lifetime: float


@njit_no_refcount
def expected(h, c, slot, weight, cell, worth, reach):
    """Expected number of evaluations of a subscription in a cell (definition 7).

    weight : float    the factors that are the same in all cells: lifetime * chance of a keyword
    worth, reach      see `papers.ciq.cell_bounds`
    """
    # text relevance that a message in this cell needs at least (lemma 1)
    least = worth - reach
    if is_spatial(c.alpha[slot]):
        chance = 1.0 if least < 0.0 else 0.0
    else:
        chance = chance_of_text(h, c.term_count[slot], least)
    return weight * chance_of_cell(h, cell) * chance


@njit(cache=True, nogil=True)
def spread(h, c, slots, worth, costs, max_distance):
    """Associate subscriptions with cells.

    Parameters
    ----------
    h, c : kernel views     the history; columns of the subscriptions
    slots : int32[n]
    worth : float64[n]      worth of their thresholds (`papers.ciq.cell_bounds`)
    costs : CellCosts
    max_distance : float

    Returns
    -------
    row : int32[m]          index into `slots`, for each of m associations
    where : int32[m]        cell and bucket (`papers.ciq.cell_bounds.place_of`)
    reach : float32[m]      see `papers.ciq.cell_bounds`

    Notes
    -----
    O(cells evaluated), a few more than m. Subscriptions without a threshold go to a bucket of their own at the root: a
    walk can skip no block that has one of them.
    """
    capacity = max(16, 2 * slots.shape[0])
    out_row, out_where = np.empty(capacity, np.int32), np.empty(capacity, np.int32)
    out_reach = np.empty(capacity, np.float32)
    found = 0
    # a level leaves three cells on the stack at most, the last level four
    cells = np.empty((3 * costs.depth + 5, 2), np.int64)
    boxes = np.empty((3 * costs.depth + 5, 4))
    path = np.empty(costs.depth + 1, np.int64)
    quarters, reaches = np.empty(4), np.empty(4, np.float32)
    for row in range(slots.shape[0]):
        slot = slots[row]
        unfilled = c.threshold[slot] == -math.inf
        # four cells instead of one: three postings more for each keyword
        dear = 3.0 * c.term_count[slot] * costs.delta
        weight = costs.lifetime * chance_of_keyword(h, c, slot)
        if not costs.by_cost:
            path_to(c.x[slot], c.y[slot], costs.depth, path)
        reach = reach_in_box(c, slot, 0.0, 0.0, 1.0, max_distance)
        # a stack, not recursion: all subscriptions reuse the same few rows, which stay in the cache
        cells[0, 0], cells[0, 1] = 0, 0
        boxes[0, 0], boxes[0, 1], boxes[0, 2] = 0.0, 0.0, 1.0
        # without a threshold the root is taken, whatever its cost
        boxes[0, 3] = 0.0 if unfilled else expected(h, c, slot, weight, 0, worth[row], reach)
        height = 1
        while height:
            height -= 1
            cell, level = cells[height, 0], cells[height, 1]
            west, south, side, own = boxes[height, 0], boxes[height, 1], boxes[height, 2], boxes[height, 3]
            apart = False
            if level < costs.depth and not unfilled:
                if not costs.by_cost:
                    apart = path[level] == cell
                # quarters cannot save more than the cell costs: most cells end here, without an evaluation of quarters
                elif own > dear:
                    apart = True
            half = side / 2.0
            if apart:
                saving = own
                for quarter in range(4):
                    box = west + half * (quarter & 1), south + half * (quarter >> 1)
                    reaches[quarter] = reach_in_box(c, slot, box[0], box[1], half, max_distance)
                    inner = 4 * cell + 1 + quarter
                    quarters[quarter] = expected(h, c, slot, weight, inner, worth[row], reaches[quarter])
                    saving -= quarters[quarter]
                apart = not costs.by_cost or saving > dear
            if apart:
                for quarter in range(4):
                    cells[height, 0], cells[height, 1] = 4 * cell + 1 + quarter, level + 1
                    boxes[height, 0] = west + half * (quarter & 1)
                    boxes[height, 1] = south + half * (quarter >> 1)
                    # the stack has the cost, too, so that it is computed once
                    boxes[height, 2], boxes[height, 3] = half, quarters[quarter]
                    height += 1
                continue
            out_row, out_where = longer(out_row, found + 1), longer(out_where, found + 1)
            out_reach = longer(out_reach, found + 1)
            # computed again, not stacked: only the cells taken need the reach
            reach = reach_in_box(c, slot, west, south, side, max_distance)
            bucket = costs.buckets + 1 if unfilled else bucket_of(reach, c.alpha[slot], costs.buckets, costs.width)
            out_row[found], out_where[found], out_reach[found] = row, place_of(cell, bucket), reach
            found += 1
    return out_row[:found], out_where[:found], out_reach[:found]


# -- probabilities


@njit_inner
def bin_of(relevance):
    """The bin of a text relevance, 0 for the best."""
    # the logarithm of 0 is undefined
    if relevance <= 0.0:
        return BINS - 1
    return min(BINS - 1, max(0, int(-_PER_OCTAVE * math.log2(relevance))))


def fraction_above(relevance: Float64) -> Float64:
    """Share of pairs in each bin or a better one, float64[keywords, bins].

    relevance : float64[keywords, bins]    number of pairs in each bin
    """
    # rule of succession: as if one more pair had been above and one below
    return (np.cumsum(relevance, axis=1) + 1.0) / (relevance.sum(axis=1, keepdims=True) + 2.0)


@njit_no_refcount
def chance_of_text(h, keywords, least):
    """Probability that the text of a message that shares a keyword is more relevant than `least`."""
    # every text suffices, also one of relevance 0, which the last bin mixes with small ones
    if least < 0.0:
        return 1.0
    if least >= 1.0:
        return 0.0
    return h.above[min(keywords, KEYWORDS) - 1, bin_of(least)]


@njit_inner
def chance_of_keyword(h, c, slot):
    """Probability that a message has any of the keywords, if they were independent of each other."""
    none = 1.0
    for at in range(c.term_start[slot], c.term_start[slot] + c.term_count[slot]):
        # max: before the first text every probability is 0, not 0 / 0
        none *= 1.0 - min(1.0, h.having[c.terms[at]] / max(1.0, h.facts[TEXTS]))
    return 1.0 - none


@njit(cache=True, nogil=True)
def chance_of_cell(h, cell):
    """Probability that a message lies in a cell."""
    return h.cells[cell] / max(1.0, h.facts[PLACES])


def lifetime_of(lived: float, ended: int, longest: int) -> float:
    """Expected number of messages during the life of a subscription, at most `longest`.

    The mean of the subscriptions that have `ended`, which saw `lived` messages in all, and of one more with `longest`.
    """
    return min(float(longest), (lived + longest) / (ended + 1))


# -- history


@njit_inner
def count_message(h, path, terms):
    """Count a message by cell and by term. O(depth + terms)."""
    for cell in path:
        h.cells[cell] += 1.0
    h.facts[MESSAGES] += 1.0
    h.facts[PLACES] += 1.0
    h.facts[TEXTS] += 1.0
    for i in range(terms.shape[0]):
        # terms outside the array are not yet a keyword of any subscription
        if terms[i] < h.having.shape[0]:
            h.having[terms[i]] += 1.0


@njit(cache=True, nogil=True)
def largest_term(c, slots):
    """The largest term id among the keywords of subscriptions; -1 if they have none."""
    largest = -1
    for slot in slots:
        if c.term_count[slot] > 0:
            largest = max(largest, c.terms[c.term_start[slot] + c.term_count[slot] - 1])
    return largest


def some_of(slots: Int32, most: int) -> Int32:
    """About `most` of the slots, at regular intervals."""
    return np.ascontiguousarray(slots[:: max(1, slots.shape[0] // most)])
