"""Engine `ciq` chooses cells by what thresholds are worth now, also where results came before the first message."""

from typing import Any

import numpy as np
import pytest

from benchmarks.cases import make_case
from benchmarks.driving import NO_REMOVALS
from benchmarks.lasting import LastingBench
from benchmarks.workload import TopkRecipe, changed
from matching.kinds import KINDS
from matching.local_engine import LocalEngine
from matching.model import NO_MESSAGES, SubscriptionTable, empty
from matching.storage.state import State
from matching.window import NO_FLOOR, Boundary
from tests.support.celled import check_blocks, check_cells

_DECAY = KINDS.named("decay")
_SUBSCRIPTIONS, _NOBODY = 1_000, empty(SubscriptionTable)


def restored(case, boundary, state, engine="ciq") -> LocalEngine:
    """An engine that goes on behind a boundary."""
    alone = LocalEngine([_DECAY], case.space, case.window, engines={"decay": engine}, fading=case.fading)
    alone.restore(boundary, NO_MESSAGES, {_DECAY.code: state})
    return alone


def advance(alone, case, first, end) -> Boundary:
    """Process a batch of a case."""
    boundary = case.boundary(alone.operator.watermark + 1, first, end)
    alone.process(boundary, case.batch_of(boundary)[0], _NOBODY, NO_REMOVALS)
    return boundary


def engine_of(alone) -> Any:
    return alone.operator.engine


def cells_each(alone) -> float:
    return engine_of(alone).lists.associations / len(alone.operator)


@pytest.fixture(scope="module")
def cases():
    """Messages of five half-lives have passed; by alpha."""
    made = {}
    for alpha in (0.1, 0.5, 0.9):
        recipe = TopkRecipe(_DECAY.recipe.k, alpha=(alpha, alpha))
        case = make_case(_DECAY, _SUBSCRIPTIONS, 200, rounds=2, recipe=recipe, history=100_000)
        made[alpha] = case, LastingBench(case, 2)
    return made


@pytest.mark.parametrize("alpha", [0.1, 0.5, 0.9])
def test_ciq_that_results_were_loaded_into_takes_cells_by_stream_time(cases, alpha):
    case, bench = cases[alpha]
    alone = restored(case, bench._full, bench.filled())
    advance(alone, case, case.filled, case.filled + 100)
    # by the time of the k-th messages it took 1.0, 1.1 and 3.7
    assert 5.6 < cells_each(alone) < 6.6
    check_cells(engine_of(alone))
    check_blocks(engine_of(alone))


def test_ciq_that_is_resumed_takes_the_cells_of_one_that_was_not(cases):
    case, bench = cases[0.5]
    alone, end = restored(case, bench._full, bench.filled()), case.filled + 100
    boundary = advance(alone, case, case.filled, end)
    saved = State.from_arrays(alone.operator.state().arrays())
    again = restored(case, boundary, saved)
    advance(alone, case, end, end + 100)
    advance(again, case, end, end + 100)
    assert abs(cells_each(again) - cells_each(alone)) < 0.3
    assert np.array_equal(again.results().seq, alone.results().seq)


def test_ciq_forgets_subscriptions_that_leave_before_the_first_message(cases):
    case, bench = cases[0.5]
    alone = restored(case, bench._full, bench.filled())
    engine = engine_of(alone)
    engine.remove(engine.find(np.arange(0, _SUBSCRIPTIONS, 2)))
    engine.insert(case.table.take(np.arange(0, _SUBSCRIPTIONS, 4)))
    assert engine.lists.associations < len(engine), "nobody waits for the first message"
    advance(alone, case, case.filled, case.filled + 100)
    check_cells(engine)
    check_blocks(engine)
    assert engine.lists.associations >= len(engine)


def test_ciq_whose_first_messages_have_no_time_goes_on(cases):
    case, bench = cases[0.5]
    alone = restored(case, bench._full, bench.filled())
    boundary = Boundary(1, case.filled, case.filled + 99, NO_FLOOR)
    untimed = case.batch_of(boundary)[0]
    untimed = changed(untimed, event_time_us=np.full_like(untimed.event_time_us, NO_FLOOR))
    assert len(alone.process(boundary, untimed, _NOBODY, NO_REMOVALS).updates) == 0
    advance(alone, case, case.filled + 100, case.filled + 200)
    assert 5.6 < cells_each(alone) < 6.6
