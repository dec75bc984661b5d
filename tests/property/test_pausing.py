"""A run that is paused and continued tells what an uninterrupted one tells, behind whatever batch, by however many."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.resumable_topologies import ledger
from topology.core.executors.local import pause_local, run_local

BATCHES = 12


def figures(report):
    """What must not depend on pauses, tasks and interleaving."""
    told = {}
    for name, component in report.components.items():
        for task in component.tasks:
            for figure, value in task.figures.items():
                if figure != "digest":
                    told[name, figure] = told.get((name, figure), 0) + value
    return told | {"digest": report.components["ledger"].tasks[0].figures["digest"]}


@pytest.fixture(scope="module")
def whole():
    told = figures(run_local(ledger(BATCHES)))
    assert told["count", "late"] > 20 and told["count", "ruled"] > told["count", "late"], "too little was judged"
    return told


@pytest.mark.parametrize("after", range(-1, BATCHES))
def test_pause_local_behind_every_batch_and_continued_tells_the_same(after, whole):
    saved = pause_local(ledger(BATCHES), after)
    assert saved.number == after
    report = run_local(ledger(BATCHES), resume=saved)
    assert figures(report) == whole
    assert report.published == report.acknowledged == BATCHES - 1 - after


tasks = st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 3), st.integers(1, 4))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), stops=st.sets(st.integers(-1, BATCHES - 1), min_size=1), sizes=st.data())
def test_pause_local_any_pauses_with_any_tasks_tell_the_same(whole, seed, stops, sizes):
    saved = None
    for after in sorted(stops):
        saved = pause_local(ledger(BATCHES, 30, *sizes.draw(tasks)), after, seed=seed, resume=saved)
    assert figures(run_local(ledger(BATCHES, 30, *sizes.draw(tasks)), seed=seed, resume=saved)) == whole


def test_pause_local_at_once_again_saves_the_same(whole):
    saved = pause_local(ledger(BATCHES), 5)
    again = pause_local(ledger(BATCHES), 5, seed=3, resume=saved)
    assert again.number == 5 and list(again.parts) == list(saved.parts)
    for name, said in saved.parts.items():
        for mine, theirs in zip(said, again.parts[name], strict=True):
            if name == "deal":  # dealt out anew: the first task takes it all
                continue
            assert {key: value.tolist() for key, value in mine.items() if key != "late"} == {
                key: value.tolist() for key, value in theirs.items() if key != "late"
            }
