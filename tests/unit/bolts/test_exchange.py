"""What query tasks find for each other: one marker a batch for every home; no batch closes before all have spoken."""

from collections import deque
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bolts.exchange import Exchange
from bolts.payloads import Addressed
from matching.errors import TopologyError
from matching.operator import Matched


class Finds(NamedTuple):
    """What one task found in a batch for one home."""

    number: np.ndarray
    batch: int = -1
    by: int = -1


class Link:
    """A query task's context, as far as an exchange asks for it: what it sends lies in a queue for each receiver."""

    def __init__(self, task: int, tasks: int):
        self.task, self.tasks = task, tasks
        self.sent: list[deque[Addressed]] = [deque() for _ in range(tasks)]

    def emit(self, stream: str, payload: Any, *, to: int | None = None, key: int | None = None) -> None:
        assert stream == "hits" and to is not None and key is None
        self.sent[to].append(payload)


def exchange(task: int, tasks: int = 3, first: int = 0) -> tuple[Exchange, Link]:
    link = Link(task, tasks)
    return Exchange(4, link, first), link  # type: ignore[arg-type]


def holders(*rows: tuple[int, ...], tasks: int = 3) -> np.ndarray:
    """bool[rows, tasks]: who holds each subscription."""
    held = np.zeros((len(rows), tasks), np.bool_)
    for row, who in enumerate(rows):
        held[row, list(who)] = True
    return held


def matched(batch: int, by: int, *rows: int, tasks: int = 3) -> Matched:
    """A batch in which a task has found so many pairs for each home."""
    counts = rows or (0,) * tasks
    return Matched(f"own {batch}", tuple(Finds(np.arange(count), batch, by) for count in counts))


def closed(one: Exchange) -> list[tuple[str, list[tuple[int, int]]]]:
    """What can be closed: (own, [(batch, found by)])."""
    return [(mine, [(each.batch, each.by) for each in found]) for mine, found in one.ready()]


def test_exchange_without_shared_subscriptions_sends_nothing_and_waits_for_nobody():
    one, link = exchange(1)
    one.note(np.array([1, 0]), holders((1,), (0,)))
    for batch in range(3):
        one.put(batch, matched(batch, 1))
        assert closed(one) == [(f"own {batch}", [])]
    assert not any(link.sent) and one.sent == 0


def test_exchange_tells_every_home_it_holds_for_once_a_batch_with_finds_or_without():
    one, link = exchange(0)
    one.note(np.array([0, 2, 1]), holders((0, 1), (0, 2), (1, 2)))
    one.put(0, matched(0, 0, 5, 7, 2))
    one.put(1, matched(1, 0, 3, 0, 0))
    assert [len(queue) for queue in link.sent] == [0, 0, 2], "not to itself, not to a home it holds nothing of"
    for batch, payload in enumerate(link.sent[2]):
        assert payload[:3] == (4, 2, batch) and payload.body.number.size == (2, 0)[batch]
    assert one.sent == 2


def test_exchange_closes_in_order_once_everybody_who_holds_has_spoken():
    one, _ = exchange(0)
    one.note(np.array([0, 0]), holders((0, 1), (2, 0)))
    one.put(0, matched(0, 0))
    one.put(1, matched(1, 0))
    one.receive(Addressed(4, 0, 1, Finds(np.arange(1), 1, 1)), 1)
    one.receive(Addressed(4, 0, 0, Finds(np.arange(1), 0, 2)), 2)
    assert closed(one) == [] and "'hits' from sender 1" in one.inputs.missing()
    one.receive(Addressed(4, 0, 0, Finds(np.arange(1), 0, 1)), 1)
    assert closed(one) == [("own 0", [(0, 1), (0, 2)])]
    one.receive(Addressed(4, 0, 1, Finds(np.arange(1), 1, 2)), 2)
    assert closed(one) == [("own 1", [(1, 1), (1, 2)])]


def test_exchange_hears_of_a_batch_that_it_has_not_matched_itself():
    one, _ = exchange(2)
    one.receive(Addressed(4, 2, 0, Finds(np.arange(1), 0, 0)), 0)
    assert closed(one) == []
    one.note(np.array([2]), holders((0, 2)))
    one.put(0, matched(0, 2))
    assert closed(one) == [("own 0", [(0, 0)])]


def test_exchange_goes_on_waiting_for_who_held_something_once():
    """All tasks must agree who speaks; nobody takes back what it has said it would."""
    one, other = exchange(0), exchange(1)
    for each, _ in (one, other):
        each.note(np.array([0]), holders((0, 1)))
        each.note(np.array([0]), holders((0,)))
    other[0].put(0, matched(0, 1))
    one[0].put(0, matched(0, 0))
    assert closed(one[0]) == []
    one[0].receive(other[1].sent[0].popleft(), 1)
    assert closed(one[0]) == [("own 0", [(0, 1)])]


def test_exchange_begun_behind_a_batch_takes_from_there():
    one, _ = exchange(0, first=7)
    one.put(8, matched(8, 0))
    assert closed(one) == []
    one.put(7, matched(7, 0))
    assert [mine for mine, _ in closed(one)] == ["own 7", "own 8"]
    with pytest.raises(TopologyError, match="query:0 as home of kind 4: batch 6"):
        one.put(6, matched(6, 0))


def test_exchange_word_that_comes_twice_or_from_nobody_raises():
    one, _ = exchange(0)
    one.note(np.array([0]), holders((0, 1)))
    word = Addressed(4, 0, 0, Finds(np.arange(1), 0, 1))
    one.receive(word, 1)
    with pytest.raises(TopologyError, match="came twice"):
        one.receive(word, 1)
    one.put(0, matched(0, 0))
    with pytest.raises(TopologyError, match="came twice"):
        one.receive(word, 2)  # task 2 holds nothing that is at home here


@settings(max_examples=80, deadline=None)
@given(tasks=st.integers(1, 4), batches=st.integers(1, 6), data=st.data())
def test_exchanges_in_any_order_of_delivery_close_every_batch_with_all_that_was_found(tasks, batches, data):
    links = [Link(task, tasks) for task in range(tasks)]
    exchanges = [Exchange(4, link) for link in links]  # type: ignore[arg-type]
    holds = np.zeros((tasks, tasks), np.bool_)
    expected: list[list[list[tuple[int, int]]]] = [[] for _ in range(tasks)]
    changes = []
    for batch in range(batches):
        rows = data.draw(st.integers(0, 3))
        home = np.array(data.draw(st.lists(st.integers(0, tasks - 1), min_size=rows, max_size=rows)), np.int64)
        held = np.array(
            data.draw(st.lists(st.lists(st.booleans(), min_size=tasks, max_size=tasks), min_size=rows, max_size=rows)),
            np.bool_,
        ).reshape(rows, tasks)
        changes.append((home, held))
        for row in range(rows):
            holds[home[row]] |= held[row]
        for task in range(tasks):
            expected[task].append([(batch, by) for by in range(tasks) if by != task and holds[task, by]])
    told: list[list] = [[] for _ in range(tasks)]
    following = [0] * tasks
    while True:
        steps = [("put", task) for task in range(tasks) if following[task] < batches]
        steps += [("receive", by, to) for by in range(tasks) for to in range(tasks) if links[by].sent[to]]
        if not steps:
            break
        what, *who = data.draw(st.sampled_from(steps))
        if what == "put":
            (task,) = who
            exchanges[task].note(*changes[following[task]])
            exchanges[task].put(following[task], matched(following[task], task, tasks=tasks))
            following[task] += 1
        else:
            by, task = who
            exchanges[task].receive(links[by].sent[task].popleft(), by)
        told[task] += closed(exchanges[task])
    for task in range(tasks):
        assert told[task] == [(f"own {batch}", found) for batch, found in enumerate(expected[task])]
