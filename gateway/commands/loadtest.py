"""`skyray loadtest`: throughput and latency at a set rate."""

import copy
from collections.abc import Iterator, Mapping
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from gateway.load.loadtest import load_test, render, write_report
from gateway.load.ramp import FIRST_RATE, ramp_test
from gateway.shell.options import Command, Defined, Json, example, of_signature, shares
from gateway.shell.per_kind import each_kind
from gateway.shell.terminal import Terminal
from matching.errors import ConfigError
from matching.extras import require
from matching.kinds import KINDS

app = typer.Typer()

_EXAMPLES = """skyray loadtest --hold 60s --query-bolts 2 --check --out report.json

skyray loadtest --rate 5000 --seconds 30 --executor local

skyray loadtest --url http://127.0.0.1:8080 --hold 60s --generators 2 --check"""
#: Options that a test of a server has, too; the others are of a topology that the test starts itself.
_OF_SERVERS = frozenset({"rate", "seconds", "warm_up", "changes", "filters", "seed", "check"})


#: Headings of the help, and the options below them; the others of `load_test` are of the topology.
_SCHEDULE, _LOAD, _TOPOLOGY, _SERVER, _OUTPUT = "Schedule", "Load", "A topology of its own", "A server", "Output"
_SHOWN = (
    *("rate", "seconds", "warm_up", "window", "query_bolts", "router", "executor", "address", "checkpoint_every"),
    *("changes", "filters", "seed", "check", "url", "key", "generators", "out", "hold", "limit_p99_ms"),
)
_GROUPS = {_SCHEDULE: ("rate", "seconds", "warm_up"), _LOAD: ("changes", "filters", "seed"), _OUTPUT: ("check",)}


def _options() -> Iterator[Parameter]:
    for each in of_signature(load_test):
        plain, said = get_args(each.annotation)
        shown = copy.copy(said)
        shown.rich_help_panel = next((name for name, those in _GROUPS.items() if each.name in those), _TOPOLOGY)
        yield each.replace(annotation=Annotated[plain, shown])


@app.command(cls=Command, epilog=example(_EXAMPLES))
@shares(shown=_SHOWN)
def loadtest(
    options: Annotated[dict[str, Any], Defined(_options())],
    subscriptions: Annotated[dict[str, int], Defined(each_kind(KINDS), "count")],
    url: Annotated[
        str | None,
        typer.Option(help="Test the running skyray serve at this address instead.", rich_help_panel=_SERVER),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            envvar="SKYRAY_KEY", help="API key with the scopes subscribe and publish.", rich_help_panel=_SERVER
        ),
    ] = None,
    generators: Annotated[
        int | None,
        typer.Option(min=1, help="Processes that publish, each its part of the rate; 1.", rich_help_panel=_SERVER),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write the whole report there as JSON.", rich_help_panel=_OUTPUT)
    ] = None,
    hold: Annotated[
        str | None,
        typer.Option(
            help="Find the peak rate first, then hold 80 % of it for so long: 60s, 5m, 1h.", rich_help_panel=_SCHEDULE
        ),
    ] = None,
    limit_p99_ms: Annotated[
        float, typer.Option(help="With --hold: a rate is too high if its p99 is over it.", rich_help_panel=_SCHEDULE)
    ] = 500.0,
    step_seconds: Annotated[
        float,
        typer.Option(help="With --hold: how long a step of the search measures.", rich_help_panel=_SCHEDULE),
    ] = 3.0,
    json: Json = False,
) -> int:
    """Publish generated messages at a set rate and report throughput and latency from publish to update.

    There are three questions that it answers. What latency has my rate: --rate 5000 --seconds 30. What rate can it
    take: --hold 60s. Is it right under load: add --check to either. Without --rate and --hold the peak of 60,000
    messages, all due at once, is found, and half of it published for 30 seconds.

    Latency counts from the moment a message was due, not from when the engine took it, so that stalls are seen.
    If the engine cannot keep the rate, the schedule runs away from it and latency grows with the length of the test:
    look at 'behind schedule'.

    With --hold the rate doubles from --rate (1,000 by default) until p99 is over the limit or less than 95 % of the
    rate is published in time; then a bisection finds the peak to 10 %, with a line on standard error for each step, and
    80 % of it is held.

    With --check, updates are written to files in the temporary folder, and those
    of some subscriptions of each kind, for the first few thousand messages after the warm-up, are compared with the
    oracle. Exit code 1 if the rate was not kept or an update is wrong, or none could be compared.

    With --url a running server is tested from outside: processes of their own publish by HTTP and follow its updates,
    and --check recounts all of them by the oracle. Its subscriptions are ended afterwards; its stream keeps the
    messages. Without --rate and --hold 1,000 messages a second are published. With --changes as many subscriptions
    a second are ended, the oldest first, and copies of them added; the recount goes by the message from which on, as
    the server answers, a change counts.
    """
    if hold is not None and "seconds" in options:
        raise ConfigError("--hold says how long to measure; leave out --seconds")
    limits = {"limit_p99_ms": limit_p99_ms, "step_seconds": step_seconds}
    terminal = Terminal(json)
    if url is None:
        if generators is not None:
            raise ConfigError("--generators: publish to a server; give its address by --url, or leave it out")
        report = _of_a_topology(terminal, options | {"subscriptions": subscriptions}, hold, limits)
    else:
        foreign = sorted(set(options) - _OF_SERVERS)
        if foreign:
            named = ", ".join(f"--{name.replace('_', '-')}" for name in foreign)
            raise ConfigError(f"{named}: of a topology that the test starts; with --url leave it out")
        more = options | {"key": key, "generators": generators or 1, "subscriptions": subscriptions}
        report = _of_a_server(terminal, url, more, hold, limits)
    if out is not None:
        write_report(report, out)
    terminal.answer(report, lambda console: console.print(render(report), highlight=False, markup=False))
    return 0 if report["kept_up"] and (report["check"] is None or report["check"]["exact"]) else 1


def _of_a_topology(
    terminal: Terminal, options: dict[str, Any], hold: str | None, limits: Mapping[str, float]
) -> dict[str, Any]:
    with terminal.steps("loadtest") as show:
        options["on_progress"] = lambda now: show(f"{now.published:,} batches, {now.in_flight} in flight")
        if hold is None:
            return load_test(**options)
        first = options.pop("rate", FIRST_RATE)
        say = _said(terminal)
        return ramp_test(hold, first_rate=first, on_step=say, **limits, **options)


def _of_a_server(
    terminal: Terminal, url: str, options: dict[str, Any], hold: str | None, limits: Mapping[str, float]
) -> dict[str, Any]:
    require("client", "--url", "leave it out to test a topology of its own")
    from gateway.load.remote import served_test

    more = {} if hold is None else {"hold": hold, "on_step": _said(terminal), **limits}
    with terminal.steps("loadtest") as show:
        return served_test(url, say=show, **more, **options)


def _said(terminal: Terminal) -> Any:
    return lambda step: terminal.line(in_words(step))


def in_words(step: Any) -> str:
    """A step of the ramp in a line."""
    p50, p99 = ("none" if value is None else f"{value * 1e3:,.0f} ms" for value in (step.p50_s, step.p99_s))
    outcome = "kept" if step.kept else f"broke: {step.why}"
    return f"{step.rate:>11,.0f}/s  reached {step.reached_rate:>11,.0f}/s  p50 {p50}  p99 {p99}  {outcome}"
