"""The delivery bolt: where updates leave the topology, with names instead of numbers.

It takes batch b once every query task has closed it and its message ids and subscription changes are here, writes the
updates, records their latency, and gives the batch's credit back. At the end it writes the results.

Whoever applies the updates of an external id in the order of the files holds its results: boundary by boundary, leaves
before enters, those of a replaced subscription before those of its successor. Each query task tells a subscription's
updates in this order, and batches are taken in order; what a successor is told early waits in `bolts.replacements`.

Everything about files is in `bolts.sinks`, the file to read next, and about names in `bolts.names` and
`bolts.retained`; the end of the way is `skyray verify`, which compares what this bolt wrote with `matching.naive` and
follows the order.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from bolts.names import Digest, IdColumn
from bolts.ordering import InOrder
from bolts.payloads import Closed, Late, MessageIds
from bolts.publishing import UpdatePublisher
from bolts.replacements import ReplacementOrder
from bolts.retained import RetainedMessages
from bolts.sinks import FORMS, GROUP_ROWS, RESULT_SCHEMA, CountSink, PartSink, Sink, open_writer, writing
from matching.errors import ConfigError, DeliveryError, TopologyError
from matching.model import (
    CHANGES,
    ChangeList,
    Int64,
    ResultBatch,
    UpdateBatch,
    concatenate,
    take_rows,
)
from matching.window import Boundary, Window
from topology.core.api.component import Bolt, Context, Delivery, Saved
from topology.core.checkpoint.storage import Output, open_disk
from topology.core.metrics import LatencyHistogram

#: Updates in a file of a run that is not saved as it goes.
PART_ROWS = 5_000_000
SINKS = ("parquet", "jsonl", "count")


class _Published(NamedTuple):
    """A boundary about which updates may still come, and when its batch was published."""

    boundary: Boundary
    published_s: float


class DeliveryBolt(Bolt):
    """Writes updates and results; exactly one task, which also acknowledges batches.

    Parameters
    ----------
    out_dir : str
        Directory of the run: gets `updates/part-00000.parquet` (or `.jsonl`), ... and `results.parquet`, under hidden
        names: whoever drives the topology names what is to be read (`Component.outputs`).
    window : Window
        Tells when a message id can be given up.
    slack : int
        The acknowledgement of batch x is held back while some query task has told everything only up to a batch before
        x - `slack`: the number of credits, so that nobody runs further ahead of a pending refill than the tuple bolts
        remember.
    sink : str
        "parquet", "jsonl", or "count", which writes nothing.
    file_rows : int or None
        About how many updates a file holds; None, for a run that is saved as it goes: those between two checkpoints,
        unless these are so few that they wait for more.
    query : str
        Name of the component whose tasks close batches.
    lasting : sequence of int
        Codes of the kinds whose results may hold messages that have left the window.
    listener : str, optional
        Path of a socket where somebody wants to be told of updates at once (`bolts.publishing`).
    steady_from : int
        Seq of a message: the latency of batches that begin before it is told apart, as that of the warm-up.

    Notes
    -----
    Memory: ids of the window's messages and of all subscriptions, of messages that lasting results hold, and
    what subscriptions have been told before the one that they replace was told to its end.
    """

    def __init__(
        self,
        out_dir: str,
        window: Window,
        slack: int,
        sink: str = "parquet",
        file_rows: int | None = PART_ROWS,
        query: str = "query",
        lasting: Sequence[int] = (),
        listener: str | None = None,
        steady_from: int = 0,
    ):
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
        self.lasting = tuple(lasting)
        self.listener = listener
        self.steady_from = steady_from
        self.sink: Sink | None = None
        self.teller: UpdatePublisher | None = None

    def prepare(self, context: Context) -> None:
        """Make the output directory."""
        if context.tasks != 1:
            raise TopologyError(f"{context.component}: {context.tasks} tasks; delivery is a single task, give it 1")
        self.context = context
        self.query_tasks = context.size_of(self.query)
        self.inputs = self._inputs(0)
        self.subscriptions = IdColumn("subscription", self.sink_name != "count" or self.listener is not None)
        self.messages = IdColumn("message", self.sink_name != "count")
        self.held = RetainedMessages(self.lasting)
        self.succession = ReplacementOrder()
        self.digest = Digest()
        self.counts = np.zeros(len(CHANGES), np.int64)
        self.processed = -1  # last batch whose updates were taken
        self.acknowledged = -1
        self.told = [-1] * self.query_tasks  # complete_through of each query task, as far as its updates were taken
        self.closed = [-1] * self.query_tasks  # last batch each query task has closed
        self.late: list[deque[tuple[int, Late]]] = [deque() for _ in range(self.query_tasks)]
        self.open: deque[_Published] = deque()
        self.results: dict[int, ResultBatch] = {}
        self.result_rows = 0
        self.result_bytes = 0
        self.swallow_through = -1  # updates as of seqs up to here are in files that have their names
        self.cutting = False
        self.finished: list[Output] = []
        self.used = False
        self.warm_up = LatencyHistogram()
        self.sink = self._make_sink()
        if self.listener is not None:
            self.teller = UpdatePublisher(self.listener, context.incarnation)

    def execute(self, delivery: Delivery) -> None:
        """Take one payload; write every batch that has become complete by it.

        Raises
        ------
        DeliveryError
            If a file cannot be written, or the directory has the output of an earlier run.
        """
        if self.used:
            raise DeliveryError(
                f"{self.out_dir}: holds the output of an earlier run; remove it or choose another directory"
            )
        stream, payload, sender = delivery.stream, delivery.payload, delivery.task
        if stream == "updates":
            self.closed[sender] = payload.boundary.number
            self.inputs.put(payload.boundary.number, "updates", payload, sender)
        elif stream == "late":
            # It follows this task's own batches, while other tasks may be behind: its turn is after the same batch.
            self.late[sender].append((self.closed[sender], payload))
        elif stream == "changes":
            self.inputs.put(payload.batch, "changes", payload)
        elif stream == "ids":
            self.inputs.put(payload.boundary.number, "ids", payload)
        elif sender in self.results:
            raise TopologyError(f"{self.context.component}: results of {self.query}:{sender} came twice")
        else:
            self.results[sender] = payload
            return
        self._accept_late()
        while (ready := self.inputs.pop()) is not None:
            self._accept(ready.number, **ready.payloads)
            self._accept_late()
        if self.teller is not None and self.open:
            at = self.open[0].boundary  # the last one up to which everything is told, or the first of all
            self.teller.tell(at.last_seq if at.number <= self.watermark else -1, self.subscriptions)
        self._acknowledge()

    def finish(self) -> None:
        """Write the results and what is left of the updates.

        Raises
        ------
        TopologyError
            If something is missing: a batch in part, the results of a query task, updates behind a refill. If updates
            still wait for a predecessor's.
        DeliveryError
            If a file cannot be written.
        """
        name = self.context.component
        if len(self.inputs):
            raise TopologyError(f"{name}: all inputs have ended, but {self.inputs.missing()}")
        behind = [f"{self.query}:{task} (batch {told})" for task, told in enumerate(self.told) if told < self.processed]
        if behind:
            raise TopologyError(
                f"{name}: all inputs have ended at batch {self.processed}, but not all updates have come from "
                + ", ".join(behind)
            )
        if len(self.succession):
            raise TopologyError(
                f"{name}: everything is told up to batch {self.processed}, but {len(self.succession)} updates still "
                "wait for those of the subscriptions that theirs replaced"
            )
        absent = [f"{self.query}:{task}" for task in range(self.query_tasks) if task not in self.results]
        if absent:
            raise TopologyError(f"{name}: all inputs have ended, but no results have come from {', '.join(absent)}")
        self._write_results()
        assert self.sink is not None
        self.sink.seal(self.subscriptions, self.messages)

    def outputs(self) -> Sequence[Output]:
        """Parts of the updates, and at the end the results."""
        sealed = [] if self.sink is None else self.sink.sealed()
        finished, self.finished = self.finished, []
        return [*sealed, *finished]

    def cut(self) -> Sequence[Callable[[], Output]]:
        """End the part at hand, if what is in it is worth one."""
        assert self.sink is not None
        self.cutting = True
        return self.sink.cut(self.subscriptions, self.messages, self.context.now())

    def report(self) -> dict[str, Any]:
        """Digest, updates by kind of change, `watermark`, batches, results, bytes written and in memory.

        `held_back`: updates that came before those of the subscription that theirs replaced. `warm_up`: latency of
        batches that are not counted among the others'.
        """
        return {
            "digest": self.digest.hex(),
            "updates": dict(zip(CHANGES, self.counts.tolist(), strict=True)),
            "held_back": self.succession.held_back,
            "complete_through": self.watermark,
            "batches": self.processed + 1,
            "acknowledged": self.acknowledged + 1,
            "results": self.result_rows,
            "bytes_written": self.result_bytes + (self.sink.bytes_written if self.sink is not None else 0),
            "sink": self.sink_name,
            "message_ids_held": self.messages.end - self.messages.first,
            "id_bytes": self.messages.nbytes + self.subscriptions.nbytes,
            "warm_up": self.warm_up.summary(),
        }

    def quiet(self) -> bool:
        """Whether every batch that has come in part has come whole, and all of it is told."""
        waits = len(self.inputs) or len(self.succession) or any(self.late)
        return not waits and self.watermark == self.processed

    def state(self) -> dict[str, np.ndarray]:
        """Counts, digest, the ids that later updates and results may name; of a run that is saved as it goes on, also
        updates that are in no file yet."""
        last = [published.boundary for published in self.open]  # one, or none before the first batch
        dead = max((self.held.dead_before(boundary.floor) for boundary in last), default=0)
        parts = {
            "subscriptions": self.subscriptions.state(0, np.zeros(0, np.int64)),
            "messages": self.messages.state(max(dead, self.messages.first), self.held.messages()),
            "held": self.held.state(),
        }
        if self.cutting and self.sink is not None:
            self.cutting = False
            parts["sink"] = self.sink.state(self.subscriptions, self.messages)
        return {
            "digest": np.array(self.digest.lanes, np.uint64),
            "updates": self.counts.copy(),
            "held_back": np.array(self.succession.held_back, np.int64),
            "boundary": np.array(last, np.int64).reshape(-1, len(Boundary._fields)),
        } | {f"{name}:{column}": values for name, part in parts.items() for column, values in part.items()}

    def restore(self, saved: Saved) -> None:
        """Go on behind a batch; updates go into this run's own directory, digest and counts go on.

        In the directory of the run that was saved, updates that have their names there are not written again.

        Raises
        ------
        CheckpointError
            If ids are needed and were not saved.
        """
        state = saved.single(self.context.component)
        self.inputs = self._inputs(saved.number + 1)
        self.processed = self.acknowledged = saved.number
        self.told = [saved.number] * self.query_tasks
        self.closed = [saved.number] * self.query_tasks
        self.digest.lanes = state["digest"].tolist()
        self.counts = state["updates"].copy()
        self.succession.held_back = int(state["held_back"])
        # nothing more is told about it: only the floor is still asked for
        self.open = deque(_Published(Boundary(*row), self.context.now()) for row in state["boundary"].tolist())
        self.subscriptions.restore(_part(state, "subscriptions"))
        self.messages.restore(_part(state, "messages"))
        self.held.restore(_part(state, "held"), self.subscriptions.end)
        written = _part(state, "sink")
        if written:
            assert self.sink is not None
            self.swallow_through = self.sink.restore(written)
            self.used = False

    @property
    def watermark(self) -> int:
        """Number of the last batch up to which every event is out, -1 if none."""
        return min(self.told)

    def close(self) -> None:
        if self.sink is not None:
            self.sink.abandon()  # what was committed has its name and stays
        if self.teller is not None:
            self.teller.close()

    def _inputs(self, first: int) -> InOrder:
        return InOrder({"changes": 1, "ids": 1, "updates": self.query_tasks}, first, name=self.context.component)

    def _make_sink(self) -> Sink:
        if self.sink_name == "count":
            return CountSink()
        updates = f"{self.out_dir}/updates"
        if "://" not in updates:
            with writing(updates):
                Path(updates).mkdir(parents=True, exist_ok=True)
        with writing(updates):
            self.used = any(name.startswith("part-") for name in open_disk(updates).names())
            self.used |= "results.parquet" in open_disk(self.out_dir).names()
        return PartSink(updates, self.file_rows, FORMS[self.sink_name], self.context.incarnation)

    def _accept(
        self, number: int, changes: tuple[ChangeList], ids: tuple[MessageIds], updates: tuple[Closed, ...]
    ) -> None:
        added, names, removed = changes[0].added, changes[0].names, changes[0].removed
        if len(added) != len(names.offsets) - 1:
            raise TopologyError(f"change list {number}: {len(added)} subscriptions, {len(names.offsets) - 1} names")
        self._expect("subscription", self.subscriptions.end, added.number)
        self.subscriptions.append(names)
        if removed.number.shape[0] and not 0 <= removed.number.min() <= removed.number.max() < self.subscriptions.end:
            raise TopologyError(f"change list {number}: removes subscription {int(removed.number.max())}, never added")
        self.held.change(added.kind, removed.number)
        self.succession.change(changes[0], self.watermark)
        boundary, published_s, message_names = ids[0]
        size = boundary.last_seq - boundary.first_seq + 1
        if boundary.first_seq != self.messages.end or size != len(message_names.offsets) - 1:
            raise TopologyError(
                f"ids of batch {number}: {len(message_names.offsets) - 1} from seq {boundary.first_seq} to "
                f"{boundary.last_seq}, where seq {self.messages.end} comes next"
            )
        self.messages.append(message_names)
        self.open.append(_Published(boundary, published_s))
        self.processed = number
        self._write(self.succession.admit(concatenate([closed.updates for closed in updates])))
        for task, closed in enumerate(updates):
            self._note_told(task, closed.watermark)
        self._settle()

    def _accept_late(self) -> None:
        taken = False
        for task, waiting in enumerate(self.late):
            while waiting and waiting[0][0] <= self.processed:
                late = waiting.popleft()[1]
                self._write(self.succession.admit(late.updates))
                self._note_told(task, late.watermark)
                taken = True
        if taken:
            self._settle()

    def _settle(self) -> None:
        """Write whatever need not wait any more, then give up ids: as long as updates wait, theirs are needed."""
        released = self.succession.release(self.watermark)
        if released is not None:
            self._write(released)
        self._forget()

    def _note_told(self, task: int, watermark: int) -> None:
        if not self.told[task] <= watermark <= self.processed:
            raise TopologyError(
                f"{self.query}:{task} says all is told up to batch {watermark}, after {self.told[task]}, "
                f"while batch {self.processed} is the last one closed"
            )
        self.told[task] = watermark

    def _expect(self, what: str, first: int, numbers: Int64) -> None:
        if not np.array_equal(numbers, np.arange(first, first + numbers.shape[0])):
            raise TopologyError(f"{self.context.component}: {what} {first} comes next, got {numbers[:3].tolist()}...")

    def _write(self, updates: UpdateBatch) -> None:
        if not len(updates):
            return
        if updates.change.min() < 0 or updates.change.max() >= len(CHANGES):
            raise TopologyError(f"{self.context.component}: an update with change {int(updates.change.max())}")
        self.digest.add(updates, self.subscriptions.hashes(updates.number), self.messages.hashes(updates.seq))
        self.counts += np.bincount(updates.change, minlength=len(CHANGES))
        self.held.note(updates)
        if self.teller is not None:
            self.teller.add(updates)
        assert self.sink is not None
        now_s = self.context.now()
        fresh = updates
        if self.swallow_through >= 0:
            fresh = take_rows(updates, updates.as_of > self.swallow_through)
        if len(fresh):
            self.sink.write(fresh, self.subscriptions, self.messages, now_s)
        # A late update counts from the publication of the batch it tells about.
        last_seqs = np.array([published.boundary.last_seq for published in self.open], np.int64)
        rows = np.bincount(np.searchsorted(last_seqs, updates.as_of), minlength=len(last_seqs))
        if rows.shape[0] > last_seqs.shape[0]:
            raise TopologyError(
                f"{self.context.component}: an update as of seq {int(updates.as_of.max())}, not published"
            )
        seconds = now_s - np.array([published.published_s for published in self.open])
        warming = np.array([published.boundary.first_seq < self.steady_from for published in self.open], np.bool_)
        if warming.any():
            self.warm_up.record(seconds[warming], rows[warming])
        some = (rows > 0) & ~warming
        self.context.record_latency(seconds[some], rows[some])

    def _forget(self) -> None:
        """Give up the ids that no update can name any more.

        An event of boundary b names a message of its batch or one alive at b - 1, and boundaries up to
        `watermark` have no more events: what was dead there is never named again, unless a result of a kind
        without window holds it. No message up to a batch lives longer than that batch's floor plus the window.
        """
        told = self.watermark
        while self.open and self.open[0].boundary.number < told:
            self.held.expiries.append(
                (self.open[0].boundary.last_seq, self.open[0].boundary.floor + self.window.length)
            )
            self.open.popleft()
        if not self.open or self.open[0].boundary.number != told:
            return
        floor = self.open[0].boundary.floor
        dead = self.held.dead_before(floor)
        # At least as many go as stay, so that moving those that stay costs O(1) for each that goes.
        if dead - self.messages.first > max(1024, self.messages.end - dead):
            assert self.sink is not None
            self.sink.resolve(self.subscriptions, self.messages)
            self.messages.drop_before(dead, self.held.messages())

    def _acknowledge(self) -> None:
        while self.acknowledged < self.processed and self.watermark >= self.acknowledged + 1 - self.slack:
            self.acknowledged += 1
            self.context.acknowledge(self.acknowledged)

    def _write_results(self) -> None:
        results = concatenate([self.results[task] for task in range(self.query_tasks)])
        self.result_rows = len(results)
        if self.sink_name == "count":
            return
        distinct, rows = np.unique(results.number, return_inverse=True)
        order_of = np.empty(distinct.shape[0], np.int64)
        ids = self.subscriptions.names(distinct)
        order_of[pc.call_function("array_sort_indices", [ids]).to_numpy()] = np.arange(distinct.shape[0])
        order = np.lexsort((results.rank, order_of[rows]))  # by id, then rank: the same bytes whoever held what
        results = _result_rows(results, order)
        path = f"{self.out_dir}/results.parquet"
        hidden = f".results.{self.context.incarnation}.parquet.tmp"
        disk = open_disk(self.out_dir)
        with writing(path), disk.create(hidden) as file:
            writer = open_writer(file, RESULT_SCHEMA)
            try:
                # An empty table is written too, so that the file is never without its schema.
                for first in range(0, max(1, len(results)), GROUP_ROWS):
                    part = _result_rows(results, slice(first, first + GROUP_ROWS))
                    writer.write_table(self._result_table(part))
            finally:
                writer.close()
        with writing(path):
            self.result_bytes = disk.sync(hidden)
        self.finished.append(Output(f"{self.out_dir}/{hidden}", path))

    def _result_table(self, results: ResultBatch) -> pa.Table:
        text_score = results.text_score
        columns = [
            self.subscriptions.encode(results.number).dictionary_decode(),
            pa.array(results.rank),
            self.messages.encode(results.seq).dictionary_decode(),
            pa.array(results.seq),
            pa.array(results.score),
            # only `skyline` has one: null says so, where NaN would be taken for a number
            pa.nulls(len(results), pa.float64()) if text_score is None else pa.array(text_score, from_pandas=True),
        ]
        return pa.Table.from_arrays(columns, schema=RESULT_SCHEMA)


def _part(state: Mapping[str, np.ndarray], name: str) -> dict[str, np.ndarray]:
    return {path.removeprefix(f"{name}:"): values for path, values in state.items() if path.startswith(f"{name}:")}


def _result_rows(results: ResultBatch, rows: NDArray[np.integer] | slice) -> ResultBatch:
    text_score = None if results.text_score is None else results.text_score[rows]
    return ResultBatch(results.number[rows], results.rank[rows], results.seq[rows], results.score[rows], text_score)
