"""`skyray verify`: compares a finished run with the oracle."""

from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.shell.options import Command, Json, example
from gateway.shell.terminal import Terminal
from matching.errors import ConfigError, InputError
from topology.core.places import place

app = typer.Typer()


@app.command(cls=Command, epilog=example("skyray verify runs/first --sample 200"))
def verify(
    run_dir: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    everything: Annotated[bool, typer.Option("--all", help="Check every subscription.")] = False,
    sample: Annotated[int | None, typer.Option(min=1, help="Check this many of each kind (200).")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Which ones are drawn.")] = 0,
    plain: Annotated[
        bool, typer.Option("--plain", help="Use the oracle in plain Python, which is ten times slower.")
    ] = False,
    json: Json = False,
) -> int:
    """Check a run, or a live stream while it runs, against the oracle, over all its messages and boundaries.

    Of a stream that has not ended everything up to its last checkpoint is compared.

    Exit code 0 only if every update and every result is exactly the oracle's.
    """
    if everything and sample is not None:
        raise ConfigError("--all and --sample exclude each other; drop one")
    terminal = Terminal(json)
    report = verify_shown(terminal, run_dir, None if everything else sample or 200, seed, plain)
    terminal.answer(report.as_json(), lambda out: out.print(report.render()))
    return 0 if report.exact else 1


def verify_shown(terminal: Terminal, run_dir: Path, sample: int | None, seed: int, plain: bool = False) -> Any:
    """Verify a run with its progress shown; `sample` None checks everything."""
    from gateway.runs.verify import verify_run

    if not place(run_dir).is_dir():
        raise InputError("no_run", f"{run_dir} is no folder; name the --out of a finished `skyray run`")
    with terminal.progress("verify", "messages") as show:

        def on_progress(messages: int, of: int, updates: int) -> None:
            show(messages, of, updates=updates)

        return verify_run(run_dir, sample=sample, seed=seed, on_progress=on_progress, plain=plain)
