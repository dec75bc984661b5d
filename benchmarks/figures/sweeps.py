"""Figures as rows of a table: what varies, over which values, and what is drawn of it; and how they are measured.

A page has the figures of one kind (`benchmarks.figures.KIND.PAGE`). Most are a `Sweep`, a row that says all there is to
say; the others are functions of what is `Asked`. Answers are checked before anything is measured
(`benchmarks.verdict`), engines take turns, medians are reported, and JSON and a picture are written
(`benchmarks.figures.drawing`). Read on in `benchmarks.figures.decay`, which is nothing but rows.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.cases import make_case
from benchmarks.command import Tell
from benchmarks.figures.drawing import pyplot, write
from benchmarks.harness import Bench, Told, time_beside
from benchmarks.lasting import LastingBench, lasting_case
from benchmarks.peers import PEERS
from matching.errors import ConfigError
from matching.kind_table import Kind
from matching.warmup import warm_engine

Report = dict[str, Any]
#: A round of a slow engine stops after so long.
MOST_S = 4.0
#: Label of a panel to the figure of an engine that it shows.
TIME = {"us a message": "us_per_message"}


class Asked(NamedTuple):
    """What a figure is asked for.

    engines : tuple of str       empty leaves them to the figure
    messages : int               timed in a round, or in all where results last
    window : int or None         None where the kind has none
    messages_from : str or None  ETL output directory
    out : Path                   folder of the figure
    """

    kind: Kind
    subscriptions: int
    engines: tuple[str, ...]
    messages: int | None
    window: int | None
    seed: int
    messages_from: str | None
    rounds: int
    out: Path
    tell: Tell

    def bench(self, subscriptions: int | None = None, engines: Mapping[str, Any] | None = None, **given: Any) -> Bench:
        """A case by these facts; what is given besides goes to `make_case`, or `lasting_case` where results last.

        engines : mapping    variants in place of the kind's own
        """
        kind = self.kind if engines is None else replace(self.kind, engines=dict(engines))
        size, asked = subscriptions or self.subscriptions, {"seed": self.seed, "messages_from": self.messages_from}
        if kind.lasting:
            asked |= {"messages": self.messages} | given
            return LastingBench(lasting_case(kind, size, rounds=self.rounds, **asked), self.rounds)
        of_bench = {name: given.pop(name) for name in ("sample", "most_checked") if name in given}
        asked |= {"window": self.window, "messages": self.messages} | given
        asked["messages"] *= self.rounds
        case = make_case(kind, size, rounds=self.rounds, **asked)
        return Bench(case, self.rounds, sample=of_bench.get("sample"), checked=of_bench.get("most_checked"))


class Sweep(NamedTuple):
    """A figure of one property, which makes a case of each value.

    label : str
    values : sequence      or what makes them of what is asked
    given : callable       what a value sets of `Asked.bench`
    log : bool             an axis of powers
    metrics : mapping      label of a panel to the figure of an engine that it shows
    """

    label: str
    values: Sequence[Any] | Callable[[Asked], Sequence[Any]]
    given: Callable[[Any], dict[str, Any]]
    log: bool = False
    metrics: Mapping[str, str] = TIME

    def measure(self, asked: Asked) -> Report:
        """Measure the row."""
        values = self.values(asked) if callable(self.values) else self.values
        rows = []
        for value in values:
            asked.tell(f"{self.label} = {value}: making the workload")
            rows.append({"x": value, **beside(asked.bench(**self.given(value)), asked.engines, asked.tell)})
        panels = panels_of(rows, asked.engines, {label: (key, True) for label, key in self.metrics.items()}, self.log)
        names = [str(value) for value in values] if any(isinstance(value, str) for value in values) else list(values)
        return {"x_label": self.label, "x": names, "panels": panels, "exact": all_exact(rows), "rows": rows}


class Variants(NamedTuple):
    """A figure of one case: engines, or variants of one, beside each other as bars.

    label : str
    made : mapping or None       name to class; None for the engines of the kind
    metrics : mapping            as of `Sweep`
    changes : bool               subscriptions come and go besides
    told : callable              what more to report of a variant at the end
    """

    label: str
    made: Mapping[str, Any] | None = None
    metrics: Mapping[str, str] = TIME | {"bytes a subscription": "bytes_per_subscription"}
    changes: bool = False
    told: Told = lambda _: {}

    def measure(self, asked: Asked) -> Report:
        """Measure the row."""
        names = asked.engines if self.made is None else tuple(self.made)
        row = beside(asked.bench(engines=self.made), names, asked.tell, changes=self.changes, told=self.told)
        panels = bars(row["engines"], self.metrics, log=True)
        return {"x_label": self.label, "x": list(names), "panels": panels, "exact": all_exact([row]), "rows": row}


class Page(NamedTuple):
    """The figures of a kind.

    figures : mapping         name to a row, or to a function that measures
    engines : sequence        that are measured unless others are asked for; empty leaves them to the figure
    messages : int            as of `Asked`; None leaves it to the figure
    window : int              in messages; None: the kind has none
    resampled : bool          messages may be resampled from real ones
    check_engine : callable   refuses the name of an engine, or of what takes its place
    """

    kind: Kind
    figures: Mapping[str, Sweep | Variants | Callable[[Asked], Report]]
    engines: Sequence[str] = ()
    messages: int | None = None
    window: int | None = None
    rounds: int = 3
    resampled: bool = True
    check_engine: Callable[[str], Any] | None = None

    def figure(
        self,
        name: str,
        out: Path,
        subscriptions: int = 100_000,
        window: int | None = None,
        messages: int | None = None,
        engines: Sequence[str] | None = None,
        seed: int = 0,
        messages_from: str | None = None,
        on_progress: Tell | None = None,
    ) -> Report:
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
        if window is not None and self.window is None:
            raise ConfigError(f"{kind} has no window: leave --window out")
        if messages_from is not None and not self.resampled:
            raise ConfigError(f"figures of {kind} are of synthetic messages: leave --messages-from out")
        for engine in engines or ():
            (self.check_engine or self.kind.engine)(engine)
            if engine in PEERS and (missing := PEERS[engine].absence()):
                raise ConfigError(f"{engine}: {missing.reason}. Install it: {missing.install}")
        draw_with, tell = pyplot(), on_progress or (lambda _: None)
        chosen = tuple(engines or self.engines)
        tell("compiling kernels")
        for engine in chosen or self.kind.engines:
            if engine in self.kind.engines:
                warm_engine(self.kind, engine)
        asked = Asked(self.kind, subscriptions, chosen, messages or self.messages, window or self.window, seed,
                      messages_from, self.rounds, out, tell)  # fmt: skip
        row = self.figures[name]
        report = {"figure": name, **(row(asked) if callable(row) else row.measure(asked))}
        if report["x_label"] != "subscriptions":
            report.setdefault("over", f"{subscriptions:,} subscriptions")
        write(draw_with, report, out / f"{kind}-{name}")
        tell(f"written: {out}/{kind}-{name}.json and .png")
        return report


def beside(load: Bench, engines: Sequence[str], tell: Tell, **how: Any) -> Report:
    """What `time_beside` says of engines, but for its rounds one by one: `workload`, and `engines` by name."""
    measured = time_beside(load, engines, tell, **({"most_s": MOST_S, "changes": False} | how))
    for name, row in measured.items():
        del row["rounds"], row["at_end"]
        if "verified_per_message" in row:
            # without a match nothing can be said per match
            found = row["matched_per_message"] or None
            row["candidates_per_match"] = found and row["verified_per_message"] / found
        tell(f"  {name}: {row['us_per_message']:,.1f} us, exact: {row['exact']}, {row['compared']:,} compared")
    return {"workload": load.workload, "engines": measured}


def bars(rows: Mapping[str, Report], labels: Mapping[str, str], log: bool) -> list[Report]:
    """A panel of bars for each label: what rows by name have under its key."""
    return [
        {"y_label": label, "log": (False, log), "bars": {name: row[key] for name, row in rows.items()}}
        for label, key in labels.items()
    ]


def panels_of(
    rows: Sequence[Report], names: Sequence[str], labels: Mapping[str, tuple[str, bool]], x_log: bool
) -> list[Report]:
    """A panel of lines for each label: (key, whether y is logarithmic)."""
    made = (
        {"y_label": label, "log": (x_log, log), "series": column(rows, names, key)}
        for label, (key, log) in labels.items()
    )
    return [panel for panel in made if panel["series"]]


def column(rows: Sequence[Report], names: Sequence[str], key: str) -> dict[str, list[Any]]:
    """Name to one value a row; engines that have none at all are left out."""
    series = {name: [row["engines"][name].get(key) for row in rows] for name in names}
    return {name: values for name, values in series.items() if any(value is not None for value in values)}


def all_exact(rows: Sequence[Report]) -> bool:
    """Whether every engine of every row counts."""
    return all(result["exact"] for row in rows for result in row["engines"].values())


def up_to(sizes: Sequence[int], least: int = 0) -> Callable[[Asked], Sequence[int]]:
    """Those sizes that are no more than the subscriptions asked for, or than `least`."""
    return lambda asked: [n for n in sizes if n <= max(asked.subscriptions, least)] or [asked.subscriptions]
