"""Made-up filters: as many as wanted, of a word that is not the subscription's own or of bounds within the numbers,
compiled to what the oracle reads; and numbers of messages, which change nothing else."""

import numpy as np
import pytest

from matching.filter_programs import WITHOUT, instructions_of
from matching.naive import passes
from matching.naive_rows import messages_of, subscriptions_of
from matching.space import EARTH, Space
from matching.window import Window
from spouts.generated import NUMBERS, GeneratedSource, MessageRecipe
from spouts.paced import GeneratedSubscriptions

SPACE, WINDOW = Space(*EARTH), Window.parse("count:100")


def subscribers(filters, numbered=True):
    recipe = MessageRecipe(seed=3, vocabulary=500, numbered=numbered)
    return GeneratedSubscriptions(recipe, WINDOW, SPACE, {"boolean": 600, "topk": 400}, filters=filters)


@pytest.mark.parametrize(("share", "numbered"), [(0.5, True), (0.5, False), (1.0, True)])
def test_filters_are_as_many_as_wanted_and_can_be_satisfied(share, numbered):
    made = subscribers(share, numbered)
    table = made.make()
    rows = made.filters_of(table)
    has = (rows.without >= 0) | (rows.low >= 0)
    assert abs(has.mean() - share) < 0.1 and bool((rows.low >= 0).any()) is numbered
    assert not ((rows.without >= 0) & (rows.low >= 0)).any()
    bounded = rows.low >= 0
    assert (rows.low[bounded] < rows.high[bounded]).all() and (rows.high[bounded] < NUMBERS).all()
    cuts, words = table.term_offsets.tolist(), table.terms.tolist()
    assert not any(rows.without[at] in words[cuts[at] : cuts[at + 1]] for at in range(len(table)))
    first = int(np.flatnonzero(rows.without >= 0)[0])
    cut = slice(*table.filter_offsets[first : first + 2])
    (one,) = instructions_of(table.filter_words[cut].tobytes())
    assert (one.operation, list(one.words)) == (WITHOUT, [rows.without[first]])


def test_bounds_pass_the_messages_whose_number_is_within():
    made = subscribers(1.0)
    table = made.make()
    rows = made.filters_of(table)
    messages = GeneratedSource(made.recipe, WINDOW, SPACE).read().messages.take(np.arange(300))
    at = int(np.flatnonzero(rows.low >= 0)[0])
    subscription = list(subscriptions_of(table))[at]
    numbers = np.random.default_rng([3, 3, 0]).integers(0, NUMBERS, 300)
    passing = [passes(subscription, message) for message in messages_of(messages)]
    assert passing == ((numbers >= rows.low[at]) & (numbers <= rows.high[at])).tolist()
    assert 0 < sum(passing) < 300


def test_numbers_change_nothing_else_of_the_messages():
    plain, numbered = (
        GeneratedSource(MessageRecipe(seed=3, numbered=way), WINDOW, SPACE).read().messages for way in (False, True)
    )
    assert plain.keys.shape == (0, 0) and numbered.keys.shape == (len(numbered), 1)
    for name in ("x", "y", "terms", "weights", "term_offsets"):
        np.testing.assert_array_equal(getattr(plain, name), getattr(numbered, name))
