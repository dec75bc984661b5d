"""The second opinion on kinds with a window, held against the oracle."""

from collections import Counter

import numpy as np
import pytest

from benchmarks.cases import make_case
from benchmarks.driving import NO_REMOVALS
from benchmarks.workload import WORLD
from matching.bulk_oracle import expected
from matching.kinds import KINDS
from matching.model import LEAVE, MessageBatch, SubscriptionTable, empty
from matching.naive import Oracle
from matching.naive_rows import Extras, tally
from matching.window import Boundary


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("kind", ["topk", "skyline"])
def test_recount_expects_what_the_oracle_tells(kind, seed):
    """Messages expire and are ended, coincide, and have equal scores; some subscriptions hold less than k."""
    case = make_case(KINDS.named(kind), 200, 400, 300, 1, seed)
    messages = case.messages
    # to a lattice, so that there are ties
    coarse = {name: np.round(getattr(messages, name), 1) for name in ("x", "y", "west", "east", "south", "north")}
    messages = MessageBatch(**(messages._asdict() | coarse))
    ends = case.ends
    objects = np.arange(len(messages))
    for seq in range(len(messages)):
        if ends is not None and ends[seq] >= 0:
            objects[seq] = objects[ends[seq]]
    cuts = [0, 300, 301, 420, 500, 700]
    boundaries = [
        Boundary(n, a, b - 1, case.window.floor(b - 1, b - 1))
        for n, (a, b) in enumerate(zip(cuts, cuts[1:], strict=False))
    ]
    oracle, told = Oracle(case.window, WORLD.max_distance), Counter()
    for n, boundary in enumerate(boundaries):
        rows = np.arange(boundary.first_seq, boundary.last_seq + 1)
        added = empty(SubscriptionTable) if n else case.table
        updates = oracle.advance(
            boundary, messages.take(rows), added, NO_REMOVALS, Extras(object_id=objects[rows].tolist())
        )
        told += tally(updates) if n else Counter()
    got = expected(messages, case.table, boundaries, WORLD.max_distance, ends)
    assert got.updates == told
    assert got.results == Counter(tuple(value for value in row if value == value) for row in oracle.results())
    assert sum(times for event, times in told.items() if event[3] == LEAVE) > 50 and len(got.results) > 80
    # what is not alive at the first boundary, or later, makes no difference
    alive = messages.take(np.flatnonzero(messages.life > boundaries[2].floor))
    later = expected(alive, case.table, boundaries[2:], WORLD.max_distance, ends)
    assert later.updates == Counter({event: n for event, n in told.items() if event[0] > boundaries[2].last_seq})
    assert later.results == got.results and len(alive) < len(messages)
