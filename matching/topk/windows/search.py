"""What the window indexes have in common below the surface: messages as they read them, scores, bars and queues.

A search goes through the rows of a question one by one. Each row has a *bar*, the K-th best score found so far: the
least of a small min-heap. Whatever may hold a message at or above the bar must be looked at; whatever is bounded below
it is left out. A message that shares several terms with a row is taken under the first of them alone.

The tree-like indexes visit their nodes best bound first, out of a priority queue in two arrays. Inner loops stand in
functions of their own and get arrays, never slices or fields: numba counts a reference for each of those, which costs
more than the arithmetic (measured: 180 us a query with, 50 without).
Read on in `matching.topk.windows.segments`.
"""

import math
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from matching.model import Float32, Float64, Int32, Int64, MessageBatch
from matching.njit import njit_no_refcount

#: More than float32 coordinates, weights and norms can be wrong by in a bound. A literal in all kernels' eyes.
SLACK = 1e-5
#: Kernels make room for so many finds at a time, so that the innermost loops need not look.
_STEP = 64


class WindowRows(NamedTuple):
    """Messages as the indexes read them: what a score needs lies together, so that it costs few cache lines.

    head : int64[n, 4]       seq, life, where its terms start and end
    point : float64[n, 2]    x and y in the unit square
    terms : int32[nnz]       ascending within a message
    weights : float32[nnz]
    """

    head: Int64
    point: Float64
    terms: Int32
    weights: Float32

    def __len__(self) -> int:
        return self.point.shape[0]

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for array in tuple(self))


class Asked(NamedTuple):
    """The rows of a question, as the kernels take them.

    order : int64[rows]       in which to go through them
    x, y, alpha : float64[rows]
    term_offsets, terms, weights
    bars : int64[rows + 1]    best[bars[r] : bars[r + 1]] is the min-heap of row r; its first entry is the bar
    best : float64[sum of ranks]     written
    max_distance : float
    read : int64[rows]        written: postings, messages and bounds looked at
    """

    order: Int64
    x: Float64
    y: Float64
    alpha: Float64
    term_offsets: Int64
    terms: Int32
    weights: Float32
    bars: Int64
    best: Float64
    max_distance: float
    read: Int64


class Span(NamedTuple):
    """Messages with after_seq < seq <= through_seq and life > floor. `push`: what is found raises the bar."""

    after_seq: int
    through_seq: int
    floor: int
    push: bool


class WindowHits(NamedTuple):
    """Messages found: `message` int64[m, 3] has row of the question, seq, life; `score` float64[m]."""

    message: Int64
    score: Float64


def rows_of(messages: MessageBatch) -> WindowRows:
    """Lay out a batch. O(n + terms)."""
    offsets = messages.term_offsets
    first, last = int(offsets[0]), int(offsets[-1])
    head = np.stack((messages.seq, messages.life, offsets[:-1] - first, offsets[1:] - first), axis=1)
    point = np.stack((messages.x, messages.y), axis=1)
    return WindowRows(head, point, messages.terms[first:last].copy(), messages.weights[first:last].copy())


def join_window_rows(parts: list[WindowRows]) -> WindowRows:
    """Join row-wise; at least one part. O(n + terms)."""
    if len(parts) == 1:
        return parts[0]
    starts = np.cumsum([0] + [part.terms.shape[0] for part in parts])
    head, point, terms, weights = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    head[:, 2:] += np.repeat(starts[:-1], [len(part) for part in parts])[:, None]
    return WindowRows(head, point, terms, weights)


def take_window_rows(rows: WindowRows, picked: NDArray[np.integer]) -> WindowRows:
    """The messages at `picked`, in that order. O(picked + their terms)."""
    head = rows.head[picked]
    lengths = head[:, 3] - head[:, 2]
    ends = np.cumsum(lengths)
    at = np.arange(int(lengths.sum())) + np.repeat(head[:, 2] - ends + lengths, lengths)
    head[:, 2], head[:, 3] = ends - lengths, ends
    return WindowRows(head, rows.point[picked], rows.terms[at], rows.weights[at])


def place_on_curve(x: Float64, y: Float64) -> Int64:
    """Place of each point along a Z-order curve of 2^16 by 2^16 cells of the unit square. O(n)."""
    return _spread(x) | (_spread(y) << 1)


def _spread(values: Float64) -> Int64:
    """Interleave the 16 bits of each coordinate with zeros."""
    bits = np.clip(values * 65536.0, 0, 65535).astype(np.int64)
    for shift, mask in ((8, 0x00FF00FF), (4, 0x0F0F0F0F), (2, 0x33333333), (1, 0x55555555)):
        bits = (bits | (bits << shift)) & mask
    return bits


def scan(rows: WindowRows, asked: Asked, span: Span) -> WindowHits:
    """Find what reaches the bars by looking at every message. O(rows * messages)."""
    return WindowHits(*scan_rows(rows, asked, span))


@njit(cache=True, nogil=True)
def scan_rows(rows, asked, span):
    """As `scan`; returns the arrays of `WindowHits`."""
    messages, scores = np.empty((64, 3), np.int64), np.empty(64)
    found = 0
    for r in range(asked.x.shape[0]):
        before = found
        asked.read[r] += rows.point.shape[0]
        # few messages are finds: room for the next ones, not for all
        for begin in range(0, rows.point.shape[0], _STEP):
            if found + _STEP > scores.shape[0]:
                messages, scores = grown(messages, scores)
            end = min(begin + _STEP, rows.point.shape[0])
            found = _scan_some(rows, begin, end, asked, r, span, messages, scores, found)
        found = settle_row(asked, r, span, messages, scores, before, found)
    return messages[:found].copy(), scores[:found].copy()


@njit_no_refcount
def _scan_some(rows, begin, end, asked, r, span, messages, scores, found):
    """Look at messages begin to end - 1 for row r."""
    head, point, message_terms, message_weights = rows
    all_terms, all_weights, best = asked.terms, asked.weights, asked.best
    first, last = asked.term_offsets[r], asked.term_offsets[r + 1]
    x, y, alpha, max_distance = asked.x[r], asked.y[r], asked.alpha[r], asked.max_distance
    heap, heap_end = asked.bars[r], asked.bars[r + 1]
    for row in range(begin, end):
        # cheap first: seq and life lie in one row, the terms elsewhere
        if not within(head, row, span):
            continue
        # -1: no index led here, so that any first common term will do
        text = shared_text(head, message_terms, message_weights, row, all_terms, all_weights, first, last, -1)
        if text < 0.0:
            continue
        score = score_of(point, row, x, y, alpha, text, max_distance)
        # ties at the bar are found as well: which of them count depends on their ages (spec 2.3)
        if score >= best[heap]:
            note(messages, scores, found, r, head, row, score)
            found += 1
            # what came after the boundary must not raise the bar: the threshold is that of the boundary
            if span.push:
                replace_least(best, heap, heap_end, score)
    return found


@njit_no_refcount
def within(head, row, span):
    """Whether a message lies in the span."""
    return head[row, 0] > span.after_seq and head[row, 0] <= span.through_seq and head[row, 1] > span.floor


@njit(cache=True, nogil=True)
def shared_text(head, message_terms, message_weights, row, terms, weights, first, last, j):
    """Sum of products of the weights of common terms, if the first of these is at `first + j`; -1 if not.

    With j = -1 any first common term will do. `first` and `last` bound the terms asked for. O(terms of both).
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
            # an index may lead here at each common term: only the first counts, or a message would raise the bar twice
            if not shared and j >= 0 and i != first + j:
                return -1.0
            shared = True
            # each weight widened before the product, which would else be rounded to float32
            text += np.float64(weights[i]) * np.float64(message_weights[a])
            i += 1
            a += 1
    return text if shared else -1.0


@njit(cache=True, nogil=True)
def score_of(point, row, x, y, alpha, text, max_distance):
    """Score of a message, to the last bit that of `matching.naive`."""
    dx = x - point[row, 0]
    dy = y - point[row, 1]
    # divided, not multiplied by 1 / MaxDist, which has other last bits
    spatial = 1.0 - math.sqrt(dx * dx + dy * dy) / max_distance
    return alpha * spatial + (1.0 - alpha) * text


@njit(cache=True, nogil=True)
def note(messages, scores, at, r, head, row, score):
    """Write a message found."""
    messages[at, 0], messages[at, 1], messages[at, 2] = r, head[row, 0], head[row, 1]
    scores[at] = score


@njit(cache=True, nogil=True)
def term_bounds(asked, r, own, rest):
    """Fill own[j] and rest[j]: (1 - alpha) times weight of the row's j-th term, and times norm of those after."""
    first, last = asked.term_offsets[r], asked.term_offsets[r + 1]
    share = 1.0 - asked.alpha[r]
    square = 0.0
    # from the last term back, so that the norm of what follows is at hand
    for i in range(last - 1, first - 1, -1):
        own[i - first] = share * asked.weights[i]
        rest[i - first] = share * math.sqrt(square)
        square += np.float64(asked.weights[i]) * np.float64(asked.weights[i])


@njit(cache=True, nogil=True)
def most_terms(term_offsets):
    """Terms of the row that has most."""
    most = 0
    for r in range(term_offsets.shape[0] - 1):
        most = max(most, term_offsets[r + 1] - term_offsets[r])
    return most


@njit_no_refcount
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


@njit(cache=True, nogil=True)
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


@njit(cache=True, nogil=True)
def settle_row(asked, r, span, messages, scores, before, found):
    """When all of row r has been searched, keep of its finds from `before` on what still reaches its bar, and of many
    at the bar itself what `drop_outlived` leaves; returns how many finds there are now.

    Without it, equal scores would be as many as the window. What came after the boundary is all wanted. O(finds of the
    row), and O(n * log n) for n finds at the bar.
    """
    heap = asked.bars[r]
    bar, rank = asked.best[heap], asked.bars[r + 1] - heap
    # below twice the rank it is not worth the pass: `_assemble` drops what the bar rose past anyway
    if not span.push or found - before <= 2 * rank + _STEP:
        return found
    # views: what is kept moves to the front of the very rows it is read from, never past them
    mine, score = messages[before:found], scores[before:found]
    keep = score >= bar
    drop_outlived(score == bar, mine[:, 1], mine[:, 2], rank, keep)
    found = before
    for i in range(keep.shape[0]):
        if keep[i]:
            for column in range(3):
                messages[found, column] = mine[i, column]
            scores[found] = score[i]
            found += 1
    return found


@njit(cache=True, nogil=True)
def drop_outlived(is_tie, seq, life, rank, keep):
    """Of messages with the same score, clear `keep` (bool[n]) for those that are never among the `rank` best of them.

    They are older than `rank` others that live as long or longer, and the newer of two with one score is the better.

    Parameters
    ----------
    is_tie : bool[n]        which messages have that score; the others are left alone
    seq, life : int64[n]
    rank : int              at least 1

    Notes
    -----
    O(n), and O(ties * log ties) if there are more than `rank`.
    """
    ties = np.flatnonzero(is_tie)
    # too few for `rank` of them to be newer than another
    if ties.shape[0] <= rank:
        return
    longest = np.full(rank, np.iinfo(np.int64).min)  # a min-heap of the longest lives of those newer
    # the newest first: whoever is in the heap is newer than what comes
    for i in ties[np.argsort(-seq[ties])]:
        # of two that end together the newer is ahead to the end
        if life[i] > longest[0]:
            replace_least(longest, 0, rank, life[i])
        else:
            keep[i] = False


@njit(cache=True, nogil=True)
def grown(messages, scores):
    """The columns of `WindowHits` with twice the room, and a step more."""
    room = 2 * scores.shape[0] + _STEP
    more_messages, more_scores = np.empty((room, 3), np.int64), np.empty(room)
    more_messages[: messages.shape[0]] = messages
    more_scores[: scores.shape[0]] = scores
    return more_messages, more_scores


@njit(cache=True, nogil=True)
def queue_room(bounds, nodes, wanted):
    """The arrays of a priority queue with room for `wanted` entries: bounds, and nodes with the term of each."""
    if wanted <= bounds.shape[0]:
        return bounds, nodes
    more_bounds, more_nodes = np.empty(2 * wanted), np.empty((2 * wanted, 2), np.int64)
    more_bounds[: bounds.shape[0]] = bounds
    more_nodes[: nodes.shape[0]] = nodes
    return more_bounds, more_nodes


@njit(cache=True, nogil=True)
def push(bounds, nodes, count, bound, node, term):
    """Enter a node into a priority queue of `count` entries that has room for it. O(log count)."""
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
    """Close the gap that taking the first of `count` entries leaves. O(log count)."""
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
