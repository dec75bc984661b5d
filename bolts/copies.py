"""Copies of the window: which tuple tasks store a message, and which of them answer a window query.

The window is in `parts` parts by seq, one by default, and each part is at several tuple tasks, all of which store every
message of it. A window query goes to one task of each part, in turn: so tasks share the queries. More parts make a task
smaller and not much faster: what a query costs hardly depends on how many messages there are, and each goes to every
part. Used by `bolts.distribution`, `bolts.query`, `bolts.tuples` and `bolts.aggregation`.
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
        """With as many parts as wanted, and at most one a task."""
        return cls(tasks, min(parts, tasks))

    def part_of(self, task: int) -> int:
        """The part that a task stores."""
        return task % self.parts

    def stores(self, task: int, seq: Int64) -> NDArray[np.bool_]:
        """Whether a task stores each of some messages."""
        return seq % self.parts == self.part_of(task)

    def saves(self, task: int) -> bool:
        """Whether a task is the one of its part that saves it in checkpoints."""
        return task < self.parts

    def asked(self, home: int, request: int) -> list[int]:
        """The tasks that answer a request of a query task, one for each part."""
        turn = home + request
        copies = [(self.tasks - part + self.parts - 1) // self.parts for part in range(self.parts)]
        return [part + self.parts * (turn % count) for part, count in enumerate(copies)]
