"""`skyray demo`: the whole pipeline in a minute or two, on real places, verified at the end.

`gateway/commands/demo.py` -> `gateway/commands/demo_of_places.py`, which does what the other commands do: `etl.py`,
`subscriptions.py`, `run.py` and `verify.py` beside this file.
"""

from pathlib import Path
from typing import Annotated

import typer

from gateway.shell.options import Command, Json, example
from gateway.shell.terminal import Terminal

app = typer.Typer()


@app.command(cls=Command, epilog=example("skyray demo --out runs/demo"))
def demo(
    out: Annotated[Path, typer.Option(help="Work folder; an earlier demo in it is replaced.")] = Path("runs/demo"),
    min_population: Annotated[int, typer.Option(help="Smallest town: 15000, 5000, 1000 or 500.")] = 15000,
    per_kind: Annotated[int, typer.Option(min=1, help="Subscriptions of each kind{fewer}.")] = 20_000,
    sample: Annotated[int, typer.Option(min=1, help="Subscriptions of each kind to verify.")] = 200,
    json: Json = False,
) -> int:
    """Match the world's towns against tens of thousands of subscriptions and check the answer.

    Writes the places, runs the ETL on Spark, makes subscriptions, runs the topology on Ray and verifies a sample
    against the oracle. Takes a minute or two, and a few more where the kernels have to be compiled first.
    """
    from gateway.commands.demo_of_places import run_demo

    return run_demo(Terminal(json, in_lines=True), out, min_population, per_kind, sample)
