"""Parcels between tasks, and the request by which a worker opens its tasks."""

from typing import Any, NamedTuple

from topology.core.api.component import Saved
from topology.core.checkpoint.barriers import Cadence
from topology.core.checkpoint.store import CheckpointStore, Manifest

#: Control parcels have one of these in place of the number of an edge.
END, TICK, ACKNOWLEDGE, BARRIER, COPIED = -1, -2, -3, -4, -5


class Parcel(NamedTuple):
    """One payload in flight.

    address : int    of the receiving task
    edge : int       number of the edge, or one of the control values
    sender : int     address of the sending task
    number : int     of the parcel among those from this sender to this receiver, from 0
    payload : Any
    size_bytes : int    of the distinct arrays of the payload
    """

    address: int
    edge: int
    sender: int
    number: int
    payload: Any
    size_bytes: int


class OpenRequest(NamedTuple):
    """How a worker opens its tasks: in which incarnation of the run, and in which state.

    `store` None: without checkpoints. `saved` None: from the start of the stream. `epoch`: that of the next checkpoint.
    `store_bytes`: size of the object store between workers. `write_behind`: whether a thread writes snapshots while the
    stream continues. `pause_behind`: the clock publishes nothing behind this batch, not even the end. `kept`: the
    checkpoints that are kept, whose files may be named again.
    """

    incarnation: int = 0
    store: CheckpointStore | None = None
    cadence: Cadence = Cadence()
    epoch: int = 0
    saved: Saved | None = None
    store_bytes: int | None = None
    write_behind: bool = True
    pause_behind: int | None = None
    kept: tuple[Manifest, ...] = ()


FROM_THE_START = OpenRequest()
