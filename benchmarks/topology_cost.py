"""What the topology costs: the bare engine against the whole topology on Ray, over the same messages.

    python -m benchmarks.topology_cost [--subscriptions N] [--messages N] [--batch N] [--kinds boolean topk]

A is `matching.alone` in this process, fed batches that lie in memory: the same rooms over the same windows. B is
`topology.wiring` on Ray with one query bolt and a sink that only counts, its light components in one actor as
`skyray run` has them on a small machine or each in its own (`ray_spread`), or with two query bolts (`ray_two`). All are
timed from the end of the first batch, with which the subscriptions come, to the last update, in turns, and must tell
the same updates. C is B with the Parquet sink. The boolean workload has at most 5 matches a message. What each actor
had of the processors is reported beside the rates.
"""

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from benchmarks.actors import ActorWatch
from benchmarks.provenance import provenance
from benchmarks.verdict import FEWEST_COMPARED
from benchmarks.workload import WORLD, Messages, boolean_subscriptions, make_messages, topk_subscriptions
from bolts.delivery import DeliveryBolt
from bolts.names import Digest, hash_names
from bolts.payloads import StreamBatch
from distribution.routers import router_named
from matching.alone import Alone
from matching.kinds import KINDS
from matching.model import (
    ChangeList,
    MessageBatch,
    Names,
    Removals,
    SubscriptionTable,
    concatenate,
    empty,
)
from matching.warmup import warmup
from matching.window import Boundary, Window
from topology.core.component import Context, Spout, Tick
from topology.core.metrics import RunReport
from topology.core.runner import run_ray
from topology.running import LIGHT
from topology.wiring import wire

_FEWEST_KEYWORDS = 2
_CREDITS = 4
#: Ways on Ray: sink, which components share an actor, query bolts.
_WAYS: dict[str, tuple[str, tuple[tuple[str, ...], ...], int]] = {
    "ray_count": ("count", (LIGHT,), 1),
    "ray_two": ("count", (LIGHT,), 2),
    "ray_spread": ("count", (), 1),
    "ray_parquet": ("parquet", (LIGHT,), 1),
}


def _no_removals() -> Removals:
    nobody = np.zeros(0, np.int64)
    return Removals(nobody, nobody.astype(np.int8), nobody)


class Told(NamedTuple):
    """How many updates, and the digest of them all."""

    updates: int
    digest: str


class ArraySpout(Spout):
    """Clock spout over messages in memory, cut beforehand."""

    def __init__(self, batches: list[tuple[Boundary, MessageBatch, Names]]):
        self.batches = batches

    def open(self, context: Context) -> None:
        self.context = context

    def next_batch(self, number: int, tick: Tick | None) -> Tick | None:
        if number == len(self.batches):
            return None
        if number == 0:
            self.began_s = self.context.now()
        if number == _CREDITS:  # a credit has come back, so the first batch is done and the subscriptions are in
            self.loaded_s = self.context.now() - self.began_s
        boundary, messages, names = self.batches[number]
        self.context.emit("batches", StreamBatch(boundary, self.context.now(), messages, names), to=0)
        return Tick(number, boundary.first_seq, boundary.last_seq)

    def report(self) -> dict[str, Any]:
        return {"loaded_s": self.loaded_s}


class TableSpout(Spout):
    """Following spout: the whole table before the first message."""

    def __init__(self, table: SubscriptionTable):
        self.table = table

    def open(self, context: Context) -> None:
        self.context = context

    def next_batch(self, number: int, tick: Tick | None) -> Tick | None:
        added = self.table if number == 0 else empty(SubscriptionTable)
        names = Names.of([str(n) for n in added.number])
        self.context.emit("changes", ChangeList(number, added, names, _no_removals()))
        return tick


class Workload:
    """Messages in batches, and a table of subscriptions that are all there before the first."""

    def __init__(self, subscriptions: int, messages: int, batch: int, kinds: list[str], seed: int):
        self.window = Window("count", 4 * batch)
        self.kinds = [KINDS.named(name) for name in kinds]
        made = make_messages(100_000 + messages, seed)
        history = Messages(made.batch.take(np.arange(100_000)), made.idf)
        tables = []
        if "boolean" in kinds:
            # picky ones, so that matching is work and matches are few
            drawn = boolean_subscriptions(history, 3 * subscriptions, seed, wide_share=0.0)
            picky = np.flatnonzero(np.diff(drawn.term_offsets) >= _FEWEST_KEYWORDS)[:subscriptions]
            tables.append(drawn.take(picky))
        if "topk" in kinds:
            # beside boolean ones a few, since each is told far more
            count = subscriptions if kinds == ["topk"] else max(1, subscriptions // 100)
            tables.append(topk_subscriptions(history, count, seed))
        columns: Any = concatenate(tables)._asdict()
        columns["number"] = np.arange(sum(map(len, tables)))
        self.table = SubscriptionTable(**columns)
        self.batches = []
        for number, first in enumerate(range(0, messages, batch)):
            rows = np.arange(100_000 + first, 100_000 + min(messages, first + batch))
            taken: Any = made.batch.take(rows)._asdict()
            taken["seq"] = taken["life"] = taken["seq"] - 100_000
            part = MessageBatch(**taken)
            last = int(part.seq[-1])
            boundary = Boundary(number, int(part.seq[0]), last, self.window.floor(last, 0))
            self.batches.append((boundary, part, Names.of([f"m{seq}" for seq in part.seq])))
        self.timed = sum(len(part) for _, part, _ in self.batches[1:])

    def bare(self) -> tuple[float, Told]:
        """The rooms alone: seconds after the first batch, and what was told."""
        alone = Alone(self.kinds, WORLD, self.window)
        added, begun, told = self.table, perf_counter(), []
        for boundary, part, _ in self.batches:
            if boundary.number == 1:
                begun = perf_counter()
            told.append(alone.process(boundary, part, added, _no_removals()).updates)
            added = empty(SubscriptionTable)
        seconds, digest = perf_counter() - begun, Digest()
        messages = np.concatenate([hash_names(names) for _, _, names in self.batches])
        subscriptions = hash_names(Names.of([str(n) for n in self.table.number]))
        for updates in told:
            digest.add(updates, subscriptions[updates.number], messages[updates.seq])
        return seconds, Told(sum(map(len, told)), digest.hex())

    def on_ray(
        self, sink: str, together: tuple[tuple[str, ...], ...], query_bolts: int
    ) -> tuple[float, Told, dict[str, float]]:
        """The whole topology: seconds from the first batch's credit to the last end, what was told, and processor time
        of each actor in microseconds a message."""
        watch = ActorWatch(memory=False)
        report = run_over(self.batches, self.table, self.window, sink, together, watch, query_bolts)
        figures = report.components["delivery"].tasks[0].figures
        told = Told(sum(figures["updates"].values()), figures["digest"])
        return seconds_of(report), told, watch.cpu_us(2 * _CREDITS, len(self.batches[0][1]))


def run_over(
    batches: list[tuple[Boundary, MessageBatch, Names]],
    table: SubscriptionTable,
    window: Window,
    sink: str,
    together: tuple[tuple[str, ...], ...] = (LIGHT,),
    on_progress: Callable[[Any], None] | None = None,
    query_bolts: int = 1,
) -> RunReport:
    """Run the topology on Ray over what lies in memory, with files in a folder that is gone afterwards."""
    folder = tempfile.mkdtemp(prefix="skyray-cost-")
    try:
        plan = wire(
            ArraySpout(batches),
            TableSpout(table),
            router_named("hashing", query_bolts, WORLD, lambda: (np.zeros(0), np.zeros(0))),
            WORLD,
            window,
            DeliveryBolt(folder, window, _CREDITS, sink=sink),
            credits=_CREDITS,
        )
        return run_ray(plan, on_progress=on_progress, together=together)
    finally:
        shutil.rmtree(folder)


def seconds_of(report: RunReport) -> float:
    """From the first batch's credit, when the subscriptions are in, to the end."""
    return report.elapsed_s - report.components["messages"].tasks[0].figures["loaded_s"]


def bench(
    subscriptions: int = 1_000_000,
    messages: int = 500_000,
    batch: int = 5000,
    kinds: tuple[str, ...] = ("boolean",),
    rounds: int = 3,
    seed: int = 0,
    ways: tuple[str, ...] = tuple(_WAYS),
    on_progress: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Measure bare engine, topology and topology with files, in turns.

    Parameters
    ----------
    ways : tuple of str    of `_WAYS`, the first of which is set beside the bare engine

    Returns
    -------
    dict
        Medians in messages/s for `bare` and each way; `share` = the first way / bare;
        `shares` of the turns; `cpu_us` a message by way and actor; `same_updates`.
    """
    tell = on_progress or (lambda _: None)
    warmup()
    tell("making the workload")
    load = Workload(subscriptions, messages, batch, list(kinds), seed)
    names = ("bare", *ways)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    cpu_us: dict[str, dict[str, list[float]]] = {name: {} for name in ways}
    told: set[Told] = set()
    for turn in range(rounds):
        for name in names:
            if name == "bare":
                taken, heard = load.bare()
            else:
                taken, heard, used = load.on_ray(*_WAYS[name])
                for actor, spent in used.items():
                    cpu_us[name].setdefault(actor, []).append(spent)
            seconds[name].append(taken)
            told.add(heard)
            tell(f"turn {turn + 1} of {rounds}: {name} {load.timed / taken:,.0f} messages/s, {heard.updates:,} updates")
    rates = {name: load.timed / median(values) for name, values in seconds.items()}
    return {
        "workload": {
            "subscriptions": len(load.table), "kinds": list(kinds), "messages": load.timed, "batch": batch,
            "updates_per_message": round(max(told).updates / load.timed, 2), "rounds": rounds, "seed": seed,
        },
        "messages_per_s": rates,
        "share": rates[ways[0]] / rates["bare"],
        "shares": [bare / ray for bare, ray in zip(seconds["bare"], seconds[ways[0]], strict=True)],
        "cpu_us": {name: {actor: median(spent) for actor, spent in used.items()} for name, used in cpu_us.items()},
        "compared": max(told).updates,
        "same_updates": len(told) == 1,
    }  # fmt: skip


def main() -> int:
    """Command line; 1 if they told different updates, or too few to count."""
    parser = argparse.ArgumentParser(description="Bare engine against the whole topology on Ray.")
    parser.add_argument("--subscriptions", type=int, default=1_000_000)
    parser.add_argument("--messages", type=int, default=500_000)
    parser.add_argument("--batch", type=int, default=5000)
    parser.add_argument("--kinds", nargs="+", choices=("boolean", "topk"), default=["boolean"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ways", nargs="+", choices=tuple(_WAYS), default=list(_WAYS))
    options = vars(parser.parse_args())
    report = bench(**options, on_progress=_say)
    sys.stdout.write(json.dumps({"made_by": provenance(), **report}, indent=1) + "\n")
    return 0 if report["same_updates"] and report["compared"] >= FEWEST_COMPARED else 1


def _say(sentence: str) -> None:
    sys.stderr.write(sentence + "\n")


if __name__ == "__main__":
    from benchmarks import topology_cost  # actors cannot import classes of the main script

    sys.exit(topology_cost.main())
