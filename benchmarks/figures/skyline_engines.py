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

from benchmarks.command import Tell
from benchmarks.figures.sweeps import Asked, Part, Report, Sweep
from benchmarks.harness import Bench

_MESSAGES, _BATCH = 5_000, 1_000
#: Messages between two of an object, on average: 160 s.
_BETWEEN = 160_000
_TICKS = (10, 100, 1_000, 5_000)
_SHOWN = {"us a message": "us_per_message", "refills a message": "refills_per_message"}


def engines(asked: Asked) -> Report:
    """Against the window."""
    whole = asked.window or 0
    return _against("messages in the window", Part((whole // 4, whole // 2, whole), log=True), asked)


def longest(asked: Asked) -> Report:
    """At the window asked for."""
    return _against("messages in the window", Part(), asked)


def ticks(asked: Asked) -> Report:
    """Against the messages between two boundaries."""
    return _against("messages between boundaries", Part(_TICKS, lambda batch: {"batch": batch}, log=True), asked)


def _against(label: str, part: Part, asked: Asked) -> Report:
    """Values of the part are windows where it does not say what they set."""

    def given(value: int | None) -> dict[str, Any]:
        own = part.given(value) or {"window": value or asked.window, "batch": _BATCH}
        window = own.get("window", asked.window)
        checked = {"checked": asked.messages or _MESSAGES, "versions": max(2.0, window / _BETWEEN)}
        return own | checked | {"messages": own["batch"], "rounds": 1}

    return Sweep(
        label, (part._replace(given=given),), _SHOWN, engines=tuple(asked.kind.engines), turns=_slowly
    ).measure(asked)


def _slowly(load: Bench, names: Sequence[str], tell: Tell, **_: Any) -> Report:
    """Engines that are timed while they are checked; how they are timed elsewhere says nothing here."""
    tell(f"building {', '.join(names)}")
    built = [load.build(name) for name in names]
    memory = [load.memory(each) for each in built]
    tell("taking turns")
    checked = load.check_in_turns(built)
    measured = {name: held | told for name, held, told in zip(names, memory, checked, strict=True)}
    for name in names:
        row = measured[name]
        row["times_the_first"] = row["us_per_message"] / measured[names[0]]["us_per_message"]
        tell(
            f"  {name}: {row['us_per_message']:,.1f} us, {row['refills_per_message']:.4f} refills, "
            f"exact: {row['exact']}, {row['compared']:,} compared"
        )
    return {"workload": load.workload, "engines": measured}
