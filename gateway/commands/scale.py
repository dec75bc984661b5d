"""`skyray scale`: change the numbers of tasks of a run, while it runs or when it is resumed."""

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.shell.options import Command, Defined, Json, example, of_model, shares
from gateway.shell.terminal import Terminal, cell
from matching.errors import ConfigError, TopologyError
from topology.core.places import is_remote, place
from topology.given import Given
from topology.scaling import drop_request, write_request
from topology.settings import RunConfig

#: Seconds between two reads of the run's report.
_LOOK_S = 0.1
_ENDING = "_bolts"

app = typer.Typer()


Numbers = Annotated[Given, Defined(one for one in of_model(RunConfig) if one.name.endswith(_ENDING))]


@app.command(cls=Command, epilog=example("skyray scale runs/first --query-bolts 8"))
@shares("topology")
def scale(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run that has not finished.")],
    numbers: Numbers,
    wait_s: Annotated[
        float, typer.Option(min=0.0, max=1e6, help="Seconds that a running run may take until it continues.")
    ] = 600.0,
    json: Json = False,
) -> int:
    """Continue a run with other numbers of tasks; its updates stay the same, each once.

    A run that runs drains to a checkpoint and continues from it with the new numbers, in the same process; this
    command returns once it does, and messages wait meanwhile. A run that was interrupted or has failed is resumed here,
    as by skyray run --resume.
    """
    if is_remote(run_dir):
        raise ConfigError(
            f"{place(run_dir)}: a run in an object store takes no requests; interrupt it, then continue with "
            "skyray run --resume and the new numbers"
        )
    from gateway.commands.run_summary import print_ending
    from gateway.commands.running import resumed_settings, run_shown
    from topology.folder import FINISHED, RunFolder

    numbers = numbers.of_command_line()
    if not numbers:
        raise ConfigError("scale: what is to change is missing; give a number of tasks, such as --query-bolts 8")
    terminal, folder = Terminal(json), RunFolder(run_dir)
    before = folder.report()
    if "batch" not in before.get("settings", {}) or before.get("live"):
        raise ConfigError(f"{run_dir}: is a live stream; end it, and start it again with the new numbers")
    if before.get("state") == FINISHED:
        raise ConfigError(f"{run_dir}: this run has finished; there is nothing to scale")
    config = resumed_settings(run_dir, numbers)  # refuses wrong numbers before the run drains
    if not config.checkpoint_every:
        raise ConfigError(f"{run_dir}: this run has no checkpoints to continue from; run again, with --overwrite")
    if folder.writer() is None:
        report = run_shown(terminal, config, True)
        terminal.answer(report, lambda out: print_ending(out, report))
        return 0
    answer = {"run": str(run_dir), "settings": numbers, "seconds": _scale_running(folder, numbers, wait_s)}
    given = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in numbers.items())
    line = f"{cell(run_dir)}: continues with {given}, after {answer['seconds']:.1f} s"
    terminal.answer(answer, lambda out: out.print(line))
    return 0


def _scale_running(folder: Any, numbers: dict[str, Any], wait_s: float) -> float:
    """Request these numbers of tasks from a running run, and wait until it continues; returns the seconds.

    Raises
    ------
    ConfigError
        If the run refuses the numbers.
    TopologyError
        If the run ends meanwhile, or does not continue within `wait_s`.
    """
    began_s = time.monotonic()
    request = write_request(folder.path, numbers)
    while True:
        is_written = folder.writer() is not None
        values = folder.report()
        done = values.get("scaled") or {}
        if done.get("request") == request:
            if done.get("refused"):
                raise ConfigError(f"{done['refused']}; the run continues as it was")
            return time.monotonic() - began_s
        if not is_written:
            drop_request(folder.path)
            raise TopologyError(f"{folder.path}: the run ended meanwhile ({folder.state()}); look at its run.json")
        if time.monotonic() - began_s >= wait_s:
            drop_request(folder.path)
            raise TopologyError(
                f"{folder.path}: the run does not continue with other numbers within {wait_s:g} s; it may do so "
                "later if it has begun to, and raise --wait-s otherwise"
            )
        time.sleep(_LOOK_S)
