"""Indexes over influence balls: exact whatever their grids, sound after every batch, and broken ones are found."""

import numpy as np
import pytest

from baselines.knn.inverted_file import InvertedFile
from matching.knn.engines.balls import BallLists
from matching.knn.engines.influence_grid import InfluenceGrid
from matching.model import KEYWORDS_BY_KIND, KNN, MessageBatch, SubscriptionTable
from tests.support.covering import tiered
from tests.support.lasting import EveryPair, differences
from tests.support.worlds import SPACE, Recipe, make_world

#: The first of an engine compiles it.
pytestmark = pytest.mark.timeout(300)


class OneGrid(InfluenceGrid):
    """As the paper has it."""

    name, sides, widest, rare = "one_grid", (64,), 8.0, 0


class ManyGrids(InfluenceGrid):
    """Balls move often, and overlap few cells."""

    name, sides, widest, rare = "many_grids", (1, 2, 4, 8, 16, 1024), 1.0, 3


class WideBalls(InfluenceGrid):
    """Balls shrink in their cells for long, and leave most of them."""

    name, sides, widest, rare = "wide_balls", (32,), 64.0, 1


ENGINES = (InfluenceGrid, OneGrid, ManyGrids, WideBalls, InvertedFile)
#: Worlds of which a commit tests a few.
seeded = pytest.mark.parametrize(
    "seed",
    [*tiered(range(0, 200, 10), one_in=5), *(pytest.param(n, marks=pytest.mark.long) for n in range(200) if n % 10)],
)
named = pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)


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


def subscriptions(points, k: int, terms=(0,)) -> SubscriptionTable:
    """Subscriptions with numbers from 0, all with the same keywords."""
    x, y = np.array(points, float).T
    n = x.shape[0]
    nowhere = np.full(n, np.nan)
    return SubscriptionTable(
        np.arange(n), np.full(n, KNN, np.int8), np.zeros(n, np.int64), x, y, np.full((n, 4), np.nan),
        np.full(n, KEYWORDS_BY_KIND, np.int8), np.full(n, k, np.int32), nowhere, np.arange(n + 1) * len(terms),
        np.tile(np.array(terms, np.int32), n), np.ones(n * len(terms), np.float32),
    )  # fmt: skip


def messages(points, first_seq: int = 0, terms=(0,)) -> MessageBatch:
    """Messages at points of the unit square, all of the same words."""
    x, y = np.array(points, float).T
    n = x.shape[0]
    seq = np.arange(first_seq, first_seq + n)
    words = np.tile(np.array(terms, np.int32), n)
    weights = np.ones(words.shape[0], np.float32)
    return MessageBatch(seq, x, y, x, y, x, y, seq, np.arange(n + 1) * len(terms), words, weights)


def take(engine, batch: MessageBatch) -> set[tuple[int, int, int]]:
    """What a batch changes: (number, seq, change)."""
    engine.best.begin_batch(int(batch.seq[0]), int(batch.seq[0]))
    engine.match(batch)
    told = engine.best.end_batch(engine.subscriptions.columns, int(batch.seq[-1]))
    return set(zip(told.number.tolist(), told.seq.tolist(), told.change.tolist(), strict=True))


def assert_sound(engine) -> None:
    """What is indexed is what the columns say, and every ball is in every cell into which it reaches."""
    if not isinstance(engine, InfluenceGrid):
        return
    c, sides = engine.subscriptions.columns, engine.sides
    there: dict[tuple[int, int, int], list[int]] = {}
    counts = np.zeros_like(engine.cells.counts)
    v = engine.cells.view
    for at in np.flatnonzero(v.count > 0):
        number, term = int(v.key[at]) >> 31, int(v.key[at]) & 0x7FFFFFFF
        grid = max(g for g, side in enumerate(sides) if side * side <= number)
        places = np.arange(v.start[at], v.start[at] + v.count[at])
        there[grid, number - sides[grid] ** 2, term] = v.slot[places].tolist()
        counts[term, grid] += v.count[at]
        radius = -c.threshold[v.slot[places]]
        assert np.all(v.limit[places] >= np.where(radius > 0, radius * radius, -1.0)), "too little would get through"
    assert np.array_equal(counts, engine.cells.counts)
    assert v.used[1] == counts.sum() and len(there) <= engine.cells.entered[0] == np.count_nonzero(v.key >= 0)
    live = engine.subscriptions.live_slots()
    everywhere = [slot for slots in there.values() for slot in slots]
    assert set(everywhere) <= set(live.tolist()), "whoever has gone is in no list"
    assert all(len(set(slots)) == len(slots) for slots in there.values())
    by_term = engine.terms.view
    listed = 0
    for slot in live.tolist():
        grid, radius, x, y = int(engine._grid[slot]), -c.threshold[slot], c.x[slot], c.y[slot]
        mine = range(c.term_start[slot], c.term_start[slot] + c.term_count[slot])
        by_list = [at for at in mine if c.position[at] >= 0]
        places, listed = c.position[by_list], listed + len(by_list)
        assert np.all(by_term.slot[places] == slot)
        assert np.all(by_term.limit[places] >= (radius * radius if radius > 0 else -1.0)), (
            "too little would get through"
        )
        if radius == np.inf or grid == -1:
            assert grid == -1 and len(by_list) == len(mine)
        elif grid == len(sides):
            assert radius <= 0 and not by_list
        elif radius > 0:
            side = sides[grid]
            low, high = ([int(np.clip((v + s * radius) * side, 0, side - 1)) for v in (x, y)] for s in (-1, 1))
            for column in range(low[0], high[0] + 1):
                for row in range(low[1], high[1] + 1):
                    dx = max(0, column / side - x, x - (column + 1) / side)
                    dy = max(0, row / side - y, y - (row + 1) / side)
                    if dx * dx + dy * dy < radius * radius:
                        assert all(
                            at in by_list or slot in there.get((grid, row * side + column, c.terms[at]), ())
                            for at in mine
                        )
    assert by_term.used[1] == by_term.count.sum() == listed


@named
@seeded
def test_knn_engines_over_random_worlds_equal_oracle_and_are_sound(engine, seed, monkeypatch):
    if seed % 2:
        monkeypatch.setattr(BallLists, "fewest", 1)  # pools are packed again and again
    assert not differences(make_world(recipe_of(seed), seed), "knn", engine, inspect=assert_sound), f"seed {seed}"


@named
def test_knn_engines_over_a_long_stream_of_changes_equal_oracle(engine, monkeypatch):
    monkeypatch.setattr(BallLists, "fewest", 1)
    recipe = Recipe(kinds=(KNN,), messages=900, batch=30, subscriptions=60, terms=8, churn=1.0)
    assert not differences(make_world(recipe, 1), "knn", engine, inspect=assert_sound)


@named
def test_knn_message_nearer_by_the_last_bit_enters(engine):
    """Index bounds are of fewer digits than distances."""
    checked = 0
    for x, y, away_x, away_y in np.random.default_rng(4).random((200, 4)):
        made = engine(SPACE)
        made.insert(subscriptions([(x, y)], 1))
        far = x + 0.1 * away_x, y + 0.1 * away_y
        near = np.nextafter(far[0], x), far[1]
        apart = [np.sqrt((x - at[0]) * (x - at[0]) + (y - at[1]) * (y - at[1])) for at in (far, near)]
        take(made, messages([far]))
        expected = {(0, 1, 1), (0, 0, 2)} if apart[1] < apart[0] else set()
        assert take(made, messages([near], 1)) == expected
        checked += bool(expected)
    assert checked > 50


@named
def test_knn_equal_distance_changes_nothing_and_no_distance_is_final(engine):
    made = engine(SPACE)
    made.insert(subscriptions([(0.5, 0.5), (0.25, 0.25)], 1))
    assert take(made, messages([(0.75, 0.5)])) == {(0, 0, 1), (1, 0, 1)}
    around = [(0.25, 0.5), (0.5, 0.25), (0.5, 0.75)]
    assert {told for told in take(made, messages(around, 1)) if told[0] == 0} == set()
    assert (0, 4, 1) in take(made, messages([(0.5, 0.5)], 4))
    assert {told for told in take(made, messages([(0.5, 0.5)] * 3, 5)) if told[0] == 0} == set()


@named
def test_knn_pair_with_several_common_keywords_is_verified_once(engine):
    made = engine(SPACE)
    places = np.random.default_rng(5).random((60, 2))
    made.insert(subscriptions(places[:20], 100, terms=(0, 1, 2)))
    made.best.begin_batch(0, 0)
    work = made.match(messages(places[20:], terms=(0, 1, 2)))
    assert work.scanned == 3 * 20 * 40 and work.verified == 20 * 40


@named
def test_knn_scan_is_narrowed_by_the_balls(engine):
    """Ten thousand messages later a message is verified for few subscriptions, and looked at for fewer than all."""
    rng = np.random.default_rng(6)
    made = engine(SPACE)
    made.insert(subscriptions(rng.random((2_000, 2)) * 0.5, 3))
    for first in range(0, 10_000, 1_000):
        take(made, messages(rng.random((1_000, 2)) * 0.5, first))
    made.counters[:] = 0
    take(made, messages(rng.random((1_000, 2)) * 0.5, 10_000))
    scanned, verified, matched = made.counters / 1_000
    assert 0.3 < matched <= verified < 2 * matched + 1
    assert scanned == 2_000 if engine is InvertedFile else scanned < 500


def test_knn_term_that_is_no_longer_rare_leaves_its_list_for_cells():
    made = InfluenceGrid(SPACE)
    places = np.random.default_rng(7).random((made.rare + 1, 2)) * 0.9
    made.insert(subscriptions(places[:-1], 1))
    assert len(take(made, messages(places[:-1] + 1e-4))) >= made.rare
    assert np.all(made._grid[: made.rare] >= 0) and made.terms.view.count[0] == made.rare
    last = subscriptions(places, 1).take(np.array([made.rare]))
    made.insert(last)
    # only the new one has no ball yet
    assert made.terms.view.count[0] == 1 and made.cells.counts[0].sum() >= made.rare
    assert_sound(made)
    slots = made.subscriptions.live_slots()
    made.remove(slots[:5])
    assert made.terms.view.key[0] == made.rare - 4
    assert_sound(made)


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
