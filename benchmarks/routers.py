"""Routers over the whole way: index, buffers, hits between tasks, refills, packing; simulated to 64 bolts, and on Ray.

    python -m benchmarks.routers [--kinds topk,skyline,boolean] [--bolts 1,4,16,64] [--ray 1,2,4] [--routers A,B] ...
    python -m benchmarks.routers --kinds knn --bolts 20 [--engine NAME] [--messages-from ETL] > results.json
    python -m benchmarks.routers --kinds boolean --bolts 16 --ray "" --routers location,location+spatial ...
    python -m benchmarks.routers --kinds boolean,topk --subscriptions 1000000 --bolts 1,64 --light 8 --ray "" ...

Simulated, each task's processor time is booked to it in one process, with what packing and unpacking takes between
processes, and the busiest task sets the pace: what one would have with a core for every task and a network that takes
no time. On Ray everything is there, and so are only as many cores as the machine has. Routers take turns in every
round; medians are told, after every one of them has been seen to tell the same updates as one bolt that was checked.
Kinds whose results last begin with those of a history, so that influence regions are as small as they would be, and
are only simulated: routers that place by cost beside `hashing`. With `--balanced 1` a router by place begins where a
first run of the same messages has measured its bolts, as with `topology.rebalance`. A router with `+` and a mode of
`--signatures` has signatures; what those that estimate lose is counted, and they need not tell the same. The modes
`scf` and `scf:READING:LEVELS` have the skyline paper's parameters (`benchmarks.topology_cost.printed_spec`).

With `--sent-alone 1` messages are routed and matched by nobody, for kinds with a region: millions of subscriptions in a
minute. Some messages are held against every subscription: one that matches any has to be sent.
"""

import gc
import itertools
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from functools import partial
from time import thread_time_ns
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks import command
from benchmarks import workload as workloads
from benchmarks.cases import make_case
from benchmarks.command import Tell, verdict
from benchmarks.driving import NO_REMOVALS, NO_SUBSCRIPTIONS
from benchmarks.topology_cost import Stream, compare, filled, on_ray, plan_of, router_of, stream_of, told_by
from benchmarks.workload import BooleanRecipe
from distribution.placed import PlacedRouter
from distribution.router import Router, RoutingTable
from distribution.routers import PLACING, REBALANCING, ROUTERS, placeable
from distribution.signatures.claims import claims_of
from distribution.signatures.signature import QuerySignature
from gateway.load.measuring import Weighed
from matching.errors import ConfigError
from matching.kinds import KINDS
from matching.model import MessageBatch, SubscriptionTable
from topology.core.api.component import Saved
from topology.core.api.plan import Plan
from topology.core.executors.local import pause_local, run_local
from topology.core.metrics import RunReport, TaskReport
from topology.core.tasks.links import Parcel
from topology.sizing import beside

#: Subscriptions by kind and messages in the window, unless told otherwise; and parts of an operator's time.
_SIZES, _WINDOW = {"topk": 100_000, "skyline": 5_000, "boolean": 200_000, "knn": 1_000_000}, 50_000
_PARTS = ("index", "kept", "updates", "refills")
#: Streams that have no share in a message: results go out when the stream has ended.
_AT_THE_END = ("finish", "results")
#: Messages that are routed together, and those that are held against every subscription, where nothing is matched.
_ROUTED, _COMPARED = 5_000, 250


def routers_of(kind: str) -> list[str]:
    """Those that can place a kind; where results do not last, one that places by cost stands for all."""
    if KINDS.named(kind).cumulative:
        return ["hashing", "influence", *PLACING]
    alike = set(PLACING) - {"dkm-sks"}
    return [name for name in ROUTERS if name not in alike and not placeable(name, KINDS, kind, False)]


def rebalanced(stream: Stream, saved: Saved, name: str, bolts: int) -> Saved:
    """What a router that rebalances resumes from, once a run of all messages has measured the work of its bolts."""
    with tempfile.TemporaryDirectory(prefix="skyray-routers-") as out:
        plan = plan_of(stream, router_of(stream, name, bolts), out, resumed=True)
        report = run_local(plan, resume=saved, work_ns=thread_time_ns)
        seen = pause_local(plan, len(stream.boundaries) - 1, resume=saved).single("distribution")
    work = [round(1e9 * sum(task.busy_s.values())) for task in report.components["query"].tasks]
    # loads and what was seen, under keys of the router; the counts are those of before
    columns = {key: values for key, values in seen.items() if ":" in key}
    before = {**saved.single("distribution"), **columns}
    return saved._replace(parts={**saved.parts, "distribution": [before]}, work={"query": work})


def simulated(stream: Stream, saved: Saved, name: str, bolts: int, each: int = 0) -> dict[str, Any]:
    """One run in this process: microseconds a message of the busiest tasks, and what went between tasks.

    One task of every other component for `each` query bolts; 0: as many as a run has.
    """
    router = router_of(stream, name, bolts)
    light = beside(bolts, [stream.case.kind], router.table().sends_all)
    if each:
        light = dict.fromkeys(light, max(1, bolts // each))
    if isinstance(router, PlacedRouter):  # placed together, as if they had been there before the first message
        placer = router.placer()
        placer.place_all(stream.case.table)
        saved = saved._replace(parts={**saved.parts, "subscriptions": [placer.arrays()]})
    with tempfile.TemporaryDirectory(prefix="skyray-routers-") as out:
        run = booked(plan_of(stream, router, out, beside=light, resumed=True), saved)
    return figures_of(stream, name, run, saved) | {"beside": light}


class BookedRun(NamedTuple):
    """A run, and what packing took, as of `gateway.load.measuring.Weighed`."""

    plan: Plan
    report: RunReport
    book: Counter[tuple[str, int]]


def booked(plan: Plan, saved: Saved) -> BookedRun:
    """Resume in this process, to the end. What is done once, when the stream has ended, is not booked."""
    book: Counter[tuple[str, int]] = Counter()
    weigh = Weighed(book)

    def watch(parcels: Sequence[Parcel]) -> None:
        if plan.edges[parcels[0].edge].stream not in _AT_THE_END:
            weigh(parcels)

    # else a collection over all that this process holds, 0.1 s, is booked to whichever task it meets
    gc.collect()
    gc.freeze()
    report = run_local(plan, resume=saved, watch=watch, work_ns=thread_time_ns)
    gc.unfreeze()
    return BookedRun(plan, report, book)


def figures_of(stream: Stream, name: str, run: BookedRun, saved: Saved) -> dict[str, Any]:
    """Microseconds a message of the tasks of a run that was resumed, and what went between them."""
    plan, report, book = run
    each_us, spent = 1e6 / stream.timed, {}
    for component, part in report.components.items():
        seconds = [sum(_streams_of(task).values()) for task in part.tasks]
        moved_ns = [book["unpacking", at] - book["lent", at] for at in plan.addresses_of(component)]
        if part.kind != "spout":  # its messages lie in memory
            spent[component] = (each_us * (np.array(seconds) + 1e-9 * np.array(moved_ns))).tolist()
    busiest = int(np.argmax(spent["query"]))
    task, at = report.components["query"].tasks[busiest], plan.addresses_of("query")[busiest]
    parts = {part: each_us * task.figures["clocked_s"].get(part, 0.0) for part in _PARTS}
    parts["packing"] = 1e-9 * each_us * (book["packing", at] + book["unpacking", at])
    routed, before = Counter(), saved.single("distribution")["counts"]
    for each_task in report.components["distribution"].tasks:
        routed.update({figure: each_task.figures[figure] for figure in ("sent", "messages")})
    return {
        "us_per_message": max(map(max, spent.values())),
        "slowest": max(spent, key=lambda component: max(spent[component])),
        "busiest_us": {component: max(of_tasks) for component, of_tasks in spent.items()},
        "busiest_parts_us": {name: _parts_of(report, plan, name, book, each_us) for name in report.components},
        "updates_of_busiest_share": _share(report, "delivery", "updates"),
        "query_us": spent["query"][busiest],
        "query_max_to_mean": spent["query"][busiest] / (sum(spent["query"]) / len(spent["query"])),
        "all_us": sum(map(sum, spent.values())),
        "work_us": {component: sum(of_tasks) for component, of_tasks in spent.items()},
        "busiest_query_us": parts | {"hits": each_us * task.busy_s.get("hits", 0.0)},
        "bytes_per_message": sum(count for (what, _), count in book.items() if what == "bytes") / stream.timed,
        "sent_per_message": float((routed["sent"] - before[1]) / (routed["messages"] - before[0])),
        **told_by(report, stream, name),
    }


def sent_alone_by(stream: Stream, routers: Sequence[str], simulations: Sequence[int], tell: Tell) -> dict[str, Any]:
    """The timed messages as each router sends them once everybody has subscribed, a row each, and what the check says.

    Of a sample of messages a row says how many match and are not sent (`lost`), which only estimates may.

    Raises
    ------
    ConfigError
        If the kind has no region: what is sent depends on results then.
    """
    case = stream.case
    if not KINDS.traits.region[case.kind.code]:
        raise ConfigError(f"{case.kind.name} has no region: what is sent depends on results; leave --sent-alone out")
    messages = case.messages.take(np.arange(len(case.messages) - case.timed, len(case.messages)))
    sample = np.linspace(0, len(messages) - 1, min(_COMPARED, len(messages))).astype(np.int64)
    inside, wanted, compared, subscriptions = _matched(case.table, messages.take(sample))
    rows, same = [], True
    for bolts, name in itertools.product(simulations, routers):
        router = router_of(stream, name, bolts)
        table = _subscribed(router, case.table)
        sent = np.zeros(len(messages), np.int64)
        for at in range(0, len(messages), _ROUTED):
            for part in table.route(messages.take(np.arange(at, min(at + _ROUTED, len(messages))))):
                sent[at + part] += 1
        lost = int(np.count_nonzero(sent[sample[wanted]] == 0))
        same &= lost == 0 or (router.signatures is not None and router.signatures.loses)
        row = {"way": "sent alone", "router": name, "query_bolts": bolts, "sent_per_message": float(sent.mean())}
        row |= {"matching": int(wanted.sum()), "lost": lost, **table.describe()}
        tell(f"{name}, {bolts} bolts: {row['sent_per_message']:.4f} bolts a message, {lost} of {row['matching']} lost")
        rows.append(row)
    shares = {"inside_share": float(inside.mean()), "matching_share": float(wanted.mean())}
    facts = {"kind": case.kind.name, **verdict(same, compared, subscriptions), "workload": case.facts}
    return facts | {"compared_messages": len(sample), **shares, "rows": rows}


def _subscribed(router: Router, subscriptions: SubscriptionTable) -> RoutingTable:
    """The table of a distribution bolt that knows all subscriptions, and has the signature of every query bolt."""
    table, spec = router.table(), router.signatures
    table.change(subscriptions, NO_REMOVALS)
    if spec is None:
        return table
    for task in range(router.tasks):
        signature = QuerySignature(spec, router.domain_of(task), task)
        mine = subscriptions.take(np.flatnonzero(router.assigned_to(subscriptions, task)))
        signature.change(claims_of(mine), claims_of(NO_SUBSCRIPTIONS))
        patch = signature.patch(0, noted=True)
        assert patch is not None, "notes are there to be dropped"
        table.apply(patch)
    return table


def _matched(table: SubscriptionTable, messages: MessageBatch) -> tuple[NDArray[np.bool_], NDArray[np.bool_], int, int]:
    """Whether each message meets any region (none crosses the antimeridian), and matches; matches, and of how many."""
    words = np.diff(table.term_offsets)
    row, matches, told = np.repeat(np.arange(len(table)), words), 0, np.zeros(len(table), np.bool_)
    least = np.where(KINDS.traits.all_keywords[table.kind], words, 1)
    spoken = np.zeros(1 + max(int(table.terms.max()), int(messages.terms.max())), np.bool_)
    inside, wanted = np.zeros((2, len(messages)), np.bool_)
    west, south, east, north = table.region.T
    for at in range(len(messages)):
        around = (west <= messages.east[at]) & (messages.west[at] <= east)
        around &= (south <= messages.north[at]) & (messages.south[at] <= north)
        terms = messages.terms[messages.term_offsets[at] : messages.term_offsets[at + 1]]
        spoken[terms] = True
        found = around & (np.bincount(row[spoken[table.terms]], minlength=len(table)) >= least)
        spoken[terms] = False
        inside[at], wanted[at] = around.any(), found.any()
        matches, told = matches + int(np.count_nonzero(found)), told | found
    return inside, wanted, matches, int(np.count_nonzero(told))


def _parts_of(report: RunReport, plan: Plan, component: str, book: Counter, each_us: float) -> dict[str, float]:
    """Microseconds a message of the busiest task of a component, by incoming stream, and what packing takes of these.

    `packing` is within the streams, `unpacking` comes on top. Of a spout there is only `packing`.
    """
    found = []
    for task, at in zip(report.components[component].tasks, plan.addresses_of(component), strict=True):
        moved = {"packing": book["packing", at], "unpacking": book["unpacking", at], "lent": -book["lent", at]}
        parts = {stream: each_us * seconds for stream, seconds in _streams_of(task).items()}
        found.append(parts | {name: 1e-9 * each_us * ns for name, ns in moved.items()})
    return max(found, key=lambda parts: sum(parts.values()) - parts["packing"])


def _streams_of(task: TaskReport) -> dict[str, float]:
    """Seconds by incoming stream, without those at the end."""
    return {stream: seconds for stream, seconds in task.busy_s.items() if stream not in _AT_THE_END}


def _share(report: RunReport, component: str, counter: str) -> float:
    """Of what the tasks of a component have counted, the share of the one that has most."""
    counted = [task.counters.get(counter, 0) for task in report.components[component].tasks]
    return max(counted) / max(1, sum(counted))


def routed(
    stream: Stream,
    routers: Sequence[str],
    simulations: Sequence[int],
    rays: Sequence[int],
    rounds: int,
    tell: Tell,
    each: int = 0,
    balanced: bool = False,
) -> dict[str, Any]:
    """Every router and number of bolts, in turns; a row each, and what the check says."""
    tell(f"{stream.case.kind.name}: loading {len(stream.case.table):,} subscriptions into one bolt")
    saved, ways = filled(stream), {}
    brief = stream._replace(boundaries=stream.boundaries[: stream.joined + 3])
    for bolts, name in itertools.product(simulations, routers):
        if balanced and name.partition("+")[0] in REBALANCING:
            tell(f"{name}: measuring the work of {bolts} bolts")
            resumed = rebalanced(stream, saved, name, bolts)
        else:
            resumed = saved
        ways[f"simulated {name} {bolts}"] = partial(simulated, stream, resumed, name, bolts, each)
        if bolts == simulations[-1]:
            simulated(brief, resumed, name, bolts, each)  # what is compiled or loaded on first use is so by then
    for bolts, name in itertools.product(rays, routers):
        ways[f"ray {name} {bolts}"] = partial(on_ray, stream, name, bolts)
    judged, measured = compare(stream, saved, ways, rounds, tell)
    rows = []
    for key, row in measured.items():
        way, name, bolts = key.split()
        base = measured.get(f"{way} hashing {bolts}")
        row["times_hashing"] = base and base["us_per_message"] / row["us_per_message"]
        one = measured.get(f"{way} {name} 1")
        row["times_one_bolt"] = one and one["us_per_message"] / row["us_per_message"]
        row["all_of_one_times"] = one and one.get("all_us") and one["all_us"] / row["us_per_message"]
        rows.append({"way": way, "router": name, "query_bolts": int(bolts), **row})
    return {"kind": stream.case.kind.name, **judged, "workload": stream.case.facts, "rows": rows}


def bench(
    kinds: Annotated[tuple[str, ...], "one after the other"] = ("topk", "skyline", "boolean"),
    subscriptions: Annotated[int | None, "of each kind; as many as suit it by default"] = None,
    window: Annotated[int | None, "messages in it (50,000), or in the history of results that last (1,000,000)"] = None,
    messages: Annotated[int, "that follow"] = 20_000,
    batch: Annotated[int, "messages between two boundaries"] = 1_000,
    bolts: Annotated[tuple[int, ...], "query bolts that are simulated"] = (1, 4, 16, 64),
    ray: Annotated[tuple[int, ...], "query bolts on Ray, of kinds whose results do not last"] = (1, 2, 4),
    routers: Annotated[tuple[str, ...], "all that can by default; ROUTER+MODE: with signatures"] = (),
    workload: Annotated[str, "recipe of boolean, as of `skyray bench --workload`"] = "",
    engine: Annotated[str | None, "index of the query bolts, the kind's default one without"] = None,
    scattered: Annotated[float, "share of messages that lie anywhere, not where subscriptions are"] = 0.0,
    messages_from: Annotated[str | None, "resample the messages of this output folder of `skyray etl`"] = None,
    light: Annotated[int, "query bolts for each bolt of every other component; 0: as a run chooses"] = 0,
    balanced: Annotated[int, "1: simulated routers by place begin with parts cut by the work of a first run"] = 0,
    sent_alone: Annotated[int, "1: count what is sent and match nothing, of kinds with a region"] = 0,
    rounds: Annotated[int, "turns of each"] = 3,
    seed: Annotated[int, "of the workload"] = 0,
    tell: Tell = print,
) -> dict[str, Any]:
    """Every kind's routers beside each other."""
    measured = []
    for name in kinds:
        kind, count, parts = KINDS.named(name), subscriptions or _SIZES[name], max(1, messages // batch)
        how: dict[str, Any] = {"history": window, "messages_from": messages_from}
        how |= {"recipe": BooleanRecipe.parse(workload)} if kind.message_place == "box" else {}
        case = make_case(kind, count, messages, window or _WINDOW, parts, seed, **how)
        if scattered:
            facts = case.facts | {"scattered": scattered}
            case = case._replace(messages=workloads.scattered(case.messages, scattered, seed, case.space), facts=facts)
        stream, rays = stream_of(case, batch, engine), () if kind.cumulative or sent_alone else ray
        timed = {"timed_on_ray": stream.left} if rays else {}
        able = routers_of(name)
        chosen = [router for router in routers or able if router.partition("+")[0] in able]
        if sent_alone:
            measured.append(sent_alone_by(stream, chosen, bolts, tell))
            continue
        measured.append(routed(stream, chosen, bolts, rays, rounds, tell, light, bool(balanced)) | timed)
    return {
        "batch": batch,
        "rounds": rounds,
        "balanced": balanced,
        "measured": measured,
        "exact": all(one["exact"] for one in measured),
    }


if __name__ == "__main__":
    from benchmarks import routers  # actors cannot import classes of the main script

    sys.exit(command.main(routers.bench))
