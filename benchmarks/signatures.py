"""What signatures save and cost: the cuckoo filter by itself, and each kind of signature over growing workloads.

    python -m benchmarks.signatures [--filters 1000000,10000000] [--subscriptions 20000,200000,1000000]
                                    [--messages N] [--tasks N] [--seed N] > results.json

Subscriptions are boolean ones of `benchmarks.workload`, placed by router `location` on simulated query bolts; messages
come from another draw. The optimum is a message sent only if a subscription matches it, by engine `cell_term`. A kind
of signature that loses a match is lossy, and how many it loses is told; all others must lose none of 1,000 or more
messages. Turns of the filter are medians of interleaved rounds. Each number of subscriptions comes with small squares
alone (up to 1 % of the world's width) and with the workload's usual share of wide ones.
"""

import argparse
import json
import sys
from collections.abc import Callable
from statistics import median
from time import perf_counter, thread_time
from typing import Any

import numpy as np

from benchmarks.provenance import provenance
from benchmarks.verdict import verdict
from benchmarks.workload import WIDE_SHARE, WORLD, boolean_subscriptions, make_messages
from distribution.location import LocationRouter
from distribution.signatures.claims import claims_of
from distribution.signatures.cuckoo import CuckooFilter
from distribution.signatures.signature import QuerySignature, SignatureBoard, SignatureSpec
from distribution.signatures.warmup import warmup
from matching.boolean.engines.cell_term import CellTerm
from matching.model import BOOLEAN, MessageBatch, SubscriptionTable

_BATCH = 5000

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


def filter_speed(items: int, rate: float = 0.01, rounds: int = 5) -> dict[str, Any]:
    """Insertions, lookups and deletions a second of a filter that is filled to 95 %, in batches: thread time."""
    rng = np.random.default_rng(1)
    members = rng.permutation(np.unique(rng.integers(0, 2**40, items)))
    strangers = rng.integers(2**41, 2**42, 1_000_000)
    seconds: dict[str, list[float]] = {"insert": [], "lookup": [], "stranger": [], "delete": []}
    figures: dict[str, Any] = {}
    for _ in range(rounds):
        made = CuckooFilter(members.size, rate)
        made.words[:] = 0  # the pages are there before the clock runs
        steps = (
            ("insert", made.insert, members),
            ("lookup", made.contains, members),
            ("stranger", made.contains, strangers),
        )
        answers = {}
        for step, call, given in steps:
            begun = thread_time()
            answers[step] = call(given)
            seconds[step].append((thread_time() - begun) / given.size)
        assert answers["insert"] == members.size and answers["lookup"].all(), "a filter that loses members is no filter"
        measured = float(answers["stranger"].mean())
        figures = {
            "load": made.load,
            "bits_per_item": made.nbytes * 8 / members.size,
            "false_positives": measured,
            "formula": made.expected_rate,
            "off_formula": measured / made.expected_rate - 1.0,
        }
        begun = thread_time()
        made.delete(members)
        seconds["delete"].append((thread_time() - begun) / members.size)
    speeds = {f"{step}s_per_s": 1.0 / median(times) for step, times in seconds.items()}
    best = {f"{step}s_per_s_best": 1.0 / min(times) for step, times in seconds.items()}
    return {"items": members.size, "rate": rate, "rounds": rounds, **figures, **speeds, **best}


def signatures(
    subscriptions: int, wide_share: float, messages: int, tasks: int, seed: int, tell: Callable[[str], None]
) -> dict[str, Any]:
    """Every kind of signature on one workload."""
    source = make_messages(messages * 2, seed)
    table = boolean_subscriptions(source, subscriptions, seed, wide_share)
    batch = source.batch.take(np.arange(messages, 2 * messages))
    router = LocationRouter(tasks, WORLD, batch.x[:20_000], batch.y[:20_000])
    held = [table.take(np.flatnonzero(router.held_by(table, task))) for task in range(tasks)]
    tell(f"{subscriptions:,} subscriptions: matching, for the optimum")
    useful, subscribers = _matched(table, batch)
    results = [_one(name, spec, router, held, batch, useful, subscribers, tell) for name, spec in KINDS.items()]
    workload = {
        "subscriptions": subscriptions,
        "wide_share": wide_share,
        "held": sum(map(len, held)),
        "messages": messages,
        "query_bolts": tasks,
        "seed": seed,
        "optimum_per_message": float(useful.mean()),
    }
    return {"workload": workload, "results": results}


def _matched(table: SubscriptionTable, messages: MessageBatch) -> tuple[np.ndarray, int]:
    """bool[messages]: matched by anybody; and how many subscriptions match any."""
    engine = CellTerm(WORLD)
    engine.insert(table)
    found, numbers = np.zeros(len(messages), np.bool_), np.zeros(len(table), np.bool_)
    for start in range(0, len(messages), _BATCH):
        rows = np.arange(start, min(start + _BATCH, len(messages)))
        hits = engine.match(messages.take(rows))
        found[start + hits.row], numbers[hits.number] = True, True
    return found, int(numbers.sum())


def _one(
    name: str,
    spec: SignatureSpec,
    router: LocationRouter,
    held: list[SubscriptionTable],
    messages: MessageBatch,
    useful: np.ndarray,
    subscribers: int,
    tell: Callable[[str], None],
) -> dict[str, Any]:
    tell(name)
    domains = [router.domain_of(task) for task in range(router.tasks)]
    board = SignatureBoard(spec, domains)
    seconds, counts = 0.0, 0
    for task, table in enumerate(held):
        signature, claims = QuerySignature(spec, domains[task], task), claims_of(table)
        begun = perf_counter()
        signature.change(claims, claims.take(np.zeros(0, np.int64)))
        patch = signature.patch(0, noted=True)
        seconds += perf_counter() - begun
        assert patch is not None
        board.apply(patch)
        counts += signature.summary.nbytes
    sent = np.zeros(len(messages), np.bool_)
    begun = perf_counter()
    for start in range(0, len(messages), _BATCH):
        part = messages.take(np.arange(start, min(start + _BATCH, len(messages))))
        for task in range(router.tasks):
            rows = router.rows_for(BOOLEAN, part, task)
            assert rows is not None
            sent[start + board.wanted(part, rows, task)] = True
    asked_s = perf_counter() - begun
    lost = int(np.count_nonzero(useful & ~sent))
    return {
        "signature": name,
        **verdict(lost == 0, int(useful.sum()), subscribers),
        "lost_share": lost / max(1, int(useful.sum())),
        "let_through_per_message": float(sent.mean()),
        "false_positive_share": float((sent & ~useful).sum() / max(1, sent.sum())),
        "bytes": sum(replica.nbytes for replica in board.replicas),
        "bytes_cells": sum(each.cells.nbytes for each in board.replicas if each.cells is not None),
        "cells": sum(len(each.cells) for each in board.replicas if each.cells is not None),
        "pairs": sum(len(each.pairs) for each in board.replicas if each.pairs is not None),
        "count_bytes_at_query_bolts": counts,
        "build_s": seconds,
        "us_per_message": asked_s / len(messages) * 1e6,
    }


def main() -> int:
    """Command line; 1 if a signature that should lose nothing lost a match."""
    parser = argparse.ArgumentParser(description="Signatures beside each other.")
    parser.add_argument("--subscriptions", type=lambda text: [int(part) for part in text.split(",")])
    parser.add_argument("--filters", type=lambda text: [int(part) for part in text.split(",")])
    parser.add_argument("--messages", type=int, default=50_000)
    parser.add_argument("--tasks", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    warmup()

    def tell(sentence: str) -> None:
        sys.stderr.write(sentence + "\n")

    tell("cuckoo filters")
    filters = [
        filter_speed(items, rate) for items in given.filters or [1_000_000, 10_000_000] for rate in (0.01, 0.001)
    ]
    workloads = [
        signatures(count, wide_share, given.messages, given.tasks, given.seed, tell)
        for count in given.subscriptions or [20_000, 200_000, 1_000_000]
        for wide_share in (0.0, WIDE_SHARE)
    ]
    # others at work make every speed a lower bound
    sys.stdout.write(json.dumps({"made_by": provenance(), "filters": filters, "workloads": workloads}, indent=1) + "\n")
    return 0 if all(each["exact"] or KINDS[each["signature"]].loses
                    for workload in workloads for each in workload["results"]) else 1  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
