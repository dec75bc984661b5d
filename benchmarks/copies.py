"""Copies of a `topk` subscription by router and number of query bolts, with the thresholds that a full window gives.

    python -m benchmarks.copies [--subscriptions 20000] [--window 20000] [--bolts 1,4,16,64] > results.json

The replication of DSkype's four mechanisms; what they send is measured by `benchmarks.routers`. The engine whose
thresholds are taken is held against the oracle first.
"""

import sys
from typing import Annotated, Any

import numpy as np

from benchmarks import command
from benchmarks.cases import make_case
from benchmarks.command import Tell
from benchmarks.harness import Bench
from matching.kinds import KINDS
from matching.storage.prefixes import prefix_lengths, task_of_term


def bench(
    subscriptions: Annotated[int, "live from the start"] = 20_000,
    window: Annotated[int, "messages in it"] = 20_000,
    messages: Annotated[int, "that follow, and are checked"] = 4_000,
    bolts: Annotated[tuple[int, ...], "query bolts"] = (1, 4, 16, 64),
    seed: Annotated[int, "of the workload"] = 0,
    tell: Tell = print,
) -> dict[str, Any]:
    """Copies a subscription, and how many of its terms a router goes by."""
    made = Bench(make_case(KINDS.named("topk"), subscriptions, messages, window, 4, seed), 4)
    running = made.build()
    index = running.operator.engine.subscriptions
    c, slots = index.columns, index.live_slots()
    rows = []
    for name, lengths in (("keyword", c.term_count[slots]), ("prefix", prefix_lengths(c, slots))):
        row = np.repeat(np.arange(slots.shape[0]), lengths)
        ordinal = np.arange(row.shape[0]) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        terms = c.terms[np.repeat(c.term_start[slots], lengths) + ordinal]
        for count in bolts:
            pairs = np.unique(row * count + task_of_term(terms, count)).shape[0]
            rows.append({"router": name, "query_bolts": count, "copies": pairs / slots.shape[0]})
            rows[-1]["terms"] = float(lengths.mean())
            tell(f"{name}, {count} bolts: {rows[-1]['copies']:.2f} copies")
    rows += [
        {"router": name, "query_bolts": count, "copies": 1.0} for name in ("hashing", "location") for count in bolts
    ]
    (judged,) = made.check([running])
    return {"kind": "topk", "workload": made.workload, "rows": rows, **judged}


if __name__ == "__main__":
    from benchmarks import copies

    sys.exit(command.main(copies.bench))
