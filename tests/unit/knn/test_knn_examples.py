"""Engines of `knn`, single behaviours: ties, the last bit, what is verified and how often, the way of a rare term."""

import numpy as np
import pytest

from baselines.knn.inverted_file import KnnInvertedFile
from matching.knn.engines.balls import BallLists
from matching.knn.engines.influence_grid import InfluenceGrid
from tests.support.knn_engines import assert_sound, messages, named, replaced, subscriptions, take
from tests.support.worlds import SPACE, SPHERE

#: The first of an engine compiles it.


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
    assert scanned == 2_000 if engine is KnnInvertedFile else scanned < 500


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


def test_knn_on_the_sphere_finds_the_neighbour_across_the_antimeridian_and_the_pole():
    lon, lat = np.array([179.999, -179.999, 0.0, 180.0]), np.array([10.0, 10.0, 89.999, 89.999])
    points, vectors = np.stack(SPHERE.project(lon, lat), axis=1), SPHERE.vectors(lon, lat)
    engine = InfluenceGrid(SPHERE)
    table = subscriptions(points[[0, 2]], 1)
    engine.insert(replaced(table, vector=vectors[[0, 2]]))
    batch = messages(points[[1, 3, 1]])
    take(engine, replaced(batch, vector=vectors[[1, 3, 1]]))
    rows = engine.best.rows(engine.find(np.arange(2)))
    assert rows.seq.tolist() == [0, 1] and np.all(-rows.key < 250)


@pytest.mark.parametrize("alike", [(8, 0.1), (1, 1e-9)], ids=["keywords", "place"])
def test_knn_subscriptions_that_are_all_alike_find_places_in_the_index(alike, monkeypatch):
    """All lists are full at once: those of the same keywords, or of nine cells around one place."""
    terms, spread = alike
    reserved = []
    reserve = BallLists.reserve

    def counted(lists, more):
        reserved.append(more)
        assert len(reserved) < 100, "the same is reserved again and again"
        reserve(lists, more)

    monkeypatch.setattr(BallLists, "reserve", counted)
    made, words = InfluenceGrid(SPACE), tuple(range(terms))
    places = 32.5 / 64 + spread * np.random.default_rng(9).random((300, 2))
    made.insert(subscriptions(places, 1, terms=words))
    # the radius of a ball is nearly the width of a cell
    assert len(take(made, messages([(33.48 / 64, 32.5 / 64)], terms=words))) == 300
    assert_sound(made)


def test_knn_subscriptions_that_are_all_alike_move_in_the_reverse_order_of_their_lists():
    """A list is searched from its end, so that each is found at once: otherwise n of them take n * n steps."""
    made, here = InfluenceGrid(SPACE), 32.5 / 64
    made.insert(subscriptions(np.full((40, 2), here), 1, terms=(0,)))
    found = []
    for seq, far in enumerate((0.01, 0.0005)):  # the radius fits the first grid, then the second
        assert len(take(made, messages([(here + far, here)], seq))) >= 40
        cells = made.cells.view
        at = int(np.argmax(cells.count))
        found.append(cells.slot[cells.start[at] : cells.start[at] + cells.count[at]].tolist())
    assert found == [list(range(40))[::step] for step in (-1, 1)]
    assert_sound(made)
