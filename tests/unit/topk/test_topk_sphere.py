"""Topk on the sphere: bounds of engine `skype` against exact scores, and faults that must be found."""

import numpy as np
import pytest

from matching.geo.sphere import EARTH_RADIUS_M, chord_squared, least_angle_squared, metres
from matching.model import SubscriptionTable
from matching.topk.engines import skype_lists
from matching.topk.engines.skype import PAPER, Pruning, Skype
from matching.topk.scores import least_distance
from tests.support.topk_tables import (
    brute_force,
    found_by,
    messages_of,
    near_to,
    on_sphere,
    table_of,
    with_exact_thresholds,
)
from tests.support.worlds import SPHERE

SMALL = {"group_size": 3, "cell_size": 9}
RULES = {
    "default": Pruning(**SMALL),
    "paper": PAPER._replace(**SMALL),
    "all": Pruning(**SMALL, early_stop=True, prefix=True, inner_outer=True, unseen=True),
}


def exact_case(rng, make=lambda: Skype(SPHERE, Pruning(**SMALL)), rows=150, messages=40, terms=9):
    """An engine whose thresholds are exact scores, messages near its subscriptions, and the hits it must find."""
    index = make()
    table = on_sphere(rng, table_of(rng, 0, rows, terms=terms))
    batch = near_to(rng, table, on_sphere(rng, messages_of(rng, messages, terms=terms)))
    slots = index.insert(table)
    return index, batch, with_exact_thresholds(rng, index, batch, slots)


@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
def test_skype_on_the_sphere_finds_all_whose_score_is_the_threshold(rules):
    rng, compared = np.random.default_rng(41), 0
    for _ in range(5):
        index, batch, expected = exact_case(rng, lambda: Skype(SPHERE, rules))
        assert found_by(index, batch) == expected
        compared += len(expected)
    assert compared > 1_000


def test_skype_scans_no_subscription_of_the_other_hemisphere():
    """Boxes that differ in z alone: rings of subscriptions at 60 degrees north, messages at 60 degrees south."""
    rng, rows = np.random.default_rng(42), 2_000
    table = on_sphere(rng, table_of(rng, 0, rows))
    lon = rng.uniform(-180, 180, rows)
    at = {"vector": SPHERE.vectors(lon, np.full(rows, 60.0)), "radius_m": np.full(rows, np.nan)}
    table = SubscriptionTable(**(table._asdict() | at | {"alpha": np.full(rows, 0.9)}))
    index = Skype(SPHERE)
    index.set_thresholds(index.insert(table), 0.8)
    batch = on_sphere(rng, messages_of(rng, 200))
    south = type(batch)(**(batch._asdict() | {"vector": SPHERE.vectors(lon[:200], np.full(200, -60.0))}))
    assert not found_by(index, south)
    counters = index.counters()
    assert counters["scanned"] == 0 < counters["postings"]
    north = type(batch)(**(batch._asdict() | {"vector": SPHERE.vectors(lon[:200], np.full(200, 60.0))}))
    assert len(found_by(index, north)) > 1_000


def test_least_distance_is_never_more_than_the_distance():
    rng = np.random.default_rng(43)
    first, second = rng.normal(size=(2, 20_000, 3))
    second = first * rng.choice([1.0, -1.0], 20_000)[:, None] + second * 10 ** rng.uniform(-9, 1, 20_000)[:, None]
    first[:10], second[:5], second[5:10] = [1, 0, 0], [1, 0, 0], [-1, 0, 0]
    for vectors in (first, second):
        vectors /= np.sqrt((vectors * vectors).sum(axis=1))[:, None]
    close, worst = 0, 0.0
    for a, b in zip(first, second, strict=True):
        exact = metres(chord_squared(*a, *b))
        assert least_distance(chord_squared(*a, *b), True) <= exact + 1e-6 + 1e-9 * exact
        close += least_distance(chord_squared(*a, *b), True) > 0.99 * exact
        # as the vectorised loops have it: rounded places, float32 throughout
        d = a.astype(np.float32) - b.astype(np.float32)
        rounded = np.sqrt(np.float32(least_angle_squared(d[0] * d[0] + d[1] * d[1] + d[2] * d[2])))
        worst = max(worst, float(rounded) - exact / EARTH_RADIUS_M - 1e-6 * exact / EARTH_RADIUS_M)
    assert close > 5_000
    assert 5e-8 < worst < skype_lists._PLACE_SLACK, "no slack would be needed, or more than there is"


def changed(index: Skype, **columns) -> None:
    """Add to columns of the postings."""
    index.lists.settle(index.subscriptions)
    for name, more in columns.items():
        getattr(index.lists.view, name)[:] += more.astype(np.float32)


class WithoutSlack(Skype):
    """Broken: a bound has no slack for places that are rounded."""

    def match(self, batch, first_row=0, most_hits=1 << 21):
        changed(self, base=-self.lists.view.slope * np.float32(skype_lists._PLACE_SLACK))
        return super().match(batch, first_row, most_hits)


class WorldsAlpha(Skype):
    """Broken: takes slope * MaxDist of the world for alpha, as in the plane."""

    def match(self, batch, first_row=0, most_hits=1 << 21):
        v = self.lists.view
        v.alpha[:] = v.slope * (self.max_distance / EARTH_RADIUS_M)
        return super().match(batch, first_row, most_hits)


class WorldsRadius(Skype):
    """Broken: measures proximity by the world's MaxDist, whatever radius a subscription names."""

    def insert(self, table, posted=None):
        return super().insert(SubscriptionTable(**(table._asdict() | {"radius_m": table.radius_m * np.nan})), posted)


class PlanarDistance(Skype):
    """Broken: measures in the projected plane."""

    def insert(self, table, posted=None):
        slots = super().insert(table, posted)
        c = self.subscriptions.columns
        c.x[slots], c.y[slots], c.z[slots] = table.x * 6, table.y * 6, 0.0
        return slots

    def match(self, batch, first_row=0, most_hits=1 << 21):
        flat = np.stack([batch.x * 6, batch.y * 6, 0 * batch.x], axis=1)
        return super().match(type(batch)(**(batch._asdict() | {"vector": flat})), first_row, most_hits)


class FlatBoxes(Skype):
    """Broken: every box lies in the plane of the equator."""

    def match(self, batch, first_row=0, most_hits=1 << 21):
        self.lists.settle(self.subscriptions)
        self.lists.view.node_floats[:, 12:14] = 0.0
        return super().match(batch, first_row, most_hits)


BROKEN = (WithoutSlack, WorldsAlpha, WorldsRadius, PlanarDistance, FlatBoxes)


@pytest.mark.parametrize("engine", BROKEN)
def test_skype_broken_on_the_sphere_is_found_out(engine):
    rng, differing = np.random.default_rng(44), 0
    for _ in range(4):
        table = on_sphere(rng, table_of(rng, 0, 150, terms=6))
        batch = near_to(rng, table, on_sphere(rng, messages_of(rng, 40, terms=6)))
        sound, index = Skype(SPHERE, Pruning(**SMALL)), engine(SPHERE, Pruning(**SMALL))
        slots = sound.insert(table)
        assert np.array_equal(index.insert(table), slots)
        expected = with_exact_thresholds(rng, sound, batch, slots)
        index.set_thresholds(slots, sound.subscriptions.columns.threshold[slots])
        assert found_by(sound, batch) == expected == brute_force(sound.subscriptions, batch, slots)
        differing += found_by(index, batch) != expected
    assert differing, f"{engine.__name__} went unnoticed"
