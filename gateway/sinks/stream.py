"""Contract of stream sinks: they take all updates of a stream in order, and return their position.

A webhook gets the updates that it asked for, batch by batch; a stream sink is a receiver of everything,
named by `--to`. Delivery begins behind the position that the receiver keeps itself, in the same transaction as the
updates (`exactly_once`), or else behind the one in the folder, which may lag: then the last chunks come again, with the
same ids. Driven by `gateway.sinks.pump`.
"""

from typing import NamedTuple, Protocol

from gateway.serve.released import ReleasedUpdate
from gateway.serve.update_parts import Position
from matching.errors import EngineError


class SinkAway(EngineError):
    """A receiver that cannot be reached now, or a connection that is broken; opening the sink again may help."""

    exit_code = 75  # as sysexits.h has it: the same command may succeed later


class UpdateChunk(NamedTuple):
    """Consecutive updates of a stream.

    updates : list of ReleasedUpdate    in the order of the stream; none if boundaries passed without any
    behind : Position           behind the last of them
    ends_boundary : bool        whether `behind` is the end of a boundary: results are as of a boundary only there
    through_seq : int           the last seq of the boundary of `behind`
    """

    updates: list[ReleasedUpdate]
    behind: Position
    ends_boundary: bool
    through_seq: int


class StreamSink(Protocol):
    """One receiver of all updates.

    Attributes
    ----------
    name : str
        `kafka/posts`: without address and secrets, since its position in the folder has this name.
    extra : str
        Of the distribution (`matching.extras`).
    exactly_once : bool
        Whether the receiver keeps the position itself, in one transaction with the updates.
    """

    name: str
    extra: str
    exactly_once: bool

    def open(self, stream: str) -> Position | None:
        """Connect; after it no earlier process can write to the receiver any more, where it is `exactly_once`.

        Parameters
        ----------
        stream : str
            Identity of the stream; another one may not write into the same place, unless nothing was delivered there:
            a folder whose process was killed before its first message begins anew, with another identity.

        Returns
        -------
        Position or None
            Behind the last update that the receiver has of this stream; None if it does not know.

        Raises
        ------
        ConfigError
            If the receiver refuses us, or has another stream's updates.
        SinkAway
            If it cannot be reached.
        """
        ...

    def deliver(self, chunk: UpdateChunk) -> Position:
        """Deliver a chunk, in a bounded time.

        Returns
        -------
        Position
            Behind the last update that the receiver holds durably: earlier than `chunk.behind` while a transaction is
            open that ends with its boundary.

        Raises
        ------
        SinkAway
            If it is unknown whether the chunk arrived; the pump closes the sink and opens it again, which returns the
            position.
        EngineError
            If the receiver will never take it, or another process delivers there now; says why. The sink is not opened
            again.
        """
        ...

    def check(self) -> None:
        """Look whether the receiver is there, in a bounded time; called while there is nothing to deliver.

        Raises
        ------
        SinkAway
            If it is not.
        EngineError
            As `deliver`.
        """
        ...

    def close(self) -> None:
        """Disconnect; what is not committed is dropped. `open` may be called again. Never raises."""
        ...
