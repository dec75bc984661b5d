"""`skyray plan`: the size of a load's topology, before there are machines for it."""

from typing import Annotated, Any

import typer

from gateway.shell.options import Command, Json, example
from gateway.shell.terminal import Terminal
from topology.sizing import Load, require_positive, size

app = typer.Typer()

#: Times that were measured at a higher load average are marked as rough.
_BUSY_MACHINE = 1.0


@app.command(
    cls=Command, epilog=example("skyray plan --subscriptions 1000000 --rate 50000 --kind topk --nodes 4 --cores 16")
)
def plan(
    kind: Annotated[str, typer.Option(help="Kind of all subscriptions.")],
    subscriptions: Annotated[int, typer.Option(help="How many there are.")] = 100_000,
    rate: Annotated[float, typer.Option(help="Messages a second.")] = 10_000.0,
    nodes: Annotated[int, typer.Option(help="Machines.")] = 1,
    cores: Annotated[int, typer.Option(help="Cores of a machine.")] = 8,
    query_bolts: Annotated[int | None, typer.Option(help="Query tasks; by default as many as the rate needs.")] = None,
    window: Annotated[int, typer.Option(help="Messages in the window.")] = 5_000,
    json: Json = False,
) -> int:
    """Size a topology by measured costs: query bolts, cores, memory, what bounds the rate, and what to change.

    A topology with these subscriptions and one query bolt runs in this process, for a minute with a million
    subscriptions, and its processor time is measured. The router is `hashing`. Exit code 1 if the load does not fit.
    """
    from gateway.load.measuring import measure

    terminal, load = Terminal(json), Load(rate, nodes, cores)
    require_positive(load, query_bolts)
    with terminal.steps("plan") as show:
        costs = measure(kind, subscriptions, window, show)
    planned = size(load, costs, query_bolts) | {"load_average": costs["load_average"]}
    terminal.answer(planned, lambda console: console.print(in_words(planned), highlight=False, markup=False))
    return 0 if planned["fits"] else 1


def in_words(planned: dict[str, Any]) -> str:
    """The plan as lines for people."""
    bound, memory = planned["bound_by"], planned["memory_bytes"] / 2.0**30
    us = ", ".join(f"{name} {spent:,.1f}" for name, spent in planned["us_per_message"].items())
    counts = ", ".join(f"{count:,} {kind}" for kind, count in planned["subscriptions"].items())
    lines = [
        f"fits           {'yes' if planned['fits'] else 'NO'}, at most {bound['most_per_s']:,.0f} messages/s",
        f"bound by       {bound['component']}: {bound['remedy']}",
        f"query bolts    {planned['query_bolts']}",
        f"cores          {planned['cores']:,.1f} busy, {planned['cores_needed']:,.1f} needed so that queues stay short",
        f"memory         {memory:,.1f} GiB of one process with all of it",
        f"us a message   {us}",
        f"subscriptions  {counts}",
    ]
    if planned["load_average"] > _BUSY_MACHINE:
        lines.append(
            f"busy machine   the load average was {planned['load_average']:.0f}, so that times are rough: plan again "
            "on a quiet machine"
        )
    return "\n".join(lines)
