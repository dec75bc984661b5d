"""Nearest messages on the sphere: influence balls at poles and across the antimeridian, against oracle and vectors."""

import numpy as np
import pytest

from matching.geo.sphere import unit_vectors
from matching.knn.engines import cells
from matching.knn.engines.balls import BallLists
from matching.knn.engines.influence_grid import InfluenceGrid
from matching.model import KNN
from matching.naive_shapes import EARTH_RADIUS_M
from matching.space import Space
from matching.storage import squares
from papers.dkm_sks.single_grid import SingleGrid
from tests.property.test_knn_engines import FEWEST, recipe_of, seeded
from tests.support.knn_engines import ManyGrids, OneGrid, WideBalls, around, messages, replaced, subscriptions, take
from tests.support.lasting import differences
from tests.support.worlds import SPHERE, Recipe, make_world

#: The first of an engine compiles it.
ENGINES = (InfluenceGrid, SingleGrid, OneGrid, ManyGrids, WideBalls)
named = pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)


def on_sphere(seed: int) -> Recipe:
    """The recipes of the plane, on the sphere."""
    return Recipe(**(recipe_of(seed).__dict__ | {"sphere": True}))


def assert_covered(engine: InfluenceGrid) -> None:
    """Every place in a ball lies in a cell where the subscription is posted, with a limit that lets it through.

    Or the subscription is posted with such a limit in the list of the term.
    """
    c, v, sides = engine.subscriptions.columns, engine.cells.view, engine.sides
    rng, posted = np.random.default_rng(len(engine)), {}
    for at in np.flatnonzero(v.count > 0):
        places = np.arange(v.start[at], v.start[at] + v.count[at])
        posted[int(v.key[at])] = dict(zip(v.slot[places].tolist(), v.limit[places].tolist(), strict=True))
    assert all(
        len(slots) == v.count[at] for at, slots in zip(np.flatnonzero(v.count > 0), posted.values(), strict=True)
    )
    for slot in engine.subscriptions.live_slots().tolist():
        grid, radius = int(engine._grid[slot]), -c.threshold[slot]
        if not 0 <= grid < len(sides) or radius <= 0:
            continue
        vector = np.array([c.x[slot], c.y[slot], c.z[slot]])
        share = np.concatenate([np.full(8, 1.0 - 1e-9), rng.random(8)])
        lon, lat = around(vector, radius * share, rng.uniform(0, 2 * np.pi, 16))
        x, y = SPHERE.project(lon, lat)
        chords = np.sum((unit_vectors(lon, lat) - vector) ** 2, axis=1)
        for at in range(c.term_start[slot], c.term_start[slot] + c.term_count[slot]):
            if c.position[at] >= 0:
                assert engine.terms.view.slot[c.position[at]] == slot
                assert engine.terms.view.limit[c.position[at]] >= chords.max()
                continue
            for one in range(16):
                key = cells.key_of(sides[grid], squares.cell_of(x[one], y[one], sides[grid]), c.terms[at])
                assert posted[key][slot] >= chords[one]


@named
@seeded
def test_knn_on_the_sphere_over_random_worlds_equals_oracle(engine, seeds, monkeypatch):
    for seed in seeds:
        # with 1, pools are packed again and again
        monkeypatch.setattr(BallLists, "fewest", 1 if seed % 2 else FEWEST)
        assert not differences(make_world(on_sphere(seed), seed), "knn", engine, inspect=assert_covered), f"seed {seed}"


@named
def test_knn_on_the_sphere_saved_and_restored_over_a_long_stream_equals_oracle(engine):
    recipe = Recipe(kinds=(KNN,), messages=900, batch=30, subscriptions=60, terms=8, churn=1.0, sphere=True)
    assert not differences(make_world(recipe, 1), "knn", engine, count=2, saved=True)


@pytest.mark.parametrize("world", [(-180.0, -90.0, 180.0, 90.0), (170.0, 60.0, 180.0, 90.0), (5.0, 45.0, 5.4, 45.3)])
def test_knn_on_the_sphere_equals_vectors_of_more_digits(world):
    """The k nearest of thousands, by chords of 64 bits of mantissa; those nearer to each other than 1e-7 m may swap."""
    space, rng, k = Space(*world, distance="sphere"), np.random.default_rng(7), 4
    lon, lat = rng.uniform(world[0], world[2], 3_000), rng.uniform(world[1], world[3], 3_000)
    points = np.stack(space.project(lon, lat), axis=1)
    vectors = space.vectors(lon, lat)
    engine = InfluenceGrid(space)
    table = subscriptions(points[:500], k)
    engine.insert(replaced(table, vector=vectors[:500]))
    for first in range(500, 3_000, 500):
        some = np.arange(first, first + 500)
        batch = messages(points[some], first)
        take(engine, replaced(batch, vector=vectors[some]))
    rows = engine.best.rows(engine.find(np.arange(500)))
    exact = vectors.astype(np.longdouble)
    compared = 0
    for one in range(500):
        chords = np.sqrt(np.sum((exact[500:] - exact[one]) ** 2, axis=1))
        metres = 2 * np.longdouble(EARTH_RADIUS_M) * np.arcsin(chords / 2)
        nearest = np.sort(metres)[: k + 1]
        got = -rows.key[rows.offsets[one] : rows.offsets[one + 1]]
        assert got.shape[0] == k and np.all(np.abs(got - nearest[:k]) < 1e-7)
        if np.diff(nearest).min() > 1e-7:
            assert (
                rows.seq[rows.offsets[one] : rows.offsets[one + 1]].tolist() == (500 + np.argsort(metres)[:k]).tolist()
            )
            compared += 1
    assert compared > 400


def test_knn_of_the_plane_is_no_knn_of_the_sphere():
    """The same world with planar distances has other answers, so these tests would see them."""
    world = make_world(on_sphere(3), 3)
    flat = make_world(on_sphere(3), 3)
    flat.batches[:] = [(boundary, replaced(m, vector=m.vector[:0]), changes) for boundary, m, changes in flat.batches]
    assert world.expected() != flat.expected()
