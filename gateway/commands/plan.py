"""`skyray plan`: what a load needs, before there are machines for it.

`gateway/commands/plan.py` -> `gateway/load/planning.py` (the model), `gateway/load/measuring.py` (its constants),
`gateway/load/profiled.py` (a mix of kinds, by a profile).
"""

from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.shell.options import Command, Json, example
from gateway.shell.terminal import Terminal, as_json, whole_file
from matching.errors import ConfigError

app = typer.Typer()


@app.command(
    cls=Command, epilog=example("skyray plan --subscriptions 100000000 --rate 50000 --kind topk --nodes 32 --cores 16")
)
def plan(
    subscriptions: Annotated[int, typer.Option(help="How many there are.")] = 1_000_000,
    rate: Annotated[float, typer.Option(help="Messages a second.")] = 10_000.0,
    kind: Annotated[
        str, typer.Option(help="Kind of all subscriptions; with --measure: of the constants, or all.")
    ] = "",
    nodes: Annotated[int, typer.Option(help="Machines.")] = 1,
    cores: Annotated[int, typer.Option(help="Cores of a machine.")] = 8,
    query_bolts: Annotated[int | None, typer.Option(help="Query tasks; by default as many as the rate needs.")] = None,
    window: Annotated[int, typer.Option(min=0, help="Messages in the window.")] = 1_000_000,
    hop_ms: Annotated[
        float, typer.Option(min=0.0, help="Time from one task to the next, which is not measured.")
    ] = 1.0,
    constants: Annotated[
        Path | None, typer.Option(help="File of constants; else the user's, else those of the package.")
    ] = None,
    profile: Annotated[
        Path | None, typer.Option(help="Plan for the mix of kinds whose profile this file is, as it was measured.")
    ] = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure constants on this machine and write them.")
    ] = False,
    json: Json = False,
) -> int:
    """Estimate memory, cores, bytes between nodes and latency of a load, say what bounds it and what to change.

    The router is `hashing`. Constants are measured with fewer subscriptions than a plan is made for: the answer says
    how far it extrapolates. Exit code 1 if the load does not fit.

    With --measure topologies run in this process, for some minutes, and the constants go to --constants, or to
    skyray/constants.json in the user's configuration folder, from where later plans take them.

    With --profile the load is that of a profile (`python -m benchmarks.workloads.profile`): its subscriptions of all
    kinds, at --rate; --subscriptions, --kind, --window, --hop-ms and --constants mean nothing then.
    """
    terminal = Terminal(json)
    if profile is not None:
        return _of_profile(terminal, profile, rate, nodes, cores, query_bolts)
    if measure:
        return _measure(terminal, kind, constants)
    from gateway.load.planning import Load, plan_for, read_constants

    if not kind:
        raise ConfigError("--kind: say of which kind the subscriptions are")
    known, path = read_constants(constants)
    load = Load(subscriptions, rate, kind, nodes, cores, window, hop_s=hop_ms / 1e3)
    planned = plan_for(load, known, query_bolts)
    planned["constants"] = {"file": str(path)} | {name: known.get(name) for name in ("machine", "date", "load_average")}
    terminal.answer(planned, lambda console: console.print(in_words(planned), highlight=False, markup=False))
    return 0 if planned["fits"] else 1


def _of_profile(terminal: Terminal, file: Path, rate: float, nodes: int, cores: int, query_bolts: int | None) -> int:
    from gateway.load.profiled import ProfiledLoad, plan_of_profile, read_profile

    planned = plan_of_profile(ProfiledLoad(rate, nodes, cores), read_profile(file), query_bolts)
    planned["profile"] = str(file)
    terminal.answer(planned, lambda console: console.print(mix_in_words(planned), highlight=False, markup=False))
    return 0 if planned["fits"] else 1


def _measure(terminal: Terminal, kind: str, out: Path | None) -> int:
    from gateway.load.measuring import measure as measured_of
    from gateway.load.planning import user_constants
    from matching.kinds import KINDS

    kinds = (KINDS.named(kind).name,) if kind else tuple(each.name for each in KINDS.run)
    out = out or user_constants()
    out.parent.mkdir(parents=True, exist_ok=True)
    measured = measured_of(kinds, on_progress=terminal.line)
    with whole_file(out) as file:
        file.write(as_json(measured).encode())
    terminal.answer(measured | {"file": str(out)}, lambda console: console.print(f"constants written to {out}"))
    return 0


def in_words(planned: dict[str, Any]) -> str:
    """The plan as lines for people."""
    from gateway.load.planning import BUSY_MACHINE, FAR

    bound, latency, load = planned["bound_by"], planned["latency"], planned["load"]
    late = "none: queues would grow"
    if planned["fits"]:
        late = f"p50 {latency['p50_s'] * 1e3:,.0f} ms, p99 {latency['p99_s'] * 1e3:,.0f} ms"
    source, memory = planned["constants"], planned["memory_bytes"] / 2.0**30
    lines = [
        f"fits           {'yes' if planned['fits'] else 'NO'}, at most {bound['most_per_s']:,.0f} messages/s",
        f"bound by       {bound['component']}: {bound['remedy']}",
        f"query bolts    {planned['query_bolts']}",
        f"cores          {planned['cores']:,.1f} busy, {planned['cores_per_node']:,.1f} of {load['cores']} a node",
        f"memory         {memory:,.1f} GiB, {memory / load['nodes']:,.1f} a node",
        f"between nodes  {planned['between_nodes_bytes_per_s'] / 1e6:,.1f} MB/s",
        f"latency        {late}",
        f"constants      {source['machine']}, {source['date']}",
    ]
    if planned["far"] >= FAR:
        lines.append(
            f"extrapolated   a query task has {planned['far']:,.0f} times the subscriptions that were measured: hold a "
            "load test before you rely on it"
        )
    if (source["load_average"] or 0.0) > BUSY_MACHINE:
        lines.append(
            f"busy machine   the constants were measured at a load average of {source['load_average']:.0f}, so that "
            "times are rough: run `skyray plan --measure` on a quiet machine"
        )
    return "\n".join(lines)


def mix_in_words(planned: dict[str, Any]) -> str:
    """The plan of a profile as lines for people."""
    bound, memory = planned["bound_by"], planned["memory_bytes"] / 2.0**30
    us = ", ".join(f"{name} {spent:,.1f}" for name, spent in planned["us_per_message"].items())
    counts = ", ".join(f"{count:,} {kind}" for kind, count in planned["subscriptions"].items())
    lines = [
        f"fits           {'yes' if planned['fits'] else 'NO'}, at most {bound['most_per_s']:,.0f} messages/s",
        f"bound by       {bound['component']}: {bound['remedy']}",
        f"query bolts    {planned['query_bolts']}",
        f"cores          {planned['cores']:,.1f} busy, {planned['cores_needed']:,.1f} needed so that queues stay short",
        f"memory         {memory:,.1f} GiB of the process that was profiled",
        f"us a message   {us}",
        f"subscriptions  {counts}",
        f"profile        {planned['profile']}",
    ]
    return "\n".join(lines)
