"""What the figures of several kinds do alike: engines beside each other, over the values of one property.

Answers are checked before anything is measured; engines take turns, and medians are reported.
"""

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.harness import Bench, Running

Tell = Callable[[str], None]
#: A round of a slow engine stops after so long.
MOST_S = 4.0


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
    return {"x_label": label, "x": list(values), "panels": [panel], "exact": exact, "rows": rows}
