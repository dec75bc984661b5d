"""The benchmark of push: clients' books of a real server are held against the oracle, and one lost event is noticed."""

import numpy as np
import pytest

from benchmarks import push
from benchmarks.push_load import Received, books, expected, make_messages, make_subscriptions, words_of


def received(pairs, a_client=20):
    subscription, message = np.array(pairs, np.int64).T
    return Received(np.zeros(len(pairs)), subscription // a_client, subscription, message)


def test_books_tell_what_is_missing_extra_repeated_and_astray():
    wanted = expected(make_subscriptions(2_000, 1), make_messages(500, words_of(2_000), 1))
    pairs = wanted.tolist()
    assert len(pairs) > 300
    clean = books(wanted, received(pairs), 20)
    assert clean["missing"] == clean["extra"] == clean["repeated"] == 0
    spoilt = received([*pairs[1:], pairs[-1], [pairs[0][0], 499_999]])
    spoilt.client[0] += 1
    found = books(wanted, spoilt, 20)
    assert (found["missing"], found["extra"], found["repeated"]) == (1, 2, 1)


@pytest.mark.long
def test_push_of_a_small_size_is_exact():
    report = push.bench(2_000, 50, 300.0, 3.0, rounds=1, ways=("skyray",), tell=lambda _: None)
    assert report["exact"] and report["compared"] >= 1_000
    assert set(report["goals"]) == {*push.GOALS, "slow_client_gap"}
