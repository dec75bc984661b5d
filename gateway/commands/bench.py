"""`skyray bench`: the engines of a kind timed beside each other.

`gateway/commands/bench.py` -> `benchmarks/run.py`, which is there in a checkout alone -> `matching/alone.py`, the room
and the window that a run executes.
"""

from types import ModuleType
from typing import Annotated, Any

import typer

from gateway.options import Command, Json, example
from gateway.packages import from_checkout
from gateway.terminal import Terminal, table

app = typer.Typer()


@app.command(
    cls=Command,
    epilog=example("skyray bench boolean --subscriptions 1000000 --engines cell_term,inverted_list --json"),
)
def bench(
    kind: Annotated[str, typer.Argument(help="{running}.")],
    subscriptions: Annotated[int, typer.Option(min=1, help="How many subscriptions.")] = 100_000,
    window: Annotated[int | None, typer.Option(min=1, help="Messages in the window, for kinds that have one.")] = None,
    messages: Annotated[int | None, typer.Option(min=1, help="Messages to time.")] = None,
    engines: Annotated[
        str | None,
        typer.Option(
            help="Names separated by commas; all engines by default. Where there are peers, they can be named too: "
            "postgis, postgis_region, sqlite, sqlite_rtree, duckdb and strtree."
        ),
    ] = None,
    figure: Annotated[
        str | None, typer.Option(help="Figure of the kind; a wrong name is answered with those there are.")
    ] = None,
    messages_from: Annotated[
        str | None, typer.Option(help="Resample the messages of this output folder of `skyray etl`.")
    ] = None,
    workload: Annotated[
        str | None,
        typer.Option(
            help="Recipe of the workload, as places=uniform,stop_words=no,keywords=1-3,regions=city,words=long."
        ),
    ] = None,
    out: Annotated[str | None, typer.Option(help="Folder for a figure (benchmarks/results/figures).")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the workload.")] = 0,
    progress: Annotated[
        bool | None,
        typer.Option(help="A plain line a step on standard error; by default where that is no terminal."),
    ] = None,
    json: Json = False,
) -> int:
    """Time the engines of a kind beside each other, checked against the oracle first. Needs a checkout."""
    runner = from_checkout("benchmarks.run", "`skyray bench`")
    options = {"window": window, "messages": messages, "engines": engines, "figure": figure}
    options |= {"messages_from": messages_from, "workload": workload, "out": out}
    given = {name: value for name, value in options.items() if value is not None}
    return run_bench(Terminal(json), runner, kind, subscriptions, seed, given, progress)


def run_bench(
    terminal: Terminal,
    runner: ModuleType,
    kind: str,
    subscriptions: int,
    seed: int,
    options: dict[str, Any],
    progress: bool | None = None,
) -> int:
    """`skyray bench`: 1 if an engine was not exact; `progress` as in `Terminal.steps`, False for none in lines."""
    if "engines" in options:
        options["engines"] = [name for name in options["engines"].split(",") if name]
    with terminal.steps(f"bench {kind}", in_lines=progress) as on_progress:
        report = runner.bench(kind, subscriptions, seed=seed, on_progress=on_progress, **options)
    if "figure" in report:
        terminal.answer(report, lambda console: console.print(*_figure_tables(report)))
        return 0 if report["exact"] else 1
    engines = report["results"]
    # rounds one by one and the memory after them are for scripts
    shown = (name for result in engines for name, value in result.items() if not isinstance(value, list | dict))
    figures = dict.fromkeys(name for name in shown if name != "engine")
    headings = ("figure", *(result["engine"] for result in engines))
    rows = [[name, *(result.get(name) for result in engines)] for name in figures]
    notes = [f"{one['name']}: {one['reason']}. Install it: {one['install']}" for one in report.get("absent", [])]
    terminal.answer(
        report, lambda out: out.print(table(headings, rows, right=range(1, len(headings))), *notes, markup=False)
    )
    return 0 if all(result["exact"] for result in report["results"]) else 1


def _figure_tables(report: dict[str, Any]) -> list[Any]:
    """A table for each panel of a figure."""
    tables = []
    for panel in report["panels"]:
        columns = panel.get("series") or panel.get("groups") or {panel["y_label"]: list(panel["bars"].values())}
        names = list(panel["bars"]) if "bars" in panel else panel.get("x", report["x"])
        rows = [[str(name), *(values[place] for values in columns.values())] for place, name in enumerate(names)]
        title = f"{panel['title']}, " if "title" in panel else ""
        heading = f"{title}{report['x_label']}: {panel['y_label']}"
        tables.append(table((heading, *columns), rows, right=range(1, len(columns) + 1)))
    return tables
