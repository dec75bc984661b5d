"""A delivery bolt and what it is sent."""

from collections import Counter

import numpy as np

from bolts.delivery import DeliveryBolt
from bolts.payloads import Closed, Late, MessageIds
from matching.model import (
    BOOLEAN,
    KNN,
    ChangeList,
    Names,
    Removals,
    ResultBatch,
    SubscriptionTable,
    UpdateBatch,
    empty,
)
from matching.window import Boundary, Window
from topology.core.api.component import Delivery
from topology.core.checkpoint.coordinator import publish_all

WINDOW = Window("count", 10)


class RecordingContext:
    """Keeps acknowledgements and latencies; `now` moves by hand."""

    component, task, tasks = "delivery", 0, 1
    incarnation = 0

    def __init__(self, query_tasks=1):
        self.query_tasks = query_tasks
        self.acknowledged = []
        self.latencies = []
        self.counters = Counter()
        self.clock_s = 100.0

    def size_of(self, component):
        assert component == "query"
        return self.query_tasks

    def acknowledge(self, batch):
        self.acknowledged.append(batch)

    def count(self, name, amount=1):
        self.counters[name] += amount

    def record_latency(self, seconds, counts=1):
        self.latencies += list(zip(np.atleast_1d(seconds).tolist(), np.atleast_1d(counts).tolist(), strict=True))

    def now(self):
        return self.clock_s


def make(tmp_path, query_tasks=1, window=WINDOW, slack=2, **options):
    context = RecordingContext(query_tasks)
    bolt = DeliveryBolt(str(tmp_path / "run"), window, slack, **{"cumulative": (KNN,), **options})
    bolt.prepare(context)
    return bolt, context


def finish_and_name(bolt):
    """End the bolt and name its files, as an executor does."""
    bolt.finish()
    publish_all(bolt.outputs())


def boundary(number, size=3, window=10):
    last = number * size + size - 1
    return Boundary(number, number * size, last, last - window)


def ids(at, published_s=90.0, prefix="message"):
    return MessageIds(at, published_s, Names.of([f"{prefix} {seq}" for seq in range(at.first_seq, at.last_seq + 1)]))


def changes(batch, numbers=(), kind=BOOLEAN, removed=()):
    numbers = np.array(numbers, np.int64)
    columns = empty(SubscriptionTable)._asdict()
    columns |= {"number": numbers, "kind": np.full(len(numbers), kind, np.int8), "at": np.zeros(len(numbers), np.int64)}
    gone = np.array(removed, np.int64)
    names = Names.of([f"abo {n}" for n in numbers])
    return ChangeList(batch, SubscriptionTable(**columns), names, Removals(gone, gone.astype(np.int8), gone))


def updates(*rows):
    as_of, number, seq, change, score = zip(*rows, strict=True) if rows else ((), (), (), (), ())
    return UpdateBatch(
        np.array(as_of, np.int64),
        np.array(number, np.int64),
        np.array(seq, np.int64),
        np.array(change, np.int8),
        np.array(score, np.float64),
    )


def results(*rows, text_score=None):
    number, rank, seq, score = zip(*rows, strict=True) if rows else ((), (), (), ())
    text = None if text_score is None else np.array(text_score, np.float64)
    return ResultBatch(
        np.array(number, np.int64), np.array(rank, np.int32), np.array(seq, np.int64), np.array(score, np.float64), text
    )


def deliver(bolt, *payloads, task=0):
    streams = {Closed: "updates", Late: "late", ChangeList: "changes", MessageIds: "ids", ResultBatch: "results"}
    for payload in payloads:
        bolt.execute(Delivery(streams[type(payload)], "any", task, payload))


def run_batch(bolt, number, *rows, complete=None, added=(), kind=BOOLEAN, removed=(), at=None):
    at = at or boundary(number)
    closed = Closed(at, number if complete is None else complete, updates(*rows))
    deliver(bolt, changes(number, added, kind, removed), ids(at), closed)
