"""The oracle on streams small enough to be worked out by hand: boolean and topk, changes and boundaries."""

import math

import numpy as np
import pytest

from matching.errors import TopologyError
from matching.model import BOOLEAN, LEAVE, MATCH, TOPK, UNKNOWN_TERM, UpdateBatch
from matching.naive import Oracle, boolean_match, boxes, topk_score
from matching.naive_rows import NaiveUpdate, tally
from matching.window import Boundary, Window
from tests.support.naive_tables import batch, events, held, message, removals, replayed, run, subscription, table

# ------------------------------------------------------------------------------------------------------- boolean


@pytest.mark.parametrize(
    ("lon", "lat", "inside"),
    [(0, 0, True), (10, 5, True), (0, 5, True), (10.000001, 5, False), (5, -0.000001, False), (5, 2, True)],
)
def test_boolean_point_on_closed_border_matches(lon, lat, inside):
    wanted = subscription(0, BOOLEAN, region=(0, 0, 10, 5))
    assert boolean_match(wanted, message(0, x=lon, y=lat)) is inside


@pytest.mark.parametrize(
    ("box", "meets"),
    [
        ((10, 5, 20, 20), True),  # corner to corner
        ((10.1, 5, 20, 20), False),
        ((-50, -50, 50, 50), True),  # around it
        ((2, 2, 3, 3), True),  # within it
        ((-5, 1, 15, 2), True),  # across it, no corner inside
    ],
)
def test_boolean_range_message_that_meets_region_matches(box, meets):
    assert boolean_match(subscription(0, BOOLEAN, region=(0, 0, 10, 5)), message(0, box=box)) is meets


@pytest.mark.parametrize(
    ("lon", "inside"), [(180.0, True), (-180.0, True), (170.0, True), (-170.0, True), (0.0, False), (-169.9, False)]
)
def test_boolean_region_across_antimeridian_holds_both_sides(lon, inside):
    wanted = subscription(0, BOOLEAN, region=(170, -10, -170, 10))
    assert boolean_match(wanted, message(0, x=lon)) is inside


def test_boolean_region_across_antimeridian_met_twice_gives_one_event():
    wanted = subscription(0, BOOLEAN, region=(170, -10, -170, 10))
    _, updates = run([message(0, box=(-180, 0, 180, 0))], [wanted])
    assert events(updates) == ["0: match 0 to 0"]


def test_boolean_region_that_ends_at_180_does_not_wrap():
    wanted = subscription(0, BOOLEAN, region=(170, -10, 180, 10))
    assert boolean_match(wanted, message(0, x=180.0))
    assert not boolean_match(wanted, message(0, x=-180.0))
    assert len(boxes((170, -10, 180, 10))) == 1


def test_boolean_needs_all_keywords():
    wanted = subscription(0, BOOLEAN, terms=(2, 5))
    _, updates = run([message(0, (2,)), message(1, (1, 2, 5, 9)), message(2, (5, 6)), message(3, ())], [wanted])
    assert events(updates) == ["1: match 1 to 0"]


def test_boolean_with_unknown_keyword_never_matches():
    _, updates = run([message(0, (2,))], [subscription(0, BOOLEAN, terms=(2, UNKNOWN_TERM))])
    assert updates == []


def test_boolean_change_inside_batch_is_exact_at_its_seq():
    messages = [message(seq) for seq in range(6)]
    _, updates = run(messages, [subscription(0, BOOLEAN, at=2)], ended=[(0, 4)], size=6)
    assert events(updates) == ["2: match 2 to 0", "3: match 3 to 0"]


def test_boolean_match_has_the_seq_of_the_message_and_no_score():
    _, updates = run([message(0), message(1, (9,))], [subscription(0, BOOLEAN)], size=2)
    assert [row[:4] for row in updates] == [(0, 0, 0, MATCH)]
    assert math.isnan(updates[0].score)


def test_boolean_subscription_that_ends_where_it_begins_matches_nothing():
    _, updates = run([message(0), message(1)], [subscription(0, BOOLEAN, at=1)], ended=[(0, 1)])
    assert updates == []


# ---------------------------------------------------------------------------------------------------------- topk


def test_topk_score_worked_by_hand():
    wanted = subscription(0, TOPK, terms={1: 0.6, 2: 0.8}, x=0.0, y=0.0, alpha=0.25)
    got = topk_score(wanted, message(0, {1: 0.8, 3: 0.6}, x=0.3, y=0.4), max_distance=2.0)
    assert got == 0.25 * (1.0 - 0.5 / 2.0) + (1.0 - 0.25) * (0.6 * 0.8)


def test_topk_adds_products_in_ascending_term_order():
    weights = {1: 0.1, 2: 0.2, 3: 0.5}
    wanted = subscription(0, TOPK, terms=weights, alpha=0.0)._replace(weights=dict(reversed(weights.items())))
    ascending = 0.1 * 0.1 + 0.2 * 0.2 + 0.5 * 0.5
    assert ascending != 0.5 * 0.5 + 0.2 * 0.2 + 0.1 * 0.1, "these weights do not tell the orders apart"
    assert topk_score(wanted, message(0, weights), 1.0) == ascending


@pytest.mark.parametrize(("alpha", "order"), [(1.0, [1, 0]), (0.0, [0, 1])])
def test_topk_alpha_at_its_ends_ranks_by_place_or_text_alone(alpha, order):
    messages = [message(0, {1: 1.0}, x=0.9), message(1, {1: 0.5, 2: 0.8}, x=0.1)]
    oracle, _ = run(messages, [subscription(0, TOPK, k=2, alpha=alpha)])
    assert held(oracle) == order


def test_topk_alpha_one_still_needs_a_common_keyword():
    oracle, updates = run([message(0, (2,)), message(1, ())], [subscription(0, TOPK, k=2, alpha=1.0)])
    assert (held(oracle), updates) == ([], [])


def test_topk_equal_scores_newer_ranks_first_and_pushes_out_the_older():
    oracle, updates = run([message(seq) for seq in range(3)], [subscription(0, TOPK, k=2)])
    assert held(oracle) == [2, 1]
    assert events(updates) == ["0: enter 0 to 0", "1: enter 1 to 0", "2: leave 0 to 0", "2: enter 2 to 0"]


def test_topk_message_leaves_exactly_when_the_count_window_has_moved_past_it():
    messages = [message(0), message(1, (9,)), message(2, (9,)), message(3, (9,))]
    _, updates = run(messages, [subscription(0, TOPK)], window="count:3")
    assert events(updates) == ["0: enter 0 to 0", "3: leave 0 to 0"]


def test_topk_expiry_brings_back_a_worse_message_that_is_still_alive():
    messages = [message(0, x=0.1), message(1, x=0.4), message(2, x=0.6), message(3, (9,))]
    _, updates = run(messages, [subscription(0, TOPK)], window="count:3")
    assert events(updates) == ["0: enter 0 to 0", "3: leave 0 to 0", "3: enter 1 to 0"]


def test_topk_k_larger_than_window_holds_all_of_it():
    oracle, _ = run([message(seq, x=seq / 10) for seq in range(5)], [subscription(0, TOPK, k=50)], window="count:3")
    assert held(oracle) == [2, 3, 4]


def test_topk_time_window_is_open_at_its_old_end():
    lives = [0, 1_000_000, 1_999_999, 2_000_000]
    messages = [message(seq, (1,) if seq == 0 else (9,), life=life) for seq, life in enumerate(lives)]
    _, updates = run(messages, [subscription(0, TOPK)], window="time:2")
    assert events(updates) == ["0: enter 0 to 0", "3: leave 0 to 0"]


def test_topk_late_message_dead_on_arrival_never_enters():
    messages = [message(0, (9,), life=5_000_000), message(1, life=3_000_000), message(2, life=3_000_001)]
    _, updates = run(messages, [subscription(0, TOPK, k=5)], window="time:2")
    assert events(updates) == ["2: enter 2 to 0"]


def test_topk_late_message_expires_by_its_own_time_not_by_its_seq():
    lives = [4_000_000, 2_500_000, 4_500_000]
    messages = [message(seq, (1,) if seq < 2 else (9,), life=life) for seq, life in enumerate(lives)]
    oracle, updates = run(messages, [subscription(0, TOPK, k=5)], window="time:2")
    assert held(oracle) == [0]
    assert events(updates) == ["0: enter 0 to 0", "1: enter 1 to 0", "2: leave 1 to 0"]


def test_topk_new_subscription_starts_from_the_window_at_the_next_boundary():
    messages = [message(seq) for seq in range(6)]
    _, updates = run(messages, [subscription(0, TOPK, at=3, k=9)], window="count:4", size=2)
    assert events(updates) == [f"3: enter {seq} to 0" for seq in range(4)] + [
        *(f"5: leave {seq} to 0" for seq in (0, 1)),
        *(f"5: enter {seq} to 0" for seq in (4, 5)),
    ]


def test_topk_message_that_came_and_went_between_boundaries_is_not_told():
    messages = [message(0, x=0.5), message(1, x=0.4), message(2, x=0.1), message(3, (9,))]
    _, updates = run(messages, [subscription(0, TOPK)], size=4)
    assert events(updates) == ["3: enter 2 to 0"]


def test_topk_unsubscribing_tells_leave_for_all_held_at_the_boundary_of_that_batch():
    messages = [message(seq, x=seq / 10) for seq in range(4)]
    _, updates = run(messages, [subscription(0, TOPK, k=2)], ended=[(0, 2)], size=2)
    assert events(updates) == ["1: enter 0 to 0", "1: enter 1 to 0", "3: leave 0 to 0", "3: leave 1 to 0"]
    told = {row.seq: row.score for row in updates if row.change != LEAVE}
    assert {row.seq: row.score for row in updates if row.change == LEAVE} == told


def test_topk_replaced_subscription_leaves_the_old_result_and_enters_the_new_without_cancelling():
    messages = [message(0), message(1, (9,))]
    _, updates = run(messages, [subscription(0, TOPK), subscription(1, TOPK, at=1)], ended=[(0, 1)])
    assert events(updates) == ["0: enter 0 to 0", "1: leave 0 to 0", "1: enter 0 to 1"]


def test_topk_added_and_removed_within_one_batch_tells_nothing():
    _, updates = run([message(seq) for seq in range(4)], [subscription(0, TOPK, at=1)], ended=[(0, 3)], size=4)
    assert updates == []


def test_topk_change_of_rank_alone_is_no_event():
    messages = [message(0, x=0.3), message(1, x=0.1)]
    oracle, updates = run(messages, [subscription(0, TOPK, k=2)])
    assert held(oracle) == [1, 0]
    assert events(updates) == ["0: enter 0 to 0", "1: enter 1 to 0"]


def test_topk_replayed_updates_give_the_results():
    messages = [message(seq, x=(seq * 7 % 10) / 10) for seq in range(20)]
    oracle, updates = run(messages, [subscription(0, TOPK, k=3), subscription(1, TOPK, k=2)], window="count:5", size=3)
    assert replayed(updates) == {0: set(held(oracle, 0)), 1: set(held(oracle, 1))}


# ------------------------------------------------------------------------------------------- boundaries and state


def advance(oracle: Oracle, boundary: Boundary, rows=(), new=(), old=()):
    return oracle.advance(boundary, batch(list(rows))[0], table(list(new)), removals(list(old)))


def test_advance_empty_batch_applies_changes():
    oracle = Oracle(Window.parse("count:5"), 1.0)
    advance(oracle, Boundary(0, 0, 0, -5), [message(0)], [subscription(0, TOPK)])
    updates = advance(oracle, Boundary(1, 1, 0, -5), old=[(0, 1)])
    assert events(updates) == ["0: leave 0 to 0"]


def test_advance_wrong_floor_is_refused():
    oracle = Oracle(Window.parse("count:5"), 1.0)
    with pytest.raises(TopologyError, match="wrong floor"):
        advance(oracle, Boundary(0, 0, 0, -4), [message(0)])


def test_advance_floor_below_the_time_window_is_refused():
    oracle = Oracle(Window.parse("time:1"), 1.0)
    with pytest.raises(TopologyError, match="wrong floor"):
        advance(oracle, Boundary(0, 0, 0, 3_999_999), [message(0, life=5_000_000)])


def test_advance_repeated_or_skipped_batch_is_refused():
    oracle = Oracle(None, 1.0)
    advance(oracle, Boundary(0, 0, 1, -9), [message(0), message(1)])
    for first in (0, 3):
        with pytest.raises(TopologyError, match="does not follow"):
            advance(oracle, Boundary(1, first, 5, -9))


def test_advance_message_outside_its_batch_is_refused():
    for seq in (-1, 2):
        with pytest.raises(TopologyError, match="ascending seq"):
            advance(Oracle(None, 1.0), Boundary(0, 0, 1, -9), [message(seq)])


def test_advance_removal_of_unknown_number_is_refused():
    with pytest.raises(TopologyError, match="cannot be removed"):
        advance(Oracle(None, 1.0), Boundary(0, 0, 0, -9), [message(0)], old=[(7, 0)])


def test_advance_number_in_use_is_refused():
    with pytest.raises(TopologyError, match="in use"):
        advance(Oracle(None, 1.0), Boundary(0, 0, 0, -9), [message(0)], [subscription(0, TOPK), subscription(0, TOPK)])


def test_tally_repeated_event_counts_twice_and_nan_scores_compare():
    three, zero = np.array([3, 3]), np.array([0, 0])
    rows = UpdateBatch(three, zero, three, np.array([MATCH, MATCH], np.int8), np.array([math.nan, math.nan]))
    assert tally(rows) == {(3, 0, 3, MATCH, None): 2}
    assert tally(rows) - tally([NaiveUpdate(3, 0, 3, MATCH, math.nan)]) == {(3, 0, 3, MATCH, None): 1}


# ------------------------------------------------------------------------------------------------- without keywords


def test_boolean_without_keywords_meets_what_is_visible_in_its_region_with_or_without_words():
    wanted = subscription(0, BOOLEAN, terms=(), region=(0, 0, 10, 5))
    rows = [
        message(0, terms=(), x=1, y=1, visible=True),
        message(1, terms=(3,), x=1, y=1, visible=True),
        message(2, terms=(3,), x=20, y=1, visible=True),
        message(3, terms=(), x=1, y=1),
        message(4, terms=(), x=1, y=1, op=1),
    ]
    assert events(run(rows, [wanted])[1]) == ["0: match 0 to 0", "1: match 1 to 0"]


def test_topk_without_keywords_ranks_by_place_whatever_its_alpha():
    wanted = subscription(0, TOPK, terms=(), k=2, alpha=0.1)
    near, far = message(0, terms=(1,), x=0.1, visible=True), message(1, terms=(), x=0.3, visible=True)
    nearest, hidden = message(2, terms=(2, 3), visible=True), message(3, terms=(1,))
    oracle, _ = run([near, far, nearest, hidden], [wanted])
    assert held(oracle) == [2, 0]
    assert topk_score(wanted, near, 1.0) == 1.0 - 0.1


def test_subscription_without_keywords_starts_from_the_window_and_ends():
    wanted = subscription(0, TOPK, terms=(), at=2, k=5)
    rows = [message(seq, terms=(), x=seq / 10, visible=True) for seq in range(4)]
    _, updates = run(rows, [wanted], ended=[(0, 3)])
    entered, left = [[f"{word} {seq} to 0" for seq in range(3)] for word in ("2: enter", "3: leave")]
    assert events(updates) == [*entered, *left]
