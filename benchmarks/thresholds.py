"""What each threshold rule costs over several windows: refills, buffers, hits and time.

    python -m benchmarks.thresholds [--subscriptions N] [--window N] [--windows N] [--rules cost,k_max,sma,rank]
                                    [--k 1,10,100] [--engine NAME] [--seed N]

Every rule gets the same subscriptions, in equal parts of every `--k`, the same full window, and buffers from one bulk
refill of its own; then the stream runs on for `--windows` windows, in turns. Updates of a sample are held against an
independent computation first, and all rules must tell the same number of updates. The first window is not counted:
thresholds settle in it. What a hit and a refill take is what the constants of `matching.topk.thresholds_cost` go by.
"""

import argparse
import json
import math
import sys
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np

from benchmarks.cases import Case, make_case
from benchmarks.harness import Bench
from benchmarks.provenance import provenance
from benchmarks.workload import changed
from matching.kinds import KINDS
from matching.topk.thresholds import RULES
from matching.warmup import warm_engine

_TOPK = KINDS.named("topk")


def bench(
    subscriptions: int = 100_000,
    window: int = 100_000,
    windows: int = 3,
    rules: tuple[str, ...] = tuple(RULES),
    engine: str | None = None,
    seed: int = 0,
    k: tuple[int, ...] = (10,),
    rounds_a_window: int = 4,
    on_progress: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Measure rules in turns.

    Returns
    -------
    dict
        `workload`, and `results`: one dict a rule with what the check says (`benchmarks.harness.Bench.check`),
        `us_per_message` (median of the counted rounds), `refills_per_message`, `refill_share` (of all time),
        `us_per_refill`, `hits_per_message`, `ns_per_hit` (in the buffers), `entries_per_buffer`,
        `buffer_bytes_per_subscription`, `updates`, and what the rule has learned.
    """
    tell = on_progress or (lambda _: None)
    engine = engine or next(iter(_TOPK.engines))
    warm_engine(_TOPK, engine)
    tell("making the workload")
    rounds = rounds_a_window * windows
    load = Bench(_mixed(make_case(_TOPK, subscriptions, window * windows, window, rounds, seed), k, seed), rounds)
    engines, checked = {}, {}
    for name in rules:
        tell(f"{name}: filling buffers, and checking against the oracle")
        rule = {"threshold_rule": name}
        checked[name] = load.check(load.build(engine, rule))
        engines[name] = load.build(engine, rule)
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in rules}
    for turn in range(load.rounds):
        for name in rules:
            # all of them the whole round, however slow: what they tell is compared
            rows[name].append(load.time(engines[name], turn, math.inf))
        speeds = ", ".join(f"{name} {rows[name][-1]['messages_per_s']:,.0f}/s" for name in rules)
        tell(f"round {turn + 1} of {load.rounds}: {speeds}")
    results = []
    for name in rules:
        counted = rows[name][rounds_a_window:] or rows[name]
        buffers = engines[name].room.buffers
        held = buffers.describe()
        us, refills, hits = (
            float(np.mean([row[key] for row in counted]))
            for key in ("us_per_message", "refills_per_message", "matched_per_message")
        )
        share = {part: float(np.mean([row[f"share_{part}"] for row in counted])) for part in ("refills", "kept")}
        results.append(
            {
                "rule": name,
                **checked[name],
                "us_per_message": median(1e6 / row["messages_per_s"] for row in counted),
                "refills_per_message": refills,
                "refill_share": share["refills"],
                "us_per_refill": us * share["refills"] / refills if refills else None,
                "hits_per_message": hits,
                "ns_per_hit": 1e3 * us * share["kept"] / hits,
                "entries_per_buffer": held["entries"] / max(1, held["buffers"]),
                "buffer_bytes_per_subscription": sum(a.nbytes for a in buffers.arrays().values()) / subscriptions,
                "updates_per_message": float(np.mean([row["updates_per_message"] for row in rows[name]])),
                "learned": engines[name].room.rule.describe(),
            }
        )
    for result in results:
        result["times_the_fastest"] = result["us_per_message"] / min(each["us_per_message"] for each in results)
    told = {round(result["updates_per_message"], 9) for result in results}
    return {"workload": load.workload | {"windows": windows}, "same_updates": len(told) == 1, "results": results}


def _mixed(case: Case, k: tuple[int, ...], seed: int) -> Case:
    """The case with equal parts of its subscriptions of each k."""
    drawn = np.random.default_rng([seed, 11]).permutation(np.arange(len(case.table)) % len(k))
    table = changed(case.table, k=np.array(k, np.int32)[drawn])
    return case._replace(table=table, facts=case.facts | {"k": list(k)})


def main() -> int:
    """Command line; 1 if a rule is not exact or the rules do not tell the same."""
    parser = argparse.ArgumentParser(description="Threshold rules beside each other.")
    parser.add_argument("--subscriptions", type=int, default=100_000)
    parser.add_argument("--window", type=int, default=100_000)
    parser.add_argument("--windows", type=int, default=3)
    parser.add_argument("--rules", type=lambda text: tuple(text.split(",")), default=tuple(RULES))
    parser.add_argument("--engine", default=None)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--k", type=lambda text: tuple(map(int, text.split(","))), default=(10,), help="one or more")
    report = bench(**vars(parser.parse_args()), on_progress=lambda text: print(text, file=sys.stderr, flush=True))
    sys.stdout.write(json.dumps({"made_by": provenance(), **report}, indent=1) + "\n")
    return 0 if report["same_updates"] and all(result["exact"] for result in report["results"]) else 1


if __name__ == "__main__":
    sys.exit(main())
