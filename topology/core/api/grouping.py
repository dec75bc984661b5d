"""Groupings: which tasks of the receiving component get a payload.

    shuffle   one task, round robin for each sender, so it is even and repeatable
    fields    one task, by a stable hash of the `key` given to `Context.emit`
    all       every task
    direct    the task named by `to` in `Context.emit`

The hash is xxHash over the eight bytes of the key: the same on every machine, version and run, which Python's own
`hash` does not promise.
"""

from collections.abc import Sequence

import xxhash

SHUFFLE = "shuffle"
FIELDS = "fields"
ALL = "all"
DIRECT = "direct"
GROUPINGS = (SHUFFLE, FIELDS, ALL, DIRECT)

_KEY_MASK = 2**64 - 1


def task_of_key(key: int, tasks: int) -> int:
    """The task, 0 to `tasks - 1`, that a fields grouping gives to a key. O(1).

    Parameters
    ----------
    key : int
        Any integer; only its low 64 bits count, negative ones in two's complement.
    tasks : int
        At least 1.
    """
    return xxhash.xxh3_64_intdigest((int(key) & _KEY_MASK).to_bytes(8, "little")) % tasks


class Chooser:
    """Chooses the receiving tasks of one edge for one sending task.

    Parameters
    ----------
    grouping : str
        One of `GROUPINGS`.
    tasks : int
        How many tasks the receiving component has.
    sender : int
        The sending task: shuffles of different senders start at different receivers.
    """

    def __init__(self, grouping: str, tasks: int, sender: int):
        self.grouping = grouping
        self._tasks = tasks
        self._every = range(tasks)
        self._next = sender % tasks

    def choose(self, to: int | None, key: int | None) -> Sequence[int]:
        """Receiving tasks, ascending.

        Raises
        ------
        ValueError
            When a direct edge lacks a valid `to`, or a fields edge lacks a `key`.
        """
        if self.grouping == ALL:
            return self._every
        if self.grouping == DIRECT:
            if to is None:
                raise ValueError("a direct edge needs emit(..., to=TASK)")
            if not 0 <= to < self._tasks:
                raise ValueError(f"to={to} is no task of the receiver: it has tasks 0 to {self._tasks - 1}")
            return (int(to),)
        if self.grouping == FIELDS:
            if key is None:
                raise ValueError("a fields edge needs emit(..., key=INTEGER)")
            return (task_of_key(key, self._tasks),)
        chosen = self._next
        self._next = (chosen + 1) % self._tasks
        return (chosen,)
