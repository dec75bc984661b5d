"""Answers of the oracle that are kept are those to the same question, and nobody can spoil them for the next one."""

from collections import Counter

import numpy as np

from tests.support.remembered import _KEPT, remembered
from tests.support.worlds import Recipe, make_world, without_the_last


def test_remembered_answers_are_of_equal_content_and_a_copy_each():
    asked = []

    @remembered
    def answer(numbers):
        asked.append(numbers.tolist())
        return [Counter(numbers.tolist())], (int(numbers.sum()),)

    first = answer(np.arange(3))
    first[0][0][7] += 1
    first[0].append(Counter())
    assert answer(np.arange(3)) == ([Counter(range(3))], (3,)) and len(asked) == 1
    numbers = np.arange(3)
    numbers[1] = 5
    assert answer(numbers) == ([Counter([0, 5, 2])], (7,)) and len(asked) == 2
    for number in range(_KEPT):
        answer(np.array([number]))
    answer(np.arange(3))
    assert len(asked) == 3 + _KEPT, "the oldest has made room"


def test_remembered_world_that_was_changed_is_another_one():
    recipe = Recipe(terms=4)
    told = make_world(recipe, 1).expected()
    assert make_world(recipe, 1).expected() == told != make_world(recipe, 2).expected()
    assert without_the_last(make_world(recipe, 1)).expected()[1] == Counter()
    world = make_world(recipe, 1)
    world.batches[0][1].x[:] = 0.5  # in place
    assert world.expected()[0] != told[0] and make_world(recipe, 1).expected() == told
