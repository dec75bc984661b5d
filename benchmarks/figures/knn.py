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
from statistics import median
from typing import Any

from benchmarks.figures.drawing import pyplot, write
from benchmarks.harness import Running
from benchmarks.lasting import LastingBench, lasting_case
from benchmarks.workload import TopkRecipe
from matching.errors import ConfigError
from matching.kinds import KINDS
from matching.knn.engines.influence_grid import InfluenceGrid
from matching.warmup import warm_engine

Tell = Callable[[str], None]

_KNN = KINDS.named("knn")
_SIZES = (100_000, 200_000, 500_000, 1_000_000, 2_000_000, 5_000_000)
_HISTORIES = (100_000, 300_000, 1_000_000, 3_000_000)
_ROUNDS = 3
_MESSAGES = 6_000
#: A round of a slow engine stops after so long.
_MOST_S = 4.0
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
    if name not in FIGURES:
        raise ConfigError(f"figure {name!r}: choose one of {', '.join(FIGURES)}")
    if window is not None:
        raise ConfigError("knn has no window: leave --window out")
    draw_with = pyplot()
    tell = on_progress or (lambda _: None)
    chosen = tuple(engines or _KNN.engines)
    tell("compiling kernels")
    for engine in chosen:
        warm_engine(_KNN, engine)
    given = {"messages": messages or _MESSAGES, "seed": seed, "messages_from": messages_from}
    report = {"figure": name, **FIGURES[name](subscriptions, given, chosen, tell)}
    write(draw_with, report, out / f"knn-{name}")
    tell(f"written: {out}/knn-{name}.json and .png")
    return report


def _beside(load: LastingBench, engines: Sequence[str], tell: Tell) -> dict[str, dict[str, Any]]:
    """Check engines, then time them in turns: medians of every figure by engine."""
    built: dict[str, Running] = {name: load.build(name) for name in engines}
    checked = {name: load.check(engine) | load.memory(engine) for name, engine in built.items()}
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in built}
    for turn in range(load.rounds):
        for name, engine in built.items():
            rows[name].append(load.time(engine, turn, _MOST_S, changes=False))
    measured: dict[str, dict[str, Any]] = {}
    for name, turns in rows.items():
        measured[name] = {key: median(turn[key] for turn in turns) for key in turns[0]} | checked[name]
        row = measured[name]
        tell(f"  {name}: {row['us_per_message']:,.1f} us, exact: {row['exact']}, {row['compared']:,} compared")
    return measured


def _sweep(label: str, values: Sequence[int], make: Callable[[int], LastingBench], engines: Sequence[str], tell: Tell):
    """Time a message against one property."""
    series: dict[str, list[float]] = {name: [] for name in engines}
    rows, exact = [], True
    for value in values:
        tell(f"{label} = {value}: making the workload")
        load = make(value)
        measured = _beside(load, engines, tell)
        rows.append({"x": value, "workload": load.workload, "engines": measured})
        for name in engines:
            series[name].append(measured[name]["us_per_message"])
            exact = exact and measured[name]["exact"]
    panel = {"y_label": "us a message", "log": (values[-1] > 100, True), "series": series}
    return {"x_label": label, "x": list(values), "panels": [panel], "exact": exact, "rows": rows}


def _subscriptions(subscriptions, given, engines, tell):
    sizes = [size for size in _SIZES if size <= subscriptions] or [subscriptions]
    return _sweep("subscriptions", sizes, lambda n: _bench(n, given), engines, tell)


def _history(subscriptions, given, engines, tell):
    return _sweep("messages before", _HISTORIES, lambda n: _bench(subscriptions, given, history=n), engines, tell)


def _by_recipe(label: str, values: Sequence[int], recipe: Callable[[int], TopkRecipe]):
    def measure(subscriptions, given, engines, tell):
        return _sweep(label, values, lambda v: _bench(subscriptions, given, recipe=recipe(v)), engines, tell)

    return measure


def _bench(subscriptions: int, given: dict[str, Any], **more: Any) -> LastingBench:
    return LastingBench(lasting_case(_KNN, subscriptions, rounds=_ROUNDS, **given, **more), _ROUNDS)


def _grids(subscriptions, given, engines, tell):
    made = {
        name: type("Variant", (InfluenceGrid,), {"sides": sides, "widest": widest})
        for name, (sides, widest) in _GRIDS.items()
    }
    case = lasting_case(replace(_KNN, engines=made), subscriptions, rounds=_ROUNDS, **given)
    load = LastingBench(case, _ROUNDS)
    measured = _beside(load, tuple(made), tell)
    panels = [
        {"y_label": label, "log": (False, True), "bars": {name: row[key] for name, row in measured.items()}}
        for label, key in (("us a message", "us_per_message"), ("bytes a subscription", "bytes_per_subscription"))
    ]
    exact = all(row["exact"] for row in measured.values())
    return {"x_label": "grids", "x": list(made), "panels": panels, "exact": exact,
            "rows": {"workload": load.workload, "engines": measured}}  # fmt: skip


FIGURES: dict[str, Callable[..., dict[str, Any]]] = {
    "subscriptions": _subscriptions,
    "k": _by_recipe("k", (1, 2, 5, 10, 20, 50), lambda k: TopkRecipe(k=(k, k))),
    "keywords": _by_recipe("keywords", (1, 2, 3, 4, 5), lambda n: TopkRecipe(k=(1, 10), keywords=(n, n))),
    "history": _history,
    "grids": _grids,
}
