"""Copies of the window: which tuple tasks store a message, and which of them answer a window query.

The window is divided by seq into `parts` parts, one by default. Each part has several tuple tasks, and each of these
stores all messages of the part. A window query goes to one task of each part, round robin, so that tasks share the
queries. With more parts a task needs less memory, but is hardly faster: the cost of a query depends little on the
number of messages, and every query goes to every part.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from matching.model import Int64


class WindowTasks(NamedTuple):
    """The tuple tasks of a run.

    tasks, parts : int    1 <= parts <= tasks
    """

    tasks: int
    parts: int

    @classmethod
    def of(cls, tasks: int, parts: int) -> "WindowTasks":
        """With `parts` parts, but no more than tasks."""
        return cls(tasks, min(parts, tasks))

    def part_of(self, task: int) -> int:
        """The part that a task stores."""
        return task % self.parts

    def stores(self, task: int, seq: Int64) -> NDArray[np.bool_]:
        """bool[n]: which messages a task stores, by their seqs (int64[n])."""
        return seq % self.parts == self.part_of(task)

    def saves(self, task: int) -> bool:
        """Whether a task writes its part into checkpoints: the first task of each part does."""
        return task < self.parts

    def answering(self, home: int, request: int) -> list[int]:
        """The tuple tasks that answer window request `request` of query task `home`, one for each part."""
        turn = home + request
        copies = [(self.tasks - part + self.parts - 1) // self.parts for part in range(self.parts)]
        return [part + self.parts * (turn % count) for part, count in enumerate(copies)]
