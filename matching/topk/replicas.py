"""Replicas of top-k subscriptions: what a query task matches for subscriptions whose results live at another.

Where a router places subscriptions by their keywords, one that has several is wanted at several tasks. One of them,
its home, keeps buffer, threshold and version (`matching.topk.operator`, over a `HomeEngine` that matches nothing); the
others, and mostly the home too, hold a replica here: terms, place, alpha, and a threshold that may be lower than the
home's, never higher. A replica indexes only those terms that belong to its task, so of all replicas of a subscription
exactly the one that owns the pair's first common term finds it (spec 3.4). What they find goes to the homes.

Thresholds go up at any time; they go down, and terms come back, only by `relax`, which the distribution tasks
send ahead of the next batch (spec 3.5). Read on in `bolts.query`.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from matching.errors import EngineError
from matching.model import Float64, Int32, Int64, MessageBatch, SubscriptionTable, concatenate, take_rows
from matching.operator import OperatorContext, OperatorInput, Thresholds, Work
from matching.storage.prefixes import prefix_lengths, task_of_term
from matching.storage.slots import resized
from matching.topk.engine import Hits, TopkEngine


class HomeEngine(TopkEngine):
    """The subscriptions of a home: columns and thresholds, no postings, no matching."""

    name = "home"

    def insert(self, table: SubscriptionTable, posted: NDArray[np.bool_] | None = None) -> Int32:
        return self.subscriptions.insert(table, posted)

    def withdraw(self, slots: Int32) -> None:
        pass

    def set_thresholds(self, slots: Int32, thresholds: Float64 | float) -> None:
        self.subscriptions.columns.threshold[slots] = thresholds

    def match(self, batch: MessageBatch, first_row: int = 0, most_hits: int = 1 << 21) -> Hits:
        raise EngineError("topk: a home matches nothing; replicas do, and `process` takes what they found")

    def _scan(self, batch, first_row, most_hits, slot, row, score):
        raise EngineError("topk: a home matches nothing")


class ReplicaHits(NamedTuple):
    """Hits by subscription number: number int64[h], seq int64[h], life int64[h], score float64[h]."""

    number: Int64
    seq: Int64
    life: Int64
    score: Float64


class Replicas:
    """The replicas of one query task.

    Parameters
    ----------
    index : TopkEngine
        Empty.
    site : Site
        Terms belong to its tasks by `task_of_term`; `prefix_only` says whether terms behind the prefix of a
        subscription are given up when its threshold rises.
    """

    def __init__(self, index: TopkEngine, site: OperatorContext):
        self.engine = index
        self.tasks, self.task = site.tasks, site.task
        self.prefix_only = site.prefix_only
        self.routers = site.routers
        self._home = np.zeros(0, np.int64)
        self._version = np.zeros(0, np.int64)  # of the threshold
        self._relaxed = np.zeros(0, np.int64)  # of the last relax that was taken
        self._length = np.zeros(0, np.int32)  # terms of the prefix that is indexed
        self._gone: list[tuple[int, Int64]] = []  # removals that some distribution task may not know of yet

    def __len__(self) -> int:
        return len(self.engine)

    def holds(self, numbers: Int64) -> NDArray[np.bool_]:
        """Which of these subscriptions have a replica here. O(n)."""
        return self.engine.subscriptions.find(numbers) >= 0

    def add(self, table: SubscriptionTable, home: Int64) -> None:
        """New subscriptions, without threshold; rows with no term of this task are left out. O(n + terms)."""
        self._insert(table, np.diff(table.term_offsets).astype(np.int32), home)

    def remove(self, numbers: Int64) -> None:
        """Forget those of these subscriptions that are here. O(n + terms)."""
        slots = self.engine.subscriptions.find(numbers)
        self.engine.remove(slots[slots >= 0])

    def process(self, turn: OperatorInput) -> tuple[list[ReplicaHits], Work]:
        """Take the changes of a batch and match it: what its messages hit for each home, in ascending seq."""
        rows = np.flatnonzero(turn.held)
        self.add(turn.added.take(rows), turn.home[rows])
        self.remove(turn.removed.number)
        self._remember(turn.boundary.number, turn.removed.number)
        parts: list[tuple[Int64, ReplicaHits]] = []
        row, scanned, verified = 0, 0, 0
        while row < len(turn.messages):
            hits = self.engine.match(turn.messages, row)
            number = self.engine.subscriptions.columns.number[hits.slot]
            seq, life = turn.messages.seq[hits.row], turn.messages.life[hits.row]
            parts.append((self._home[hits.slot], ReplicaHits(number, seq, life, hits.score)))
            row, scanned, verified = hits.next_row, scanned + hits.scanned, verified + hits.verified
        per_home = [
            concatenate([_NOTHING, *(take_rows(found, home == task) for home, found in parts)])
            for task in range(self.tasks)
        ]
        return per_home, Work(scanned, verified)

    def register(self, home: int, number: Int64, version: Int64, rows: SubscriptionTable, changes_through: int) -> None:
        """A distribution task has relaxed these, ahead of its next batch; see `relax`."""
        late = [numbers for batch, numbers in self._gone if batch > changes_through]
        if late:
            here = np.flatnonzero(~np.isin(number, np.concatenate(late)))
            number, version = number[here], version[here]
            rows = rows.take(here) if len(rows) else rows
        self.relax(home, number, version, rows)

    def tasks_of(self, offsets: Int64, terms: Int32) -> NDArray[np.bool_]:
        """Which tasks own a term of each row of terms: bool[n, tasks]. O(terms)."""
        wanted = np.zeros((offsets.shape[0] - 1, self.tasks), np.bool_)
        wanted[np.repeat(np.arange(offsets.shape[0] - 1), np.diff(offsets)), task_of_term(terms, self.tasks)] = True
        return wanted

    def raise_thresholds(self, raised: Thresholds) -> None:
        """Take thresholds of the homes; those of an older version, or of who is not here, are ignored. O(n + terms)."""
        number, version, threshold = raised
        slots = self.engine.subscriptions.find(number)
        valid = slots >= 0
        valid[valid] = version[valid] >= self._version[slots[valid]]
        slots = slots[valid]
        self._version[slots] = version[valid]
        self.engine.set_thresholds(slots, threshold[valid])
        self._narrow(slots)

    def relax(self, home: int, number: Int64, version: Int64, table: SubscriptionTable) -> None:
        """Drop thresholds, and take in again what raises have given up. O(n + terms).

        Parameters
        ----------
        number, version : int64[n]
            A version that was taken before, from another distribution task, is ignored.
        table : SubscriptionTable
            These subscriptions, if replicas may have been given up (`prefix_only`); else empty.
        """
        slots = self.engine.subscriptions.find(number)
        fresh = slots < 0
        if len(table):
            self.add(table.take(np.flatnonzero(fresh)), np.full(np.count_nonzero(fresh), home))
            slots = self.engine.subscriptions.find(number)
            now = slots[fresh & (slots >= 0)]
            self._version[now] = self._relaxed[now] = version[fresh & (slots >= 0)]
        known = ~fresh
        known[known] = version[known] > self._relaxed[slots[known]]
        slots, version = slots[known], version[known]
        self._relaxed[slots] = version
        # a home's raise of this very version may have overtaken it: then that is the threshold
        overtaken = self._version[slots] >= version
        thresholds = np.where(overtaken, self.engine.subscriptions.columns.threshold[slots], -np.inf)
        self._version[slots] = np.maximum(self._version[slots], version)
        if self.prefix_only:
            number = self.engine.subscriptions.columns.number[slots]
            self._repost(slots, self.engine.subscriptions.columns.term_count[slots])
            slots = self.engine.subscriptions.find(number)
        self.engine.set_thresholds(slots, thresholds)
        self._narrow(slots[overtaken])

    def _remember(self, batch: int, gone: Int64) -> None:
        """Keep removals until every distribution task has sent a batch that came after them."""
        if gone.size:
            self._gone.append((batch, gone))
        oldest = batch - self.routers + 1
        self._gone = [entry for entry in self._gone if entry[0] > oldest]

    def _insert(self, table: SubscriptionTable, length: Int32, home: Int64) -> None:
        """Add rows, indexing this task's terms among the first `length` of each; rows without such are left out."""
        posted = self._posted(table, length)
        wanted = np.flatnonzero(np.add.reduceat(np.append(posted, False), table.term_offsets[:-1]) > 0)
        wanted = wanted[np.diff(table.term_offsets)[wanted] > 0]
        chosen = table.take(wanted)
        slots = self.engine.insert(chosen, self._posted(chosen, length[wanted]))
        if self._version.shape[0] < self.engine.subscriptions.capacity:
            capacity = self.engine.subscriptions.capacity
            self._version, self._relaxed = resized(self._version, capacity), resized(self._relaxed, capacity)
            self._length, self._home = resized(self._length, capacity), resized(self._home, capacity)
        self._version[slots] = self._relaxed[slots] = 0
        self._length[slots], self._home[slots] = length[wanted], home[wanted]

    def _posted(self, table: SubscriptionTable, length: Int32) -> NDArray[np.bool_]:
        starts = np.repeat(table.term_offsets[:-1], np.diff(table.term_offsets))
        within = np.arange(table.terms.shape[0]) - starts < np.repeat(length, np.diff(table.term_offsets))
        return within & (task_of_term(table.terms, self.tasks) == self.task)

    def _narrow(self, slots: Int32) -> None:
        """Give up terms behind the prefix."""
        if not self.prefix_only or not slots.size:
            return
        length = prefix_lengths(self.engine.subscriptions.columns, slots)
        shorter = length < self._length[slots]
        self._repost(slots[shorter], length[shorter])

    def _repost(self, slots: Int32, length: Int32) -> None:
        """Index these subscriptions by another number of their terms; a replica that has none left goes."""
        if not slots.size:
            return
        columns = self.engine.subscriptions.columns
        table, threshold, home = self.engine.subscriptions.rows(slots), columns.threshold[slots], self._home[slots]
        version, relaxed = self._version[slots], self._relaxed[slots]
        self.engine.remove(slots)
        self._insert(table, length, home)
        again = self.engine.subscriptions.find(table.number)
        here = again >= 0
        self._version[again[here]], self._relaxed[again[here]] = version[here], relaxed[here]
        self.engine.set_thresholds(again[here], threshold[here])


_NOTHING = ReplicaHits(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))
