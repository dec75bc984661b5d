"""`skyray show`: results and updates of a run in any state."""

from pathlib import Path
from typing import Annotated

import typer

from gateway.commands import stream_options as stream
from gateway.shell.options import Command, Defined, Json, example, of_signature, shares
from matching.errors import ConfigError
from matching.extras import require
from topology.core.places import is_remote, place
from topology.given import Given

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
    from gateway.commands.showing import show_run

    return show_run(run_dir, subscriptions or [], updates, follow, limit, picture, csv, json)


def _page(folder: Path, server: stream.ServerOptions) -> int:
    require("serve", "--page", "leave it out")
    from gateway.serve.replay_server import serve_run
    from gateway.serve.tiles import Tiles

    if is_remote(folder):
        store = place(folder)
        raise ConfigError(f"--page: shows a folder of this machine, and {store} is in an object store; copy it first")
    return serve_run(folder, server.port, stream.say, Tiles.of(server.tiles, server.tiles_by))
