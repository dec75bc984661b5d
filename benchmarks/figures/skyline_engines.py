"""Figures of the engines of `skyline` over a window of objects that move, change words and end.

    engines     time of a message and refills against the window: a quarter, a half and the whole of --window
    longest     the whole window alone
    ticks       the same at one window against the messages between two boundaries

A message comes every millisecond, so that a window of 3,200,000 is one of 3,200 seconds, the paper's longest. Half of
the messages speak of objects, each of which comes again about as often whatever the window is (`_BETWEEN`), and then
ends the message before: so what is kept is ended, expires, and is filled anew. All engines ask the window index of a
run, and take the same batches in turns, one each; times are medians over these batches, and all that is told in them is
compared as `benchmarks.harness` compares it. Read on in `matching.skyline.engines.eager_star`.
"""

from collections.abc import Sequence
from typing import Any

from benchmarks.figures.sweeps import Asked, Report, all_exact, panels_of
from matching.errors import ConfigError

_MESSAGES, _BATCH = 5_000, 1_000
#: Messages between two of an object, on average: 160 s.
_BETWEEN = 160_000
_TICKS = (10, 100, 1_000, 5_000)
_SHOWN = {"us a message": ("us_per_message", True), "refills a message": ("refills_per_message", True)}


def engines(asked: Asked) -> Report:
    """Against the window."""
    whole = asked.window or 0
    return _measure(asked, "messages in the window", [(size, _BATCH) for size in (whole // 4, whole // 2, whole)], 0)


def longest(asked: Asked) -> Report:
    """At the window asked for."""
    report = _measure(asked, "messages in the window", [(asked.window or 0, _BATCH)], 0)
    for panel in report["panels"]:
        panel["bars"] = {name: values[0] or 0.0 for name, values in panel.pop("series").items()}
    return report


def ticks(asked: Asked) -> Report:
    """Against the messages between two boundaries."""
    return _measure(asked, "messages between boundaries", [(asked.window or 0, batch) for batch in _TICKS], 1)


def _measure(asked: Asked, label: str, cases: Sequence[tuple[int, int]], shown: int) -> Report:
    """Cases of (window, batch), against the one of the two that is shown."""
    names, rows = asked.engines or tuple(asked.kind.engines), []
    for name in names:
        if name not in asked.kind.engines:
            raise ConfigError(f"engine {name!r}: choose some of {', '.join(asked.kind.engines)}")
    for window, batch in cases:
        asked.tell(f"window of {window:,} messages, {batch:,} between boundaries: making the workload")
        count = asked.messages or _MESSAGES
        load = asked._replace(rounds=1).bench(
            window=window, batch=batch, messages=batch, checked=count, versions=max(2.0, window / _BETWEEN)
        )  # fmt: skip
        built = {}
        for name in names:
            asked.tell(f"building {name}")
            built[name] = load.build(name)
        memory = {name: load.memory(each) for name, each in built.items()}
        asked.tell("taking turns")
        measured: dict[str, dict[str, Any]] = load.check_in_turns(built)
        for name in names:
            row = measured[name] = memory[name] | measured[name]
            row["times_the_first"] = row["us_per_message"] / measured[names[0]]["us_per_message"]
            asked.tell(
                f"  {name}: {row['us_per_message']:,.1f} us, {row['refills_per_message']:.4f} refills, "
                f"exact: {row['exact']}, {row['compared']:,} compared"
            )
        rows.append({"x": (window, batch)[shown], "workload": load.workload, "engines": measured})
    x = [row["x"] for row in rows]
    panels = panels_of(rows, names, _SHOWN, x_log=True)
    return {"x_label": label, "x": x, "panels": panels, "exact": all_exact(rows), "rows": rows}
