"""A place in the stream of released updates, and the updates behind it.

A boundary is released once its messages are on disk and its updates are complete; its updates and their ids are the
same after any crash (`gateway.serve.releasing`). So a position is all that a sink has to keep. The latest updates are
read from memory, earlier ones from the committed parts. Used by `gateway.sinks.webhooks.dispatch`.
"""

import asyncio
from collections.abc import Callable, Collection
from typing import NamedTuple

from gateway.serve.history import PIECE, History, PartsMissing, Position
from gateway.serve.releasing import Update


class Read(NamedTuple):
    """What was read.

    updates : list of Update
    behind : Position    where the next read begins
    lost : bool          updates before `behind` are in no file any more, and none were read
    """

    updates: list[Update]
    behind: Position
    lost: bool = False


class Released:
    """The released updates of a stream, for a sink in another thread than the server's.

    Parameters
    ----------
    history : History
        Belongs to the server's event loop.
    loop : callable
        That event loop, once it runs.
    """

    def __init__(self, history: History, loop: Callable[[], asyncio.AbstractEventLoop]):
        self._history = history
        self._loop = loop

    @property
    def head(self) -> Position:
        """Behind all that is released."""
        return self._history.head

    async def read_after(
        self, position: Position, only: Callable[[], Collection[str]] | None = None, most: int = PIECE
    ) -> Read:
        """About `most` updates after a position; nothing if it is at the head, or beyond.

        Parameters
        ----------
        position : Position
        only : callable, optional
            Makes the subscriptions that are wanted, for a read from files; others may come too.
        most : int
        """
        reading = asyncio.run_coroutine_threadsafe(self._read(position, only, most), self._loop())
        return await asyncio.wrap_future(reading)

    async def _read(self, position: Position, only: Callable[[], Collection[str]] | None, most: int) -> Read:
        """In the server's event loop."""
        history = self._history
        if position >= history.head:
            return Read([], position)
        if history.has_after(position):
            return Read(*history.read_after(position, most))

        def read(floor: int = history.floor) -> tuple[list[Update], Position]:
            return history.parts.read_after(position, floor, only() if only is not None else None, most)

        try:
            found, behind = await asyncio.to_thread(read)
        except PartsMissing as missing:
            return Read([], Position(missing.boundary - 1, 0), lost=True)
        return Read(found, min(behind, history.head))
