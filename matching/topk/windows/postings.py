"""The messages of a generation as inverted lists whose postings lie along a Z-order curve.

`matching.topk.windows.segments` cuts them into blocks. A posting has all that bounds the score of its message: the
rounded point, the term's weight, the norm of later weights, and a *sign*, 32 bits of which every later term of the
message sets one: a subscription's term whose bit is missing is not in the message. Signs reject three in four of the
candidates that norms alone pass.
"""

import math
from typing import NamedTuple

import numpy as np

from compiling.njit import njit, njit_inner, njit_inner_no_refcount
from matching.model import Float32, Int32, Int64
from matching.storage.prefetch import prefetch
from matching.topk.scores import least_distance
from matching.topk.windows.search import (
    SLACK,
    WindowRows,
    fits,
    note,
    push,
    replace_least,
    score_of,
    shared_text,
    within,
)

_SLACK = SLACK
#: By how much a rounded place may seem farther away than it is, in metres: at most 0.7, found for a half turn. A
#: subscription's own radius may be as small, so it is no part of the slack of scores.
_ROUNDED_M = 1.0
#: Mask of the message numbers of a ring.
_NUMBERS = 0x7FFFFFFF
#: The ring of rows that are never reused (see `visit_postings`).
WHOLE = (_NUMBERS, 0, _NUMBERS + 1)
#: Links in a cache line.
_LINKS = 8
#: Terms are numbered densely through a table if it has at most this many places a posting.
_TABLE_PLACES = 4


class Postings(NamedTuple):
    """Inverted lists of t distinct terms and p postings.

    term : int32[t]          ascending
    start : int64[t + 1]     where the list of each begins
    near : float32[p, 4 or 5]     x and y (rounded), weight of the term, norm of the message's weights after it; on the
                             sphere z
    link : int32[p, 2]       the message, as row of `WindowRows`, and the sign of its terms after this one
    """

    term: Int32
    start: Int64
    near: Float32
    link: Int32


def build_postings(rows: WindowRows) -> Postings:
    """Invert messages, keeping their order in each list. O(p) for p postings, if terms are numbered densely."""
    most = int(rows.terms.max(initial=-1)) + 1
    if most <= _TABLE_PLACES * rows.terms.shape[0]:
        counts = _count_terms(rows.terms, most)
        term = np.flatnonzero(counts).astype(np.int32)
        place = np.zeros(most, np.int32)
        place[term] = np.arange(term.size, dtype=np.int32)
        counts = counts[term]
        local = place[rows.terms]
    else:
        term, local, counts = np.unique(rows.terms, return_inverse=True, return_counts=True)
        local = local.astype(np.int32)
    start = np.zeros(term.size + 1, np.int64)
    np.cumsum(counts, out=start[1:])
    near = np.empty((rows.terms.shape[0], 2 + rows.point.shape[1]), np.float32)
    link = np.empty((rows.terms.shape[0], 2), np.int32)
    _distribute(rows, local, start[:-1].copy(), near, link)
    return Postings(term, start, near, link)


@njit_inner
def term_sign(term):
    """The bit that a term sets."""
    return np.int32(1) << np.int32(((np.int64(term) * 2654435769) >> 27) & 31)


@njit(cache=True, nogil=True)
def _count_terms(terms, most):
    counts = np.zeros(most, np.int64)
    for term in terms:
        counts[term] += 1
    return counts


@njit(cache=True, nogil=True)
def _distribute(rows, local, cursor, near, link):
    """Append every posting to its list, at `cursor`, which is advanced."""
    for row in range(rows.point.shape[0]):
        square = 0.0
        sign = np.int32(0)
        # lists are in the order of rows; from the last term back for `link_term`
        for p in range(rows.head[row, 3] - 1, rows.head[row, 2] - 1, -1):
            at = cursor[local[p]]
            cursor[local[p]] += 1
            square, sign = link_term(near, link, at, rows.point, row, row, rows.terms[p], rows.weights[p], square, sign)


@njit_inner
def link_term(near, link, at, point, row, number, term, weight, square, sign):
    """Write a posting of the message at `row` of `point`.

    `square` and `sign` are those of later terms, and are returned with this one added.
    """
    near[at, 0], near[at, 1], near[at, 2], near[at, 3] = point[row, 0], point[row, 1], weight, math.sqrt(square)
    if near.shape[1] == 5:
        near[at, 4] = point[row, 2]
    link[at, 0], link[at, 1] = number, sign
    return square + np.float64(weight) * np.float64(weight), sign | term_sign(term)


@njit(cache=True, nogil=True)
def summarise(near, first, last, nodes, at):
    """Write the bounds of postings first to last - 1 to nodes[at] (float32[6]): box, slightly widened, and maxima.

    On the sphere the two sides of the box in z follow (float32[8]).
    """
    west, south, east, north = np.float32(np.inf), np.float32(np.inf), np.float32(-np.inf), np.float32(-np.inf)
    weight, rest = np.float32(0), np.float32(0)
    # maxima of different postings: their sum may be looser than need be, never tighter
    for p in range(first, last):
        west, east = min(west, near[p, 0]), max(east, near[p, 0])
        south, north = min(south, near[p, 1]), max(north, near[p, 1])
        weight, rest = max(weight, near[p, 2]), max(rest, near[p, 3])
    # float32 rounds coordinates by less
    nodes[at, 0], nodes[at, 1], nodes[at, 2], nodes[at, 3] = west - 1e-6, south - 1e-6, east + 1e-6, north + 1e-6
    nodes[at, 4], nodes[at, 5] = weight, rest
    if near.shape[1] == 5:
        low, high = np.float32(np.inf), np.float32(-np.inf)
        for p in range(first, last):
            low, high = min(low, near[p, 4]), max(high, near[p, 4])
        nodes[at, 6], nodes[at, 7] = low - 1e-6, high + 1e-6


@njit(cache=True, nogil=True)
def widen(nodes, at, other):
    """Extend the bounds of node `at` by those of `other` (`summarise`)."""
    for i in range(2):
        nodes[at, i] = min(nodes[at, i], other[i])
    for i in range(2, 6):
        nodes[at, i] = max(nodes[at, i], other[i])
    if other.shape[0] == 8:
        nodes[at, 6], nodes[at, 7] = min(nodes[at, 6], other[6]), max(nodes[at, 7], other[7])


@njit_inner
def upper_bound(nodes, n, here, alpha, own, rest, max_distance):
    """Upper bound of the scores of messages under node n, found under a term with `own` and `rest` (`term_bounds`).

    here : of the query (`row_place`)
    """
    dx = max(0.0, nodes[n, 0] - here[0], here[0] - nodes[n, 2])
    dy = max(0.0, nodes[n, 1] - here[1], here[1] - nodes[n, 3])
    squared = dx * dx + dy * dy
    if here[3]:
        dz = max(0.0, nodes[n, 6] - here[2], here[2] - nodes[n, 7])
        squared += dz * dz
    # own and rest include 1 - alpha (`term_bounds`); no term but the first common one may be bounded so (spec 1.4)
    spatial = 1.0 - least_distance(squared, here[3]) / max_distance
    return alpha * spatial + own * nodes[n, 4] + rest * nodes[n, 5] + _SLACK


@njit_inner_no_refcount
def push_reaching(queue, count, nodes, first, last, sign, j, here, alpha, own, rest, max_distance, bar):
    """Insert those of nodes first to last - 1 into the queue that may reach the bar for term j of the row.

    Node n is inserted as n, or as -1 - n if `sign` is negative. Returns the new count. The queue has capacity.
    """
    bounds, entries = queue
    for n in range(first, last):
        bound = upper_bound(nodes, n, here, alpha, own, rest, max_distance)
        # >=: ties at the bar are wanted
        if bound >= bar:
            push(bounds, entries, count, bound, n if sign >= 0 else -1 - n, j)
            count += 1
    return count


@njit_inner_no_refcount
def visit_postings(near, link, begin, end, ring, rows, queries, span, r, j, own, rest, messages, scores, found):
    """Scan postings begin to end - 1 of term j of the row; returns the number of hits so far.

    own, rest : (1 - alpha) * weight of the term, and * norm of the weights of those after it
    ring : mask from `link` to row, the oldest message still there, how many there are (`WHOLE` unless rows are
           reused)
    messages, scores : the columns of `WindowHits`, with capacity for all
    """
    head, point, message_terms, message_weights, place, keys, order_offsets, order = rows
    terms, weights, best = queries.terms, queries.weights, queries.best
    first, last = queries.term_offsets[r], queries.term_offsets[r + 1]
    here = (queries.x[r], queries.y[r], queries.z[r], queries.on_sphere)
    alpha, max_distance = queries.alpha[r], queries.max_distance[r]
    x, y, z, on_sphere = here
    heap, heap_end = queries.bars[r], queries.bars[r + 1]
    row_bits, oldest, alive = ring
    bar = best[heap]
    queries.read[r] += end - begin
    for p in range(begin, end, _LINKS):
        prefetch(link, 2 * p)
    # a product in place of a division: what that rounds off is within the slack
    slope, width = alpha / max_distance, near.shape[1]
    # The places for hits have room for all postings: those that are left wait there, step by step, so that the cache
    # misses of each step overlap. A hit is never written over one that waits, for no more are left than came before.
    left = found
    for p in range(begin, end):
        dx = x - near[p, 0]
        dy = y - near[p, 1]
        squared = dx * dx + dy * dy
        if on_sphere:
            dz = z - near[p, width - 1]
            # the postings' places are rounded
            away = least_distance(squared + dz * dz, True) - _ROUNDED_M
        else:
            away = math.sqrt(squared)
        known = alpha - slope * away + own * near[p, 2] + _SLACK
        # all are written down and those that may reach stay: which ones do cannot be foreseen
        messages[left, 0], scores[left] = p, known
        left += known + rest * near[p, 3] >= bar
    waiting, left = left, found
    for at in range(found, waiting):
        p, known = messages[at, 0], scores[at]
        # terms whose bit is missing are not in the message; a collision of bits only loosens the norm
        square, sign = 0.0, link[p, 1]
        for i in range(first + j + 1, last):
            square += np.float64(weights[i]) * np.float64(weights[i]) * (sign & term_sign(terms[i]) != 0)
        bound = known + (1.0 - alpha) * math.sqrt(square) * near[p, 3]
        if bound < bar or (link[p, 0] - oldest) & _NUMBERS >= alive:
            continue  # out of reach; or dropped, and its row perhaps reused
        row = link[p, 0] & row_bits
        prefetch(head, head.shape[1] * row)
        prefetch(point, point.shape[1] * row)
        messages[left, 0], scores[left] = row, bound
        left += 1
    waiting, left = left, found
    for at in range(found, waiting):
        row, bound = messages[at, 0], scores[at]
        if not within(head, row, span):
            continue
        prefetch(message_terms, head[row, 2])
        prefetch(message_weights, head[row, 2])
        messages[left, 0], scores[left] = row, bound
        left += 1
    for at in range(found, left):
        row = messages[at, 0]
        # the bar may have risen since
        if scores[at] < bar:
            continue
        text = shared_text(head, message_terms, message_weights, row, terms, weights, first, last, j)
        if text < 0.0:
            continue  # found under an earlier term, or bounded out there
        score = score_of(point, row, here, alpha, text, max_distance)
        # exact, unlike the bounds; ties stay in
        if score >= bar and fits(queries.filters, r, head, row, place, keys, message_terms, order_offsets, order):
            note(messages, scores, found, r, head, row, score)
            found += 1
            # later messages must not raise the bar: the threshold is that of the boundary
            if span.push:
                replace_least(best, heap, heap_end, score)
                bar = best[heap]
    return found
