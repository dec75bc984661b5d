"""Every window index of `skyline` as a share: dealt out among several, loaded whole, asked by a question."""

import itertools

import numpy as np
import pytest

from matching.errors import EngineError
from matching.model import concatenate
from matching.naive import dominates
from matching.operator import WindowQuery
from matching.skyline.window import SkylineQueries
from matching.window import NO_FLOOR, Boundary
from tests.support.skyline_streams import (
    SPACE,
    WINDOWS,
    Model,
    Recipe,
    differences,
    make_queries,
    make_steps,
)

RECIPES = [
    Recipe(terms=3, late=30, batches=10),
    Recipe(batches=6, batch=200, window=700, terms=4, objects=0, deletes=0.3),
]


def rows_of(found) -> list[list[tuple]]:
    """(seq, life, spatial, text) of each query."""
    rows = list(zip(*(column.tolist() for column in found[1:]), strict=True))
    return [rows[a:b] for a, b in itertools.pairwise(found.offsets.tolist())]


@pytest.mark.parametrize("recipe", RECIPES, ids=["late_objects", "lone_messages"])
@pytest.mark.parametrize("name", WINDOWS)
def test_answers_of_shares_merge_to_what_is_of_use_of_the_whole(name, recipe):
    """Left out is exactly what another candidate dominates that lives at least as long; as of any boundary."""
    kind, left_out, kept = WINDOWS[name], 0, 0
    window_indexes, whole, model = [kind(SPACE, 2) for _ in range(3)], kind(SPACE, 2), Model()
    for step in make_steps(recipe, 9):
        model.store(step)
        whole.store(step.boundary, step.messages, step.ended)
        for number, window_index in enumerate(window_indexes):
            mine = np.flatnonzero(step.messages.seq % 3 == number)
            # ends are told to those who hold the message, or to all
            ended = step.ended if step.boundary.number % 2 else step.ended[step.ended % 3 == number]
            window_index.store(step.boundary, step.messages.take(mine), ended)
    queries = make_queries(recipe, 1, 60)
    for as_of in whole.known:
        query = WindowQuery(as_of, as_of.number, queries)
        merged = rows_of(kind.merge([window_index.answer(query) for window_index in window_indexes]))
        assert merged == rows_of(kind.merge([whole.answer(query)]))
        for row, got in enumerate(merged):
            first, last = queries.term_offsets[row : row + 2]
            rows = model.candidates(queries.region[row].tolist(), queries.terms[first:last].tolist(), as_of)
            useful = [
                each for each in rows if not any(dominates(o[2:], each[2:]) and o[1] >= each[1] for o in rows)
            ]  # fmt: skip
            assert got == useful
            kept, left_out = kept + len(useful), left_out + len(rows) - len(useful)
    assert kept > 60 and left_out > 30


def test_grid_searches_no_rectangle_in_the_part_of_another_task(monkeypatch):
    recipe = RECIPES[1]
    window = WINDOWS["grid"](SPACE, 2)
    for step in make_steps(recipe, 9):
        west = np.flatnonzero(step.messages.east < 0.0)
        window.store(step.boundary, step.messages.take(west), step.ended)
    queries = make_queries(recipe, 1, 60)
    wanted = rows_of(window.useful(queries, window.boundary))
    near = window.near(queries.region)
    assert 0 < near.shape[0] < 60 and not set(np.flatnonzero(queries.region[:, 0] > 0.0)) & set(near.tolist())
    searched: list[int] = []
    useful = window.useful

    def counted(some, as_of):
        searched.append(some.region.shape[0])
        return useful(some, as_of)

    monkeypatch.setattr(window, "useful", counted)
    assert rows_of(window.answer(WindowQuery(window.boundary, window.boundary.number, queries))) == wanted
    assert sum(searched) == near.shape[0] and any(wanted)


@pytest.mark.parametrize("name", WINDOWS)
def test_window_loaded_whole_goes_on_like_one_that_took_every_batch(name):
    recipe, compared = Recipe(late=20, objects=0, deletes=0.2, batches=14), 0
    steps, model = make_steps(recipe, 12), Model()
    window, messages = WINDOWS[name](SPACE, 2), concatenate([step.messages for step in steps])
    for step in steps:
        model.store(step)
        number = step.boundary.number
        if number < 6:
            continue
        if number == 6:
            window.load(step.boundary, messages.take(np.flatnonzero(np.isin(messages.seq, list(model.live)))))
            assert window.known == [step.boundary] and window.stored_through == 6
            with pytest.raises(EngineError, match="are retained"):
                window.candidates(make_queries(recipe, 0, 1), steps[5].boundary)
        else:
            window.store(step.boundary, step.messages, step.ended)
        assert len(window) == len(model.live)  # type: ignore[arg-type]
        assert [each.number for each in window.known] == list(range(max(6, number - 2), number + 1))
        for as_of in window.known:
            told, count = differences(window, model, make_queries(recipe, number, 20), as_of)
            assert not told
            compared += count
    assert compared > 200


@pytest.mark.parametrize("name", WINDOWS)
def test_window_that_keeps_more_boundaries_holds_more(name):
    recipe = Recipe(batches=20, batch=200, window=400, objects=0)
    sizes = []
    for kept in (0, 15):
        window = WINDOWS[name](SPACE, kept)
        assert window.stored_through == -1 and window.boundary == Boundary(-1, 0, -1, NO_FLOOR)
        for step in make_steps(recipe, 3):
            window.store(step.boundary, step.messages, step.ended)
        sizes.append(window.size_bytes())
    assert min(sizes) > 10_000
    if name != "mf_rtree_paper":  # nothing but its threshold cleans, so that what it holds depends on its splits
        assert sizes[0] < sizes[1]
    anything = np.arange(recipe.terms, dtype=np.int32)
    everywhere = SkylineQueries(np.array([[-180.0, -90.0, 180.0, 90.0]]), np.array([0, anything.size]), anything)
    first, *_, last = [window.candidates(everywhere, as_of).seq for as_of in window.known]
    assert 400 < first.min() < first.max() < 1_000 and 3_500 < last.min() < last.max() < 4_000
