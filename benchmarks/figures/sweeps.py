"""A figure is a row or a few: a property of the workload, the cases of its values, what of them to show.

`skyray bench KIND --figure NAME` asks the `Page` of a kind. Answers are checked before anything counts
(`benchmarks.verdict`), engines take turns, medians are reported, JSON and a picture are written
(`benchmarks.figures.drawing`). Read on in `benchmarks.figures.decay`, which is nothing but rows.
"""

import resource
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from benchmarks.cases import make_case
from benchmarks.command import Tell
from benchmarks.figures.drawing import pyplot, write
from benchmarks.harness import Bench, time_beside
from benchmarks.lasting import bench_of
from benchmarks.peers import PEERS, with_peers
from matching.errors import ConfigError
from matching.kind_table import Kind
from matching.warmup import warm_engine

Report = dict[str, Any]
#: Label of a panel to the figure of an engine that it shows.
TIME = {"us a message": "us_per_message"}
BYTES = {"bytes a subscription": "bytes_per_subscription"}
CHANGES = {"subscribe a second": "subscribe_per_s", "unsubscribe a second": "unsubscribe_per_s"}
#: A round of a slow engine stops after so long.
_MOST_S = 4.0
#: No larger size is begun if it would need more of the free memory than this.
_MOST_MEMORY = 0.8


class Asked(NamedTuple):
    """What a figure is asked for: `engines` are none where the row says which, `messages` those of a round, or of all
    rounds where results last."""

    kind: Kind
    subscriptions: int
    engines: tuple[str, ...]
    messages: int
    window: int
    seed: int
    messages_from: str | None
    rounds: int
    tell: Tell

    def bench(self, **given: Any) -> Bench:
        """The standard case (`benchmarks.cases.make_case`) of what is asked and of what is given besides or instead."""
        own = ("kind", "subscriptions", "messages", "window", "seed", "messages_from", "rounds")
        facts = {name: getattr(self, name) for name in own} | given
        if not self.kind.lasting:
            facts["messages"] *= facts["rounds"]
        return bench_of(make_case(**facts), facts["rounds"], checked=given.get("checked"))

    def chosen(self, choices: Iterable[str], otherwise: Iterable[str]) -> tuple[str, ...]:
        """The names that are asked for, or others; a `ConfigError` if one is none of the choices, or not installed."""
        for name in self.engines:
            if name not in choices:
                raise ConfigError(f"{name!r}: choose one of {', '.join(choices)}")
            if name in PEERS and (missing := PEERS[name].absence()):
                raise ConfigError(f"{name}: {missing.reason}. Install it: {missing.install}")
        return self.engines or tuple(otherwise)


class Sweep(NamedTuple):
    """A property (`label`), the rows that come of its values, and the figures of each engine to show, a panel each.

    A row has `x`, `workload`, and `engines`: name to figures, `exact` among them.
    """

    label: str
    rows: Callable[[Asked], Iterator[Report]]
    metrics: Mapping[str, str] = TIME
    title: str = ""

    def panels(self, rows: Sequence[Report]) -> Iterator[Report]:
        """What `benchmarks.figures.drawing` draws; engines that have nothing of a metric are left out."""
        head = {"title": self.title} if self.title else {}
        head |= {"x_label": self.label, "x": [row["x"] for row in rows]}
        for label, key in self.metrics.items():
            series = {name: [row["engines"][name].get(key) for row in rows] for name in rows[0]["engines"]}
            series = {name: line for name, line in series.items() if set(line) != {None}}
            if series:
                yield head | {"y_label": label, "series": series}


def sweep(
    label: str, values: Sequence[Any] | Callable[[Asked], Sequence[Any]] = ("",),
    load: Callable[[Asked, Any], Bench] = lambda asked, _: asked.bench(), metrics: Mapping[str, str] = TIME,
    title: str = "", engines: Iterable[str] = (), turns: Callable[..., dict[str, Report]] = time_beside, **how: Any,
) -> Sweep:  # fmt: skip
    """Engines beside each other against the values of a property, or in the one case that is asked for.

    Numbers of subscriptions end where memory does.

    Parameters
    ----------
    load : callable      what is asked, and a value, to the case they are measured in
    engines : iterable   where nobody asks for others, all of the kind without; or a mapping of variants that stand in
                         for them, name to what is built
    turns : callable     measures as `time_beside` does, in another way; `how` goes to it
    """

    def rows(asked: Asked) -> Iterator[Report]:
        if isinstance(engines, Mapping):
            asked = asked._replace(kind=replace(asked.kind, engines=dict(engines)), engines=tuple(engines))
        else:
            names = asked.chosen(with_peers(asked.kind).engines, engines or asked.kind.engines)
            asked = asked._replace(kind=with_peers(asked.kind), engines=names)
        them = values(asked) if callable(values) else values
        for value, larger in zip_longest(them, them[1:]):
            asked.tell(f"{title or label}: {value}: making the workload")
            bench = load(asked, value)
            measured = turns(bench, asked.engines, asked.tell, **{"most_s": _MOST_S, "changes": False} | how)
            first = measured[asked.engines[0]]["us_per_message"]
            for name, row in measured.items():
                for each in ("rounds", "at_end"):
                    row.pop(each, None)
                row["times_the_first"] = row["us_per_message"] / first
                if "verified_per_message" in row:
                    # without a match nothing can be said per match
                    found = row["matched_per_message"] or None
                    row["candidates_per_match"] = found and row["verified_per_message"] / found
                asked.tell(f"  {name}: {row['us_per_message']:,.1f} us, exact: {row['exact']}")
            report = {"x": value, "workload": bench.workload, "engines": measured}
            if label == "subscriptions" and larger and (stopped := _beyond_memory(larger, value)):
                asked.tell(stopped)
                yield report | {"stopped": stopped}
                return
            yield report

    return Sweep(label, rows, metrics, title)


def up_to(sizes: Sequence[int], least: int = 0, of: str = "subscriptions") -> Callable[[Asked], Sequence[int]]:
    """Those sizes that are no more than what is asked for, or than `least`."""
    return lambda asked: [n for n in sizes if n <= max(getattr(asked, of), least)] or [getattr(asked, of)]


def _beyond_memory(size: int, done: int) -> str:
    """Why a size is left out behind one that was measured, by the memory that took; empty if it is not."""
    need = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 * size / done
    free = psutil.virtual_memory().available + psutil.Process().memory_info().rss
    if need <= _MOST_MEMORY * free:
        return ""
    return f"{size:,} subscriptions left out: about {need / 1e9:.1f} GB needed, {free / 1e9:.1f} GB free"


class Page(NamedTuple):
    """The figures of a kind: name to rows; `messages` as of `Asked`, `real` if they may be resampled from real ones."""

    kind: Kind
    figures: Mapping[str, Sequence[Sweep]]
    messages: int
    real: bool = True
    rounds: int = 3

    def figure(
        self, name: str, out: Path, subscriptions: int = 100_000, window: int | None = None,
        messages: int | None = None, engines: Sequence[str] | None = None, seed: int = 0,
        messages_from: str | None = None, on_progress: Tell | None = None,
    ) -> Report:  # fmt: skip
        """Measure and draw a figure; writes `KIND-NAME.json` and `KIND-NAME.png` into `out`.

        Raises
        ------
        ConfigError
            For a name or an engine nobody knows, a window or real messages where there are none, or if matplotlib is
            not installed.
        """
        kind = self.kind.name
        if name not in self.figures:
            raise ConfigError(f"figure {name!r}: choose one of {', '.join(self.figures)}")
        if window is not None and not self.kind.windowed:
            raise ConfigError(f"{kind} has no window: leave --window out")
        if messages_from is not None and not self.real:
            raise ConfigError(f"figures of {kind} are of synthetic messages: leave --messages-from out")
        draw_with, tell = pyplot(), on_progress or (lambda _: None)
        tell("compiling kernels")
        for engine in engines or self.kind.engines:
            if engine in self.kind.engines:
                warm_engine(self.kind, engine)
        asked = Asked(self.kind, subscriptions, tuple(engines or ()), messages or self.messages, window or 100_000,
                      seed, messages_from, self.rounds, tell)  # fmt: skip
        rows, panels = [], []
        for row in self.figures[name]:
            measured = list(row.rows(asked))
            rows += measured
            panels += row.panels(measured)
        exact = all(engine["exact"] for row in rows for engine in row["engines"].values())
        report = {"figure": name, "x_label": panels[0]["x_label"], "x": panels[0]["x"], "panels": panels,
                  "exact": exact, "rows": rows}  # fmt: skip
        if report["x_label"] != "subscriptions" and (size := rows[0]["workload"].get("subscriptions")):
            report["over"] = f"{size:,} subscriptions"
        write(draw_with, report, out / f"{kind}-{name}")
        tell(f"written: {out}/{kind}-{name}.json and .png")
        return report
