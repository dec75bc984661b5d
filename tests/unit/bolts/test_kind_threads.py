"""Kinds matched in threads beside each other: the same results, in the same order, and the first failure."""

import threading

import pytest

import bolts.kind_threads as kind_threads
from bolts.kind_threads import KindThreads
from gateway.load.loadtest import load_plan
from gateway.load.pace import Pace
from topology.core.executors.local import run_local

DEADLINE_S = 20.0


@pytest.fixture
def always(monkeypatch):
    """Threads are used for any batch."""
    monkeypatch.setattr(kind_threads, "_WORTH_S", -1.0)


@pytest.mark.usefixtures("always")
def test_two_jobs_run_at_once_and_results_are_in_the_order_of_jobs():
    both = threading.Barrier(2, timeout=DEADLINE_S)  # passed by two threads or by none

    def job(name):
        both.wait()
        return name, threading.current_thread().name

    found = KindThreads(2).run({key: lambda key=key: job(key) for key in "ba"})
    assert list(found) == ["b", "a"] and [name for name, _ in found.values()] == ["b", "a"]
    assert len({thread for _, thread in found.values()}) == 2


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_first_failure_is_raised_once_all_have_ended(threads):
    ended = []

    def failing(name):
        ended.append(name)
        raise ValueError(name)

    jobs = {"a": lambda: ended.append("a"), "b": lambda: failing("b"), "c": lambda: failing("c")}
    with pytest.raises(ValueError, match="b"):
        KindThreads(threads).run(jobs)
    assert sorted(ended) == ["a", "b", "c"][: 2 if threads == 1 else 3]


def test_short_batches_stay_in_the_calling_thread():
    mine = KindThreads(4)
    for _ in range(3):
        found = mine.run(dict.fromkeys("ab", threading.current_thread))
        assert set(found.values()) == {threading.current_thread()}


def test_first_batch_that_is_expected_to_be_long_is_done_in_threads():
    both = threading.Barrier(2, timeout=DEADLINE_S)
    mine = KindThreads(2)
    mine.expect({"a": 1.0, "b": 2.0})
    assert set(mine.run(dict.fromkeys("ab", both.wait)).values()) == {0, 1}


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize(("query_bolts", "router"), [(1, "hashing"), (3, "location")])
def test_updates_are_the_same_in_threads(query_bolts, router):
    counts = {"boolean": 300, "topk": 300, "decay": 200, "knn": 200, "skyline": 100}
    digests, updates = set(), set()
    for threads in (1, 2, 4):
        plan = load_plan(
            Pace(1e6, 3_000, 250), counts, "count:1000", query_bolts, router, seed=4, query_threads=threads
        )
        (task,) = run_local(plan).components["delivery"].tasks
        digests.add(task.figures["digest"])
        updates.add(sum(task.figures["updates"].values()))
    assert len(digests) == 1 and len(updates) == 1 and min(updates) > 1_000
