"""Runs a topology: shows its components, serves its metrics, delivers its updates."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from gateway.commands.delivering import Deliveries
from gateway.commands.run_summary import nothing_usable, print_ending
from gateway.live.checkpointed import settings_of_stream
from gateway.shell.interrupts import draining
from gateway.shell.interrupts import report as report_end
from gateway.shell.progress import live_run, print_summary
from gateway.shell.terminal import Terminal, cell, console, say_checkpoint, writing_to
from matching.errors import ConfigError, InputError
from matching.extras import require
from matching.window import Window
from spouts.cuts import Cuts
from spouts.manifest import read_manifest
from topology import running
from topology.core.places import is_remote
from topology.folder import FINISHED
from topology.given import Given
from topology.settings import RunConfig, load_config, resumed
from topology.store_folder import run_folder

#: Value of `--resume` by which a command may be repeated: it begins the run, resumes it, or finds it finished.
AUTO = "auto"


def run_command(
    settings: Given,
    resume: Path | None,
    to: Sequence[str],
    to_wait_s: float,
    metrics: tuple[int | None, Path | None],
    json: bool,
) -> int:
    """`skyray run`; `metrics` as in `with_metrics`."""
    terminal = Terminal(json)
    deliveries = Deliveries(to)
    is_auto = str(resume) == AUTO
    if to and resume is not None and not is_auto and _has_finished(resume):
        deliveries.deliver_run(resume, to_wait_s)
        return 0
    if is_auto:
        config = load_config(_refusing_stream(settings))
    else:
        config = load_config(_with_stream(settings)) if resume is None else resumed_settings(resume, settings)
    if to and config.sink != "parquet":
        raise ConfigError(
            f"--to: reads updates as parquet, and output.sink {config.sink} writes none; leave one of them out"
        )
    if to and is_remote(config.out):
        raise ConfigError("--to: delivers from a folder of this machine; name one with --out, or leave --to out")
    early = deliveries if to and config.checkpoint_every and not config.follow else None
    report = run_shown(terminal, config, AUTO if is_auto else resume is not None, metrics, early)
    # `print_ending` reads the inputs, which may be gone where the run had finished before
    shown = print_summary if report.get("already_finished") else print_ending
    terminal.answer(report, lambda out: shown(out, report))
    if to:
        deliveries.deliver_run(config.out, to_wait_s)
    if why := nothing_usable(report):
        raise InputError("nothing_usable", why)
    return 0


def _has_finished(folder: Path) -> bool:
    return run_folder(folder).report().get("state") == FINISHED


def _with_stream(settings: Given) -> Given:
    """Complete the settings of `--batch log:FOLDER` by messages, subscriptions and more from that live stream."""
    folder, out = Path(str(settings.get("batch") or "").removeprefix("log:")), settings.get("out")
    if not str(settings.get("batch") or "").startswith("log:") or not folder.is_dir():
        return settings
    if settings.get("messages") or settings.get("subscriptions") or out is None:
        raise ConfigError(f"--batch log:{folder}: has messages and subscriptions of its own; give --out, and not those")
    copy = Path(f"{out}-stream")
    if copy.exists():
        raise ConfigError(f"{copy}: is there already, where what is complete of the stream goes; name another --out")
    found, text = settings_of_stream(folder, copy)
    say_checkpoint(text and f"{text}; kept in {cell(copy)}")
    return Given(settings) | found


def _refusing_stream(settings: Given) -> Given:
    """The settings. Raises ConfigError if input is from a live stream, which each start would copy anew."""
    if str(settings.get("batch") or "").startswith("log:") and not settings.get("messages"):
        raise ConfigError(
            "--resume auto: a run of --batch log:FOLDER reads the stream as it is when it begins; begin without it, "
            "then give --resume RUN_DIR"
        )
    return settings


def resumed_settings(out: Path, settings: Given) -> RunConfig:
    """The settings of a run to resume."""
    before = run_folder(out).report()
    if before.get("live"):
        raise ConfigError(
            f"--resume {out}: is the folder of a live stream; the command that began it resumes it, and "
            f"--batch log:{out} with another --out runs it again"
        )
    fixed = {"messages": before.get("messages"), "subscriptions": before.get("subscriptions"), "out": out}
    return resumed(settings, {**before.get("settings", {}), **fixed})


def run_shown(
    terminal: Terminal,
    config: RunConfig,
    resume: bool | str = False,
    metrics: tuple[int | None, Path | None] = (None, None),
    deliveries: Deliveries | None = None,
) -> dict[str, Any]:
    """Run a topology with its components shown; returns the report. A first Ctrl-C drains it, a second one ends it.

    With `resume` the run of the output folder is resumed; with `AUTO` it is begun, resumed, or left as it is.
    `metrics` as in `with_metrics`. With `deliveries` updates are delivered at checkpoints; the caller delivers those
    after the last one.
    """
    with (
        live_run(terminal, batches_of(config)) as show,
        with_metrics(metrics, "run", show, config.out) as shown,
        nullcontext(shown) if deliveries is None else deliveries.at_checkpoints(config.out, shown) as on_progress,
        draining() as stop,
        writing_to(config.out),
    ):
        if resume == AUTO:
            report, finished = running.run_or_resume(config, on_progress, stop)
        else:
            report, finished = running.run(config, on_progress, stop, resume=bool(resume)), False
    if finished:
        report = {**report, "already_finished": True}
        console(errors=True).print(f"{cell(config.out)}: already finished, with the same settings")
    if report["state"] == "interrupted":
        report_end(f" after message {report['limit']:,}; resume with skyray run --resume {config.out}")
    return report


@contextmanager
def with_metrics(
    metrics: tuple[int | None, Path | None], command: str, show: Any, folder: Path, own: Any = None
) -> Iterator[Any]:
    """Serve metrics for Prometheus at a port, if one is given; yields the callback for snapshots.

    Parameters
    ----------
    metrics : port and folder, each optional
        The folder gets a file that lists the port (`gateway.metrics.listed`).
    show, folder, own
        As in `gateway.metrics.RunFigures`.
    """
    port, targets = metrics
    if port is None:
        if targets is not None:
            raise ConfigError("metrics.targets: lists the port of metrics.port; give one, 0 for any that is free")
        yield show
        return
    require("serve", "metrics.port", "leave it out")
    from gateway.metrics import RunFigures, at_port, listed

    figures = RunFigures(show, folder, own)
    with ExitStack() as stack:
        url = stack.enter_context(at_port(port, figures))
        if targets is not None:
            labels = {"command": command, "folder": str(folder)}
            stack.enter_context(listed(targets, url.split("/")[2], labels))
        sys.stderr.write(f"{command}: figures for Prometheus at {url}\n")
        sys.stderr.flush()
        yield figures


def batches_of(config: RunConfig) -> int | None:
    """Number of batches of the stream; None while the ETL still writes, or where time or a log ends batches."""
    kept = None
    with suppress(InputError):
        kept = (read_manifest(config.messages) or {}).get("kept")
    if not isinstance(kept, int) or config.follow:
        return None
    cuts = Cuts.parse(config.batch, Window.parse(config.window))
    if cuts.step_us or cuts.log:
        return None
    return -(-min(kept, config.limit or kept) // cuts.messages)
