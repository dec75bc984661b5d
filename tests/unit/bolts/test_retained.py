"""Messages in cumulative results, though another thread compacts what is logged of them."""

from collections import Counter

import numpy as np
import pytest

import bolts.retained as module
from bolts.retained import RetainedMessages, _summed
from matching.model import ENTER, LEAVE, UpdateBatch

KIND = 3


def batch_of(rng, members, first, subscriptions):
    """Updates of a batch: some of `members`, pairs of subscription and seq, leave, and others enter."""
    leaving = [pair for pair in sorted(members) if rng.random() < 0.3]
    entering = {(int(rng.integers(subscriptions)), int(first + rng.integers(20))) for _ in range(12)} - members
    members -= set(leaving)
    members |= entering
    rows = [(*pair, LEAVE) for pair in leaving] + [(*pair, ENTER) for pair in sorted(entering)]
    number, seq, change = np.array(rows, np.int64).reshape(-1, 3).T.copy()
    return UpdateBatch(seq, number, seq, change.astype(np.int8), np.zeros(seq.shape[0]))


@pytest.mark.parametrize("seed", range(20))
def test_retained_messages_that_snapshots_compact_are_those_of_one_without(monkeypatch, seed):
    monkeypatch.setattr(module, "_FEW", 150)
    rng = np.random.default_rng(seed)
    plain, saved = RetainedMessages([KIND]), RetainedMessages([KIND])
    for each in (plain, saved):
        each.change(np.full(30, KIND, np.int8), np.zeros(0, np.int64))
    members, gone, snapshots, adopted, compared = set(), set(), [], 0, 0
    for turn in range(60):
        updates = batch_of(rng, members, 10 * turn, 30)
        for each in (plain, saved):
            each.note(updates)
        if rng.random() < 0.1:
            gone.add(int(rng.integers(30)))
            for each in (plain, saved):
                each.change(np.zeros(0, np.int8), np.array(sorted(gone), np.int64))
        if rng.random() < 0.5:
            snapshots.append((saved.snapshot(), {seq for number, seq in members if number not in gone}))
        if snapshots and rng.random() < 0.5:  # made late, and perhaps not in order
            snapshot, expected = snapshots.pop(-1 if rng.random() < 0.8 else 0)
            assert set(snapshot.messages().tolist()) == expected
            compared += len(expected)
            before = len(saved._log)
            saved._adopt()
            adopted += len(saved._log) < before
    assert compared > 100 and adopted
    state, again = plain.state(), saved.state()
    assert {name: values.tolist() for name, values in state.items()} == {
        name: values.tolist() for name, values in again.items()
    }
    assert set(saved.messages().tolist()) == {seq for number, seq in members if number not in gone}


@pytest.mark.parametrize("numbers", [60, 2**61])
@pytest.mark.parametrize("least", [0, 10**15])
def test_sum_of_balances_is_that_of_a_counter_whatever_a_key_holds(numbers, least):
    rng = np.random.default_rng(5)
    for lowest in (-2, -3):
        number, seq = rng.integers(0, 60, 4_000), least + rng.integers(0, 60, 4_000)
        balance = rng.integers(lowest, 2, 4_000).astype(np.int8)
        expected = Counter()
        for key, each in zip(zip(seq.tolist(), number.tolist(), strict=True), balance.tolist(), strict=True):
            expected[key] += each
        found = _summed(number, seq, balance, numbers)
        rows = list(zip(*(column.tolist() for column in found), strict=True))
        assert rows == [(n, s, expected[s, n]) for s, n in sorted(expected) if expected[s, n]] and len(rows) > 1_000
