"""The distribution bolt: routes batches.

Batch b goes whole to task b mod D; the subscription changes of every batch go to every task. A query task gets the
messages that the routing table selects for it (maybe an empty part), a tuple task the messages that it stores; delivery
has the message ids from the spout. Between batches, query tasks relax and raise thresholds of the routing table (spec
3.5) and send their signatures (`distribution.signatures`) or their influence (`matching.influence`).
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from bolts.ordering import InOrder
from bolts.payloads import Addressed, Part, Register, Relaxed, StreamBatch, unchanged
from bolts.saved import router_of, subscriptions_of
from distribution.router import Router
from distribution.splitting import split
from distribution.targets import bits_of
from distribution.window_parts import WindowParts, window_load
from matching.influence import NO_INFLUENCE, Radii
from matching.kind_table import Kinds
from matching.kinds import KINDS
from matching.living import first_rows
from matching.model import NO_MESSAGES, ChangeList, Int64, MessageBatch, concatenate
from matching.operator import NO_THRESHOLDS, Ranged, Thresholds
from matching.storage.state import State
from topology.core.api.component import Bolt, Context, Delivery, Saved

#: Of all pairs of message and query task, the share from which the whole batch goes to all tasks: to cut it up and to
#: pack each part costs more than the messages that a task does not take.
_NEARLY_ALL = 0.75


class DistributionBolt(Bolt):
    """Routes messages.

    Parameters
    ----------
    objects : bool
        The stream is one of objects: a message goes, with the version that it replaces, wherever either would go.
    load : int64[cells], optional
        By which tuple tasks divide the world (`distribution.window_parts.window_load`).
    """

    def __init__(self, router: Router, kinds: Kinds = KINDS, objects: bool = False, load: Int64 | None = None):
        self.objects = objects
        self.load = window_load() if load is None else load
        self.router = router
        self.kinds = kinds

    def prepare(self, context: Context) -> None:
        self.context = context
        self.query_tasks = context.size_of("query")
        self.tuple_tasks = context.size_of("tuples")
        self.window_parts = WindowParts(self.tuple_tasks, self.load)
        self.table = self.router.table()
        self.inputs = InOrder({"batches": 1, "changes": 1}, name=f"distribution:{context.task}")
        self.last_batch = -1
        self.last_changes = -1
        self.messages = self.sent_in_all = 0
        self.sent = np.zeros(self.query_tasks, np.int64)
        self.sent_bytes = 0

    def execute(self, delivery: Delivery) -> None:
        payload = delivery.payload
        if delivery.stream == "relax":
            self._relax(payload)
        elif delivery.stream == "raise":
            self.table.raise_thresholds(*payload.body)
        elif delivery.stream == "signature":
            self.table.apply(payload)
        elif delivery.stream == "influence":
            self.table.apply_influence(payload.kind, payload.home, payload.request, payload.body)
        elif delivery.stream == "changes":
            self.inputs.put(payload.batch, "changes", payload)
            if payload.batch % self.context.tasks != self.context.task:
                self.inputs.put(payload.batch, "batches", None)  # another task routes this one
            self._advance()
        else:
            number = payload.boundary.number
            if not payload.has_changes and self.inputs.take_whole(number):
                self._route(number, unchanged(number), payload)
            else:
                self.inputs.put(number, "batches", payload)
                if not payload.has_changes:
                    self.inputs.put(number, "changes", unchanged(number))
            self._advance()

    def report(self) -> dict[str, Any]:
        return {
            **self.router.describe(),
            **self.table.describe(),
            "messages": self.messages,
            "sent": self.sent_in_all,
            "sent_to_each_query_task": self.sent.tolist(),
            "sent_bytes": self.sent_bytes,
        }

    def _advance(self) -> None:
        while (ready := self.inputs.pop()) is not None:
            self._route(ready.number, ready.payloads["changes"][0], ready.payloads["batches"][0])

    def _route(self, number: int, changes: ChangeList, batch: StreamBatch | None) -> None:
        self.table.change(changes.added, changes.removed)
        self.last_changes = number
        if batch is not None:
            self._send(batch)
            self.last_batch = number

    def _send(self, batch: StreamBatch) -> None:
        boundary, messages = batch.boundary, batch.messages
        ended = batch.ended if self.table.needs_ended or self.objects else NO_MESSAGES
        if self.table.sends_all:
            part = Part(boundary, messages, ended, has_changes=batch.has_changes)
            self._send_whole(part, [len(messages)] * self.query_tasks)
        else:
            self._send_parts(batch, ended)
        self.messages += len(messages)
        # Tuple tasks get the ends of their messages even before the first window query that needs them.
        own, ending = (self._by_owner(each) for each in (messages, batch.ended))
        for task in range(self.tuple_tasks):
            self.context.emit("window", Part(boundary, own[task], ending[task]), to=task)

    def _by_owner(self, messages: MessageBatch) -> list[MessageBatch]:
        """The messages that each tuple task stores."""
        if self.tuple_tasks == 1 or not len(messages):
            return [messages] * self.tuple_tasks
        owner = self.window_parts.owner_of(messages)
        return split(messages, [np.flatnonzero(owner == task) for task in range(self.tuple_tasks)])[0]

    def _send_parts(self, batch: StreamBatch, ended: MessageBatch) -> None:
        messages = batch.messages
        sent = self.table.route(messages)
        lengths, pairs = [rows.shape[0] for rows in sent], self.query_tasks * len(messages)
        if sum(lengths) >= _NEARLY_ALL * pairs > 0 and not (len(ended) or self.table.loses):
            targets = bits_of(sent, len(messages)) if sum(lengths) < pairs else None
            self._send_whole(Part(batch.boundary, messages, has_changes=batch.has_changes, targets=targets), lengths)
            return
        ends_sent = []
        if len(ended):
            ends_sent = self.table.route(ended) if self.objects else self.table.route_ended(ended)
        if self.objects and len(ended):
            sent, ends_sent = _in_pairs(messages, ended, sent, ends_sent)
        parts, sizes = split(messages, sent)
        ends, end_sizes = [NO_MESSAGES] * self.query_tasks, [0] * self.query_tasks
        if len(ended):
            ends, end_sizes = split(ended, ends_sent)
        lost = [NO_MESSAGES] * self.query_tasks
        if self.table.loses:
            lost = split(messages, self.table.withheld(messages, sent))[0]
        for task, columns in enumerate(zip(parts, ends, lost, strict=True)):
            own, ending, withheld = (each if len(each) else NO_MESSAGES for each in columns)
            self.context.emit("parts", Part(batch.boundary, own, ending, withheld, batch.has_changes), to=task)
        self._count([len(part) for part in parts], sum(sizes) + sum(end_sizes))

    def _send_whole(self, part: Part, lengths: list[int]) -> None:
        """Send a part to every query task; `lengths` says how many of its messages each of them takes."""
        self.context.emit("whole", part)
        tables = [rows for rows in (part.messages, part.ended) if len(rows)]
        columns = {id(column): column.nbytes for table in tables for column in table}
        of_targets = 0 if part.targets is None else part.targets.nbytes
        self._count(lengths, self.query_tasks * (sum(columns.values()) + of_targets))

    def _count(self, lengths: list[int], sent_bytes: int) -> None:
        self.sent += np.array(lengths)
        self.sent_in_all += sum(lengths)
        self.sent_bytes += sent_bytes

    def _relax(self, request: Addressed) -> None:
        relax = request.body
        self.table.relax(relax.number, relax.version)
        if self.router.replicates:
            number, version, rows = self.table.registrations(relax.number, relax.version)
            # all later batches of this task follow on the same link
            for task in range(self.query_tasks):
                mine = np.flatnonzero(self.router.assigned_to(rows, task)) if len(rows) else np.arange(number.size)
                part = rows.take(mine) if len(rows) else rows
                register = Register(self.last_changes, number[mine], version[mine], part)
                self.context.emit("register", request._replace(body=register), to=task)
        self.context.emit("relaxed", request._replace(body=Relaxed(self.last_batch)), to=request.home)

    def state(self) -> dict[str, np.ndarray]:
        counts = np.array([self.messages, self.sent_in_all, self.sent_bytes])
        return self.table.state() | self.table.counts() | {"counts": counts, "sent": self.sent.copy()}

    def restore(self, saved: Saved) -> None:
        """Rebuild the routing table from all subscriptions."""
        before = saved.tasks(self.context.component)
        self.router = router_of(saved, self.router)
        self.table = self.router.table()
        if self.context.task == 0:  # totals of all tasks
            self.messages, self.sent_in_all, self.sent_bytes = np.sum([task["counts"] for task in before], 0).tolist()
            if before[0]["sent"].shape[0] == self.query_tasks:
                self.sent = np.sum([task["sent"] for task in before], 0)
            self.table.count_from(before)
        first = saved.number + 1
        self.inputs = InOrder({"batches": 1, "changes": 1}, first=first, name=f"distribution:{self.context.task}")
        self.last_batch = self.last_changes = saved.number
        states = subscriptions_of(saved, self.kinds)
        table = concatenate([state.table for state in states.values()])
        known = [state.rows for state in states.values() if "threshold" in state.rows]
        names = ("number", "version", "threshold")
        columns = (np.concatenate([rows[name] for rows in known]) for name in names)
        radii = radii_of(states, self.kinds) if self.router.uses_influence else NO_INFLUENCE
        self.table.restore(saved.number, table, Thresholds(*columns) if known else NO_THRESHOLDS, radii)


def _in_pairs(
    messages: MessageBatch, ended: MessageBatch, sent: list[Int64], ends_sent: list[Int64]
) -> tuple[list[Int64], list[Int64]]:
    """Rows of messages, and of the versions that they replace, for each query task: both wherever either is to go.

    All versions of an object in the batch go together, so that a task sees which stood before it. O(rows * tasks).
    """
    first = first_rows(messages)
    replaces = np.flatnonzero(messages.previous_seq >= 0)
    ends = np.searchsorted(ended.seq, messages.previous_seq[replaces])
    rows, of_ended = [], []
    for own, its in zip(sent, ends_sent, strict=True):
        wanted, ending = np.zeros(len(messages), np.bool_), np.zeros(len(ended), np.bool_)
        wanted[own], ending[its] = True, True
        wanted[replaces] |= ending[ends]
        wanted = np.bincount(first, wanted, len(messages))[first] > 0
        ending[ends] = wanted[replaces]
        rows.append(np.flatnonzero(wanted))
        of_ended.append(np.flatnonzero(ending))
    return rows, of_ended


def radii_of(states: Mapping[int, State], kinds: Kinds) -> Radii:
    """Radii of influence of all subscriptions of kinds that are `ranged`, from the joined snapshots of query tasks."""
    radii = [NO_INFLUENCE]
    for code, state in states.items():
        operator = kinds[code].operator
        if operator is not None and issubclass(operator, Ranged):
            radii.append(Radii(state.rows["number"], operator.radii(state)))
    return Radii(*(np.concatenate(column) for column in zip(*radii, strict=True)))
