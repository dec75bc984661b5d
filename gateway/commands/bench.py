"""`skyray bench`: the engines of a kind timed beside each other."""

from collections.abc import Iterator
from inspect import Parameter
from types import ModuleType
from typing import Annotated, Any

import typer

from gateway.shell.options import Command, Defined, Json, example, of_signature
from gateway.shell.packages import from_checkout
from gateway.shell.per_kind import WORDS
from gateway.shell.terminal import Terminal, table
from matching.errors import ConfigError

app = typer.Typer()


def _runner() -> ModuleType:
    return from_checkout("benchmarks.run", "`skyray bench`")


def _options() -> Iterator[Parameter]:
    """None if there is no checkout: the command then raises an error, and its help still works."""
    try:
        runner = _runner()
    except ConfigError:
        return
    yield from of_signature(runner.bench)


@app.command(
    cls=Command,
    epilog=example("skyray bench boolean --subscriptions 1000000 --engines cell_term,inverted_list --json"),
)
def bench(
    kind: Annotated[str, typer.Argument(help=f"{WORDS['running']}.")],
    options: Annotated[dict[str, Any], Defined(_options())],
    progress: Annotated[
        bool | None,
        typer.Option(help="A plain line a step on standard error; by default where that is no terminal."),
    ] = None,
    json: Json = False,
) -> int:
    """Time the engines of a kind beside each other, checked against the oracle first. Needs a checkout."""
    return run_bench(Terminal(json), _runner(), kind, options, progress)


def run_bench(
    terminal: Terminal, runner: ModuleType, kind: str, options: dict[str, Any], progress: bool | None = None
) -> int:
    """`skyray bench`: 1 if an engine was not exact; `progress` as in `Terminal.steps`, False for none in lines."""
    with terminal.steps(f"bench {kind}", in_lines=progress) as on_progress:
        report = runner.bench(kind, on_progress=on_progress, **options)
    if "figure" in report:
        terminal.answer(report, lambda console: console.print(*_figure_tables(report)))
        return 0 if report["exact"] else 1
    engines = report["results"]
    # rounds one by one and the memory after them are for scripts
    shown = (name for result in engines for name, value in result.items() if not isinstance(value, list | dict))
    figures = dict.fromkeys(name for name in shown if name != "engine")
    headings = ("figure", *(result["engine"] for result in engines))
    rows = [[name, *(result.get(name) for result in engines)] for name in figures]
    notes = [f"{name}: {why}" for name, why in report.get("absent", {}).items()]
    terminal.answer(
        report, lambda out: out.print(table(headings, rows, right=range(1, len(headings))), *notes, markup=False)
    )
    return 0 if all(result["exact"] for result in report["results"]) else 1


def _figure_tables(report: dict[str, Any]) -> list[Any]:
    """A table for each panel of a figure."""
    tables = []
    for panel in report["panels"]:
        columns = panel["series"]
        names = map(str, panel.get("x", report["x"]))
        rows = [[name, *(values[place] for values in columns.values())] for place, name in enumerate(names)]
        title = f"{panel['title']}, " if "title" in panel else ""
        heading = f"{title}{panel.get('x_label', report['x_label'])}: {panel['y_label']}"
        tables.append(table((heading, *columns), rows, right=range(1, len(columns) + 1)))
    return tables
