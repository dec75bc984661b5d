"""Kinds with lasting results over a stream, every engine, against the oracle; and broken ones, which must be found."""

import pytest

from matching.half_life import LONGEST_HALF_LIFE_S, SHORTEST_HALF_LIFE_S
from matching.kinds import KINDS
from matching.model import DECAY, KNN
from tests.support.lasting import OPERATORS, EveryPair, differences
from tests.support.worlds import Recipe, make_world

#: The first of an engine compiles it.
CODES = {"decay": DECAY, "knn": KNN}
#: Of `EveryPair` some rows are enough: the others show the same room with an engine, and it takes four times as long.
ENGINES = [
    *(pytest.param(kind, EveryPair, id=f"{kind}-every_pair", marks=pytest.mark.wide) for kind in OPERATORS),
    *(pytest.param(kind, name, id=f"{kind}-{name}") for kind in OPERATORS for name in KINDS.named(kind).engines),
]
RECIPES = {
    "plain": {"terms": 30},
    "ties": {"grid": 3},
    "few_words": {"terms": 3, "subscriptions": 80},
    "one_message_a_batch": {"batch": 1, "messages": 100},
    "one_batch": {"batch": 240},
    "large_k": {"largest_k": 300, "terms": 4},
    "place_alone": {"alphas": (1.0,), "grid": 4},
    "text_alone": {"alphas": (0.0,)},
    "half_life_of_a_second": {"half_life_s": 1.0},
    "half_life_of_a_microsecond": {"half_life_s": SHORTEST_HALF_LIFE_S},
    "half_life_of_ages": {"half_life_s": LONGEST_HALF_LIFE_S},
    "half_life_of_ten_years": {"half_life_s": 3.2e8, "grid": 5},
    "equal_times": {"late_s": 0.0, "half_life_s": 5.0},
    "very_late_messages": {"late_s": 500.0, "half_life_s": 5.0},
    "no_smoothing": {"smoothing": 0.0, "alphas": (0.0, 0.5)},
    "long_lists": {"terms": 3, "subscriptions": 500, "messages": 120},
    "long_lists_with_ties": {"terms": 2, "subscriptions": 400, "messages": 150, "grid": 6, "half_life_s": 3.0},
    "wordless": {"wordless": 0.4, "terms": 8},
    "wordless_with_ties": {"wordless": 0.6, "grid": 3, "largest_k": 9},
    "wordless_alone": {"wordless": 1.0, "grid": 5},
    "smoothing_alone": {"smoothing": 1.0, "alphas": (0.0, 0.3)},
}


def recipe_of(kind: str, name: str) -> Recipe:
    return Recipe(kinds=(CODES[kind],), **RECIPES[name])


@pytest.mark.parametrize(("kind", "engine"), ENGINES)
@pytest.mark.parametrize("name", RECIPES)
def test_lasting_rooms_over_random_worlds_equal_oracle(kind, engine, name):
    for seed in range(2):
        assert not differences(make_world(recipe_of(kind, name), seed), kind, engine), f"seed {seed}"


@pytest.mark.parametrize(("kind", "engine"), ENGINES)
@pytest.mark.parametrize("name", ["plain", "ties", "large_k"])
def test_lasting_rooms_saved_and_gone_on_with_equal_oracle(kind, engine, name):
    assert not differences(make_world(recipe_of(kind, name), 5), kind, engine, count=2, saved=True)
