"""`skyray feed-demo`: files are written, Spark streams them into a feed, a running topology matches them.

`gateway/commands/feed_demo.py` -> `gateway/commands/demo_of_feed.py`, which runs `feed.py`, `live.py`, `run.py` and
`verify.py` beside this file.
"""

from pathlib import Path
from typing import Annotated

import typer

from gateway.shell.options import Command, Json, example
from gateway.shell.terminal import Terminal

app = typer.Typer()


@app.command("feed-demo", cls=Command, epilog=example("skyray feed-demo --out runs/feed-demo"))
def feed_demo(
    out: Annotated[Path, typer.Option(help="Work folder; an earlier demo in it is replaced.")] = Path("runs/feed-demo"),
    seconds: Annotated[float, typer.Option(min=1.0, max=3_600.0, help="How long files are written.")] = 20.0,
    per_kind: Annotated[int, typer.Option(min=1, help="Subscriptions of each kind.")] = 200,
    json: Json = False,
) -> int:
    """Write files, stream them with Spark into a running topology, and check what came out.

    The world's towns come as files, two a second, some rows of which cannot be used. skyray feed cleans them into a
    feed, skyray live reads the feed and writes updates, some of which are shown. At the end the updates are compared
    with those of skyray run over the log of the stream, and with the oracle. Takes a minute or two.
    """
    from gateway.commands.demo_of_feed import run_feed_demo

    return run_feed_demo(Terminal(json), out, seconds, per_kind)
