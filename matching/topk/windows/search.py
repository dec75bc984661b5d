"""Kernels that all window indexes use: layout of messages, scores, bars and priority queues.

A search processes the rows of a window query one by one. Each row has a *bar*, the K-th best score found so far: the
root of a small min-heap. Nodes bounded below the bar are skipped. A message that has several terms of a row is found
under the first common term alone.

Tree-like indexes visit their nodes best bound first, from a priority queue in two arrays. Inner loops are functions of
their own that get arrays, never slices or fields: numba counts a reference for each of those, which costs more than the
arithmetic (measured: 180 us a query with, 50 without).
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compiling.njit import njit, njit_inner, njit_inner_no_refcount, njit_no_refcount
from matching.filters import Filters, passes, words_of
from matching.geo.sphere import distance_to
from matching.model import Float32, Float64, Int32, Int64, MessageBatch, centres, concatenate, take_optional
from matching.storage.slots import longer
from matching.storage.sorting import ascending
from matching.topk.scores import whole_score

#: Upper bound of the error of a bound from float32 coordinates, weights and norms. Compiled in as a literal.
SLACK = 1e-5
#: Hits for which kernels reserve capacity at a time, so that inner loops need not check.
_STEP = 64


class WindowRows(NamedTuple):
    """Messages, laid out so that a score reads few cache lines.

    head : int64[n, 4]       seq, life, where its terms start and end
    point : float64[n, 2 or 3]    x and y in the unit square; on the sphere the unit vector
    terms : int32[nnz]       ascending within a message
    weights : float32[nnz]
    place : float64[n, 2]    longitude and latitude, for filters
    keys : int64[n, a]       of the attributes
    order_offsets, order     int64[n + 1], int32[words]: words in order of appearance, as of `MessageBatch`
    """

    head: Int64
    point: Float64
    terms: Int32
    weights: Float32
    place: Float64
    keys: Int64
    order_offsets: Int64
    order: Int32

    def __len__(self) -> int:
        return self.point.shape[0]

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for array in tuple(self))

    @property
    def order_bytes(self) -> int:
        """Bytes of the words in order of appearance."""
        return self.order_offsets.nbytes + self.order.nbytes


class QueryRows(NamedTuple):
    """The rows of a window query, as kernels take them.

    order : int64[rows]       in which rows are searched
    x, y, z, alpha : float64[rows]    a unit vector on the sphere; in the plane a point of the unit square and 0
    max_distance : float64[rows]      where proximity is 0
    term_offsets, terms, weights
    bars : int64[rows + 1]    best[bars[r] : bars[r + 1]] is the min-heap of row r; its first entry is the bar
    best : float64[sum of ranks]     written
    on_sphere : bool
    read : int64[rows]        written: postings, messages and bounds examined
    filters : Filters         of the rows
    """

    order: Int64
    x: Float64
    y: Float64
    z: Float64
    alpha: Float64
    max_distance: Float64
    term_offsets: Int64
    terms: Int32
    weights: Float32
    bars: Int64
    best: Float64
    on_sphere: bool
    read: Int64
    filters: Filters


class Span(NamedTuple):
    """Messages with after_seq < seq <= through_seq and life > floor. `push`: hits raise the bar."""

    after_seq: int
    through_seq: int
    floor: int
    push: bool


class WindowHits(NamedTuple):
    """Messages found: `message` int64[m, 3] has row of the query, seq, life; `score` float64[m]."""

    message: Int64
    score: Float64


def rows_of(messages: MessageBatch) -> WindowRows:
    """Lay out a batch. O(n + terms)."""
    offsets = messages.term_offsets
    first, last = int(offsets[0]), int(offsets[-1])
    head = np.stack((messages.seq, messages.life, offsets[:-1] - first, offsets[1:] - first), axis=1)
    point = messages.vector.copy() if messages.vector.shape[0] else np.stack((messages.x, messages.y), axis=1)
    place = np.stack(centres(messages), axis=1)
    terms, weights = messages.terms[first:last].copy(), messages.weights[first:last].copy()
    order = messages.order_offsets.copy(), messages.order.copy()
    return WindowRows(head, point, terms, weights, place, messages.keys.copy(), *order)


def join_window_rows(parts: list[WindowRows]) -> WindowRows:
    """Join row-wise; at least one part. O(n + terms)."""
    if len(parts) == 1:
        return parts[0]
    joined, starts = concatenate(parts), np.cumsum([0] + [part.terms.shape[0] for part in parts])
    joined.head[:, 2:] += np.repeat(starts[:-1], [len(part) for part in parts])[:, None]
    return joined


def take_window_rows(rows: WindowRows, picked: NDArray[np.integer]) -> WindowRows:
    """The messages at `picked`, in that order. O(picked + their terms)."""
    head = rows.head[picked]
    lengths = head[:, 3] - head[:, 2]
    ends = np.cumsum(lengths)
    at = np.arange(int(lengths.sum())) + np.repeat(head[:, 2] - ends + lengths, lengths)
    head[:, 2], head[:, 3] = ends - lengths, ends
    keys = rows.keys[picked] if rows.keys.shape[1] else rows.keys
    order = take_optional(rows.order_offsets, rows.order, picked)
    return WindowRows(head, rows.point[picked], rows.terms[at], rows.weights[at], rows.place[picked], keys, *order)


@njit_inner
def row_place(queries, r):
    """Where row r of a query is, as `matching.geo.sphere.point_of` has it."""
    return queries.x[r], queries.y[r], queries.z[r], queries.on_sphere


def place_on_curve(x: Float64, y: Float64) -> Int64:
    """Place of each point along a Z-order curve of 2^16 by 2^16 cells of the unit square. O(n)."""
    return _spread(x) | (_spread(y) << 1)


def _spread(values: Float64) -> Int64:
    """Interleave the 16 bits of each coordinate with zeros."""
    bits = np.clip(values * 65536.0, 0, 65535).astype(np.int64)
    for shift, mask in ((8, 0x00FF00FF), (4, 0x0F0F0F0F), (2, 0x33333333), (1, 0x55555555)):
        bits = (bits | (bits << shift)) & mask
    return bits


def scan(rows: WindowRows, queries: QueryRows, span: Span) -> WindowHits:
    """Find the messages that reach the bars by a full scan. O(rows * messages)."""
    return WindowHits(*scan_rows(rows, queries, span))


@njit(cache=True, nogil=True)
def scan_rows(rows, queries, span):
    """As `scan`; returns the arrays of `WindowHits`."""
    messages, scores = np.empty((64, 3), np.int64), np.empty(64)
    found = 0
    for r in queries.order:
        before = found
        queries.read[r] += rows.point.shape[0]
        # few messages are hits: capacity for the next ones, not for all
        for begin in range(0, rows.point.shape[0], _STEP):
            if found + _STEP > scores.shape[0]:
                messages, scores = more_hits(messages, scores)
            end = min(begin + _STEP, rows.point.shape[0])
            found = _scan_some(rows, begin, end, queries, r, span, messages, scores, found)
        found = settle_row(queries, r, span, messages, scores, before, found)
    return messages[:found].copy(), scores[:found].copy()


@njit_inner_no_refcount
def _scan_some(rows, begin, end, queries, r, span, messages, scores, found):
    """Scan messages begin to end - 1 for row r."""
    head, point, message_terms, message_weights, place, keys, order_offsets, order = rows
    all_terms, all_weights, best = queries.terms, queries.weights, queries.best
    first, last = queries.term_offsets[r], queries.term_offsets[r + 1]
    here = (queries.x[r], queries.y[r], queries.z[r], queries.on_sphere)
    alpha, max_distance = queries.alpha[r], queries.max_distance[r]
    heap, heap_end = queries.bars[r], queries.bars[r + 1]
    for row in range(begin, end):
        # cheap first: seq and life lie in one row, the terms elsewhere
        if not within(head, row, span):
            continue
        # -1: not found under a term, so any first common term counts
        text = shared_text(head, message_terms, message_weights, row, all_terms, all_weights, first, last, -1)
        if text < 0.0:
            continue
        score = score_of(point, row, here, alpha, text, max_distance)
        # ties at the bar are found as well: which of them count depends on their ages (spec 2.3)
        if score >= best[heap] and fits(
            queries.filters, r, head, row, place, keys, message_terms, order_offsets, order
        ):
            note(messages, scores, found, r, head, row, score)
            found += 1
            # later messages must not raise the bar: the threshold is that of the boundary
            if span.push:
                replace_least(best, heap, heap_end, score)
    return found


@njit_no_refcount
def fits(filters, r, head, row, place, keys, terms, order_offsets, order):
    """Whether a message satisfies the filter of row r of the query."""
    first, last = head[row, 2], head[row, 3]
    begin, end = words_of(order_offsets, row)
    return passes(filters, r, place[row, 0], place[row, 1], keys, row, terms, first, last, order, begin, end)


@njit_no_refcount
def within(head, row, span):
    """Whether a message lies in the span."""
    return head[row, 0] > span.after_seq and head[row, 0] <= span.through_seq and head[row, 1] > span.floor


@njit_inner
def shared_text(head, message_terms, message_weights, row, terms, weights, first, last, j):
    """Sum of products of the weights of common terms, if the first of these is at `first + j`; -1 if not.

    With j = -1 any first common term counts. `first` and `last` bound the terms of the query. O(terms of both).
    """
    a, b = head[row, 2], head[row, 3]
    text, shared = 0.0, False
    i = first
    while i < last and a < b:
        if terms[i] < message_terms[a]:
            i += 1
        elif terms[i] > message_terms[a]:
            a += 1
        else:
            # found under each common term, but only the first counts, or a message would raise the bar twice
            if not shared and j >= 0 and i != first + j:
                return -1.0
            shared = True
            # each weight widened before the product, which would else be rounded to float32
            text += np.float64(weights[i]) * np.float64(message_weights[a])
            i += 1
            a += 1
    return text if shared else -1.0


@njit_inner
def score_of(point, row, here, alpha, text, max_distance):
    """Score of a message for a query at `here` (`row_place`), to the last bit that of `matching.naive`."""
    z = point[row, 2] if here[3] else 0.0
    return whole_score(distance_to(here, point[row, 0], point[row, 1], z), max_distance, alpha, text)


@njit(cache=True, nogil=True)
def note(messages, scores, at, r, head, row, score):
    """Write a message found."""
    messages[at, 0], messages[at, 1], messages[at, 2] = r, head[row, 0], head[row, 1]
    scores[at] = score


@njit_inner
def term_bounds(queries, r, own, rest):
    """Fill own[j] and rest[j]: (1 - alpha) times the weight of term j of the row, and the norm of later weights."""
    first, last = queries.term_offsets[r], queries.term_offsets[r + 1]
    text_part = 1.0 - queries.alpha[r]
    square = 0.0
    # from the last term back, which accumulates the norm of later terms
    for i in range(last - 1, first - 1, -1):
        own[i - first] = text_part * queries.weights[i]
        rest[i - first] = text_part * math.sqrt(square)
        square += np.float64(queries.weights[i]) * np.float64(queries.weights[i])


@njit(cache=True, nogil=True)
def most_terms(term_offsets):
    """Largest number of terms in a row."""
    most = 0
    for r in range(term_offsets.shape[0] - 1):
        most = max(most, term_offsets[r + 1] - term_offsets[r])
    return most


@njit_inner_no_refcount
def find_term(terms, term):
    """Position of a term among ascending ones, -1 if it is not there. O(log n)."""
    low, high = 0, terms.shape[0]
    while low < high:
        middle = (low + high) >> 1
        if terms[middle] < term:
            low = middle + 1
        else:
            high = middle
    return low if low < terms.shape[0] and terms[low] == term else -1


@njit_inner
def replace_least(best, first, last, value):
    """Put `value` in place of the least entry of the min-heap best[first : last]. O(log size)."""
    at, size = 0, last - first
    # a hole sinks, and the value is written once
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and best[first + child + 1] < best[first + child]:
            child += 1
        if best[first + child] >= value:
            break
        best[first + at] = best[first + child]
        at = child
    best[first + at] = value


@njit_inner
def settle_row(queries, r, span, messages, scores, before, found):
    """After the search of row r, drop its hits (from `before` on) below its final bar and, of many at the bar, those
    that `drop_older_ties` drops; returns the number of hits left.

    Without it, hits with equal scores could be as many as the window has messages. Later messages are all wanted.
    O(hits of the row), and O(n * log n) for n hits at the bar.
    """
    heap = queries.bars[r]
    bar, rank = queries.best[heap], queries.bars[r + 1] - heap
    # below twice the rank it is not worth the pass: `_assemble` drops hits below the bar anyway
    if not span.push or found - before <= 2 * rank + _STEP:
        return found
    # views: hits that are kept move to the front, never past those still to be read
    mine, score = messages[before:found], scores[before:found]
    keep = score >= bar
    drop_older_ties(score == bar, mine[:, 1], rank, keep)
    found = before
    for i in range(keep.shape[0]):
        if keep[i]:
            for column in range(3):
                messages[found, column] = mine[i, column]
            scores[found] = score[i]
            found += 1
    return found


@njit_inner
def drop_older_ties(is_tie, seq, rank, keep):
    """Clear `keep` (bool[n]) for messages of equal score but the `rank` newest of them.

    Those left out rank below all that are kept: while a result has k members, they are not among its k best, whichever
    of those kept end or expire.

    Parameters
    ----------
    is_tie : bool[n]        which messages have that score; the others are ignored
    seq : int64[n]
    rank : int              at least 1

    Notes
    -----
    O(n), and O(ties * log ties) if there are more than `rank`.
    """
    ties = np.flatnonzero(is_tie)
    if ties.shape[0] <= rank:
        return
    for i in ties[ascending(-seq[ties])][rank:]:
        keep[i] = False


@njit_inner
def more_hits(messages, scores):
    """The columns of `WindowHits` with more than twice the capacity."""
    needed = scores.shape[0] + _STEP
    return longer(messages, needed), longer(scores, needed)


@njit_inner
def extend_queue(bounds, nodes, wanted):
    """The arrays of a priority queue, extended to at least `wanted` entries: bounds, and nodes with their terms."""
    return longer(bounds, wanted), longer(nodes, wanted)


@njit(cache=True, nogil=True)
def push(bounds, nodes, count, bound, node, term):
    """Insert a node into a priority queue of `count` entries that is not full. O(log count)."""
    at = count
    # a hole rises, and the entry is written once
    while at > 0:
        parent = (at - 1) >> 1
        if bounds[parent] >= bound:
            break
        bounds[at] = bounds[parent]
        nodes[at, 0], nodes[at, 1] = nodes[parent, 0], nodes[parent, 1]
        at = parent
    bounds[at] = bound
    nodes[at, 0], nodes[at, 1] = node, term


@njit(cache=True, nogil=True)
def pop(bounds, nodes, count):
    """Remove the first of `count` entries. O(log count)."""
    last = count - 1
    # the last entry sinks from the top
    bound, node, term = bounds[last], nodes[last, 0], nodes[last, 1]
    at = 0
    while True:
        child = 2 * at + 1
        if child >= last:
            break
        if child + 1 < last and bounds[child + 1] > bounds[child]:
            child += 1
        if bounds[child] <= bound:
            break
        bounds[at] = bounds[child]
        nodes[at, 0], nodes[at, 1] = nodes[child, 0], nodes[child, 1]
        at = child
    bounds[at] = bound
    nodes[at, 0], nodes[at, 1] = node, term
