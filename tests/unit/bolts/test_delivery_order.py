"""What delivery writes first: whoever follows an external id through the files holds what its subscriptions hold."""

import json
from collections import Counter

import numpy as np
import pytest

from bolts.payloads import Closed, Late
from bolts.replacements import ReplacementOrder
from matching.errors import TopologyError
from matching.model import (
    BOOLEAN,
    CHANGES,
    ENTER,
    KNN,
    LEAVE,
    MATCH,
    TOPK,
    ChangeList,
    Names,
    Removals,
    SubscriptionTable,
    empty,
)
from tests.support.deliveries import boundary, deliver, finish_and_name, ids, make, results, updates

SIZE = 3  # messages in a batch


def changes(batch, added=(), removed=()):
    """Rows of `added` are (number, id, whom it follows, kind)."""
    number, names, follows, kind = zip(*added, strict=True) if added else ((), (), (), ())
    columns = empty(SubscriptionTable)._asdict()
    columns |= {"number": np.array(number, np.int64), "kind": np.array(kind, np.int8)}
    gone = np.array(removed, np.int64)
    table = SubscriptionTable(**columns)
    ended = Removals(gone, gone.astype(np.int8), gone)
    return ChangeList(batch, table, Names.of(list(names)), ended, np.array(follows, np.int64))


def enter(batch, number, seq, change=ENTER):
    return (batch * SIZE + SIZE - 1, number, seq, change, 0.5)


def leave(batch, number, seq):
    return enter(batch, number, seq, LEAVE)


def match(number, seq):
    return (seq, number, seq, MATCH, np.nan)


def play(bolt, number, told, *rows_of_tasks, added=(), removed=()):
    """Deliver a whole batch: `told` and the rows are for each query task, in the order of the tasks."""
    at = boundary(number, SIZE)
    deliver(bolt, changes(number, added, removed), ids(at))
    for task, (complete, rows) in enumerate(zip(told, rows_of_tasks, strict=True)):
        deliver(bolt, Closed(at, complete, updates(*rows)), task=task)


def written(bolt, tmp_path, tasks):
    """What follows the end: (id, change, seq) in the order of the file."""
    for task in range(tasks):
        deliver(bolt, results(), task=task)
    finish_and_name(bolt)
    lines = (tmp_path / "run" / "updates" / "part-00000.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert all(row["message_id"] == f"message {row['seq']}" for row in rows)
    return [(row["subscription_id"], row["change"], row["seq"]) for row in rows]


def test_delivery_successor_at_an_earlier_task_is_written_after_its_predecessor_of_the_same_batch(tmp_path):
    bolt, _ = make(tmp_path, query_tasks=2, sink="jsonl")
    play(bolt, 0, (0, 0), [], [enter(0, 0, 1)], added=[(0, "a", -1, TOPK), (1, "b", -1, TOPK)])
    first = [enter(1, 2, 4), enter(1, 1, 5)]
    play(bolt, 1, (1, 1), first, [leave(1, 0, 1)], added=[(2, "a", 0, TOPK)], removed=[0])
    assert bolt.report()["held_back"] == 1
    play(bolt, 2, (2, 2), [leave(2, 2, 4)], [])
    assert written(bolt, tmp_path, 2) == [
        ("a", "enter", 1),
        ("b", "enter", 5),  # nobody else has to wait
        ("a", "leave", 1),
        ("a", "enter", 4),
        ("a", "leave", 4),
    ]
    assert bolt.report()["held_back"] == 1 and bolt.report()["updates"] == {"match": 0, "enter": 3, "leave": 2}


def test_delivery_predecessor_that_is_told_late_comes_first_all_the_same(tmp_path):
    """Task 1 waits for a refill since batch 1; its subscription is replaced in batch 2 by one of task 0."""
    bolt, context = make(tmp_path, query_tasks=2, sink="jsonl", slack=8)
    play(bolt, 0, (0, 0), [], [enter(0, 0, 1)], added=[(0, "a", -1, TOPK)])
    play(bolt, 1, (1, 0), [], [])
    play(bolt, 2, (2, 0), [enter(2, 1, 6), enter(2, 1, 7)], [], added=[(1, "a", 0, TOPK)], removed=[0])
    play(bolt, 3, (3, 0), [leave(3, 1, 6), enter(3, 1, 9)], [])
    assert bolt.report()["updates"]["enter"] == 1, "no update of the successor is written yet"
    assert context.acknowledged == [0, 1, 2, 3] and len(context.latencies) == 1
    context.clock_s = 200.0
    deliver(bolt, Late(1, updates(leave(1, 0, 1), enter(1, 0, 3))), task=1)
    assert bolt.report()["updates"]["leave"] == 1, "batch 2 is not told to its end"
    deliver(bolt, Late(3, updates(leave(2, 0, 3))), task=1)
    assert sum(rows for seconds, rows in context.latencies if seconds == 110.0) == 7
    play(bolt, 4, (4, 4), [leave(4, 1, 7)], [])
    assert written(bolt, tmp_path, 2) == [
        ("a", "enter", 1),
        ("a", "leave", 1),
        ("a", "enter", 3),
        ("a", "leave", 3),
        ("a", "enter", 6),
        ("a", "enter", 7),
        ("a", "leave", 6),
        ("a", "enter", 9),
        ("a", "leave", 7),
    ]
    assert bolt.report()["held_back"] == 4


def test_delivery_chain_of_successors_is_written_in_the_order_of_the_chain(tmp_path):
    """Each at a task of its own, the first ones late; the middle one is told late, too, after its predecessor."""
    bolt, _ = make(tmp_path, query_tasks=3, sink="jsonl", slack=8)
    play(bolt, 0, (0, 0, 0), [enter(0, 0, 0)], [], [], added=[(0, "a", -1, TOPK)])
    play(bolt, 1, (0, 1, 1), [], [enter(1, 1, 3)], [], added=[(1, "a", 0, TOPK)], removed=[0])
    play(bolt, 2, (0, 1, 2), [], [], [enter(2, 2, 6)], added=[(2, "a", 1, TOPK)], removed=[1])
    play(bolt, 3, (0, 1, 3), [], [], [match(3, 10), match(3, 11)], added=[(3, "a", 2, BOOLEAN)], removed=[2])
    deliver(bolt, Late(3, updates(leave(3, 2, 6))), task=2)
    deliver(bolt, Late(3, updates(leave(2, 1, 3))), task=1)
    assert bolt.report()["updates"]["enter"] == 1, "the chain hangs at its first link"
    deliver(bolt, Late(3, updates(leave(1, 0, 0))), task=0)
    assert written(bolt, tmp_path, 3) == [
        ("a", "enter", 0),
        ("a", "leave", 0),
        ("a", "enter", 3),
        ("a", "leave", 3),
        ("a", "enter", 6),
        ("a", "leave", 6),
        ("a", "match", 10),
        ("a", "match", 11),
    ]
    assert bolt.report()["held_back"] == 6


def test_delivery_chain_comes_free_link_by_link(tmp_path):
    bolt, _ = make(tmp_path, query_tasks=2, sink="jsonl", slack=8)
    play(bolt, 0, (0, 0), [], [enter(0, 0, 0)], added=[(0, "a", -1, TOPK)])
    play(bolt, 1, (1, 0), [enter(1, 1, 3)], [], added=[(1, "a", 0, TOPK)], removed=[0])
    play(bolt, 2, (2, 0), [leave(2, 1, 3), enter(2, 2, 6)], [], added=[(2, "a", 1, TOPK)], removed=[1])
    deliver(bolt, Late(1, updates(leave(1, 0, 0))), task=1)
    assert bolt.report()["updates"] == {"match": 0, "enter": 2, "leave": 2}, "of the last link nothing yet"
    deliver(bolt, Late(2, updates()), task=1)
    assert written(bolt, tmp_path, 2)[-2:] == [("a", "leave", 3), ("a", "enter", 6)]


@pytest.mark.parametrize("kinds", [(TOPK, BOOLEAN), (BOOLEAN, TOPK), (BOOLEAN, BOOLEAN), (TOPK, KNN)])
def test_delivery_successor_of_another_kind_waits_as_well(tmp_path, kinds):
    """In the batch of the change the one tells up to a seq, the other from there on; the successor's task is first."""
    bolt, _ = make(tmp_path, query_tasks=2, sink="jsonl")
    old, new = kinds
    play(bolt, 0, (0, 0), [], [enter(0, 0, 0)] if old == TOPK else [match(0, 0)], added=[(0, "a", -1, old)])
    before = [leave(1, 0, 0)] if old == TOPK else [match(0, 3)]
    after = [match(1, 4), match(1, 5)] if new == BOOLEAN else [enter(1, 1, 4)]
    play(bolt, 1, (1, 1), after, before, added=[(1, "a", 0, new)], removed=[0])
    rows = written(bolt, tmp_path, 2)
    assert [seq for _, _, seq in rows] == [0, before[0][2], *(row[2] for row in after)]
    assert [change for _, change, _ in rows[1:]] == [CHANGES[row[3]] for row in before + after]
    assert bolt.report()["held_back"] == len(after)


def test_delivery_subscribed_again_waits_for_the_end_of_the_one_before(tmp_path):
    """Unsubscribed in batch 1 while it waits for a refill, subscribed again in batch 3."""
    bolt, _ = make(tmp_path, query_tasks=2, sink="jsonl", slack=8)
    play(bolt, 0, (0, 0), [], [enter(0, 0, 0)], added=[(0, "a", -1, TOPK)])
    play(bolt, 1, (1, 0), [], [], removed=[0])
    play(bolt, 2, (2, 0), [], [])
    play(bolt, 3, (3, 0), [enter(3, 1, 9)], [], added=[(1, "a", 0, TOPK)])
    deliver(bolt, Late(3, updates(leave(1, 0, 0))), task=1)
    assert written(bolt, tmp_path, 2) == [("a", "enter", 0), ("a", "leave", 0), ("a", "enter", 9)]
    assert bolt.report()["held_back"] == 1


def test_delivery_subscribed_again_after_the_end_was_told_does_not_wait(tmp_path):
    """Although task 1 is behind again, since batch 3, for somebody else."""
    bolt, _ = make(tmp_path, query_tasks=2, sink="jsonl", slack=8)
    play(bolt, 0, (0, 0), [], [enter(0, 0, 0)], added=[(0, "a", -1, TOPK), (1, "b", -1, TOPK)])
    play(bolt, 1, (1, 1), [], [leave(1, 0, 0)], removed=[0])
    play(bolt, 2, (2, 2), [], [])
    play(bolt, 3, (3, 2), [], [])
    play(bolt, 4, (4, 2), [enter(4, 2, 12)], [], added=[(2, "a", 0, TOPK)])
    assert bolt.report()["updates"]["enter"] == 2 and bolt.report()["held_back"] == 0
    deliver(bolt, Late(4, updates()), task=1)
    assert len(written(bolt, tmp_path, 2)) == 3


def test_delivery_message_ids_stay_as_long_as_updates_wait(tmp_path):
    """600 batches behind: far more than the window holds, and than are kept before it pays to give ids up."""
    bolt, _ = make(tmp_path, query_tasks=2, sink="jsonl", slack=1000)
    play(bolt, 0, (0, 0), [], [enter(0, 0, 1)], added=[(0, "a", -1, TOPK)])
    play(bolt, 1, (1, 0), [enter(1, 1, 4)], [], added=[(1, "a", 0, TOPK)], removed=[0])
    for number in range(2, 600):
        play(bolt, number, (number, 0), [leave(4, 1, 4)] if number == 4 else [], [])
    deliver(bolt, Late(599, updates(leave(1, 0, 1))), task=1)
    play(bolt, 600, (600, 600), [], [])
    assert bolt.messages.first > 1000, "nothing was given up"
    assert written(bolt, tmp_path, 2)[1:] == [("a", "leave", 1), ("a", "enter", 4), ("a", "leave", 4)]


@pytest.mark.parametrize("seed", range(6))
def test_delivery_random_successions_read_in_file_order_are_right(tmp_path, seed):
    """Many ids that change hands between tasks, some of which are late: a reader never stumbles, and ends right."""
    rng = np.random.default_rng(seed)
    tasks, batches = 4, 60
    bolt, _ = make(tmp_path, query_tasks=tasks, sink="jsonl", slack=8)
    owner: dict[str, tuple[int, int]] = {}  # id -> number, task
    last: dict[str, int] = {}
    holds: dict[int, set[int]] = {}
    defer: list[list] = [[] for _ in range(tasks)]
    next_number, expected = 0, Counter()
    for batch in range(batches):
        added, removed, ended = [], [], []
        for name in ("a", "b", "c", "d", "e"):
            if name in owner and rng.random() < 0.3:
                ended.append(owner.pop(name))
                removed.append(ended[-1][0])
            if name not in owner and rng.random() < 0.7:
                owner[name] = next_number, int(rng.integers(tasks))
                added.append((next_number, name, last.get(name, -1), TOPK))
                last[name], holds[next_number] = next_number, set()
                next_number += 1
        rows: list[list] = [[] for _ in range(tasks)]
        for number, task in ended:
            rows[task] += [leave(batch, number, seq) for seq in sorted(holds[number])]
            holds[number] = set()
        for number, task in owner.values():
            came = set(rng.choice(np.arange(batch * SIZE, batch * SIZE + SIZE), 2, replace=False).tolist())
            left = {seq for seq in holds[number] if rng.random() < 0.5 or seq <= batch * SIZE - 10}
            rows[task] += [leave(batch, number, seq) for seq in sorted(left)]
            rows[task] += [enter(batch, number, seq) for seq in sorted(came)]
            holds[number] = holds[number] - left | came
        expected.update(row for of_task in rows for row in of_task)
        told = []
        for task in range(tasks):
            if defer[task] or rng.random() < 0.4:
                defer[task].append(rows[task])
                rows[task] = []
            told.append(batch - len(defer[task]))
        play(bolt, batch, told, *rows, added=added, removed=removed)
        for task in rng.permutation(tasks).tolist():
            if defer[task] and (rng.random() < 0.4 or batch == batches - 1):
                rows_late = [row for of_batch in defer[task] for row in of_batch]
                defer[task] = []
                deliver(bolt, Late(batch, updates(*rows_late)), task=task)
    held: dict[str, set[int]] = {}
    for name, change, seq in written(bolt, tmp_path, tasks):
        of_id = held.setdefault(name, set())
        assert (seq in of_id) == (change == "leave"), f"{change} of {seq} for {name}, which holds {of_id}"
        of_id ^= {seq}
    assert held == {name: holds[owner[name][0]] if name in owner else set() for name in held}
    assert sum(bolt.report()["updates"].values()) == sum(expected.values()) > 500
    assert bolt.report()["held_back"] > 50


def test_succession_keeps_nothing_where_no_id_comes_back():
    succession = ReplacementOrder()
    table = changes(0, [(0, "a", -1, TOPK)])
    for batch, told in enumerate((-1, -1, 1, 2)):
        succession.change(table._replace(batch=batch), told)
        rows = updates(enter(batch, 0, 1))
        assert succession.admit(rows) is rows and succession.release(told) is None
        succession.change(changes(batch, removed=[0])._replace(follows=None), told)
    assert len(succession) == succession.held_back == 0
    assert [batch for batch, _ in succession._removals] == [3]
    assert not succession._waiting.size and not succession._delayed


def test_succession_frees_what_waited():
    succession = ReplacementOrder()
    succession.change(changes(0, [(0, "a", -1, TOPK), (1, "b", -1, TOPK)]), -1)
    succession.change(changes(1, [(2, "a", 0, TOPK)], [0]), 0)
    succession.change(changes(2, [(3, "b", 1, TOPK)], [1]), 0)
    assert len(succession.admit(updates(enter(2, 3, 6), enter(2, 2, 7), enter(2, 9, 8)))) == 1
    assert len(succession) == 2
    released = succession.release(1)
    assert released is not None and released.number.tolist() == [2] and len(succession) == 1
    assert succession.release(1) is None
    released = succession.release(2)
    assert released is not None and released.number.tolist() == [3] and len(succession) == 0
    assert not succession._waiting.size and not succession._delayed and succession.held_back == 2


def test_delivery_impossible_follows_raise(tmp_path):
    for follows in ([1], [-2], [0, 0], []):
        bolt, _ = make(tmp_path / str(follows))
        change = changes(0, [(0, "a", -1, TOPK)])._replace(follows=np.array(follows, np.int64))
        deliver(bolt, change, ids(boundary(0)))
        with pytest.raises(TopologyError, match="change list 0: `follows`"):
            deliver(bolt, Closed(boundary(0), 0, updates()))


def test_delivery_updates_left_waiting_at_the_end_raise(tmp_path):
    class NeverReleases(ReplacementOrder):
        def release(self, told):
            return None

    bolt, _ = make(tmp_path)
    bolt.replacements = NeverReleases()
    play(bolt, 0, (0,), [], added=[(0, "a", -1, TOPK)])
    play(bolt, 1, (1,), [enter(1, 1, 4)], added=[(1, "a", 0, TOPK)], removed=[0])
    deliver(bolt, results())
    with pytest.raises(TopologyError, match="1 updates are still delayed until those of the subscr"):
        finish_and_name(bolt)
