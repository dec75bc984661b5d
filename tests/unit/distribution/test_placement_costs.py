"""Costs of placement against plain counting, and what each kind of subscription asks for."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distribution.placement.costs import LEAST_MESSAGES, SampleCosts, UniformCosts, areas
from distribution.placement.demand import demand_of
from matching.kinds import KINDS
from matching.model import ANY_KEYWORD, KEYWORDS_BY_KIND, UNKNOWN_TERM, SubscriptionTable
from matching.space import Space
from tests.support.placements import SPACE, costs_of, draw_messages, draw_subscriptions

TRAITS = KINDS.traits
SEEDS = st.integers(0, 2**32 - 1)


def words_of(offsets, words, row):
    return words[offsets[row] : offsets[row + 1]].tolist()


def share(messages, box, term=None) -> float:
    """P(R, w), or P(R), message by message."""
    west, south, east, north = box
    found = 0
    for row in range(len(messages)):
        inside = west <= messages.x[row] <= east and south <= messages.y[row] <= north
        carries = term is None or term in words_of(messages.term_offsets, messages.terms, row)
        found += inside and carries
    return found / len(messages)


@settings(deadline=None)
@given(seed=SEEDS, messages=st.integers(1, 40))
def test_costs_equal_a_plain_count(seed, messages):
    rng = np.random.default_rng(seed)
    sample = draw_messages(rng, messages)
    costs, table = costs_of(sample), draw_subscriptions(rng, 8)
    demand = demand_of(table, TRAITS, SPACE, costs)
    numbered = costs.numbered(np.arange(14, dtype=np.int32))
    whole = costs.of_words(demand.box, demand.offsets, demand.words)
    for row in range(len(table)):
        box = demand.box[row]
        of_all = costs.in_box(box)
        assert costs.of_boxes(box[None])[0] == pytest.approx(share(sample, box))
        for term in range(14):
            assert of_all[numbered[term]] == pytest.approx(share(sample, box, term))
        strict = TRAITS.all_keywords[table.kind[row]] and table.match[row] != ANY_KEYWORD
        terms = words_of(table.term_offsets, table.terms, row)
        met_by = terms[:1] if strict else terms
        assert whole[row] == pytest.approx(sum(share(sample, box, term) for term in met_by))
    assert costs.share[numbered] == pytest.approx([share(sample, costs.world, term) for term in range(14)])


@settings(deadline=None)
@given(seed=SEEDS, messages=st.integers(0, 40))
def test_radius_is_the_distance_of_the_kth_message_with_a_keyword(seed, messages):
    rng = np.random.default_rng(seed)
    sample, table = draw_messages(rng, messages), draw_subscriptions(rng, 8)
    costs = costs_of(sample)
    x, y, k = rng.random(8), rng.random(8) / 2, rng.integers(1, 6, 8).astype(np.int32)
    got = costs.radius(x, y, k, table.term_offsets, costs.numbered(table.terms))
    for row in range(8):
        wanted = set(words_of(table.term_offsets, table.terms, row))
        distances = sorted(
            math.dist((sample.x[each], sample.y[each]), (x[row], y[row]))
            for each in range(messages)
            if wanted & set(words_of(sample.term_offsets, sample.terms, each))
        )
        expected = distances[k[row] - 1] if len(distances) >= k[row] else math.inf
        assert got[row] == pytest.approx(expected)


@settings(deadline=None)
@given(costs=st.lists(st.floats(0, 5), min_size=1, max_size=200), seed=SEEDS)
def test_rounded_costs_add_up_to_nothing_in_any_order(costs, seed):
    rounded = UniformCosts(SPACE, np.zeros(0, np.int64), 1000).rounded(np.array(costs))
    load = 0.0
    for cost in rounded:
        load += cost
    for cost in np.random.default_rng(seed).permutation(rounded):
        load -= cost
    assert load == 0.0
    assert rounded.min() >= LEAST_MESSAGES / 1000 - 2**-30
    assert np.abs(rounded - np.maximum(costs, LEAST_MESSAGES / 1000)).max() <= 2**-30


def test_uniform_costs_are_shares_of_the_vocabulary_and_of_the_area():
    costs = UniformCosts(SPACE, np.array([1, 5, 10]), 20)
    quarter = np.array([0.0, 0.0, 0.5, 0.25])
    assert costs.in_box(quarter).tolist() == [1 / 80, 5 / 80, 10 / 80, 0.0]
    assert costs.numbered(np.array([0, 2, 3, 99, UNKNOWN_TERM], np.int32)).tolist() == [0, 2, 3, 3, 3]
    offsets, words = np.array([0, 2]), np.array([0, 2], np.int32)
    assert costs.of_words(quarter[None], offsets, words)[0] == pytest.approx(11 / 80)
    assert np.all(np.isinf(costs.radius(np.zeros(1), np.zeros(1), np.ones(1, np.int32), offsets, words)))
    line = UniformCosts(Space(0.0, 0.0, 10.0, 0.0), np.array([1]), 1)
    assert line.of_boxes(np.array([[0.0, 0.0, 0.5, 0.0]])).tolist() == [0.5]


def test_costs_of_no_message_are_the_least_ones():
    costs = SampleCosts(SPACE, draw_messages(np.random.default_rng(0), 0))
    demand = demand_of(draw_subscriptions(np.random.default_rng(1), 20), TRAITS, SPACE, costs)
    assert set(costs.rounded(costs.of_words(demand.box, demand.offsets, demand.words))) == {LEAST_MESSAGES}


# -- what is asked for


def one_of(kind: str, **columns) -> SubscriptionTable:
    rng = np.random.default_rng(3)
    table = draw_subscriptions(rng, 1, kinds=(kind,))
    text = {"term_offsets": np.array([0, 2]), "terms": np.array([2, 11], np.int32), "weights": np.ones(2, np.float32)}
    return SubscriptionTable(**table._asdict() | text | columns)


@pytest.mark.parametrize("kind", ["topk", "decay"])
def test_demand_of_scores_is_everywhere_by_all_keywords(kind):
    costs = costs_of(draw_messages(np.random.default_rng(4), 50))
    demand = demand_of(one_of(kind), TRAITS, SPACE, costs)
    assert demand.everywhere[0] and demand.box[0].tolist() == [0.0, 0.0, 1.0, 0.5] and len(demand.words) == 2


def test_demand_of_the_nearest_is_the_square_around_their_ball_within_the_world():
    messages = draw_messages(np.random.default_rng(4), 200)
    costs, at = costs_of(messages), {"x": np.array([0.9]), "y": np.array([0.2]), "k": np.array([3], np.int32)}
    demand = demand_of(one_of("knn", **at), TRAITS, SPACE, costs)
    carries = np.add.reduceat(np.append(np.isin(messages.terms, [2, 11]), False), messages.term_offsets[:-1]) > 0
    carries &= np.diff(messages.term_offsets) > 0
    radius = np.sort(np.hypot(messages.x[carries] - 0.9, messages.y[carries] - 0.2))[2]
    square = np.array([0.9 - radius, 0.2 - radius, 0.9 + radius, 0.2 + radius])
    assert np.allclose(demand.box[0], np.clip(square, [0, 0, 0, 0], [1, 0.5, 1, 0.5])) and not demand.everywhere[0]
    rare = one_of("knn", **at | {"k": np.array([10_000], np.int32)})
    assert demand_of(rare, TRAITS, SPACE, costs).everywhere[0], "fewer than k known: it may be anywhere"


def test_demand_of_all_keywords_is_by_the_rarest_alone():
    costs = costs_of(draw_messages(np.random.default_rng(4), 200))
    region = {"region": np.array([[0.0, 0.0, 45.0, 45.0]]), "match": np.array([KEYWORDS_BY_KIND], np.int8)}
    demand = demand_of(one_of("boolean", **region), TRAITS, SPACE, costs)
    assert demand.words.tolist() == costs.numbered(np.array([2], np.int32)).tolist() and demand.rarest[0] == 2
    assert demand.box[0].tolist() == [0.5, 0.25, 0.625, 0.375] and (demand.x[0], demand.y[0]) == (0.5625, 0.3125)
    loose = demand_of(one_of("boolean", **region | {"match": np.array([ANY_KEYWORD], np.int8)}), TRAITS, SPACE, costs)
    assert len(loose.words) == 2
    never = one_of("boolean", **region | {"terms": np.array([2, UNKNOWN_TERM], np.int32)})
    assert len(demand_of(never, TRAITS, SPACE, costs).words) == 0, "it cannot match, so nobody meets it"
    assert len(demand_of(one_of("skyline", **region), TRAITS, SPACE, costs).words) == 2


def test_demand_across_the_antimeridian_is_the_whole_belt():
    costs = costs_of(draw_messages(np.random.default_rng(4), 20))
    table = one_of("boolean", region=np.array([[170.0, 0.0, -170.0, 45.0]]))
    assert demand_of(table, TRAITS, SPACE, costs).box[0].tolist() == [0.0, 0.25, 1.0, 0.375]


def test_areas_of_what_is_turned_inside_out_are_nothing():
    assert areas(np.array([[0.0, 0.0, 2.0, 3.0], [1.0, 0.0, 0.0, 1.0]])).tolist() == [6.0, 0.0]
