"""Routers over the whole way: index, buffers, hits between tasks, refills, packing; simulated to 64 bolts, and on Ray.

    python -m benchmarks.routers [--kinds topk,skyline,boolean] [--subscriptions N] [--window N] [--messages N]
                                 [--batch N] [--bolts 1,4,16,64] [--ray 1,2,4] [--routers A,B] [--rounds 3]
                                 [--out DIR] > results.json

Simulated, each task's time is booked to it in one process, with what packing and unpacking takes between processes, and
the busiest task sets the pace: what one would have with a core for every task and a network that takes no time. On Ray
everything is there, and so are only as many cores as the machine has. Routers take turns in every round; medians are
told, after every one of them has been seen to tell the same updates as one bolt that was checked
(`benchmarks.whole_way`). With `--out` the figures are drawn too.
"""

import contextlib
import itertools
import logging
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter_ns
from typing import Annotated, Any

import numpy as np
import ray as cluster

from benchmarks import command
from benchmarks.cases import make_case
from benchmarks.command import Tell
from benchmarks.figures import drawing
from benchmarks.whole_way import Stream, compare, digest_of, filled, on_ray, plan_of, seconds_of, stream_of
from distribution.routers import ROUTERS, placeable
from matching.errors import ConfigError
from matching.kinds import KINDS
from topology.core import local
from topology.core.component import Saved
from topology.core.metrics import RunReport
from topology.core.payload import pack, unpack
from topology.wiring import credits_for

#: One of those that place by cost stands for all: they differ in balance alone (`benchmarks.placement_work`).
_LEFT_OUT = ("kop", "sop", "ps2stream")
_SIZES = {"topk": 100_000, "skyline": 5_000, "boolean": 200_000}
_PARTS = ("index", "kept", "updates", "refills", "packing")


def routers_of(kind: str) -> list[str]:
    """Those that can place a kind."""
    return [name for name in ROUTERS if name not in _LEFT_OUT and not placeable(name, KINDS, kind, False)]


class _Weighed(local._LocalChannel):
    """Links that pack and unpack what they carry, and book that to who would do it."""

    book: "Booked"

    def send(self, destinations: Any, payload: Any, size_bytes: int) -> None:
        carried = [address for address, edge, _ in destinations if edge >= 0 and address != self._sender]
        if carried:
            begun = perf_counter_ns()
            pieces = pack(payload, 1 << 62)
            packed = perf_counter_ns()
            unpack(pieces)
            done = perf_counter_ns()
            self.book.packing[self._sender] += packed - begun
            # it ran inside the sender's time, and belongs to the receivers
            self.book.out_of[self._sender] += done - packed
            for address in carried:
                self.book.unpacking[address] += done - packed
                self.book.carried_bytes += sum(map(len, pieces))
        super().send(destinations, payload, size_bytes)


class Booked:
    """Nanoseconds of packing and unpacking by address, and bytes that went between tasks."""

    def __init__(self):
        self.packing: Counter[int] = Counter()
        self.unpacking: Counter[int] = Counter()
        self.out_of: Counter[int] = Counter()
        self.carried_bytes = 0


@contextlib.contextmanager
def weighed() -> Iterator[Booked]:
    """Have runs in this process pack and unpack as between processes."""
    plain, book = local._LocalChannel, Booked()
    local._LocalChannel = type("Weighed", (_Weighed,), {"book": book})  # type: ignore[misc]
    try:
        yield book
    finally:
        local._LocalChannel = plain  # type: ignore[misc]


def simulated(stream: Stream, router: str, bolts: int, saved: Saved) -> dict[str, Any]:
    """One run in this process: microseconds a message of the busiest tasks, and what went between tasks."""
    with tempfile.TemporaryDirectory(prefix="skyray-routers-") as out, weighed() as book:
        plan = plan_of(stream, router, bolts, out)
        report = local.run_local(plan, resume=saved)
    each_us = 1e6 / stream.timed
    spent: dict[str, list[float]] = {}
    for name, part in report.components.items():
        if part.kind == "spout":
            continue  # its messages lie in memory
        addresses = plan.addresses_of(name)
        spent[name] = [
            each_us * (sum(task.busy_s.values()) + 1e-9 * (book.unpacking[at] - book.out_of[at]))
            for at, task in zip(addresses, part.tasks, strict=True)
        ]
    tasks, query = report.components["query"].tasks, plan.addresses_of("query")
    busiest = int(np.argmax(spent["query"]))
    clocked = tasks[busiest].figures["clocked_s"]
    packing = 1e-9 * (book.packing[query[busiest]] + book.unpacking[query[busiest]])
    parts = {name: each_us * clocked.get(name, 0.0) for name in _PARTS[:-1]} | {"packing": each_us * packing}
    parts["found"] = each_us * tasks[busiest].busy_s.get("found", 0.0)
    row = {
        "us_per_message": max(map(max, spent.values())),
        "slowest": max(spent, key=lambda name: max(spent[name])),
        "query_us": max(spent["query"]),
        "query_max_to_mean": max(spent["query"]) / (sum(spent["query"]) / bolts),
        "all_us": sum(map(sum, spent.values())),
        "busiest_query_us": parts,
        **{f"{name}_us": max(spent[name]) for name in ("distribution", "tuples", "delivery")},
        "bytes_per_message": book.carried_bytes / stream.timed,
    }
    messages, sent, _ = np.sum([task["counts"] for task in saved.parts["distribution"]], axis=0).tolist()
    parts = [task.figures for task in report.components["distribution"].tasks]
    row["sent_per_message"] = (sum(part["sent"] for part in parts) - sent) / (
        sum(part["messages"] for part in parts) - messages
    )
    return row | _told(report, stream)


def _told(report: RunReport, stream: Stream) -> dict[str, Any]:
    """Digest, and the papers' measures of routing."""
    parts = {name: [task.figures for task in part.tasks] for name, part in report.components.items()}
    held, kind = len(stream.case.table), stream.case.kind.name
    return {
        "digest": digest_of(report),
        "found_per_message": sum(part["found_sent"].get(kind, 0) for part in parts["query"]) / stream.timed,
        "held_per_subscription": sum(part["held"][kind] for part in parts["query"]) / held,
    }


def run_on_ray(stream: Stream, router: str, bolts: int) -> dict[str, Any]:
    """One run on Ray from the start; what is timed begins when the batch that brought everybody is done."""
    report = on_ray(stream, router, bolts)
    return {"us_per_message": 1e6 * seconds_of(report) / stream.left} | _told(report, stream)


def routed(
    stream: Stream, chosen: Sequence[str], simulations: Sequence[int], rays: Sequence[int], rounds: int, tell: Tell
) -> dict[str, Any]:
    """Every router and number of bolts, in turns; a row each, and what the check says."""
    routers = [name for name in routers_of(stream.case.kind.name) if not chosen or name in chosen]
    with tempfile.TemporaryDirectory(prefix="skyray-routers-") as out:
        saved = filled(stream, out)
    for router in routers if simulations else ():
        simulated(stream, router, simulations[0], saved)  # what is compiled or loaded on first use is so by then
    cells, ways = {}, {}
    for way, counts, run in (("simulated", simulations, partial(simulated, saved=saved)), ("ray", rays, run_on_ray)):
        for bolts, router in itertools.product(counts, routers):
            cells[f"{way} {router} {bolts}"] = way, router, bolts
            ways[f"{way} {router} {bolts}"] = partial(run, stream, router, bolts)
    judged, measured = compare(stream, ways, rounds, tell)
    rows = []
    for name, row in measured.items():
        way, router, bolts = cells[name]
        base = measured.get(f"{way} hashing {bolts}")
        times = base and base["us_per_message"] / row["us_per_message"]
        rows.append({"way": way, "router": router, "query_bolts": bolts, **row, "times_hashing": times})
    return {"kind": stream.case.kind.name, **judged, "workload": stream.case.facts, "rows": rows}


def picture(measured: list[dict[str, Any]], ways: Sequence[int]) -> dict[str, Any]:
    """The report that `benchmarks.figures.drawing` draws: messages a second over simulated bolts, a panel a kind."""
    panels = []
    for one in measured:
        series: dict[str, list[float]] = {}
        for row in one["rows"]:
            if row["way"] == "simulated":
                series.setdefault(row["router"], []).append(row["messages_per_s"])
        panels.append({"title": one["kind"], "y_label": "messages/s, whole way", "log": (True, True), "series": series})
    return {"figure": "routers-whole-way", "x_label": "query bolts", "x": list(ways), "panels": panels}


def bench(
    kinds: Annotated[tuple[str, ...], "one after the other"] = tuple(_SIZES),
    subscriptions: Annotated[int | None, "of each kind; as many as suit it by default"] = None,
    window: Annotated[int, "messages in it"] = 50_000,
    messages: Annotated[int, "that follow"] = 20_000,
    batch: Annotated[int, "messages between two boundaries"] = 1_000,
    bolts: Annotated[tuple[int, ...], "query bolts that are simulated"] = (1, 4, 16, 64),
    ray: Annotated[tuple[int, ...], "query bolts on Ray"] = (1, 2, 4),
    routers: Annotated[tuple[str, ...], "all that can by default"] = (),
    rounds: Annotated[int, "turns of each"] = 3,
    seed: Annotated[int, "of the workload"] = 0,
    out: Annotated[Path | None, "folder for routers-whole-way.json and .png"] = None,
    tell: Tell = print,
) -> dict[str, Any]:
    """Every kind's routers beside each other.

    Raises
    ------
    ConfigError
        If so few messages were asked for that none of them would count on Ray.
    """
    measured = []
    if ray:  # one session for all runs
        cluster.init("local", include_dashboard=False, _node_ip_address="127.0.0.1", logging_level=logging.WARNING)
    for name in kinds:
        count = subscriptions or _SIZES[name]
        case = make_case(KINDS.named(name), count, messages, window, max(1, messages // batch), seed)
        stream = stream_of(case, batch)
        if ray and len(stream.boundaries) <= stream.loaded:
            raise ConfigError(f"--messages {messages}: on Ray the first {stream.loaded} batches do not count")
        measured.append(routed(stream, routers, bolts, ray, rounds, tell))
    cluster.shutdown()
    exact = all(one["exact"] for one in measured)
    report = {"credits": credits_for(batch), "batch": batch, "rounds": rounds, "measured": measured, "exact": exact}
    if out and bolts:
        drawing.write(drawing.pyplot(), picture(measured, bolts) | {"rows": report}, out / "routers-whole-way")
    return report


if __name__ == "__main__":
    from benchmarks import routers  # actors cannot import classes of the main script

    sys.exit(command.main(routers.bench))
