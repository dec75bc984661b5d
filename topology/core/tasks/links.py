"""What a task needs of its executor: a channel for parcels, and a writer for snapshots.

Read on in `topology.core.tasks.task`, which uses them, and in `topology.core.tasks.worker`, which provides them.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from topology.core.checkpoint.barriers import Cadence
from topology.core.checkpoint.task_states import Copied

#: Control parcels: these stand in place of the edge's number.
END, TICK, ACKNOWLEDGE, BARRIER, COPIED = -1, -2, -3, -4, -5


class Destination(NamedTuple):
    """A receiver of one parcel: its address, the edge (or a control parcel), the parcel's number on the link."""

    address: int
    edge: int
    number: int


class Parcel(NamedTuple):
    """One payload in flight to the task at `address`; `edge` and `number` as in `Destination`."""

    address: int
    edge: int
    sender: int
    number: int
    payload: Any
    size_bytes: int


class Saving(NamedTuple):
    """How the tasks of a run take snapshots.

    cadence : Cadence
    epoch : int    of the next checkpoint
    incarnation : int
    write : callable
        Gets each snapshot; must not block.
    stored : callable
        Given the address of a task and the newest committed epoch, returns what `Component.snapshot` gets.
    """

    cadence: Cadence
    epoch: int
    incarnation: int
    write: Callable[[Copied], None]
    stored: Callable[[int, int], Mapping[str, int]] = lambda address, committed: {}


class Channel(Protocol):
    """How parcels leave a task. Order from one task to another must be kept; `send` must not wait for a receiver."""

    def send(self, destinations: Sequence[Destination], payload: Any, size_bytes: int) -> None:
        """Send one payload, whose arrays total `size_bytes`, to all destinations."""
        ...
