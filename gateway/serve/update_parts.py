"""The parts of `updates/` as a stream of updates, which is read from a position on.

A part is cut at a checkpoint, at which nothing is pending; so every boundary is in one part, whole, and what a part and
all before it lack is later than they are. Of several delivery tasks this is so of the parts of one number together.
Parts have no texts.
"""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
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
from gateway.serve.included import Include, IncludedValues
from gateway.serve.released import (
    PIECE_BYTES,
    RANKS,
    LookUp,
    Released,
    ReleasedUpdate,
    TagOf,
    UpdateColumns,
    UpdateRows,
    in_order,
)
from matching.errors import CheckpointError
from matching.part_names import PartName, is_base, whole_parts
from topology.core.checkpoint.storage import parts_list

pc: Any = pyarrow.compute  # its functions are made when it is imported, which type checkers cannot see

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
    included : IncludedValues, optional
        As of `gateway.serve.released.UpdateRows`.

    Attributes
    ----------
    ends, look_up, included
    """

    def __init__(self, folder: Path, ends: Sequence[int], look_up: LookUp, included: IncludedValues | None = None):
        self._folder = folder
        self.ends = ends
        self.look_up = look_up
        self.included = included
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
    ) -> tuple[list[ReleasedUpdate], Position]:
        """`rows_after`, for sinks."""
        return for_sinks(self.rows_after(position, until, only, most))

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
            if is_base(names[0]):
                raise PartsMissing(self._last_of(names) + 1, was_pruned=True)
            read = self._read(names)
            first, last = read.rows_through(*position), read.rows_through(until, END)
            if first >= last:
                continue
            if first == 0 and number != before + 1 and position.boundary < read.boundary[0] - 1:
                raise PartsMissing(int(read.boundary[0]))
            found, end, _ = read_rows(read, first, last, only, most, most_bytes, self, tag_of)
            return [found], end
        there = max((self._last_of(names) for _, names in self._numbered()), default=-1)
        lost = min(until, self.last_boundary())
        if max(position.boundary, there) < lost:
            raise PartsMissing(lost + 1)
        return [], Position(until, END)

    def newest_first(
        self, until: Position, since: int, only: Collection[str], lost: Callable[[Position, int], None]
    ) -> Iterator[tuple[Released, np.ndarray]]:
        """As `gateway.serve.update_log.UpdateLog.newest_first`."""
        numbered = self._numbered()
        newer, begins = (numbered[-1][0] + 1 if numbered else 1), min(until.boundary, self.last_boundary()) + 1
        there = self._last_of(numbered[-1][1]) if numbered else -1
        first = bisect_left(self.ends, since)
        since = self.ends[first] if first < len(self.ends) else since  # the first boundary that is needed
        missing = None if there >= begins - 1 else begins
        for number, names in reversed(numbered):
            last = self._last_of(names)
            if missing is None and (begins <= since or (number == newer - 1 and last < since)):
                return
            if missing is None and number != newer - 1 and last < begins - 1:
                missing = begins
            newer = number
            if is_base(names[0]) and until.boundary < last:  # it has what stands as of its end
                lost(BEGINNING, last + 1)
                return
            try:
                read = self._read(names)
            except PartDamaged as damaged:
                missing, begins = missing or damaged.first, -1
                continue
            if not len(read.boundary):
                if is_base(names[0]):
                    return
                continue
            begins, end = int(read.boundary[0]), len(read.boundary) - 1
            if missing is not None:
                lost(Position(last, int(read.place[end])), missing)
                missing = None
            yield read, read.rows_of(read.among(only), 0, read.rows_through(*until))
            if is_base(names[0]):
                return
        if missing is not None or (newer > 0 and begins > max(since, 0)):
            lost(BEGINNING, begins if missing is None else missing)

    def count_of(self, boundary: int) -> int:
        """How many updates of this boundary the parts have."""
        for _, names in self._numbered():
            if self._last_of(names) >= boundary:
                return count_of(self._read(names), boundary)
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
        within = after.boundary == until and after.index < END  # some of the last boundary are behind it
        count, number, through = 0, -1, after.boundary - within
        for next_number, names in self._numbered():
            before, number = number, next_number
            last = self._last_of(names)
            if last < after.boundary:
                continue
            if is_base(names[0]):
                raise PartsMissing(last + 1, was_pruned=True)
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
        return -1 if as_of < 0 else self.ends[bisect_left(self.ends, as_of)]

    def rows_of(self, name: str) -> int:
        """How many updates a part has, or a base stands for, by the list of parts, or by its footer.

        Raises CheckpointError."""
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


def for_sinks(
    read: tuple[list[UpdateRows], Position], include: Include | None = None
) -> tuple[list[ReleasedUpdate], Position]:
    """What was read, as sinks take it; `include` as of `UpdateRows.updates`."""
    found, behind = read
    return [update for rows in found for update in rows.updates(include)], behind


def count_of(released: Released, boundary: int) -> int:
    """How many updates a boundary has."""
    return released.rows_through(boundary, END) - released.rows_through(boundary, -1)


def read_rows(
    released: Released,
    first: int,
    last: int,
    only: Collection[str] | None,
    most: int,
    most_bytes: int,
    parts: Parts,
    tag_of: TagOf | None,
) -> tuple[UpdateRows, Position, bool]:
    """Some updates of the rows between two, the position behind them, and whether these are all that are wanted."""
    rows = np.arange(first, last) if only is None else released.rows_of(released.among(only), first, last)
    found = UpdateRows(released, rows[:most], parts.look_up, most_bytes, tag_of, parts.included)
    whole = len(found) == len(rows)
    end = last - 1 if whole else rows[len(found) - 1]
    return found, Position(int(released.boundary[end]), int(released.place[end])), whole


class PartsMissing(LookupError):
    """Updates before a boundary are in no part any more.

    Parameters
    ----------
    boundary : int
        The first one that is there.
    was_pruned : bool
        They were removed by the stream itself (`gateway.live.pruning`).

    Attributes
    ----------
    first : int
        The same.
    was_pruned
    """

    def __init__(self, boundary: int, was_pruned: bool = False):
        super().__init__(boundary)
        self.boundary = self.first = boundary
        self.was_pruned = was_pruned


class PartDamaged(CheckpointError):
    """A part is not as it was written.

    Parameters
    ----------
    what : str
    boundary : int
        The last one of its updates.

    Attributes
    ----------
    first : int
        What follows may be of this boundary.
    """

    def __init__(self, what: str, boundary: int):
        super().__init__(what)
        self.boundary, self.first = boundary, boundary + 1


def columns_of(table: pa.Table, ends: np.ndarray) -> UpdateColumns:
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
    return UpdateColumns(
        ids.dictionary, ids.indices.to_numpy(), order, seq, as_of, score, ends[np.searchsorted(ends, as_of)]
    )


def saved_updates(state: Mapping[str, Any], after: int, ends: Sequence[int]) -> Released:
    """The updates that a checkpoint of the delivery bolt has, since no part had them; those after a boundary.

    Parameters
    ----------
    state : mapping of str to array
        As `bolts.delivery` and `bolts.sinks` save it.
    """
    found = in_order([columns_of(undelivered(state), np.array(ends, np.int64))])
    return found.behind(found.rows_through(after, END))


class Place(NamedTuple):
    """A position, and the number of updates of the stream up to it."""

    position: Position
    updates: int


START = Place(BEGINNING, 0)


class TakenUpdates(NamedTuple):
    """Result of `UpdateLog.take` from a place `at`.

    updates : list of ReleasedUpdate
    behind : Place
        Place of the last update read. `behind.updates - at.updates - len(updates)` updates were skipped, since their
        files are gone.
    ends_boundary : bool
        Whether `behind` is the end of a boundary.
    """

    updates: list[ReleasedUpdate]
    behind: Place
    ends_boundary: bool


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


def take_of(parts: Parts, at: Place, until: Place, most: int) -> TakenUpdates:
    """About `most` updates after a place in the committed parts, whose last update is at `until`."""
    last = until.position.boundary
    try:
        found, behind = parts.read_after(at.position, last, None, most)
    except PartsMissing as missing:
        behind = Position(missing.boundary - 1, END)
        return TakenUpdates([], place_in(parts, behind, until, until), True)
    if not found:
        return TakenUpdates([], until, True)
    is_end = behind.index + 1 == parts.count_of(behind.boundary)
    return TakenUpdates(found, Place(behind, at.updates + len(found)), is_end)
