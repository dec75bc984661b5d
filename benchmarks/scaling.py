"""Scaling of the whole topology: busiest task, all work and bytes at several numbers of query bolts.

    python -m benchmarks.scaling --kinds boolean,topk --subscriptions 1000000 --bolts 1,20 --messages 10000 --rounds 3
    python -m benchmarks.scaling --kinds boolean --subscriptions 1000000 --bolts 1,4,16 --weak 1
    python -m benchmarks.scaling --kinds skyline --picture benchmarks/results/scaling-skyline.png ...

Processor time is booked to the task that spends it, in one process (`benchmarks.routers`), so that a busy machine
changes figures little; the busiest task of the whole topology sets the pace. There are as many tasks beside the query
bolts as `skyray run` chooses. All must tell what one query bolt tells, which is checked.

With `--weak 1` query bolts run one after the other over the same messages (`one_by_one`), since memory would end before
64 times 1,000,000 subscriptions. Each bolt's subscriptions are drawn when its turn comes, and are gone behind it; the
updates of all go through delivery in a last run. It is for kinds without a window: their bolts ask no other task. Up to
`_WHOLE` subscriptions the updates are those of a run with all bolts, which is checked, too.
"""

import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from benchmarks import command, routers
from benchmarks.cases import Case, make_case
from benchmarks.command import Tell
from benchmarks.figures import drawing
from benchmarks.lasting import best_messages, state_with
from benchmarks.topology_cost import (
    ClockedQueryBolt,
    Stream,
    checked,
    filled,
    named,
    paused,
    plan_of,
    query_bolt,
    router_of,
    stream_of,
    subscribed,
    taken_in_turns,
    with_bolts,
    with_ids,
)
from benchmarks.workload import changed
from bolts.names import hash_names
from distribution.router import spread
from matching.errors import ConfigError
from matching.kinds import KINDS
from matching.model import ResultBatch, SubscriptionTable, concatenate, empty
from matching.storage.state import State
from topology.core.api.component import Bolt, Context, Delivery, Saved
from topology.core.payload import pack, unpack
from topology.sizing import beside

_KEPT = ("router", "query_bolts", "beside", "us_per_message", "slowest", "busiest_us", "busiest_parts_us", "query_us",
         "all_us", "work_us", "bytes_per_message", "sent_per_message", "turns_us", "same_updates")  # fmt: skip
#: Subscriptions up to which a run has all bolts, too, with `--weak 1`.
_WHOLE = 1_000_000
_LENGTH_BYTES = 8


def bench(
    kinds: Annotated[tuple[str, ...], "one after the other"] = ("topk", "skyline", "boolean"),
    subscriptions: Annotated[int, "of each kind, with --weak 1 about so many for each query bolt"] = 200_000,
    bolts: Annotated[tuple[int, ...], "query bolts; the first are what the others are set beside"] = (1, 4, 20),
    messages: Annotated[int, "that are timed"] = 10_000,
    window: Annotated[int | None, "as of `benchmarks.routers`"] = None,
    batch: Annotated[int, "messages between two boundaries"] = 1_000,
    by: Annotated[tuple[str, ...], "routers"] = ("hashing",),
    weak: Annotated[int, "1: as many subscriptions a query bolt, by hashing, of kinds without a window"] = 0,
    rounds: Annotated[int, "turns of each"] = 3,
    seed: Annotated[int, "of the workload"] = 0,
    picture: Annotated[str, "PNG to draw, too"] = "",
    tell: Tell = print,
) -> dict[str, Any]:
    """A row for each kind, router and number of query bolts.

    `times` is how much faster the busiest task is than with the first number, `linear` that by how many more query
    bolts there are, `all_work` how much more work there is in all; `linear` of weak scaling is that of the rate.
    """
    if weak:
        measured = [
            weak_scaling(kind, subscriptions, bolts, messages, window, batch, rounds, seed, tell) for kind in kinds
        ]
    else:
        found = routers.bench(
            kinds, subscriptions, window, messages, batch, bolts, (), by, rounds=rounds, seed=seed, tell=tell
        )
        measured = found["measured"]
    judged = [{name: one[name] for name in ("kind", "exact", "compared", "compared_subscriptions")} for one in measured]
    rows = [
        {"kind": one["kind"], "subscriptions": subscriptions * (row["query_bolts"] if weak else 1)}
        | {name: row[name] for name in _KEPT}
        for one in measured
        for row in one["rows"]
    ]
    for row in rows:
        base = next(one for one in rows if (one["kind"], one["router"]) == (row["kind"], row["router"]))
        row["times"], more = base["us_per_message"] / row["us_per_message"], row["query_bolts"] / base["query_bolts"]
        row["linear"] = row["times"] / (1 if weak else more)
        row["all_work"] = row["all_us"] / base["all_us"]
    report = {"weak": bool(weak), "rows": rows, "judged": judged, "exact": all(one["exact"] for one in judged)}
    report |= {"x_label": "query bolts", "x": list(bolts), "panels": _panels(rows, bolts, bool(weak))}
    if picture:
        drawing.draw(report, Path(picture))
    return report


def weak_scaling(
    kind: str, subscriptions: int, bolts: Sequence[int], messages: int, history: int | None, batch: int, rounds: int,
    seed: int, tell: Tell,
) -> dict[str, Any]:  # fmt: skip
    """A row for each number of query bolts, with so many subscriptions each; what all tell is checked up to `_WHOLE`.

    Raises ConfigError for a kind with a window.
    """
    row = KINDS.named(kind)
    if row.windowed:
        raise ConfigError(f"--weak 1: bolts of {kind} ask the window, so that none runs alone; choose boolean or knn")
    case = make_case(row, subscriptions, messages, rounds=max(1, messages // batch), seed=seed, history=history)
    verdicts, digests = [], {}
    for number in bolts:
        if number * subscriptions <= _WHOLE:
            tell(f"{kind}: checking a run of {number} query bolts at a time")
            table = concatenate([drawn(case, number, bolt) for bolt in range(number)])
            whole = stream_of(case._replace(table=table.take(np.argsort(table.number))), batch)
            judged, digests[number] = checked(whole, filled(whole))
            verdicts.append(judged)
    stream = stream_of(case._replace(table=empty(SubscriptionTable)), batch)
    ways = {str(number): partial(one_by_one, stream, case, number) for number in bolts}
    rows = [
        {"router": "hashing", "query_bolts": int(name), **found}
        for name, found in taken_in_turns(ways, rounds, tell).items()
    ]
    for found in rows:
        same = found["digests"] == [digests.get(found["query_bolts"])]
        found["same_updates"] = same if found["query_bolts"] in digests else None  # nothing to compare
    exact = bool(verdicts) and all(judged["exact"] for judged in verdicts)
    exact &= all(found["same_updates"] is not False for found in rows)
    counts = {name: sum(each[name] for each in verdicts) for name in ("compared", "compared_subscriptions")}
    return {"kind": kind, "exact": exact, **counts, "rows": rows}


def drawn(case: Case, bolts: int, bolt: int) -> SubscriptionTable:
    """The subscriptions of one of so many query bolts, about as many as the case has.

    All bolts together have the numbers from 0, each those that `hashing` assigns to it.
    """
    count = len(case.table)
    pieces = [np.arange(first, first + count) for first in range(0, bolts * count, count)]
    number = np.concatenate([piece[spread(piece, bolts) == bolt] for piece in pieces])
    assert case.draw is not None
    return changed(case.draw(len(number), int(case.facts["seed"]) + 1 + bolt), number=number)


def one_by_one(stream: Stream, case: Case, bolts: int) -> dict[str, Any]:
    """As `routers.simulated` with `hashing`, one query bolt at a time; `stream` is of the case, without subscriptions.

    Every run has all tasks but those of delivery, and all query tasks but one are idle; it books that one. The last run
    has all tasks, where query tasks only emit what was recorded; it books the others.
    """
    router, count, kind = router_of(stream, "hashing", bolts), len(case.table), case.kind
    light = beside(bolts, [kind], router.table().sends_all)
    hashes = np.zeros(bolts * count, np.uint64)
    for first in range(0, hashes.shape[0], count):
        hashes[first : first + count] = hash_names(named(f"{kind.name}-", np.arange(first, first + count)))
    nobody = with_ids(paused(stream, "count"), hashes.shape[0], {"hashes": hashes})
    with tempfile.TemporaryDirectory(prefix="skyray-one-by-one-") as folder:
        plan, tasks, book = plan_of(stream, router, folder, beside=light, resumed=True), [], Counter()
        query = plan.addresses_of("query")
        for task, address in enumerate(query):
            lone = query_bolt(stream, router, LoneQueryBolt)
            lone.only = task
            run = routers.booked(
                with_bolts(plan, {"query": lone, "delivery": UpdateRecorder(folder)}),
                subscribed(nobody, kind, _state_of(case, drawn(case, bolts, task))),
            )
            tasks.append(run.report.components["query"].tasks[task])
            book.update({key: count for key, count in run.book.items() if key[1] == address})
        run = routers.booked(with_bolts(plan, {"query": UpdatePlayer(folder)}), nobody)
    book.update({key: count for key, count in run.book.items() if key[1] not in query})
    components = run.report.components
    components = components | {"query": replace(components["query"], tasks=tuple(tasks))}
    run = run._replace(report=replace(run.report, components=components), book=book)
    return routers.figures_of(stream, "hashing", run, nobody) | {"beside": light}


def _state_of(case: Case, table: SubscriptionTable) -> State:
    """Subscriptions with the results of the history, where there is one."""
    if not case.kind.cumulative:
        return State.of(table)
    history = case.messages.take(np.arange(case.filled))
    return state_with(table, best_messages(table, history, case.space.max_distance, case.fading))


class LoneQueryBolt(ClockedQueryBolt):
    """A query bolt of which one task alone works; the others take their input and do nothing."""

    only = 0

    def restore(self, saved: Saved) -> None:
        if self.context.task == self.only:
            super().restore(saved)

    def execute(self, delivery: Delivery) -> None:
        if self.context.task == self.only:
            super().execute(delivery)


class UpdateRecorder(Bolt):
    """In the place of delivery: appends the updates of each query task to a file of its own."""

    def __init__(self, folder: str):
        self.folder = Path(folder)

    def prepare(self, context: Context) -> None:
        self.context = context

    def execute(self, delivery: Delivery) -> None:
        if delivery.stream == "ids":
            self.context.acknowledge(delivery.payload.boundary.number)
        elif delivery.stream == "updates":
            packed = pack(delivery.payload, 1 << 62)[0]
            with (self.folder / f"updates-{delivery.task}-{self.context.task}").open("ab") as file:
                file.write(len(packed).to_bytes(_LENGTH_BYTES, "little") + packed)


class UpdatePlayer(Bolt):
    """In the place of a query bolt: emits what was recorded of it, batch by batch."""

    def __init__(self, folder: str):
        self.folder = Path(folder)

    def prepare(self, context: Context) -> None:
        self.context = context
        paths = [self.folder / f"updates-{context.task}-{owner}" for owner in range(context.size_of("delivery"))]
        self.files = [path.open("rb") for path in paths]

    def execute(self, delivery: Delivery) -> None:
        if delivery.stream == "whole":
            for owner, file in enumerate(self.files):
                size = int.from_bytes(file.read(_LENGTH_BYTES), "little")
                self.context.emit("updates", unpack([file.read(size)]), to=owner)

    def finish(self) -> None:
        for owner in range(len(self.files)):
            self.context.emit("results", ResultBatch(*empty(ResultBatch)[:4]), to=owner)

    def close(self) -> None:
        for file in self.files:
            file.close()


def _panels(rows: Sequence[Mapping[str, Any]], bolts: Sequence[int], weak: bool) -> list[dict[str, Any]]:
    """Panels of `benchmarks.figures.drawing`: rate and work by query bolts, a line for each kind and router."""
    found = {(f"{row['kind']}, {row['router']}", row["query_bolts"]): row for row in rows}
    names = list(dict.fromkeys(name for name, _ in found))

    def lines(figure: str) -> dict[str, list[float]]:
        return {name: [found[name, number][figure] for number in bolts] for name in names}

    rate = {"linear": [1.0 if weak else number / bolts[0] for number in bolts]} | lines("times")
    return [
        {"title": "rate of the busiest task", "y_label": f"times that of {bolts[0]}", "series": rate},
        {"title": "work of all tasks", "y_label": f"times that of {bolts[0]}", "series": lines("all_work")},
    ]


if __name__ == "__main__":
    sys.exit(command.main(bench))
