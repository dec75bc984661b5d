"""The oracle on streams small enough to be worked out by hand: decay, knn and skyline."""

import math

import pytest

from matching.errors import TopologyError
from matching.model import DECAY, KNN, SKYLINE, TOPK
from matching.naive import Oracle, decay_key, dominates, skyline_scores
from matching.naive_rows import DecayModel
from matching.window import Boundary
from tests.support.naive_tables import batch, events, held, message, removals, replayed, run, subscription, table

MODEL = DecayModel(log_base_per_s=0.5, smoothing=0.25, collection_count={1: 10, 2: 30, 3: 60}, total_tokens=100)

# ---------------------------------------------------------------------------------------------------------- knn


def test_knn_starts_empty_at_registration():
    messages = [message(0, x=0.1), message(1, x=0.5), message(2, x=0.4)]
    oracle, updates = run(messages, [subscription(0, KNN, at=1)], size=3)
    assert held(oracle) == [2]
    assert events(updates) == ["2: enter 2 to 0"]


def test_knn_equal_distance_older_stays():
    messages = [message(0, x=0.5), message(1, y=0.5), message(2, x=-0.3, y=0.4)]
    oracle, updates = run(messages, [subscription(0, KNN)])
    assert held(oracle) == [0]
    assert events(updates) == ["0: enter 0 to 0"]


def test_knn_nearer_message_pushes_out_the_newest_of_the_farthest():
    messages = [message(0, x=0.5), message(1, x=0.5), message(2, x=0.2)]
    oracle, updates = run(messages, [subscription(0, KNN, k=2)])
    assert held(oracle) == [2, 0]
    assert events(updates)[2:] == ["2: leave 1 to 0", "2: enter 2 to 0"]


def test_knn_one_common_keyword_is_enough_and_needed():
    messages = [message(0, (3,), x=0.1), message(1, (2, 9), x=0.9), message(2, (), x=0.0)]
    oracle, _ = run(messages, [subscription(0, KNN, terms=(1, 2), k=5)])
    assert held(oracle) == [1]


def test_knn_outlives_the_window_and_has_the_distance_as_score():
    messages = [message(0, x=0.3, y=0.4), *(message(seq, (9,)) for seq in range(1, 5))]
    oracle, updates = run(messages, [subscription(0, KNN)], window="count:2")
    assert [(row.seq, row.rank, row.score) for row in oracle.results()] == [(0, 1, 0.5)]
    assert [row.score for row in updates] == [0.5]


def test_knn_unsubscribing_tells_leave_for_all_held():
    _, updates = run([message(0), message(1), message(2)], [subscription(0, KNN, k=2)], ended=[(0, 2)])
    assert events(updates)[2:] == ["2: leave 0 to 0", "2: leave 1 to 0"]


# -------------------------------------------------------------------------------------------------------- decay


def test_decay_key_worked_by_hand():
    wanted = subscription(0, DECAY, terms=(1, 2), alpha=0.4)
    got = message(0, (1, 3), x=0.6, y=0.8, counts={1: 3, 3: 1}, time_us=4_000_000)
    in_message = {1: 3 / 4, 2: 0.0}
    text = (0.75 * in_message[1] + 0.25 * 10 / 100) * (0.75 * in_message[2] + 0.25 * 30 / 100)
    relevance = 0.4 * (1.0 - 1.0 / 2.0) + 0.6 * text
    assert decay_key(wanted, got, 2.0, MODEL) == pytest.approx(math.log(relevance) + 4 * 0.5, rel=1e-15)


def test_decay_epoch_shifts_every_key_alike():
    wanted, got = subscription(0, DECAY), message(0, time_us=4_000_000)
    shifted = decay_key(wanted, got, 1.0, MODEL._replace(epoch_us=3_000_000))
    assert decay_key(wanted, got, 1.0, MODEL) - shifted == pytest.approx(1.5)


def test_decay_fresh_message_beats_a_better_one_that_has_faded():
    near, far = message(0, x=0.1, time_us=0), message(1, x=0.5, time_us=10_000_000)
    assert held(run([near, far], [subscription(0, DECAY)], decay=MODEL)[0]) == [1]
    still = MODEL._replace(log_base_per_s=0.0)
    assert held(run([near, far], [subscription(0, DECAY)], decay=still)[0]) == [0]


def test_decay_equal_keys_older_stays():
    oracle, updates = run([message(seq) for seq in range(3)], [subscription(0, DECAY, k=2)], decay=MODEL)
    assert held(oracle) == [0, 1]
    assert events(updates) == ["0: enter 0 to 0", "1: enter 1 to 0"]


def test_decay_smoothed_relevance_without_common_keyword_is_not_eligible():
    oracle, _ = run([message(0, (2,))], [subscription(0, DECAY, terms=(1,))], decay=MODEL)
    assert held(oracle) == []


def test_decay_relevance_of_zero_still_fills_a_result():
    wanted = subscription(0, DECAY, alpha=1.0, k=2)
    oracle, _ = run([message(0, x=1.0), message(1, x=0.5)], [wanted], decay=MODEL)
    assert [(row.seq, row.score) for row in oracle.results()] == [(1, math.log(0.5)), (0, -math.inf)]


def test_decay_starts_empty_and_never_expires():
    messages = [message(seq, (1,) if seq < 2 else (9,)) for seq in range(6)]
    oracle, updates = run(messages, [subscription(0, DECAY, at=1, k=3)], window="count:2", decay=MODEL)
    assert (held(oracle), events(updates)) == ([1], ["1: enter 1 to 0"])


def test_decay_without_model_or_counts_is_refused():
    with pytest.raises(TopologyError, match="decay model"):
        run([message(0)], [subscription(0, DECAY)])
    with pytest.raises(TopologyError, match="counts for message 0"):
        Oracle(None, 1.0, MODEL).advance(
            Boundary(0, 0, 0, -9), batch([message(0)])[0], table([subscription(0, DECAY)]), removals([])
        )


# ------------------------------------------------------------------------------------------------------ skyline

SQUARE = (0.0, 0.0, 2.0, 2.0)


def sky(number=0, terms=(1,), at=0, region=SQUARE):
    return subscription(number, SKYLINE, terms=terms, at=at, region=region)


@pytest.mark.parametrize(
    ("lon", "lat", "spatial"), [(1, 1, 1.0), (2, 2, 0.0), (0, 2, 0.0), (2, 1, 1 - 1 / math.sqrt(2))]
)
def test_skyline_spatial_relevance_falls_from_centre_to_corner(lon, lat, spatial):
    scores = skyline_scores(sky(), message(0, x=lon, y=lat))
    assert scores is not None
    assert scores[0] == pytest.approx(spatial, abs=1e-15)


def test_skyline_text_relevance_is_jaccard():
    assert skyline_scores(sky(terms=(1, 2, 3)), message(0, (2, 3, 4), x=1, y=1)) == (1.0, 2 / 4)


def test_skyline_message_outside_the_region_is_no_candidate():
    assert skyline_scores(sky(), message(0, x=2.000001, y=1)) is None
    assert skyline_scores(sky(), message(0, x=1, y=-0.000001)) is None


def test_skyline_region_without_area_holds_its_point():
    assert skyline_scores(sky(region=(1, 1, 1, 1)), message(0, x=1, y=1)) == (1.0, 1.0)


def test_skyline_corner_point_stays_a_candidate():
    oracle, _ = run([message(0, x=2, y=2)], [sky()])
    assert [row.seq for row in oracle.results()] == [0]


def test_dominates_equal_pairs_do_not_dominate_each_other():
    assert not dominates((0.5, 0.5), (0.5, 0.5))
    assert dominates((0.5, 0.6), (0.5, 0.5))
    assert not dominates((0.6, 0.4), (0.5, 0.5))


def test_skyline_keeps_what_is_nearer_or_closer_in_text():
    messages = [
        message(0, (1, 7, 8), x=1.0, y=1.0),
        message(1, (1,), x=1.9, y=1.0),
        message(2, (1, 7), x=1.4, y=1.0),
        message(3, (1, 7, 8), x=1.5, y=1.0),
        message(4, (5,), x=1.0, y=1.0),
    ]
    oracle, _ = run(messages, [sky()])
    rows = oracle.results()
    assert [row.seq for row in rows] == [0, 2, 1]
    assert [row.text_score for row in rows] == [1 / 3, 1 / 2, 1.0]


def test_skyline_coincident_messages_all_stay():
    oracle, _ = run([message(0, x=1.5, y=1), message(1, x=0.5, y=1), message(2, x=1.5, y=1)], [sky()])
    assert held(oracle) == [0, 1, 2]


def test_skyline_dominated_message_returns_when_its_dominator_expires():
    messages = [message(0, x=1.0, y=1.0), message(1, x=1.5, y=1.0), message(2, (9,)), message(3, (9,))]
    _, updates = run(messages, [sky()], window="count:3")
    assert events(updates) == ["0: enter 0 to 0", "3: leave 0 to 0", "3: enter 1 to 0"]


def test_skyline_late_message_dead_on_arrival_neither_enters_nor_dominates():
    messages = [
        message(0, x=1.5, y=1.0, life=5_000_000),
        message(1, x=1.0, y=1.0, life=3_000_000),
        message(2, x=1.0, y=1.0, life=3_000_001),
    ]
    _, updates = run(messages, [sky()], window="time:2")
    assert events(updates) == ["0: enter 0 to 0", "2: leave 0 to 0", "2: enter 2 to 0"]


def test_skyline_starts_from_the_window():
    _, updates = run([message(0, x=1, y=1), message(1, (9,)), message(2, (9,))], [sky(at=2)])
    assert events(updates) == ["2: enter 0 to 0"]


def test_skyline_deleted_object_leaves_and_what_it_dominated_returns():
    messages = [message(0, x=1, y=1, of="a"), message(1, x=1.5, y=1, of="b"), message(2, (), of="a", op=1)]
    _, updates = run(messages, [sky()])
    assert events(updates) == ["0: enter 0 to 0", "2: leave 0 to 0", "2: enter 1 to 0"]


def test_skyline_new_version_replaces_the_old_wherever_it_is():
    messages = [message(0, x=1, y=1, of="a"), message(1, x=50, y=50, of="a"), message(2, (9,))]
    oracle, updates = run(messages, [sky(), sky(1, at=2)])
    assert events(updates) == ["0: enter 0 to 0", "1: leave 0 to 0"]
    assert oracle.results() == []


def test_skyline_deletion_itself_is_no_candidate_even_with_keywords():
    oracle, _ = run([message(0, x=1, y=1, of="a", op=1), message(1, (9,))], [sky(), sky(1, at=1)])
    assert oracle.results() == []


def test_skyline_object_published_again_after_deletion_is_back():
    messages = [message(0, x=1, y=1, of="a"), message(1, (), of="a", op=1), message(2, x=1, y=1, of="a")]
    oracle, _ = run(messages, [sky()])
    assert held(oracle) == [2]


def test_topk_takes_versions_and_deletions_for_messages_like_any_other():
    messages = [message(0, x=0.1, of="a"), message(1, x=0.2, of="a"), message(2, x=0.3, of="a", op=1)]
    oracle, _ = run(messages, [subscription(0, TOPK, k=9)])
    assert held(oracle) == [0, 1, 2]


def test_kinds_side_by_side_do_not_disturb_each_other():
    messages = [message(seq, (1, seq % 3 + 2), x=(seq * 7 % 11) / 10, y=(seq * 5 % 11) / 10) for seq in range(30)]
    several = [
        subscription(0, TOPK, (1, 2), k=3),
        subscription(1, DECAY, (2,), at=7, k=2),
        subscription(2, KNN, (3,), at=4, k=4),
        sky(3, (1, 4), region=(0, 0, 1, 1)),
    ]
    together, updates = run(messages, several, [(2, 20)], "count:9", 4, decay=MODEL)
    assert replayed(updates) == {number: set(held(together, number)) for number in (0, 1, 3)}
    for one in several:
        alone, only = run(messages, [one], [(2, 20)] if one.number == 2 else [], "count:9", 4, decay=MODEL)
        assert [row for row in updates if row.number == one.number] == only
        assert held(alone, one.number) == held(together, one.number)


def test_decay_without_keywords_is_proximity_times_fading_of_a_message_without_words_too():
    model = DecayModel(0.5, 0.2, {}, 0)
    wanted = subscription(0, DECAY, terms=(), alpha=0.3)
    rows = [message(seq, terms=(), x=0.5, time_us=seq * 1_000_000, visible=True) for seq in range(2)]
    assert [decay_key(wanted, row, 1.0, model) for row in rows] == [math.log(0.5), math.log(0.5) + 0.5]
    oracle, _ = run(rows, [wanted], decay=model)
    assert held(oracle) == [1]


def test_skyline_reserved_term_is_no_word_of_a_message():
    wanted = subscription(0, SKYLINE, terms=(1, 2), region=(-1, -1, 1, 1))
    seen, other = message(0, terms=(1,), visible=True), message(1, terms=(1,), x=0.5)
    oracle, _ = run([seen, other], [wanted])
    assert [(row.seq, row.text_score) for row in oracle.results()] == [(0, 0.5)]
