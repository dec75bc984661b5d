"""What components say at a boundary, as a run that goes on gets it: written to frames and read back."""

from collections.abc import Mapping, Sequence
from typing import Any

from topology.core.api.component import Saved
from topology.core.checkpoint.task_states import from_frames, to_frames


def through_frames(number: int, **components: Any) -> Saved:
    """The state of these tasks behind a batch: a component, or a sequence of tasks, by name."""
    tasks = {name: part if isinstance(part, Sequence) else (part,) for name, part in components.items()}
    states: Mapping[str, Any] = {name: tuple(task.state() for task in part) for name, part in tasks.items()}
    return from_frames(to_frames(Saved(number, states)))
