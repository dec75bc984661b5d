"""What each threshold rule costs over several windows: refills, buffers, hits and time.

    python -m benchmarks.thresholds [--subscriptions N] [--window N] [--windows N] [--rules cost,k_max,sma,rank]
                                    [--k 1,10,100] [--engine NAME] [--seed N]

Every rule gets the same subscriptions, in equal parts of every `--k`, the same full window, and buffers from one bulk
refill of its own; then the stream runs on for `--windows` windows, in turns. Updates of a sample are held against an
independent computation first, and all rules must tell the same number of updates. The first window is not counted:
thresholds settle in it. What a hit and a refill take is what the constants of `matching.topk.thresholds_cost` go by.
"""

import math
import sys
from statistics import median
from typing import Annotated, Any

import numpy as np

from benchmarks import command
from benchmarks.cases import Case, make_case
from benchmarks.command import Tell
from benchmarks.harness import Bench
from benchmarks.workload import changed
from matching.kinds import KINDS
from matching.topk.thresholds import RULES
from matching.warmup import warm_engine

_TOPK = KINDS.named("topk")


def bench(
    subscriptions: Annotated[int, "how many"] = 100_000,
    window: Annotated[int, "messages in it"] = 100_000,
    windows: Annotated[int, "for how many windows the stream runs on"] = 3,
    rules: Annotated[tuple[str, ...], "names"] = tuple(RULES),
    engine: Annotated[str | None, "by default that of a run"] = None,
    seed: Annotated[int, "of the workload"] = 0,
    k: Annotated[tuple[int, ...], "one or more, of equal parts of the subscriptions"] = (10,),
    rounds_a_window: int = 4,
    tell: Tell = print,
) -> dict[str, Any]:
    """Measure rules in turns.

    Returns
    -------
    dict
        `workload`, `same_updates`, `exact`, and `results`: one dict a rule with what the check says
        (`benchmarks.harness.Bench.check`), `us_per_message` (median of the counted rounds),
        `refills_per_message`, `refill_share` (of all time), `us_per_refill`, `hits_per_message`, `ns_per_hit`
        (in the buffers), `entries_per_buffer`, `buffer_bytes_per_subscription`, `updates`, and what the rule
        has learned.
    """
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
    same = len(told) == 1
    exact = same and all(result["exact"] for result in results)
    return {"workload": load.workload | {"windows": windows}, "same_updates": same, "exact": exact, "results": results}


def _mixed(case: Case, k: tuple[int, ...], seed: int) -> Case:
    """The case with equal parts of its subscriptions of each k."""
    drawn = np.random.default_rng([seed, 11]).permutation(np.arange(len(case.table)) % len(k))
    table = changed(case.table, k=np.array(k, np.int32)[drawn])
    return case._replace(table=table, facts=case.facts | {"k": list(k)})


if __name__ == "__main__":
    sys.exit(command.main(bench))
