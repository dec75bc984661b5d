"""What a task needs of its executor: a way for parcels to leave it, and one for its state to be written.

Read on in `topology.core.tasks.task`, which uses them, and in `topology.core.executors.local` and
`topology.core.tasks.worker`, which have them.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from topology.core.checkpoint.barriers import Cadence
from topology.core.checkpoint.task_states import Copied

#: Parcels that are no payload: they take the place of the edge's number.
END, TICK, ACKNOWLEDGE, MARK, COPIED = -1, -2, -3, -4, -5


class Destination(NamedTuple):
    """A receiver of one parcel: its address, the edge (or END, TICK, ACKNOWLEDGE), the parcel's number on the link."""

    address: int
    edge: int
    number: int


class Saving(NamedTuple):
    """How the tasks of a run are saved while it runs.

    cadence : Cadence
    epoch : int    of the next checkpoint
    incarnation : int
    write : callable
        Takes what a task has copied; must not take long.
    """

    cadence: Cadence
    epoch: int
    incarnation: int
    write: Callable[[Copied], None]


class Channel(Protocol):
    """How parcels leave a task. Order from one task to another must be kept; `send` must not wait for a receiver."""

    def send(self, destinations: Sequence[Destination], payload: Any, size_bytes: int) -> None:
        """Send one payload, whose arrays total `size_bytes`, to all destinations."""
        ...
