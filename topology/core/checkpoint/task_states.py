"""Snapshots of a run as bytes: one frame for each task, which names its task.

Tasks write their frames apart from each other, so reading starts with checking that they belong together: all of one
boundary, every task of every component there, once.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from matching.errors import CheckpointError
from topology.core import frames
from topology.core.api.component import Piece, Saved
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
    `pieces`: arrays beside those of `state`.
    """

    address: int
    epoch: int
    state: TaskState
    closings: Sequence[Callable[[], Output]]
    pause_s: float
    pieces: Mapping[str, Piece] = MappingProxyType({})


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


def pack_task(state: TaskState) -> bytes:
    """One task's state as a frame. Raises as `pack_parts`."""
    return b"".join(pack_parts(state))


def unpack_task(frame: frames.Buffer, origin: str = "frame") -> TaskState:
    """What `pack_task` packed; the arrays are read-only views of the frame. O(bytes).

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


def join(states: Iterable[TaskState]) -> Saved:
    """Put the states of all tasks together, in whatever order they come.

    Raises
    ------
    CheckpointError
        If there is none, if they are of several boundaries, or if a task is missing or there twice: names it.
    """
    parts: dict[str, dict[int, Mapping[str, np.ndarray]]] = {}
    sizes: dict[str, int] = {}
    numbers: dict[int, str] = {}
    for component, task, tasks, number, arrays in states:
        name = f"{component}:{task}"
        if sizes.setdefault(component, tasks) != tasks:
            raise CheckpointError(f"{name} was one of {tasks} tasks, others of {component!r} of {sizes[component]}")
        if task in parts.setdefault(component, {}):
            raise CheckpointError(f"{name} was saved twice; keep the files of one checkpoint apart from others'")
        parts[component][task] = arrays
        numbers.setdefault(number, name)
    if not numbers:
        raise CheckpointError("nothing was saved: there is no state of any task")
    if len(numbers) > 1:
        listed = ", ".join(f"{name} behind batch {number}" for number, name in sorted(numbers.items()))
        raise CheckpointError(f"tasks were saved at several boundaries ({listed}): all must be of one checkpoint")
    missing = [f"{name}:{task}" for name, size in sizes.items() for task in range(size) if task not in parts[name]]
    if missing:
        raise CheckpointError(f"nothing was saved of {', '.join(missing)}; use an older checkpoint")
    in_order = {name: tuple(tasks[task] for task in range(sizes[name])) for name, tasks in parts.items()}
    return Saved(next(iter(numbers)), in_order)


def from_frames(packed: Iterable[frames.Buffer]) -> Saved:
    """The snapshots of all tasks from their frames, in any order. Raises as `unpack_task` and `join`."""
    return join(unpack_task(frame, f"frame {place}") for place, frame in enumerate(packed))
