"""BooleanStream: who is told what when subscriptions come and go inside a batch."""

import numpy as np
import pytest

from matching.boolean.stream import BooleanStream
from matching.errors import EngineError
from matching.model import MATCH, Removals, SubscriptionTable, concatenate, empty
from matching.naive import Oracle, tally
from matching.registry import factory, names
from matching.window import NO_FLOOR, Boundary, Window
from tests.unit.boolean_tables import SPACE, batch, no_removals, removals, table
from tests.worlds import Recipe, make_world

EVERYWHERE = (-180.0, -90.0, 180.0, 90.0)
NOBODY = empty(SubscriptionTable)


@pytest.fixture(params=names("boolean"))
def stream(request):
    return BooleanStream(factory("boolean", request.param)(SPACE))


def ten(first_seq: int):
    """Ten messages that everybody matches, and their boundary."""
    return Boundary(first_seq // 10, first_seq, first_seq + 9, NO_FLOOR), batch([((0, 0), [1])] * 10, first_seq)


def seqs(updates, number: int) -> list[int]:
    return updates.seq[updates.number == number].tolist()


def test_stream_addition_inside_a_batch_sees_messages_from_its_seq_on(stream):
    for number, at in enumerate((10, 15, 19, 20)):
        boundary, messages = ten(10)
        fresh = BooleanStream(type(stream.engine)(SPACE))
        updates = fresh.process(boundary, messages, table([(EVERYWHERE, [1])], number, at=at), no_removals())
        assert seqs(updates, number) == list(range(at, 20))
        assert np.all(updates.change == MATCH)
        assert np.all(np.isnan(updates.score))
        assert updates.as_of.tolist() == updates.seq.tolist()


def test_stream_removal_inside_a_batch_ends_before_its_seq(stream):
    boundary, messages = ten(0)
    stream.process(boundary, messages, table([(EVERYWHERE, [1])] * 3), no_removals())
    boundary, messages = ten(10)
    updates = stream.process(boundary, messages, NOBODY, removals([2, 0], [10, 14]))
    assert [seqs(updates, number) for number in range(3)] == [[10, 11, 12, 13], list(range(10, 20)), []]
    assert len(stream) == 1


def test_stream_replacement_at_one_seq_hands_over_without_gap(stream):
    boundary, messages = ten(0)
    stream.process(boundary, messages, table([(EVERYWHERE, [1])]), no_removals())
    boundary, messages = ten(10)
    updates = stream.process(boundary, messages, table([(EVERYWHERE, [1])], 1, at=16), removals([0], [16]))
    assert seqs(updates, 0) == list(range(10, 16))
    assert seqs(updates, 1) == list(range(16, 20))


def test_stream_addition_and_removal_in_one_batch_sees_what_lies_between(stream):
    boundary, messages = ten(0)
    added = concatenate([table([(EVERYWHERE, [1])], 0, at=3), table([(EVERYWHERE, [1])], 1, at=5)])
    updates = stream.process(boundary, messages, added, removals([1, 0], [5, 7]))
    assert seqs(updates, 0) == [3, 4, 5, 6]
    assert seqs(updates, 1) == []
    assert len(stream) == 0


def test_stream_sparse_and_empty_batches_are_taken(stream):
    boundary, messages = ten(0)
    part = messages.take(np.array([1, 8]))
    updates = stream.process(boundary, part, table([(EVERYWHERE, [1])], at=4), no_removals())
    assert seqs(updates, 0) == [8]
    nothing = batch([])
    assert len(stream.process(Boundary(1, 10, 9, NO_FLOOR), nothing, NOBODY, no_removals())) == 0
    stream.process(Boundary(2, 10, 14, NO_FLOOR), nothing, NOBODY, removals([0], [12]))
    assert len(stream) == 0


@pytest.mark.parametrize(
    ("added", "gone", "at"),
    [([0], [], []), ([], [7], [12]), ([], [0, 0], [11, 12]), ([5, 5], [], []), ([5], [5, 5], [11, 12])],
)
def test_stream_bad_changes_are_refused_and_change_nothing(stream, added, gone, at):
    boundary, messages = ten(0)
    stream.process(boundary, messages, table([(EVERYWHERE, [1])]), no_removals())
    boundary, messages = ten(10)
    with pytest.raises(EngineError, match="subscription"):
        stream.process(boundary, messages, table([(EVERYWHERE, [1])] * len(added), numbers=added), removals(gone, at))
    assert len(stream) == 1
    assert seqs(stream.process(boundary, messages, NOBODY, no_removals()), 0) == list(range(10, 20))


def test_stream_messages_outside_their_boundary_are_refused(stream):
    _, messages = ten(5)
    with pytest.raises(EngineError, match="do not lie inside 0..9"):
        stream.process(Boundary(0, 0, 9, NO_FLOOR), messages, NOBODY, no_removals())


def test_stream_pairs_of_range_messages_are_told_by_their_owner(stream):
    boundary = Boundary(0, 0, 2, NO_FLOOR)
    messages = batch([((-5, -5, 5, 5), [1]), ((0, 0), [1]), ((20, 20, 30, 30), [1])])
    added = table([((0.0, 0.0, 10.0, 10.0), [1]), ((-10.0, -10.0, 40.0, 40.0), [1])])

    def first_of_each(region, asked, row):
        assert asked is messages
        assert region.shape == (row.shape[0], 4)
        return region[:, 0] == -10.0

    updates = stream.process(boundary, messages, added, no_removals(), first_of_each)
    assert seqs(updates, 0) == []
    assert seqs(updates, 1) == [0, 1, 2]


@pytest.mark.parametrize("seed", range(6))
def test_stream_through_a_random_world_agrees_with_the_oracle_at_every_batch(stream, seed):
    recipe = Recipe(kinds=(0,), ranges=0.3, grid=(None, 8)[seed % 2], subscriptions=150, terms=6, churn=0.9)
    world = make_world(recipe, seed)
    oracle = Oracle(Window.parse(recipe.window), SPACE.max_distance)
    told = 0
    for boundary, messages, changes in world.batches:
        wanted = tally(oracle.advance(boundary, messages, changes.added, changes.removed))
        found = tally(stream.process(boundary, messages, changes.added, changes.removed))
        assert found == wanted
        told += sum(wanted.values())
        if boundary.number % 4 == 3:  # a crash: state is what was saved
            saved = {name: array.copy() for name, array in stream.snapshot().items()}
            stream = BooleanStream(type(stream.engine)(SPACE))
            stream.restore(saved)
    assert told > 100


def test_stream_that_forgets_to_filter_changes_is_caught(monkeypatch):
    world = make_world(Recipe(kinds=(0,), subscriptions=150, terms=6, churn=0.9), 1)
    monkeypatch.setattr("matching.boolean.stream._alive", lambda changed, since, until, number, seq: (number, seq))
    stream = BooleanStream(factory("boolean")(SPACE))
    expected, _ = world.expected()
    found = [tally(stream.process(*batch_[:2], batch_[2].added, batch_[2].removed)) for batch_ in world.batches]
    assert found != expected
    assert all(not wanted - told for told, wanted in zip(found, expected, strict=True)), (
        "it tells too much, never too little"
    )


def test_stream_counts_its_work(stream):
    boundary, messages = ten(0)
    stream.process(boundary, messages, table([(EVERYWHERE, [1]), (EVERYWHERE, [1, 2])], at=5), no_removals())
    assert (stream.scanned, stream.matched) == (20, 5)
    assert 10 <= stream.verified <= 20


def test_stream_of_mixed_kinds_takes_its_own(stream):
    world = make_world(Recipe(subscriptions=40, terms=5), 2)
    only = make_stream_of(world, stream)
    assert sum(sum(each.values()) for each in only) > 0


def make_stream_of(world, stream):
    """Run a world of several kinds; every update must be a match the oracle knows."""
    expected, _ = world.expected()
    found = []
    for (boundary, messages, changes), wanted in zip(world.batches, expected, strict=True):
        told = tally(stream.process(boundary, messages, changes.added, changes.removed))
        assert told == type(told)({row: count for row, count in wanted.items() if row[3] == MATCH})
        found.append(told)
    return found


def test_removals_of_other_kinds_are_passed_over(stream):
    boundary, messages = ten(0)
    others = Removals(np.array([77]), np.array([1], np.int8), np.array([3]))
    updates = stream.process(boundary, messages, table([(EVERYWHERE, [1])]), others)
    assert len(updates) == 10
