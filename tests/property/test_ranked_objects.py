"""Ranked kinds over a stream of objects: members end early, come worse, move; every engine, against the oracle."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.driving import Tasks
from matching.kind_table import Kind
from matching.kinds import KINDS
from matching.naive_rows import tally
from tests.support.any_kind import Recipe, expected, make_turns, window_of, without_text
from tests.support.worlds import SPACE

OF_OBJECTS = KINDS.of_objects()
KIND_NAMES = [kind.name for kind in OF_OBJECTS.run if kind.standing and kind.operator.serves_objects]
ENGINES = [(name, engine) for name in KIND_NAMES for engine in OF_OBJECTS.named(name).engines]
WINDOW_INDEXES = [(name, index) for name in KIND_NAMES for index in OF_OBJECTS.named(name).windows]
#: Few objects, so that members of results are replaced in most batches.
FEW = Recipe(window="living", objects=12, deletes=0.2, asking=0.4)
RECIPES = {
    "few": FEW,
    "many": replace(FEW, objects=60, deletes=0.05),
    "one_at_a_time": replace(FEW, sizes=(1,), batches=60),
    "seven": replace(FEW, sizes=(7,), batches=16),
    "whole": replace(FEW, sizes=(150,), batches=2, objects=40),
    "deletions": replace(FEW, deletes=0.5),
    "wordless": replace(FEW, wordless=0.5),
    "of_a_count": replace(FEW, window="count:25", objects=30),
    "of_a_time": replace(
        FEW, window="time:25", late=24, objects=30, sizes=(3, 9), batches=24, arrivals=10, departures=9
    ),
    "without_times": replace(FEW, untimed=0.3),
}


def kind_of(name: str, engine: str | None = None, index: str | None = None) -> Kind:
    """A kind in a stream of objects, with one engine and one window index."""
    kind = OF_OBJECTS.named(name)
    engines = kind.engines if engine is None else {engine: kind.engine(engine)}
    windows = kind.windows if index is None else {index: kind.window(index)}
    return replace(kind, engines=engines, windows=windows)


def differences(kind: Kind, recipe: Recipe, seed: int, restore: bool = False) -> tuple[list[str], int, int]:
    """What is missing or extra; how much was compared; how many results were refilled."""
    turns, window = make_turns(kind, seed, recipe), window_of(recipe)
    wanted, results = expected(turns, window, True)
    tasks, found, count = Tasks(kind, SPACE, window, window_tasks=1 + seed % 2, objects=True), [], 0
    for number, (turn, want) in enumerate(zip(turns, wanted, strict=True)):
        got = tally(tasks.process(turn.boundary, turn.messages, turn.added, turn.removed, turn.ended).updates)
        count += want.total()
        if got != want:
            found.append(f"batch {number}: missing {list(want - got)[:3]}, extra {list(got - want)[:3]}")
        if restore and number % 5 == 3:
            tasks.go_on(1 + number % 2)
    standing = without_text(tasks.results())
    if standing != results:
        found.append(f"results: missing {set(results) - set(standing)}, extra {set(standing) - set(results)}")
    return found, count, tasks.refills


@pytest.mark.parametrize(("name", "engine"), ENGINES)
def test_ranked_kind_over_objects_equals_the_oracle(name, engine):
    compared = refills = 0
    for number, recipe in enumerate(RECIPES.values()):
        found, count, asked = differences(kind_of(name, engine), recipe, number, restore=number % 3 == 2)
        assert not found, recipe
        compared, refills = compared + count, refills + asked
    assert compared > 300 and refills > 20, "streams in which nothing ends early prove nothing"


@pytest.mark.parametrize(("name", "index"), WINDOW_INDEXES)
def test_window_index_of_a_ranked_kind_over_objects_equals_the_oracle(name, index):
    filters = OF_OBJECTS.named(name).window(index).serves_filters  # what a subscription asks for is in its filter
    for number, recipe in enumerate(RECIPES.values()):
        recipe = recipe if filters else replace(recipe, asking=0.0)
        assert not differences(kind_of(name, None, index), recipe, 20 + number, restore=number % 2 == 1)[0], list(
            RECIPES
        )[number]


@settings(max_examples=25, deadline=None)
@given(
    name=st.sampled_from(KIND_NAMES),
    seed=st.integers(0, 2**32 - 1),
    window=st.sampled_from(["living", "living", "count:1", "count:12", "count:60", "time:4", "time:40"]),
    size=st.sampled_from([1, 7, 150]),
    objects=st.sampled_from([1, 3, 10, 40]),
    deletes=st.sampled_from([0.0, 0.1, 0.5]),
    late=st.sampled_from([0, 10]),
    wordless=st.sampled_from([0.0, 0.5]),
    restore=st.booleans(),
)
def test_ranked_kind_over_any_objects_equals_the_oracle(
    name, seed, window, size, objects, deletes, late, wordless, restore
):
    batches = {1: 60, 7: 20, 150: 2}[size]
    recipe = Recipe(window, batches, (0, size), late, objects, 8, 3, 3, wordless=wordless, deletes=deletes, asking=0.4)
    assert not differences(kind_of(name), recipe, seed, restore)[0]
