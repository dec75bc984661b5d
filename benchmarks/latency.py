"""From due to told, by checked load tests in turns at half the rate that can be kept."""

import sys
from typing import Annotated, Any

from benchmarks import command
from benchmarks.command import verdict
from benchmarks.stopwatch import in_turns, medians
from gateway.load.loadtest import Executor, load_test
from topology.settings import LIVE_CREDITS

_LOAD: dict[str, Any] = {"subscriptions": {"boolean": 10_000, "topk": 10_000}, "window": "count:20000"}
_LOAD |= {"batch": 500, "linger_ms": 5.0, "checkpoint_every": 10.0}
_JUDGED = ("exact", "compared", "compared_subscriptions")


def bench(
    seconds: Annotated[float, "of each turn, without the warm-up"] = 30.0,
    warm_up: Annotated[float, "seconds before them"] = 10.0,
    rate: Annotated[float | None, "messages a second; half the peak of each executor by default"] = None,
    executors: Annotated[tuple[str, ...], "in turns"] = ("local", "ray"),
    credits: Annotated[int, "batches in flight at most"] = LIVE_CREDITS,
    rounds: Annotated[int, "turns of each"] = 3,
    tell: command.Tell = print,
) -> dict[str, Any]:
    """Latency by executor: medians, and the longest of all; the first turn finds the peak, of which all take half."""
    load = {**_LOAD, "seconds": seconds, "warm_up": warm_up, "credits": credits}
    measured: dict[str, dict[str, Any]] = {name: {"peak_per_s": None, "rate": rate} for name in executors}

    def one(name: str, turn: int) -> dict[str, Any]:
        told = load_test(rate=measured[name]["rate"], executor=Executor(name), check=True, **load)
        measured[name] = {"peak_per_s": measured[name]["peak_per_s"] or told["peak_per_s"], "rate": told["rate"]}
        took = told["latency"]
        row = {"p50_ms": 1e3 * took["p50_s"], "p99_ms": 1e3 * took["p99_s"], "longest_ms": 1e3 * took["max_s"]}
        row |= {"kept_up": told["kept_up"], **verdict(*(told["check"][each] for each in _JUDGED))}
        tell(f"turn {turn + 1} of {rounds}: {name}: {measured[name]} {row}")
        return row

    every = in_turns(executors, rounds, one)
    for name, turns in every.items():
        measured[name] |= medians([{each: turn[each] for each in ("p50_ms", "p99_ms")} for turn in turns])
        measured[name] |= {"longest_ms": max(turn["longest_ms"] for turn in turns), "turns": turns}
        measured[name]["kept_up"] = all(turn["kept_up"] for turn in turns)
    exact, *fewest = (min(turn[at] for turn in sum(every.values(), [])) for at in _JUDGED)
    return {"workload": load, "measured": measured, **verdict(exact, *fewest)}


if __name__ == "__main__":
    sys.exit(command.main(bench))
