"""What signatures save and cost: the cuckoo filter by itself, and each kind of signature over growing workloads.

    python -m benchmarks.signatures [--filters 1000000,10000000] [--subscriptions 20000,200000,1000000]
                                    [--messages N] [--tasks N] [--seed N] > results.json

Subscriptions are boolean ones of `benchmarks.workload`, placed by router `location` on simulated query bolts; messages
come from another draw. The optimum is a message sent only if a subscription matches it, or is one that it is a
candidate of, by the index of the kind, which is held against the definition in plain Python first. A kind of signature
that loses a match is lossy, and how many it loses is told; all others must lose none of 1,000 or more messages. Turns
of the filter are medians of interleaved rounds. Each number of subscriptions comes with small squares alone (up to 1 %
of the world's width) and with the workload's usual share of wide ones. `benchmarks.figures.skyline_routing` draws the
same of skylines.
"""

import sys
from collections.abc import Iterator, Mapping
from itertools import product
from statistics import median
from time import perf_counter, thread_time
from typing import Annotated, Any, NamedTuple

import numpy as np

from benchmarks import command
from benchmarks.command import Tell
from benchmarks.stopwatch import in_turns
from benchmarks.verdict import verdict
from benchmarks.workload import WIDE_SHARE, WORLD, boolean_subscriptions, make_messages
from distribution.location import LocationRouter
from distribution.signatures.claims import claims_of
from distribution.signatures.cuckoo import CuckooFilter
from distribution.signatures.signature import QuerySignature, SignatureBoard, SignatureSpec
from distribution.signatures.warmup import warmup
from matching.boolean.engines.cell_term import CellTerm
from matching.model import SKYLINE, Int64, MessageBatch, SubscriptionTable
from matching.naive import boolean_match, common_terms, messages_of, skyline_scores, subscriptions_of
from matching.skyline.subscriptions import SkylineSubscriptions

_BATCH = 5_000
#: How many messages and subscriptions plain Python looks at.
_CHECKED = (200, 500)

SPATIAL = SignatureSpec(WORLD, text=False)
TEXT = SignatureSpec(WORLD)
#: Name to what it consists of; 32 rows of 16 tasks are the paper's 512.
KINDS: dict[str, SignatureSpec] = {
    "spatial: bitmap": SPATIAL,
    "spatial: cuckoo": SPATIAL._replace(spatial_filter="cuckoo"),
    "text: cuckoo, root alone": TEXT._replace(levels=0),
    "text: cuckoo, 3 levels": TEXT._replace(levels=3),
    "text: cuckoo, 6 levels": TEXT,
    "text: cuckoo, 8 levels": TEXT._replace(levels=8),
    "text: cuckoo, 6 levels, rate 0.01": TEXT._replace(rate=0.01),
    "text: min-wise without loss, 3 levels": TEXT._replace(levels=3, text_filter="minwise"),
    "text: min-wise without loss, 32 merged": TEXT._replace(text_filter="minwise", most=32),
    "text: min-wise estimated, 32 merged": TEXT._replace(text_filter="approximate", most=32),
    "text: min-wise as printed, 32 merged": TEXT._replace(text_filter="printed", most=32),
}


class Optimum(NamedTuple):
    """`useful` bool[messages]: of use to anybody; to how many `subscribers`; whether plain Python says the `same`."""

    useful: np.ndarray
    subscribers: int
    same: bool


def filter_speed(items: int, rate: float = 0.01, rounds: int = 5) -> dict[str, Any]:
    """Insertions, lookups and deletions a second of a filter that is filled to 95 %, in batches: thread time."""
    rng = np.random.default_rng(1)
    members = rng.permutation(np.unique(rng.integers(0, 2**40, items)))
    strangers = rng.integers(2**41, 2**42, 1_000_000)
    made = CuckooFilter(members.size, rate)
    figures: dict[str, Any] = {}

    def one(step: str, turn: int) -> float:
        nonlocal made
        if step == "insert":
            made = CuckooFilter(members.size, rate)
            made.words[:] = 0  # the pages are there before the clock runs
        given = strangers if step == "stranger" else members
        call = {"insert": made.insert, "delete": made.delete}.get(step, made.contains)
        begun = thread_time()
        answer = call(given)
        took = (thread_time() - begun) / given.size
        if step == "stranger":
            figures.update(load=made.load, bits_per_item=made.nbytes * 8 / members.size)
            figures.update(false_positives=float(answer.mean()), formula=made.expected_rate)
        elif step != "delete":
            assert np.sum(answer) == members.size, "a filter that loses members is no filter"
        return took

    turns = in_turns(("insert", "lookup", "stranger", "delete"), rounds, one)
    speeds = {f"{step}s_per_s": 1.0 / median(times) for step, times in turns.items()}
    best = {f"{step}s_per_s_best": 1.0 / min(times) for step, times in turns.items()}
    off = {"off_formula": figures["false_positives"] / figures["formula"] - 1.0}
    return {"items": members.size, "rate": rate, "rounds": rounds, **figures, **off, **speeds, **best}


def optimum(table: SubscriptionTable, messages: MessageBatch) -> Optimum:
    """Which messages match a subscription, or are a candidate of a skyline. O(pairs)."""
    numbers = np.zeros(len(table), np.bool_)
    useful = np.zeros(len(messages), np.bool_)
    for row, number in _pairs(table, messages):
        useful[row], numbers[number] = True, True
    few = messages.take(np.arange(min(_CHECKED[0], len(messages)))), table.take(np.arange(min(_CHECKED[1], len(table))))
    found = {pair for rows, found in _pairs(few[1], few[0]) for pair in zip(rows.tolist(), found.tolist(), strict=True)}
    wanted = {
        (row, one.number)
        for one in subscriptions_of(few[1])
        for row, message in enumerate(messages_of(few[0]))
        if (common_terms(one, message) and skyline_scores(one, message) if one.kind == SKYLINE
            else boolean_match(one, message))
    }  # fmt: skip
    return Optimum(useful, int(numbers.sum()), found == wanted)


def _pairs(table: SubscriptionTable, messages: MessageBatch) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Rows of messages and numbers of subscriptions, by the index of the kind, batch by batch."""
    skylines, index = SkylineSubscriptions(WORLD), CellTerm(WORLD)
    if table.kind[0] == SKYLINE:
        skylines.insert(table)
    else:
        index.insert(table)
    for rows in _batches(messages):
        if table.kind[0] == SKYLINE:
            hits = skylines.match(messages.take(rows))
            yield rows[0] + hits.row, skylines.slots.number[hits.slot]
        else:
            found = index.match(messages.take(rows))
            yield rows[0] + found.row, found.number


def _batches(messages: MessageBatch) -> list[Int64]:
    return [np.arange(first, min(first + _BATCH, len(messages))) for first in range(0, len(messages), _BATCH)]


def beside(
    table: SubscriptionTable, messages: MessageBatch, tasks: int, specs: Mapping[str, SignatureSpec], best: Optimum,
    tell: Tell,
) -> dict[str, Any]:  # fmt: skip
    """Send every message its ways by each kind of signature: `held` copies of subscriptions, and `results` by name.

    `exact` says of one that nothing was lost and enough was compared (`benchmarks.verdict`).
    """
    router = LocationRouter(tasks, WORLD, messages.x[:20_000], messages.y[:20_000])
    domains = [router.domain_of(task) for task in range(tasks)]
    held = [table.take(np.flatnonzero(router.held_by(table, task))) for task in range(tasks)]
    owned, useful = [(rows[0], messages.take(rows)) for rows in _batches(messages)], int(best.useful.sum())
    results = {}
    for name, spec in specs.items():
        tell(f"{len(table):,} subscriptions, {tasks} query bolts, {name}")
        board, build_s, counts = SignatureBoard(spec, domains), 0.0, 0
        for task, mine in enumerate(held):
            signature, claims = QuerySignature(spec, domains[task], task), claims_of(mine)
            begun = perf_counter()
            signature.change(claims, claims.take(np.zeros(0, np.int64)))
            patch = signature.patch(0, noted=True)
            build_s += perf_counter() - begun
            assert patch is not None, "a patch is due where something was noted"
            board.apply(patch)
            counts += signature.summary.nbytes
        sent, begun = np.zeros(len(messages), np.bool_), perf_counter()
        for first, part in owned:
            for task in range(tasks):
                rows = router.rows_for(int(table.kind[0]), part, task)
                assert rows is not None
                sent[first + board.wanted(part, rows, task)] = True
        asked_s, lost = perf_counter() - begun, int(np.count_nonzero(best.useful & ~sent))
        cells = [each.cells for each in board.replicas if each.cells is not None]
        results[name] = {
            **verdict(best.same and lost == 0, useful, best.subscribers),
            "lost_share": lost / max(1, useful),
            "let_through_per_message": float(sent.mean()),
            "false_positive_share": float((sent & ~best.useful).sum() / max(1, sent.sum())),
            "bytes": sum(replica.nbytes for replica in board.replicas),
            "bytes_cells": sum(each.nbytes for each in cells),
            "cells": sum(map(len, cells)),
            "pairs": sum(len(each.pairs) for each in board.replicas if each.pairs is not None),
            "count_bytes_at_query_bolts": counts,
            "build_s": build_s,
            "us_per_message": asked_s / len(messages) * 1e6,
        }
    return {"held": sum(map(len, held)), "optimum_per_message": float(best.useful.mean()), "results": results}


def bench(
    subscriptions: Annotated[tuple[int, ...], "how many, one after the other"] = (20_000, 200_000, 1_000_000),
    filters: Annotated[tuple[int, ...], "items of the cuckoo filters"] = (1_000_000, 10_000_000),
    messages: Annotated[int, "that are routed"] = 50_000,
    tasks: Annotated[int, "query bolts"] = 16,
    seed: Annotated[int, "of the workload"] = 0,
    tell: Tell = print,
) -> dict[str, Any]:
    """Filters by themselves and signatures beside each other; exact if what should lose nothing lost nothing."""
    warmup()
    tell("cuckoo filters")
    # others at work make every speed a lower bound
    report: dict[str, Any] = {
        "filters": [filter_speed(items, rate) for items in filters for rate in (0.01, 0.001)], "workloads": []
    }  # fmt: skip
    source = make_messages(messages * 2, seed)
    batch = source.batch.take(np.arange(messages, 2 * messages))
    for count, wide_share in product(subscriptions, (0.0, WIDE_SHARE)):
        table = boolean_subscriptions(source, count, seed, wide_share)
        measured = beside(table, batch, tasks, KINDS, optimum(table, batch), tell)
        workload = {"subscriptions": count, "wide_share": wide_share, "messages": messages, "query_bolts": tasks}
        report["workloads"].append({"workload": workload | {"seed": seed}, **measured})
    every = [row for one in report["workloads"] for row in one["results"].items()]
    return report | {"exact": all(row["exact"] or KINDS[name].loses for name, row in every)}


if __name__ == "__main__":
    sys.exit(command.main(bench))
