"""Time the engines of a kind beside each other: what `skyray bench KIND` runs.

Every engine is built, held against the oracle on a sample, and then timed in turns with the others (A B A B), so that a
slow minute of the machine hits all alike; the figures are medians over the turns. Any kind that `matching.kinds` has an
engine for can be measured: `benchmarks.cases` makes a case of it, `benchmarks.harness` drives it. Peers, which engines
are measured against, are in `benchmarks.peers`; figures of a kind in the module `benchmarks.figures.KIND`.
"""

import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Literal

import typer

from benchmarks.cases import make_case
from benchmarks.command import Tell, provenance
from benchmarks.harness import time_beside
from benchmarks.lasting import bench_of
from benchmarks.peers import PEERS, with_peers
from benchmarks.workload import BooleanRecipe
from matching.errors import ConfigError
from matching.extras import require
from matching.kind_table import Kind
from matching.kinds import KINDS
from topology.warmup import warm_engine

#: What is kept of a run of each benchmark.
RESULTS = Path(__file__).parent / "results"


def bench(
    kind: str,
    subscriptions: Annotated[int, typer.Option(min=1, help="How many subscriptions are live.")] = 100_000,
    *,
    window: Annotated[int | None, typer.Option(min=1, help="Messages in the window, for kinds that have one.")] = None,
    messages: Annotated[
        int | None, typer.Option("--message-count", "--messages", min=1, help="Messages to time.")
    ] = None,
    engines: Annotated[str | Sequence[str] | None, "all by default; also duckdb, postgis"] = None,
    window_index: Annotated[str | None, "name of the window index, for kinds that have one"] = None,
    figure: Annotated[str | None, "measure and draw this figure instead; a wrong name tells which there are"] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the workload.")] = 0,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each engine.")] = 7,
    messages_from: Annotated[str | None, "resample the messages of this output folder of `skyray etl`"] = None,
    subscriptions_from: Annotated[str | None, "let subscriptions take after the texts of another such folder"] = None,
    distance: Annotated[Literal["sphere", "plane"], "how far is far: as of `skyray run`"] = "plane",
    workload: Annotated[str | None, "saved-searches, portal, or as places=uniform,keywords=1-3,regions=city"] = None,
    out: Annotated[str | None, "folder for a figure (benchmarks/results/figures), or file for the report"] = None,
    on_progress: Tell | None = None,
) -> dict[str, Any]:
    """Measure engines of a kind on one synthetic workload; what is annotated is an option of `skyray bench`.

    Says the `kind`, `made_by`, the `workload`, of each engine in `results` what `benchmarks.harness.time_beside` says,
    and why peers cannot run here by name (`absent`), how the others compare with the first (`times_the_first`), and
    writes it to the file `out`; or what a figure says.
    Raises a `ConfigError` for a kind that has no operator, an engine that the kind does not have, or one that does not
    serve the `distance`.
    """
    if kind not in KINDS or not KINDS.named(kind).runs:
        there = ", ".join(each.name for each in KINDS.run)
        raise ConfigError(f"kind {kind!r} has no engine to measure: choose one of {there}")
    row, tell = KINDS.named(kind), on_progress or (lambda _: None)
    chosen = tuple(filter(None, engines.split(","))) if isinstance(engines, str) else tuple(engines or ())
    if workload is not None and row.message_place != "box":
        raise ConfigError(f"workload {workload!r}: only boolean has recipes yet; leave --workload out")
    if figure is not None:
        if window_index is not None:
            raise ConfigError("figures ask the window index of a run: leave --window-index out")
        if importlib.util.find_spec(f"benchmarks.figures.{kind}") is None:
            raise ConfigError(f"{kind} has no figures: leave --figure out")
        require("bench", "--figure")
        page = importlib.import_module(f"benchmarks.figures.{kind}").PAGE  # drawing takes a second to import
        given = {"window": window, "messages": messages, "engines": chosen, "messages_from": messages_from}
        given |= {"subscriptions_from": subscriptions_from}
        folder = Path(out) if out else RESULTS / "figures"
        return page.figure(figure, folder, subscriptions, seed=seed, on_progress=on_progress, **given)
    own, row = row.engines, with_peers(row)
    able = _able(row, distance)
    chosen = tuple(dict.fromkeys(chosen or (name for name in own if name in able)))
    for name in chosen:
        row.engine(name)
        if name not in able:
            raise ConfigError(f"engine {name}: {kind} is measured with --distance {distance} by {', '.join(able)}")
    absent = {name: why for name in chosen if name in PEERS and (why := PEERS[name].absence())}
    for name, why in absent.items():
        tell(f"{name} left out: {why}")
    chosen = [name for name in chosen if name not in absent]
    tell("making the workload")
    recipe = None if workload is None else BooleanRecipe.parse(workload)
    case = make_case(
        row, subscriptions, messages, window, rounds, seed, recipe=recipe, messages_from=messages_from,
        distance=distance, subscriptions_from=subscriptions_from,
    )  # fmt: skip
    tell("compiling kernels")
    for name in chosen:
        if name not in PEERS:
            warm_engine(row, name)
    tell("filling the window, or results from the history")
    made = bench_of(case, rounds, windows={} if window_index is None else {kind: window_index})
    results = [{"engine": name, **result} for name, result in time_beside(made, chosen, tell).items()]
    report = {"kind": kind, "made_by": provenance(), "workload": made.workload, "results": results}
    report |= {"times_the_first": times_the_first(results)} if len(results) > 1 else {}
    report |= {"absent": absent} if absent else {}
    if out is not None:
        Path(out).write_text(json.dumps(report, indent=1) + "\n")
        tell(f"written: {out}")
    return report


def times_the_first(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """How many times as long as the first engine each other one takes for a message, round by round, and the median.

    Of a peer `join` says the same of its join alone, without sending messages and reading what is found.
    """
    first, told = results[0]["rounds"], {}
    for other in results[1:]:
        figures = {"whole": "us_per_message", "join": "join_us_per_message"}
        for said, figure in ((said, figure) for said, figure in figures.items() if figure in other):
            pairs = [row[figure] / one["us_per_message"] for row, one in zip(other["rounds"], first, strict=True)]
            told.setdefault(other["engine"], {})[said] = {"median": median(pairs), "pairs": pairs}
    return told


def _able(row: Kind, distance: str) -> list[str]:
    """Engines that can be measured with such distances."""
    if distance == "plane":
        return list(row.engines)
    if row.place != "point":
        raise ConfigError(f"distance {distance}: {row.name} has regions, which have no distance; leave --distance out")
    return [name for name, engine in row.engines.items() if getattr(engine, "serves_sphere", False)]
