"""Time the engines of a kind beside each other: what `skyray bench KIND` and `python -m benchmarks.run KIND` run.

Every engine is built, held against the oracle on a sample, and then timed in turns with the others (A B A B), so that a
slow minute of the machine hits all alike; the figures are medians over the turns. What a kind needs stands in one class
a kind (`KindBench`); read on in `benchmarks.boolean` and `benchmarks.topk`. Peers, which engines are measured against,
are in `benchmarks.peers`.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Protocol

from benchmarks.boolean import BooleanBench
from benchmarks.peers import PEERS, Absence
from benchmarks.skyline import SkylineBench
from benchmarks.topk import TopkBench
from benchmarks.workload import BooleanRecipe
from matching import registry
from matching.errors import ConfigError
from matching.warmup import warmup

#: What is kept of a run of each benchmark.
RESULTS = Path(__file__).parent / "results"


class KindBench(Protocol):
    """One workload of a kind, on which engines are built, checked and timed."""

    #: What was measured on, JSON-ready.
    workload: dict[str, Any]
    #: How many turns `time` is made for.
    rounds: int

    def __init__(self, subscriptions: int, messages: int | None, window: int | None, rounds: int, seed: int): ...

    def build(self, name: str) -> Any:
        """An engine with all subscriptions in it; this is what `build_s` times."""
        ...

    def check(self, engine: Any) -> dict[str, Any]:
        """`exact` (bool) and how much was compared; leaves the engine fit for timing."""
        ...

    def memory(self, engine: Any) -> dict[str, Any]:
        """`bytes_per_subscription`, and what else a kind reports of its size."""
        ...

    def time(self, engine: Any, turn: int) -> dict[str, float]:
        """Figures of one turn; each is reported as the median over the turns."""
        ...


#: Kind to its class; a kind is offered by `skyray bench` as soon as it stands here.
BENCHES: dict[str, type[KindBench]] = {"boolean": BooleanBench, "topk": TopkBench, "skyline": SkylineBench}

_ROUNDS = 7


def bench(
    kind: str,
    subscriptions: int = 100_000,
    *,
    window: int | None = None,
    messages: int | None = None,
    engines: Sequence[str] | None = None,
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
    kind : str                   one of `BENCHES`
    subscriptions : int          how many are live
    window, messages : int       messages in the window (kinds that have one), messages timed; each kind has its own
                                 defaults
    engines : sequence of str    names in `matching.registry`, for `boolean` also in `benchmarks.peers`; all engines of
                                 the kind by default
    seed, rounds : int           of the workload; turns of each engine
    figure : str                 measure and draw this figure instead, into folder `out` (`benchmarks.figures`,
                                 `benchmarks.boolean_figures`, `benchmarks.skyline_figures`,
                                 `benchmarks.skyline_routing`)
    messages_from : str          ETL output directory whose messages are resampled; synthetic ones without
    workload : str               recipe of a `boolean` workload (`benchmarks.workload.BooleanRecipe.parse`)
    on_progress : callable       told what is going on, a sentence at a time

    Returns
    -------
    dict    `kind`, `workload`, `results`: for each engine its name, `exact`, `build_s`, and the figures of the kind:
            medians over the rounds, which are there one by one as `rounds`; memory is that before the first of them,
            and in `at_end` that after the last;
            `absent`: name, reason and line of installation of each peer that cannot run here, if there are any

    Raises
    ------
    ConfigError
        For a kind that has no benchmark, or an engine that the kind does not have.
    """
    if kind == "skyline" and figure == "routing":
        from benchmarks import skyline_routing

        folder = Path(out) if out else RESULTS / "figures"
        return skyline_routing.figure(folder, subscriptions, messages, seed, messages_from, on_progress)
    if kind == "skyline" and figure is not None:
        from benchmarks import skyline_figures

        folder = Path(out) if out else RESULTS / "figures"
        return skyline_figures.figure(figure, folder, window, engines, seed, messages_from, on_progress)
    if kind not in BENCHES:
        raise ConfigError(f"kind {kind!r} has no benchmark: choose one of {', '.join(BENCHES)}")
    if workload is not None and kind != "boolean":
        raise ConfigError(f"workload {workload!r}: only boolean has recipes yet; leave --workload out")
    if figure is not None:
        folder = Path(out) if out else RESULTS / "figures"
        if kind == "boolean":
            from benchmarks.boolean_figures import figure as draw_boolean  # drawing takes a second to import

            return draw_boolean(figure, folder, subscriptions, messages, engines, seed, messages_from, on_progress)
        if kind != "topk":
            raise ConfigError(f"figure {figure!r}: no figure can be drawn for {kind} yet; leave --figure out")
        from benchmarks.figures import figure as draw

        return draw(figure, folder, subscriptions, window, messages, engines, seed, on_progress)
    chosen = tuple(dict.fromkeys(engines or registry.names(kind)))
    absent = _absent(kind, chosen)
    tell = on_progress or (lambda _: None)
    for missing in absent:
        tell(f"{missing.name} left out: {missing.reason}. Install it: {missing.install}")
    chosen = tuple(name for name in chosen if name not in {missing.name for missing in absent})
    tell("compiling kernels")
    warmup({kind: tuple(name for name in chosen if name not in PEERS)})
    tell("making the workload")
    options: dict[str, Any] = {} if messages_from is None else {"messages_from": messages_from}
    if workload is not None:
        options["recipe"] = BooleanRecipe.parse(workload)
    made = BENCHES[kind](subscriptions, messages, window, rounds, seed, **options)
    built, results = {}, {}
    turns: dict[str, list[dict[str, float]]] = {name: [] for name in chosen}
    with ExitStack() as open_peers:
        for name in chosen:
            tell(f"building {name}")
            begun = perf_counter()
            built[name] = made.build(name)
            build_s = perf_counter() - begun
            if name in PEERS:
                open_peers.callback(built[name].close)
            tell(f"checking {name} against the oracle")
            results[name] = {"engine": name, **made.check(built[name]), "build_s": build_s, **made.memory(built[name])}
        for turn in range(made.rounds):
            for name in chosen:
                tell(f"turn {turn + 1} of {made.rounds}: {name}")
                turns[name].append(made.time(built[name], turn))
        at_end = {name: made.memory(built[name]) for name in chosen}
    for name in chosen:
        results[name] |= {"rounds": turns[name], "at_end": at_end[name]}
        for figure_name in turns[name][0]:
            figures = [figures[figure_name] for figures in turns[name] if figure_name in figures]
            results[name][figure_name] = median(figures)
    report = {"kind": kind, "workload": made.workload, "results": [results[name] for name in chosen]}
    return report | ({"absent": [missing._asdict() for missing in absent]} if absent else {})


def _absent(kind: str, chosen: Sequence[str]) -> list[Absence]:
    """Peers among the chosen that cannot run here.

    Raises
    ------
    ConfigError
        For a name that is neither an engine of the kind nor, for `boolean`, a peer.
    """
    absent = []
    for name in chosen:
        if kind == "boolean" and name in PEERS:
            missing = PEERS[name].absence()
            absent += [missing] if missing else []
        elif kind == "boolean" and name not in registry.names(kind):
            known = ", ".join((*registry.names(kind), *PEERS))
            raise ConfigError(f"engine {name!r} for boolean: choose one of {known}")
        else:
            registry.factory(kind, name)
    return absent


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns 1 if an engine was not exact."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description="Time the engines of a kind.")
    parser.add_argument("kind", choices=sorted(BENCHES))
    parser.add_argument("--subscriptions", type=int, default=100_000)
    parser.add_argument("--window", type=int)
    parser.add_argument("--messages", type=int)
    parser.add_argument("--engines", type=lambda text: text.split(","), help="names separated by commas")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=_ROUNDS)
    parser.add_argument("--workload", help="recipe of a boolean workload, as places=uniform,words=long")
    options = vars(parser.parse_args(arguments))
    report = bench(options.pop("kind"), options.pop("subscriptions"), on_progress=_say, **options)
    sys.stdout.write(json.dumps(report, indent=2) + "\n")
    return 0 if all(result["exact"] for result in report["results"]) else 1


def _say(sentence: str) -> None:
    sys.stderr.write(sentence + "\n")


if __name__ == "__main__":
    sys.exit(main())
