"""The delivery bolt: where updates leave the topology, with names instead of numbers.

It takes batch b once every query task has closed it and its message ids and subscription changes are here, writes the
updates, records their latency, and acknowledges the batch. At the end it writes the results.

Applying the updates of an external id in file order yields its results: boundary by boundary, leaves before enters,
those of a replaced subscription before those of its successor. Each query task emits a subscription's updates in this
order, and batches are taken in order; early updates of a successor are delayed by `bolts.replacements`.

Of several tasks each owns the subscriptions whose ids hash to it (`bolts.shares`), gets their updates and results, and
writes parts of its own; it takes every batch, so each acknowledges all of them. The results go through the first task,
which writes all of them.

Files are written by `bolts.sinks` and `bolts.results`, names are kept by `bolts.names` and `bolts.retained`; `skyray
verify` compares what this bolt wrote with `matching.naive` and checks the order.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from bolts.names import Digest, IdColumn
from bolts.ordering import InOrder
from bolts.payloads import Closed, Late, MessageIds, unchanged
from bolts.publishing import UpdatePublisher
from bolts.replacements import ReplacementOrder
from bolts.results import merge_tables, payload_of, sort_results, table_of, table_of_payload, tables_of, write_results
from bolts.retained import LivingMessages, RetainedMessages
from bolts.shares import Ids, OwnNames, PublishedParts, joined, joined_messages
from bolts.sinks import FORMS, UPDATE_SCHEMA, CountSink, PartSink, UpdateSink, updates_of_state, writing
from bolts.state_parts import named, part_of
from matching.errors import ConfigError, DeliveryError, TopologyError
from matching.model import (
    CHANGE,
    CHANGES,
    MATCH,
    Backfill,
    ChangeList,
    Int64,
    Names,
    ResultBatch,
    UpdateBatch,
    concatenate,
    take_rows,
)
from matching.window import Boundary, Window
from topology.core.api.component import Bolt, Context, Delivery, Fragment, Saved
from topology.core.checkpoint.storage import Output, published
from topology.core.metrics import LatencyHistogram, LatencyTimeline

_NO_SEQS = np.zeros(0, np.int64)
#: Updates in a file of a run without checkpoints.
PART_ROWS = 5_000_000
SINKS = ("parquet", "jsonl", "count")


class _Published(NamedTuple):
    """A boundary whose updates may not all be out, and when its batch was published."""

    boundary: Boundary
    published_s: float


class DeliveryBolt(Bolt):
    """Writes updates and results, and acknowledges batches.

    Parameters
    ----------
    out_dir : str
        Directory of the run: gets `updates/part-00000.parquet` (or `.jsonl`; `matching.part_names`), ... and
        `results.parquet`, under hidden names, which the driver renames (`Component.outputs`).
    window : Window
        Determines when a message id can be dropped.
    slack : int
        The number of credits. Batch x is acknowledged once the watermark is at least x - `slack`, so that no task runs
        further ahead of an open refill than the boundaries that tuple bolts keep.
    sink : str
        "parquet", "jsonl", or "count", which writes nothing.
    file_rows : int or None
        Approximate updates per file; None, for a run with checkpoints: those between two checkpoints, or between more
        if these are few.
    query : str
        Name of the component whose tasks close batches.
    cumulative : sequence of int
        Codes of the cumulative kinds, whose results may keep messages that have left the window.
    listener : str, optional
        Path of a socket to publish updates to as soon as they are out (`bolts.publishing`).
    steady_from : int
        Seq of a message: the latency of batches that begin before it is recorded apart, as that of the warm-up.
    timeline_s : float, optional
        Length in seconds of intervals for which the latency after the warm-up is recorded, too (`LatencyTimeline`).
    objects : bool
        The stream is one of objects: updates have `object_id`, and those of a batch are written in the order of the
        messages that cause them.

    Notes
    -----
    Memory: ids of the subscriptions that the task owns, of the window's messages and of those in cumulative results,
    and delayed updates; in a stream of objects, of all living versions and of their objects.
    """

    def __init__(
        self,
        out_dir: str,
        window: Window,
        slack: int,
        sink: str = "parquet",
        file_rows: int | None = PART_ROWS,
        query: str = "query",
        cumulative: Sequence[int] = (),
        listener: str | None = None,
        steady_from: int = 0,
        timeline_s: float | None = None,
        objects: bool = False,
    ):
        self.of_objects = objects
        if sink not in SINKS:
            raise ConfigError(f"sink {sink!r}: choose one of {', '.join(SINKS)}")
        if slack < 0 or (file_rows is not None and file_rows < 1):
            raise ConfigError(f"slack {slack}, file_rows {file_rows}: slack is at least 0, file_rows at least 1")
        self.out_dir = out_dir
        self.window = window
        self.slack = slack
        self.sink_name = sink
        self.file_rows = file_rows
        self.query = query
        self.cumulative = tuple(cumulative)
        self.listener = listener
        self.steady_from = steady_from
        self.timeline_s = timeline_s
        self.sink: UpdateSink = CountSink()
        self.publisher: UpdatePublisher | None = None

    def prepare(self, context: Context) -> None:
        """Make the output directory, and connect to the listener. Raises DeliveryError."""
        self.context = context
        self.tasks = context.tasks
        self.query_tasks = context.size_of(self.query)
        self.inputs = self._inputs(0)
        keep_names = self.sink_name != "count" or self.listener is not None
        self.subscriptions: Ids = (
            IdColumn("subscription", keep_names)
            if self.tasks == 1
            else OwnNames(context.task, context.tasks, keep_names)
        )
        self.messages = IdColumn("message", self.sink_name != "count")
        self.objects = IdColumn("object", self.sink_name != "count") if self.of_objects else None
        self.living = LivingMessages()
        self.retained = RetainedMessages(self.cumulative)
        self.replacements = ReplacementOrder()
        self.backfilled = np.zeros(0, np.int64)  # seqs before the window whose ids were sent with a backfill
        self.digest = Digest()
        self.counts = np.zeros(len(CHANGES), np.int64)
        self.processed = -1  # last batch taken from all query tasks
        self.acknowledged = -1
        self.watermarks = [-1] * self.query_tasks  # of each query task, as far as its updates were taken
        self.watermark = -1  # the least of them: number of the last batch up to which all updates are out
        self.closed = [-1] * self.query_tasks  # last batch each query task has closed
        self.late: list[deque[tuple[int, Late]]] = [deque() for _ in range(self.query_tasks)]
        self.late_waiting = 0  # in `late`
        self.open: deque[_Published] = deque()
        self.results: dict[int, ResultBatch] = {}
        self.gathered: dict[int, pa.Table] = {}  # of the first task: the results of all of them
        self.ended = False
        self.result_rows = 0
        self.result_bytes = 0
        self.already_published = PublishedParts()
        self.cutting = False
        self.finished: list[Output] = []
        self.used = False  # the folder has the output of an earlier run
        self.warm_up = LatencyHistogram()
        self.timeline = None if self.timeline_s is None else LatencyTimeline(self.timeline_s)
        if self.sink_name != "count":
            self.sink = self._part_sink()
        if self.listener is not None:
            self.publisher = UpdatePublisher(self.listener, context.incarnation, context.task, context.tasks)

    def execute(self, delivery: Delivery) -> None:
        """Process one payload; write every batch that it completes.

        Raises
        ------
        DeliveryError
            If a file cannot be written, or the directory has the output of an earlier run.
        """
        if self.used:
            raise DeliveryError(
                f"{self.out_dir}: has the output of an earlier run; remove it or choose another directory"
            )
        stream, payload, sender = delivery.stream, delivery.payload, delivery.task
        if stream == "gathered":
            self._gather(sender, table_of_payload(payload))
            return
        if stream == "updates":
            self.closed[sender] = payload.boundary.number
            self.inputs.put(payload.boundary.number, "updates", payload, sender)
        elif stream == "late":
            # It belongs after the last batch that this task has closed, which other tasks may not have closed yet.
            self.late[sender].append((self.closed[sender], payload))
            self.late_waiting += 1
        elif stream == "changes":
            self.inputs.put(payload.batch, "changes", payload)
        elif stream == "ids":
            number = payload.boundary.number
            self.inputs.put(number, "ids", payload)
            if not payload.has_changes:
                self.inputs.put(number, "changes", unchanged(number))
        elif sender in self.results:
            raise TopologyError(f"{self.context.component}: results of {self.query}:{sender} came twice")
        else:
            self.results[sender] = payload
            return
        self._accept_late()
        while (ready := self.inputs.pop()) is not None:
            self._accept(ready.number, **ready.payloads)
            self._accept_late()
        if self.publisher is not None and self.open:
            at = self.open[0].boundary  # the one at the watermark, or the first of all
            self.publisher.publish(at.last_seq if at.number <= self.watermark else -1, self.subscriptions)
        self._acknowledge()

    def finish(self) -> None:
        """Write the results, and the updates that are not written yet.

        Raises
        ------
        TopologyError
            If input is missing: part of a batch, the results of a query task, updates after a refill. If updates
            are still delayed.
        DeliveryError
            If a file cannot be written.
        """
        name = self.context.component
        if len(self.inputs):
            raise TopologyError(f"{name}: all inputs have ended, but {self.inputs.missing()}")
        behind = [f"{self.query}:{task} (batch {at})" for task, at in enumerate(self.watermarks) if at < self.processed]
        if behind:
            raise TopologyError(
                f"{name}: all inputs have ended at batch {self.processed}, but not all updates have come from "
                + ", ".join(behind)
            )
        if len(self.replacements):
            raise TopologyError(
                f"{name}: the watermark is at the last batch {self.processed}, but {len(self.replacements)} updates "
                "are still delayed until those of the subscriptions that theirs replaced are complete"
            )
        absent = [f"{self.query}:{task}" for task in range(self.query_tasks) if task not in self.results]
        if absent:
            raise TopologyError(f"{name}: all inputs have ended, but no results have come from {', '.join(absent)}")
        self.sink.seal(self.subscriptions, self.messages)
        self.ended = True
        self._finish_results()

    def idle(self) -> bool:
        """Whether the results of all tasks have arrived; only the first task waits for them."""
        first = self.context.task == 0 and self.tasks > 1 and self.sink_name != "count"
        return not first or (self.ended and len(self.gathered) == self.tasks)

    def outputs(self) -> Sequence[Output]:
        """Parts of the updates, and at the end the results."""
        finished, self.finished = self.finished, []
        return [*self.sink.sealed(), *finished]

    def cut(self) -> Sequence[Callable[[], Output]]:
        """End the current part if it has enough updates."""
        self.cutting = True
        return self.sink.cut(self.subscriptions, self.messages, self.context.now())

    def report(self) -> dict[str, Any]:
        """Digest, updates by kind of change, `watermark`, batches, results, bytes written and in memory.

        `held_back`: updates delayed by the replacement order. `warm_up`: latency of the batches of the warm-up.
        """
        return {
            "digest": self.digest.hex(),
            "updates": {
                name: count
                for name, count in zip(CHANGES, self.counts.tolist(), strict=True)
                if self.of_objects or name != CHANGES[CHANGE]
            },
            "held_back": self.replacements.held_back,
            "complete_through": self.watermark,
            "batches": self.processed + 1,
            "acknowledged": self.acknowledged + 1,
            "results": self.result_rows,
            "bytes_written": self.result_bytes + self.sink.bytes_written,
            "sink": self.sink_name,
            "message_ids_held": self.messages.end - self.messages.first,
            "id_bytes": self.messages.nbytes + self.subscriptions.nbytes,
            "warm_up": self.warm_up.summary(),
            **({} if self.timeline is None else {"timeline": self.timeline.summary()}),
        }

    def quiet(self) -> bool:
        """Whether no batch is incomplete and the watermark is at the last one."""
        waits = len(self.inputs) or len(self.replacements) or self.late_waiting
        return not waits and self.watermark == self.processed

    def snapshot(self, stored: Mapping[str, int]) -> Mapping[str, Fragment]:
        """Counts, digest, unwritten updates, and by reference the ids that later updates and results may name.

        The ids of subscriptions are a fragment of their own, which changes when some are added. Each run of living
        versions is a fragment that never changes.
        """
        last = [published.boundary for published in self.open]  # one, or none before the first batch
        dead = max((self.retained.dead_before(boundary.floor) for boundary in last), default=0)
        # the ids of the window are the same in all tasks: the first one saves them
        alive = max(dead, self.messages.first) if self.context.task == 0 else self.messages.end
        unwritten: Callable[[], dict[str, np.ndarray]] = dict
        if self.cutting:
            self.cutting = False
            unwritten = self.sink.snapshot(self.subscriptions, self.messages)
        totals = {
            "digest": np.array(self.digest.lanes, np.uint64),
            "updates": self.counts.copy(),
            "held_back": np.array(self.replacements.held_back, np.int64),
            "boundary": np.array(last, np.int64).reshape(-1, len(Boundary._fields)),
        }
        subscriptions, messages = self.subscriptions.snapshot(), self.messages.snapshot()
        retained = self.retained.snapshot()
        living, fragments, runs = dict[str, np.ndarray](), dict[str, Fragment](), dict[int, Int64]()
        if self.objects is not None:  # a message of the window that does not live is named no more
            alive = messages.end
            living, runs = self.living.state(alive), self.living.runs()
            if not self.context.task:
                of_run = partial(_of_run, messages, self.objects.snapshot())
                fragments = {f"run{number}": Fragment(partial(of_run, number, runs[number]), number) for number in runs}

        def ids() -> dict[str, np.ndarray]:
            return named("subscriptions", subscriptions.state(0, np.zeros(0, np.int64)))

        def others() -> dict[str, np.ndarray]:
            needed = retained.messages()
            if needed.shape[0] and runs:
                needed = np.setdiff1d(needed, np.concatenate([*runs.values()]))
            kept = named("messages", messages.state(alive, needed)) | named("living", living)
            return totals | kept | named("retained", retained.state()) | named("sink", unwritten())

        return {"": Fragment(others), "subscriptions": Fragment(ids, subscriptions.end), **fragments}

    def restore(self, saved: Saved) -> None:
        """Resume after a batch: digest and counts continue; updates that are published already are not rewritten.

        Raises
        ------
        CheckpointError
            If ids are needed and the checkpoint has none.
        """
        state = joined(saved.tasks(self.context.component))
        self.inputs = self._inputs(saved.number + 1)
        self.processed = self.acknowledged = saved.number
        self.watermarks = [saved.number] * self.query_tasks
        self.watermark = saved.number
        self.closed = [saved.number] * self.query_tasks
        if self.context.task == 0:  # totals of all tasks
            self.digest.lanes = state["digest"].tolist()
            self.counts[: state["updates"].shape[0]] = state["updates"]  # earlier releases had no `change`
            self.replacements.held_back = int(state["held_back"])
        # all its updates are out: only its floor is still needed
        self.open = deque(_Published(Boundary(*row), self.context.now()) for row in state["boundary"].tolist())
        if self.publisher is not None and self.open:
            self.publisher.since = self.open[-1].boundary.last_seq
        self.subscriptions.restore(part_of(state, "subscriptions"))
        messages = part_of(state, "messages")
        if self.objects is not None:
            living = part_of(state, "living")
            self.living.restore(living)
            numbers = self.living.runs()
            no_names = Names.of(())._asdict() if "data" in messages else {"hashes": np.zeros(0, np.uint64)}
            nothing = {"first": messages["end"], "end": messages["end"], "kept": _NO_SEQS, **no_names}
            objects = [nothing, *(_names_in(living, number, "object") for number in numbers)]
            self.objects.restore(joined_messages(objects))
            messages = joined_messages([messages, *(_names_in(living, number, "message") for number in numbers)])
        self.messages.restore(messages)
        self.retained.restore(self._own_retained(part_of(state, "retained")), self.subscriptions.end)
        written = part_of(state, "sink")
        if written:
            self.already_published = self.sink.restore(written)
            self.used = False

    def close(self) -> None:
        self.sink.abandon()
        if self.publisher is not None:
            self.publisher.close()

    def _inputs(self, first: int) -> InOrder:
        return InOrder({"changes": 1, "ids": 1, "updates": self.query_tasks}, first, name=self.context.component)

    def _part_sink(self) -> UpdateSink:
        updates = f"{self.out_dir}/updates"
        if "://" not in updates:
            with writing(updates):
                Path(updates).mkdir(parents=True, exist_ok=True)
        with writing(updates):
            self.used = any(name.startswith("part-") for name in published(updates))
            self.used |= any(name.startswith("results.") for name in published(self.out_dir))
        context = self.context
        return PartSink(
            updates, self.file_rows, FORMS[self.sink_name], context.incarnation, task=context.task,
            tasks=context.tasks, objects=self.objects,
        )  # fmt: skip

    def _own_retained(self, state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The saved messages of cumulative results, cut to the subscriptions that this task owns."""
        rows = self.subscriptions.has(state["number"])
        own = {name: state[name][rows] for name in ("number", "seq", "balance")}
        numbers = state["subscriptions"]
        return state | own | {"subscriptions": numbers[self.subscriptions.has(numbers)]}

    def _accept(self, number: int, changes: list[ChangeList], ids: list[MessageIds], updates: list[Closed]) -> None:
        added, names, removed = changes[0].added, changes[0].names, changes[0].removed
        if len(added) != len(names.offsets) - 1:
            raise TopologyError(f"change list {number}: {len(added)} subscriptions, {len(names.offsets) - 1} names")
        if len(added):
            first = self.subscriptions.end
            if not np.array_equal(added.number, np.arange(first, first + len(added))):
                numbers = f"{added.number[:3].tolist()}..."
                raise TopologyError(f"{self.context.component}: subscription {first} comes next, got {numbers}")
            self.subscriptions.append(names)
        if removed.number.shape[0] and not 0 <= removed.number.min() <= removed.number.max() < self.subscriptions.end:
            raise TopologyError(f"change list {number}: removes subscription {int(removed.number.max())}, never added")
        own_kinds = np.where(self.subscriptions.has(added.number), added.kind, np.int8(-1))
        self.retained.change(own_kinds, removed.number)
        self.replacements.change(changes[0], self.watermark)
        boundary, published_s, message_names, _, object_names, dead = ids[0]
        size = boundary.last_seq - boundary.first_seq + 1
        if boundary.first_seq != self.messages.end or size != len(message_names.offsets) - 1:
            raise TopologyError(
                f"ids of batch {number}: {len(message_names.offsets) - 1} from seq {boundary.first_seq} to "
                f"{boundary.last_seq}, where seq {self.messages.end} comes next"
            )
        self.messages.append(message_names)
        if self.objects is not None and size:
            if object_names is None:
                raise TopologyError(f"ids of batch {number}: no objects, and the stream is one of objects")
            self.objects.append(object_names)
            self.living.note(boundary, dead)
        self.open.append(_Published(boundary, published_s))
        self.processed = number
        together = concatenate([closed.updates for closed in updates])
        if changes[0].backfill is not None:
            together = self._with_backfill(changes[0].backfill, together)
        if self.objects is not None:
            together = take_rows(together, np.argsort(together.as_of, kind="stable"))
        self._write(self.replacements.admit(together))
        for task, closed in enumerate(updates):
            self._set_watermark(task, closed.watermark)
        self._settle()

    def _with_backfill(self, backfill: Backfill, updates: UpdateBatch) -> UpdateBatch:
        """Insert the backfill of a subscription into a batch: before its live updates, and behind the updates of the
        subscription that it replaced."""
        own = self.subscriptions.has(backfill.number)
        at, number, seq = backfill.at[own], backfill.number[own], backfill.seq[own]
        self.messages.keep(seq, backfill.names.take(np.flatnonzero(own)))
        self.backfilled = np.union1d(self.backfilled, seq)
        count = seq.shape[0]
        earlier = UpdateBatch(at, number, seq, np.full(count, MATCH, np.int8), np.full(count, np.nan))
        whole = concatenate([earlier, updates])
        return take_rows(whole, np.argsort(whole.as_of, kind="stable"))

    def _accept_late(self) -> None:
        if not self.late_waiting:
            return
        taken = False
        for task, waiting in enumerate(self.late):
            while waiting and waiting[0][0] <= self.processed:
                late = waiting.popleft()[1]
                self.late_waiting -= 1
                self._write(self.replacements.admit(late.updates))
                self._set_watermark(task, late.watermark)
                taken = True
        if taken:
            self._settle()

    def _settle(self) -> None:
        """Write released updates, then drop ids: delayed updates need theirs."""
        released = self.replacements.release(self.watermark)
        if released is not None:
            self._write(released)
        self._forget()

    def _set_watermark(self, task: int, watermark: int) -> None:
        if not self.watermarks[task] <= watermark <= self.processed:
            raise TopologyError(
                f"{self.query}:{task} has watermark {watermark} after {self.watermarks[task]}, while batch "
                f"{self.processed} is the last one closed"
            )
        self.watermarks[task] = watermark
        self.watermark = min(self.watermarks)

    def _write(self, updates: UpdateBatch) -> None:
        if not len(updates):
            return
        counts = np.bincount(updates.change.view(np.uint8), minlength=len(CHANGES))  # what is negative is above
        if counts.shape[0] > len(CHANGES):
            wrong = updates.change[updates.change.view(np.uint8) >= len(CHANGES)][0]
            raise TopologyError(f"{self.context.component}: an update with change {wrong}")
        hashes = self.subscriptions.hashes(updates.number)
        self.digest.add(updates, hashes, self.messages.hashes(updates.seq))
        self.counts += counts
        self.context.count("updates", len(updates))
        self.retained.note(updates)
        if self.publisher is not None:
            self.publisher.add(updates)
        now_s = self.context.now()
        fresh = updates
        if self.already_published:
            fresh = take_rows(updates, ~self.already_published.has(updates.as_of, hashes))
        if len(fresh):
            self.sink.write(fresh, self.subscriptions, self.messages, now_s)
        if self.timeline is None and not self.steady_from and updates.as_of.shape[0] == 1:  # as in most small batches
            boundary, published_s = self.open[-1]
            if boundary.first_seq <= updates.as_of[0] <= boundary.last_seq:
                self.context.record_latency(now_s - published_s)
                return
        # The latency of a late update counts from the publication of the batch that it belongs to.
        last_seqs = np.array([published.boundary.last_seq for published in self.open], np.int64)
        rows = _rows_of_each(updates.as_of, last_seqs)
        if rows.shape[0] > last_seqs.shape[0]:
            raise TopologyError(
                f"{self.context.component}: an update as of seq {int(updates.as_of.max())}, not published"
            )
        seconds = now_s - np.array([published.published_s for published in self.open])
        some = rows > 0
        if self.steady_from:
            warming = np.array([published.boundary.first_seq < self.steady_from for published in self.open], np.bool_)
            self.warm_up.record(seconds[warming], rows[warming])
            some &= ~warming
        self.context.record_latency(seconds[some], rows[some])
        if self.timeline is not None:
            self.timeline.record(now_s - seconds[some], seconds[some], rows[some])

    def _forget(self) -> None:
        """Drop the ids that no update can name any more.

        An update of boundary b names a message of its batch or one alive at b - 1, and boundaries up to the watermark
        have no more updates: a message dead there is never named again, unless a cumulative result has it. No message
        up to a batch lives longer than that batch's floor plus the window, or in a count window its last seq.
        """
        watermark = self.watermark
        while self.open and self.open[0].boundary.number < watermark:
            last, floor = self.open[0].boundary.last_seq, self.open[0].boundary.floor
            life = floor + self.window.length  # of a count window the seq, where deletions have made the floor lower
            self.retained.expiries.append((last, max(life, last) if self.window.kind == "count" else life))
            self.open.popleft()
        if not self.open or self.open[0].boundary.number != watermark:
            return
        self.living.settle(watermark)
        floor = self.open[0].boundary.floor
        dead = self.retained.dead_before(floor)
        # Drop only when at least half can be dropped: moving the remaining ids then costs O(1) for each dropped one.
        if dead - self.messages.first > max(1024, self.messages.end - dead, len(self.living)):
            self.sink.resolve(self.subscriptions, self.messages)
            if not len(self.replacements):  # delayed updates may be of a backfill
                self.backfilled = self.backfilled[:0]
            needed = np.union1d(self.retained.messages(), self.backfilled)
            if self.objects is not None:
                needed = np.union1d(needed, self.living.seqs())
                self.objects.drop_before(dead, needed)
            self.messages.drop_before(dead, needed)

    def _acknowledge(self) -> None:
        while self.acknowledged < self.processed and self.watermark >= self.acknowledged + 1 - self.slack:
            self.acknowledged += 1
            self.context.acknowledge(self.acknowledged)

    def _finish_results(self) -> None:
        """Write the results of a single task. Of several the first writes all; the others send theirs to it."""
        results = concatenate([self.results[task] for task in range(self.query_tasks)])
        self.result_rows = len(results)
        if self.sink_name == "count":
            return
        results = sort_results(results, self.subscriptions)
        if self.tasks == 1:
            self._write_results(tables_of(results, self.subscriptions, self.messages))
            return
        table = table_of(results, self.subscriptions, self.messages)
        if self.context.task == 0:
            self._gather(0, table)
        else:
            self.context.emit("gathered", payload_of(table), to=0)

    def _gather(self, task: int, results: pa.Table) -> None:
        """Take the results of a task; write all results once those of every task are there."""
        self.gathered[task] = results
        if self.ended and len(self.gathered) == self.tasks:
            self._write_results([merge_tables([self.gathered[task] for task in range(self.tasks)])])

    def _write_results(self, pieces: Iterable[pa.Table]) -> None:
        output, self.result_bytes = write_results(self.out_dir, self.context.incarnation, pieces)
        self.finished.append(output)


def _rows_of_each(as_of: Int64, last_seqs: Int64) -> Int64:
    """Number of updates as of each boundary (last seqs ascending); one number more if any is of a later boundary.

    O(n) if all updates belong to one boundary, else O(n log boundaries).
    """
    if as_of.shape[0] > 1:
        first, last = np.searchsorted(last_seqs, (as_of.min(), as_of.max())).tolist()
        if first == last:
            return np.bincount((first,), (as_of.shape[0],), last_seqs.shape[0]).astype(np.int64)
    return np.bincount(np.searchsorted(last_seqs, as_of), minlength=last_seqs.shape[0])


def _of_run(messages: IdColumn, objects: IdColumn, number: int, seqs: Int64) -> dict[str, np.ndarray]:
    """The ids of a run of living versions, and of their objects, for a checkpoint."""
    run = {"seq": seqs}
    for what, column in (("message", messages), ("object", objects)):
        run |= {f"{what}_{name}": values for name, values in column.columns(seqs).items()}
    return {f"living:{number}:{name}": values for name, values in run.items()}


def _names_in(living: Mapping[str, np.ndarray], number: int, what: str) -> dict[str, np.ndarray]:
    """The names of a run that `_of_run` saved, as a state of `bolts.names.IdColumn`."""
    names = (f"{number}:{what}_{name}" for name in ("offsets", "data", "hashes"))
    columns = {path.rpartition("_")[2]: living[path] for path in names if path in living}
    return {"kept": living[f"{number}:seq"], **columns}


def undelivered(state: Mapping[str, np.ndarray]) -> pa.Table:
    """The updates in a checkpoint of the bolt that are in no part, as a table of `UPDATE_SCHEMA`.

    `state` is from `bolts.shares.joined`.
    """
    return updates_of_state(part_of(state, "sink")).select(UPDATE_SCHEMA.names).cast(UPDATE_SCHEMA)
