"""What a distribution task sends query tasks: parts, or the whole batch once where nearly all of them take it."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bolts.distribution import DistributionBolt
from bolts.payloads import Part, StreamBatch
from bolts.query import QueryBolt
from distribution.location import LocationRouter
from distribution.targets import rows_for
from matching.kinds import KINDS
from matching.model import KEYWORDS_BY_KIND, TOPK, ChangeList, MessageBatch, Names, Removals, SubscriptionTable
from matching.space import EARTH, Space
from matching.window import Boundary, Window
from topology.core.api.component import Delivery

SPACE, TASKS, MESSAGES = Space(*EARTH), 3, 60


class Sent:
    """The context of one of a task's kind, which keeps what it emits."""

    component, task, tasks = "distribution", 0, 1

    def __init__(self) -> None:
        self.emitted: list[tuple[str, Any, int | None]] = []

    def size_of(self, component: str) -> int:
        return {"query": TASKS, "tuples": 1, "distribution": 1}[component]

    def emit(self, stream: str, payload: Any, *, to: int | None = None, key: int | None = None) -> None:
        self.emitted.append((stream, payload, to))


def subscriptions(known: int) -> SubscriptionTable:
    """One of `topk` in the part of each task, all without a threshold; the first `known` of them have word 0."""
    x, words = np.array([0.1, 0.3, 0.9]), (np.arange(3) >= known).astype(np.int32)
    return SubscriptionTable(
        np.arange(3), np.full(3, TOPK, np.int8), np.zeros(3, np.int64), x, np.full(3, 0.25), np.full((3, 4), np.nan),
        np.full(3, KEYWORDS_BY_KIND, np.int8), np.full(3, 2, np.int32), np.full(3, 0.5), np.arange(4), words,
        np.ones(3, np.float32),
    )  # fmt: skip


def batch(rare: int) -> StreamBatch:
    """Messages of words 0 and 1; the first `rare` of word 0 alone."""
    rng, seq = np.random.default_rng(4), np.arange(MESSAGES)
    lon, lat = rng.uniform(-180, 180, MESSAGES), rng.uniform(-90, 90, MESSAGES)
    lengths = np.where(seq < rare, 1, 2)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    terms = (np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)).astype(np.int32)
    weights = np.ones(terms.shape[0], np.float32)
    messages = MessageBatch(seq, *SPACE.project(lon, lat), lon, lat, lon, lat, seq, offsets, terms, weights)
    return StreamBatch(Boundary(0, 0, MESSAGES - 1, -1), messages, Names.of(()))


@pytest.mark.parametrize("rare, stream", [(0, "whole"), (6, "whole"), (50, "parts")])
def test_distribution_sends_the_batch_once_where_nearly_all_tasks_take_nearly_all(rare, stream):
    """And each query task takes just the messages that parts would have."""
    table, given = subscriptions(known=1), batch(rare)
    even = np.random.default_rng(0).random((2, 5_000)) * [[1.0], [0.5]]
    router = LocationRouter(TASKS, SPACE, *even)
    bolt, context = DistributionBolt(router, KINDS), Sent()
    bolt.prepare(context)  # type: ignore[arg-type]
    none = np.zeros(0, np.int64)
    changes = ChangeList(0, table, Names.of(("a", "b", "c")), Removals(none, none.astype(np.int8), none))
    bolt.execute(Delivery("changes", "subscriptions", 0, changes))
    bolt.execute(Delivery("batches", "messages", 0, given))
    wanted = [rows.tolist() for rows in bolt.table.route(given.messages)]
    sent: list[Part] = [payload for name, payload, _ in context.emitted if name == stream]
    assert [to for name, _, to in context.emitted if name in ("whole", "parts")] == (
        [None] if stream == "whole" else [0, 1, 2]
    )
    if stream == "whole":
        part = sent[0]
        assert (part.targets is None) == (not rare), "where all take all, nothing says so"
        if part.targets is not None:
            assert [rows_for(part.targets, task).tolist() for task in range(TASKS)] == wanted
        sent = sent * TASKS
    for task, part in enumerate(sent):
        query = QueryBolt(router, SPACE, Window("count", 10))
        query.context = SimpleNamespace(task=task)  # type: ignore[assignment]
        mine = query._own_part(part)
        assert mine.messages.seq.tolist() == wanted[task] and mine.targets is None
    counts = bolt.report()
    assert counts["sent_to_each_query_task"] == [len(rows) for rows in wanted]
    assert counts["sent"] == sum(map(len, wanted)) and counts["messages"] == MESSAGES
