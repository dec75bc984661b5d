"""The interface between a task and its executor: a channel for parcels, and a writer for snapshots."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from topology.core.checkpoint.barriers import Cadence
from topology.core.checkpoint.task_states import Copied

#: Control parcels have one of these in place of the number of an edge.
END, TICK, ACKNOWLEDGE, BARRIER, COPIED = -1, -2, -3, -4, -5


class Destination(NamedTuple):
    """A receiver of one parcel.

    address : int    of the receiving task
    edge : int       number of the edge, or one of the control values
    number : int     of the parcel among those from this sender to this receiver, from 0
    """

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
        Takes each snapshot; must not block.
    stored : callable
        From the address of a task and the newest committed epoch to the argument of `Component.snapshot`: the version
        of each piece that files have already.
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
