"""Expected cost of a subscription, from message statistics.

DkM-SKS estimates the work for a subscription s in a group of subscriptions with the common rectangle R as

    C(s) = sum over its keywords w of P(R, w)                                     (section 4.1, equations 4 and 5)

with P(R, w) the fraction of messages that lie in R and carry w: a union bound, not a probability (spec 5). Fractions
are counted over the first messages of the stream (`SampleCosts`), or, where there are too few, taken from the
vocabulary, uniform over the world (`UniformCosts`).

Costs are multiples of 2**-30, so that sums of them are exact up to eight million, in any order.
"""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from compiling.njit import njit, njit_inner_no_refcount
from matching.model import Float64, Int32, Int64, MessageBatch
from matching.space import Space

_STEPS = float(2**30)
#: Messages counted for a subscription that none of the sample touches: at cost 0, all of these would go to one task.
LEAST_MESSAGES = 0.5


class PlacementCosts(ABC):
    """Fractions of messages by keyword and rectangle (west, south, east, north in the unit square, closed).

    Parameters
    ----------
    space : Space
    messages : int      size of the sample
    least : float       lower bound of a cost, in messages

    Attributes
    ----------
    world : float64[4]      the part of the unit square that messages may lie in
    share : float64[t + 1]  P(w) of each keyword as `numbered` numbers them; the last one stands for all others
    """

    def __init__(self, space: Space, messages: int, share: Float64, least: float = LEAST_MESSAGES):
        east, north = space.project(np.array([space.east]), np.array([space.north]))
        self.world = np.array([0.0, 0.0, east[0], north[0]])
        self.messages = messages
        self.share = np.append(share, 0.0)
        self.least = least / max(messages, 1)

    @abstractmethod
    def numbered(self, terms: Int32) -> Int32:
        """Term ids as positions in `share`; terms that no message is known to carry get the last one. O(n)."""

    @abstractmethod
    def in_box(self, box: Float64) -> Float64:
        """P(R, w) of one rectangle (float64[4]) for all keywords: float64[t + 1]."""

    @abstractmethod
    def of_boxes(self, box: Float64) -> Float64:
        """P(R) of each rectangle (float64[n, 4]), equation 2: float64[n]."""

    @abstractmethod
    def of_words(self, box: Float64, offsets: Int64, words: Int32) -> Float64:
        """Sum of P(R, w) for each rectangle (float64[n, 4]) over its own keywords, equation 5: float64[n]."""

    def radius(self, x: Float64, y: Float64, k: Int32, offsets: Int64, words: Int32) -> Float64:
        """How far the k-th nearest known message with one of the keywords is: float64[n], infinite if there is none."""
        return np.full(x.shape[0], np.inf)

    def rounded(self, cost: Float64) -> Float64:
        """Costs raised to the lower bound and rounded so that sums are exact. O(n)."""
        return np.rint(np.maximum(cost, self.least) * _STEPS) / _STEPS

    def describe(self) -> dict[str, Any]:
        """Figures for the report of a run, JSON-ready."""
        return {"costs_from": "vocabulary", "messages": self.messages}


class UniformCosts(PlacementCosts):
    """Fractions of a vocabulary, uniform over the world.

    Parameters
    ----------
    space : Space
    document_frequency : int[t]    messages that carry each term
    messages : int                 number of all messages
    """

    def __init__(self, space: Space, document_frequency: Int64, messages: int, least: float = LEAST_MESSAGES):
        super().__init__(space, messages, np.asarray(document_frequency, np.float64) / max(messages, 1), least)

    def numbered(self, terms: Int32) -> Int32:
        return np.minimum(terms, self.share.shape[0] - 1).astype(np.int32)

    def in_box(self, box: Float64) -> Float64:
        return self.share * self.of_boxes(box[None])[0]

    def of_boxes(self, box: Float64) -> Float64:
        low, high = box[:, :2], box[:, 2:]
        size = self.world[2:] - self.world[:2]
        # a world without width is a line: fractions by height only
        return np.prod(np.where(size > 0, (high - low) / np.where(size > 0, size, 1.0), 1.0), axis=1)

    def of_words(self, box: Float64, offsets: Int64, words: Int32) -> Float64:
        return sums_of_words(self.share, offsets, words) * self.of_boxes(box)


class SampleCosts(PlacementCosts):
    """Fractions of a sample of messages, indexed twice: by x with their terms, and by term with their places.

    Parameters
    ----------
    space : Space
    sample : MessageBatch    only places and terms are read; those outside the world have no terms
    """

    def __init__(self, space: Space, sample: MessageBatch, least: float = LEAST_MESSAGES):
        order = np.argsort(sample.x, kind="stable")
        sample = sample.take(order)
        self.known, place = np.unique(sample.terms, return_inverse=True)
        self.offsets, self.words = sample.term_offsets, place.astype(np.int32).reshape(-1)
        count = np.bincount(self.words, minlength=self.known.shape[0])
        super().__init__(space, len(sample), count / max(len(sample), 1), least)
        self.x = np.ascontiguousarray(np.clip(sample.x, self.world[0], self.world[2]))
        self.y = np.ascontiguousarray(np.clip(sample.y, self.world[1], self.world[3]))
        # rows of each term ascend, so they go by x as the messages do
        self.starts = np.append(0, np.cumsum(count)).astype(np.int64)
        row = np.repeat(np.arange(len(sample), dtype=np.int32), np.diff(self.offsets))
        self.rows = row[np.argsort(self.words, kind="stable")]

    def numbered(self, terms: Int32) -> Int32:
        place = np.searchsorted(self.known, terms)
        known = np.append(self.known, -2)[place] == terms  # none is -2
        return np.where(known, place, self.known.shape[0]).astype(np.int32)

    def in_box(self, box: Float64) -> Float64:
        count = np.zeros(self.share.shape[0])
        first, last = np.searchsorted(self.x, box[0], "left"), np.searchsorted(self.x, box[2], "right")
        _count_words(self.y, self.offsets, self.words, first, last, box[1], box[3], count)
        return count / max(self.messages, 1)

    def of_boxes(self, box: Float64) -> Float64:
        count = np.zeros(box.shape[0])
        _count_messages(self.x, self.y, np.ascontiguousarray(box), count)
        return count / max(self.messages, 1)

    def of_words(self, box: Float64, offsets: Int64, words: Int32) -> Float64:
        count = np.zeros(box.shape[0])
        _count_pairs(self.x, self.y, self.starts, self.rows, np.ascontiguousarray(box), offsets, words, count)
        return count / max(self.messages, 1)

    def radius(self, x: Float64, y: Float64, k: Int32, offsets: Int64, words: Int32) -> Float64:
        out = np.empty(x.shape[0])
        seen, best = np.full(self.x.shape[0], -1), np.empty(max(1, int(np.max(k, initial=1))))
        _find_radius(self.x, self.y, self.starts, self.rows, x, y, k, offsets, words, seen, best, out)
        return out

    def describe(self) -> dict[str, Any]:
        return {"costs_from": "sample", "messages": self.messages}


def areas(box: Float64) -> Float64:
    """Area of each rectangle, 0 where west > east or south > north. O(n)."""
    return np.maximum(box[:, 2] - box[:, 0], 0.0) * np.maximum(box[:, 3] - box[:, 1], 0.0)


def sums_of_words(share: Float64, offsets: Int64, words: Int32) -> Float64:
    """Sum of `share` over the keywords of each row: float64[n]. O(n + nnz)."""
    out = np.empty(offsets.shape[0] - 1)
    _sum_words(share, offsets, words, out)
    return out


@njit(cache=True, nogil=True)
def _sum_words(share, offsets, words, out):
    for i in range(out.shape[0]):
        total = 0.0
        for at in range(offsets[i], offsets[i + 1]):
            total += share[words[at]]
        out[i] = total


@njit(cache=True, nogil=True)
def _count_words(y, offsets, words, first, last, south, north, count):
    """Count the messages of each keyword among rows first to last, which lie between west and east, by their y."""
    for row in range(first, last):
        if south <= y[row] <= north:
            for at in range(offsets[row], offsets[row + 1]):
                count[words[at]] += 1.0


@njit(cache=True, nogil=True)
def _count_messages(x, y, box, count):
    """Count the messages (by ascending x) in each rectangle. O(log messages + those between west and east) each."""
    for i in range(box.shape[0]):
        south, east, north = box[i, 1], box[i, 2], box[i, 3]
        for row in range(np.searchsorted(x, box[i, 0]), x.shape[0]):
            if x[row] > east:
                break
            if south <= y[row] <= north:
                count[i] += 1.0


@njit(cache=True, nogil=True)
def _count_pairs(x, y, starts, rows, box, offsets, words, count):
    """Count, for each rectangle, pairs of a message in it and one of its keywords that the message carries.

    Parameters
    ----------
    x, y : float64[m]             messages by ascending x
    starts : int64[t + 1]         rows[starts[w]:starts[w + 1]] (int32) carry keyword w, ascending
    box : float64[n, 4]
    offsets, words                keywords of each rectangle; those from t on are carried by no message
    count : float64[n]            zeros; overwritten
    """
    for i in range(box.shape[0]):
        west, south, east, north = box[i, 0], box[i, 1], box[i, 2], box[i, 3]
        for at in range(offsets[i], offsets[i + 1]):
            word = words[at]
            if word + 1 >= starts.shape[0]:
                continue
            # rows ascend with x: halve down to the first one that is not west of the rectangle, then walk east
            low, high = starts[word], starts[word + 1]
            while low < high:
                middle = (low + high) // 2
                if x[rows[middle]] < west:
                    low = middle + 1
                else:
                    high = middle
            for place in range(low, starts[word + 1]):
                row = rows[place]
                if x[row] > east:
                    break
                if south <= y[row] <= north:
                    count[i] += 1.0


@njit(cache=True, nogil=True)
def _find_radius(x, y, starts, rows, at_x, at_y, k, offsets, words, seen, best, out):
    """Distance of the k-th nearest message that carries a keyword, each message once; infinite if fewer than k do.

    Parameters
    ----------
    x, y, starts, rows
        As in `_count_pairs`.
    at_x, at_y : float64[n]; k : int32[n]; offsets, words
        The places, and how many of the messages with any of which keywords.
    seen : int64[m]           -1; overwritten
    best : float64[max k]     scratch
    out : float64[n]          overwritten

    Notes
    -----
    O(postings that are no farther west or east than the result * log k).
    """
    for i in range(at_x.shape[0]):
        found, wanted = 0, k[i]
        for at in range(offsets[i], offsets[i + 1]):
            word = words[at]
            if word + 1 >= starts.shape[0] or wanted < 1:
                continue
            low, high = starts[word], starts[word + 1]
            while low < high:
                middle = (low + high) // 2
                if x[rows[middle]] < at_x[i]:
                    low = middle + 1
                else:
                    high = middle
            # outwards from the place, first east, then west, while a message may be nearer than the k-th so far
            for step in (1, -1):
                place = low if step == 1 else low - 1
                while starts[word] <= place < starts[word + 1]:
                    row = rows[place]
                    across = (x[row] - at_x[i]) ** 2
                    if found == wanted and across >= best[0]:
                        break
                    place += step
                    # a message that carries two of the keywords is one neighbour, not two
                    if seen[row] == i:
                        continue
                    seen[row] = i
                    found = _keep_nearest(best, found, wanted, across + (y[row] - at_y[i]) ** 2)
        out[i] = np.sqrt(best[0]) if found == wanted and wanted > 0 else np.inf


@njit_inner_no_refcount
def _keep_nearest(best, size, wanted, square):
    """Push a squared distance into the heap of the least `wanted`, greatest on top; returns the heap's size."""
    if size < wanted:
        child = size
        while child > 0 and best[(child - 1) // 2] < square:
            best[child] = best[(child - 1) // 2]
            child = (child - 1) // 2
        best[child] = square
        return size + 1
    if square < best[0]:
        top = 0
        while True:
            child = 2 * top + 1
            if child + 1 < size and best[child + 1] > best[child]:
                child += 1
            if child >= size or best[child] <= square:
                break
            best[top] = best[child]
            top = child
        best[top] = square
    return size
