"""From due to told: how long an update takes in steady state, at half the rate that the same topology can keep.

    python -m benchmarks.latency [--boolean N] [--topk N] [--seconds N] [--rate N] [--credits N] [--rounds 3]
                                 [--executors local,ray]

The load of `skyray loadtest` (`gateway.loadtest`): batches close when they are full or by linger time, the run is saved
while it goes on, the warm-up is told apart. Here updates are written to files as well, by which each timed run is held
against an independent computation at its own boundaries: what comes first after the warm-up. The rate is half of what
was reached where every message was due at once, if none is given. Read on in `spouts.paced`, which keeps the schedule.
"""

import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from pickle import dumps
from statistics import median
from typing import Annotated, Any

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
from matching.model import concatenate
from matching.warmup import warmup
from matching.window import Window
from spouts.generated import Recipe, generate_messages
from spouts.paced import GeneratedSubscriptions
from topology.core.committing import Checkpoints
from topology.core.local import run_local
from topology.core.marking import Cadence
from topology.core.metrics import RunReport
from topology.core.runner import run_ray
from topology.core.store import CheckpointStore
from topology.running import shared_by_default
from topology.settings import LIVE_CREDITS

_CHECKPOINT_S, _LINGER_S = 10.0, 0.005
#: Messages of a batch at most, and behind the warm-up so many messages are checked, of so many subscriptions.
_LARGEST, _CHECKED_MESSAGES, _CHECKED = 500, 4_000, (400, 400)
#: The peak is what is reached over so many.
_PEAK_MESSAGES = 60_000


def run(
    pace: Pace, counts: Mapping[str, int], window: Window, credits: int, seed: int, name: str, out: str
) -> RunReport:
    """One run of an executor, as `skyray loadtest` has it but for files of updates below `out`."""
    plan = load_plan(pace, counts, str(window), 1, "hashing", credits, seed)
    lasting = tuple(kind.code for kind in KINDS if kind.lasting)
    bolt = dumps(DeliveryBolt(out, window, credits, file_rows=None, lasting=lasting, steady_from=pace.warming))
    parts = tuple(replace(part, template=bolt) if part.name == "delivery" else part for part in plan.components)
    plan = replace(plan, components=parts)
    saved = Checkpoints(CheckpointStore(str(Path(out, "checkpoints"))), Cadence(_CHECKPOINT_S), out)
    if name == "local":
        return run_local(plan, checkpoints=saved)
    return run_ray(plan, together=shared_by_default(plan, None), checkpoints=saved)


def checked(counts: Mapping[str, int], window: Window, seed: int, out: str, first: int) -> dict[str, Any]:
    """What was told behind message `first` against what had to be, of every kind."""
    recipe, last, parts = Recipe(seed=seed), first + _CHECKED_MESSAGES, []
    table = GeneratedSubscriptions(recipe, window, WORLD, counts)._make()
    messages = concatenate([each.messages for each in generate_messages(recipe, window, WORLD, _LARGEST, last)])
    for kind in (KINDS.named(name) for name, count in counts.items() if count):
        case, told = (
            Case(kind, messages, table.of_kind(kind.code), window, 0, last, _LARGEST, {}),
            told_in(out, kind.name),
        )
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
    rate: Annotated[float | None, "messages a second; half the peak of each executor by default"] = None,
    executors: Annotated[tuple[str, ...], "in turns"] = ("local", "ray"),
    credits: Annotated[int, "batches in flight at most"] = LIVE_CREDITS,
    rounds: Annotated[int, "turns of each"] = 3,
    seed: Annotated[int, "of the workload"] = 0,
    tell: Tell = print,
) -> dict[str, Any]:
    """Measure the peak of each executor, then the latency at half of it, in turns: medians, the longest of all."""
    warmup()
    counts = {kind.name: 0 for kind in KINDS.run} | {"boolean": boolean, "topk": topk}
    load = counts, Window.parse(window)
    facts = {"boolean": boolean, "topk": topk, "window": window, "seconds": seconds, "warm_up": warm_up}
    measured: dict[str, dict[str, Any]] = {}
    for name in executors:
        with tempfile.TemporaryDirectory(prefix="skyray-latency-") as out:
            report = run(Pace(1e9, _PEAK_MESSAGES, _LARGEST), *load, credits, seed, name, out)
        peak = _PEAK_MESSAGES / report.elapsed_s
        measured[name] = {"peak_per_s": peak, "rate": rate or peak / 2}
        tell(f"{name}: {peak:,.0f} messages/s at most")

    def one(name: str, turn: int) -> dict[str, Any]:
        due = measured[name]["rate"]
        warming = round(due * warm_up)
        pace = Pace(due, warming + round(due * seconds), _LARGEST, _LINGER_S, warming)
        with tempfile.TemporaryDirectory(prefix="skyray-latency-") as out:
            report = run(pace, *load, credits, seed, name, out)
            judged = checked(*load, seed, out, warming)
        latency: dict[str, Any] = report.components["delivery"].latency
        behind = report.components["messages"].tasks[0].figures["behind_at_end_s"]
        row = {f"{key}_ms": latency[f"{key}_s"] * 1e3 for key in ("p50", "p99")}
        row |= {"longest_ms": latency["max_s"] * 1e3, "kept_up": behind < 1.0, **judged}
        tell(f"turn {turn + 1} of {rounds}: {name} at {due:,.0f}/s: {row}")
        return row

    for name, turns in in_turns(executors, rounds, one).items():
        rows = {key: [turn[key] for turn in turns] for key in turns[0]}
        measured[name] |= {"p50_ms": median(rows["p50_ms"]), "p99_ms": median(rows["p99_ms"])}
        measured[name] |= {"longest_ms": max(rows["longest_ms"]), "kept_up": all(rows["kept_up"]), "turns": turns}
    every = [turn for row in measured.values() for turn in row["turns"]]
    exact, fewest = (
        all(turn["exact"] for turn in every),
        (min(turn[key] for turn in every) for key in ("compared", "compared_subscriptions")),
    )
    return {"workload": facts | {"credits": credits, "seed": seed}, "measured": measured, **verdict(exact, *fewest)}


if __name__ == "__main__":
    from benchmarks import latency  # actors cannot import classes of the main script

    sys.exit(command.main(latency.bench))
