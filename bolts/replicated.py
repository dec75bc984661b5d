"""The query bolt where the router replicates: it matches for many homes, and is home to some.

A batch has two halves here. When it comes from the distribution bolt, this task's replicas match it and what they find
goes to the homes, one payload a batch to every other task, empty ones included: they are the marker of the batch. A
home closes the batch once it has heard of all tasks, and batches in the order of their numbers: hits, expiry, updates
(as `bolts.query` does). Within a batch the order of hits does not matter: buffers count dominators both ways.
Skylines are not for these routers. Read on in `matching.topk.replicas`.
"""

from typing import Any, NamedTuple

import numpy as np

from bolts.ordering import InOrder
from bolts.payloads import Closed, Found, HitsOfBatch, Part, Raise, Register
from bolts.query import QueryBolt, those
from distribution.keyword import KeywordRouter
from matching import registry
from matching.model import TOPK, ChangeList, MessageBatch, Removals, SubscriptionTable, UpdateBatch, concatenate, empty
from matching.topk.replicas import HomeIndex, Replicas, concatenate_found, task_of_term
from matching.topk.steps import Step
from matching.point_rows import take_ragged_at
from matching.topk.stream import TopkStream
from matching.window import Boundary
from topology.core.component import Context, Delivery


class _Open(NamedTuple):
    """A batch that has been matched here and waits for the other tasks."""

    boundary: Boundary
    boolean: UpdateBatch
    added: SubscriptionTable
    removed: Removals


class ReplicatedQueryBolt(QueryBolt):
    """Query bolt for routers with `replicates`; parameters as `QueryBolt`."""

    router: KeywordRouter

    def prepare(self, context: Context) -> None:
        super().prepare(context)
        self.tasks = context.tasks
        engine = type(self.topk.index)
        self.topk = TopkStream(HomeIndex(self.space), self.window, context.task, self.topk.rule)
        index = registry.factory("topk", self.engines.get("topk"))(self.space)
        self.replicas = Replicas(index, self.tasks, context.task, self.router.prefix_only)
        self.engine_name = engine.__name__
        self.open_batches = InOrder({"own": 1, "hits": self.tasks}, name=f"query:{context.task} as home")
        self.closed = -1
        self.distribution_tasks = context.size_of("distribution")
        self.gone: list[tuple[int, np.ndarray]] = []  # removals that some distribution task may not know of yet
        self.hits_sent = self.raises_sent = 0

    def execute(self, delivery: Delivery) -> None:
        payload = delivery.payload
        if delivery.stream == "hits":
            self._hear(payload, delivery.task)
        elif delivery.stream == "register":
            self._register(payload)
        elif delivery.stream == "thresholds":
            self.replicas.raise_thresholds(payload.number, payload.version, payload.threshold)
        else:
            super().execute(delivery)

    def idle(self) -> bool:
        return self.closed == self.boundary.number and self.topk.complete_through == self.boundary.number

    @property
    def complete_through(self) -> int:
        return self.topk.complete_through

    def report(self) -> dict[str, Any]:
        figures = super().report()
        figures["engines"]["topk"] = self.engine_name
        return figures | {
            "replicas_held": len(self.replicas),
            "hits_sent": self.hits_sent,
            "raises_sent": self.raises_sent,
        }

    def _process(self, changes: ChangeList, part: Part) -> None:
        boundary = self.boundary = part.boundary
        mine = changes.added.take(np.flatnonzero(self.router.held_by(changes.added, self.context.task)))
        self.subscriptions += len(mine)
        boolean = self._match_boolean(boundary, part, mine.of_kind(0), changes.removed)
        self.replicas.add(mine.of_kind(TOPK))
        gone = those(changes.removed, TOPK).number
        self.replicas.remove(gone)
        self._remember(boundary.number, gone)
        found, scanned, verified = self.replicas.match(part.messages)
        self.context.count("scanned", scanned)
        self.context.count("verified", verified)
        added = changes.added.of_kind(TOPK)
        added = added.take(np.flatnonzero(self.router.home_of(added.number) == self.context.task))
        self.open_batches.put(boundary.number, "own", _Open(boundary, boolean, added, changes.removed))
        self._tell_homes(boundary.number, found)

    def _tell_homes(self, batch: int, found: Found) -> None:
        home = self.router.home_of(found.number)
        for task in range(self.tasks):
            chosen = np.flatnonzero(home == task)
            hits = HitsOfBatch(batch, found.take(chosen))
            if task == self.context.task:
                self._hear(hits, task)
            else:
                self.hits_sent += chosen.size
                self.context.emit("hits", hits, to=task)

    def _hear(self, hits: HitsOfBatch, sender: int) -> None:
        self.open_batches.put(hits.batch, "hits", hits.found, sender)
        while (ready := self.open_batches.take()) is not None:
            self._close(ready.payloads["own"][0], concatenate_found(list(ready.payloads["hits"])))

    def _close(self, batch: _Open, found: Found) -> None:
        """What a home does with a batch that everybody has matched."""
        removed = self._known(batch.removed, batch.added)
        step = self.topk.process(batch.boundary, empty(MessageBatch), batch.added, removed, found)
        self.closed = batch.boundary.number
        self._follow(step)
        self._count(step)
        updates = concatenate([batch.boolean, step.updates])
        self.context.emit("updates", Closed(batch.boundary, self.topk.complete_through, updates))
        self._install_early()
        if self.finished:
            self._tell_results()

    def _follow(self, step: Step) -> None:
        super()._follow(step)
        number, version, threshold = step.raised
        if not number.size:
            return
        self.replicas.raise_thresholds(number, version, threshold)
        wanted = self._tasks_of(number)
        for task in range(self.tasks):
            mine = np.flatnonzero(wanted[:, task])
            if task != self.context.task and mine.size:
                self.raises_sent += mine.size
                self.context.emit("thresholds", Raise(number[mine], version[mine], threshold[mine]), to=task)

    def _tasks_of(self, number: np.ndarray) -> np.ndarray:
        """Which tasks may have a replica of each of these subscriptions that are at home here: bool[n, tasks]."""
        c = self.topk.index.store.columns
        slots = self.topk.index.store.find(number)
        _, places = take_ragged_at(c.term_start[slots], c.term_count[slots])
        wanted = np.zeros((number.shape[0], self.tasks), np.bool_)
        wanted[
            np.repeat(np.arange(number.shape[0]), c.term_count[slots]), task_of_term(c.terms[places], self.tasks)
        ] = 1
        return wanted

    def _register(self, register: Register) -> None:
        number, version, rows = register.number, register.version, register.rows
        late = [numbers for batch, numbers in self.gone if batch > register.changes_through]
        if late:
            here = np.flatnonzero(~np.isin(number, np.concatenate(late)))
            number, version = number[here], version[here]
            rows = rows.take(here) if len(rows) else rows
        self.replicas.relax(number, version, rows)

    def _remember(self, batch: int, gone: np.ndarray) -> None:
        """Keep removals until every distribution task has sent a batch that came after them."""
        if gone.size:
            self.gone.append((batch, gone))
        oldest = batch - self.distribution_tasks + 1
        self.gone = [entry for entry in self.gone if entry[0] > oldest]
