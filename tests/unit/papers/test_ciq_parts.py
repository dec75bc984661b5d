"""Parts of engine `ciq`: cells, bounds, buckets, history."""

import math

import numpy as np
import pytest

from benchmarks.workload import changed, make_messages, topk_subscriptions
from matching.decay.scores import key_of, lift
from matching.errors import ConfigError
from matching.half_life import LONGEST_HALF_LIFE_S, SHORTEST_HALF_LIFE_S, DecayParameters
from matching.model import DECAY
from matching.space import EARTH, Space
from papers.ciq.cell_bounds import LEAST_TEXT, bucket_of, is_spatial, reach_of
from papers.ciq.cell_costs import chance_of_cell, chance_of_text, lifetime_of
from papers.ciq.cell_walk import needed_text
from papers.ciq.ciq import Ciq as DecayCiq
from papers.ciq.ciq_bounds import factor_of, scaled_of
from papers.ciq.ciq_history import NOW, MessageHistory
from papers.ciq.quadtree import cells_down_to, distance_to_box, path_to
from papers.ciq.topk import CiqTopk as TopkCiq


def least_text(key, alpha, reach, lifted, away=0.0):
    """What a text must be worth at a time, if the reference is so far ahead of it."""
    reference = lifted + away
    return needed_text(scaled_of(key, alpha, reference), reach, factor_of(reference, lifted))


FADING = DecayParameters.of(30.0, 0.2, np.array([0, 1, 2, 5]), 8)


@pytest.mark.parametrize("x", [0.0, 0.25, 0.5, 0.75, 1.0, np.nextafter(0.5, 0.0), np.nextafter(0.5, 1.0), 1.5])
@pytest.mark.parametrize("y", [0.0, 0.5, 1.0])
def test_cells_of_a_point_are_nested_and_hold_it(x, y):
    path = np.empty(7, np.int64)
    path_to(x, y, 6, path)
    west, south, side = 0.0, 0.0, 1.0
    assert path[0] == 0 and path[-1] < cells_down_to(6)
    for above, cell in zip(path, path[1:], strict=False):
        assert (cell - 1) // 4 == above
        quarter, side = (cell - 1) % 4, side / 2
        west, south = west + side * (quarter & 1), south + side * (quarter >> 1)
        # half-open, but for the outer border
        assert west <= x and (x < west + side or west + side == 1.0)
        assert south <= y and (y < south + side or south + side == 1.0)


def test_distance_to_box_bounds_points_of_the_box_and_beyond_the_outer_border():
    rng = np.random.default_rng(0)
    for _ in range(500):
        x, y, west, south, side = *rng.random(2), *rng.integers(0, 4, 2) / 4, 0.25
        far = distance_to_box(x, y, west, south, side)
        inside = west + side * rng.random(), south + side * rng.random()
        beyond = (inside[0] + 1.0 if west == 0.75 else inside[0]), inside[1]
        for point in (inside, beyond):
            assert far <= math.dist((x, y), point) + 1e-15
    assert distance_to_box(0.5, 0.5, 0.5, 0.25, 0.25) == 0.0


@pytest.mark.parametrize("alpha", [0.0, 1e-9, 0.3, 0.9, 0.9999, 1.0 - 2e-6, 1.0 - 1e-6, 1.0 - 1e-7, 1.0])
@pytest.mark.parametrize("lifted", [0.0, -1e3, 7e2, 1e5, 2e8, -2e8])
def test_least_text_never_keeps_out_what_may_enter(alpha, lifted):
    rng = np.random.default_rng(1)
    kept_out = 0
    for _ in range(300):
        proximity, text, ago, away = rng.random(), rng.random() ** 3, rng.random() * 3, rng.normal() * 40.0
        key = key_of(alpha * rng.random() + (1 - alpha) * rng.random(), lifted - ago)
        new = key_of(alpha * proximity + (1 - alpha) * text, lifted)
        reach = reach_of(alpha, 1.0 - proximity, 1.0)
        least = least_text(key, alpha, reach, lifted, away)
        skipped = least >= (0.0 if is_spatial(alpha) else text)
        assert not (skipped and new > key)
        kept_out += skipped
    assert kept_out > 10, "bounds that keep nobody out"


def test_least_text_allows_for_the_digits_that_an_old_epoch_costs():
    rng, entering = np.random.default_rng(2), 0
    for _ in range(3000):
        lifted, alpha, proximity, text = 2e8 * rng.random(), 0.9 * rng.random(), rng.random(), rng.random()
        away = rng.normal() * 40.0
        key = key_of(alpha * proximity + (1 - alpha) * text, lifted)
        better = text * (1.0 + 1e-7 * rng.random())
        if key_of(alpha * proximity + (1 - alpha) * better, lifted) > key:
            entering += 1
            assert least_text(key, alpha, alpha * proximity / (1.0 - alpha), lifted, away) < better
    assert entering > 100


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_least_text_of_messages_that_are_much_too_late_is_out_of_reach_and_of_early_ones_is_not(alpha):
    reach, key = reach_of(alpha, 0.0, 1.0), 0.0
    for away in (0.0, 40.0, -40.0):
        assert least_text(key, alpha, reach, -1e9, away) >= 1.0
        assert least_text(key, alpha, reach, 1e9, away) < 0.0
        assert least_text(-math.inf, alpha, reach, 1e9, away) < 0.0
    assert needed_text(math.inf, reach, 0.0) == math.inf


def test_buckets_ascend_with_reach_and_place_alone_has_its_own():
    alphas = np.linspace(0.0, 1.0 - LEAST_TEXT, 50)
    buckets = [bucket_of(reach_of(alpha, 0.1, 1.0), alpha, 16, 0.25) for alpha in alphas]
    assert buckets == sorted(buckets) and buckets[0] == 0 and max(buckets) == 15
    assert bucket_of(reach_of(1.0, 0.1, 1.0), 1.0, 16, 0.25) == 16
    assert bucket_of(reach_of(0.9, 5.0, 1.0), 0.9, 16, 0.25) == 0


@pytest.mark.parametrize("width", [0.25, 2.0])
def test_buckets_are_equal_intervals_of_the_reach_and_the_last_is_open(width):
    # definition 6: r * width <= reach < (r + 1) * width
    for nth in range(15):
        inside = (nth * width, (nth + 0.5) * width, np.nextafter(np.float32((nth + 1) * width), np.float32(0.0)))
        assert [bucket_of(reach, 0.9, 16, width) for reach in inside] == [nth] * 3
    assert [bucket_of(reach, 0.9, 16, width) for reach in (15 * width, 16 * width, 1e6, 3e38)] == [15] * 4
    assert bucket_of(-1.0, 0.9, 16, width) == 0


@pytest.mark.parametrize("half_life_s", [1e-304, 5e-324, 9e-7, 1.1e12, 1e308, 0.0, -1.0, math.nan, math.inf])
def test_fading_half_life_that_no_time_can_be_told_by_is_refused(half_life_s):
    with pytest.raises(ConfigError, match="give seconds between 1e-06 and 1e\\+12"):
        DecayParameters.of(half_life_s, 0.2, np.array([1]), 1)


@pytest.mark.parametrize("half_life_s", [SHORTEST_HALF_LIFE_S, LONGEST_HALF_LIFE_S])
def test_fading_keys_of_the_shortest_and_longest_half_life_are_numbers(half_life_s):
    fading = DecayParameters.of(half_life_s, 0.2, np.array([1]), 1)
    for year in (1, 9999):
        lifted = lift((year - 1970) * 31_556_952_000_000, fading)
        assert math.isfinite(key_of(1e-300, lifted)) and math.isfinite(2.0 * lifted * lifted)


@pytest.mark.parametrize("engine", [DecayCiq, TopkCiq], ids=["decay", "topk"])
@pytest.mark.parametrize("buckets", [0, 127, 1000])
def test_ciq_buckets_that_have_no_room_beside_the_cell_are_refused(engine, buckets):
    arguments = (Space(*EARTH), FADING) if engine is DecayCiq else (Space(*EARTH),)
    with pytest.raises(ConfigError, match=f"buckets {buckets}: give 1 to 126"):
        type("Other", (engine,), {"buckets": buckets})(*arguments)
    assert type("Other", (engine,), {"buckets": 126})(*arguments).buckets == 126


def test_history_chances_lie_between_none_and_all():
    history = MessageHistory(3, FADING)
    h = history.view
    assert chance_of_text(h, 2, -0.1) == 1.0 and chance_of_text(h, 2, 1.0) == 0.0
    chances = [chance_of_text(h, 2, least) for least in (0.0, 0.01, 0.1, 0.9)]
    assert chances == sorted(chances, reverse=True) and chances[-1] > 0.0
    assert chance_of_cell(h, 0) == 0.0


def test_history_learns_where_messages_come_from_and_not_from_where_subscriptions_are():
    def chances(learnt):
        engine = DecayCiq(Space(*EARTH), FADING)
        if learnt:
            engine.history.learn(make_messages(5_000, 1, timed=True).batch)
        everybody_in_the_north_east = {"x": np.full(200, 0.9), "y": np.full(200, 0.9)}
        likes = topk_subscriptions(make_messages(500, 1), 200, 1)
        columns = {"kind": np.full(200, DECAY, np.int8), **everybody_in_the_north_east}
        engine.insert(changed(likes, **columns))
        assert engine.history.view.facts[NOW] == -math.inf and engine.history.view.facts[0] == 0.0
        return [chance_of_cell(engine.history.view, cell) for cell in range(1, 5)]

    assert chances(False) == [0.0, 0.0, 0.0, 1.0]
    assert sum(chances(True)) == pytest.approx(1.0) and chances(True)[3] < 0.6


def test_lifetimes_follow_those_that_have_ended_and_are_bounded():
    assert lifetime_of(0.0, 0, 20_000) == 20_000
    assert lifetime_of(1e9, 3, 20_000) == 20_000
    assert lifetime_of(1e5, 999, 20_000) == pytest.approx(120.0)
