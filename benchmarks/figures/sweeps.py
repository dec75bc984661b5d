"""What the figures of several kinds do alike: engines beside each other, over the values of one property.

Answers are checked before anything is measured; engines take turns, and medians are reported.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.figures.drawing import pyplot, write
from benchmarks.harness import Bench, Running
from matching.errors import ConfigError
from matching.kind_table import Kind
from matching.warmup import warm_engine

Tell = Callable[[str], None]
#: A round of a slow engine stops after so long.
MOST_S = 4.0


def draw(
    kind: Kind,
    figures: Mapping[str, Callable[..., dict[str, Any]]],
    name: str,
    out: Path,
    engines: Sequence[str],
    on_progress: Tell | None,
    measure: Callable[[Callable[..., dict[str, Any]], Tell], dict[str, Any]],
) -> dict[str, Any]:
    """Measure and draw a figure of a kind; writes `KIND-NAME.json` and `KIND-NAME.png` into `out`.

    Parameters
    ----------
    figures : mapping of name to callable    those that the kind has
    engines : sequence of str                are compiled first
    measure : callable                       calls the one of `figures` with what it needs, and says how far it is

    Raises
    ------
    ConfigError
        For a name nobody knows, or if matplotlib is not installed.
    """
    if name not in figures:
        raise ConfigError(f"figure {name!r}: choose one of {', '.join(figures)}")
    draw_with = pyplot()
    tell = on_progress or (lambda _: None)
    tell("compiling kernels")
    for engine in engines:
        warm_engine(kind, engine)
    report = {"figure": name, **measure(figures[name], tell)}
    write(draw_with, report, out / f"{kind.name}-{name}")
    tell(f"written: {out}/{kind.name}-{name}.json and .png")
    return report


def bars(
    x_label: str,
    load: Bench,
    names: Sequence[str],
    tell: Tell,
    more: Mapping[str, str] | None = None,
    changes: bool = False,
) -> dict[str, Any]:
    """Engines of one case beside each other: time, memory, and `more` figures by their label."""
    measured = beside(load, {name: load.build(name) for name in names}, tell, changes=changes)
    wanted = {"us a message": "us_per_message", "bytes a subscription": "bytes_per_subscription", **(more or {})}
    panels = [
        {"y_label": label, "log": (False, True), "bars": {name: row[key] for name, row in measured.items()}}
        for label, key in wanted.items()
    ]
    exact = all(row["exact"] for row in measured.values())
    rows = {"workload": load.workload, "engines": measured}
    return {"x_label": x_label, "x": list(names), "panels": panels, "exact": exact, "rows": rows}


def beside(
    load: Bench, engines: Mapping[str, Running], tell: Tell, most_s: float = MOST_S, changes: bool = False
) -> dict[str, dict[str, Any]]:
    """Check engines, then time them in turns: medians of every figure by engine; `changes` as in `Bench.time`."""
    checked = {name: load.check(engine) | load.memory(engine) for name, engine in engines.items()}
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in engines}
    for turn in range(load.rounds):
        for name, engine in engines.items():
            rows[name].append(load.time(engine, turn, most_s, changes=changes))
    measured: dict[str, dict[str, Any]] = {}
    for name, turns in rows.items():
        known = dict.fromkeys(key for turn in turns for key in turn)
        measured[name] = {key: median(turn[key] for turn in turns if key in turn) for key in known} | checked[name]
        row = measured[name]
        tell(f"  {name}: {row['us_per_message']:,.1f} us, exact: {row['exact']}, {row['compared']:,} compared")
    return measured


def sweep(
    label: str,
    values: Sequence[Any],
    make: Callable[[Any], Bench],
    engines: Sequence[str],
    tell: Tell,
    log: bool = False,
    changes: bool = False,
) -> dict[str, Any]:
    """Time a message against one property, whose values make the cases; `log` for an axis of powers."""
    series: dict[str, list[float]] = {name: [] for name in engines}
    rows, exact = [], True
    for value in values:
        tell(f"{label} = {value}: making the workload")
        load = make(value)
        measured = beside(load, {name: load.build(name) for name in engines}, tell, changes=changes)
        rows.append({"x": value, "workload": load.workload, "engines": measured})
        for name in engines:
            series[name].append(measured[name]["us_per_message"])
            exact = exact and measured[name]["exact"]
    panel = {"y_label": "us a message", "log": (log, True), "series": series}
    names = [str(value) for value in values] if any(isinstance(value, str) for value in values) else list(values)
    return {"x_label": label, "x": names, "panels": [panel], "exact": exact, "rows": rows}
