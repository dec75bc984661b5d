"""Association of subscriptions with cells: by expected cost, or by place only (the heuristic of CIQ-H).

The cells of a subscription cover the whole space without overlap. From the root down a cell is taken, or its quarters
instead of it if the evaluations that they save (Chen et al., CIQ, definition 7 and lemma 4) are worth more than the
postings that they cost: 3 more for every keyword, each as dear as `delta` evaluations (algorithm 2, equations 11 and
12).

Every factor of the expected number of evaluations is estimated from a history `h`, which an engine keeps of its
messages (`matching.decay.engines.ciq_history`). Of it is used here
cells float64[cells], messages in each cell, or what stands for them; having float64[terms], messages that have each
term; above float64[keywords, bins], see `chance_of_text`; facts float64[...], the first three of which are the messages
that came, the places counted in `cells` and the texts counted in `having`.
"""

import math
from typing import NamedTuple

import numpy as np

from matching.ciq.cell_bounds import bucket_of, is_spatial, place_of, reach_in_box
from matching.ciq.quadtree import path_to
from matching.model import Float64, Int32
from matching.njit import njit, njit_no_refcount
from matching.storage.slots import longer

#: Places in `h.facts`.
MESSAGES, PLACES, TEXTS = range(3)
#: Distributions of text relevance are kept by number of keywords, up to this one, in bins a quarter of an octave wide.
KEYWORDS, BINS, _PER_OCTAVE = 6, 80, 4.0


class Costs(NamedTuple):
    """What decides on cells.

    depth : int        levels below the root at most
    buckets : int      of a cell; one more takes those whose text counts not, and another, at the root, those that have
                       fewer than k results
    by_cost : bool     else a cell is quartered if the subscription lies in it, down to `depth`
    delta : float      evaluations that a posting is worth
    lifetime : float   messages that a subscription is expected to see
    """

    depth: int
    buckets: int
    by_cost: bool
    delta: float
    lifetime: float


@njit_no_refcount
def expected(h, c, slot, weight, cell, worth, reach):
    """Expected number of evaluations of a subscription in a cell (definition 7); `weight` is what no cell changes."""
    # what place cannot bring in this cell the text has to (lemma 1)
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
    h, c : views            history, subscriptions
    slots : int32[n]
    worth : float64[n]      their thresholds, as `matching.ciq.cell_bounds` counts them

    Returns
    -------
    row : int32[associations]       place in `slots`
    where : int32[associations]; reach : float32[associations]

    Notes
    -----
    O(cells looked at), some more than are taken. A subscription without a threshold goes to the root, into a bucket of
    its own: none of the blocks there can be skipped, and it would keep others from being skipped.
    """
    capacity = max(16, 2 * slots.shape[0])
    out_row, out_where = np.empty(capacity, np.int32), np.empty(capacity, np.int32)
    out_reach = np.empty(capacity, np.float32)
    found = 0
    # of each level three quarters wait at most, and then the last
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
        # a stack, not recursion: the cells of every subscription go through the same few rows
        cells[0, 0], cells[0, 1] = 0, 0
        boxes[0, 0], boxes[0, 1], boxes[0, 2] = 0.0, 0.0, 1.0
        # without a threshold the root is taken at once, whatever it costs
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
                # nothing saves more than all that the cell costs, so most cells need no look at their quarters
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
                    # its cost goes with it: it has just been worked out
                    boxes[height, 2], boxes[height, 3] = half, quarters[quarter]
                    height += 1
                continue
            out_row, out_where = longer(out_row, found + 1), longer(out_where, found + 1)
            out_reach = longer(out_reach, found + 1)
            # not kept on the stack: only cells that are taken need it
            reach = reach_in_box(c, slot, west, south, side, max_distance)
            bucket = costs.buckets + 1 if unfilled else bucket_of(reach, c.alpha[slot], costs.buckets)
            out_row[found], out_where[found], out_reach[found] = row, place_of(cell, bucket), reach
            found += 1
    return out_row[:found], out_where[:found], out_reach[:found]


# -- probabilities


@njit(cache=True, nogil=True)
def bin_of(relevance):
    """The bin of a text relevance."""
    # of nothing there is no logarithm
    if relevance <= 0.0:
        return BINS - 1
    return min(BINS - 1, max(0, int(-_PER_OCTAVE * math.log2(relevance))))


def fraction_above(relevance: Float64) -> Float64:
    """Share of pairs in a bin or a better one (float64[keywords, bins]), of the numbers of pairs in each."""
    # as if one pair had been above and one below, where little is known
    return (np.cumsum(relevance, axis=1) + 1.0) / (relevance.sum(axis=1, keepdims=True) + 2.0)


@njit_no_refcount
def chance_of_text(h, keywords, least):
    """Probability that the text of a message that shares a keyword is more relevant than `least`."""
    # any text will do, and none: no bin says so, since the last one takes all that is worth nearly nothing
    if least < 0.0:
        return 1.0
    if least >= 1.0:
        return 0.0
    return h.above[min(keywords, KEYWORDS) - 1, bin_of(least)]


@njit(cache=True, nogil=True)
def chance_of_keyword(h, c, slot):
    """Probability that a message has any of the keywords, as if they came independently."""
    none = 1.0
    for at in range(c.term_start[slot], c.term_start[slot] + c.term_count[slot]):
        # before the first text has been counted every chance is 0, not 0 / 0
        none *= 1.0 - min(1.0, h.having[c.terms[at]] / max(1.0, h.facts[TEXTS]))
    return 1.0 - none


@njit(cache=True, nogil=True)
def chance_of_cell(h, cell):
    """Probability that a message lies in a cell."""
    return h.cells[cell] / max(1.0, h.facts[PLACES])


def lifetime_of(lived: float, ended: int, longest: int) -> float:
    """Messages that a subscription will see: mean of those that have ended and one of `longest`, and no more."""
    return min(float(longest), (lived + longest) / (ended + 1))


# -- history


@njit(cache=True, nogil=True)
def count_message(h, path, terms):
    """Count a message by cell and by term. O(depth + terms)."""
    for cell in path:
        h.cells[cell] += 1.0
    h.facts[MESSAGES] += 1.0
    h.facts[PLACES] += 1.0
    h.facts[TEXTS] += 1.0
    for i in range(terms.shape[0]):
        # terms beyond are no subscription's keyword yet
        if terms[i] < h.having.shape[0]:
            h.having[terms[i]] += 1.0


@njit(cache=True, nogil=True)
def largest_term(c, slots):
    """The largest keyword of subscriptions, -1 without any."""
    largest = -1
    for slot in slots:
        if c.term_count[slot] > 0:
            largest = max(largest, c.terms[c.term_start[slot] + c.term_count[slot] - 1])
    return largest


def some_of(slots: Int32, most: int) -> Int32:
    """Of many about `most`, evenly."""
    return np.ascontiguousarray(slots[:: max(1, slots.shape[0] // most)])
