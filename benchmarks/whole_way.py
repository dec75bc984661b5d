"""The whole way of a stream through the topology, of one kind of subscription: by which router, over how many bolts.

The window is filled and everybody subscribed once, by one query bolt; every router and number of bolts then goes on
from there, as a run that is gone on with does. In one process each task's time is booked to it, with what packing and
unpacking its parcels takes, as between processes (`weighed`); on Ray the wall clock counts. What all of them tell must
be the same by digest, and what one of them wrote is held against an independent computation (`checked`). Read on in
`benchmarks.routers`, which compares.
"""

import contextlib
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter_ns
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.cases import Case
from benchmarks.checker import sampled, told_to
from benchmarks.stopwatch import Stopwatch
from benchmarks.verdict import verdict
from benchmarks.workload import NO_REMOVALS, WORLD, changed
from bolts.delivery import DeliveryBolt
from bolts.payloads import StreamBatch
from bolts.query import QueryBolt
from distribution.placement.costs import SampleCosts
from distribution.routers import router_named
from matching.model import (
    CHANGES,
    NO_MESSAGES,
    ChangeList,
    MessageBatch,
    Names,
    SubscriptionTable,
    UpdateBatch,
    empty,
    take_rows,
)
from matching.naive import tally
from matching.window import Boundary, Window
from topology import wiring
from topology.core import local
from topology.core.component import Context, Saved, Spout, Tick
from topology.core.payload import pack, unpack
from topology.core.plan import Plan

#: Messages by which `location` cuts the world and placements count costs, and subscriptions that are checked.
_SAMPLE, _CHECKED = 10_000, (500, 1_000)
#: Messages of a kind without window that are checked: plain Python looks at every pair.
_CHECKED_MESSAGES = 2_000


class Stream(NamedTuple):
    """Batches of one kind's case: those that fill the window, one with which everybody subscribes, those that count."""

    case: Case
    messages: MessageBatch
    boundaries: list[Boundary]
    joined: int

    def batch(self, number: int) -> MessageBatch:
        boundary = self.boundaries[number]
        return self.messages.take(np.arange(boundary.first_seq, boundary.last_seq + 1))

    def ended(self, number: int) -> MessageBatch:
        if self.case.ends is None:
            return NO_MESSAGES
        boundary = self.boundaries[number]
        ends = self.case.ends[boundary.first_seq : boundary.last_seq + 1]
        return self.messages.take(np.sort(ends[ends >= 0]))

    @property
    def loaded(self) -> int:
        """The batch that can only be sent when all that everybody was told on subscribing is out.

        A credit may come back while updates of as many batches before are missing as there are credits; of a kind
        without window nobody is told anything on subscribing.
        """
        return self.joined + (2 * self.credits + 1 if self.case.kind.windowed else self.credits)

    @property
    def credits(self) -> int:
        """Batches in flight, as many as a run would have."""
        return wiring.credits_for(self.case.batch)

    @property
    def timed(self) -> int:
        """Messages after everybody has subscribed."""
        return self.boundaries[-1].last_seq - self.boundaries[self.joined].last_seq


def stream_of(case: Case, batch: int) -> Stream:
    """Cut a case; of a kind without window what passed before is left out."""
    messages, filled, case = case.messages, case.filled, case._replace(batch=batch)
    if not case.kind.windowed:
        seq = np.arange(len(messages) - filled)
        messages, filled = changed(messages.take(filled + seq), seq=seq, life=seq), 0
        case = case._replace(window=Window("count", batch))
    cuts = [*range(0, filled, 5_000), *range(filled, len(messages), batch), len(messages)]
    boundaries = [
        Boundary(number, first, end - 1, case.window.floor(end - 1, 0))
        for number, (first, end) in enumerate(zip(cuts, cuts[1:], strict=False))
    ]
    return Stream(case, messages, boundaries, len(range(0, filled, 5_000)))


def message_names(messages: MessageBatch) -> Names:
    """What messages are called."""
    return Names.of([f"m{seq}" for seq in messages.seq])


def subscription_names(table: SubscriptionTable) -> Names:
    """What subscriptions are called: as in checkouts whose digests `benchmarks.against` compares with."""
    return Names.of([str(number) for number in table.number])


class BatchSpout(Spout):
    """Clock spout over a stream in memory."""

    def __init__(self, stream: Stream):
        self.stream = stream

    def open(self, context: Context) -> None:
        self.context, self.began_s, self.loaded_s = context, context.now(), 0.0
        # names are made before the clock runs
        self.batches = [
            (part, message_names(part), self.stream.ended(boundary.number))
            for boundary in self.stream.boundaries
            for part in [self.stream.batch(boundary.number)]
        ]

    def next_batch(self, number: int, tick: Tick | None) -> Tick | None:
        if number == len(self.stream.boundaries):
            return None
        now = self.context.now()
        if number == 0:
            self.began_s = now
        if number == self.stream.loaded:
            self.loaded_s = now - self.began_s
        boundary = self.stream.boundaries[number]
        self.context.emit("batches", StreamBatch(boundary, now, *self.batches[number]), to=0)
        return Tick(number, boundary.first_seq, boundary.last_seq)

    def report(self) -> dict[str, Any]:
        return {"loaded_s": self.loaded_s}


class EverybodySpout(Spout):
    """Following spout: the whole table with one batch."""

    def __init__(self, table: SubscriptionTable, joined: int):
        self.table, self.joined = table, joined

    def open(self, context: Context) -> None:
        self.context = context

    def next_batch(self, number: int, tick: Tick | None) -> Tick | None:
        assert tick is not None, "it follows the clock"
        added = empty(SubscriptionTable)
        if number == self.joined:
            added = changed(self.table, at=np.full(len(self.table), tick.first_seq))
        self.context.emit("changes", ChangeList(number, added, subscription_names(added), NO_REMOVALS))
        return tick


class ClockedQueryBolt(QueryBolt):
    """A query bolt that says where the time of its rooms goes."""

    def prepare(self, context: Context) -> None:
        super().prepare(context)
        self.watches = [Stopwatch(room) for room in self.rooms.values()]

    def restore(self, saved: Saved) -> None:
        super().restore(saved)
        for watch in self.watches:
            watch.reset()

    def report(self) -> dict[str, Any]:
        clocked = sum((Counter(watch.seconds) for watch in self.watches), Counter())
        return super().report() | {"clocked_s": dict(clocked)}


def plan_of(stream: Stream, router: str, bolts: int, out: str, sink: str = "count", **how: Any) -> Plan:
    """The topology over a stream; `how` as of `topology.wiring.wire`."""
    sample = stream.messages.take(np.arange(min(_SAMPLE, len(stream.messages))))
    placed = router_named(router, bolts, WORLD, lambda: (sample.x, sample.y), costs=lambda: SampleCosts(WORLD, sample))
    how, plain = {"asking": (stream.case.kind.name,)} | how, wiring.QueryBolt
    wiring.QueryBolt = ClockedQueryBolt  # type: ignore[misc]
    try:
        return wiring.wire(
            BatchSpout(stream), EverybodySpout(stream.case.table, stream.joined), placed, WORLD, stream.case.window,
            DeliveryBolt(out, stream.case.window, stream.credits, sink=sink), credits=stream.credits, **how,
        )  # fmt: skip
    finally:
        wiring.QueryBolt = plain  # type: ignore[misc]


class _Weighed(local._LocalChannel):
    """Links that pack and unpack what they carry, and book that to who would do it."""

    book: "Booked"

    def send(self, destinations: Any, payload: Any, size_bytes: int) -> None:
        carried = [address for address, edge, _ in destinations if edge >= 0 and address != self._sender]
        if carried:
            begun = perf_counter_ns()
            pieces = pack(payload, 1 << 62)
            packed = perf_counter_ns()
            unpack(pieces)
            done = perf_counter_ns()
            self.book.packing[self._sender] += packed - begun
            # it ran inside the sender's time, and belongs to the receivers
            self.book.out_of[self._sender] += done - packed
            for address in carried:
                self.book.unpacking[address] += done - packed
                self.book.carried_bytes += sum(map(len, pieces))
        super().send(destinations, payload, size_bytes)


class Booked:
    """Nanoseconds of packing and unpacking by address, and bytes that went between tasks."""

    def __init__(self):
        self.packing: Counter[int] = Counter()
        self.unpacking: Counter[int] = Counter()
        self.out_of: Counter[int] = Counter()
        self.carried_bytes = 0


@contextlib.contextmanager
def weighed() -> Iterator[Booked]:
    """Have runs in this process pack and unpack as between processes."""
    plain, book = local._LocalChannel, Booked()
    local._LocalChannel = type("Weighed", (_Weighed,), {"book": book})  # type: ignore[misc]
    try:
        yield book
    finally:
        local._LocalChannel = plain  # type: ignore[misc]


def filled(stream: Stream, out: str, sink: str = "count") -> Saved:
    """The window full and everybody subscribed, by one query bolt."""
    return local.pause_local(plan_of(stream, "hashing", 1, out, sink), stream.joined)


def told_in(out: str) -> tuple[list[str], UpdateBatch]:
    """The updates in the files of a run whose subscriptions are called `NUMBER` or `KIND-NUMBER`; the kinds first."""
    rows = pa.concat_tables(pq.read_table(path) for path in sorted(Path(out, "updates").glob("*.parquet")))
    names = [name.rpartition("-") for name in rows["subscription_id"].to_pylist()]
    number = np.array([int(own) for _, _, own in names], np.int64)
    change = np.array([CHANGES.index(word) for word in rows["change"].cast(pa.string()).to_pylist()], np.int8)
    score = rows["score"].cast(pa.float64()).fill_null(float("nan")).to_numpy().copy()
    told = UpdateBatch(rows["as_of"].to_numpy().copy(), number, rows["seq"].to_numpy().copy(), change, score)
    return [kind for kind, _, _ in names], told


def checked(stream: Stream) -> tuple[dict[str, Any], str]:
    """What one query bolt writes of the batches that count, against an independent computation; and its digest."""
    with tempfile.TemporaryDirectory(prefix="skyray-whole-") as out:
        saved = filled(stream, out, "parquet")
        report = local.run_local(plan_of(stream, "hashing", 1, out, "parquet"), resume=saved)
        _, told = told_in(out)
    joined, last = stream.boundaries[stream.joined], stream.boundaries[-1]
    if not stream.case.kind.windowed:
        last = stream.boundaries[min(stream.joined + max(1, _CHECKED_MESSAGES // stream.case.batch), last.number)]
    mine = np.flatnonzero((told.as_of > joined.last_seq) & (told.as_of <= last.last_seq))
    told = take_rows(told, mine)
    sample = sampled(stream.case.table, told, *_CHECKED)
    kept = np.flatnonzero(np.isin(told.number, sample.number))
    boundaries = stream.boundaries[joined.number : last.number + 1]
    wanted = told_to(stream.case, stream.messages, sample, boundaries).updates
    found = tally(take_rows(told, kept))
    judged = verdict(found == wanted, wanted.total(), len({event[1] for event in wanted}))
    return judged, report.components["delivery"].tasks[0].figures["digest"]
