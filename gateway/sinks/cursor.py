"""How sinks read the updates of a stream, each from a position on.

A boundary is released once its messages are on disk and its updates are complete; its updates and their ids are the
same after any crash (`gateway.serve.releasing`). So a sink stores nothing but its position.
"""

from collections.abc import Callable, Collection
from typing import NamedTuple, Protocol

from gateway.serve.released import ReleasedUpdate
from gateway.serve.update_log import UpdateLog
from gateway.serve.update_parts import (
    BEGINNING,
    PIECE,
    PartDamaged,
    PartsMissing,
    Place,
    Position,
    TakenUpdates,
    for_sinks,
)


class Read(NamedTuple):
    """Result of `read_after`.

    updates : list of ReleasedUpdate
    behind : Position    position of the last update read; the next read begins after it
    lost : bool          whether the files of the updates up to `behind` are gone or damaged; `updates` is empty then
    """

    updates: list[ReleasedUpdate]
    behind: Position
    lost: bool = False


START = Place(BEGINNING, 0)


class Supply(Protocol):
    """The updates of a stream, for one thread of a sink."""

    def end(self) -> Place:
        """Place of the last update that can be read."""
        ...

    def place(self, position: Position, known: Place) -> Place | None:
        """The place of a position; None while it is after the head, since the stream is still being matched again.

        Parameters
        ----------
        position : Position
        known : Place
            Base of the count of updates if the files from the position to the head are gone.
        """
        ...

    def take(self, at: Place, most: int = PIECE) -> TakenUpdates | None:
        """About `most` updates after a place, as far as they are in memory or in one file; None at the head."""
        ...


def read_after(
    log: UpdateLog, position: Position, only: Callable[[], Collection[str]] | None = None, most: int = PIECE
) -> Read:
    """About `most` updates after a position; none if it is the head, or after it.

    Parameters
    ----------
    log : UpdateLog
    position : Position
    only : callable, optional
        Returns the subscription ids that the caller wants. A read from files skips others; a read from memory does not.
    most : int
    """
    try:
        names = None if only is None or log.has_after(position) else only()
        return Read(*for_sinks(log.rows_after(position, names, most)))
    except (PartsMissing, PartDamaged) as lost:  # a sink stops at it; other webhooks are not to wait for this one
        return Read([], log.behind(lost), lost=True)
