"""Replicas of top-k subscriptions: copies that a query task matches for subscriptions homed on other tasks.

Where a router places subscriptions by their keywords, one with several goes to several tasks. One of them, its home,
keeps buffer, threshold and version (`matching.topk.operator`, over a `HomeEngine` that matches nothing); the others,
and mostly the home too, have a replica: terms, place, alpha, and a threshold that may be lower than the home's, never
higher. A replica indexes only the terms that its task owns, so exactly the replica that owns the first common term of
a pair finds it (spec 3.4). Hits go to the homes.

Thresholds rise at any time; they fall, and terms are indexed again, only by `relax`, which the distribution tasks send
ahead of the next batch (spec 3.5).
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from matching.errors import EngineError
from matching.model import Float64, Int32, Int64, SubscriptionTable, concatenate, take_rows
from matching.operator import OperatorContext, OperatorInput, Thresholds, Work
from matching.storage.prefixes import prefix_lengths, task_of_term
from matching.storage.slots import grown
from matching.topk.engine import TopkEngine


class HomeEngine(TopkEngine):
    """The subscriptions of a home: columns and thresholds, no postings, no matching."""

    name = "home"

    def _post(self, slots: Int32) -> None:
        pass

    _unpost = _apply_thresholds = _post

    def _scan(self, batch, first_row, most_hits, slot, row, score):
        raise EngineError("topk: a home matches nothing; replicas do, and `close` takes their hits")


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
    context : OperatorContext
        `task_of_term` assigns terms to its tasks; with `prefix_only`, terms after the prefix of a subscription are
        dropped when its threshold rises.
    """

    def __init__(self, index: TopkEngine, context: OperatorContext):
        self.engine = index
        self.tasks, self.task = context.tasks, context.task
        self.prefix_only = context.prefix_only
        self.routers = context.routers
        self._home = np.zeros(0, np.int64)
        self._version = np.zeros(0, np.int64)  # of the threshold
        self._relaxed = np.zeros(0, np.int64)  # of the last relax that was taken
        self._length = np.zeros(0, np.int32)  # terms of the prefix that is indexed
        self._gone: list[tuple[int, Int64]] = []  # removals that distribution tasks may not have seen

    def __len__(self) -> int:
        return len(self.engine)

    def add(self, table: SubscriptionTable, home: Int64) -> None:
        """New subscriptions, without threshold; rows with no term of this task are left out. O(n + terms)."""
        self._insert(table, np.diff(table.term_offsets).astype(np.int32), home)

    def remove(self, numbers: Int64) -> None:
        """Remove those of these subscriptions that are here. O(n + terms)."""
        slots = self.engine.subscriptions.find(numbers)
        self.engine.remove(slots[slots >= 0])

    def process(self, batch_input: OperatorInput) -> tuple[list[ReplicaHits], Work]:
        """Apply the changes of a batch and match it; returns the hits for each home, in ascending seq."""
        rows = np.flatnonzero(batch_input.assigned)
        self.add(batch_input.added.take(rows), batch_input.home[rows])
        self.remove(batch_input.removed.number)
        self._remember(batch_input.boundary.number, batch_input.removed.number)
        parts: list[tuple[Int64, ReplicaHits]] = []
        row, scanned, verified = 0, 0, 0
        while row < len(batch_input.messages):
            hits = self.engine.match(batch_input.messages, row)
            number = self.engine.numbers(hits.slot)
            seq, life = batch_input.messages.seq[hits.row], batch_input.messages.life[hits.row]
            parts.append((self._home[hits.slot], ReplicaHits(number, seq, life, hits.scores[0])))
            row, scanned, verified = hits.next_row, scanned + hits.scanned, verified + hits.verified
        per_home = [
            concatenate([_NOTHING, *(take_rows(found, home == task) for home, found in parts)])
            for task in range(self.tasks)
        ]
        return per_home, Work(scanned, verified)

    def register(self, home: int, number: Int64, version: Int64, rows: SubscriptionTable, changes_through: int) -> None:
        """Apply a `relax` that a distribution task has sent ahead of its next batch."""
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
        """Apply thresholds of the homes; older versions and unknown subscriptions are ignored. O(n + terms)."""
        number, version, threshold = raised
        slots = self.engine.subscriptions.find(number)
        valid = slots >= 0
        valid[valid] = version[valid] >= self._version[slots[valid]]
        slots = slots[valid]
        self._version[slots] = version[valid]
        self.engine.set_thresholds(slots, threshold[valid])
        self._narrow(slots)

    def relax(self, home: int, number: Int64, version: Int64, table: SubscriptionTable) -> None:
        """Drop thresholds, and index again the terms that raises have dropped. O(n + terms).

        Parameters
        ----------
        number, version : int64[n]
            A version that another distribution task has sent before is ignored.
        table : SubscriptionTable
            These subscriptions, if replicas may have been removed (`prefix_only`); else empty.
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
        # a raise of the same version by the home may have overtaken it: then that is the threshold
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
        """Keep removals until every distribution task has sent a later batch."""
        if gone.size:
            self._gone.append((batch, gone))
        oldest = batch - self.routers + 1
        self._gone = [entry for entry in self._gone if entry[0] > oldest]

    def _insert(self, table: SubscriptionTable, length: Int32, home: Int64) -> None:
        """Add rows, indexing this task's terms among the first `length` of each; rows without such are skipped."""
        posted = self._posted(table, length)
        wanted = np.flatnonzero(np.add.reduceat(np.append(posted, False), table.term_offsets[:-1]) > 0)
        wanted = wanted[np.diff(table.term_offsets)[wanted] > 0]
        chosen = table.take(wanted)
        slots = self.engine.insert(chosen, self._posted(chosen, length[wanted]))
        capacity = self.engine.subscriptions.capacity
        self._version, self._relaxed = grown(self._version, capacity), grown(self._relaxed, capacity)
        self._length, self._home = grown(self._length, capacity), grown(self._home, capacity)
        self._version[slots] = self._relaxed[slots] = 0
        self._length[slots], self._home[slots] = length[wanted], home[wanted]

    def _posted(self, table: SubscriptionTable, length: Int32) -> NDArray[np.bool_]:
        starts = np.repeat(table.term_offsets[:-1], np.diff(table.term_offsets))
        within = np.arange(table.terms.shape[0]) - starts < np.repeat(length, np.diff(table.term_offsets))
        return within & (task_of_term(table.terms, self.tasks) == self.task)

    def _narrow(self, slots: Int32) -> None:
        """Drop terms after the prefix."""
        if not self.prefix_only or not slots.size:
            return
        length = prefix_lengths(self.engine.subscriptions.columns, slots)
        shorter = length < self._length[slots]
        self._repost(slots[shorter], length[shorter])

    def _repost(self, slots: Int32, length: Int32) -> None:
        """Index these subscriptions by their first `length` terms; a replica without any is removed."""
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
