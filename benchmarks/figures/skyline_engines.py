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

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.command import Tell
from benchmarks.figures.sweeps import Asked, Report, Sweep, sweep, variants
from benchmarks.harness import Bench

_MESSAGES, _BATCH = 5_000, 1_000
#: Messages between two of an object, on average: 160 s.
_BETWEEN = 160_000
_TICKS = (10, 100, 1_000, 5_000)
_SHOWN = {"us a message": "us_per_message", "refills a message": "refills_per_message"}


def _at(asked: Asked, window: int | None = None, batch: int | None = None) -> Bench:
    """A case of so many messages in the window and between boundaries, by default those asked for and `_BATCH`."""
    size, apart = window or asked.window or 0, batch or _BATCH
    return asked.bench(
        window=size, batch=apart, messages=apart, rounds=1, checked=asked.messages or _MESSAGES,
        versions=max(2.0, size / _BETWEEN),
    )  # fmt: skip


def _sizes(asked: Asked) -> list[int]:
    whole = asked.window or 0
    return [whole // 4, whole // 2, whole]


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


FIGURES: Mapping[str, Sweep] = {
    "engines": sweep("messages in the window", _sizes, log=True, metrics=_SHOWN, load=_at, turns=_slowly),
    "longest": variants("engine", metrics=_SHOWN, load=_at, turns=_slowly),
    "ticks": sweep(
        "messages between boundaries", _TICKS, log=True, metrics=_SHOWN, turns=_slowly,
        load=lambda asked, batch: _at(asked, batch=batch),
    ),
}  # fmt: skip
