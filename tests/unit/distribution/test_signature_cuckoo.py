"""Cuckoo filters: members are always found, strangers as seldom as the formula says, and full is told, not hidden."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distribution.signatures.counted import CountedSet
from distribution.signatures.cuckoo import CuckooFilter, fingerprint_bits
from matching.errors import ConfigError, EngineError

ITEMS = st.lists(st.integers(0, 2**61), max_size=80, unique=True)


def distinct(seed: int, count: int, below: int = 2**40) -> np.ndarray:
    rng = np.random.default_rng(seed)
    items = np.unique(rng.integers(0, below, count + count // 100 + 10))
    return rng.permutation(items)[:count]


@settings(max_examples=60, deadline=None)
@given(ITEMS, ITEMS, st.integers(0, 2**30))
def test_filter_inserted_and_not_deleted_is_found(first, second, seed):
    kept = np.array(sorted(set(first) - set(second)), np.int64)
    gone = np.array(sorted(set(second)), np.int64)
    made = CuckooFilter(400, 0.01, seed)
    assert made.insert(kept) + made.insert(gone) == kept.size + gone.size
    made.delete(gone)
    assert made.contains(kept).all()
    assert len(made) == kept.size
    assert CuckooFilter.from_arrays(made.arrays()).contains(kept).all()
    made.delete(kept)
    assert not made.words.any(), "an empty filter has no fingerprint left"


def run_of_operations(operations: int, slots: int, seed: int) -> int:
    """False negatives among all members, looked for after every batch of insertions and deletions."""
    rng = np.random.default_rng(seed)
    pool = distinct(seed, slots)
    there = np.zeros(slots, np.bool_)
    made = CuckooFilter(int(slots * 0.6), 0.01)
    missed = done = 0
    while done < operations:
        picked = rng.integers(0, slots, slots // 4)
        picked = np.unique(picked)
        coming = picked[~there[picked]][: made.capacity - len(made)]
        going = picked[there[picked]]
        made.delete(pool[going])
        assert made.insert(pool[coming]) == coming.size
        there[going], there[coming] = False, True
        missed += int(np.count_nonzero(~made.contains(pool[there])))
        done += picked.size
    assert len(made) == np.count_nonzero(there) > slots // 3
    return missed


def test_filter_after_a_million_insertions_and_deletions_has_no_false_negative():
    assert run_of_operations(1_000_000, 100_000, 3) == 0


@pytest.mark.long
def test_filter_after_ten_million_insertions_and_deletions_has_no_false_negative():
    assert run_of_operations(10_000_000, 1_000_000, 4) == 0


@pytest.mark.parametrize("rate", [0.05, 0.01, 0.001])
@pytest.mark.parametrize("load", [0.3, 0.95])
def test_filter_false_positives_are_within_a_fifth_of_the_formula(rate, load):
    made = CuckooFilter(200_000, rate)
    items = distinct(5, int(200_000 * load / 0.95))
    assert made.insert(items) == items.size
    strangers = np.random.default_rng(6).integers(2**41, 2**42, 1_000_000)
    measured = made.contains(strangers).mean()
    assert abs(measured / made.expected_rate - 1) < 0.2
    assert measured <= rate * 1.1
    assert made.load == pytest.approx(load, rel=0.01)


def test_filter_of_neighbouring_numbers_has_the_same_rate():
    """Cells and pairs are dense runs of numbers, not random ones."""
    items = (np.arange(300)[:, None] * 2**31 + np.arange(300)).ravel()
    made = CuckooFilter.of(items, 0.01)
    strangers = (np.arange(300)[:, None] * 2**31 + np.arange(1000, 2000)).ravel()
    assert made.contains(items).all()
    assert abs(made.contains(strangers).mean() / made.expected_rate - 1) < 0.2


@pytest.mark.parametrize("count", [0, 1, 7, 100, 50_000])
def test_filter_takes_what_it_was_made_for_in_few_bits(count):
    items = distinct(7, count)
    made = CuckooFilter.of(items, 0.01)
    assert made.contains(items).all()
    if count == 50_000:
        assert made.nbytes * 8 / count < 10.7, "ten bits over a load of 95 percent"


def test_filter_nine_copies_of_an_item_ninth_is_refused_and_nothing_changes():
    made = CuckooFilter(1000)
    made.insert(distinct(8, 500))
    item = np.full(20, 123_456_789)
    assert made.insert(item) == 8
    before = made.words.copy(), made.state.copy()
    assert made.insert(item[:1]) == 0
    assert np.array_equal(before[0], made.words)
    assert before[1][2] == made.state[2] == 508
    with pytest.raises(EngineError, match="only once"):
        CuckooFilter.of(item)


def test_filter_overfull_tells_how_many_went_in_and_keeps_them():
    made, items = CuckooFilter(1000), distinct(9, 2000)
    done = made.insert(items)
    assert 950 <= done < 1100
    assert made.contains(items[:done]).all()
    assert CuckooFilter.of(items, headroom=0.5).contains(items).all()


def test_filter_deletes_a_stranger_only_by_mistake_and_says_so_if_it_can():
    """Why counts stand outside: of a million strangers some would take a member's fingerprint with them."""
    made, items = CuckooFilter(1000), distinct(10, 900)
    made.insert(items)
    strangers = distinct(11, 1000) + 2**41
    mistaken = made.contains(strangers)
    with pytest.raises(EngineError, match="never inserted"):
        made.delete(strangers[~mistaken][:1])
    assert made.contains(items).all()
    assert mistaken.any()
    made.delete(strangers[mistaken])
    assert not made.contains(items).all(), "the danger is gone, and with it the reason for the counts"


def test_counted_set_deletes_no_stranger_and_tells_of_each_item_once():
    counted = CountedSet()
    counted.add(np.array([5, 7, 5, 9]))
    assert [part.tolist() for part in counted.pop_changes()] == [[5, 7, 9], []]
    with pytest.raises(EngineError, match="not added as often"):
        counted.subtract(np.array([7, 8]))
    with pytest.raises(EngineError, match="not added as often"):
        counted.subtract(np.array([7, 7]))
    counted.subtract(np.array([5, 7]))
    counted.add(np.array([8]))
    counted.subtract(np.array([8]))
    assert counted.contains(np.array([5, 7, 8, 9, 10])).tolist() == [True, False, False, True, False]
    assert [part.tolist() for part in counted.pop_changes()] == [[], [7]]
    counted.subtract(np.array([9]))
    counted.add(np.array([9]))
    assert [part.tolist() for part in counted.pop_changes()] == [[], []]
    assert sorted(counted.items().tolist()) == [5, 9]
    assert len(counted) == 2


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, 12), max_size=8), st.booleans()), max_size=20))
def test_counted_set_any_history_equals_a_plain_count(history):
    counted, plain, told = CountedSet(), {}, set()
    for add, items, take in history:
        if add:
            counted.add(np.array(items, np.int64))
            for item in items:
                plain[item] = plain.get(item, 0) + 1
        else:
            fitting = [item for number, item in enumerate(items) if plain.get(item, 0) > items[:number].count(item)]
            counted.subtract(np.array(fitting, np.int64))
            for item in fitting:
                plain[item] -= 1
        live = {item for item, count in plain.items() if count}
        assert set(counted.items().tolist()) == live and len(counted) == len(live)
        if take:
            came, gone = (set(part.tolist()) for part in counted.pop_changes())
            assert (came, gone) == (live - told, told - live)
            told = live


@pytest.mark.parametrize("rate", [0.0, 1.0, 0.9, 1e-6, -1.0])
def test_filter_impossible_rate_is_refused(rate):
    with pytest.raises(ConfigError, match="false-positive rate"):
        CuckooFilter(10, rate)


def test_fingerprint_bits_follow_from_the_rate():
    assert [fingerprint_bits(rate) for rate in (0.5, 0.01, 0.001)] == [4, 10, 13]
    with pytest.raises(ConfigError, match="capacity"):
        CuckooFilter(-1)
