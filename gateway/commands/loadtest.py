"""`skyray loadtest`: throughput and latency at a set rate.

`gateway/commands/loadtest.py` -> `gateway/load/loadtest.py` -> `spouts/paced.py` (the schedule) ->
`topology/wiring.py`, and on as `run.py` beside this file says; with --check, `gateway/load/check.py` at the end. With
--hold, `gateway/load/ramp.py` comes first; `gateway/load/report.py` draws.
"""

from collections.abc import Iterator
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.shell.options import Command, Json, Late, example, of_signature
from gateway.shell.per_kind import each_kind
from gateway.shell.terminal import Terminal
from matching.errors import ConfigError

app = typer.Typer()


def _options() -> Iterator[Parameter]:
    from gateway.load.loadtest import load_test

    return of_signature(load_test)


def _subscriptions() -> Iterator[Parameter]:
    from matching.kinds import KINDS

    return each_kind(KINDS)


@app.command(cls=Command, epilog=example("skyray loadtest --hold 60s --query-bolts 2 --check --html report.html"))
def loadtest(
    options: Annotated[dict[str, Any], Late(_options)],
    subscriptions: Annotated[dict[str, int], Late(_subscriptions)],
    out: Annotated[Path | None, typer.Option(help="Write the whole report there as JSON.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page with plots there; it loads nothing.")] = None,
    hold: Annotated[
        str | None, typer.Option(help="Find the peak rate first, then hold 80 % of it for so long: 60s, 5m, 1h.")
    ] = None,
    limit_p99_ms: Annotated[float, typer.Option(help="With --hold: a rate is too high if its p99 is over it.")] = 500.0,
    step_seconds: Annotated[float, typer.Option(help="With --hold: how long a step of the search measures.")] = 3.0,
    json: Json = False,
) -> int:
    """Publish generated messages at a set rate and report throughput and latency from publish to update.

    Latency counts from the moment a message was due, not from when the engine took it, so that stalls are seen.
    If the engine cannot keep the rate, the schedule runs away from it and latency grows with the length of the test:
    look at 'behind schedule'.

    With --hold the rate doubles from --rate (1,000 by default) until p99 is over the limit or less than 95 % of the
    rate is published in time; then a bisection finds the peak to 10 %, with a line on standard error for each step, and
    80 % of it is held.

    With --check, updates are written to files in the temporary folder, and those
    of some subscriptions of each kind, for the first few thousand messages after the warm-up, are compared with the
    oracle. Exit code 1 if the rate was not kept or an update is wrong, or none could be compared.
    """
    from gateway.load.loadtest import load_test, render, write_report
    from gateway.load.ramp import FIRST_RATE, ramp_test
    from gateway.load.report import write_html

    if hold is not None and "seconds" in options:
        raise ConfigError("--hold says how long to measure; leave out --seconds")
    terminal = Terminal(json)
    with terminal.steps("loadtest") as show:
        options |= {
            "subscriptions": subscriptions,
            "on_progress": lambda now: show(f"{now.published:,} batches, {now.in_flight} in flight"),
        }
        if hold is None:
            report = load_test(**options)
        else:
            first = options.pop("rate", FIRST_RATE)
            limits = {"limit_p99_ms": limit_p99_ms, "step_seconds": step_seconds, "first_rate": first}
            report = ramp_test(hold, **limits, on_step=lambda step: terminal.line(in_words(step)), **options)
    if out is not None:
        write_report(report, out)
    if html is not None:
        write_html(report, html)
    terminal.answer(report, lambda console: console.print(render(report), highlight=False))
    return 0 if report["kept_up"] and (report["check"] is None or report["check"]["exact"]) else 1


def in_words(step: Any) -> str:
    """A step of the ramp in a line."""
    p50, p99 = ("none" if value is None else f"{value * 1e3:,.0f} ms" for value in (step.p50_s, step.p99_s))
    outcome = "kept" if step.kept else f"broke: {step.why}"
    return f"{step.rate:>11,.0f}/s  reached {step.reached_rate:>11,.0f}/s  p50 {p50}  p99 {p99}  {outcome}"
