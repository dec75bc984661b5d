"""From due to told: how long an update takes in steady state, at half the rate that the same topology can keep.

    python -m benchmarks.latency [--seconds N] [--warm-up N] [--rate N] [--credits N] [--rounds 3]
                                 [--executors local,ray]

The load of `skyray loadtest` (`gateway.loadtest`): batches close when they are full or by linger time, the run is saved
while it goes on, the warm-up is told apart. Here updates are written to files as well, by which each timed run is held
against an independent computation at its own boundaries: what comes first after the warm-up. The rate is half of what
was reached where every message was due at once, if none is given. Read on in `spouts.paced`, which keeps the schedule.
"""

import sys
import tempfile
from dataclasses import replace
from pickle import dumps
from typing import Annotated, Any

import numpy as np
import pandas as pd

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
#: Who is subscribed, and to what.
_COUNTS, _WINDOW, _RECIPE = {"boolean": 10_000, "topk": 10_000}, "count:20000", Recipe(seed=0)
#: Messages of a batch at most, and behind the warm-up so many messages are checked, of so many subscriptions.
_LARGEST, _CHECKED_MESSAGES, _CHECKED = 500, 4_000, (400, 400)
#: The peak is what is reached over so many.
_PEAK_MESSAGES = 60_000


def run(pace: Pace, credits: int, executor: str, out: str) -> RunReport:
    """One run, as `skyray loadtest` has it but for files of updates below `out`."""
    counts, lasting = dict.fromkeys(KINDS.names, 0) | _COUNTS, tuple(kind.code for kind in KINDS if kind.lasting)
    plan = load_plan(pace, counts, _WINDOW, 1, "hashing", credits, _RECIPE.seed)
    window, steady = Window.parse(_WINDOW), pace.warming
    bolt = dumps(DeliveryBolt(out, window, credits, file_rows=None, lasting=lasting, steady_from=steady))
    parts = (replace(part, template=bolt) if part.name == "delivery" else part for part in plan.components)
    plan = replace(plan, components=tuple(parts))
    saved = Checkpoints(CheckpointStore(f"{out}/checkpoints"), Cadence(_CHECKPOINT_S), out)
    if executor == "local":
        return run_local(plan, checkpoints=saved)
    return run_ray(plan, together=shared_by_default(plan, None), checkpoints=saved)


def checked(out: str, first: int) -> dict[str, Any]:
    """What was told behind message `first` against what had to be, of every kind."""
    last, window, parts = first + _CHECKED_MESSAGES, Window.parse(_WINDOW), []
    table = GeneratedSubscriptions(_RECIPE, window, WORLD, _COUNTS)._make()
    messages = concatenate([each.messages for each in generate_messages(_RECIPE, window, WORLD, _LARGEST, last)])
    for kind in map(KINDS.named, _COUNTS):
        case = Case(kind, messages, table.of_kind(kind.code), window, 0, last, _LARGEST, {})
        told = told_in(out, kind.name)
        # a boundary at which nobody was told anything changes nothing for anybody
        ends = np.unique(told.as_of[(told.as_of >= first) & (told.as_of < last)]).tolist()
        if len(ends) < 2:
            return verdict(False, 0, 0)
        boundaries = [case.boundary(at, 0, end + 1) for at, end in enumerate(ends)]
        parts.append(held_against(case, told, boundaries, _CHECKED))
    same, compared, subscriptions = zip(*parts, strict=True)
    return verdict(all(same), sum(compared), sum(subscriptions))


def bench(
    seconds: Annotated[float, "of each turn, without the warm-up"] = 30.0,
    warm_up: Annotated[float, "seconds before them"] = 10.0,
    rate: Annotated[float | None, "messages a second; half the peak of each executor by default"] = None,
    executors: Annotated[tuple[str, ...], "in turns"] = ("local", "ray"),
    credits: Annotated[int, "batches in flight at most"] = LIVE_CREDITS,
    rounds: Annotated[int, "turns of each"] = 3,
    tell: Tell = print,
) -> dict[str, Any]:
    """Measure the peak of each executor, then the latency at half of it, in turns: medians, and the longest of all."""
    warmup()
    measured: dict[str, dict[str, Any]] = {}
    for name in executors:
        with tempfile.TemporaryDirectory(prefix="skyray-latency-") as out:
            peak = _PEAK_MESSAGES / run(Pace(1e9, _PEAK_MESSAGES, _LARGEST), credits, name, out).elapsed_s
        measured[name] = {"peak_per_s": peak, "rate": rate or peak / 2}
        tell(f"{name}: {peak:,.0f} messages/s at most")

    def one(name: str, turn: int) -> dict[str, Any]:
        due = measured[name]["rate"]
        warming = round(due * warm_up)
        pace = Pace(due, warming + round(due * seconds), _LARGEST, _LINGER_S, warming)
        with tempfile.TemporaryDirectory(prefix="skyray-latency-") as out:
            report = run(pace, credits, name, out)
            judged = checked(out, warming)
        took: dict[str, Any] = report.components["delivery"].latency
        row = {"p50_ms": 1e3 * took["p50_s"], "p99_ms": 1e3 * took["p99_s"], "longest_ms": 1e3 * took["max_s"]}
        row["kept_up"] = report.components["messages"].tasks[0].figures["behind_at_end_s"] < 1.0
        tell(f"turn {turn + 1} of {rounds}: {name} at {due:,.0f}/s: {row} {judged}")
        return row | judged

    for name, turns in in_turns(executors, rounds, one).items():
        told = pd.DataFrame(turns)
        measured[name] |= told[["p50_ms", "p99_ms"]].median().to_dict() | {"longest_ms": told.longest_ms.max()}
        measured[name] |= {"kept_up": all(told.kept_up), "turns": turns}
    every = pd.DataFrame([turn for row in measured.values() for turn in row["turns"]])
    fewest = every[["compared", "compared_subscriptions"]].min().tolist()
    facts = {**_COUNTS, "window": _WINDOW, "seconds": seconds, "warm_up": warm_up, "credits": credits}
    return {"workload": facts, "measured": measured, **verdict(all(every.exact), *fewest)}


if __name__ == "__main__":
    from benchmarks import latency  # actors cannot import classes of the main script

    sys.exit(command.main(latency.bench))
