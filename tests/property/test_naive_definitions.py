"""The oracle against the bare definitions, on streams that hypothesis makes up.

Every result is worked out a second time from all messages at once, in the words of its definition (fewer than k rank
before it; nothing dominates it), and nothing may depend on how the stream is cut into batches.
"""

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from matching.model import BOOLEAN, KNN, MATCH, SKYLINE, TOPK
from matching.naive import boolean_match, common_terms, distance, dominates, skyline_scores, topk_score
from matching.naive_rows import tally
from matching.window import NO_FLOOR, Window, stream_time
from tests.support.naive_tables import batch, boundaries, held, message, replayed, run, subscription

FAR = math.sqrt(2.0)
PLACES = st.sampled_from([0.0, 0.25, 0.5, 1.0])
TERMS = st.sets(st.integers(1, 5), max_size=4)
MESSAGES = st.lists(st.tuples(TERMS, PLACES, PLACES, st.integers(0, 6)), min_size=1, max_size=40)
WANTED = st.lists(
    st.tuples(
        st.sets(st.integers(1, 5), min_size=1, max_size=3),
        PLACES,
        PLACES,
        st.integers(1, 4),
        st.sampled_from([0.0, 0.3, 1.0]),
        st.integers(0, 40),
        st.integers(0, 60),
    ),
    min_size=1,
    max_size=4,
)
WINDOWS = st.sampled_from(["count:1", "count:7", "time:5", "time:30"])
CHECK = settings(max_examples=60, deadline=None, derandomize=True)


def make(kind, rows, wanted, window):
    """Messages, subscriptions of one kind, and where those end that do."""
    by_time = window.startswith("time")
    messages = [
        message(seq, terms, x=x, y=y, life=(seq - late) * 1_000_000 if by_time else seq)
        for seq, (terms, x, y, late) in enumerate(rows)
    ]
    subscriptions = [
        subscription(number, kind, terms, at, x, y, (x / 2, y / 2, x / 2 + 0.5, y / 2 + 0.5), k, alpha)
        for number, (terms, x, y, k, alpha, at, _) in enumerate(wanted)
    ]
    ended = [(number, at + stays) for number, (*_, at, stays) in enumerate(wanted) if stays < 30]
    return messages, subscriptions, ended


def live(messages, window):
    """Messages alive at the end of the stream."""
    lives = batch(messages)[0].life
    floor = Window.parse(window).floor(messages[-1].seq, stream_time(lives, NO_FLOOR))
    return [row for row in messages if row.life > floor]


def standing(subscriptions, ended):
    ends = {number for number, _ in ended}
    return [row for row in subscriptions if row.number not in ends]


@CHECK
@given(MESSAGES, WANTED, WINDOWS, st.integers(1, 9))
def test_topk_result_is_all_that_fewer_than_k_rank_before(rows, wanted, window, size):
    messages, subscriptions, ended = make(TOPK, rows, wanted, window)
    oracle, updates = run(messages, subscriptions, ended, window, size, FAR)
    for one in standing(subscriptions, ended):
        scores = {row.seq: topk_score(one, row, FAR) for row in live(messages, window) if common_terms(one, row)}
        before = {
            seq: sum((other, newer) > (score, seq) for newer, other in scores.items()) for seq, score in scores.items()
        }
        assert held(oracle, one.number) == sorted(
            (seq for seq in scores if before[seq] < one.k), key=lambda seq: before[seq]
        )
    assert replayed(updates) == {
        one.number: set(seqs) for one in standing(subscriptions, ended) if (seqs := held(oracle, one.number))
    }


@CHECK
@given(MESSAGES, WANTED, WINDOWS, st.integers(1, 9))
def test_skyline_result_is_all_that_nothing_dominates(rows, wanted, window, size):
    messages, subscriptions, ended = make(SKYLINE, rows, wanted, window)
    oracle, updates = run(messages, subscriptions, ended, window, size, FAR)
    for one in standing(subscriptions, ended):
        found = {row.seq: skyline_scores(one, row) for row in live(messages, window) if common_terms(one, row)}
        pairs = {seq: scores for seq, scores in found.items() if scores is not None}
        kept = {seq for seq, mine in pairs.items() if not any(dominates(other, mine) for other in pairs.values())}
        assert set(held(oracle, one.number)) == kept
    assert replayed(updates) == {
        one.number: set(seqs) for one in standing(subscriptions, ended) if (seqs := held(oracle, one.number))
    }


@CHECK
@given(MESSAGES, WANTED, st.integers(1, 9))
def test_knn_result_is_the_k_nearest_since_registration(rows, wanted, size):
    messages, subscriptions, ended = make(KNN, rows, wanted, "count:3")
    oracle, updates = run(messages, subscriptions, ended, "count:3", size, FAR)
    for one in standing(subscriptions, ended):
        reached = [row for row in messages if row.seq >= one.at and common_terms(one, row)]
        nearest = sorted((distance(one, row), row.seq) for row in reached)[: one.k]
        assert [(row.score, row.seq) for row in oracle.results() if row.number == one.number] == nearest
    assert set(replayed(updates)) <= {one.number for one in standing(subscriptions, ended)}


@CHECK
@given(MESSAGES, WANTED, st.integers(1, 9))
def test_boolean_matches_are_all_pairs_alive_together_however_batches_are_cut(rows, wanted, size):
    messages, subscriptions, ended = make(BOOLEAN, rows, wanted, "count:3")
    ends = dict(ended)
    _, updates = run(messages, subscriptions, ended, "count:3", size, FAR)
    pairs = {
        (row.seq, one.number, row.seq, MATCH, None): 1
        for one in subscriptions
        for row in messages
        if one.at <= row.seq < ends.get(one.number, 1000) and boolean_match(one, row)
    }
    assert tally(updates) == pairs


@CHECK
@given(MESSAGES, WANTED, WINDOWS, st.sampled_from([TOPK, KNN, SKYLINE]), st.integers(2, 9))
def test_results_at_a_boundary_do_not_depend_on_the_boundaries_before(rows, wanted, window, kind, size):
    messages, subscriptions, ended = make(kind, rows, wanted, window)
    coarse = run(messages, subscriptions, ended, window, size, FAR)[1]
    fine = run(messages, subscriptions, ended, window, 1, FAR)[1]
    for boundary, _ in boundaries(messages, size, Window.parse(window)):
        upto = boundary.last_seq
        assert replayed(row for row in coarse if row.as_of <= upto) == replayed(
            row for row in fine if row.as_of <= upto
        )
