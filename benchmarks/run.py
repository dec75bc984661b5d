"""Time the engines of a kind beside each other: what `skyray bench KIND` and `python -m benchmarks.run KIND` run.

Every engine is built, held against the oracle on a sample, and then timed in turns with the others (A B A B), so that a
slow minute of the machine hits all alike; the figures are medians over the turns. Any kind that `matching.kinds` has an
engine for can be measured: `benchmarks.cases` makes a case of it, `benchmarks.harness` drives it. Peers, which engines
are measured against, are in `benchmarks.peers`; figures of a kind in the module `benchmarks.figures.KIND`.
"""

import argparse
import importlib
import importlib.util
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.cases import make_case
from benchmarks.harness import Bench
from benchmarks.lasting import LastingBench, lasting_case
from benchmarks.peers import PEERS, Absence
from benchmarks.provenance import provenance
from benchmarks.workload import BooleanRecipe
from matching.errors import ConfigError
from matching.kind_table import Kind
from matching.kinds import KINDS
from matching.warmup import warm_engine

#: What is kept of a run of each benchmark.
RESULTS = Path(__file__).parent / "results"
_ROUNDS = 7


def bench(
    kind: str,
    subscriptions: int = 100_000,
    *,
    window: int | None = None,
    messages: int | None = None,
    engines: Sequence[str] | None = None,
    windows: Mapping[str, str] | None = None,
    figure: str | None = None,
    seed: int = 0,
    rounds: int = _ROUNDS,
    messages_from: str | None = None,
    workload: str | None = None,
    out: str | None = None,
    on_progress: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Measure engines of a kind on one synthetic workload.

    Parameters
    ----------
    kind : str                   one of `matching.kinds` that there is a room for
    subscriptions : int          how many are live
    window, messages : int       messages in the window (kinds that have one), messages timed (`benchmarks.cases`)
    engines : sequence of str    names of the kind's engines, or of its peers (`benchmarks.peers`); all engines of the
                                 kind by default
    windows : mapping            kind to name of the window index, the default one without
    seed, rounds : int           of the workload; turns of each engine
    figure : str                 measure and draw this figure instead, into folder `out`
    messages_from : str          ETL output directory whose messages are resampled; synthetic ones without
    workload : str               recipe of a `boolean` workload (`benchmarks.workload.BooleanRecipe.parse`)
    on_progress : callable       told what is going on, a sentence at a time

    Returns
    -------
    dict    `kind`, `made_by` (`benchmarks.provenance`), `workload`, `results`: for each engine its name, what
            `benchmarks.verdict` says, `build_s`, and the figures of the kind: medians over the rounds, which are there
            one by one as `rounds`; memory is that before the first of them, and in `at_end` that after the last;
            `absent`: name, reason and line of installation of each peer that cannot run here, if there are any

    Raises
    ------
    ConfigError
        For a kind that has no room, or an engine that the kind does not have.
    """
    row = kind_named(kind)
    if workload is not None and row.stands != "box":
        raise ConfigError(f"workload {workload!r}: only boolean has recipes yet; leave --workload out")
    if figure is not None:
        folder = Path(out) if out else RESULTS / "figures"
        given = {"window": window, "messages": messages, "engines": engines, "messages_from": messages_from}
        return _draw(kind, figure, folder, subscriptions=subscriptions, seed=seed, on_progress=on_progress, **given)
    peers = {name: peer for name, peer in PEERS.items() if peer.kind == kind}
    chosen = tuple(dict.fromkeys(engines or row.engines))
    row = replace(row, engines={**row.engines, **peers})
    for name in chosen:
        row.engine(name)
    tell = on_progress or (lambda _: None)
    absent = [missing for name in chosen if name in peers and (missing := peers[name].absence())]
    for missing in absent:
        tell(f"{missing.name} left out: {missing.reason}. Install it: {missing.install}")
    chosen = tuple(name for name in chosen if name not in {missing.name for missing in absent})
    tell("compiling kernels")
    for name in chosen:
        if name not in peers:
            warm_engine(row, name)
    tell("making the workload")
    if row.lasting:
        case = lasting_case(row, subscriptions, messages, rounds=rounds, seed=seed, messages_from=messages_from)
        tell("filling results from the history")
        made = LastingBench(case, rounds)
    else:
        recipe = None if workload is None else BooleanRecipe.parse(workload)
        case = make_case(row, subscriptions, messages, window, rounds, seed, recipe=recipe, messages_from=messages_from)
        made = Bench(case, rounds, windows=windows)
    report = _time_beside(made, chosen, tell)
    return {"kind": kind, "made_by": provenance(), **report} | ({"absent": _told(absent)} if absent else {})


def kind_named(name: str) -> Kind:
    """A kind that there is a room for.

    Raises
    ------
    ConfigError
        For any other.
    """
    if name not in KINDS or not KINDS.named(name).runs:
        there = ", ".join(kind.name for kind in KINDS.run)
        raise ConfigError(f"kind {name!r} has no engine to measure: choose one of {there}")
    return KINDS.named(name)


def _draw(kind: str, figure: str, folder: Path, **given: Any) -> dict[str, Any]:
    """Measure and draw a figure of a kind."""
    module = f"benchmarks.figures.{kind}"
    if importlib.util.find_spec(module) is None:
        raise ConfigError(f"figure {figure!r}: no figure can be drawn for {kind} yet; leave --figure out")
    return importlib.import_module(module).figure(figure, folder, **given)  # drawing takes a second to import


def _time_beside(made: Bench, chosen: Sequence[str], tell: Callable[[str], None]) -> dict[str, Any]:
    """Build and check the engines, and time them in turns."""
    built, results = {}, {}
    turns: dict[str, list[dict[str, float]]] = {name: [] for name in chosen}
    with ExitStack() as running:
        for name in chosen:
            tell(f"building {name}")
            built[name] = made.build(name)
            running.callback(built[name].close)
            tell(f"checking {name} against the oracle")
            checked = made.check(built[name])
            if "warning" in checked:
                tell(f"{name}: {checked['warning']}")
            memory = made.memory(built[name])
            results[name] = {"engine": name, **checked, "build_s": built[name].build_s, **memory}
        for turn in range(made.rounds):
            for name in chosen:
                tell(f"turn {turn + 1} of {made.rounds}: {name}")
                turns[name].append(made.time(built[name], turn))
        at_end = {name: made.memory(built[name]) for name in chosen}
    for name in chosen:
        results[name] |= {"rounds": turns[name], "at_end": at_end[name]}
        for figure_name in dict.fromkeys(figure_name for figures in turns[name] for figure_name in figures):
            figures = [figures[figure_name] for figures in turns[name] if figure_name in figures]
            results[name][figure_name] = median(figures)
    return {"workload": made.workload, "results": [results[name] for name in chosen]}


def _told(absent: Sequence[Absence]) -> list[dict[str, str]]:
    return [missing._asdict() for missing in absent]


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns 1 if a figure does not count."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description="Time the engines of a kind.")
    parser.add_argument("kind", choices=sorted(kind.name for kind in KINDS.run))
    parser.add_argument("--subscriptions", type=int, default=100_000)
    parser.add_argument("--window", type=int)
    parser.add_argument("--messages", type=int)
    parser.add_argument("--engines", type=lambda text: text.split(","), help="names separated by commas")
    parser.add_argument("--window-index", help="name of the window index (kinds that have one)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=_ROUNDS)
    parser.add_argument("--workload", help="recipe of a boolean workload, as places=uniform,words=long")
    options = vars(parser.parse_args(arguments))
    kind, index = options.pop("kind"), options.pop("window_index")
    windows = {} if index is None else {kind: index}
    report = bench(kind, options.pop("subscriptions"), windows=windows, on_progress=_say, **options)
    sys.stdout.write(json.dumps(report, indent=2) + "\n")
    return 0 if all(result["exact"] for result in report["results"]) else 1


def _say(sentence: str) -> None:
    sys.stderr.write(sentence + "\n")


if __name__ == "__main__":
    sys.exit(main())
