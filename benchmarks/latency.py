"""From due to told: how long an update takes in steady state, at half the rate that the same topology can keep.

    python -m benchmarks.latency [--boolean N] [--topk N] [--seconds N] [--rate N] [--credits N] [--rounds 3]
                                 [--executors local,ray]

The load of `skyray loadtest` (`gateway.loadtest`): batches close when they are full or by linger time, the run is saved
while it goes on, the warm-up is told apart. Here updates are written to files as well, by which each timed run is held
against an independent computation at its own boundaries: what comes first after the warm-up. The rate is half of what
was reached where every message was due at once, if none is given. Read on in `spouts.paced`, which keeps the schedule.
"""

import os
import sys
import tempfile
from dataclasses import replace
from pickle import dumps
from statistics import median
from typing import Annotated, Any, NamedTuple

import numpy as np

from benchmarks import command
from benchmarks.cases import Case
from benchmarks.checker import held_against
from benchmarks.command import Tell
from benchmarks.stopwatch import in_turns
from benchmarks.verdict import verdict
from benchmarks.whole_way import told_in
from benchmarks.workload import WORLD
from bolts.delivery import DeliveryBolt
from gateway.loadtest import Pace, load_plan
from matching.kinds import KINDS
from matching.model import MessageBatch, SubscriptionTable, UpdateBatch, concatenate, take_rows
from matching.warmup import warmup
from matching.window import Window
from spouts.generated import Recipe, generate_messages
from spouts.paced import GeneratedSubscriptions
from topology.core.committing import Checkpoints
from topology.core.local import run_local
from topology.core.marking import Cadence
from topology.core.metrics import RunReport
from topology.core.plan import Plan
from topology.core.runner import run_ray
from topology.core.store import CheckpointStore
from topology.running import shared_by_default
from topology.settings import LIVE_CREDITS

_CHECKPOINT_S = 10.0
#: Messages of a batch at most, and behind the warm-up so many messages are checked, of so many subscriptions.
_LARGEST, _CHECKED_MESSAGES, _CHECKED = 500, 4_000, (400, 400)
#: The peak is what is reached over so many.
_PEAK_MESSAGES = 60_000


class Load(NamedTuple):
    """What is published, and who is subscribed; as in `gateway.loadtest.load_plan`."""

    counts: dict[str, int]
    window: str
    seed: int
    credits: int = LIVE_CREDITS

    def plan(self, pace: Pace, out: str) -> Plan:
        """The topology, with files of updates below `out`."""
        plan = load_plan(pace, self.counts, self.window, 1, "hashing", self.credits, self.seed)
        span, lasting = Window.parse(self.window), tuple(kind.code for kind in KINDS if kind.lasting)
        bolt = DeliveryBolt(out, span, self.credits, file_rows=None, lasting=lasting, steady_from=pace.warming)
        parts = (replace(p, template=dumps(bolt)) if p.name == "delivery" else p for p in plan.components)
        return replace(plan, components=tuple(parts))

    def messages(self, count: int) -> MessageBatch:
        """The first messages."""
        made = generate_messages(Recipe(seed=self.seed), Window.parse(self.window), WORLD, _LARGEST, count)
        return concatenate([batch.messages for batch in made])

    def subscriptions(self) -> SubscriptionTable:
        """All of them."""
        return GeneratedSubscriptions(Recipe(seed=self.seed), Window.parse(self.window), WORLD, self.counts)._make()


def run(load: Load, pace: Pace, executor: str, out: str) -> RunReport:
    """One run, as `skyray loadtest` has it."""
    saved = Checkpoints(CheckpointStore(os.path.join(out, "checkpoints")), Cadence(_CHECKPOINT_S), out)
    plan = load.plan(pace, out)
    if executor == "local":
        return run_local(plan, checkpoints=saved)
    return run_ray(plan, together=shared_by_default(plan, None), checkpoints=saved)


def told_by(out: str, kind: str) -> UpdateBatch:
    """What subscriptions of a kind were told, by the files."""
    kinds, told = told_in(out)
    return take_rows(told, np.flatnonzero([each == kind for each in kinds]))


def checked(load: Load, out: str, first: int) -> dict[str, Any]:
    """What was told behind message `first` against what had to be, of every kind."""
    table, last = load.subscriptions(), first + _CHECKED_MESSAGES
    messages, window, parts = load.messages(last), Window.parse(load.window), []
    for name in (name for name, count in load.counts.items() if count):
        kind, told = KINDS.named(name), told_by(out, name)
        mine = table.take(np.flatnonzero(table.kind == kind.code))
        case = Case(kind, messages, mine, window, 0, last, _LARGEST, {})
        # a boundary at which nobody was told anything changes nothing for anybody
        ends = np.unique(told.as_of[(told.as_of >= first) & (told.as_of < last)]).tolist()
        if len(ends) < 2:
            return verdict(False, 0, 0)
        boundaries = [case.boundary(at, 0, end + 1) for at, end in enumerate(ends)]
        parts.append(held_against(case, told, boundaries, _CHECKED))
    same, compared, subscriptions = zip(*parts, strict=True)
    return verdict(all(same), sum(compared), sum(subscriptions))


def bench(
    boolean: Annotated[int, "subscriptions"] = 10_000,
    topk: Annotated[int, "subscriptions"] = 10_000,
    window: Annotated[str, "of the stream"] = "count:20000",
    seconds: Annotated[float, "of each turn, without the warm-up"] = 30.0,
    warm_up: Annotated[float, "seconds before them"] = 10.0,
    linger_ms: Annotated[float, "how long a message waits for others"] = 5.0,
    rate: Annotated[float | None, "messages a second; half the peak of each executor by default"] = None,
    executors: Annotated[tuple[str, ...], "in turns"] = ("local", "ray"),
    credits: Annotated[int, "batches in flight at most"] = LIVE_CREDITS,
    rounds: Annotated[int, "turns of each"] = 3,
    seed: Annotated[int, "of the workload"] = 0,
    tell: Tell = print,
) -> dict[str, Any]:
    """Measure the peak, then the latency at half of it, in turns.

    Returns
    -------
    dict
        By executor: `peak_per_s`, `rate`, medians over the turns of `p50_ms`, `p99_ms`, the worst `longest_ms`,
        `updates` a turn, `checkpoints`, `kept_up`, and the turns; what was checked.
    """
    warmup()
    load = Load({kind.name: 0 for kind in KINDS.run} | {"boolean": boolean, "topk": topk}, window, seed, credits)
    peaks = {}
    for name in executors:
        with tempfile.TemporaryDirectory(prefix="skyray-latency-") as out:
            report = run(load, Pace(1e9, _PEAK_MESSAGES, _LARGEST), name, out)
        peaks[name] = _PEAK_MESSAGES / report.elapsed_s
        tell(f"{name}: {peaks[name]:,.0f} messages/s at most")
    rates = {name: rate or peaks[name] / 2 for name in executors}

    def one(name: str, turn: int) -> dict[str, Any]:
        warming = round(rates[name] * warm_up)
        pace = Pace(rates[name], warming + round(rates[name] * seconds), _LARGEST, linger_ms / 1e3, warming)
        with tempfile.TemporaryDirectory(prefix="skyray-latency-") as out:
            row = _turn(run(load, pace, name, out)) | checked(load, out, warming)
        tell(
            f"turn {turn + 1} of {rounds}: {name} at {rates[name]:,.0f}/s: p50 {row['p50_ms']:.1f} ms, p99 "
            f"{row['p99_ms']:.1f} ms, {'kept up' if row['kept_up'] else 'NOT kept up'}, {row['compared']:,} updates "
            f"compared: {'right' if row['exact'] else 'WRONG, or too few'}"
        )
        return row

    turns = in_turns(executors, rounds, one)
    every = [row for rows in turns.values() for row in rows]
    facts = {"subscriptions": boolean + topk, "boolean": boolean, "topk": topk, "window": window, "seconds": seconds}
    facts |= {"warm_up": warm_up, "linger_ms": linger_ms, "checkpoint_s": _CHECKPOINT_S}
    return {
        "workload": facts | {"credits": credits, "seed": seed},
        "measured": {name: _summary(peaks[name], rates[name], turns[name]) for name in executors},
        **verdict(
            all(row["exact"] for row in every),
            min(row["compared"] for row in every), min(row["compared_subscriptions"] for row in every),
        ),
    }  # fmt: skip


def _turn(report: RunReport) -> dict[str, Any]:
    latency: dict[str, Any] = report.components["delivery"].latency
    source = report.components["messages"].tasks[0].figures
    return {
        "p50_ms": latency["p50_s"] * 1e3,
        "p99_ms": latency["p99_s"] * 1e3,
        "longest_ms": latency["max_s"] * 1e3,
        "updates": latency["count"],
        "batches": source["batches"],
        "checkpoints": len(report.checkpoints),
        "kept_up": source["behind_at_end_s"] < 1.0,
    }


def _summary(peak: float, rate: float, turns: list[dict[str, Any]]) -> dict[str, Any]:
    middle = {name: median(one[name] for one in turns) for name in ("p50_ms", "p99_ms")}
    whole = {"longest_ms": max(one["longest_ms"] for one in turns), "kept_up": all(one["kept_up"] for one in turns)}
    return {"peak_per_s": peak, "rate": rate, **middle, **whole, "turns": turns}


if __name__ == "__main__":
    from benchmarks import latency  # actors cannot import classes of the main script

    sys.exit(command.main(latency.bench))
