"""Drive a topology at a set rate and report throughput and latency from publish to update.

Latency is corrected for coordinated omission: it counts from the moment a message was due by the schedule
(`spouts.paced`).
"""

import json
import math
import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from bolts.delivery import DeliveryBolt
from bolts.kind_threads import threads_of
from distribution.placement.costs import SampleCosts
from distribution.routers import PLACING, ROUTERS, placeable, router_named
from gateway.load.check import check as compare
from gateway.load.pace import Pace
from gateway.shell.terminal import whole_file
from matching.errors import ConfigError
from matching.extras import require_ray
from matching.half_life import HALF_LIFE_S, SMOOTHING, DecayParameters
from matching.kind_table import Kinds
from matching.kinds import KINDS
from matching.model import Float64, MessageBatch
from matching.space import EARTH, Space
from matching.window import Window
from spouts.generated import GeneratedSource, MessageRecipe
from spouts.paced import CHANGING, GeneratedSubscriptions, PacedSpout
from topology.core.api.plan import Plan
from topology.core.checkpoint.barriers import Cadence
from topology.core.checkpoint.coordinator import Checkpoints
from topology.core.checkpoint.store import CheckpointStore
from topology.core.executors.local import run_local
from topology.core.metrics import RunReport
from topology.placement import shared_by_default
from topology.recovering import next_incarnation
from topology.settings import LIVE_CREDITS
from topology.wiring import wire

#: The peak rate is measured over these messages, all due at once, in batches of this size.
PEAK_MESSAGES, _PEAK_BATCH, _AT_ONCE = 60_000, 500, 1e9

#: Said of generators that had no processor time left (`gateway.load.remote`).
SHORT = "the generators are short of processor: take more --generators, or another machine"

#: Latencies of changes of a server's subscriptions, each from when one was due to this.
CHANGE_LATENCIES = (("answer", "the server's answer"), ("effect", "updates of the first message it counts for"))

#: Rows of the timeline of a test at most; a row is a second at least.
TIMELINE_ROWS = 300


class Executor(StrEnum):
    """Where the tasks of a load test run."""

    ray = "ray"
    local = "local"


def executor_beside(address: str | None) -> Executor:
    """Where the tasks of a load test run, unless options say so: on the cluster that they name."""
    return Executor.ray if address else Executor.local


def load_test(
    *,
    rate: Annotated[float | None, typer.Option(help="Messages a second; half the peak, which is found first.")] = None,
    seconds: Annotated[float, typer.Option(help="How long to publish and measure.")] = 30.0,
    warm_up: Annotated[float, typer.Option(min=0.0, help="Seconds before that, reported separately.")] = 5.0,
    window: Annotated[str, typer.Option(help="count:N or time:SECONDS, also time:5m, time:1h.")] = "count:20000",
    batch: Annotated[int | None, typer.Option(min=1, help="Messages of a batch at most; rate / 10.")] = None,
    linger_ms: Annotated[float, typer.Option(min=0.0, help="How long a message waits for others; 0: for all.")] = 10.0,
    query_bolts: Annotated[int, typer.Option(min=1, help="Tasks that match subscriptions.")] = 1,
    query_threads: Annotated[
        int, typer.Option(min=0, help="Threads of such a task; 0: one on ray, on local as many as cores.")
    ] = 0,
    router: Annotated[str, typer.Option(help=f"{', '.join(ROUTERS[:-1])} or {ROUTERS[-1]}.")] = "hashing",
    credits: Annotated[int, typer.Option(min=1, help="Batches in flight at most.")] = LIVE_CREDITS,
    checkpoint_every: Annotated[float, typer.Option(min=0.0, help="Seconds between checkpoints; 0: none.")] = 10.0,
    executor: Annotated[
        Executor | None, typer.Option(help="local: in one process, or ray; ray with --address, else local.")
    ] = None,
    address: Annotated[str | None, typer.Option(help="Ray cluster to join, HOST:PORT or auto; else one's own.")] = None,
    changes: Annotated[float, typer.Option(min=0.0, help="Subscriptions a second that are added, and removed.")] = 0.0,
    filters: Annotated[float, typer.Option(min=0.0, max=1.0, help="Share of subscriptions with a filter.")] = 0.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of messages and subscriptions.")] = 0,
    check: Annotated[bool, typer.Option("--check", help="Compare the updates of a sample with the oracle.")] = False,
    workload: Any = None,
    subscriptions: Mapping[str, int] | None = None,
    on_progress: Callable[[Any], None] | None = None,
    kinds: Kinds = KINDS,
    folder: str | None = None,
    checked: int = 0,
) -> dict[str, Any]:
    """Run one load test; annotated parameters are options of `skyray loadtest`, and described there.

    A batch closes when it is full, or when its first message has waited `linger_ms`, which is part of latency. A
    subscription that `changes` adds stays until 1,000 more have come. `filters` are those of
    `spouts.generated_filters`. Checkpoints, and with `check` the files of updates, go to `folder`.

    Parameters
    ----------
    workload : object, optional
        Messages and subscriptions in place of the generated ones, as `benchmarks.workloads.folder.Workload` has them.
    subscriptions : mapping of kind to int, optional
        How many of a kind, all active before the first message; by default as its recipe says.
    kinds : Kinds
        Kinds of the generated subscriptions, if they run.
    folder : str, optional
        Where files and checkpoints go, and stay; one temporary for each run if None. With a workload and a rate, a test
        whose process has ended resumes there from its last checkpoint.
    checked : int
        Messages after the warm-up that are checked, at least.

    Returns
    -------
    dict
        `rate`, `peak_per_s` (None where the rate was given), `reached_rate`, `kept_up`, `latency` (count, p50_s, p99_s,
        max_s), `warm_up` (the same of what came before), `timeline` (a row a second, or `TIMELINE_ROWS` of a longer
        test, as `LatencyTimeline.summary` has them), `updates_per_s`, `batches`, `checkpoints` (how many),
        `behind_at_end_s`, `furthest_behind_s`, `check` (as `gateway.load.check.check` says, None without), the
        settings, and `topology` (the whole report).

    Raises
    ------
    ConfigError, TopologyError
        Also, before anything starts, if the router cannot place the subscriptions.
    """
    if not seconds > 0:
        raise ConfigError(f"{seconds} seconds is no message at all: raise it")
    executor = executor or executor_beside(address)
    if executor != Executor.local:
        require_ray()
    query_threads = threads_of(query_threads, executor == Executor.local)
    counts = {kind.name: kind.recipe.load for kind in kinds.run} | dict(subscriptions or {})
    if workload is not None:
        counts, window = workload.counts, workload.window

    def run(pace: Pace, compared: bool) -> tuple[RunReport, dict[str, Any] | None]:
        """A run and the outcome of its check, None if it is not compared."""
        with nullcontext(folder) if folder else tempfile.TemporaryDirectory(prefix="skyray-loadtest-") as at:
            saved = None
            if workload is not None:
                store, resume = workload.resume(at)
                cadence, incarnation = Cadence(checkpoint_every or None), next_incarnation(resume.incarnation)
                saved = Checkpoints(store, cadence, at, incarnation=incarnation, resume=resume)
                plan = workload.plan(pace, query_bolts, router, credits, at, query_threads=query_threads)
            else:
                out = at if check else None
                plan = load_plan(
                    pace, counts, window, query_bolts, router, credits, seed, kinds, out, filters, query_threads
                )
                if checkpoint_every:
                    saved = Checkpoints(CheckpointStore(os.path.join(at, "checkpoints")), Cadence(checkpoint_every), at)
            report = _executed(plan, executor, address, on_progress, saved)
            ends = report.components["messages"].tasks[0].figures.pop("ends")  # for the check only
            if not compared:
                return report, None
            parts: tuple[Any, Any, Any] = (
                workload.parts(pace) if workload else _parts(pace, counts, window, seed, kinds, filters)
            )
            return report, compare(*parts, ends, Path(at))

    origin = 0 if workload is None else workload.history
    peak = None
    if rate is None:
        at_once, _ = run(Pace(_AT_ONCE, origin + PEAK_MESSAGES, batch or _PEAK_BATCH), False)
        peak = PEAK_MESSAGES / at_once.elapsed_s
        rate = peak / 2
    if workload is not None:
        seconds = workload.seconds_at(rate, seconds, warm_up)
    limit, warming = origin + round(rate * (seconds + warm_up)), origin + round(rate * warm_up)
    if limit <= warming:
        raise ConfigError(f"rate {rate} for {seconds} s is no message at all: raise one of them")
    batch = batch or max(1, round(rate / 10))
    interval_s = max(1.0, seconds / TIMELINE_ROWS)
    report, judged = run(
        Pace(rate, limit, batch, linger_ms / 1e3 or None, warming, interval_s, changes, checked), check
    )
    delivery = report.components["delivery"].tasks[0].figures
    source = report.components["messages"].tasks[0].figures
    updates = sum(delivery["updates"].values())
    return {
        "rate": rate,
        "peak_per_s": peak,
        "reached_rate": source["reached_rate"],
        "kept_up": source["behind_at_end_s"] < max(1.0, 2 * batch / rate),
        "behind_at_end_s": source["behind_at_end_s"],
        "furthest_behind_s": source["furthest_behind_s"],
        "messages": limit - origin,
        "batches": source["batches"],
        "updates": updates,
        "updates_per_s": updates / report.elapsed_s,
        "latency": report.components["delivery"].latency,
        "warm_up": delivery["warm_up"],
        "timeline": delivery.pop("timeline"),
        "checkpoints": len(report.checkpoints),
        "check": judged,
        "settings": {
            "seconds": seconds, "warm_up": warm_up, **counts, "window": window, "batch": batch, "linger_ms": linger_ms,
            "query_bolts": query_bolts, "query_threads": query_threads, "router": router, "credits": credits,
            "checkpoint_every": checkpoint_every,
            "changes": changes, "filters": filters,
            "executor": str(executor), "address": address, "seed": seed,
        },
        "topology": report.as_dict(),
    }  # fmt: skip


def _executed(
    plan: Plan,
    executor: Executor,
    address: str | None,
    on_progress: Callable[[Any], None] | None,
    saved: Checkpoints | None,
) -> RunReport:
    """Run a plan."""
    if executor == Executor.local:
        return run_local(plan, on_progress=on_progress, checkpoints=saved)
    from topology.core.executors.ray import run_ray

    together = shared_by_default(plan, address)
    return run_ray(plan, address=address, on_progress=on_progress, together=together, checkpoints=saved)


def load_plan(
    pace: Pace,
    counts: Mapping[str, int],
    window: str,
    query_bolts: int,
    router: str,
    credits: int = LIVE_CREDITS,
    seed: int = 0,
    kinds: Kinds = KINDS,
    out: str | None = None,
    filters: float = 0.0,
    query_threads: int = 1,
) -> Plan:
    """The topology of a load test; parameters and errors as in `load_test`. Files of updates go below `out`, if any."""
    messages, subscriptions, fading = _parts(pace, counts, window, seed, kinds, filters)
    space, span = messages.space, messages.cutter.window

    def sample() -> MessageBatch:
        return GeneratedSource(messages.recipe, span, space).read().messages

    def load() -> tuple[Float64, Float64]:
        return sample().x, sample().y

    def costs() -> SampleCosts:
        return SampleCosts(space, sample())

    cumulative, sink = tuple(kind.code for kind in kinds if kind.cumulative), "count" if out is None else "parquet"
    _check_placeable(router, counts, kinds)
    return wire(
        messages,
        subscriptions,
        router_named(router, query_bolts, space, load, kinds=kinds, costs=costs),
        space,
        span,
        DeliveryBolt(
            out or os.devnull,
            span,
            credits,
            sink=sink,
            cumulative=cumulative,
            steady_from=pace.warming,
            timeline_s=pace.timeline_s,
        ),
        kinds=kinds,
        fading=fading,
        credits=credits,
        query_threads=query_threads,
    )


def _parts(
    pace: Pace, counts: Mapping[str, int], window: str, seed: int, kinds: Kinds, filters: float = 0.0
) -> "tuple[PacedSpout, GeneratedSubscriptions, DecayParameters]":
    """The spouts of messages and subscriptions, and the decay; the clock spout records batch ends for a check."""
    changes = pace.changes_per_s / pace.rate
    space, span, recipe = Space(*EARTH), Window.parse(window), MessageRecipe(seed=seed, numbered=filters > 0)
    columns = sorted({column for name, count in counts.items() if count for column in kinds.named(name).columns})
    seen = pace.watched()
    return (
        PacedSpout(recipe, span, space, pace.batch, pace.limit, pace.rate, columns, pace.linger_s, seen),
        GeneratedSubscriptions(
            recipe, span, space, counts, kinds, changes, max(CHANGING, 2 * math.ceil(changes * pace.batch)), filters
        ),
        DecayParameters(math.log(2.0) / HALF_LIFE_S, SMOOTHING, recipe.term_shares(), recipe.start_us),
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
            # routers that place by cost can place anything, but are no like-for-like replacement
            able = [each for each in ROUTERS if each not in PLACING and not placeable(each, kinds, name, False)]
            raise ConfigError(
                f"--router {router}: a subscription of the load {finding}; use --router {' or '.join(able)}, "
                f"or --count {name}=0"
            )


def render(report: dict[str, Any]) -> str:
    """The report as lines for people."""
    peak = report["peak_per_s"]
    of_peak = "" if peak is None else f", half of {peak:,.0f} at most"
    if ramp := report.get("ramp"):
        of_peak = f", {ramp['hold_share']:.0%} of the peak, {peak:,.0f}"
    lines = [
        f"rate set         {report['rate']:,.0f} messages/s{of_peak}",
        f"rate reached     {report['reached_rate']:,.0f} messages/s" + ("" if report["kept_up"] else "   NOT KEPT UP"),
        f"behind schedule  {report['behind_at_end_s']:.2f} s at the end, {report['furthest_behind_s']:.2f} s at worst",
        f"updates          {report['updates']:,} ({report['updates_per_s']:,.0f}/s)",
        f"batches          {report['batches']:,}"
        + ("" if report["checkpoints"] is None else f", {report['checkpoints']:,} checkpoints"),
    ]
    if "generators" in report:
        lines += _of_a_server(report)
    if report.get("changes"):
        lines += changes_in_words(report["changes"])
    for name, latency in (("latency", report["latency"]), ("while warming up", report["warm_up"])):
        if latency.get("count"):
            lines.append(
                f"{name:17}p50 {latency['p50_s'] * 1e3:,.0f} ms, p99 {latency['p99_s'] * 1e3:,.0f} ms, "
                f"longest {latency['max_s'] * 1e3:,.0f} ms, from due to update"
            )
    if report["check"] is not None:
        lines.append(f"{'check':17}{_in_words(report['check'])}")
    return "\n".join(lines)


def _of_a_server(report: dict[str, Any]) -> list[str]:
    """Lines of a test of a server: how its generators and its follower fared, and what was refused or lost."""
    rows = report["generators"]
    blocked_s, busy = max(row["blocked_s"] for row in rows), max(row["processor_share"] for row in rows)
    lines = [
        f"generators       {len(rows)}, {busy:.0%} of a processor at most, {blocked_s:.2f} s waiting for the server to "
        "take more",
        f"follower         {report['follower_share']:.0%} of a processor; {report['foreign']:,} updates of others",
    ]
    lines += [f"{'GENERATORS':17}{SHORT}"] if report["short"] else []
    lines += [f"{'REFUSED':17}{times:,} messages: {reason}" for reason, times in report["refused"].items()]
    return lines + [f"{'FAILED':17}{why}" for why in (*report["failures"], *report["gaps"])]


def changes_in_words(changes: dict[str, Any]) -> list[str]:
    """Lines on the subscriptions that a test of a server has added and ended, as `gateway.load.lifetimes` reports."""
    lines = [
        f"changes          {changes['offered']:,} offered, {changes['done']:,} done ({changes['added']:,} added, "
        f"{changes['ended']:,} ended), {changes['behind_at_end_s']:.2f} s behind at the end"
    ]
    for name, until in CHANGE_LATENCIES:
        if (late := changes[name])["count"]:
            lines.append(
                f"{'':17}p50 {late['p50_s'] * 1e3:,.0f} ms, p99 {late['p99_s'] * 1e3:,.0f} ms, longest "
                f"{late['max_s'] * 1e3:,.0f} ms, from due to {until}"
            )
    return lines


def _in_words(check: dict[str, Any]) -> str:
    """The outcome of a check in one line."""
    by_kind = check["by_kind"].items()
    wrong = [name for name, one in by_kind if not one["exact"]]
    wrong += [f"{check['misnamed']:,} ids"] if check["misnamed"] else []
    wrong += [f"{check['unanswered']:,} changes without an answer"] if check.get("unanswered") else []
    wrong += [f"{check[each]:,} {each}" for each in ("missing", "extra", "repeated", "scores_off") if check.get(each)]
    parts = ", ".join(f"{name} {one['compared']:,}" for name, one in by_kind)
    line = f"{check['compared']:,} updates of {check['compared_subscriptions']:,} subscriptions ({parts or 'none'})"
    if check.get("compared_changed"):
        line += f", {check['compared_changed']:,} of {check['changed_subscriptions']:,} that were added or ended"
    if wrong:
        line = f"WRONG: {', '.join(wrong)}; {line}"
    else:
        line = (
            f"exact: {line}"
            if check["exact"]
            else f"{'TOO FEW' if check['compared'] else 'NOTHING'} TO COMPARE: {line}"
        )
    return line + (f"; not checked: {', '.join(check['not_checked'])}" if check["not_checked"] else "")


def write_report(report: dict[str, Any], out: Path) -> None:
    """Write the report as JSON, atomically. Raises DeliveryError if it cannot be written."""
    with whole_file(out) as file:
        file.write(json.dumps(report, indent=1).encode())
