"""Snapshots of components as a resumed run gets them: written to frames and read back."""

from collections.abc import Mapping, Sequence
from typing import Any

from topology.core.api.component import Saved
from topology.core.checkpoint.task_states import TaskState, from_frames, pack_task


def to_frames(saved: Saved) -> list[bytes]:
    """A frame for each task."""
    return [
        pack_task(TaskState(component, task, len(tasks), saved.number, arrays))
        for component, tasks in saved.parts.items()
        for task, arrays in enumerate(tasks)
    ]


def through_frames(number: int, **components: Any) -> Saved:
    """The state of these tasks behind a batch: a component, or a sequence of tasks, by name."""
    tasks = {name: part if isinstance(part, Sequence) else (part,) for name, part in components.items()}
    states: Mapping[str, Any] = {name: tuple(task.state() for task in part) for name, part in tasks.items()}
    return from_frames(to_frames(Saved(number, states)))
