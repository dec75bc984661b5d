"""Numbers to slots: lookups, reuse, deletion, refusal of what must not be."""

import numpy as np
import pytest

from matching.errors import EngineError
from matching.storage.slots import SlotMap, as_input, home_of


def numbers(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def check_against(slots: SlotMap, wanted: dict[int, int]) -> None:
    """The map holds exactly `wanted`, and nothing of what it does not."""
    assert len(slots) == len(wanted)
    keys = numbers(*wanted)
    assert slots.find(keys).tolist() == list(wanted.values())
    assert len(set(wanted.values())) == len(wanted)
    assert all(0 <= slot < slots.capacity for slot in wanted.values())
    # Every occupied place can be reached from its home without crossing an empty one.
    assert (slots.index >= 0).sum() == len(wanted)


def test_slot_map_empty_finds_nothing():
    assert SlotMap().find(numbers(0, 5, 2**62)).tolist() == [-1, -1, -1]
    assert SlotMap().find(numbers()).tolist() == []


def test_slot_map_grown_keeps_every_slot():
    slots, wanted = SlotMap(), {}
    for start in range(0, 5_000, 37):
        added = np.arange(start, start + 37) * 1_000_003
        wanted |= dict(zip(added.tolist(), slots.insert(added).tolist(), strict=True))
    check_against(slots, wanted)


def test_slot_map_under_churn_agrees_with_a_dict():
    rng = np.random.default_rng(5)
    slots, wanted, following = SlotMap(), {}, 0
    for _ in range(300):
        added = following + np.arange(rng.integers(0, 30))
        following += added.shape[0]
        wanted |= dict(zip(added.tolist(), slots.insert(added).tolist(), strict=True))
        gone = rng.permutation(list(wanted))[: rng.integers(0, min(30, len(wanted)) + 1)].astype(np.int64)
        assert slots.remove(gone).tolist() == [wanted.pop(number) for number in gone.tolist()]
        check_against(slots, wanted)
        assert np.all(slots.find(gone) == -1)
    assert slots.capacity < following / 4, "freed slots are handed out again"


def test_slot_map_removal_inside_a_wrapped_run_leaves_the_rest_reachable():
    # Numbers whose homes are the last place and the first two of a table of 16: one run across the end.
    near_end = [n for n in range(2_000) if home_of(n, 16) in (15, 0, 1)][:8]
    for order in (near_end, near_end[::-1], near_end[3:] + near_end[:3]):
        slots = SlotMap()
        wanted = dict(zip(near_end, slots.insert(numbers(*near_end)).tolist(), strict=True))
        assert slots.index.shape[0] == 16
        for number in order:
            slots.remove(numbers(number))
            del wanted[number]
            check_against(slots, wanted)


def test_slot_map_after_long_churn_has_no_rotten_places():
    slots = SlotMap()
    slots.insert(np.arange(8))
    places = slots.index.shape[0]
    for number in range(8, 4_000):
        slots.insert(numbers(number))
        slots.remove(numbers(number - 8))
    assert slots.index.shape[0] == places
    assert (slots.index >= 0).sum() == 8
    assert slots.capacity <= 13


@pytest.mark.parametrize("bad", [numbers(3, 100), numbers(50, 50), numbers(7, -1)])
def test_slot_map_bad_insert_changes_nothing(bad):
    slots = SlotMap()
    slots.insert(np.arange(10))
    slots.remove(numbers(4, 2))
    before = {name: value.copy() for name, value in slots.arrays().items()}
    with pytest.raises(EngineError, match="cannot be added"):
        slots.insert(bad)
    after = slots.arrays()
    assert after["state"].tolist() == before["state"].tolist()
    assert slots.find(np.arange(12)).tolist() == [0, 1, -1, 3, -1, 5, 6, 7, 8, 9, -1, -1]
    assert slots.insert(numbers(20, 21)).tolist() == [2, 4], "the free list is as it was"


@pytest.mark.parametrize("bad", [numbers(99), numbers(3, 3), numbers(-1)])
def test_slot_map_bad_removal_changes_nothing(bad):
    slots = SlotMap()
    slots.insert(np.arange(10))
    with pytest.raises(EngineError, match="cannot be removed"):
        slots.remove(bad)
    assert slots.find(np.arange(10)).tolist() == list(range(10))
    assert len(slots) == 10


def test_as_input_of_foreign_arrays_converts_once():
    strided = np.arange(10, dtype=np.int32)[::2]
    view = as_input(strided, np.int64)
    assert view.tolist() == [0, 2, 4, 6, 8]
    assert view.flags.c_contiguous
    assert not view.flags.writeable
    own = np.arange(5)
    assert np.shares_memory(as_input(own, np.int64), own)
    assert own.flags.writeable
