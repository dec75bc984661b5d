"""`skyray convert`: the folder of a stream with the words of this release's tokeniser."""

from pathlib import Path
from typing import Annotated

import typer

from gateway.shell.options import Command, Json, example
from gateway.shell.terminal import Terminal, cell
from topology.core.places import require_local

app = typer.Typer()


@app.command(cls=Command, epilog=example("skyray convert runs/serve runs/converted"))
def convert(
    folder: Annotated[Path, typer.Argument(help="Folder of a stream that has ended or was stopped.")],
    to: Annotated[Path, typer.Argument(help="Folder that is written; must not exist.")],
    json: Json = False,
) -> int:
    """Write the folder of a stream that cut texts into words otherwise, with the words of this release.

    FOLDER stays as it is. Resume the stream with `skyray serve --out TO`: it matches its log from the beginning. Ids of
    events end otherwise than before, so clients begin anew.
    """
    from gateway.live.converting import convert as converted

    require_local(folder=folder, to=to)
    found = converted(folder, to)
    Terminal(json).answer(
        {"folder": str(folder), "to": str(to), **found._asdict()},
        lambda shown: shown.print(
            f"convert: {found.messages:,} messages in {found.batches:,} batches, a log of {found.size_bytes:,} bytes, "
            f"are in {cell(to)}",
            soft_wrap=True,
        ),
    )
    return 0
