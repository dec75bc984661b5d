"""Reads the released updates of a stream from a position on, for sinks.

A boundary is released once its messages are on disk and its updates are complete; its updates and their ids are the
same after any crash (`gateway.serve.releasing`). So a sink stores nothing but its position. `Released` reads the latest
updates from memory and earlier ones from the committed parts. Used by `gateway.sinks.webhooks.dispatch` in its event
loop, and by `gateway.sinks.pump` in threads; `gateway.sinks.committed` is the `Supply` of a folder.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

from gateway.serve.history import BEGINNING, END, PIECE, History, PartDamaged, Parts, PartsMissing, Position, for_sinks
from gateway.serve.released import Update
from matching.errors import DeliveryError

Result = TypeVar("Result")
#: Seconds after which a read gives up waiting for the server's event loop.
_LOOP_S = 600.0


class Read(NamedTuple):
    """Result of `Released.read_after`.

    updates : list of Update
    behind : Position    position of the last update read; the next read begins after it
    lost : bool          whether the files of the updates up to `behind` are gone or damaged; `updates` is empty then
    """

    updates: list[Update]
    behind: Position
    lost: bool = False


class Place(NamedTuple):
    """A position, and the number of updates of the stream up to it."""

    position: Position
    updates: int


START = Place(BEGINNING, 0)


class Taken(NamedTuple):
    """Result of `Supply.take` from a place `at`.

    updates : list of Update
    behind : Place
        Place of the last update read. `behind.updates - at.updates - len(updates)` updates were skipped, since their
        files are gone.
    ends_boundary : bool
        Whether `behind` is the end of a boundary.
    """

    updates: list[Update]
    behind: Place
    ends_boundary: bool


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

    def take(self, at: Place, most: int = PIECE) -> Taken | None:
        """About `most` updates after a place, as far as they are in memory or in one file; None at the head."""
        ...


class Released:
    """The released updates of a stream, for sinks outside the thread of the server; also a `Supply`.

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
        """Position of the last released update."""
        return self._history.head

    async def read_after(
        self, position: Position, only: Callable[[], Collection[str]] | None = None, most: int = PIECE
    ) -> Read:
        """About `most` updates after a position; none if it is the head, or after it.

        Parameters
        ----------
        position : Position
        only : callable, optional
            Returns the subscription ids that the caller wants. A read from files skips others; a read from memory does
            not.
        most : int
        """
        reading = asyncio.run_coroutine_threadsafe(self._read(position, only, most), self._loop())
        return await asyncio.wrap_future(reading)

    async def _read(self, position: Position, only: Callable[[], Collection[str]] | None, most: int) -> Read:
        """`read_after`, in the server's event loop."""
        history = self._history
        if position >= history.head:
            return Read([], position)
        if history.has_after(position):
            return Read(*await asyncio.to_thread(partial(for_sinks, history.reading(position, most))))

        def read(floor: int = history.floor) -> tuple[list[Update], Position]:
            return history.parts.read_after(position, floor, only() if only is not None else None, most)

        try:
            found, behind = await asyncio.to_thread(read)
        except PartsMissing as missing:
            return Read([], Position(missing.boundary - 1, 0), lost=True)
        except PartDamaged as damaged:  # a sink stops at it; other webhooks are not to wait for this one
            return Read([], min(Position(damaged.boundary, END), history.head), lost=True)
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
        """Run a coroutine in the server's event loop; its result. Raises DeliveryError if the loop has ended."""
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
            found, behind = await asyncio.to_thread(partial(for_sinks, history.reading(at.position, most)))
            in_memory = history.has_after(behind)
            count = (history if in_memory else history.parts).count_of(behind.boundary)
            return Taken(found, Place(behind, at.updates + len(found)), behind.index + 1 >= count)
        floor = Position(history.floor, END)
        until = Place(floor, history.count_through(floor))
        return await asyncio.to_thread(take_of, history.parts, at, until, most)


def place_in(parts: Parts, position: Position, known: Place, until: Place) -> Place:
    """The place of a position in the committed parts, whose last update is at `until`.

    Counts back from `until`; if a part in between is gone, counts from `known` over the parts that remain.
    """
    try:
        return Place(position, until.updates - parts.count_between(position, until.position.boundary))
    except PartsMissing:
        first, last = sorted((position, known.position))
        count = sum(_rows(parts, first, last))
        return Place(position, max(0, known.updates + (count if first == known.position else -count)))


def _rows(parts: Parts, after: Position, until: Position) -> list[int]:
    """Numbers of updates read between two positions, one a read; skips parts that are gone."""
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
    """About `most` updates after a place in the committed parts, whose last update is at `until`."""
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
