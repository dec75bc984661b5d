"""From due to told: how long an update takes in steady state, at half the rate that the same topology can keep.

    python -m benchmarks.latency [--boolean N] [--topk N] [--seconds N] [--rate N] [--credits N] [--rounds 3]
                                 [--executors local,ray]

The load of `skyray loadtest` (`gateway.loadtest`): batches close when they are full or by linger time, the run is saved
while it goes on, the warm-up is told apart. Here updates are written to files as well, by which each timed run is held
against an independent computation at its own boundaries: what comes first after the warm-up. The rate is half of what
was reached where every message was due at once, if none is given. Read on in `spouts.paced`, which keeps the schedule.
"""

import itertools
import os
import sys
import tempfile
from dataclasses import replace
from pickle import dumps
from statistics import median
from typing import Annotated, Any, NamedTuple

import numpy as np

from benchmarks import command
from benchmarks.checker import expected
from benchmarks.command import Tell
from benchmarks.verdict import verdict
from benchmarks.whole_way import told_in
from benchmarks.workload import NO_REMOVALS
from bolts.delivery import DeliveryBolt
from gateway.loadtest import Pace, load_plan
from matching.kinds import KINDS
from matching.model import Int64, MessageBatch, SubscriptionTable, UpdateBatch, concatenate, take_rows
from matching.naive import Oracle, tally
from matching.space import EARTH, Space
from matching.warmup import warmup
from matching.window import NO_FLOOR, Boundary, Window
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

_SPACE, _CHECKPOINT_S = Space(*EARTH), 10.0
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
        made = generate_messages(Recipe(seed=self.seed), Window.parse(self.window), _SPACE, _LARGEST, count)
        return concatenate([batch.messages for batch in made])

    def subscriptions(self) -> SubscriptionTable:
        """All of them."""
        return GeneratedSubscriptions(Recipe(seed=self.seed), Window.parse(self.window), _SPACE, self.counts)._make()


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
    messages, window = load.messages(last), Window.parse(load.window)
    same, compared, subscriptions = True, 0, 0
    for name in (name for name, count in load.counts.items() if count):
        kind, told = KINDS.named(name), told_by(out, name)
        ends = np.unique(told.as_of[(told.as_of >= first) & (told.as_of < last)])
        if ends.shape[0] < 2:
            return verdict(False, 0, 0)
        told = take_rows(told, np.flatnonzero((told.as_of > ends[0]) & (told.as_of <= ends[-1])))
        mine = table.take(np.flatnonzero(table.kind == kind.code))
        sample = mine.take(_sampled(mine.number, told.number))
        found = tally(take_rows(told, np.flatnonzero(np.isin(told.number, sample.number))))
        wanted = _wanted(messages, sample, ends, window, kind.windowed)
        same &= found == wanted
        compared += wanted.total()
        subscriptions += len({event[1] for event in wanted})
    return verdict(same, compared, subscriptions)


def _sampled(everybody: Int64, told: Int64) -> Int64:
    """Rows of some spread evenly, and of those told most."""
    evenly, most = _CHECKED
    number, times = np.unique(told, return_counts=True)
    often = np.searchsorted(everybody, number[np.argsort(-times, kind="stable")][:most])
    return np.union1d(np.arange(0, everybody.shape[0], max(1, everybody.shape[0] // evenly)), often)


def _wanted(messages: MessageBatch, sample: SubscriptionTable, ends: Int64, window: Window, windowed: bool):
    """Behind the first of these boundaries. One at which nobody was told anything changes nothing for anybody."""
    if windowed:
        cuts = [Boundary(at, 0, end, window.floor(end, 0)) for at, end in enumerate(ends.tolist())]
        return expected(messages, sample, cuts, _SPACE.max_distance).updates
    first, last = int(ends[0]) + 1, int(ends[-1])
    rows = messages.take(np.arange(first, last + 1))
    whole = Boundary(0, first, last, NO_FLOOR)
    return tally(Oracle(None, _SPACE.max_distance).advance(whole, rows, sample, NO_REMOVALS))


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
    peaks, turns = {}, {name: [] for name in executors}
    for name in executors:
        with tempfile.TemporaryDirectory(prefix="skyray-latency-") as out:
            report = run(load, Pace(1e9, _PEAK_MESSAGES, _LARGEST), name, out)
        peaks[name] = _PEAK_MESSAGES / report.elapsed_s
        tell(f"{name}: {peaks[name]:,.0f} messages/s at most")
    for turn, name in itertools.product(range(rounds), executors):
        mine = rate or peaks[name] / 2
        warming = round(mine * warm_up)
        pace = Pace(mine, warming + round(mine * seconds), _LARGEST, linger_ms / 1e3, warming)
        with tempfile.TemporaryDirectory(prefix="skyray-latency-") as out:
            report = run(load, pace, name, out)
            one = _turn(report) | checked(load, out, warming)
        turns[name].append(one)
        tell(
            f"turn {turn + 1} of {rounds}: {name} at {mine:,.0f}/s: p50 {one['p50_ms']:.1f} ms, p99 "
            f"{one['p99_ms']:.1f} ms, {'kept up' if one['kept_up'] else 'NOT kept up'}, {one['compared']:,} updates "
            f"compared: {'right' if one['exact'] else 'WRONG, or too few'}"
        )
    measured = {name: _summary(peaks[name], rate or peaks[name] / 2, turns[name]) for name in executors}
    every = [one for name in executors for one in turns[name]]
    facts = {"subscriptions": boolean + topk, "boolean": boolean, "topk": topk, "window": window, "seconds": seconds}
    return {
        "workload": facts
        | {"warm_up": warm_up, "linger_ms": linger_ms, "checkpoint_s": _CHECKPOINT_S, "credits": credits, "seed": seed},
        "measured": measured,
        **verdict(
            all(one["exact"] for one in every),
            min(one["compared"] for one in every), min(one["compared_subscriptions"] for one in every),
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
    def middle(name: str) -> float:
        return median(one[name] for one in turns)

    return {
        "peak_per_s": peak, "rate": rate, "p50_ms": middle("p50_ms"), "p99_ms": middle("p99_ms"),
        "longest_ms": max(one["longest_ms"] for one in turns), "kept_up": all(one["kept_up"] for one in turns),
        "turns": turns,
    }  # fmt: skip


if __name__ == "__main__":
    from benchmarks import latency  # actors cannot import classes of the main script

    sys.exit(command.main(latency.bench))
