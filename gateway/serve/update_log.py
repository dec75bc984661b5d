"""The one ordered log of updates: the latest released boundaries in memory, earlier ones in the parts of `updates/`.

Clients (`gateway.serve.hub`), webhooks, sinks and questions read it, each from its own position. It has no texts; who
reads looks them up. After a restart the updates between the last part and the checkpoint are read from the checkpoint,
and the topology publishes the later ones again.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from threading import RLock
from typing import Any, NamedTuple

import numpy as np

from gateway.serve.included import Include
from gateway.serve.released import PIECE_BYTES, Released, ReleasedUpdate, TagOf, UpdateRows
from gateway.serve.update_parts import (
    BEGINNING,
    END,
    PIECE,
    PartDamaged,
    Parts,
    PartsMissing,
    Place,
    Position,
    TakenUpdates,
    count_of,
    for_sinks,
    place_in,
    read_rows,
    saved_updates,
    take_of,
)
from topology.live import last_seq_of

#: Bytes of updates in memory from which those that the parts have are dropped, and at which no more batches are taken.
IN_MEMORY_BYTES, MOST_IN_MEMORY_BYTES = 32 * 2**20, 256 * 2**20


class WholeRead(NamedTuple):
    """Result of `UpdateLog.read_whole`.

    updates : list of ReleasedUpdate
    behind : Position    position of the last update read; the next read begins after it
    lost : bool          whether the files of the updates up to `behind` are gone or damaged; `updates` is empty then
    """

    updates: list[ReleasedUpdate]
    behind: Position
    lost: bool = False


class UpdateLog:
    """Released boundaries in order: the latest in memory, earlier ones in the parts; for any thread.

    Parameters
    ----------
    parts : Parts
    most_bytes : int
        Size from which updates that the parts have are dropped.

    Attributes
    ----------
    size_bytes : int
        Of the updates in memory.
    floor : int
        Updates of later boundaries are in memory, and no others.
    head : Position
        Behind all that is released.
    updates : int
        How many were released since the stream began, in whatever process.
    """

    def __init__(self, parts: Parts, most_bytes: int = IN_MEMORY_BYTES):
        self.parts = parts
        self.floor = -1
        self.head = BEGINNING
        self.updates = 0
        self.size_bytes = 0
        self._most_bytes = most_bytes
        self._before: list[int] = []  # of each piece in memory, how many updates are before it
        self._lasts: list[int] = []  # of each the last boundary
        self._pieces: list[Released] = []
        self._lock = RLock()

    def resume(self, saved: Mapping[str, Any] | None) -> int:
        """Start where a stream was left, and return up to which seq all is released.

        Parameters
        ----------
        saved : mapping of str to array, optional
            What delivery saved in the checkpoint from which the topology resumes (`bolts.delivery`); None without one:
            the topology publishes everything again.
        """
        if saved is None:
            return -1
        self.floor = self.parts.last_boundary()
        self.head = Position(self.floor, 0)
        with suppress(PartDamaged):  # readers of that part are told
            self.head = Position(self.floor, self.parts.count_of(self.floor) if self.floor >= 0 else 0)
        through = max(self.floor, last_seq_of(saved))
        in_memory = saved_updates(saved, self.floor, self.parts.ends)
        self.updates = int(np.sum(saved.get("updates", 0))) - len(in_memory.boundary)
        with suppress(PartsMissing, PartDamaged):  # the checkpoint may be older than parts that are named already
            self.updates += self.parts.count_between(Position(last_seq_of(saved), END), self.floor)
        self.append([in_memory], through)
        return through

    def append(self, released: Sequence[Released], through: int) -> None:
        """Take the next boundaries, and the seq up to which all are released."""
        with self._lock:
            for one in released:
                count = len(one.boundary)
                if not count:
                    continue
                last = int(one.boundary[-1])
                self._lasts.append(last)
                self._pieces.append(one)
                self._before.append(self.updates)
                self.size_bytes += one.size_bytes
                self.updates += count
                self.head = Position(last, int(one.place[-1]) + 1)
            if through > self.head.boundary:
                self.head = Position(through, 0)

    def has_after(self, position: Position) -> bool:
        """Whether all updates after a position are in memory."""
        return position >= Position(self.floor, END) or self.floor < 0

    def end(self) -> Place:
        """Place of the last update that is released."""
        with self._lock:
            return Place(self.head, self.updates)

    def place(self, position: Position, known: Place) -> Place | None:
        """The place of a position; None while it is after the head, since the stream is still being matched again.

        Parameters
        ----------
        position : Position
        known : Place
            Base of the count of updates if the files from the position to the head are gone.
        """
        with self._lock:
            if position.boundary > self.head.boundary:
                return None
            if self.has_after(position):
                return Place(position, self._count_through(position))
            floor = self._floor()
        return place_in(self.parts, position, known, floor)

    def is_end(self, position: Position) -> bool:
        """Whether a position of `rows_after` is the end of its boundary."""
        with self._lock:
            count = self._count_of(position.boundary) if self.has_after(position) else None
        return position.index + 1 >= (self.parts.count_of(position.boundary) if count is None else count)

    def through(self, position: Position) -> int:
        """The last seq up to which all updates are before a position that is not beyond the head."""
        if position >= self.head:
            return self.head.boundary
        ends = self.parts.ends
        place = bisect_left(ends, position.boundary)
        return ends[place - 1] if place else -1

    @property
    def full(self) -> bool:
        """Whether more than `most_bytes` are in memory."""
        return self.size_bytes > self._most_bytes

    @property
    def has_room(self) -> bool:
        """Whether more batches may be matched; else their updates wait until a checkpoint has named the next part."""
        return self.size_bytes < MOST_IN_MEMORY_BYTES

    def trim(self, named: int) -> None:
        """Drop the oldest boundaries until half of `most_bytes` is left, of those up to `named`, which parts have."""
        with self._lock:
            drop, size_bytes = 0, self.size_bytes
            while drop < len(self._lasts) and self._lasts[drop] <= named and size_bytes > self._most_bytes // 2:
                size_bytes -= self._pieces[drop].size_bytes
                drop += 1
            if drop:
                self.floor, self.size_bytes = self._lasts[drop - 1], size_bytes
                del self._lasts[:drop], self._pieces[:drop], self._before[:drop]

    def read_after(self, position: Position, most: int = PIECE) -> tuple[list[ReleasedUpdate], Position]:
        """`rows_after`, for sinks."""
        return for_sinks(self.rows_after(position, None, most))

    def read_whole(
        self, position: Position, only: Collection[str] | None = None, include: Include | None = None
    ) -> WholeRead:
        """`rows_after`, for readers that go on behind lost files: other webhooks are not to wait for one update."""
        try:
            return WholeRead(*for_sinks(self.rows_after(position, only), include))
        except (PartsMissing, PartDamaged) as lost:
            return WholeRead([], self.behind(lost), lost=True)

    def rows_after(
        self,
        position: Position,
        only: Collection[str] | None = None,
        most: int = PIECE,
        most_bytes: int = PIECE_BYTES,
        tag_of: TagOf | None = None,
    ) -> tuple[list[UpdateRows], Position]:
        """Some updates after a position, from memory or else from the parts, and the position behind them.

        Parameters, result and errors as of `Parts.rows_after`; nothing is left to read at the `head`.
        """
        with self._lock:
            head, floor = self.head, self.floor
            pieces = self._pieces[bisect_left(self._lasts, position.boundary) :] if self.has_after(position) else None
        if position >= head:
            return [], position
        if pieces is None:
            found, behind = self.parts.rows_after(position, floor, only, most, most_bytes, tag_of)
            return found, min(behind, head)
        found = []
        for piece in pieces:
            first, last = piece.rows_through(*position), len(piece.boundary)
            rows, end, whole = read_rows(piece, first, last, only, most, most_bytes, self.parts, tag_of)
            found.append(rows)
            most, most_bytes = most - len(rows), most_bytes - rows.size_bytes
            if not whole or (piece is not pieces[-1] and (most <= 0 or most_bytes <= 0)):
                return found, end
        return found, head

    def newest_first(
        self, until: Position, since: int, only: Collection[str], lost: Callable[[Position, int], None]
    ) -> Iterator[tuple[Released, np.ndarray]]:
        """Updates of some subscriptions up to a position, newest first: pieces of the log, and their rows, ascending.

        Parameters
        ----------
        until : Position
        since : int
            Boundaries before it need not be read.
        only : collection of str
            Ids of the subscriptions; may shrink meanwhile.
        lost : callable
            Called with a position and the first boundary that is there again, between which parts are lost.
        """
        with self._lock:
            pieces, floor = self._pieces[: bisect_right(self._lasts, until.boundary) + 1], self.floor
        for piece in reversed(pieces):
            if piece.boundary[-1] < since:
                return
            yield piece, piece.rows_of(piece.among(only), 0, piece.rows_through(*until))
        if floor >= since:
            yield from self.parts.newest_first(min(until, Position(floor, END)), since, only, lost)

    def behind(self, lost: PartsMissing | PartDamaged) -> Position:
        """Where a reader goes on that could not read some parts."""
        if isinstance(lost, PartsMissing):
            return (
                min(Position(lost.boundary - 1, END), self.head) if lost.was_pruned else Position(lost.boundary - 1, 0)
            )
        return min(Position(lost.boundary, END), self.head)

    def _floor(self) -> Place:
        """Place of the last update that is not in memory."""
        floor = Position(self.floor, END)
        return Place(floor, self._count_through(floor))

    def _count_through(self, position: Position) -> int:
        """How many updates of the stream are up to a position of `has_after`."""
        place = bisect_left(self._lasts, position.boundary)
        if place == len(self._lasts):
            return self.updates
        return self._before[place] + self._pieces[place].rows_through(*position)

    def _count_of(self, boundary: int) -> int:
        """How many updates a boundary has that is in memory."""
        place = bisect_left(self._lasts, boundary)
        return count_of(self._pieces[place], boundary) if place < len(self._lasts) else 0

    def take(self, at: Place, most: int = PIECE) -> TakenUpdates | None:
        """About `most` updates after a place, as far as they are in memory or in one file; None at the head."""
        if at.position >= self.head:
            return None
        if self.has_after(at.position):
            found, behind = self.read_after(at.position, most)
            return TakenUpdates(found, Place(behind, at.updates + len(found)), self.is_end(behind))
        with self._lock:
            floor = self._floor()
        return take_of(self.parts, at, floor, most)
