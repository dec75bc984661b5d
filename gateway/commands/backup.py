"""`skyray backup`: a copy of the folder of a stream or run."""

from pathlib import Path
from typing import Annotated

import typer

from gateway.shell.options import Command, Json, example
from gateway.shell.terminal import Terminal, cell
from topology.core.places import require_local

app = typer.Typer()


@app.command(cls=Command, epilog=example("skyray backup runs/serve /backups/monday"))
def backup(
    folder: Annotated[Path, typer.Argument(help="Folder of a stream or run, which may be running.")],
    to: Annotated[Path, typer.Argument(help="Folder of the copy; must not exist.")],
    json: Json = False,
) -> int:
    """Copy the folder of a stream or run, so that the copy can be resumed, and check the copy.

    The stream goes on meanwhile. To restore a backup, name it in the place of the folder: `skyray serve --out COPY`.
    Clients that have read further than the copy goes are told so.
    """
    from gateway.live.backing_up import back_up

    require_local(folder=folder, to=to)
    found = back_up(folder, to)
    lost = f"; {found.lost_parts:,} parts of updates are gone from the folder" if found.lost_parts else ""
    Terminal(json).answer(
        {"folder": str(folder), "to": str(to), **found._asdict()},
        lambda shown: shown.print(
            f"backup: {found.messages:,} messages and {found.updates:,} updates, {found.size_bytes:,} bytes, are in "
            f"{cell(to)}; checked{lost}",
            soft_wrap=True,
        ),
    )
    return 0
