"""A place in the stream of released updates, and the updates behind it.

A boundary is released once its messages are on disk and its updates are complete; its updates and their ids are the
same after any crash (`gateway.serve.releasing`). So a position is all that a sink has to keep. The latest updates are
read from memory, earlier ones from the committed parts. Used by `gateway.sinks.webhooks.dispatch`, and by
`gateway.sinks.pump` in its own threads.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine
from typing import Any, NamedTuple, Protocol, TypeVar

from gateway.serve.history import BEGINNING, END, PIECE, History, Parts, PartsMissing, Position
from gateway.serve.releasing import Update
from matching.errors import DeliveryError

Result = TypeVar("Result")
#: Seconds that a read waits for the server's event loop at most.
_LOOP_S = 600.0


class Read(NamedTuple):
    """What was read.

    updates : list of Update
    behind : Position    where the next read begins
    lost : bool          updates before `behind` are in no file any more, and none were read
    """

    updates: list[Update]
    behind: Position
    lost: bool = False


class Place(NamedTuple):
    """A position, and how many updates of the stream are up to it."""

    position: Position
    updates: int


START = Place(BEGINNING, 0)


class Taken(NamedTuple):
    """What was read behind a place.

    updates : list of Update
    behind : Place
        `behind.updates` less those and less those of the place: how many are in no file any more.
    ends_boundary : bool
        Whether `behind` is the end of a boundary.
    """

    updates: list[Update]
    behind: Place
    ends_boundary: bool


class Supply(Protocol):
    """The updates of a stream, for one thread of a sink."""

    def end(self) -> Place:
        """Behind all that can be read."""
        ...

    def place(self, position: Position, known: Place) -> Place | None:
        """The place of a position; None while it is beyond the head, as the stream is matched again.

        Parameters
        ----------
        position : Position
        known : Place
            From which is counted where files are gone.
        """
        ...

    def take(self, at: Place, most: int = PIECE) -> Taken | None:
        """About `most` updates behind a place, as far as they are in memory or in one file; None at the head."""
        ...


class Released:
    """The released updates of a stream, for a sink in another thread than the server's; also as a `Supply`.

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

    def place(self, position: Position, known: Place) -> Place | None:
        """See `Supply`."""
        return self._wait(self._place(position, known))

    def take(self, at: Place, most: int = PIECE) -> Taken | None:
        """See `Supply`."""
        return self._wait(self._take(at, most))

    def end(self) -> Place:
        """See `Supply`."""
        return Place(self._history.head, self._history.updates)

    def _wait(self, reading: Coroutine[Any, Any, Result]) -> Result:
        """The result of a coroutine of the server's event loop."""
        try:
            return asyncio.run_coroutine_threadsafe(reading, self._loop()).result(_LOOP_S)
        except RuntimeError as error:  # the loop has ended
            reading.close()
            raise DeliveryError("the server has ended") from error

    async def _place(self, position: Position, known: Place) -> Place | None:
        history = self._history
        if position.boundary > history.head.boundary:
            return None
        if history.has_after(position):
            return Place(position, history.count_through(position))
        floor, before = history.floor, history.count_through(Position(history.floor, END))
        return await asyncio.to_thread(place_in, history.parts, position, known, Place(Position(floor, END), before))

    async def _take(self, at: Place, most: int) -> Taken | None:
        history = self._history
        if at.position >= history.head:
            return None
        if history.has_after(at.position):
            found, behind = history.read_after(at.position, most)
            return Taken(found, Place(behind, history.count_through(behind)), True)
        floor = Position(history.floor, END)
        until = Place(floor, history.count_through(floor))
        return await asyncio.to_thread(take_of, history.parts, at, until, most)


def place_in(parts: Parts, position: Position, known: Place, until: Place) -> Place:
    """The place of a position in the parts, which go up to `until`."""
    try:
        return Place(position, until.updates - parts.count_between(position, until.position.boundary))
    except PartsMissing:
        first, last = sorted((position, known.position))
        count = sum(_rows(parts, first, last))
        return Place(position, max(0, known.updates + (count if first == known.position else -count)))


def _rows(parts: Parts, after: Position, until: Position) -> list[int]:
    """How many updates are there after a position, in steps, whatever is gone."""
    counts: list[int] = []
    at = after
    while at < until:
        try:
            found, behind = parts.read_after(at, until.boundary)
        except PartsMissing as missing:
            at = Position(missing.boundary - 1, END)
            continue
        if not found:
            break
        counts.append(sum(Position.of(one.position) <= until for one in found))
        at = behind
    return counts


def take_of(parts: Parts, at: Place, until: Place, most: int) -> Taken:
    """Some updates behind a place in the parts, which go up to `until`; not beyond it."""
    last = until.position.boundary
    try:
        found, behind = parts.read_after(at.position, last, None, most)
    except PartsMissing as missing:
        behind = Position(missing.boundary - 1, END)
        return Taken([], place_in(parts, behind, until, until), True)
    if not found:
        return Taken([], until, True)
    is_end = behind.index + 1 == parts.count_of(behind.boundary)
    return Taken(found, Place(behind, at.updates + len(found)), is_end)
