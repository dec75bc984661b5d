"""The whole way of a stream through the topology, of one kind of subscription: by which router, over how many bolts.

On Ray the wall clock counts, from when everybody has subscribed; in one process a run goes on from where one query bolt
has the window full and everybody subscribed (`filled`). Ways take turns (`compare`). What all of them tell must be the
same by digest, and what one of them wrote is held against an independent computation (`checked`). Read on in
`benchmarks.routers`, which simulates many bolts.
"""

import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.cases import Case
from benchmarks.checker import held_against
from benchmarks.command import Tell
from benchmarks.stopwatch import Stopwatch, in_turns, medians
from benchmarks.verdict import verdict
from benchmarks.workload import NO_REMOVALS, WORLD, changed
from bolts.delivery import DeliveryBolt
from bolts.payloads import StreamBatch
from bolts.query import QueryBolt
from distribution.placement.costs import SampleCosts
from distribution.routers import router_named
from matching.model import (
    CHANGES,
    ChangeList,
    MessageBatch,
    Names,
    SubscriptionTable,
    UpdateBatch,
    empty,
)
from matching.window import Boundary, Window
from topology import wiring
from topology.core import local
from topology.core.component import Context, Saved, Spout, Tick
from topology.core.metrics import RunReport, Snapshot
from topology.core.plan import Plan
from topology.core.runner import run_ray
from topology.running import LIGHT

#: Messages by which `location` cuts the world and placements count costs, and subscriptions that are checked.
_SAMPLE, _CHECKED = 10_000, (500, 1_000)
#: Messages of a kind without window that are checked: plain Python looks at every pair.
_CHECKED_MESSAGES = 2_000


class Stream(NamedTuple):
    """Batches of one kind's case: those that fill the window, one with which everybody subscribes, those that count."""

    case: Case
    boundaries: list[Boundary]
    joined: int

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
    def left(self) -> int:
        """Messages from that batch on."""
        return len(self.case.messages) - self.boundaries[self.loaded].first_seq

    @property
    def timed(self) -> int:
        """Messages after everybody has subscribed."""
        return self.boundaries[-1].last_seq - self.boundaries[self.joined].last_seq


def stream_of(case: Case, batch: int) -> Stream:
    """Cut a case; of a kind without window what passed before is left out."""
    case = case._replace(batch=batch)
    if not case.kind.windowed:
        seq = np.arange(len(case.messages) - case.filled)
        messages = changed(case.messages.take(case.filled + seq), seq=seq, life=seq)
        case = case._replace(messages=messages, filled=0, window=Window("count", batch))
    count = len(case.messages)
    cuts = [*range(0, case.filled, 5_000), *range(case.filled, count, batch), count]
    boundaries = [case.boundary(number, *ends) for number, ends in enumerate(zip(cuts, cuts[1:], strict=False))]
    return Stream(case, boundaries, len(range(0, case.filled, 5_000)))


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
        parts = map(self.stream.case.batch_of, self.stream.boundaries)
        self.batches = [(part, message_names(part), ended) for part, ended in parts]

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
    messages = stream.case.messages
    sample = messages.take(np.arange(min(_SAMPLE, len(messages))))
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
    last = len(stream.boundaries)
    if not stream.case.kind.windowed:
        last = stream.joined + max(1, _CHECKED_MESSAGES // stream.case.batch) + 1
    judged = verdict(*held_against(stream.case, told, stream.boundaries[stream.joined : last], _CHECKED))
    return judged, digest_of(report)


def digest_of(report: RunReport) -> str:
    """Of all that was told."""
    return report.components["delivery"].tasks[0].figures["digest"]


def on_ray(
    stream: Stream,
    router: str = "hashing",
    bolts: int = 1,
    sink: str = "count",
    together: tuple[tuple[str, ...], ...] = (LIGHT,),
    watch: Callable[[Snapshot], None] | None = None,
    **how: Any,
) -> RunReport:
    """A run on Ray from the start; `how` as of `topology.wiring.wire`."""
    with tempfile.TemporaryDirectory(prefix="skyray-whole-") as folder:
        return run_ray(plan_of(stream, router, bolts, folder, sink, **how), on_progress=watch, together=together)


def seconds_of(report: RunReport) -> float:
    """From when the batch that brought everybody is done to the end."""
    return report.elapsed_s - report.components["messages"].tasks[0].figures["loaded_s"]


def compare(
    stream: Stream,
    ways: Mapping[str, Callable[[], dict[str, Any]]],
    rounds: int,
    tell: Tell,
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Ways to process a stream, in turns.

    Parameters
    ----------
    ways : mapping    name to a run, which says `us_per_message`, `digest`, and what it likes

    Returns
    -------
    tuple    what was checked, and whether it counts: all must tell what was checked; and a row for each way, that of
             the turn in the middle, with medians of `us_per_message` and, where there is, `cpu_us`, and all `turns_us`
    """
    judged, digest = checked(stream)
    tell(f"{stream.case.kind.name}: one bolt {judged}")

    def one(name: str, turn: int) -> dict[str, Any]:
        row = ways[name]()
        tell(f"turn {turn + 1} of {rounds}: {name}: {row['us_per_message']:.1f} us a message")
        return row

    rows = {}
    for name, turns in in_turns(ways, rounds, one).items():
        turns_us = [row["us_per_message"] for row in turns]
        middle = sorted(turns, key=lambda row: row["us_per_message"])[len(turns) // 2]
        rows[name] = middle | {"us_per_message": median(turns_us), "messages_per_s": 1e6 / median(turns_us)}
        if "cpu_us" in middle:
            rows[name]["cpu_us"] = medians([row["cpu_us"] for row in turns])
        rows[name] |= {"turns_us": turns_us, "same_updates": {row["digest"] for row in turns} == {digest}}
    same = all(row["same_updates"] for row in rows.values())
    return judged | {"exact": judged["exact"] and same, "same_updates": same}, rows
