"""A figure is a row: a property of the workload, the cases to make of its values, and what of them to show.

`skyray bench KIND --figure NAME` asks the `Page` of a kind. Most figures are a `Sweep`, which says all there is to say;
the others are functions of what is `Asked`. Answers are checked before anything is measured (`benchmarks.verdict`),
engines take turns, medians are reported, and JSON and a picture are written (`benchmarks.figures.drawing`). Read on in
`benchmarks.figures.decay`, which is nothing but rows.
"""

import resource
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import psutil

from benchmarks.cases import make_case
from benchmarks.command import Tell
from benchmarks.figures.drawing import pyplot, write
from benchmarks.harness import Bench, Told, time_beside
from benchmarks.lasting import bench_of
from benchmarks.peers import PEERS, with_peers
from matching.errors import ConfigError
from matching.kind_table import Kind
from matching.warmup import warm_engine

Report = dict[str, Any]
#: A round of a slow engine stops after so long.
MOST_S = 4.0
#: Label of a panel to the figure of an engine that it shows.
TIME = {"us a message": "us_per_message"}
#: No larger size is begun if it would need more of the free memory than this.
_MOST_MEMORY = 0.8


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

    def bench(
        self, engines: Mapping[str, Any] | None = None, sample: int | None = None, most_checked: int | None = None,
        messages_by_default: int | None = None, **given: Any,
    ) -> Bench:  # fmt: skip
        """A case by these facts; what is given besides goes to `benchmarks.cases.make_case`.

        engines : mapping           variants in place of the kind's own
        sample, most_checked : int  as `sample` and `checked` of `Bench`
        messages_by_default : int   where nobody says how many
        """
        kind = with_peers(self.kind) if engines is None else replace(self.kind, engines=dict(engines))
        own = ("subscriptions", "messages", "window", "seed", "messages_from", "rounds")
        asked = {name: getattr(self, name) for name in own} | given
        asked["messages"] = asked["messages"] or messages_by_default
        if not kind.lasting:
            asked["messages"] *= asked["rounds"]
        case = make_case(kind, **asked)
        return bench_of(case, asked["rounds"], sample=sample, checked=most_checked)


class Part(NamedTuple):
    """Cases that a panel shows.

    values : sequence      or what makes them of what is asked; None alone makes one case, of bars
    given : callable       what a value sets of `Asked.bench`
    title : str            of the panel
    log : bool             an axis of powers
    named : bool           bars against names, and no lines against numbers
    lines : mapping        one engine alone is measured, in a case for each of these: name to what it sets besides
    """

    values: Sequence[Any] | Callable[[Asked], Sequence[Any]] = (None,)
    given: Callable[[Any], dict[str, Any]] = lambda _: {}
    title: str = ""
    log: bool = False
    named: bool = False
    lines: Mapping[str, dict[str, Any]] | None = None


class Sweep(NamedTuple):
    """A figure of one property, which makes a case of each value.

    label : str
    parts : sequence       a panel each, if there are several; they go from value to value together
    metrics : mapping      label of a panel to the figure of an engine that it shows
    engines : sequence     measured unless others are asked for; the page's without
    made : mapping         variants in place of engines: name to class
    changes : bool         subscriptions come and go besides
    most_s, settled        as of `Bench.time`, and of `time_beside`
    most : int             of the subscriptions asked for no more are taken
    rounds : int           turns of each engine; None leaves them to the page
    growing : bool         values are numbers of subscriptions, and end where memory does
    load : callable        makes the `Bench` of a value in another way than by `given`
    turns : callable       measures in another way than `beside`
    told : callable        what more to report of an engine at the end
    compared : callable    what more to say of a row, by the figures of its engines; `exact` if they do not agree
    """

    label: str
    parts: Sequence[Part] = (Part(),)
    metrics: Mapping[str, str] = TIME
    engines: Sequence[str] = ()
    made: Mapping[str, Any] | None = None
    changes: bool = False
    most_s: float = MOST_S
    settled: int = 0
    most: int | None = None
    rounds: int | None = None
    growing: bool = False
    load: Callable[[Asked, Any], Bench] | None = None
    turns: Callable[..., Report] | None = None
    told: Told = lambda _: {}
    compared: Callable[[Mapping[str, Report]], Report] = lambda _: {}

    def measure(self, asked: Asked) -> Report:
        """Measure the row."""
        if self.most is not None:
            asked = asked._replace(subscriptions=min(asked.subscriptions, self.most))
        if self.rounds is not None:
            asked = asked._replace(rounds=self.rounds)
        names = tuple(self.made or asked.engines or self.engines or asked.kind.engines)
        for name in names:
            if self.made is None:
                with_peers(asked.kind).engine(name)
        columns = [part.values(asked) if callable(part.values) else part.values for part in self.parts]
        rows: list[list[Report]] = [[] for _ in self.parts]
        stopped = ""
        for at in range(max(map(len, columns))):
            if self.growing and at and (stopped := _beyond_memory(columns[0][at], columns[0][at - 1])):
                asked.tell(stopped)
                break
            for part, values, mine in zip(self.parts, columns, rows, strict=True):
                if at < len(values):
                    asked.tell(f"{part.title or self.label}: {values[at]}: making the workload")
                    mine.append({"x": values[at], **self._row(asked, names, part, values[at])})
        panels = [each for part, mine in zip(self.parts, rows, strict=True) for each in self._panels(part, mine, names)]
        every = [row for mine in rows for row in mine]
        x = panels[0].get("x", [row["x"] for row in rows[0]]) if panels else []
        report = {"x_label": self.label, "x": x, "panels": panels, "exact": all_exact(every), "rows": every}
        if self.most is not None:
            report["over"] = f"{asked.subscriptions:,} subscriptions"
        return report | ({"stopped": stopped} if self.growing else {})

    def _row(self, asked: Asked, names: Sequence[str], part: Part, value: Any) -> Report:
        """The engines beside each other in the case of a value; or one of them in a case for each line."""
        turns, how = self.turns or beside, {"most_s": self.most_s, "changes": self.changes}
        how |= {"told": self.told, "settled": self.settled}
        given = part.given(value)
        if part.lines is not None:
            engine, rows = names[0], {}
            for line, more in part.lines.items():
                rows[line] = turns(asked.bench(**given | more), names[:1], asked.tell, **how)
            workloads = {line: row["workload"] for line, row in rows.items()}
            measured = {line: row["engines"][engine] for line, row in rows.items()}
            return {"engine": engine, "workload": workloads, "engines": measured}
        load = self.load(asked, value) if self.load else asked.bench(engines=self.made, **given)
        row = turns(load, names, asked.tell, **how)
        return row | self.compared(row["engines"])

    def _panels(self, part: Part, rows: Sequence[Report], names: Sequence[str]) -> list[Report]:
        """A panel for each metric: lines, bars against names, or bars of the one case there is."""
        x = [row["x"] for row in rows]
        if any(isinstance(value, str) for value in x):
            x = [str(value) for value in x]
        panels = []
        for label, key in self.metrics.items():
            lines = column(rows, tuple(part.lines or names), key)
            panel: Report = {"y_label": label, "log": (part.log, not label.startswith("bytes"))}
            panel |= {"title": part.title, "x": x} if part.title else {"x": x}
            if x == [None]:
                panel |= {"x": list(lines), "bars": {name: values[0] for name, values in lines.items()}}
            else:
                panel["groups" if part.named else "series"] = lines
            panels += [panel] if lines else []
        return panels


def sweep(
    label: str, values: Sequence[Any] | Callable[[Asked], Sequence[Any]],
    given: Callable[[Any], dict[str, Any]] = lambda _: {}, log: bool = False, named: bool = False, **how: Any,
) -> Sweep:  # fmt: skip
    """A `Sweep` of one part."""
    return Sweep(label, (Part(values, given, log=log, named=named),), **how)


def variants(label: str, made: Mapping[str, Any] | None = None, metrics: Mapping[str, str] | None = None, **how: Any):
    """A `Sweep` over nothing: engines, or variants of one, beside each other in one case, as bars."""
    return Sweep(label, made=made, metrics=metrics or TIME | {"bytes a subscription": "bytes_per_subscription"}, **how)


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
    figures: Mapping[str, Sweep | Callable[[Asked], Report]]
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
            (self.check_engine or with_peers(self.kind).engine)(engine)
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
    measured = time_beside(load, engines, tell, **how)
    for name, row in measured.items():
        rounds, _ = row.pop("rounds"), row.pop("at_end")
        if counted := rounds[how.get("settled") or len(rounds) :]:
            # what settles comes in bursts: times are medians, but how often something comes is counted over all rounds
            often = [each for each in counted[0] if each.startswith(("refills", "matched", "share"))]
            row |= {each: fmean(one[each] for one in counted) for each in often}
        row["updates_timed"] = round(sum(one["updates_per_message"] * one["messages_timed"] for one in rounds))
        if "verified_per_message" in row:
            # without a match nothing can be said per match
            found = row["matched_per_message"] or None
            row["candidates_per_match"] = found and row["verified_per_message"] / found
        tell(f"  {name}: {row['us_per_message']:,.1f} us, exact: {row['exact']}, {row['compared']:,} compared")
    return {"workload": load.workload, "engines": measured}


def column(rows: Sequence[Report], names: Sequence[str], key: str) -> dict[str, list[Any]]:
    """Name to one value a row; engines that have none at all are left out."""
    series = {name: [row["engines"][name].get(key) for row in rows] for name in names}
    return {name: values for name, values in series.items() if any(value is not None for value in values)}


def all_exact(rows: Sequence[Report]) -> bool:
    """Whether every engine of every row counts, and the row itself."""
    return all(each["exact"] for row in rows for each in ({"exact": True} | row, *row["engines"].values()))


def up_to(sizes: Sequence[int], least: int = 0) -> Callable[[Asked], Sequence[int]]:
    """Those sizes that are no more than the subscriptions asked for, or than `least`."""
    return lambda asked: [n for n in sizes if n <= max(asked.subscriptions, least)] or [asked.subscriptions]


def _beyond_memory(size: int, done: int) -> str:
    """Why a size is left out behind one that was measured, by the memory that took; empty if it is not."""
    need = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 * size / done
    free = psutil.virtual_memory().available + psutil.Process().memory_info().rss
    if need <= _MOST_MEMORY * free:
        return ""
    return f"{size:,} subscriptions left out: about {need / 1e9:.1f} GB needed, {free / 1e9:.1f} GB free"
