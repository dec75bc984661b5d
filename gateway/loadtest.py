"""Drive a topology at a set rate and report throughput and latency from publish to update.

Latency is corrected for coordinated omission: it counts from the moment a message was due by the schedule, see
`spouts.paced`. `deploy/load_test.py` is the same thing as a script, `skyray loadtest` as a command.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from distribution.routers import ROUTERS, placeable, router_named
from gateway.interrupts import Interrupts, run_interruptible
from matching.errors import ConfigError, EngineError
from matching.kind_table import Kinds
from matching.kinds import KINDS
from matching.model import Float64
from matching.space import EARTH, Space
from matching.window import Window
from topology.core.plan import Plan

_HELP = """Publishes generated messages at a set rate, lets them be matched by a topology on Ray, and reports how long
it took from the moment each batch's first message was due to the update: p50, p99 and the longest. If the
engine cannot keep the rate, the schedule runs away from it and latency grows with the length of the test: look at
'behind schedule'."""


def load_test(
    *,
    rate: float,
    seconds: float,
    subscriptions: Mapping[str, int] | None = None,
    window: str = "count:20000",
    batch: int | None = None,
    query_bolts: int = 1,
    router: str = "hashing",
    credits: int = 8,
    address: str | None = None,
    seed: int = 0,
    on_progress: Callable[[Any], None] | None = None,
    kinds: Kinds = KINDS,
) -> dict[str, Any]:
    """Run one load test.

    Parameters
    ----------
    rate, seconds : float
        Messages a second, and for how long.
    subscriptions : mapping of kind to int, optional
        How many of a kind, all there before the first message; by default as many as its recipe says.
    batch : int, optional
        Messages between two boundaries, by default a tenth of a second's. A batch lingers batch / rate seconds at the
        source, which is part of latency.
    router : str
        One of `distribution.routers.ROUTERS`.
    address : str, optional
        Ray cluster to join, HOST:PORT or `auto`; by default a Ray of its own.
    kinds : Kinds
        Those that subscriptions are made of, where they run.

    Returns
    -------
    dict
        `rate`, `reached_rate`, `kept_up`, `latency` (count, p50_s, p99_s, max_s), `updates_per_s`, `behind_at_end_s`,
        `furthest_behind_s`, the settings, and `topology` (the whole report).

    Raises
    ------
    ConfigError, TopologyError
        With what is wrong and where; what the router cannot place is refused before anything starts.
    """
    from topology.core.runner import run_ray

    limit = round(rate * seconds)
    if limit < 1:
        raise ConfigError(f"rate {rate} for {seconds} s is no message at all: raise one of them")
    batch = batch or max(1, round(rate / 10))
    counts = {kind.name: kind.recipe.load for kind in kinds.run} | dict(subscriptions or {})
    plan = load_plan(rate, limit, batch, counts, window, query_bolts, router, credits, seed, kinds)
    report = run_ray(plan, address=address, on_progress=on_progress)
    delivery = report.components["delivery"].tasks[0].figures
    source = report.components["messages"].tasks[0].figures
    updates = sum(delivery["updates"].values())
    return {
        "rate": rate,
        "reached_rate": source["reached_rate"],
        "kept_up": source["behind_at_end_s"] < max(1.0, 2 * batch / rate),
        "behind_at_end_s": source["behind_at_end_s"],
        "furthest_behind_s": source["furthest_behind_s"],
        "messages": limit,
        "updates": updates,
        "updates_per_s": updates / report.elapsed_s,
        "latency": report.components["delivery"].latency,
        "settings": {
            "seconds": seconds, **counts, "window": window, "batch": batch, "query_bolts": query_bolts,
            "router": router, "credits": credits, "address": address, "seed": seed,
        },
        "topology": report.as_dict(),
    }  # fmt: skip


def load_plan(
    rate: float,
    limit: int,
    batch: int,
    counts: Mapping[str, int],
    window: str,
    query_bolts: int,
    router: str,
    credits: int = 8,
    seed: int = 0,
    kinds: Kinds = KINDS,
) -> Plan:
    """The topology of a load test that publishes `limit` messages; parameters and errors as in `load_test`."""
    from bolts.delivery import DeliveryBolt
    from spouts.generated import GeneratedSource, Recipe
    from spouts.paced import GeneratedSubscriptions, PacedSpout
    from topology.wiring import wire

    space, span, recipe = Space(*EARTH), Window.parse(window), Recipe(seed=seed)

    def load() -> tuple[Float64, Float64]:
        sample = GeneratedSource(recipe, span, space).read().messages
        return sample.x, sample.y

    subscriptions = GeneratedSubscriptions(recipe, span, space, counts, kinds)
    lasting = tuple(kind.code for kind in kinds if kind.lasting)
    _check_placeable(router, counts, kinds)
    return wire(
        PacedSpout(recipe, span, space, batch, limit, rate),
        subscriptions,
        router_named(router, query_bolts, space, load, kinds=kinds),
        space,
        span,
        DeliveryBolt(os.devnull, span, credits, sink="count", lasting=lasting),
        kinds=kinds,
        credits=credits,
    )


def _check_placeable(router: str, counts: Mapping[str, int], kinds: Kinds) -> None:
    """Refuse a load that the router cannot place.

    Raises
    ------
    ConfigError
        That names router, kind and remedy.
    """
    for name in (name for name, count in counts.items() if count):
        if finding := placeable(router, kinds, name, row_wants_any=False):
            able = [other for other in ROUTERS if placeable(other, kinds, name, row_wants_any=False) is None]
            raise ConfigError(
                f"--router {router}: a subscription of the load {finding}; use --router {' or '.join(able)}, "
                f"or --{name} 0"
            )


def render(report: dict[str, Any]) -> str:
    """The report as lines for people."""
    latency = report["latency"]
    lines = [
        f"rate asked for   {report['rate']:,.0f} messages/s",
        f"rate reached     {report['reached_rate']:,.0f} messages/s" + ("" if report["kept_up"] else "   NOT KEPT UP"),
        f"behind schedule  {report['behind_at_end_s']:.2f} s at the end, {report['furthest_behind_s']:.2f} s at worst",
        f"updates          {report['updates']:,} ({report['updates_per_s']:,.0f}/s)",
    ]
    if latency.get("count"):
        lines.append(
            "latency          "
            f"p50 {latency['p50_s'] * 1e3:,.0f} ms, p99 {latency['p99_s'] * 1e3:,.0f} ms, "
            f"longest {latency['max_s'] * 1e3:,.0f} ms, from due to update"
        )
    return "\n".join(lines)


def write_report(report: dict[str, Any], out: Path) -> None:
    """Write the whole report as JSON, wholly or not at all."""
    partial = out.with_name(f".{out.name}.tmp")
    partial.write_text(json.dumps(report, indent=1))
    os.replace(partial, out)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; 0 if the rate was kept, 1 if not, else the exit code of the error or of the interrupt."""
    return run_interruptible(lambda interrupts: _main(arguments, interrupts))


def _main(arguments: Sequence[str] | None, interrupts: Interrupts) -> int:
    parser = argparse.ArgumentParser(
        description=_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example: python -m gateway.loadtest --rate 5000 --seconds 30 --query-bolts 2 --out report.json",
    )
    parser.add_argument("--rate", type=float, required=True, help="messages a second")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long to publish (default 30)")
    for kind in KINDS.run:
        load = kind.recipe.load
        parser.add_argument(f"--{kind.name}", type=int, default=load, help=f"{kind.name} subscriptions ({load:,})")
    parser.add_argument("--window", default="count:20000", help="count:N or time:SECONDS (default count:20000)")
    parser.add_argument("--batch", type=int, help="messages between two boundaries (default: rate / 10)")
    parser.add_argument("--query-bolts", type=int, default=1)
    parser.add_argument("--router", choices=ROUTERS, default=ROUTERS[0])
    parser.add_argument("--credits", type=int, default=8, help="batches in flight at most (default 8)")
    parser.add_argument("--address", help="Ray cluster to join, HOST:PORT or auto; else a Ray of its own")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="write the whole report there as JSON")
    parser.add_argument("--json", action="store_true", help="print the whole report as JSON")
    options = vars(parser.parse_args(arguments))
    out, as_json = options.pop("out"), options.pop("json")
    options["subscriptions"] = {kind.name: options.pop(kind.name) for kind in KINDS.run}
    watched = sys.stderr.isatty()

    def show(snapshot: Any) -> None:
        if watched:
            state = f"{snapshot.published:,} batches published, {snapshot.in_flight} in flight"
            sys.stderr.write(f"\r{snapshot.elapsed_s:6.1f} s  {state} ")

    try:
        report = load_test(**options, on_progress=show)
    except EngineError as error:
        if interrupts.came is None:  # else it is but a consequence
            sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    if watched:
        sys.stderr.write("\n")
    if out is not None:
        write_report(report, out)
    sys.stdout.write((json.dumps(report) if as_json else render(report)) + "\n")
    return 0 if report["kept_up"] else 1


if __name__ == "__main__":
    sys.exit(main())
