"""`skyray live`: messages and subscriptions by pipe, updates by pipe."""

from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.commands import stream_options as stream
from gateway.commands.stream_options import READ, SinkPatience, UpdateSinks
from gateway.live.retain_settings import RetainSettings
from gateway.shell.interrupts import begin_to_wait
from gateway.shell.options import Command, Defined, MetricsPort, MetricsTargets, example, shares
from gateway.shell.terminal import Terminal, shown
from topology.core.places import require_local
from topology.given import Given

app = typer.Typer()


@app.command(
    cls=Command,
    epilog=example("tail -F posts.jsonl | skyray live --vocabulary etl --subscriptions mine.jsonl > updates.jsonl"),
)
@shares("columns", *READ, shown=(*stream.SHOWN, "rejects", "status", "checkpoint_every"), quiet=stream.QUIET)
def live(
    settings: Annotated[Given, Defined(stream.live_settings())],
    columns: Annotated[Given, Defined(stream.column_options())],
    stream_options: Annotated[Given, Defined(stream.stream_options())],
    retained: Annotated[Given, Defined(stream.RETAINED, "retain")],
    to: UpdateSinks = None,
    to_wait_s: SinkPatience = 30.0,
    rejects: Annotated[Path | None, typer.Option(help="File for refused lines; standard error otherwise.")] = None,
    status: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Print the state of such a folder and its next line, and exit.")
    ] = None,
    metrics_port: MetricsPort = None,
    metrics_targets: MetricsTargets = None,
    json: Annotated[
        bool, typer.Option("--json", help="Figures at the end as JSON on standard error; with --status, the answer.")
    ] = False,
) -> int:
    """Match messages as they come on standard input, and write updates to standard output at once.

    A line is a message (text, lon, lat, and if need be id and time), {"subscribe": {...}} or {"unsubscribe": "id"}. A
    change takes effect at its place in the stream. A bad line is refused with its reason; the others are matched. Words
    that are new get a weight when they first come, and keep it. With --out no accepted line is lost by a crash, and
    {"durable": {"line": N}} is the last one on disk; without --out nothing is kept. With --from the lines are
    messages of a broker, each read once, until Ctrl-C. With --to all updates go to a database or a broker as well, with
    each checkpoint, and the command ends once they are there. With --status nothing is read or matched.
    """
    if status is not None:
        require_local(status=status)
        return _print_status(status, json)
    begin_to_wait()
    offered = stream.StreamOptions(**stream_options)
    require_local(out=offered.out, vocabulary=offered.vocabulary)
    from gateway.commands.piping import pipe_stream

    metrics, kept = (metrics_port, metrics_targets), RetainSettings(**retained)
    named = stream.named_columns(columns)
    return pipe_stream(settings, named, offered, kept, to or (), to_wait_s, rejects, metrics, json)


def _print_status(folder: Path, json: bool) -> int:
    from gateway.live.status import read_status

    found = read_status(folder)

    def render(out: Any) -> None:
        for name, value in found.items():  # no thousands separators: scripts read the figures
            if value is not None:
                out.print(f"{name.replace('_', ' '):<9}  {shown(str(value))}", markup=False, soft_wrap=True)

    Terminal(json).answer(found, render)
    return 0
