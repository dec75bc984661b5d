"""Groupings choose the tasks they promise, the same ones on every machine."""

import pytest

from topology.core.api.grouping import Chooser, task_of_key


def test_task_of_key_is_the_same_for_ever():
    assert [task_of_key(key, 7) for key in (0, 1, 2, -1, 2**63 - 1)] == [3, 0, 0, 4, 3]


def test_task_of_key_spreads_consecutive_keys_evenly():
    counts = [0] * 8
    for key in range(8000):
        counts[task_of_key(key, 8)] += 1
    assert min(counts) > 850 and max(counts) < 1150


def test_chooser_shuffle_takes_turns_from_the_sender_on():
    chooser = Chooser("shuffle", 3, sender=4)
    assert [tuple(chooser.choose(None, None)) for _ in range(4)] == [(1,), (2,), (0,), (1,)]


def test_chooser_all_takes_every_task():
    assert list(Chooser("all", 3, 0).choose(None, None)) == [0, 1, 2]


def test_chooser_fields_follows_the_key():
    chooser = Chooser("fields", 5, 0)
    assert [chooser.choose(None, key)[0] for key in range(9)] == [task_of_key(key, 5) for key in range(9)]


@pytest.mark.parametrize(
    ("grouping", "to", "key", "words"),
    [("direct", None, None, "to=TASK"), ("direct", 3, None, "0 to 2"), ("direct", -1, None, "0 to 2"),
     ("fields", None, None, "key=INTEGER")],
)  # fmt: skip
def test_chooser_without_what_it_needs_raises(grouping, to, key, words):
    with pytest.raises(ValueError, match=words):
        Chooser(grouping, 3, 0).choose(to, key)
