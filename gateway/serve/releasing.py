"""The topology's updates as boundaries, each released once it is complete.

Updates of a boundary come in any order, some late, and again after a failure. A boundary is released once the watermark
(`through`) of all delivery tasks has reached it: its updates are sorted by subscription id, then leaves, matches,
enters, then seq. So the place of an update in its boundary, which is its id, depends on neither incarnations, executor
nor numbers of tasks. Of one id that order is the order of succession too: what leaves was in the result at the boundary
before, and what enters is of the subscription that is active at the end.

Updates are columns, without the texts of their messages, until somebody reads them: some 50 bytes each. Who reads a
piece looks the texts up, and gets as many updates as have so many bytes. The other end of the socket is
`bolts.publishing`; read on in `gateway.serve.hub`. Used by `gateway.serve.hub`, `gateway.serve.history` and
`gateway.commands.serve`.
"""

from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute

from bolts.publishing import PublishedUpdates
from gateway.live.in_flight import InFlight
from gateway.live.update_listener import Listener, MessageText
from matching.model import CHANGES

pc: Any = pyarrow.compute  # its functions are made when it is imported, which type checkers cannot see

#: Place of each change among those of a subscription id at a boundary.
RANKS = {"leave": 0, "match": 1, "enter": 2}
#: Bytes after which a piece of updates ends, whatever their number.
PIECE_BYTES = 4 * 2**20
#: Updates of which the size of the others is estimated.
_FIRST = 10
#: Bytes of a `Released` besides its columns.
_OWN_BYTES = 4_096
_RANK_OF_CODE = np.array([RANKS[change] for change in CHANGES], np.int8)

LookUp = Callable[[Sequence[int]], Mapping[int, MessageText]]


class Update(NamedTuple):
    """An update as clients get it: `data` is its JSON, with its id; the place of its message, in degrees."""

    subscription_id: str
    position: str
    data: bytes
    lon: float
    lat: float


class Released(NamedTuple):
    """Whole boundaries in the order of the stream: updates of n rows, without the texts of their messages.

    table : pa.Table      subscription_id (a dictionary), order (a rank of `RANKS`), seq, as_of, score
    boundary : int64[n]   the last seq of the boundary of each
    place : int64[n]      its place there
    """

    table: pa.Table
    boundary: np.ndarray
    place: np.ndarray

    @property
    def size_bytes(self) -> int:
        return self.table.nbytes + self.boundary.nbytes + self.place.nbytes + _OWN_BYTES

    @property
    def names(self) -> pa.Array:
        """The ids of the subscriptions, each once, some perhaps without an update."""
        return _chunk(self.table).dictionary

    def rows_of(self, wanted: np.ndarray, first: int = 0, last: int | None = None) -> np.ndarray:
        """Rows between two of the subscriptions that `wanted`, bool[names], has."""
        return first + np.flatnonzero(wanted[_chunk(self.table).indices.to_numpy()[first:last]])

    def rows_through(self, boundary: int, index: int) -> int:
        """How many updates are up to a place in a boundary."""
        low, high = (int(np.searchsorted(self.boundary, boundary, side)) for side in ("left", "right"))
        return low + min(index + 1, high - low)

    def among(self, ids: Collection[str]) -> np.ndarray:
        """Which of `names` are among these ids, as bool[names]."""
        return pc.is_in(self.names, pa.array(list(ids), pa.string())).to_numpy(zero_copy_only=False)


def in_order(table: pa.Table, boundary: np.ndarray) -> Released:
    """Updates in the order of the stream.

    Parameters
    ----------
    table : pa.Table
        subscription_id, order, seq, and columns that are only carried along: whole boundaries.
    boundary : int64[n]
        Of each update.
    """
    table = table.unify_dictionaries().combine_chunks()
    ids = table.column("subscription_id")
    if not pa.types.is_dictionary(ids.type):
        ids = ids.dictionary_encode()
        table = table.set_column(table.schema.get_field_index("subscription_id"), "subscription_id", ids)
    names = _chunk(table)
    by_name = np.empty(len(names.dictionary), np.int64)
    by_name[pc.sort_indices(names.dictionary).to_numpy()] = np.arange(by_name.shape[0])
    keys = (table.column(name).to_numpy() for name in ("seq", "order"))
    rows = np.lexsort((*keys, by_name[names.indices.to_numpy()], boundary))
    table, boundary = table.take(rows).combine_chunks(), boundary[rows]
    return Released(table, boundary, np.arange(boundary.shape[0]) - np.searchsorted(boundary, boundary))


def _chunk(table: pa.Table) -> pa.DictionaryArray:
    """The ids of the subscriptions, which are in one chunk."""
    column = table.column("subscription_id")
    return column.chunk(0) if column.num_chunks else pa.array([], pa.string()).dictionary_encode()


class Releaser(Listener):
    """Collects published updates, and releases boundaries in order; parameters as of `Listener`.

    Parameters
    ----------
    in_flight : InFlight
    ends : sequence of int
        The last seq of each boundary; grows.
    durable : callable
        As `Listener` takes it; boundaries behind it are held.
    deliver : callable
        Takes released boundaries with updates, and the seq up to which all boundaries are released; called by the
        thread that reads the socket.

    Attributes
    ----------
    released : int
        The seq up to which all boundaries are released. What an incarnation publishes again up to here is dropped.

    Notes
    -----
    Memory: some 40 bytes for each update of the batches in flight, and the ids of their subscriptions.
    """

    def __init__(
        self,
        in_flight: InFlight,
        ends: Sequence[int],
        durable: Callable[[], int],
        deliver: Callable[[list[Released], int], None],
    ):
        super().__init__(lambda data: None, lambda seqs: {}, in_flight, durable)
        self.released = -1
        self._ends = ends
        self._deliver = deliver
        self._pending: list[tuple[pa.Table, np.ndarray]] = []  # updates, and the boundary of each

    def resume(self, through: int) -> None:
        """See `Listener`; the updates up to there are released."""
        super().resume(through)
        self.released = through

    def take(self, published: PublishedUpdates) -> None:
        """Take the updates of a frame, unless it is of an older incarnation, and release what is complete."""
        with self._changed:
            before = self._incarnation
            if not self._await_turn(published, -1):
                return
            if self._incarnation > before:  # what is behind its checkpoint is published again, and nothing else
                self._pending, _ = _split(self._pending, published.since)
            self._advance(published)
            if self.failure is None:
                try:
                    self._collect(published)
                    self._release()
                except BaseException as error:
                    self.failure = error  # the driver raises it
            self._note(published)

    def settle(self) -> None:
        """Release what is complete and has become durable; for any thread."""
        with self._changed:
            if self.failure is None:
                self._release()

    def _collect(self, published: PublishedUpdates) -> None:
        rows = np.flatnonzero(published.as_of > self.released)
        if not rows.shape[0]:
            return
        names = pa.array(published.names.strings(), pa.string()).dictionary_encode()  # two may have the same id
        columns = {
            "subscription_id": names.take(pa.array(published.who[rows])),
            "order": _RANK_OF_CODE[published.change[rows]],
            "seq": published.seq[rows],
            "as_of": published.as_of[rows],
            "score": pa.array(published.score[rows], from_pandas=True),  # NaN becomes null
        }
        as_of, of = np.unique(published.as_of[rows], return_inverse=True)
        boundary = np.array([boundary_of(self._ends, each) for each in as_of.tolist()], np.int64)
        self._pending.append((pa.table(columns), boundary[of]))

    def _release(self) -> None:
        through = min(self._through, self._durable())
        if through <= self.released:
            return
        complete, self._pending = _split(self._pending, through)
        found: list[Released] = []
        if complete:
            tables, boundaries = zip(*complete, strict=True)
            found.append(in_order(pa.concat_tables(tables), np.concatenate(boundaries)))
            self.updates += len(found[0].boundary)
        self.released = through
        self._deliver(found, through)


def _split(
    pending: Sequence[tuple[pa.Table, np.ndarray]], through: int
) -> tuple[list[tuple[pa.Table, np.ndarray]], list[tuple[pa.Table, np.ndarray]]]:
    """The updates of boundaries up to one, and those of later ones."""
    sides: tuple[list[tuple[pa.Table, np.ndarray]], ...] = ([], [])
    for table, boundary in pending:
        early = boundary <= through
        for side, mine in zip(sides, (early, ~early), strict=True):
            if mine.all():
                side.append((table, boundary))
            elif mine.any():
                side.append((table.filter(pa.array(mine)), boundary[mine]))
    return sides[0], sides[1]


def boundary_of(ends: Sequence[int], as_of: int) -> int:
    """The last seq of the boundary that a seq belongs to."""
    return ends[bisect_left(ends, as_of)]


def updates_of(
    released: Released, rows: np.ndarray | None, look_up: LookUp, most_bytes: int | None = PIECE_BYTES
) -> list[Update]:
    """Rows as clients get them: the first of them, until they have so many bytes, and at least one.

    Parameters
    ----------
    released : Released
    rows : int64[n] or None
        All by default.
    look_up : callable
    most_bytes : int or None
        The last few updates may exceed it; None: all rows.
    """
    rows = np.arange(len(released.boundary)) if rows is None else rows
    found: list[Update] = []
    size_bytes, count = 0, len(rows) if most_bytes is None else _FIRST
    while len(found) < len(rows):
        some = _encoded(released, rows[len(found) : len(found) + count], look_up)
        found += some
        if most_bytes is not None:
            size_bytes += sum(len(one.data) for one in some)
            if size_bytes >= most_bytes:
                break
            count = max(1, (most_bytes - size_bytes) * len(found) // size_bytes)
    return found


_NAMES = {rank: name for name, rank in RANKS.items()}


def _encoded(released: Released, rows: np.ndarray, look_up: LookUp) -> list[Update]:
    table = released.table.take(rows)
    columns = (table.column(name).to_pylist() for name in ("subscription_id", "order", "seq", "as_of", "score"))
    places = (released.boundary[rows].tolist(), released.place[rows].tolist())
    messages = look_up(np.unique(table.column("seq").to_numpy()).tolist())
    found = []
    for boundary, place, name, rank, seq, as_of, score in zip(*places, *columns, strict=True):
        message, position = messages[seq], f"{boundary}-{place}"
        row: dict[str, Any] = {
            "id": position,
            "change": _NAMES[rank],
            "subscription_id": name,
            "message_id": message.message_id,
            "seq": seq,
            "as_of": as_of,
            "score": score,
            "text": message.text,
            "lon": message.lon,
            "lat": message.lat,
        }
        found.append(Update(name, position, msgspec.json.encode(row), message.lon, message.lat))
    return found
