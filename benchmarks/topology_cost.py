"""The topology over the whole way of a stream of one kind of subscription, and what it costs beside the bare operator.

    python -m benchmarks.topology_cost [--kind boolean] [--subscriptions N] [--messages N] [--ways ray_count,ray_two]

`bare` is `matching.local_engine` in this process over batches in memory; the others are the topology on Ray, as `skyray
run` has it on a small machine but with a sink that counts, with one query bolt (`ray_count`) or two (`ray_two`).
Boolean subscriptions are picky, so that matching is work and matches are few. All are timed from when everybody has
subscribed.

Whatever runs a topology, here and in `benchmarks.routers` (read on there), takes turns (`compare`): all must tell the
same by digest, and what one bolt wrote is held against an independent computation (`checked`). In one process a run
goes on from where everybody has subscribed over the full window, or with the results of a history (`filled`).
"""

import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from pickle import dumps
from statistics import median
from time import perf_counter, process_time
from typing import Annotated, Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute

from benchmarks import command
from benchmarks.cases import Case, make_case
from benchmarks.command import Tell, verdict
from benchmarks.driving import NO_REMOVALS, NO_SUBSCRIPTIONS, Batch, take
from benchmarks.harness import held_against
from benchmarks.lasting import LastingBench
from benchmarks.stopwatch import Stopwatch, in_turns, medians
from benchmarks.workload import WORLD, BooleanRecipe, changed
from bolts import state_parts
from bolts.delivery import DeliveryBolt
from bolts.names import Digest, flat_names, hash_names
from bolts.payloads import Part, StreamBatch, emit_batch
from bolts.query import QueryBolt
from distribution.location import LocationRouter
from distribution.placement.costs import SampleCosts
from distribution.router import Router
from distribution.routers import router_named
from distribution.signatures.minwise import MOST_IN_ALL
from distribution.signatures.signature import SignatureSpec
from gateway.load.check import read_delivered
from matching.bulk_oracle import of_numbers
from matching.errors import ConfigError
from matching.kind_table import Kind
from matching.kinds import KINDS
from matching.local_engine import LocalEngine
from matching.model import ChangeList, Int64, MessageBatch, Names, SubscriptionTable, empty
from matching.naive_rows import tally
from matching.storage.state import State
from matching.window import Boundary, Window
from topology import wiring
from topology.core.api.component import Bolt, Context, Saved, Spout, Tick
from topology.core.api.plan import Plan
from topology.core.executors import local
from topology.core.executors.ray import run_ray
from topology.core.metrics import RunReport
from topology.placement import LIGHT
from topology.sizing import BESIDE
from topology.summary import delivered, signature_figures
from topology.warmup import warmup

#: What boolean subscriptions are like here, and query bolts of the ways on Ray.
_PICKY, _WAYS = BooleanRecipe(keywords=(2, 5), regions="small"), {"ray_count": 1, "ray_two": 2}
#: Messages by which `location` cuts the world and placements count costs, and subscriptions that are checked.
_SAMPLE, _CHECKED = 10_000, (500, 1_000)
#: Messages of a kind without window that are checked: plain Python looks at every pair.
_CHECKED_MESSAGES = 2_000
#: Messages of a batch before everybody subscribes.
_FILLING = 5_000
_TEXT = pa.large_string()
pc: Any = pyarrow.compute  # its functions are made when it is imported, which type checkers cannot see
AnyQueryBolt = TypeVar("AnyQueryBolt", bound=QueryBolt)


class Stream(NamedTuple):
    """Batches of a case: what has passed before, `joined` with which everybody subscribes, those that count.

    `history` knows what everybody begins with, of a kind whose results last; `engine` is the default one if None.
    """

    case: Case
    boundaries: list[Boundary]
    joined: int
    history: LastingBench | None = None
    engine: str | None = None

    @property
    def credits(self) -> int:
        """Batches in flight, as many as a run would have."""
        return wiring.credits_for(self.case.batch)

    @property
    def engines(self) -> Mapping[str, str]:
        """The engine by kind, where it is not the default one."""
        return {self.case.kind.name: self.engine} if self.engine else {}

    @property
    def loaded(self) -> int:
        """The batch that can only be sent when all that everybody was told on subscribing is out.

        A credit may come back while updates of as many batches before are missing as there are credits; of a kind
        without window nobody is told anything on subscribing.
        """
        return self.joined + (2 * self.credits + 1 if self.case.kind.windowed else self.credits)

    @property
    def left(self) -> int:
        """Messages from that batch on, which count on Ray. Raises ConfigError if there are none."""
        if len(self.boundaries) <= self.loaded:
            raise ConfigError(f"on Ray the first {self.loaded} batches do not count: take more --messages")
        return len(self.case.messages) - self.boundaries[self.loaded].first_seq

    @property
    def timed(self) -> int:
        """Messages after everybody has subscribed."""
        return self.boundaries[-1].last_seq - self.boundaries[self.joined].last_seq


def stream_of(case: Case, batch: int, engine: str | None = None) -> Stream:
    """Cut a case; of a kind without window and results what passed before is left out."""
    case, history, apart = case._replace(batch=batch), None, []
    if case.kind.cumulative:
        history = LastingBench(case, 1) if len(case.table) else None
    elif not case.kind.windowed:
        seq = np.arange(len(case.messages) - case.filled)
        messages = changed(case.messages.take(case.filled + seq), seq=seq, life=seq)
        case = case._replace(messages=messages, filled=0)
    if not case.kind.windowed:
        # everybody comes with an empty batch: matches, and results of a history, are those of whole batches
        case, apart = case._replace(window=Window("count", batch)), [case.filled]
    count, before = len(case.messages), range(0, case.filled, _FILLING)
    cuts = [*before, *apart, *range(case.filled, count, batch), count]
    boundaries = [case.boundary(number, *ends) for number, ends in enumerate(zip(cuts, cuts[1:], strict=False))]
    return Stream(case, boundaries, len(before), history, engine)


def named(prefix: str, numbers: Int64) -> Names:
    """What messages (`m5`) and subscriptions (`topk-5`) are called."""
    if not numbers.shape[0]:
        return Names.of(())
    digits, prefix, between = pa.array(numbers).cast(_TEXT), pa.scalar(prefix, _TEXT), pa.scalar("", _TEXT)
    return flat_names(pc.binary_join_element_wise(prefix, digits, between))


class BatchSpout(Spout):
    """Clock spout over a stream in memory, which says when it sent each batch."""

    def __init__(self, stream: Stream):
        self.stream = stream

    def open(self, context: Context) -> None:
        self.context, self.sent_s, self.cpu_s = context, [], []
        # names are made before the clock runs
        parts = map(self.stream.case.batch_of, self.stream.boundaries)
        self.batches = [(part, named("m", part.seq), ended) for part, ended in parts]

    def next_batch(self, number: int, tick: Tick | None) -> Tick | None:
        if number == len(self.stream.boundaries):
            return None
        self.sent_s.append(self.context.now())
        self.cpu_s.append(process_time())
        boundary = self.stream.boundaries[number]
        return emit_batch(self.context, StreamBatch(boundary, *self.batches[number], published_s=self.sent_s[-1]))

    def report(self) -> dict[str, Any]:
        return {"sent_s": self.sent_s, "cpu_s": [*self.cpu_s, process_time()]}


class EverybodySpout(Spout):
    """Following spout: all subscriptions with one batch."""

    def __init__(self, stream: Stream):
        self.joined, self.kind, self.table = stream.joined, stream.case.kind.name, stream.case.table

    def open(self, context: Context) -> None:
        self.context = context

    def next_batch(self, number: int, tick: Tick | None) -> Tick | None:
        assert tick is not None, "it follows the clock"
        added = empty(SubscriptionTable)
        if number == self.joined:
            added = changed(self.table, at=np.full(len(self.table), tick.first_seq))
        names = named(f"{self.kind}-", added.number)
        self.context.emit("changes", ChangeList(number, added, names, NO_REMOVALS))
        return tick


class ClockedQueryBolt(QueryBolt):
    """A query bolt that says what its operators did since they were restored, and its processor time at each batch."""

    def prepare(self, context: Context) -> None:
        super().prepare(context)
        self.watches, self.cpu_s = [], []

    def restore(self, saved: Saved) -> None:
        super().restore(saved)
        self.watches = [Stopwatch(operator) for operator in self.operators.values()]

    def _process(self, changes: ChangeList, part: Part) -> None:
        self.cpu_s.append(process_time())
        super()._process(changes, part)

    def report(self) -> dict[str, Any]:
        clocked = sum((Counter(watch.seconds) for watch in self.watches), Counter())
        return super().report() | {"clocked_s": dict(clocked), "cpu_s": [*self.cpu_s, process_time()]}


def sample_of(stream: Stream) -> MessageBatch:
    """The first messages."""
    return stream.case.messages.take(np.arange(min(_SAMPLE, len(stream.case.messages))))


def router_of(stream: Stream, name: str, bolts: int) -> Router:
    """A router that knows the first messages; `ROUTER+MODE` with signatures, `location+scf...` with `printed_spec`."""
    sample = sample_of(stream)
    plain, _, mode = name.partition("+")
    if mode.startswith("scf") and plain == LocationRouter.name:
        return LocationRouter(bolts, WORLD, sample.x, sample.y, printed_spec(mode, bolts))
    return router_named(
        plain, bolts, WORLD, lambda: (sample.x, sample.y), mode or "off", costs=lambda: SampleCosts(WORLD, sample)
    )


def printed_spec(mode: str, bolts: int) -> SignatureSpec:
    """Signatures in the parameters of the skyline paper: `scf`, or with textual ones `scf:READING:LEVELS`.

    The spatial filter has fingerprints of 10 bits and 2,048 cells a side: the paper has 2,000, ours are powers of two.
    READING is one of `distribution.signatures.minwise.READINGS`; LEVELS are of the world's quadtree, below its root.
    """
    reading, _, levels = mode.removeprefix("scf").removeprefix(":").partition(":")
    text = {"text_filter": reading, "levels": int(levels)} if reading else {}
    most = max(1, MOST_IN_ALL // bolts)
    return SignatureSpec(WORLD, bool(text), side=2_048, rate=0.01, spatial_filter="cuckoo", most=most, **text).check()


def query_bolt(stream: Stream, router: Router, which: type[AnyQueryBolt]) -> AnyQueryBolt:
    """A query bolt of the topology over a stream."""
    case = stream.case
    return which(router, WORLD, case.window, stream.engines, kinds=KINDS, fading=case.fading)


def with_bolts(plan: Plan, bolts: Mapping[str, Bolt]) -> Plan:
    """A plan with other bolts in the place of some components."""
    parts = [
        replace(part, template=dumps(bolts[part.name])) if part.name in bolts else part for part in plan.components
    ]
    return replace(plan, components=tuple(parts))


def plan_of(
    stream: Stream, router: Router, out: str, sink: str = "count", beside: Mapping[str, int] | None = None,
    resumed: bool = False,
) -> Plan:  # fmt: skip
    """The topology over a stream; `beside` as of `topology.sizing.beside`, one task of each component by default.

    `resumed`: everybody has subscribed already.
    """
    case, nobody = stream.case, empty(SubscriptionTable)
    # whatever results of a history hold is named when they let it go
    told = Window("count", len(case.messages)) if case.kind.cumulative else case.window
    delivery, sample = DeliveryBolt(out, told, stream.credits, sink), sample_of(stream)
    # a plan has copies of all that its spouts have
    batches = stream._replace(history=None, case=case._replace(table=nobody, fresh=nobody, draw=None))
    numbers: dict[str, Any] = {BESIDE[name]: tasks for name, tasks in (beside or {}).items()}
    plan = wiring.wire(
        BatchSpout(batches), EverybodySpout(batches if resumed else stream), router, WORLD, case.window, delivery,
        credits=stream.credits,
        kinds=KINDS, engines=stream.engines, used_kinds=(case.kind.name,), fading=case.fading,
        window_points=(sample.x, sample.y), **numbers,
    )  # fmt: skip
    return with_bolts(plan, {"query": query_bolt(stream, router, ClockedQueryBolt)})


def paused(stream: Stream, sink: str) -> Saved:
    """One query bolt behind the batch with which everybody subscribes."""
    with tempfile.TemporaryDirectory(prefix="skyray-whole-") as out:
        return local.pause_local(plan_of(stream, router_of(stream, "hashing", 1), out, sink), stream.joined)


def filled(stream: Stream) -> Saved:
    """Everybody subscribed, by one query bolt: over the full window, or with the results of the history."""
    if stream.case.kind.windowed:
        return paused(stream, "parquet")
    case = stream.case
    saved = paused(stream._replace(case=case._replace(table=empty(SubscriptionTable))), "parquet")
    names = named(f"{case.kind.name}-", case.table.number)
    state = State.of(case.table) if stream.history is None else stream.history.filled()
    return subscribed(with_ids(saved, len(case.table), names._asdict()), case.kind, state)


def with_ids(saved: Saved, count: int, ids: Mapping[str, np.ndarray]) -> Saved:
    """Delivery knows so many subscriptions: their names, or the hashes of these, as of `bolts.names.IdColumn.state`."""
    column = {"first": np.array(0), "end": np.array(count), "kept": np.zeros(0, np.int64), **ids}
    delivery = {**saved.single("delivery"), **state_parts.named("subscriptions", column)}
    return saved._replace(parts={**saved.parts, "delivery": [delivery]})


def subscribed(saved: Saved, kind: Kind, state: State) -> Saved:
    """A single query task has these subscriptions of a kind."""
    query = {**saved.single("query"), **state_parts.named(kind.name, state.arrays())}
    return saved._replace(parts={**saved.parts, "query": [query]})


def checked(stream: Stream, saved: Saved) -> tuple[dict[str, Any], str]:
    """What one query bolt writes of the batches that count, against an independent computation; and its digest."""
    case, history, behind = stream.case, stream.history, stream.joined + 1
    if history is None:
        last = None if case.kind.windowed else behind + max(1, _CHECKED_MESSAGES // case.batch)
        boundaries = stream.boundaries[stream.joined : last]
    else:
        boundaries = stream.boundaries[behind : behind + max(1, history.checked // case.batch)]
    with tempfile.TemporaryDirectory(prefix="skyray-whole-") as out:
        plan = plan_of(stream, router_of(stream, "hashing", 1), out, "parquet", resumed=True)
        digest = told_by(local.run_local(plan, resume=saved), stream)["digest"]
        subscriptions = pa.array(named(f"{case.kind.name}-", case.table.number).strings())
        messages = pa.array(named("m", case.messages.seq).strings())
        told, misnamed = read_delivered(Path(out), subscriptions, messages, -1, boundaries[-1].last_seq)
    if history is None:
        same, *compared = held_against(case, told, boundaries, _CHECKED)
        return verdict(same and not misnamed, *compared), digest
    wanted = history.expect(history.sample, boundaries).updates
    same = not misnamed and tally(of_numbers(told, history.sample.number)) == wanted
    return verdict(same, wanted.total(), len({event[1] for event in wanted})), digest


def told_by(report: RunReport, stream: Stream, router: str = "hashing") -> dict[str, Any]:
    """Digest, the papers' measures of routing, and what signatures cost and save."""
    figures = {name: [task.figures for task in part.tasks] for name, part in report.components.items()}
    query, kind, mode = figures["query"], stream.case.kind.name, router.partition("+")[2]
    return {
        **({"signatures": signature_figures(mode, figures, stream.timed)} if mode else {}),
        "digest": delivered(figures["delivery"])["digest"],
        "found_per_message": sum(bolt["hits_sent"].get(kind, 0) for bolt in query) / stream.timed,
        "held_per_subscription": sum(bolt["subscriptions"][kind] for bolt in query) / max(1, len(stream.case.table)),
    }


def on_ray(stream: Stream, router: str, bolts: int) -> dict[str, Any]:
    """A run on Ray, timed from when everybody is in; `cpu_us`: of each query bolt, and of all else, in one process."""
    with tempfile.TemporaryDirectory(prefix="skyray-whole-") as out:
        report = run_ray(plan_of(stream, router_of(stream, router, bolts), out), together=(LIGHT,))
    spout, each_us, loaded = report.components["messages"].tasks[0].figures, 1e6 / stream.left, stream.loaded
    processes = {"light": spout["cpu_s"]}
    processes |= {f"query:{task.task}": task.figures["cpu_s"] for task in report.components["query"].tasks}
    return {
        "us_per_message": each_us * (report.elapsed_s - spout["sent_s"][loaded] + spout["sent_s"][0]),
        "cpu_us": {name: each_us * (spent[-1] - spent[loaded]) for name, spent in processes.items()},
        **told_by(report, stream, router),
    }


def compare(
    stream: Stream, saved: Saved, ways: Mapping[str, Callable[[], dict[str, Any]]], rounds: int, tell: Tell
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Ways to process a stream, in turns: name to a run, which says `us_per_message`, `digest`, and what it likes.

    Returns what was checked, and whether it counts: all must tell what was checked, but for those whose signatures say
    that they lose; and a row for each way, that of the turn in the middle, with medians of `us_per_message` and, where
    there is, `cpu_us`, and all `turns_us`.
    """
    judged, digest = checked(stream, saved)
    tell(f"{stream.case.kind.name}: one bolt {judged}")

    rows = taken_in_turns(ways, rounds, tell)
    for row in rows.values():
        row["same_updates"] = row.pop("digests") == [digest]
    same = all(row["same_updates"] for row in rows.values() if not row.get("signatures", {}).get("lost"))
    return judged | {"exact": judged["exact"] and same, "same_updates": same}, rows


def taken_in_turns(
    ways: Mapping[str, Callable[[], dict[str, Any]]], rounds: int, tell: Tell
) -> dict[str, dict[str, Any]]:
    """A row for each way, as `compare` says; `digests` has what its turns told, each once."""

    def one(name: str, turn: int) -> dict[str, Any]:
        row = ways[name]()
        tell(f"turn {turn + 1} of {rounds}: {name}: {row['us_per_message']:.1f} us a message")
        return row

    rows = {}
    for name, turns in in_turns(ways, rounds, one).items():
        turns_us, digests = [row["us_per_message"] for row in turns], {row["digest"] for row in turns}
        middle, us = sorted(turns, key=lambda row: row["us_per_message"])[len(turns) // 2], median(turns_us)
        rows[name] = middle | {"us_per_message": us, "messages_per_s": 1e6 / us, "turns_us": turns_us}
        rows[name]["digests"] = sorted(digests)
        if "cpu_us" in middle:
            rows[name]["cpu_us"] = medians([row["cpu_us"] for row in turns])
    return rows


def bare(stream: Stream) -> dict[str, Any]:
    """The operator alone: the batches that are timed, and the digest of all it tells."""
    case, told, digest, begun = stream.case, [], Digest(), perf_counter()
    alone = LocalEngine([case.kind], WORLD, case.window)
    for boundary in stream.boundaries:
        batch, ended = case.batch_of(boundary)
        if boundary.number == stream.loaded:
            begun = perf_counter()
        added = case.table if boundary.number == stream.joined else NO_SUBSCRIPTIONS
        told.append(take(alone, Batch(boundary, batch, added, ended=ended)).output.updates)
    us = 1e6 * (perf_counter() - begun) / stream.left
    messages = hash_names(named("m", case.messages.seq))
    everybody = hash_names(named(f"{case.kind.name}-", case.table.number))
    for updates in told:
        digest.add(updates, everybody[updates.number], messages[updates.seq])
    return {"us_per_message": us, "digest": digest.hex()}


def bench(
    subscriptions: Annotated[int, "how many"] = 1_000_000,
    messages: Annotated[int, "how many"] = 500_000,
    batch: Annotated[int, "messages between two boundaries"] = 5_000,
    kind: Annotated[str, "of the subscriptions: boolean, topk or skyline"] = "boolean",
    rounds: Annotated[int, "turns of each way"] = 3,
    seed: Annotated[int, "of the workload"] = 0,
    ways: Annotated[tuple[str, ...], "on Ray, the first of which is set beside the bare engine"] = tuple(_WAYS),
    window: Annotated[int | None, "messages in it; four batches, and 20,000 at least, by default"] = None,
    tell: Tell = print,
) -> dict[str, Any]:
    """`ways`: a row each as of `compare`; `share`: rate of the first on Ray by that of `bare`, `shares`: of turns."""
    warmup()
    tell("making the workload")
    row = KINDS.named(kind)
    recipe, window = _PICKY if row.message_place == "box" else None, window or max(4 * batch, 20_000)
    stream = stream_of(make_case(row, subscriptions, messages, window, 1, seed, recipe=recipe, batch=batch), batch)
    facts = stream.case.facts | {"kind": kind, "timed": stream.left, "rounds": rounds}
    runs = {"bare": partial(bare, stream)}
    runs |= {name: partial(on_ray, stream, "hashing", _WAYS[name]) for name in ways}
    tell(f"loading {subscriptions:,} subscriptions into one bolt")
    judged, rows = compare(stream, filled(stream), runs, rounds, tell)
    turns = zip(rows["bare"]["turns_us"], rows[ways[0]]["turns_us"], strict=True)
    share = rows[ways[0]]["messages_per_s"] / rows["bare"]["messages_per_s"]
    return {"workload": facts, "ways": rows, "share": share, "shares": [a / b for a, b in turns], **judged}


if __name__ == "__main__":
    from benchmarks import topology_cost  # actors cannot import classes of the main script

    sys.exit(command.main(topology_cost.bench))
