"""Updates told at once to whoever drives the topology, besides what is written to files.

A frame (`topology.core.frames`) goes through a socket of this machine for whatever has been told, and says up to which
message everything has been. Who listens and reads slowly holds delivery back, and with it the stream, by its credits.
After a failure the same updates may be told again. Used by `bolts.delivery`; the other end is
`gateway.live.update_listener`.
"""

import contextlib
import socket
from typing import NamedTuple

import numpy as np

from bolts.names import IdColumn
from matching.errors import DeliveryError
from matching.model import Float64, Int8, Int32, Int64, Names, UpdateBatch, concatenate
from topology.core import frames


class PublishedUpdates(NamedTuple):
    """What a frame says.

    incarnation : int    of the run
    through : int    all updates as of messages up to this seq have been told
    as_of, seq, change, score    as in `matching.model.UpdateBatch`
    who : int32[n]    place of the subscription's id in `names`
    names : Names
    """

    incarnation: int
    through: int
    as_of: Int64
    seq: Int64
    change: Int8
    score: Float64
    who: Int32
    names: Names


def encode(told: PublishedUpdates) -> bytes:
    """A frame."""
    header = {"incarnation": told.incarnation, "through": told.through}
    arrays = {name: getattr(told, name) for name in ("as_of", "seq", "change", "score", "who")}
    return frames.encode(header, {**arrays, "offsets": told.names.offsets, "data": told.names.data})


def decode(frame: bytes) -> PublishedUpdates:
    """What a frame says. Raises CheckpointError if it is damaged."""
    header, arrays = frames.decode(frame, "told")
    names = Names(arrays.pop("offsets"), arrays.pop("data"))
    return PublishedUpdates(header["incarnation"], header["through"], **arrays, names=names)


class UpdatePublisher:
    """The end of the socket at which it is told.

    Parameters
    ----------
    address : str
        Path of the socket.
    incarnation : int

    Raises
    ------
    DeliveryError
        If nobody listens.
    """

    def __init__(self, address: str, incarnation: int):
        self._address = address
        self._incarnation = incarnation
        self._through = -2
        self._waiting: list[UpdateBatch] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.connect(address)
        except OSError as error:
            raise self._failed(error) from error

    def add(self, updates: UpdateBatch) -> None:
        """These are to be told next."""
        self._waiting.append(updates)

    def tell(self, through: int, subscriptions: IdColumn) -> None:
        """Tell what was added, and up to which message everything has been. Waits while nobody reads.

        Raises
        ------
        DeliveryError
            If nobody listens any more.
        """
        if not self._waiting and through == self._through:
            return
        updates, self._waiting, self._through = self._waiting, [], through
        whole = concatenate(updates) if updates else _NOTHING
        numbers, who = np.unique(whole.number, return_inverse=True)
        names = Names.of(subscriptions.names(numbers).to_pylist())
        told = PublishedUpdates(
            self._incarnation,
            through,
            whole.as_of,
            whole.seq,
            whole.change,
            whole.score,
            who.astype(np.int32),
            names,
        )
        try:
            self._socket.sendall(encode(told))
        except OSError as error:
            raise self._failed(error) from error

    def close(self) -> None:
        """Hang up."""
        with contextlib.suppress(OSError):
            self._socket.close()

    def _failed(self, error: OSError) -> DeliveryError:
        return DeliveryError(f"{self._address}: nobody is there to be told of updates ({error.strerror or error})")


_NONE = np.zeros(0, np.int64)
_NOTHING = UpdateBatch(_NONE, _NONE, _NONE, np.zeros(0, np.int8), np.zeros(0, np.float64))
