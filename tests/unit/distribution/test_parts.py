"""Parts of the world: every cell has one owner, of about equal weight; prices follow what was measured."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distribution.parts import CELLS, CELLS_A_SIDE, PAR, Loads, cell_of, cut, loads_of, reweighed


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 70), st.sampled_from([0, 1, 30, 5_000]), st.floats(0.01, 1.0))
def test_cut_parts_weigh_within_a_cell_of_the_same(seed, tasks, messages, spread):
    rng = np.random.default_rng(seed)
    weight = loads_of(cell_of(rng.random(messages) * spread, rng.random(messages) * spread)).weight
    owner = cut(weight, tasks)
    assert owner.shape == (CELLS,) and owner.min() >= 0 and owner.max() < tasks
    if messages:
        mine = np.bincount(owner, weight, tasks)
        assert np.all(np.abs(mine - weight.sum() / tasks) <= 1.01 * weight.max() + 2e-3 * weight.sum())
    else:
        assert np.ptp(np.bincount(owner, minlength=tasks)) <= 1, "without a sample all cells are alike"


def run_costs(owner, seen, cost, tasks):
    """What each task works for these messages, where one costs `cost` by its cell."""
    return [int(each) for each in np.bincount(owner, seen * cost, tasks)]


@pytest.mark.parametrize("seed", range(4))
def test_reweighed_parts_come_to_the_same_work_in_a_few_turns(seed):
    """Messages in one half of the world cost up to forty times those in the other: nobody knew."""
    rng, tasks = np.random.default_rng(seed), 5
    x, y = rng.random(20_000), rng.random(20_000)
    cells = cell_of(x, y)
    seen = np.bincount(cells, minlength=CELLS)
    cost = 1_000 * np.where(np.arange(CELLS) % CELLS_A_SIDE < CELLS_A_SIDE // 2, 40, 1)
    loads, worst = loads_of(cells), []
    for _ in range(6):
        owner = cut(loads.weight, tasks)
        work = run_costs(owner, seen, cost, tasks)
        worst.append(max(work) / (sum(work) / tasks))
        loads = reweighed(loads, owner, seen, work)
    assert worst[0] > 1.5 and worst[-1] < 1.15, worst


def test_reweighed_few_messages_say_less_than_the_weights_there_are():
    loads = loads_of(np.arange(CELLS))
    owner, nobody = cut(loads.weight, 2), np.zeros(CELLS, np.int64)
    again = reweighed(loads, owner, nobody, (3, 1))
    assert again.weight[owner == 0].sum() == pytest.approx(3 * again.weight[owner == 1].sum(), rel=0.01)
    owner = cut(again.weight, 2)
    assert np.count_nonzero(owner == 0) == pytest.approx(CELLS * 2 / 3 * 0.5, rel=0.7)
    assert np.count_nonzero(owner == 0) < CELLS / 2


@pytest.mark.parametrize("work", [(0, 0), (0, 5), (10**15, 1)])
def test_reweighed_prices_stay_within_bounds(work):
    loads = loads_of(np.arange(CELLS))
    for _ in range(60):
        loads = reweighed(loads, cut(loads.weight, 2), np.full(CELLS, 10), work)
        assert loads.weight.min() >= 0 and loads.price.min() >= 1 and loads.weight.sum() <= 1 << 28
    assert isinstance(loads, Loads) and loads.price.max() <= 1 << 40 and PAR == 65_536
