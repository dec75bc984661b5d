"""The operator of `boolean`: who is told what when subscriptions come and go inside a batch."""

import numpy as np
import pytest

from benchmarks.driving import Tasks
from matching.errors import EngineError
from matching.kinds import KINDS
from matching.model import (
    MATCH,
    NO_MESSAGES,
    MessageBatch,
    Removals,
    SubscriptionTable,
    UpdateBatch,
    concatenate,
    empty,
)
from matching.naive_rows import tally
from matching.operator import OperatorContext, OperatorInput, OperatorOutput, Owned
from matching.window import NO_FLOOR, Boundary, Window
from tests.support.boolean_tables import SPACE, batch, no_removals, removals, table
from tests.support.worlds import Recipe, make_world

EVERYWHERE = (-180.0, -90.0, 180.0, 90.0)
NOBODY = empty(SubscriptionTable)
KIND = KINDS.named("boolean")
COUNT = Window("count", 50)


class Feed:
    """An operator that is fed batch by batch, whatever number their boundaries have."""

    def __init__(self, engine: str):
        self.engine = engine
        self.operator = KIND.make_operator(OperatorContext(SPACE, COUNT), engine)

    def __len__(self) -> int:
        return len(self.operator)

    def step(
        self,
        boundary: Boundary,
        messages: MessageBatch,
        added: SubscriptionTable,
        removed: Removals,
        owned: Owned | None = None,
    ) -> OperatorOutput:
        boundary = boundary._replace(number=self.operator.watermark + 1)
        home, held = np.zeros(len(added), np.int64), np.ones(len(added), np.bool_)
        turn = OperatorInput(boundary, messages, NO_MESSAGES, added, home, held, removed, owned)
        return self.operator.close(self.operator.match(turn).own_hits, [])

    def process(self, *turn) -> UpdateBatch:
        return self.step(*turn).updates


@pytest.fixture(params=KIND.engines)
def stream(request):
    return Feed(request.param)


def ten(first_seq: int):
    """Ten messages that everybody matches, and their boundary."""
    return Boundary(first_seq // 10, first_seq, first_seq + 9, NO_FLOOR), batch([((0, 0), [1])] * 10, first_seq)


def seqs(updates, number: int) -> list[int]:
    return updates.seq[updates.number == number].tolist()


def test_room_addition_inside_a_batch_sees_messages_from_its_seq_on(stream):
    for number, at in enumerate((10, 15, 19, 20)):
        boundary, messages = ten(10)
        fresh = Feed(stream.engine)
        updates = fresh.process(boundary, messages, table([(EVERYWHERE, [1])], number, at=at), no_removals())
        assert seqs(updates, number) == list(range(at, 20))
        assert np.all(updates.change == MATCH)
        assert np.all(np.isnan(updates.score))
        assert updates.as_of.tolist() == updates.seq.tolist()


def test_room_removal_inside_a_batch_ends_before_its_seq(stream):
    boundary, messages = ten(0)
    stream.process(boundary, messages, table([(EVERYWHERE, [1])] * 3), no_removals())
    boundary, messages = ten(10)
    updates = stream.process(boundary, messages, NOBODY, removals([2, 0], [10, 14]))
    assert [seqs(updates, number) for number in range(3)] == [[10, 11, 12, 13], list(range(10, 20)), []]
    assert len(stream) == 1


def test_room_replacement_at_one_seq_hands_over_without_gap(stream):
    boundary, messages = ten(0)
    stream.process(boundary, messages, table([(EVERYWHERE, [1])]), no_removals())
    boundary, messages = ten(10)
    updates = stream.process(boundary, messages, table([(EVERYWHERE, [1])], 1, at=16), removals([0], [16]))
    assert seqs(updates, 0) == list(range(10, 16))
    assert seqs(updates, 1) == list(range(16, 20))


def test_room_addition_and_removal_in_one_batch_sees_what_lies_between(stream):
    boundary, messages = ten(0)
    added = concatenate([table([(EVERYWHERE, [1])], 0, at=3), table([(EVERYWHERE, [1])], 1, at=5)])
    updates = stream.process(boundary, messages, added, removals([1, 0], [5, 7]))
    assert seqs(updates, 0) == [3, 4, 5, 6]
    assert seqs(updates, 1) == []
    assert len(stream) == 0


def test_room_sparse_and_empty_batches_are_taken(stream):
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
    [([0], [], []), ([], [0, 0], [11, 12]), ([5, 5], [], []), ([5], [5, 5], [11, 12])],
)
def test_room_bad_changes_are_refused_and_change_nothing(stream, added, gone, at):
    boundary, messages = ten(0)
    stream.process(boundary, messages, table([(EVERYWHERE, [1])]), no_removals())
    boundary, messages = ten(10)
    with pytest.raises(EngineError, match="subscription"):
        stream.process(boundary, messages, table([(EVERYWHERE, [1])] * len(added), numbers=added), removals(gone, at))
    assert len(stream) == 1
    assert seqs(stream.process(boundary, messages, NOBODY, no_removals()), 0) == list(range(10, 20))


def test_room_messages_outside_their_boundary_are_refused(stream):
    _, messages = ten(5)
    with pytest.raises(EngineError, match="do not lie inside 0..9"):
        stream.process(Boundary(0, 0, 9, NO_FLOOR), messages, NOBODY, no_removals())


def test_room_pairs_of_range_messages_are_told_by_their_owner(stream):
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


def test_room_that_forgets_to_filter_changes_is_caught(monkeypatch):
    world = make_world(Recipe(kinds=(0,), subscriptions=150, terms=6, churn=0.9), 1)
    everybody = lambda changed, since, until, number, seq: np.ones(number.shape[0], np.bool_)  # noqa: E731
    monkeypatch.setattr("matching.boolean.operator._alive", everybody)
    expected, _ = world.expected()
    found = told_of(world, Tasks(KIND, SPACE, world.window))
    assert found != expected
    assert all(not wanted - told for told, wanted in zip(found, expected, strict=True)), (
        "it tells too much, never too little"
    )


def told_of(world, tasks: Tasks) -> list:
    """Updates of each batch."""
    batches = ((boundary, messages, changes.added, changes.removed) for boundary, messages, changes in world.batches)
    return [tally(tasks.process(*batch_).updates) for batch_ in batches]


def test_room_counts_its_work(stream):
    boundary, messages = ten(0)
    step = stream.step(boundary, messages, table([(EVERYWHERE, [1]), (EVERYWHERE, [1, 2])], at=5), no_removals())
    assert (step.work.scanned, step.work.matched) == (20, 5)
    assert 10 <= step.work.verified <= 20


def test_room_claims_for_those_that_want_all_their_keywords(stream):
    boundary, messages = ten(0)
    region = (1.0, 2.0, 3.0, 4.0)
    added = table([(region, [5, 7]), (region, [3]), (region, [2, 9]), (region, []), ((170, 0, -170, 9), [8])],
                  loose=[False, False, True, False, False])  # fmt: skip
    stream.process(boundary, messages, added, no_removals())
    regions, rarest = stream.operator.claims(np.array([4, 0, 77, 3, 2, 1]))
    assert rarest.tolist() == [8, 5, 3]
    assert regions.tolist() == [[170, 0, -170, 9], [*region], [*region]]
