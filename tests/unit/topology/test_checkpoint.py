"""A paused run as bytes: what goes in comes out, and what is damaged, mixed or missing is named."""

import numpy as np
import pytest

from matching.errors import CheckpointError
from tests.support.saving import frame_of
from topology.core import frames
from topology.core.api.component import Saved
from topology.core.checkpoint.store import CheckpointStore, Manifest
from topology.core.checkpoint.task_states import TaskState, pack_parts, unpack_task


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


def states_of(whole):
    return [
        TaskState(name, task, len(tasks), whole.number, arrays)
        for name, tasks in whole.parts.items()
        for task, arrays in enumerate(tasks)
    ]


def as_lists(state):
    return state.number, {
        name: [{key: (value.dtype.str, value.tolist()) for key, value in task.items()} for task in tasks]
        for name, tasks in state.parts.items()
    }


def test_frame_of_a_task_gives_what_was_saved():
    for task, arrays in enumerate(saved().parts["query"]):
        state = TaskState("query", task, 3, 4, arrays)
        again = unpack_task(frame_of(state))
        assert again[:4] == state[:4]
        assert as_lists(Saved(4, {"query": (again.arrays,)})) == as_lists(Saved(4, {"query": (arrays,)}))
        assert not any(values.flags.writeable for values in again.arrays.values())


def test_unpack_task_of_a_frame_damaged_anywhere_raises():
    frame = frame_of(TaskState("query", 0, 3, 4, saved().parts["query"][0]))
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
        (lambda files, other: files[:2] + files[3:], "does not name every task once"),
        (lambda files, other: files[:3], "does not name every task once"),
        (lambda files, other: [*files, files[2]], "does not name every task once"),
        (lambda files, other: [*files[:3], other], "is of query:2 behind batch 5"),
        (lambda files, other: [*files[:3], files[3]._replace(tasks=4)], "does not name every task once"),
    ],
)
def test_checkpoint_of_tasks_that_do_not_belong_together_is_refused(tmp_path, change, words):
    store = CheckpointStore(str(tmp_path))
    files = [store.write_task(state, 0, 0) for state in states_of(saved())]
    other = store.write_task(states_of(saved(5))[3], 0, 1)
    store.commit(Manifest(0, 4, 0, tuple(change(files, other)), (), {}))
    assert store.newest() is None
    assert words in store.refused[0]
    store.commit(Manifest(1, 4, 0, (*files[2:], *files[:2]), (), {}))
    manifest = store.newest()
    assert manifest.epoch == 1
    assert as_lists(store.load(manifest)) == as_lists(saved()), "in whatever order a manifest names them"


@pytest.mark.parametrize("array", [np.array(["text"]), np.array([object()]), [1, 2], np.zeros(2, ">i8")])
def test_pack_parts_array_that_no_frame_holds_raises_naming_the_task(array):
    with pytest.raises(CheckpointError, match="query:1 cannot be saved: array 'rows'"):
        pack_parts(TaskState("query", 1, 2, 0, {"rows": array}))


def test_saved_component_that_is_missing_or_not_single_is_named():
    assert int(saved().single("clock")["seq"]) == 80
    with pytest.raises(CheckpointError, match="nothing was saved of 'tuples', only of clock, query"):
        saved().tasks("tuples")
    with pytest.raises(CheckpointError, match="'query' was saved by 3 tasks"):
        saved().single("query")
