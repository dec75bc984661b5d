"""Drive a topology at a set rate and report throughput and latency from publish to update.

Latency is corrected for coordinated omission: it counts from the moment a message was due by the schedule, see
`spouts.paced`, the file to read next. What people type is `gateway/commands/loadtest.py`.
"""

import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from distribution.placement.costs import SampleCosts
from distribution.routers import PLACING, ROUTERS, placeable, router_named
from gateway.terminal import writing_to
from matching.errors import ConfigError
from matching.fading import HALF_LIFE_S, SMOOTHING, Fading
from matching.kind_table import Kinds
from matching.kinds import KINDS
from matching.model import Float64, MessageBatch
from matching.space import EARTH, Space
from matching.window import Window
from topology.core.plan import Plan


def load_test(
    *,
    rate: Annotated[float, typer.Option(help="Messages a second.")],
    seconds: Annotated[float, typer.Option(help="How long to publish.")] = 30.0,
    window: Annotated[str, typer.Option(help="count:N or time:SECONDS.")] = "count:20000",
    batch: Annotated[int | None, typer.Option(min=1, help="Messages between two boundaries; rate / 10.")] = None,
    query_bolts: Annotated[int, typer.Option(min=1, help="Tasks that hold subscriptions.")] = 1,
    router: Annotated[str, typer.Option(help=f"{', '.join(ROUTERS[:-1])} or {ROUTERS[-1]}.")] = "hashing",
    credits: Annotated[int, typer.Option(min=1, help="Batches in flight at most.")] = 8,
    address: Annotated[str | None, typer.Option(help="Ray cluster to join, HOST:PORT or auto; else one's own.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of messages and subscriptions.")] = 0,
    subscriptions: Mapping[str, int] | None = None,
    on_progress: Callable[[Any], None] | None = None,
    kinds: Kinds = KINDS,
) -> dict[str, Any]:
    """Run one load test; what is annotated is an option of `skyray loadtest`.

    Parameters
    ----------
    batch : int, optional
        A batch lingers batch / rate seconds at the source, which is part of latency.
    router : str
        One of `distribution.routers.ROUTERS`.
    subscriptions : mapping of kind to int, optional
        How many of a kind, all there before the first message; by default as many as its recipe says.
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

    def sample() -> MessageBatch:
        return GeneratedSource(recipe, span, space).read().messages

    def load() -> tuple[Float64, Float64]:
        return sample().x, sample().y

    def costs() -> SampleCosts:
        return SampleCosts(space, sample())

    asked = sorted({column for name, count in counts.items() if count for column in kinds.named(name).columns})
    fading = Fading(math.log(2.0) / HALF_LIFE_S, SMOOTHING, recipe.term_shares(), recipe.start_us)
    subscriptions = GeneratedSubscriptions(recipe, span, space, counts, kinds)
    lasting = tuple(kind.code for kind in kinds if kind.lasting)
    _check_placeable(router, counts, kinds)
    return wire(
        PacedSpout(recipe, span, space, batch, limit, rate, asked),
        subscriptions,
        router_named(router, query_bolts, space, load, kinds=kinds, costs=costs),
        space,
        span,
        DeliveryBolt(os.devnull, span, credits, sink="count", lasting=lasting),
        kinds=kinds,
        fading=fading,
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
            # those that place by cost can place anything, too, but are not what somebody looks for who asked for this
            able = [each for each in ROUTERS if each not in PLACING and not placeable(each, kinds, name, False)]
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
    """Write the whole report as JSON, wholly or not at all. Raises DeliveryError if it cannot be written."""
    partial = out.with_name(f".{out.name}.tmp")
    with writing_to(out):
        partial.write_text(json.dumps(report, indent=1))
        os.replace(partial, out)
