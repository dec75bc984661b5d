"""Publishes updates to the driver as soon as they are out, besides the files.

New updates come with the seq up to which all updates are out. A driver in the same process gets the arrays themselves;
a driver in another process gets frames (`topology.core.frames`) through a local socket. Each delivery task publishes
the updates of its own subscriptions. A slow reader blocks delivery, and the credits of delivery then block the stream.
After a failure the same updates may be published again.
"""

import contextlib
import socket
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from bolts.shares import Ids
from matching.errors import DeliveryError
from matching.model import Float64, Int8, Int32, Int64, Names, UpdateBatch, concatenate
from topology.core import frames

_NUMBERS = ("incarnation", "through", "since", "task", "tasks")


class PublishedUpdates(NamedTuple):
    """Content of a frame.

    incarnation : int    of the run
    through : int    all updates of this task as of messages up to this seq are out
    as_of, seq, change, score    as in `matching.model.UpdateBatch`
    who : int32[n]    position of the subscription's id in `names`
    names : Names
    since : int    the incarnation publishes updates of later seqs: the last one of the checkpoint that it began from
    task, tasks : int    which delivery task published it, and how many there are
    """

    incarnation: int
    through: int
    as_of: Int64
    seq: Int64
    change: Int8
    score: Float64
    who: Int32
    names: Names
    since: int = -1
    task: int = 0
    tasks: int = 1


def encode(published: PublishedUpdates) -> bytes:
    header = {name: getattr(published, name) for name in _NUMBERS}
    arrays = {name: getattr(published, name) for name in ("as_of", "seq", "change", "score", "who")}
    return frames.encode(header, {**arrays, "offsets": published.names.offsets, "data": published.names.data})


def decode(frame: bytes) -> PublishedUpdates:
    """Raises CheckpointError if the frame is damaged."""
    header, arrays = frames.decode(frame, "published updates")
    names = Names(arrays.pop("offsets"), arrays.pop("data"))
    numbers: dict[str, Any] = {name: int(header[name]) for name in _NUMBERS}
    return PublishedUpdates(**arrays, names=names, **numbers)


#: Who takes the updates of topologies in this process, by address.
_TAKERS: dict[str, Callable[[PublishedUpdates], None]] = {}


def open_direct(address: str, take: Callable[[PublishedUpdates], None]) -> None:
    """Hand what is published to an address in this process to a function, until `close_direct`."""
    _TAKERS[address] = take


def close_direct(address: str) -> None:
    _TAKERS.pop(address, None)


class UpdatePublisher:
    """The sending end.

    Parameters
    ----------
    address : str
        Of `open_direct`, or the path of a socket.
    task, tasks : int
        As in `PublishedUpdates`.

    Attributes
    ----------
    since : int
        As in `PublishedUpdates`.

    Raises
    ------
    DeliveryError
        If no listener accepts the connection.
    """

    def __init__(self, address: str, incarnation: int, task: int = 0, tasks: int = 1):
        self._address = address
        self._task, self._tasks = task, tasks
        self._incarnation = incarnation
        self.since = -1
        self._through = -2
        self._waiting: list[UpdateBatch] = []
        self._direct = _TAKERS.get(address)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        if self._direct is not None:
            return
        try:
            self._socket.connect(address)
        except OSError as error:
            raise self._failed(error) from error

    def add(self, updates: UpdateBatch) -> None:
        """Buffer updates for the next `publish`."""
        self._waiting.append(updates)

    def publish(self, through: int, subscriptions: Ids) -> None:
        """Publish the buffered updates and the seq up to which all are out. Blocks while the listener does not read.

        Raises
        ------
        DeliveryError
            If the listener has closed the connection.
        """
        if not self._waiting and through == self._through:
            return
        updates, self._waiting, self._through = self._waiting, [], through
        whole = concatenate(updates) if updates else _NOTHING
        numbers, who = whole.number, np.zeros(len(whole), np.int64)
        if len(whole) > 1:  # a small batch mostly has one
            numbers, who = np.unique(numbers, return_inverse=True)
        published = PublishedUpdates(
            self._incarnation,
            through,
            whole.as_of,
            whole.seq,
            whole.change,
            whole.score,
            who.astype(np.int32),
            subscriptions.packed(numbers),
            self.since,
            self._task,
            self._tasks,
        )
        if self._direct is not None:
            self._direct(published)
            return
        try:
            self._socket.sendall(encode(published))
        except OSError as error:
            raise self._failed(error) from error

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.close()

    def _failed(self, error: OSError) -> DeliveryError:
        return DeliveryError(f"{self._address}: no listener takes updates ({error.strerror or error})")


_NONE = np.zeros(0, np.int64)
_NOTHING = UpdateBatch(_NONE, _NONE, _NONE, np.zeros(0, np.int8), np.zeros(0, np.float64))
