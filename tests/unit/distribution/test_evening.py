"""Loads evened out by measured work: sums follow it, few are moved, and nobody is lost."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distribution.placement.assign import dealt_out
from distribution.placement.costs import UniformCosts
from distribution.placement.evening import evened
from distribution.placement.placement import Placed
from matching.space import EARTH, Space

COSTS = UniformCosts(Space(*EARTH), np.zeros(0, np.int64), 0)


def loads(placed, tasks):
    return np.bincount(placed.owner, placed.cost, tasks)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 9), st.integers(1, 400))
def test_evened_loads_differ_by_a_cost_or_two_and_only_the_excess_moves(seed, tasks, count):
    rng = np.random.default_rng(seed)
    cost = COSTS.rounded(rng.random(count) * 10)
    before = Placed(dealt_out(cost, tasks), cost)
    number = rng.permutation(10 * count)[:count].astype(np.int64)
    work = [int(each) for each in rng.integers(1, 1000, tasks)]
    after = evened(before, number, work, COSTS)
    assert np.array_equal(after.cost, COSTS.rounded(after.cost)) and np.all(after.cost > 0)
    spread = loads(after, tasks)
    assert spread.max() - spread.sum() / tasks <= 2 * after.cost.max()
    stayed = Placed(before.owner, after.cost)
    excess = np.maximum(loads(stayed, tasks) - spread.sum() / tasks, 0).sum()
    moved = after.cost[after.owner != before.owner].sum()
    assert moved <= excess + 1e-9


def test_evened_tasks_that_worked_alike_keep_what_they_have():
    cost = np.ones(90)
    placed = Placed(np.arange(90) % 3, cost)
    after = evened(placed, np.arange(90), (7, 7, 7), COSTS)
    assert np.array_equal(after.owner, placed.owner) and after.cost == pytest.approx(cost)


def test_evened_busy_task_gives_away_what_makes_the_difference():
    placed = Placed(np.arange(300) % 3, np.ones(300))
    after = evened(placed, np.arange(300), (2, 1, 1), COSTS)
    assert loads(after, 3) == pytest.approx([100, 100, 100], abs=2)
    held = np.bincount(after.owner, minlength=3)
    assert held[0] == pytest.approx(67, abs=2), "of those that cost twice as much, two thirds of as many"
    again = evened(after, np.arange(300), (1, 1, 1), COSTS)
    assert np.array_equal(again.owner, after.owner) or np.count_nonzero(again.owner != after.owner) <= 3
