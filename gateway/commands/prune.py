"""`skyray prune`: removes the oldest messages and updates of a stream that does not run."""

import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer

from gateway.commands import stream_options as stream
from gateway.live.retain_settings import RetainSettings
from gateway.shell.options import Command, Defined, Json, example
from gateway.shell.terminal import Terminal, cell
from matching.errors import ConfigError
from topology.core.places import require_local
from topology.given import Given

app = typer.Typer()


@app.command(cls=Command, epilog=example("skyray prune runs/serve --age 30d"))
def prune(
    folder: Annotated[Path, typer.Argument(help="Folder of a stream that has ended or was stopped.")],
    retained: Annotated[Given, Defined(stream.RETAINED, "retain")],
    json: Json = False,
) -> int:
    """Remove the oldest messages and updates of a stream that does not run.

    What stands by them stays: subscriptions, words, results and their messages, living objects. A stream that runs
    does the same by itself with these settings ([retain] in skyray.toml, or --set).
    """
    from gateway.live.opening import reopened
    from gateway.live.pruning import finish
    from gateway.live.retaining import prune_ended
    from topology.folder import RunFolder

    require_local(folder=folder)
    settings, run = RetainSettings(**retained), RunFolder(folder)
    if settings.keeps_all:
        raise ConfigError("what is to be kept? give --messages N, --age 30d or --gb G")
    report = run.report()
    if not report.get("live"):
        raise ConfigError(f"{folder}: is of no stream of skyray serve or live")
    with run.locked(), tempfile.TemporaryDirectory(prefix="skyray-prune-") as scratch:
        finish(folder)
        wal, admission = reopened(folder, report["live"], Path(scratch))
        wal.replay(admission)
        wal.rebase()
        freed = prune_ended(wal, admission.window, settings, time.time())
        first, wal_seq = wal.first_seq, wal.next_seq
        wal.close()
    found = {"folder": str(folder), "freed_bytes": freed or 0, "first_message": first, "messages": wal_seq}
    said = "nothing to remove" if freed is None else f"{freed:,} bytes are free"
    Terminal(json).answer(
        found,
        lambda shown: shown.print(f"prune: {said}; {cell(folder)} has messages from {first:,} on", soft_wrap=True),
    )
    return 0
