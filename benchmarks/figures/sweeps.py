"""A figure is a row or a few: a property of the workload, the cases of its values, what of them to show.

`skyray bench KIND --figure NAME` asks the `Page` of a kind. Answers are checked before anything counts
(`benchmarks.command`), engines take turns, medians are reported, JSON and a picture are written
(`benchmarks.figures.drawing`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.cases import make_case
from benchmarks.command import Tell
from benchmarks.figures.drawing import write
from benchmarks.harness import Bench, time_beside
from benchmarks.lasting import bench_of
from benchmarks.peers import PEERS, with_peers
from matching.errors import ConfigError
from matching.kind_table import Kind
from topology.warmup import warm_engine

Report = dict[str, Any]
#: Label of a panel to the figure of an engine that it shows.
TIME = {"us a message": "us_per_message"}
BYTES = {"bytes a subscription": "bytes_per_subscription"}
CHANGES = {"subscribe a second": "subscribe_per_s", "unsubscribe a second": "unsubscribe_per_s"}


class Asked(NamedTuple):
    """What a figure is asked for; `messages` are those of a round, or where results last those of all rounds."""

    kind: Kind
    subscriptions: int
    engines: tuple[str, ...]
    messages: int
    window: int
    seed: int
    messages_from: str | None
    rounds: int
    tell: Tell
    subscriptions_from: str | None = None

    def beside(self, engines: Iterable[str]) -> "Asked":
        """The same with engines: those asked for, or these, or all there are; a mapping has others than the kind."""
        kind = with_peers(replace(self.kind, engines=dict(engines)) if isinstance(engines, Mapping) else self.kind)
        names = self.engines or tuple(engines or self.kind.engines)
        for name in names:
            kind.engine(name)
        return self._replace(kind=kind, engines=names)

    def bench(self, **given: Any) -> Bench:
        """The standard case (`benchmarks.cases.make_case`) of what is asked and of what is given besides or instead."""
        own = ("kind", "subscriptions", "messages", "window", "seed", "messages_from", "rounds", "subscriptions_from")
        facts = {name: getattr(self, name) for name in own} | given
        if not self.kind.cumulative:
            facts["messages"] *= facts["rounds"]
        return bench_of(make_case(**facts), facts["rounds"], checked=given.get("checked"))


class Sweep(NamedTuple):
    """A property (`label`), rows for its values (`x`, `workload`, `engines`: name to figures), and which to show."""

    label: str
    rows: Callable[[Asked], Iterator[Report]]
    metrics: Mapping[str, str] = TIME
    title: str = ""

    def panels(self, rows: Sequence[Report]) -> Iterator[Report]:
        """One for each metric that any engine has, as `benchmarks.figures.drawing` draws it."""
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
    """Engines (as of `Asked.beside`) against the values of a property, or in the one case that is asked for.

    `load` makes a value's case; `turns` measures engines in it as `time_beside` does, to which `how` goes.
    """

    def rows(asked: Asked) -> Iterator[Report]:
        asked = asked.beside(engines)
        for value in values(asked) if callable(values) else values:
            asked.tell(f"{title or label}: {value}: making the workload")
            bench = load(asked, value)
            measured = turns(bench, asked.engines, asked.tell, **{"most_s": 4.0, "changes": False} | how)
            first = measured[asked.engines[0]]["us_per_message"]
            for name, row in measured.items():
                row["times_the_first"] = row["us_per_message"] / first
                if "verified_per_message" in row and row["matched_per_message"]:
                    row["candidates_per_match"] = row["verified_per_message"] / row["matched_per_message"]
                asked.tell(f"  {name}: {row['us_per_message']:,.1f} us, exact: {row['exact']}")
                measured[name] = {key: value for key, value in row.items() if key not in ("rounds", "at_end")}
            yield {"x": value, "workload": bench.workload, "engines": measured}

    return Sweep(label, rows, metrics, title)


def by(name: str) -> Callable[[Asked, Any], Bench]:
    """Cases that differ in what `benchmarks.cases.make_case` takes by this name."""
    return lambda asked, value: asked.bench(**{name: value})


def up_to(sizes: Sequence[int], least: int = 0, of: str = "subscriptions") -> Callable[[Asked], Sequence[int]]:
    """Those sizes that are no more than what is asked for, or than `least`."""
    return lambda asked: [n for n in sizes if n <= max(getattr(asked, of), least)] or [getattr(asked, of)]


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
        messages_from: str | None = None, on_progress: Tell | None = None, subscriptions_from: str | None = None,
    ) -> Report:  # fmt: skip
        """Measure a figure and write it into `out` as `KIND-NAME.json` and `.png`; a `ConfigError` if it cannot be."""
        kind, tell = self.kind, on_progress or (lambda _: None)
        if name not in self.figures:
            raise ConfigError(f"figure {name!r}: choose one of {', '.join(self.figures)}")
        if window is not None and not kind.windowed:
            raise ConfigError(f"{kind.name} has no window: leave --window out")
        for option, given in (("messages", messages_from), ("subscriptions", subscriptions_from)):
            if given is not None and not self.real:
                raise ConfigError(f"figures of {kind.name} are of synthetic messages: leave --{option}-from out")
        known = with_peers(kind)
        for engine in engines or kind.engines:
            if engine in PEERS and (why := PEERS[engine].absence()):
                raise ConfigError(f"{engine}: {why}")
            if engine in known.engines and engine not in PEERS:
                tell(f"compiling kernels of {engine}")
                warm_engine(known, engine)
        rows, panels = [], []
        asked = Asked(kind, subscriptions, tuple(engines or ()), messages or self.messages, window or 100_000, seed,
                      messages_from, self.rounds, tell, subscriptions_from)  # fmt: skip
        for row in self.figures[name]:
            measured = list(row.rows(asked))
            rows += measured
            panels += row.panels(measured)
        report = {"figure": name, "x_label": panels[0]["x_label"], "x": panels[0]["x"], "panels": panels, "rows": rows}
        report["exact"] = all(engine["exact"] for row in rows for engine in row["engines"].values())
        if report["x_label"] != "subscriptions" and (size := rows[0]["workload"].get("subscriptions")):
            report["over"] = f"{size:,} subscriptions"
        write(report, out / f"{kind.name}-{name}")
        tell(f"written: {out}/{kind.name}-{name}.json and .png")
        return report
