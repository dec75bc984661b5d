"""Released boundaries: the latest in memory, earlier ones in the parts of `updates/`; texts in neither.

A part is cut at a checkpoint, at which nothing is pending; so every boundary is in one part, whole, and what a part and
all before it lack is later than they are. Of several delivery tasks this is so of the parts of one number together.
After a restart the updates between the last part and the checkpoint are read from the checkpoint, and the topology
publishes the later ones again. Used by `gateway.serve.hub` and the routes of updates; `bolts.sinks` writes the parts.
"""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from bolts.delivery import undelivered
from bolts.sinks import last_as_of, read_part, reading_part
from gateway.serve.released import PIECE_BYTES, RANKS, Columns, LookUp, Released, TagOf, Update, UpdateRows, in_order
from gateway.serve.releasing import boundary_of
from matching.errors import CheckpointError
from matching.part_names import PartName, whole_parts
from topology.core.checkpoint.storage import parts_list
from topology.live import last_seq_of

pc: Any = pyarrow.compute  # its functions are made when it is imported, which type checkers cannot see

#: Bytes of updates in memory from which those that the parts have are dropped, and at which no more batches are taken.
IN_MEMORY_BYTES, MOST_IN_MEMORY_BYTES = 32 * 2**20, 256 * 2**20
#: Updates that are read at a time, and bytes of parts that stay decoded, besides the last one that was read.
PIECE, DECODED_BYTES = 5_000, 128 * 2**20
#: What is read of a part.
_COLUMNS = ["as_of", "subscription_id", "seq", "change", "score"]
#: Behind all updates of a boundary.
END = 2**62


class Position(NamedTuple):
    """A place in the stream of updates: everything up to update `index` of the boundary is before it."""

    boundary: int
    index: int

    @property
    def text(self) -> str:
        return f"{self.boundary}-{self.index}"

    @classmethod
    def of(cls, update_id: str) -> "Position":
        """The position of an update, by its id, which may have a tag."""
        boundary, index, *_ = update_id.split("-")
        return cls(int(boundary), int(index))


class Foreign(Position):
    """A position of another stream, or of a part of this one that is gone: the log had something else there."""


#: Before all updates.
BEGINNING = Position(-1, 0)


class Parts:
    """The parts of a stream's folder; for any thread.

    Parameters
    ----------
    folder : Path
        `updates/` of the stream.
    ends : sequence of int
        The last seq of each boundary.
    look_up : callable
        Seqs -> texts of messages.

    Attributes
    ----------
    ends : sequence of int
    look_up : callable
    """

    def __init__(self, folder: Path, ends: Sequence[int], look_up: LookUp):
        self._folder = folder
        self.ends = ends
        self.look_up = look_up
        self._last: dict[tuple[str, ...], int] = {}  # names of one number -> their last boundary
        self._decoded: OrderedDict[tuple[str, ...], Released] = OrderedDict()
        self._lock = Lock()

    def names(self) -> list[str]:
        """Names of the parts, without those of a last number that has not all of its parts yet: the one of the first
        task gets its name last (`bolts.sinks`)."""
        return [part.text for part in whole_parts(path.name for path in self._folder.glob("part-*.parquet"))]

    def last_boundary(self) -> int:
        """The boundary up to which parts have, or had before they were lost, all updates; -1 without any."""
        listed = parts_list(self._folder)
        named = (self._boundary_of(listed[part.text].last_as_of) for part in whole_parts(listed))
        return max([-1, *named, *(self._last_of(names) for _, names in self._numbered())])

    def read_after(
        self, position: Position, until: int, only: Collection[str] | None = None, most: int = PIECE
    ) -> tuple[list[Update], Position]:
        """`rows_after`, for sinks."""
        return for_sinks(lambda: self.rows_after(position, until, only, most))

    def rows_after(
        self,
        position: Position,
        until: int,
        only: Collection[str] | None = None,
        most: int = PIECE,
        most_bytes: int = PIECE_BYTES,
        tag_of: TagOf | None = None,
    ) -> tuple[list[UpdateRows], Position]:
        """Some updates after a position, and the position behind them.

        Parameters
        ----------
        position : Position
        until : int
            Last boundary to be read.
        only : collection of str, optional
            Ids of subscriptions whose updates are sought.
        most, most_bytes : int
            Updates that are read at a time, and bytes after which no more are.
        tag_of : callable, optional
            As of `gateway.serve.releasing.UpdateRows`.

        Returns
        -------
        list of UpdateRows, Position
            Nothing is left to read once the boundary of the position is `until`.

        Raises
        ------
        PartsMissing
            If the part with the next updates is gone.
        PartDamaged
            If it is damaged; the updates behind it can be read.
        """
        number = -1
        for next_number, names in self._numbered():
            before, number = number, next_number
            if Position(self._last_of(names), END) <= position:
                continue
            read = self._read(names)
            first, last = read.rows_through(*position), read.rows_through(until, END)
            if first >= last:
                continue
            if first == 0 and number != before + 1 and position.boundary < read.boundary[0] - 1:
                raise PartsMissing(int(read.boundary[0]))
            found, end, _ = _read_rows(read, first, last, only, most, most_bytes, self.look_up, tag_of)
            return [found], end
        there = max((self._last_of(names) for _, names in self._numbered()), default=-1)
        lost = min(until, self.last_boundary())
        if max(position.boundary, there) < lost:
            raise PartsMissing(lost + 1)
        return [], Position(until, END)

    def count_of(self, boundary: int) -> int:
        """How many updates of this boundary the parts have."""
        for _, names in self._numbered():
            if self._last_of(names) >= boundary:
                return _count_of(self._read(names), boundary)
        return 0

    def count_between(self, after: Position, until: int) -> int:
        """How many updates the parts have after a position, up to a boundary.

        Raises
        ------
        PartsMissing, PartDamaged
            If some of them are in a part that is gone; if the first or last part is damaged.

        Notes
        -----
        Reads one or two parts, and the list of parts, or the footers of those that are not in it.
        """
        count, number, through = 0, -1, after.boundary
        for next_number, names in self._numbered():
            before, number = number, next_number
            last = self._last_of(names)
            if last < after.boundary:
                continue
            is_next = number == before + 1
            if through >= until:
                break
            if through > after.boundary and is_next and last <= until:
                count += sum(map(self.rows_of, names))
            else:
                read = self._read(names)
                if not is_next and read.boundary.shape[0] and through < read.boundary[0] - 1:
                    raise PartsMissing(int(read.boundary[0]))
                count += max(0, read.rows_through(until, END) - read.rows_through(*after))
            through = max(through, last)
        if through < until:
            raise PartsMissing(until + 1)
        return count

    def _numbered(self) -> list[tuple[int, tuple[str, ...]]]:
        """The numbers of parts, ascending, and the names of each."""
        by_number = groupby(self.names(), key=lambda name: PartName.of(name).number)
        return [(number, tuple(names)) for number, names in by_number]

    def _last_of(self, names: tuple[str, ...]) -> int:
        """The last boundary of the parts of one number."""
        if names not in self._last:
            listed = parts_list(self._folder)
            as_of = max(last_as_of(self._folder / name, listed.get(name)) for name in names)
            self._last[names] = self._boundary_of(as_of)
        return self._last[names]

    def _boundary_of(self, as_of: int) -> int:
        return -1 if as_of < 0 else boundary_of(self.ends, as_of)

    def rows_of(self, name: str) -> int:
        """How many updates a part has, by the list of parts, or by its footer. Raises CheckpointError."""
        listed, path = parts_list(self._folder).get(name), self._folder / name
        with reading_part(path):
            return pq.read_metadata(path).num_rows if listed is None else listed.rows

    def _read(self, names: tuple[str, ...]) -> Released:
        """Parts of one number in the order of the stream. Raises PartDamaged."""
        with self._lock:
            if names in self._decoded:
                self._decoded.move_to_end(names)
                return self._decoded[names]
            listed = parts_list(self._folder)
            try:
                tables = [read_part(self._folder / name, listed.get(name)).select(_COLUMNS) for name in names]
            except CheckpointError as error:
                raise PartDamaged(str(error), self._last_of(names)) from error
            table = pa.concat_tables(tables)
            read = self._decoded[names] = in_order([columns_of(table, np.array(self.ends, np.int64))])
            while len(self._decoded) > 1 and sum(one.size_bytes for one in self._decoded.values()) > DECODED_BYTES:
                self._decoded.popitem(last=False)
            return read


class History:
    """Released boundaries in memory; for one thread, the event loop's.

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
            self.head = Position(last, _count_of(one, last))
        if through > self.head.boundary:
            self.head = Position(through, 0)

    def has_after(self, position: Position) -> bool:
        """Whether all updates after a position are in memory."""
        return position >= Position(self.floor, END) or self.floor < 0

    def count_through(self, position: Position) -> int:
        """How many updates of the stream are up to a position of `has_after`."""
        place = bisect_left(self._lasts, position.boundary)
        if place == len(self._lasts):
            return self.updates
        return self._before[place] + self._pieces[place].rows_through(*position)

    def count_of(self, boundary: int) -> int:
        """How many updates a boundary has that is in memory."""
        place = bisect_left(self._lasts, boundary)
        return _count_of(self._pieces[place], boundary) if place < len(self._lasts) else 0

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
        drop, size_bytes = 0, self.size_bytes
        while drop < len(self._lasts) and self._lasts[drop] <= named and size_bytes > self._most_bytes // 2:
            size_bytes -= self._pieces[drop].size_bytes
            drop += 1
        if drop:
            self.floor, self.size_bytes = self._lasts[drop - 1], size_bytes
            del self._lasts[:drop], self._pieces[:drop], self._before[:drop]

    def read_after(self, position: Position, most: int = PIECE) -> tuple[list[Update], Position]:
        """Some updates after a position of `has_after`, and the position behind them, until the head."""
        return for_sinks(self.reading(position, most))

    def reading(
        self,
        position: Position,
        most: int = PIECE,
        only: Collection[str] | None = None,
        most_bytes: int = PIECE_BYTES,
        tag_of: TagOf | None = None,
    ) -> Callable[[], tuple[list[UpdateRows], Position]]:
        """As `Parts.rows_after`, for another thread: what is returned reads what is in memory now."""
        pieces, head = self._pieces[bisect_left(self._lasts, position.boundary) :], self.head
        look_up = self.parts.look_up

        def read() -> tuple[list[UpdateRows], Position]:
            found: list[UpdateRows] = []
            left, left_bytes = most, most_bytes
            for piece in pieces:
                first, last = piece.rows_through(*position), len(piece.boundary)
                rows, end, whole = _read_rows(piece, first, last, only, left, left_bytes, look_up, tag_of)
                found.append(rows)
                left, left_bytes = left - len(rows), left_bytes - rows.size_bytes
                if not whole or (piece is not pieces[-1] and (left <= 0 or left_bytes <= 0)):
                    return found, end
            return found, head

        return read


def for_sinks(read: Callable[[], tuple[list[UpdateRows], Position]]) -> tuple[list[Update], Position]:
    """What is read, as sinks take it."""
    found, behind = read()
    return [update for rows in found for update in rows.updates()], behind


def _count_of(released: Released, boundary: int) -> int:
    """How many updates a boundary has."""
    return released.rows_through(boundary, END) - released.rows_through(boundary, -1)


def _read_rows(
    released: Released,
    first: int,
    last: int,
    only: Collection[str] | None,
    most: int,
    most_bytes: int,
    look_up: LookUp,
    tag_of: TagOf | None,
) -> tuple[UpdateRows, Position, bool]:
    """Some updates of the rows between two, the position behind them, and whether these are all that are wanted."""
    rows = np.arange(first, last) if only is None else released.rows_of(released.among(only), first, last)
    found = UpdateRows(released, rows[:most], look_up, most_bytes, tag_of)
    whole = len(found) == len(rows)
    end = last - 1 if whole else rows[len(found) - 1]
    return found, Position(int(released.boundary[end]), int(released.place[end])), whole


class PartsMissing(LookupError):
    """Updates before a boundary are in no part any more.

    Parameters
    ----------
    boundary : int
        The first one that is there.
    """

    def __init__(self, boundary: int):
        super().__init__(boundary)
        self.boundary = boundary


class PartDamaged(CheckpointError):
    """A part is not as it was written.

    Parameters
    ----------
    what : str
    boundary : int
        The last one of its updates.
    """

    def __init__(self, what: str, boundary: int):
        super().__init__(what)
        self.boundary = boundary


def columns_of(table: pa.Table, ends: np.ndarray) -> Columns:
    """Updates as `in_order` takes them.

    Parameters
    ----------
    table : pa.Table
        With the columns as_of, subscription_id, seq, change and score of `bolts.sinks.UPDATE_SCHEMA`: whole boundaries.
    ends : int64[n]
        The last seq of each boundary.
    """
    ids = table.column("subscription_id").combine_chunks().dictionary_encode()
    ranks = pc.index_in(table.column("change"), pa.array(sorted(RANKS, key=RANKS.__getitem__)))
    as_of, score = table.column("as_of").to_numpy(), table.column("score").to_numpy()
    order, seq = ranks.cast(pa.int8()).to_numpy(), table.column("seq").to_numpy()
    return Columns(ids.dictionary, ids.indices.to_numpy(), order, seq, as_of, score, ends[np.searchsorted(ends, as_of)])


def saved_updates(state: Mapping[str, Any], after: int, ends: Sequence[int]) -> Released:
    """The updates that a checkpoint of the delivery bolt has, since no part had them; those after a boundary.

    Parameters
    ----------
    state : mapping of str to array
        As `bolts.delivery` and `bolts.sinks` save it.
    """
    found = in_order([columns_of(undelivered(state), np.array(ends, np.int64))])
    return found.behind(found.rows_through(after, END))
