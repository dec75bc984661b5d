"""Runs of the curve: parts of about the same load however dense the places are, and the same on every task."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distribution.influence import InfluenceRouter
from distribution.runs import RUNS, Runs, codes_of
from matching.kinds import KINDS
from matching.sample_rows import subscriptions
from matching.space import EARTH, Space
from tests.unit.distribution.test_influence import NOBODY, at


def dense(rng, n):
    """Places of which half lie in three towns, each within a cell of `distribution.parts`."""
    towns = rng.random((3, 2))
    which = rng.integers(6, size=n)
    places = np.where((which < 3)[:, None], towns[which % 3] + rng.normal(0, 1e-3, (n, 2)), rng.random((n, 2)))
    return places.T.copy()


def interleaved(x, y):
    """Code of a place by its definition, digit by digit."""
    steps = [min(max(int(np.floor(value * 2**20)), 0), 2**20 - 1) for value in (x, y)]
    return sum(((steps[0] >> bit) & 1) << 2 * bit | ((steps[1] >> bit) & 1) << 2 * bit + 1 for bit in range(20))


@settings(max_examples=200, deadline=None)
@given(st.floats(-0.5, 1.5), st.floats(-0.5, 1.5))
def test_code_interleaves_the_digits_of_both_coordinates(x, y):
    assert codes_of(np.array([x]), np.array([y])).tolist() == [interleaved(x, y)]


@pytest.mark.parametrize("tasks", [1, 7, 20, 64])
def test_parts_of_dense_places_have_about_the_same_load(tasks):
    x, y = dense(np.random.default_rng(3), 20_000)
    runs = Runs.of(tasks, x[::2], y[::2])
    assert runs.start[0] == 0 and np.all(np.diff(runs.start) > 0) and runs.start.shape[0] <= RUNS
    assert np.all(np.diff(runs.owner) >= 0) and runs.owner[-1] == tasks - 1
    for places in ((x[::2], y[::2]), (x[1::2], y[1::2])):
        mine = np.bincount(runs.owner_of(*places), minlength=tasks)
        assert mine.max() < 1.4 * mine.mean() + 3 * np.sqrt(mine.mean())


@pytest.mark.parametrize("messages", [0, 1, 300])
def test_few_places_leave_no_task_without_a_part(messages):
    rng = np.random.default_rng(4)
    runs = Runs.of(9, rng.random(messages), rng.random(messages))
    assert messages == 1 or set(runs.owner.tolist()) == set(range(9))
    assert np.array_equal(runs.run_of(np.array([-1.0, 2.0]), np.array([-1.0, 2.0])), [0, runs.start.shape[0] - 1])


def test_work_that_was_measured_moves_runs_to_other_tasks():
    """Messages in the west cost forty times those elsewhere."""
    x, y = dense(np.random.default_rng(5), 20_000)
    runs, worst = Runs.of(6, x, y), []
    for _ in range(6):
        cost = np.where(x < 0.5, 40, 1) * 1_000
        work = np.bincount(runs.owner_of(x, y), cost, 6).astype(np.int64).tolist()
        worst.append(max(work) / (sum(work) / 6))
        runs = runs.reweighed(np.bincount(runs.run_of(x, y), minlength=runs.start.shape[0]), work)
    assert worst[0] > 1.4 and worst[-1] < 1.15, worst


def test_router_that_resumes_has_the_runs_of_the_checkpoint_reweighed():
    x, y = dense(np.random.default_rng(6), 5_000)
    space = Space(*EARTH)
    router, other = InfluenceRouter(4, space, x, y), InfluenceRouter(4, space, y, x)
    kind = next(kind for kind in KINDS if kind.ranged)
    everybody = subscriptions(kind, np.arange(400), 0)
    tables = [router.table() for _ in range(2)]
    for table in tables:
        table.change(everybody, NOBODY)
        table.route(at(x[:2_500] * 360 - 180, y[:2_500] * 180 - 90, space, np.zeros(2_500, np.int64)))
    states = [table.state() for table in tables]
    same, moved = other.restored(states), other.restored(states, (7, 1, 1, 1))
    assert np.array_equal(same.runs.start, router.runs.start) and np.array_equal(same.runs.owner, router.runs.owner)
    first = [np.count_nonzero(each.runs.owner_of(x, y) == 0) for each in (same, moved)]
    assert first[1] < 0.7 * first[0]
    for each in (same, moved):
        assigned = np.stack([each.assigned_to(everybody, task) for task in range(4)])
        assert np.all(assigned.sum(axis=0) == 1)
        owner = each.runs.owner_of(everybody.x, everybody.y)
        assert np.array_equal(np.argmax(assigned, axis=0), owner)
    restored = other.restored(states, (7, 1, 1, 1)).table().state()
    assert np.array_equal(restored["influence:start"], states[0]["influence:start"])
