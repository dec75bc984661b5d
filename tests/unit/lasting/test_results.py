"""Results that only get better: order, ties, growth, and what a boundary is told, against a list in plain Python."""

import numpy as np
import pytest

from matching.cumulative.results import A_RESULT, NO_RESULT, POOL_FULL, BestResults, CumulativeRows, offer
from matching.model import DECAY, ENTER, LEAVE
from matching.storage.point_subscriptions import PointSubscriptions
from tests.support.naive_tables import subscription, table

#: The first of an engine compiles it.


def store(ks, since=0):
    """Subscriptions with these k, and their empty results."""
    subscriptions, best = PointSubscriptions(), BestResults()
    slots = subscriptions.insert(table([subscription(number, DECAY, k=k) for number, k in enumerate(ks)]))
    best.begin(slots, np.full(len(ks), since), subscriptions.capacity)
    return subscriptions, best, slots


def put(subscriptions, best, slot, seq, key):
    """Offer until there is room."""
    while (
        said := offer(subscriptions.columns.threshold, subscriptions.columns.k, best.view, slot, seq, key)
    ) == POOL_FULL:
        best.grow()
    return said


@pytest.mark.parametrize("seed", range(6))
def test_results_are_the_best_of_all_offers_and_boundaries_are_told_their_differences(seed):
    rng = np.random.default_rng(seed)
    ks = rng.choice([1, 2, 3, 5, 9, 40, 200], 30)
    subscriptions, best, slots = store(ks.tolist())
    offered: dict[int, list[tuple[float, int]]] = {int(slot): [] for slot in slots}
    before: dict[int, dict[int, float]] = {int(slot): {} for slot in slots}
    seq = 0
    for batch in range(12):
        best.begin_batch(batch, seq)
        for _ in range(40):
            for slot in rng.choice(slots, 12, replace=False).tolist():
                key = float(rng.choice([-np.inf, rng.normal(), 0.0, 1.0]))
                offered[slot].append((-key, seq))
                best_now = sorted(offered[slot])[: ks[slot]]
                said = put(subscriptions, best, slot, seq, key)
                assert said == (A_RESULT if (-key, seq) in best_now else NO_RESULT)
                # the same pair again changes nothing, whatever became of it
                assert put(subscriptions, best, slot, seq, key) == NO_RESULT
            seq += 1
        told = best.end_batch(subscriptions.columns, seq - 1)
        assert (told.as_of == seq - 1).all() and np.all(np.diff(told.change == ENTER) >= 0)
        for slot in offered:
            held = best.rows(np.array([slot], np.int32))
            wanted = [(-key, its) for key, its in sorted(offered[slot])[: ks[slot]]]
            assert list(zip(held.key.tolist(), held.seq.tolist(), strict=True)) == wanted
            full = len(wanted) == ks[slot]
            assert subscriptions.columns.threshold[slot] == (wanted[-1][0] if full else -np.inf)
            now = {its: key for key, its in wanted}
            mine = told.number == subscriptions.columns.number[slot]
            events = {
                change: dict(zip(told.seq[mine & which].tolist(), told.score[mine & which].tolist(), strict=True))
                for change, which in ((LEAVE, told.change == LEAVE), (ENTER, told.change == ENTER))
            }
            assert events[LEAVE] == {its: before[slot][its] for its in before[slot].keys() - now.keys()}
            assert events[ENTER] == {its: now[its] for its in now.keys() - before[slot].keys()}
            before[slot] = now


def test_results_messages_before_registration_are_none_of_its_business():
    subscriptions, best, slots = store([2], since=10)
    best.begin_batch(0, 5)
    assert put(subscriptions, best, slots[0], 9, 5.0) == NO_RESULT
    assert put(subscriptions, best, slots[0], 10, 1.0) == A_RESULT


def test_results_of_minus_infinity_fill_and_stay_behind_the_older():
    subscriptions, best, slots = store([2])
    best.begin_batch(0, 0)
    worst = -np.inf
    assert [put(subscriptions, best, slots[0], seq, worst) for seq in range(3)] == [A_RESULT, A_RESULT, NO_RESULT]
    assert put(subscriptions, best, slots[0], 3, -1e300) == A_RESULT
    assert best.rows(slots).seq.tolist() == [3, 0]


@pytest.mark.parametrize("seed", range(3))
def test_results_loaded_go_on_as_those_offered(seed):
    rng = np.random.default_rng(seed)
    ks = rng.integers(1, 30, 50)
    lengths = np.minimum(rng.integers(0, 30, 50), ks)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    keys = np.concatenate([np.sort(rng.normal(size=n))[::-1] for n in lengths] or [np.zeros(0)])
    rows = CumulativeRows(offsets, rng.permutation(offsets[-1]), keys)
    subscriptions, best, slots = store(ks.tolist(), since=1000)
    best.load(subscriptions.columns, slots, rows)
    held = best.rows(slots)
    assert all(np.array_equal(one, other) for one, other in zip(held, rows, strict=True))
    full = lengths == ks
    thresholds = subscriptions.columns.threshold[slots]
    assert np.array_equal(thresholds[full], keys[offsets[1:][full] - 1]) and (thresholds[~full] == -np.inf).all()
    best.begin_batch(0, 1000)
    for slot in slots.tolist():
        assert put(subscriptions, best, slot, 1000, 100.0) == A_RESULT
    told = best.end_batch(subscriptions.columns, 1000)
    assert (told.change == LEAVE).sum() == full.sum() and (told.change == ENTER).sum() == 50
    best.clear(slots[:25])
    assert best.rows(slots[:25]).seq.shape == (0,)
