"""Indexes over influence balls: exact whatever their grids, sound after every batch, and broken ones are found."""

import numpy as np
import pytest

from matching.knn.engines.balls import BallLists
from matching.knn.engines.influence_grid import InfluenceGrid
from matching.model import KNN, SubscriptionTable
from tests.support.knn_engines import ManyGrids, assert_sound, named
from tests.support.lasting import EveryPair, differences
from tests.support.worlds import Recipe, make_world

#: The first of an engine compiles it.
FEWEST = BallLists.fewest
#: Worlds of which a commit tests a few, and CI a few more.
seeded = pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(0, 200, 50), id="few"),
        pytest.param(range(5, 200, 50), id="more", marks=pytest.mark.wide),
        pytest.param([seed for seed in range(200) if seed % 50 not in (0, 5)], id="all", marks=pytest.mark.long),
    ],
)


def recipe_of(seed: int) -> Recipe:
    """A recipe that makes ties, borders, churn and results that never fill, in any mixture."""
    rng = np.random.default_rng([seed, 9])
    grid = int(rng.choice([0, 1, 2, 4, 8, 16]))
    return Recipe(
        kinds=(KNN,),
        grid=grid or None,
        messages=int(rng.choice([60, 120, 240])),
        batch=int(rng.choice([1, 7, 20, 60])),
        subscriptions=int(rng.choice([5, 20, 60])),
        terms=int(rng.choice([1, 3, 12, 40])),
        churn=float(rng.choice([0.2, 1.0])),
        largest_k=int(rng.choice([1, 4, 30, 300])),
    )


@named
@seeded
def test_knn_engines_over_random_worlds_equal_oracle_and_are_sound(engine, seeds, monkeypatch):
    for seed in seeds:
        # with 1, pools are packed again and again
        monkeypatch.setattr(BallLists, "fewest", 1 if seed % 2 else FEWEST)
        assert not differences(make_world(recipe_of(seed), seed), "knn", engine, inspect=assert_sound), f"seed {seed}"


@named
def test_knn_engines_over_a_long_stream_of_changes_equal_oracle(engine, monkeypatch):
    monkeypatch.setattr(BallLists, "fewest", 1)
    recipe = Recipe(kinds=(KNN,), messages=900, batch=30, subscriptions=60, terms=8, churn=1.0)
    assert not differences(make_world(recipe, 1), "knn", engine, inspect=assert_sound)


# ------------------------------------------------------------------------------------------- broken ones


class BallOfTheUnfilled(InfluenceGrid):
    """Takes the furthest of fewer than k for a k-th."""

    name = "ball_of_the_unfilled"

    def _settle(self):
        c, best = self.subscriptions.columns, self.best.view
        for slot in self.best.touched:
            c.threshold[slot] = best.key[best.start[slot] + best.count[slot] - 1]
        super()._settle()


class FromTheBatch(InfluenceGrid):
    """Shows messages before registration, if they are of the same batch."""

    name = "from_the_batch"

    def insert(self, table, results=None):
        return super().insert(SubscriptionTable(**table._asdict() | {"at": np.zeros_like(table.at)}), results)


class NewerOfEqual(EveryPair):
    """Lets whoever is as near as the k-th take its place."""

    name = "newer_of_equal"

    def _key(self, c, slot, batch, row, terms, cut):
        key, v = super()._key(c, slot, batch, row, terms, cut), self.best.view
        last = v.start[slot] + v.count[slot] - 1
        if v.count[slot] == c.k[slot] and v.key[last] == key and v.seq[last] < batch.seq[row] > v.after[slot]:
            v.key[last] = np.nextafter(key, -np.inf)
        return key


class Forgotten(ManyGrids):
    """Leaves some subscriptions out of cells into which their balls reach."""

    name = "forgotten"

    def _place(self, slots):
        super()._place(slots)
        v = self.cells.view
        for at in np.flatnonzero(v.count > 1):
            v.limit[v.start[at]] = -1.0


BROKEN = (BallOfTheUnfilled, FromTheBatch, NewerOfEqual, Forgotten)


@pytest.mark.parametrize("engine", BROKEN, ids=lambda engine: engine.name)
def test_broken_knn_engines_are_found(engine):
    recipes = [Recipe(kinds=(KNN,), grid=grid, terms=3, churn=1.0, batch=5, messages=400) for grid in (None, 4)]
    assert any(differences(make_world(recipe, 3), "knn", engine) for recipe in recipes)
