"""Figures of kind `knn` from this machine: `skyray bench knn --figure NAME`.

    subscriptions   time of a message against the number of subscriptions (up to --subscriptions)
    k, keywords     time of a message against one property of the workload
    history         time of a message against the messages that have gone before
    grids           engine `influence_grid` with other grids than its own: one alone as in the paper, or more; narrower
                    or wider balls in them

Each compares answers before it measures (`benchmarks.lasting`), takes the engines in turns and reports medians. A
figure is written as JSON and as PNG.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.figures.sweeps import Tell, bars, draw, sweep
from benchmarks.lasting import LastingBench, lasting_case
from benchmarks.workload import TopkRecipe
from matching.errors import ConfigError
from matching.kinds import KINDS
from matching.knn.engines.influence_grid import InfluenceGrid

_KNN = KINDS.named("knn")
_SIZES = (100_000, 200_000, 500_000, 1_000_000, 2_000_000, 5_000_000)
_HISTORIES = (100_000, 300_000, 1_000_000, 3_000_000)
_ROUNDS = 3
_MESSAGES = 6_000
#: Cells a side of the grids, and how many of them a ball may be wide.
_GRIDS = {
    "1024, 4 wide": ((1024,), 4.0),
    "4096, 4 wide": ((4096,), 4.0),
    "256, 4096, 2 wide": ((256, 4096), 2.0),
    "16, 256, 4096, 1 wide": ((16, 256, 4096), 1.0),
    "16, 256, 4096, 2 wide": ((16, 256, 4096), 2.0),
    "16, 256, 4096, 4 wide": ((16, 256, 4096), 4.0),
    "8, 64, 512, 4096, 1 wide": ((8, 64, 512, 4096), 1.0),
    "8, 64, 512, 4096, 2 wide": ((8, 64, 512, 4096), 2.0),
    "4, 16, ..., 16384, 1 wide": ((4, 16, 64, 256, 1024, 4096, 16384), 1.0),
}


def figure(
    name: str,
    out: Path,
    subscriptions: int = 100_000,
    window: int | None = None,
    messages: int | None = None,
    engines: Sequence[str] | None = None,
    seed: int = 0,
    messages_from: str | None = None,
    on_progress: Tell | None = None,
) -> dict[str, Any]:
    """Measure and draw a figure; writes `knn-NAME.json` and `knn-NAME.png` into `out`.

    Raises
    ------
    ConfigError
        For a name nobody knows, a window, which this kind has not, or if matplotlib is not installed.
    """
    if window is not None:
        raise ConfigError("knn has no window: leave --window out")
    given = {"messages": messages or _MESSAGES, "seed": seed, "messages_from": messages_from}
    chosen = tuple(engines or _KNN.engines)
    return draw(
        _KNN, FIGURES, name, out, chosen, on_progress,
        lambda measure, tell: measure(subscriptions, given, chosen, tell),
    )  # fmt: skip


def _subscriptions(subscriptions, given, engines, tell):
    sizes = [size for size in _SIZES if size <= subscriptions] or [subscriptions]
    return sweep("subscriptions", sizes, lambda n: _bench(n, given), engines, tell, log=True)


def _history(subscriptions, given, engines, tell):
    return sweep(
        "messages before", _HISTORIES, lambda n: _bench(subscriptions, given, history=n), engines, tell, log=True
    )


def _by_recipe(label: str, values: Sequence[int], recipe: Callable[[int], TopkRecipe]):
    def measure(subscriptions, given, engines, tell):
        return sweep(label, values, lambda v: _bench(subscriptions, given, recipe=recipe(v)), engines, tell)

    return measure


def _bench(subscriptions: int, given: dict[str, Any], **more: Any) -> LastingBench:
    return LastingBench(lasting_case(_KNN, subscriptions, rounds=_ROUNDS, **given, **more), _ROUNDS)


def _grids(subscriptions, given, engines, tell):
    made = {
        name: type("Variant", (InfluenceGrid,), {"sides": sides, "widest": widest})
        for name, (sides, widest) in _GRIDS.items()
    }
    case = lasting_case(replace(_KNN, engines=made), subscriptions, rounds=_ROUNDS, **given)
    return bars("grids", LastingBench(case, _ROUNDS), tuple(made), tell)


FIGURES: dict[str, Callable[..., dict[str, Any]]] = {
    "subscriptions": _subscriptions,
    "k": _by_recipe("k", (1, 2, 5, 10, 20, 50), lambda k: TopkRecipe(k=(k, k))),
    "keywords": _by_recipe("keywords", (1, 2, 3, 4, 5), lambda n: TopkRecipe(k=(1, 10), keywords=(n, n))),
    "history": _history,
    "grids": _grids,
}
