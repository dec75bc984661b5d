"""What every top-k engine must do before anybody has subscribed, and after everybody has gone."""

import numpy as np
import pytest

from matching.kinds import KINDS
from tests.support.worlds import SPACE, Recipe, make_world


@pytest.mark.parametrize("name", KINDS.named("topk").engines)
def test_engine_without_subscriptions_finds_nothing(name):
    world = make_world(Recipe(kinds=(1,)), 0)
    _, messages, changes = world.batches[0]
    engine = KINDS.named("topk").engine(name)(SPACE)
    assert engine.match(messages).slot.size == 0
    slots = engine.insert(changes.added)
    assert engine.match(messages).slot.size > 0
    engine.remove(slots)
    assert engine.match(messages).slot.size == 0
    assert np.all(engine.subscriptions.columns.number[slots] < 0)
