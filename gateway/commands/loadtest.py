"""`skyray loadtest`: throughput and latency at a set rate.

`gateway/commands/loadtest.py` -> `gateway/load/loadtest.py` -> `spouts/paced.py` (the schedule) ->
`topology/wiring.py`, and on as `run.py` beside this file says; with --check, `gateway/load/check.py` at the end.
"""

from collections.abc import Iterator
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.shell.options import Command, Json, Late, example, of_signature
from gateway.shell.per_kind import each_kind
from gateway.shell.terminal import Terminal

app = typer.Typer()


def _options() -> Iterator[Parameter]:
    from gateway.load.loadtest import load_test

    return of_signature(load_test)


def _subscriptions() -> Iterator[Parameter]:
    from matching.kinds import KINDS

    return each_kind(KINDS)


@app.command(cls=Command, epilog=example("skyray loadtest --rate 5000 --seconds 30 --query-bolts 2 --out report.json"))
def loadtest(
    options: Annotated[dict[str, Any], Late(_options)],
    subscriptions: Annotated[dict[str, int], Late(_subscriptions)],
    out: Annotated[Path | None, typer.Option(help="Write the whole report there as JSON.")] = None,
    json: Json = False,
) -> int:
    """Publish generated messages at a set rate and report throughput and latency from publish to update.

    Latency counts from the moment a message was due, not from when the engine took it, so that stalls are seen.
    If the engine cannot keep the rate, the schedule runs away from it and latency grows with the length of the test:
    look at 'behind schedule'. With --check, updates are written to files in the temporary folder, and those
    of some subscriptions of each kind, for the first few thousand messages after the warm-up, are compared with the
    oracle. Exit code 1 if the rate was not kept or an update is wrong, or none could be compared.
    """
    from gateway.load.loadtest import load_test, render, write_report

    terminal = Terminal(json)
    with terminal.steps("loadtest") as show:
        report = load_test(
            **options,
            subscriptions=subscriptions,
            on_progress=lambda now: show(f"{now.published:,} batches, {now.in_flight} in flight"),
        )
    if out is not None:
        write_report(report, out)
    terminal.answer(report, lambda console: console.print(render(report), highlight=False))
    return 0 if report["kept_up"] and (report["check"] is None or report["check"]["exact"]) else 1
