"""What is saved of an operator: cut, joined and written, every row keeps all that is said of it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matching.errors import EngineError
from matching.model import SubscriptionTable
from matching.storage.state import RaggedColumns, State, join_states
from tests.support.worlds import Recipe, make_world
from topology.core.frames import decode, encode

DAMAGED = ("table/number", "number", "", "row/number")


def random_state(seed: int, rows: int, first: int = 0) -> State:
    """Subscriptions with a column of their own, a group of lists of any length, and something that belongs to all."""
    rng = np.random.default_rng(seed)
    table = make_world(Recipe(subscriptions=rows, messages=20), seed).batches[0][2].added
    state = State.of(SubscriptionTable(**(table._asdict() | {"number": first + rng.permutation(rows)})))
    lengths = rng.integers(0, 4, rows)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    state.rows["threshold"] = rng.random(rows)
    state.lists["kept"] = RaggedColumns(
        offsets, {"seq": rng.integers(0, 99, offsets[-1]), "score": rng.random(offsets[-1])}
    )
    state.whole["rule"] = np.array([0.25, seed])
    return state


def said_of_each(state: State) -> dict[int, tuple]:
    """By number: all columns of its row, and its lists."""
    told = {}
    for row, number in enumerate(state.rows["number"].tolist()):
        columns = [(name, repr(values[row].tolist())) for name, values in sorted(state.rows.items())]
        for name, (offsets, lists) in sorted(state.lists.items()):
            mine = slice(offsets[row], offsets[row + 1])
            columns += [(name, column, values[mine].tolist()) for column, values in sorted(lists.items())]
        told[number] = tuple(columns)
    return told


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 999), rows=st.integers(0, 12), cuts=st.integers(1, 5), data=st.data())
def test_state_cut_in_any_way_and_joined_is_the_same_in_ascending_number(seed, rows, cuts, data):
    state = random_state(seed, rows)
    part_of = np.array(data.draw(st.lists(st.integers(0, cuts - 1), min_size=rows, max_size=rows)), np.int64)
    parts = [state.take(np.flatnonzero(part_of == part)) for part in range(cuts)]
    joined = join_states(parts)
    assert said_of_each(joined) == said_of_each(state)
    assert joined.rows["number"].tolist() == sorted(state.rows["number"].tolist())
    assert joined.whole["rule"].tolist() == state.whole["rule"].tolist()
    assert sum(len(said_of_each(part)) for part in parts) == rows
    assert join_states([joined]) is joined, "in order it is not copied"


@pytest.mark.parametrize("rows", [0, 9])
def test_state_written_and_read_again_says_the_same(rows):
    state = random_state(3, rows)
    again = State.from_arrays(decode(encode({"state": "any"}, state.arrays()))[1])
    assert said_of_each(again) == said_of_each(state) and len(said_of_each(state)) == rows
    assert set(again.arrays()) == set(state.arrays())
    assert again.whole["rule"].tolist() == [0.25, 3]


def test_state_of_a_table_gives_the_table_back_whatever_was_added():
    table = make_world(Recipe(subscriptions=30), 1).batches[0][2].added
    state = State.of(table)
    state.rows["version"] = np.arange(30)
    for got, wanted in zip(state.table, table, strict=True):
        assert np.array_equal(got, wanted, equal_nan=got.dtype == float)
    assert np.array_equal(state.take(np.array([7, 2])).table.number, table.number[[7, 2]])


def test_state_taken_is_cut_off_from_what_it_was_taken_from():
    state = random_state(5, 6)
    taken = state.take(np.arange(6))
    state.rows["threshold"][:] = -1.0
    state.lists["kept"].columns["score"][:] = -1.0
    assert taken.rows["threshold"].min() >= 0.0 and taken.lists["kept"].columns["score"].min(initial=0.0) >= 0.0


def test_states_that_share_a_subscription_are_not_joined():
    parts = [random_state(1, 5), random_state(2, 3, first=5), random_state(3, 1, first=6)]
    with pytest.raises(EngineError, match="subscription 6 is in several snapshots"):
        join_states(parts)
    assert len(said_of_each(join_states(parts[:2]))) == 8


@pytest.mark.parametrize("name", DAMAGED)
def test_state_of_a_strange_array_is_refused(name):
    arrays = random_state(1, 4).arrays()
    with pytest.raises(EngineError, match="not written by an operator"):
        State.from_arrays(arrays | {name: np.zeros(4)})
