"""`skyray show`: results and updates of a run in any state.

`gateway/commands/show.py` -> `gateway/runs/showing.py` (joins updates with texts and places) ->
`gateway/runs/reader.py` (reads a run folder); pictures are drawn in `gateway/runs/picture.py`.
"""

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.commands import stream_options as stream
from gateway.runs.picture import draw_results
from gateway.runs.reader import RunReader
from gateway.runs.showing import (
    RESULT_COLUMNS,
    flat_results,
    result_lines,
    result_lists,
    result_stream,
    update_columns,
    update_line,
    update_lines,
    update_stream,
    write_csv,
)
from gateway.serve.tiles import Tiles
from gateway.shell.options import Command, Defined, Json, example, of_signature, shares
from gateway.shell.terminal import Terminal, as_json, cell, console, flushed, say_checkpoint
from matching.errors import ConfigError, TopologyError
from matching.extras import require
from topology.core.places import is_remote, place
from topology.folder import DIED
from topology.given import Given

#: Seconds between two reads of a running run's folder.
POLL_S = 0.5

app = typer.Typer()


_PAGE = ("port", "tiles", "tiles_by")


@app.command(cls=Command, epilog=example("skyray show runs/first s1 s2 --map s1.png"))
@shares("server", shown=("updates", "follow", "limit", "map", "page", "port", "csv"))
def show(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run, in any state.")],
    server: Annotated[Given, Defined(one for one in of_signature(stream.ServerOptions) if one.name in _PAGE)],
    subscriptions: Annotated[
        list[str] | None, typer.Argument(metavar="SUBSCRIPTION", help="Ids; a few by default.")
    ] = None,
    updates: Annotated[bool, typer.Option("--updates", help="Updates as a stream, oldest first.")] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="The same, and later updates as they are published, until the run ends.")
    ] = False,
    limit: Annotated[
        int | None,
        typer.Option(
            min=0, help="Results of each subscription, or last updates, at most; 0: all. By default 10, or 20."
        ),
    ] = None,
    picture: Annotated[
        Path | None, typer.Option("--map", help="Draw the results that are shown on a map: PNG, SVG or PDF.")
    ] = None,
    page: Annotated[
        bool, typer.Option("--page", help="Show the run on a page for browsers of this machine, until Ctrl-C.")
    ] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV, one row a result or update.")] = False,
    json: Json = False,
) -> int:
    """Show results or updates: message, time, place, distance, words found, text and score.

    Without ids a few subscriptions with results are shown, evenly spaced. Updates of a running run are published in
    updates/ as soon as a checkpoint covers them; of a live stream that runs everything as of its last checkpoint is
    shown. Rows are printed as they are read. With --follow, --json
    prints one object a line. With --page a browser shows the run, its map and its updates, at any moment of its stream.
    """
    if page:
        return _page(run_dir, stream.ServerOptions(**server))
    if csv and json:
        raise ConfigError("--csv and --json exclude each other; drop one")
    if picture is not None and (updates or follow):
        raise ConfigError("--map draws results; leave --updates and --follow out")
    run, wanted, terminal = RunReader(run_dir), subscriptions or [], Terminal(json)
    say_checkpoint(run.checkpoint)
    if follow and run.checkpoint:
        raise ConfigError(
            f"--follow: {run.folder} is of a live stream, whose updates `skyray live` prints, and `skyray serve` sends "
            "to those who GET /v1/updates; leave it out"
        )
    if follow:
        return _follow(run, wanted, 20 if limit is None else limit, csv, json)
    if updates:
        return _updates(terminal, run, wanted, 20 if limit is None else limit, csv)
    return _results(terminal, run, wanted, 10 if limit is None else limit, csv, picture)


def _page(folder: Path, server: stream.ServerOptions) -> int:
    require("serve", "--page", "leave it out")
    from gateway.serve.replay_server import serve_run

    if is_remote(folder):
        store = place(folder)
        raise ConfigError(f"--page: shows a folder of this machine, and {store} is in an object store; copy it first")
    return serve_run(folder, server.port, stream.say, Tiles.of(server.tiles, server.tiles_by))


def _results(terminal: Terminal, run: Any, wanted: list[str], limit: int, csv: bool, picture: Path | None) -> int:
    if picture is None:
        payload = result_stream(run, wanted, limit)
    else:
        payload = result_lists(run, wanted, limit)
        payload |= {"map": picture, "not_drawn": draw_results(payload, picture)}
    if csv:
        free = run.free_columns(set(wanted) or None)
        write_csv(flat_results(payload), ["subscription_id", *dict.fromkeys([*free, *RESULT_COLUMNS])])
        return 0

    def lines(width: int) -> Iterator[str]:
        yield from result_lines(payload, run, width)
        if picture is not None:
            yield f"drawn: {cell(picture)}"
            yield from payload["not_drawn"]

    terminal.stream(payload, lines)
    return 0


def _updates(terminal: Terminal, run: Any, wanted: list[str], limit: int, csv: bool) -> int:
    run.known(wanted)
    rows = update_stream(run, wanted, limit)
    if csv:
        write_csv(rows, update_columns(run, wanted))
    else:
        payload = {"run": str(run.folder), "state": run.state, "updates": rows}
        terminal.stream(payload, lambda width: update_lines(rows, run, width))
    return 0


def _follow(run: Any, wanted: list[str], limit: int, csv: bool, json: bool) -> int:
    seen: set[Path] = set()
    begun = False
    width = console().width
    names = update_columns(run, wanted) if csv else []
    while True:
        running = run.is_running()  # before listing the parts: if it has ended, they are all
        parts = [path for path in run.parts() if path not in seen]
        seen.update(parts)
        rows = update_stream(run, wanted, 0 if begun else limit, parts)
        if csv:
            begun = write_csv(rows, names, header=not begun) or begun
        else:
            for row in flushed(rows):
                sys.stdout.write((as_json(row) if json else update_line(row, run, width)) + "\n")
                begun = True
        if not running:
            if run.state == DIED:
                raise TopologyError(
                    f"{run.folder}: {DIED}: no more updates come; resume with skyray run --resume {run.folder}"
                )
            if not json and not csv:
                console(errors=True).print(f"{cell(run.folder)}: {run.state}")
            return 0
        time.sleep(POLL_S)
