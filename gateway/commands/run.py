"""`skyray run`: matches a stream of messages against subscriptions. Start reading the project here."""

from pathlib import Path
from typing import Annotated

import typer

from gateway.commands.stream_options import MORE, READ, SinkPatience, UpdateSinks
from gateway.shell.exit_codes import AGAIN
from gateway.shell.options import Command, Defined, Json, MetricsPort, MetricsTargets, example, of_model, shares
from topology.given import Given
from topology.settings import RunConfig

#: Settings that the help page shows, and options that it does not show.
SHOWN = (
    *("messages", "subscriptions", "follow", "limit", "out", "overwrite", "window", "batch", "world", "distance"),
    *("decay_half_life", "executor", "address", "router", "signatures", "allow_loss", "query_bolts", "tuple_bolts"),
    *("distribution_bolts", "engine", "checkpoint_every", "to", "resume"),
)
QUIET = ("aggregation_bolts", "window_index", "objects")

app = typer.Typer()


Settings = Annotated[Given, Defined(of_model(RunConfig, **MORE))]


@app.command(
    cls=Command,
    epilog=example("skyray run --messages etl --subscriptions boolean.jsonl skyline.jsonl --out runs/first")
    + f" {AGAIN}",
)
@shares(*READ, shown=SHOWN, quiet=QUIET)
def run(
    settings: Settings,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN_DIR|auto",
            help="Resume a run that was interrupted or has failed; auto: begin, or resume what is in --out, or leave "
            "it if it has finished, so that the same command can be run again (./auto is a folder of that name).",
        ),
    ] = None,
    to: UpdateSinks = None,
    to_wait_s: SinkPatience = 30.0,
    metrics_port: MetricsPort = None,
    metrics_targets: MetricsTargets = None,
    json: Json = False,
) -> int:
    """Match a stream of messages against subscriptions.

    Every setting can also be in skyray.toml or in the environment, as SKYRAY_SECTION__NAME; the command line wins, and
    `skyray config show` lists them. A run that is interrupted (Ctrl-C; once more to stop at once) or fails can be
    resumed, also with other numbers of bolts; then settings are those it began with, and the command line's. With
    --to the updates go to a database or a broker, each once: at checkpoints while it runs, the rest (with --follow
    all) when it has ended; --resume of a finished run delivers what is missing there.
    """
    from gateway.commands.running import run_command

    return run_command(settings, resume, to or (), to_wait_s, (metrics_port, metrics_targets), json)
