"""A paused run as bytes: what goes in comes out, and what is damaged, mixed or missing is named."""

import numpy as np
import pytest

from matching.errors import CheckpointError
from tests.support.saving import to_frames
from topology.core import frames
from topology.core.api.component import Saved
from topology.core.checkpoint.task_states import TaskState, from_frames, join, pack_task, unpack_task


def saved(number=4):
    return Saved(
        number,
        {
            "clock": ({"seq": np.array(80)},),
            "query": (
                {"rows/number": np.array([3, 1]), "whole/seen": np.array([True, False])},
                {},
                {"lists/words/weights": np.linspace(0, 1, 7).astype(np.float32)},
            ),
        },
    )


def as_lists(state):
    return state.number, {
        name: [{key: (value.dtype.str, value.tolist()) for key, value in task.items()} for task in tasks]
        for name, tasks in state.parts.items()
    }


def test_from_frames_in_any_order_gives_what_was_saved():
    packed = to_frames(saved())
    assert len(packed) == 4
    assert as_lists(from_frames(packed)) == as_lists(saved())
    mixed = from_frames([packed[place] for place in (2, 3, 0, 1)])
    assert mixed.parts["clock"][0].keys() == {"seq"}
    assert [sorted(task) for task in mixed.parts["query"]] == [
        ["rows/number", "whole/seen"],
        [],
        ["lists/words/weights"],
    ]
    assert not mixed.parts["query"][0]["rows/number"].flags.writeable


def test_unpack_task_of_a_frame_damaged_anywhere_raises():
    frame = to_frames(saved())[1]
    for place in range(len(frame)):
        damaged = bytearray(frame)
        damaged[place] ^= 0x10
        with pytest.raises(CheckpointError, match="query-0"):
            unpack_task(damaged, "query-0")
    for size in range(len(frame)):
        with pytest.raises(CheckpointError, match="query-0"):
            unpack_task(frame[:size], "query-0")


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ({}, "no state of a task"),
        ({"component": "query", "task": 0, "tasks": 1}, "no state of a task"),
        ({"component": "query", "task": 0, "tasks": 1, "number": 3, "more": 1}, "no state of a task"),
        ({"component": 7, "task": 0, "tasks": 1, "number": 3}, "no state of a task"),
        ({"component": "query", "task": False, "tasks": 1, "number": 3}, "no state of a task"),
        ({"component": "query", "task": 0.0, "tasks": 1, "number": 3}, "no state of a task"),
        ({"component": "query", "task": 2, "tasks": 2, "number": 3}, "claims task 2 of 2 of 'query'"),
        ({"component": "query", "task": -1, "tasks": 2, "number": 3}, "claims task -1 of 2"),
        ({"component": "query", "task": 0, "tasks": 1, "number": -2}, "behind batch -2"),
    ],
)
def test_unpack_task_of_a_frame_of_something_else_raises(header, words):
    with pytest.raises(CheckpointError, match=f"a file: .*{words}"):
        unpack_task(frames.encode(header, {}), "a file")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda packed: [], "nothing was saved"),
        (lambda packed: packed[:2] + packed[3:], "nothing was saved of query:1"),
        (lambda packed: packed[:3] + packed[4:], "nothing was saved of query:2"),
        (lambda packed: [*packed, packed[2]], "query:1 was saved twice"),
        (lambda packed: packed[:3] + to_frames(saved(5))[3:], "clock:0 behind batch 4, query:2 behind batch 5"),
        (
            lambda packed: [*packed, pack_task(TaskState("query", 3, 4, 4, {}))],
            "query:3 was one of 4 tasks, others of 'query' of 3",
        ),
    ],
)
def test_from_frames_that_do_not_belong_together_raises(change, words):
    with pytest.raises(CheckpointError, match=words):
        from_frames(change(to_frames(saved())))


def test_join_does_not_ask_for_frames():
    states = [TaskState("query", task, 2, -1, {"n": np.array(task)}) for task in (1, 0)]
    assert [int(task["n"]) for task in join(states).tasks("query")] == [0, 1]


@pytest.mark.parametrize("array", [np.array(["text"]), np.array([object()]), [1, 2], np.zeros(2, ">i8")])
def test_pack_task_array_that_no_frame_holds_raises_naming_the_task(array):
    with pytest.raises(CheckpointError, match="query:1 cannot be saved: array 'rows'"):
        pack_task(TaskState("query", 1, 2, 0, {"rows": array}))


def test_saved_component_that_is_missing_or_not_single_is_named():
    assert int(saved().single("clock")["seq"]) == 80
    with pytest.raises(CheckpointError, match="nothing was saved of 'tuples', only of clock, query"):
        saved().tasks("tuples")
    with pytest.raises(CheckpointError, match="'query' was saved by 3 tasks"):
        saved().single("query")
