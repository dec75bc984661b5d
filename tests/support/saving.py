"""Snapshots of components as a resumed run gets them: written to frames and read back."""

from collections.abc import Sequence
from typing import Any

from tests.support.snapshots import saved_by
from topology.core.api.component import Saved
from topology.core.checkpoint.task_states import TaskState, pack_parts, unpack_task


def frame_of(state: TaskState) -> bytes:
    """The frame of a task."""
    return b"".join(pack_parts(state))


def through_frames(number: int, **components: Any) -> Saved:
    """The state of these tasks behind a batch: a component, or a sequence of tasks, by name."""
    parts = {}
    for name, part in components.items():
        tasks = part if isinstance(part, Sequence) else (part,)
        states = [TaskState(name, place, len(tasks), number, saved_by(task)) for place, task in enumerate(tasks)]
        parts[name] = tuple(unpack_task(frame_of(state)).arrays for state in states)
    return Saved(number, parts)
