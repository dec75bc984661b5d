"""Ranked kinds over a stream of objects, case by case: oracle and operators tell what is written here."""

import numpy as np
import pytest

from benchmarks.driving import Tasks
from matching.filter_programs import USUAL, compile_filter, joined_programs
from matching.kinds import KINDS
from matching.model import CHANGE, CHANGES, MessageBatch, Removals, concatenate, empty
from matching.naive import Oracle
from matching.naive_rows import DecayModel, Extras, NaiveUpdate, updates_of
from matching.window import LIVING, NO_FLOOR, Boundary
from tests.support.any_kind import FADING, RESERVED, TERMS, subscriptions_of
from tests.support.wordless import seen
from tests.support.worlds import SPACE

OF_OBJECTS = KINDS.of_objects()
NONE = Removals(np.zeros(0, np.int64), np.zeros(0, np.int8), np.zeros(0, np.int64))
COUNTS = dict.fromkeys(range(TERMS + 1), 3)
MODEL = DecayModel(FADING.log_base_per_s, FADING.smoothing, COUNTS, sum(COUNTS.values()), 0)


def told(
    kind: str, k: int, *batches: list[tuple[str, float | None]], asked: int = USUAL
) -> list[list[tuple[str, str]]]:
    """What each batch of versions (object, how near it is; None: deleted) tells one subscription: (change, version).

    A version is named by its object and how many there were before, such as x0, x1. `asked` as of `ASKED`.
    """
    row = OF_OBJECTS.named(kind)
    added = subscriptions_of(np.random.default_rng(0), row, [0])
    added = added.having(
        k=np.array([k], np.int32), x=np.zeros(1), y=np.zeros(1), alpha=np.ones(1), terms=np.zeros(1, np.int32),
        term_offsets=np.array([0, 1]), weights=np.ones(1, np.float32),
    )  # fmt: skip
    offsets, words = joined_programs([compile_filter(asked=asked)])
    added = added.having(filter_offsets=offsets, filter_words=words)
    oracle, tasks = Oracle(LIVING, SPACE.max_distance, MODEL, objects=True), Tasks(row, SPACE, LIVING, objects=True)
    names, versions, latest, everything, found = [], {}, {}, [], []
    for number, batch in enumerate(batches):
        first, count = len(names), len(batch)
        near = np.array([1.0 if value is None else value for _, value in batch])
        seq, place, deleted = first + np.arange(count), 1.0 - near, np.array([value is None for _, value in batch])
        # equal times: of `decay` only the place decides
        messages = MessageBatch(
            seq, place, 0 * place, place, place, place, place, seq, np.arange(count + 1), np.zeros(count, np.int32),
            np.ones(count, np.float32), np.ones(count, np.int32), np.zeros(count, np.int64),
        )  # fmt: skip
        messages, previous = seen(messages, RESERVED, ~deleted), np.full(count, -1)
        for at, (name, value) in enumerate(batch):
            previous[at] = latest.pop(name, -1)
            if value is not None:
                latest[name] = first + at
            names.append(f"{name}{versions.get(name, 0)}")
            versions[name] = versions.get(name, 0) + 1
        messages = messages.having(previous_seq=previous)
        everything.append(messages)
        ended = concatenate(everything).take(np.sort(previous[previous >= 0]))
        boundary = Boundary(number, first, first + count - 1, NO_FLOOR)
        extras = Extras(
            [0] * count, messages.counts.tolist(), [name for name, _ in batch], deleted.astype(np.int64).tolist()
        )
        new = added if number == 0 else empty(type(added))
        wanted = oracle.advance(boundary, messages, new, NONE, extras)
        got = list(updates_of(tasks.process(boundary, messages, new, NONE, ended).updates))
        assert sorted(got) == sorted(wanted)
        found.append([_named(update, names) for update in wanted])
    return found


def _named(update: NaiveUpdate, names: list[str]) -> tuple[str, str]:
    return CHANGES[update.change], names[update.seq]


RANKED = ("topk", "knn", "decay")


@pytest.mark.parametrize("kind", RANKED)
def test_ranked_object_that_was_beaten_comes_back_when_another_ends(kind):
    """A buffer that had dropped x for y and z would now have y and w."""
    changes = told(kind, 2, [("x", 0.7)], [("y", 0.8)], [("z", 0.9)], [("w", 0.6), ("z", None)])
    assert changes == [
        [("enter", "x0")],
        [("enter", "y0")],
        [("leave", "x0"), ("enter", "z0")],
        [("leave", "z0"), ("enter", "x0")],
    ]


@pytest.mark.parametrize("kind", RANKED)
def test_ranked_object_that_stays_in_a_result_neither_leaves_nor_enters(kind):
    changes = told(kind, 2, [("x", 0.7), ("y", 0.8)], [("x", 0.9)], [("x", 0.75), ("x", 0.72)], [("z", 0.71)])
    assert changes == [[("enter", "x0"), ("enter", "y0")], [], [], []]


@pytest.mark.parametrize("kind", RANKED)
def test_ranked_object_that_stays_changes_for_those_that_ask(kind):
    """Of several versions in a batch the last one counts; who leaves or comes again does not change."""
    batches = [[("x", 0.7), ("y", 0.8)], [("x", 0.9)], [("x", 0.75), ("x", 0.72)], [("z", 0.71), ("y", 0.1)]]
    batches += [[("x", None), ("x", 0.95)]]
    changes = told(kind, 2, *batches, asked=USUAL | 1 << CHANGE)
    assert changes == [
        [("enter", "x0"), ("enter", "y0")],
        [("change", "x1")],
        [("change", "x3")],
        [("leave", "y0"), ("enter", "z0")],
        [("leave", "x3"), ("enter", "x5")],
    ]


@pytest.mark.parametrize("kind", RANKED)
def test_ranked_object_that_comes_worse_leaves_as_the_version_that_stood_before(kind):
    changes = told(kind, 1, [("x", 0.7), ("y", 0.6)], [("x", 0.8)], [("x", 0.9), ("x", 0.5)])
    assert changes == [[("enter", "x0")], [], [("leave", "x1"), ("enter", "y0")]]


@pytest.mark.parametrize("kind", RANKED)
def test_ranked_object_that_is_deleted_and_comes_again_in_a_batch_leaves_and_enters(kind):
    changes = told(kind, 1, [("x", 0.7)], [("x", None), ("x", 0.9)])
    assert changes == [[("enter", "x0")], [("leave", "x0"), ("enter", "x2")]]


@pytest.mark.parametrize("kind", RANKED)
def test_ranked_objects_that_tie_are_in_the_order_of_their_versions(kind):
    """In topk the newer is first, elsewhere the older; a new version makes an object the newest."""
    changes = told(kind, 1, [("x", 0.5), ("y", 0.5)], [("x", 0.5)], [("y", 0.5)])
    first = {"topk": ["y0", "x1", "y1"]}.get(kind, ["x0", "y0", "x1"])
    assert [each for each in changes if each[-1][0] == "enter"] == changes
    assert [each[-1][1] for each in changes] == first
