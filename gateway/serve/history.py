"""Released boundaries: the latest in memory, earlier ones in the parts of `updates/`.

A part is cut at a checkpoint, at which nothing is pending; so every boundary is in one part, whole, and what a part and
all before it lack is later than they are. Of several delivery tasks this is so of the parts of one number together.
After a restart the updates between the last part and the checkpoint are read from the checkpoint, and the topology
publishes the later ones again. Used by `gateway.serve.hub` and the routes of updates; `bolts.sinks` writes the parts.
"""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
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
from gateway.serve.releasing import RANKS, LookUp, RawUpdate, Released, Update, boundary_of, encoded
from matching.errors import CheckpointError
from matching.part_names import PartName, whole_parts
from topology.core.checkpoint.storage import parts_list
from topology.live import last_seq_of

pc: Any = pyarrow.compute  # its functions are made when it is imported, which type checkers cannot see

#: Updates in memory from which those that the parts have are dropped.
IN_MEMORY = 100_000
#: Updates that are read from a part at a time, and parts that stay decoded.
PIECE, DECODED = 5_000, 2
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
    """

    def __init__(self, folder: Path, ends: Sequence[int], look_up: LookUp):
        self._folder = folder
        self.ends = ends
        self._look_up = look_up
        self._last: dict[tuple[str, ...], int] = {}  # names of one number -> their last boundary
        self._decoded: OrderedDict[tuple[str, ...], tuple[pa.Table, np.ndarray, np.ndarray]] = OrderedDict()
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
        """Some updates after a position, and the position behind them.

        Parameters
        ----------
        position : Position
        until : int
            Last boundary to be read.
        only : collection of str, optional
            Ids of subscriptions whose updates are sought.
        most : int
            Updates that are read at a time.

        Returns
        -------
        list of Update, Position
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
            table, boundary, place = self._read(names)
            low, high = (int(np.searchsorted(boundary, position.boundary, side)) for side in ("left", "right"))
            first = low + int(np.searchsorted(place[low:high], position.index, "right"))
            last = min(first + most, int(np.searchsorted(boundary, until, "right")))
            if first >= last:
                continue
            if first == 0 and number != before + 1 and position.boundary < boundary[0] - 1:
                raise PartsMissing(int(boundary[0]))
            end = Position(int(boundary[last - 1]), int(place[last - 1]))
            rows = np.arange(first, last)
            if only is not None:
                wanted = pc.is_in(
                    table.column("subscription_id").slice(first, last - first), pa.array(sorted(only), pa.string())
                )
                rows = rows[wanted.to_numpy()]
            return updates_of(table.take(rows), boundary[rows], place[rows], self._look_up), end
        there = max((self._last_of(names) for _, names in self._numbered()), default=-1)
        lost = min(until, self.last_boundary())
        if max(position.boundary, there) < lost:
            raise PartsMissing(lost + 1)
        return [], Position(until, END)

    def count_of(self, boundary: int) -> int:
        """How many updates of this boundary the parts have."""
        for _, names in self._numbered():
            if self._last_of(names) >= boundary:
                return int((self._read(names)[1] == boundary).sum())
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
                _, boundary, place = self._read(names)
                if not is_next and boundary.shape[0] and through < boundary[0] - 1:
                    raise PartsMissing(int(boundary[0]))
                later = (boundary > after.boundary) | ((boundary == after.boundary) & (place > after.index))
                count += int((later & (boundary <= until)).sum())
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

    def _read(self, names: tuple[str, ...]) -> tuple[pa.Table, np.ndarray, np.ndarray]:
        """Parts of one number in the order of the stream, with the boundary of each update and its place there.

        Raises PartDamaged.
        """
        with self._lock:
            if names in self._decoded:
                self._decoded.move_to_end(names)
                return self._decoded[names]
            listed = parts_list(self._folder)
            try:
                table = pa.concat_tables([read_part(self._folder / name, listed.get(name)) for name in names])
            except CheckpointError as error:
                raise PartDamaged(str(error), self._last_of(names)) from error
            self._decoded[names] = in_order(table, np.array(self.ends, np.int64))
            if len(self._decoded) > DECODED:
                self._decoded.popitem(last=False)
            return self._decoded[names]


class History:
    """Released boundaries in memory; for one thread, the event loop's.

    Parameters
    ----------
    parts : Parts
    most : int
        Updates from which those that the parts have are dropped.

    Attributes
    ----------
    floor : int
        Updates of later boundaries are in memory, and no others.
    head : Position
        Behind all that is released.
    updates : int
        How many were released since the stream began, in whatever process.
    """

    def __init__(self, parts: Parts, most: int = IN_MEMORY):
        self.parts = parts
        self.floor = -1
        self.head = BEGINNING
        self.updates = 0
        self._most = most
        self._before: list[int] = []  # of each boundary in memory, how many updates are before it
        self._boundaries: list[int] = []
        self._released: list[Released] = []
        self._count = 0

    def resume(self, saved: Mapping[str, Any] | None, look_up: LookUp) -> int:
        """Start where a stream was left, and return up to which seq all is released.

        Parameters
        ----------
        saved : mapping of str to array, optional
            What delivery saved in the checkpoint from which the topology resumes (`bolts.delivery`); None without one:
            the topology publishes everything again.
        look_up : callable
        """
        if saved is None:
            return -1
        self.floor = self.parts.last_boundary()
        self.head = Position(self.floor, 0)
        with suppress(PartDamaged):  # readers of that part are told
            self.head = Position(self.floor, self.parts.count_of(self.floor) if self.floor >= 0 else 0)
        through = max(self.floor, last_seq_of(saved))
        in_memory = saved_updates(saved, self.floor, self.parts.ends, look_up)
        self.updates = int(np.sum(saved.get("updates", 0))) - sum(len(one.updates) for one in in_memory)
        with suppress(PartsMissing, PartDamaged):  # the checkpoint may be older than parts that are named already
            self.updates += self.parts.count_between(Position(last_seq_of(saved), END), self.floor)
        self.append(in_memory, through)
        return through

    def append(self, released: Sequence[Released], through: int) -> None:
        """Take the next boundaries, and the seq up to which all are released."""
        for one in released:
            self._boundaries.append(one.boundary)
            self._released.append(one)
            self._before.append(self.updates)
            self._count += len(one.updates)
            self.updates += len(one.updates)
            self.head = Position(one.boundary, len(one.updates))
        if through > self.head.boundary:
            self.head = Position(through, 0)

    def has_after(self, position: Position) -> bool:
        """Whether all updates after a position are in memory."""
        return position >= Position(self.floor, END) or self.floor < 0

    def count_through(self, position: Position) -> int:
        """How many updates of the stream are up to a position of `has_after`."""
        place = bisect_left(self._boundaries, position.boundary)
        if place == len(self._boundaries):
            return self.updates
        if self._boundaries[place] != position.boundary:
            return self._before[place]
        return self._before[place] + min(position.index + 1, len(self._released[place].updates))

    def through(self, position: Position) -> int:
        """The last seq up to which all updates are before a position that is not beyond the head."""
        if position >= self.head:
            return self.head.boundary
        ends = self.parts.ends
        place = bisect_left(ends, position.boundary)
        return ends[place - 1] if place else -1

    @property
    def full(self) -> bool:
        """Whether more than `most` updates are in memory."""
        return self._count > self._most

    def trim(self, named: int) -> None:
        """Drop the oldest boundaries until half of `most` is left, of those up to `named`, which the parts have."""
        drop, count = 0, self._count
        while drop < len(self._boundaries) and self._boundaries[drop] <= named and count > self._most // 2:
            count -= len(self._released[drop].updates)
            drop += 1
        if drop:
            self.floor, self._count = self._boundaries[drop - 1], count
            del self._boundaries[:drop], self._released[:drop], self._before[:drop]

    def read_after(self, position: Position, most: int = PIECE) -> tuple[list[Update], Position]:
        """Some updates after a position of `has_after`, and the position behind them, until the head."""
        found: list[Update] = []
        for place in range(bisect_left(self._boundaries, position.boundary), len(self._boundaries)):
            boundary, updates = self._released[place]
            found += updates[position.index + 1 :] if boundary == position.boundary else updates
            if len(found) >= most:
                return found, Position(boundary, len(updates))
        return found, self.head


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


def in_order(table: pa.Table, ends: np.ndarray) -> tuple[pa.Table, np.ndarray, np.ndarray]:
    """Updates in the order of the stream.

    Parameters
    ----------
    table : pa.Table
        Of `bolts.sinks.UPDATE_SCHEMA`: whole boundaries.
    ends : int64[n]
        The last seq of each boundary.

    Returns
    -------
    pa.Table, int64[updates], int64[updates]
        The table with the column `order`, a rank of `RANKS`; the boundary of each update, and its place there.
    """
    boundary = ends[np.searchsorted(ends, table.column("as_of").to_numpy())]
    ranks = pc.index_in(table.column("change"), pa.array(sorted(RANKS, key=RANKS.__getitem__)))
    table = table.append_column("boundary", pa.array(boundary)).append_column("order", ranks)
    keys = ("boundary", "subscription_id", "order", "seq")
    table = table.sort_by([(name, "ascending") for name in keys]).combine_chunks()
    boundary = table.column("boundary").to_numpy()
    return table, boundary, np.arange(boundary.shape[0]) - np.searchsorted(boundary, boundary)


def updates_of(table: pa.Table, boundary: np.ndarray, place: np.ndarray, look_up: LookUp) -> list[Update]:
    """Rows of `in_order` as clients get them."""
    columns = (table.column(name).to_pylist() for name in ("subscription_id", "order", "seq", "as_of", "score"))
    raw = [RawUpdate(*row) for row in zip(*columns, strict=True)]
    return encoded(zip(boundary.tolist(), place.tolist(), raw, strict=True), look_up)


def saved_updates(state: Mapping[str, Any], after: int, ends: Sequence[int], look_up: LookUp) -> list[Released]:
    """The updates that a checkpoint of the delivery bolt has, since no part had them; those after a boundary.

    Parameters
    ----------
    state : mapping of str to array
        As `bolts.delivery` and `bolts.sinks` save it.
    """
    table, boundary, place = in_order(undelivered(state), np.array(ends, np.int64))
    rows = np.flatnonzero(boundary > after)
    updates = updates_of(table.take(rows), boundary[rows], place[rows], look_up)
    found: list[Released] = []
    for last_seq, some in groupby(updates, key=lambda one: Position.of(one.position).boundary):
        found.append(Released(last_seq, tuple(some)))
    return found
