"""Replicas of top-k subscriptions: what a query task matches for subscriptions whose results live at another.

Where a router places subscriptions by their keywords, one that has several is wanted at several tasks. One of them,
its home, keeps buffer, threshold and version (`matching.topk.stream`, over a `HomeIndex` that matches nothing); the
others, and mostly the home too, hold a replica here: terms, place, alpha, and a threshold that may be lower than the
home's, never higher. A replica indexes only those terms that belong to its task, so of all replicas of a subscription
exactly the one that owns the pair's first common term finds it (spec 3.4). What they find goes to the homes.

Thresholds go up at any time; they go down, and terms come back, only by `relax`, which the distribution tasks
send ahead of the next batch (spec 3.5). Read on in `bolts.replicated`.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from matching.errors import EngineError
from matching.model import Float64, Int32, Int64, MessageBatch, SubscriptionTable
from matching.slots import resized
from matching.topk.index import Hits, TopkIndex
from matching.topk.steps import Found

#: Slack of the prefix rule: rounded unit vectors have norms up to 1 + 5e-8.
_SLACK = 1e-6


class HomeIndex(TopkIndex):
    """The store of a home: columns and thresholds, no postings, no matching."""

    name = "home"

    def insert(self, table: SubscriptionTable, posted: NDArray[np.bool_] | None = None) -> Int32:
        return self.store.insert(table, posted)

    def withdraw(self, slots: Int32) -> None:
        pass

    def set_thresholds(self, slots: Int32, thresholds: Float64 | float) -> None:
        self.store.columns.threshold[slots] = thresholds

    def match(self, batch: MessageBatch, first_row: int = 0, most_hits: int = 1 << 21) -> Hits:
        raise EngineError("topk: a home matches nothing; replicas do, and `process` takes what they found")

    def _scan(self, batch, first_row, most_hits, slot, row, score):
        raise EngineError("topk: a home matches nothing")


class Replicas:
    """The replicas of one query task.

    Parameters
    ----------
    index : TopkIndex
        Empty.
    tasks, task : int
        Terms belong to tasks by `task_of_term`.
    prefix_only : bool
        Whether terms behind the prefix of a subscription are given up when its threshold rises.
    """

    def __init__(self, index: TopkIndex, tasks: int, task: int, prefix_only: bool):
        self.index = index
        self.tasks = tasks
        self.task = task
        self.prefix_only = prefix_only
        self._version = np.zeros(0, np.int64)  # of the threshold
        self._relaxed = np.zeros(0, np.int64)  # of the last relax that was taken
        self._length = np.zeros(0, np.int32)  # terms of the prefix that is indexed

    def __len__(self) -> int:
        return len(self.index)

    def holds(self, numbers: Int64) -> NDArray[np.bool_]:
        """Which of these subscriptions have a replica here. O(n)."""
        return self.index.store.find(numbers) >= 0

    def add(self, table: SubscriptionTable) -> None:
        """New subscriptions, without threshold; rows with no term of this task are left out. O(n + terms)."""
        self._insert(table, np.diff(table.term_offsets).astype(np.int32))

    def remove(self, numbers: Int64) -> None:
        """Forget those of these subscriptions that are here. O(n + terms)."""
        slots = self.index.store.find(numbers)
        self.index.remove(slots[slots >= 0])

    def match(self, messages: MessageBatch) -> tuple[Found, int, int]:
        """What the messages hit, in ascending seq; postings scanned, pairs verified."""
        parts, row, scanned, verified = [], 0, 0, 0
        while row < len(messages):
            hits = self.index.match(messages, row)
            number = self.index.store.columns.number[hits.slot]
            parts.append(Found(number, messages.seq[hits.row], messages.life[hits.row], hits.score))
            row, scanned, verified = hits.next_row, scanned + hits.scanned, verified + hits.verified
        return concatenate_found(parts), scanned, verified

    def raise_thresholds(self, number: Int64, version: Int64, threshold: Float64) -> None:
        """Take thresholds of the homes; those of an older version, or of who is not here, are ignored. O(n + terms)."""
        slots = self.index.store.find(number)
        valid = slots >= 0
        valid[valid] = version[valid] >= self._version[slots[valid]]
        slots = slots[valid]
        self._version[slots] = version[valid]
        self.index.set_thresholds(slots, threshold[valid])
        self._narrow(slots)

    def relax(self, number: Int64, version: Int64, table: SubscriptionTable) -> None:
        """Drop thresholds, and take in again what raises have given up. O(n + terms).

        Parameters
        ----------
        number, version : int64[n]
            A version that was taken before, from another distribution task, is ignored.
        table : SubscriptionTable
            These subscriptions, if replicas may have been given up (`prefix_only`); else empty.
        """
        slots = self.index.store.find(number)
        fresh = slots < 0
        if len(table):
            self.add(table.take(np.flatnonzero(fresh)))
            slots = self.index.store.find(number)
            now = slots[fresh & (slots >= 0)]
            self._version[now] = self._relaxed[now] = version[fresh & (slots >= 0)]
        known = ~fresh
        known[known] = version[known] > self._relaxed[slots[known]]
        slots, version = slots[known], version[known]
        self._relaxed[slots] = version
        # a home's raise of this very version may have overtaken it: then that is the threshold
        overtaken = self._version[slots] >= version
        thresholds = np.where(overtaken, self.index.store.columns.threshold[slots], -np.inf)
        self._version[slots] = np.maximum(self._version[slots], version)
        if self.prefix_only:
            number = self.index.store.columns.number[slots]
            self._repost(slots, self.index.store.columns.term_count[slots])
            slots = self.index.store.find(number)
        self.index.set_thresholds(slots, thresholds)
        self._narrow(slots[overtaken])

    def _insert(self, table: SubscriptionTable, length: Int32) -> None:
        """Add rows, indexing this task's terms among the first `length` of each; rows without such are left out."""
        posted = self._posted(table, length)
        wanted = np.flatnonzero(np.add.reduceat(np.append(posted, False), table.term_offsets[:-1]) > 0)
        wanted = wanted[np.diff(table.term_offsets)[wanted] > 0]
        chosen = table.take(wanted)
        slots = self.index.insert(chosen, self._posted(chosen, length[wanted]))
        if self._version.shape[0] < self.index.store.capacity:
            capacity = self.index.store.capacity
            self._version, self._relaxed = resized(self._version, capacity), resized(self._relaxed, capacity)
            self._length = resized(self._length, capacity)
        self._version[slots] = self._relaxed[slots] = 0
        self._length[slots] = length[wanted]

    def _posted(self, table: SubscriptionTable, length: Int32) -> NDArray[np.bool_]:
        starts = np.repeat(table.term_offsets[:-1], np.diff(table.term_offsets))
        within = np.arange(table.terms.shape[0]) - starts < np.repeat(length, np.diff(table.term_offsets))
        return within & (task_of_term(table.terms, self.tasks) == self.task)

    def _narrow(self, slots: Int32) -> None:
        """Give up terms behind the prefix."""
        if not self.prefix_only or not slots.size:
            return
        length = prefix_lengths(self.index.store.columns, slots)
        shorter = length < self._length[slots]
        self._repost(slots[shorter], length[shorter])

    def _repost(self, slots: Int32, length: Int32) -> None:
        """Index these subscriptions by another number of their terms; a replica that has none left goes."""
        if not slots.size:
            return
        columns = self.index.store.columns
        table, threshold = self.index.store.rows(slots), columns.threshold[slots]
        version, relaxed = self._version[slots], self._relaxed[slots]
        self.index.remove(slots)
        self._insert(table, length)
        again = self.index.store.find(table.number)
        here = again >= 0
        self._version[again[here]], self._relaxed[again[here]] = version[here], relaxed[here]
        self.index.set_thresholds(again[here], threshold[here])


def concatenate_found(parts: list[Found]) -> Found:
    """Join hits. O(n)."""
    nothing = Found(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))
    return Found(*(np.concatenate(column) for column in zip(nothing, *parts, strict=True)))


def task_of_term(terms: Int32, tasks: int) -> Int64:
    """Which of the tasks a term belongs to, by a multiplicative hash that is the same everywhere. O(n)."""
    mixed = terms.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return ((mixed >> np.uint64(32)) % np.uint64(tasks)).astype(np.int64)


def prefix_lengths(columns, slots: Int32) -> Int32:
    """How many of its first terms a subscription must be looked up by, int32[n]. O(terms).

    A message whose first common term lies behind the first p terms scores at most
    alpha + (1 - alpha) * |weights from p on|, wherever it is: the smallest p at which that is below the threshold
    (spec 3.3, with L2 norms, multiplied so that alpha = 1 needs no case of its own).
    """
    lengths = np.empty(slots.shape[0], np.int32)
    _prefix_lengths(columns, slots, lengths)
    return lengths


@njit(cache=True, nogil=True)
def _prefix_lengths(c, slots, lengths):
    for i in range(slots.shape[0]):
        slot = slots[i]
        start, length = c.term_start[slot], c.term_count[slot]
        square = 0.0
        while length > 0:
            weight = np.float64(c.weights[start + length - 1])
            square += weight * weight
            bound = c.alpha[slot] + (1.0 - c.alpha[slot]) * np.sqrt(square) + _SLACK
            if not bound < c.threshold[slot]:
                break
            length -= 1
        lengths[i] = length
