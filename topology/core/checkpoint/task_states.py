"""Snapshots of a run as bytes: one frame for each task, which names its task."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from matching.errors import CheckpointError
from topology.core import frames
from topology.core.api.component import Fragment
from topology.core.checkpoint.storage import Output


class TaskState(NamedTuple):
    """Snapshot of one task: `task` of the `tasks` of a component, behind batch `number`."""

    component: str
    task: int
    tasks: int
    number: int
    arrays: Mapping[str, np.ndarray]


class Copied(NamedTuple):
    """A snapshot to be written while the stream continues.

    `closings`: callables that complete the files that the checkpoint covers; `pause_s`: how long copying took;
    `fragments`: arrays beside those of `state`.
    """

    address: int
    epoch: int
    state: TaskState
    closings: Sequence[Callable[[], Output]]
    pause_s: float
    fragments: Mapping[str, Fragment] = MappingProxyType({})


def pack_parts(state: TaskState) -> list[frames.Buffer]:
    """One task's state as the pieces of a frame, of which arrays are not copied. O(bytes).

    Raises
    ------
    CheckpointError
        For an array that a frame cannot hold: names task and array.
    """
    header = {"component": state.component, "task": state.task, "tasks": state.tasks, "number": state.number}
    try:
        return frames.encode_parts(header, state.arrays)
    except CheckpointError as error:
        raise CheckpointError(f"{state.component}:{state.task} cannot be saved: {error}") from error


def unpack_task(frame: frames.Buffer, origin: str = "frame") -> TaskState:
    """What `pack_parts` packed, joined; the arrays are read-only views of the frame. O(bytes).

    Parameters
    ----------
    origin : str
        What error messages call the frame.

    Raises
    ------
    CheckpointError
        If it is damaged, or a frame of something else.
    """
    header, arrays = frames.decode(frame, origin)
    component = header.get("component")
    whole = [value for name in ("task", "tasks", "number") if type(value := header.get(name)) is int]
    if len(header) != 4 or len(whole) != 3 or not isinstance(component, str):
        raise CheckpointError(f"{origin}: is no state of a task; give a file of a checkpoint")
    task, tasks, number = whole
    if not 0 <= task < tasks or number < -1:
        raise CheckpointError(f"{origin}: claims task {task} of {tasks} of {component!r}, behind batch {number}")
    return TaskState(component, task, tasks, number, arrays)
