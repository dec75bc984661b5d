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
_NAMES = sorted(RANKS, key=RANKS.__getitem__)
_ENCODER = msgspec.json.Encoder()

LookUp = Callable[[Sequence[int]], Mapping[int, MessageText]]
TagOf = Callable[[int], str]


class Update(msgspec.Struct, gc=False, weakref=False):
    """An update as clients get it: the fields of its JSON in their order, and `data`, that JSON.

    `id` is its position in the stream, for events with the tag of the log behind it.
    """

    id: str
    change: str
    subscription_id: str
    message_id: str
    seq: int
    as_of: int
    score: float | None
    text: str
    lon: float
    lat: float
    data: bytes = msgspec.UNSET  # pyright: ignore[reportAssignmentType] - while it is unset it is no field of the JSON

    @property
    def position(self) -> str:
        """The id, of an update whose id has no tag."""
        return self.id


class Released(NamedTuple):
    """Whole boundaries in the order of the stream: updates of n rows, without the texts of their messages.

    names : pa.StringArray   ids of the subscriptions, ascending, each once, some perhaps without an update
    who : int32[n]           the subscription of each, by its place in `names`
    order : int8[n]          a rank of `RANKS`
    seq, as_of : int64[n]
    score : float64[n]       NaN: none
    boundary : int64[n]      the last seq of the boundary of each
    place : int64[n]         its place there
    """

    names: pa.Array
    who: np.ndarray
    order: np.ndarray
    seq: np.ndarray
    as_of: np.ndarray
    score: np.ndarray
    boundary: np.ndarray
    place: np.ndarray

    @property
    def size_bytes(self) -> int:
        return sum(column.nbytes for column in self) + _OWN_BYTES

    def rows_of(self, wanted: np.ndarray, first: int = 0, last: int | None = None) -> np.ndarray:
        """Rows between two of the subscriptions that `wanted`, bool[names], has."""
        return first + np.flatnonzero(wanted[self.who[first:last]])

    def rows_through(self, boundary: int, index: int) -> int:
        """How many updates are up to a place in a boundary."""
        low, high = (int(np.searchsorted(self.boundary, boundary, side)) for side in ("left", "right"))
        return low + min(index + 1, high - low)

    def behind(self, row: int) -> "Released":
        """The updates from a row on."""
        return Released(self.names, *(column[row:] for column in self[1:]))

    def among(self, ids: Collection[str]) -> np.ndarray:
        """Which of `names` are among these ids, as bool[names]."""
        return pc.is_in(self.names, pa.array(list(ids), pa.string())).to_numpy(zero_copy_only=False)

    def facts(self, rows: np.ndarray) -> list[dict[str, Any]]:
        """Rows without what their messages have: subscription_id, change, seq, as_of, score (None: none)."""
        columns = (self.names.take(pa.array(self.who[rows])).to_pylist(), self.order[rows].tolist())
        numbers = self.seq[rows].tolist(), self.as_of[rows].tolist(), self.scores(rows)
        return [
            {"subscription_id": name, "change": _NAMES[rank], "seq": seq, "as_of": as_of, "score": score}
            for name, rank, seq, as_of, score in zip(*columns, *numbers, strict=True)
        ]

    def scores(self, rows: np.ndarray) -> list[float | None]:
        """Scores of rows, None for none."""
        return [None if score != score else score for score in self.score[rows].tolist()]


class Columns(NamedTuple):
    """Updates in any order, of `Released` those columns that are the same."""

    names: pa.Array
    who: np.ndarray
    order: np.ndarray
    seq: np.ndarray
    as_of: np.ndarray
    score: np.ndarray
    boundary: np.ndarray

    def where(self, rows: np.ndarray) -> "Columns":
        """Some rows, by a mask or numbers."""
        return Columns(self.names, *(column[rows] for column in self[1:]))


def in_order(found: Sequence[Columns]) -> Released:
    """Updates in the order of the stream; `found` has whole boundaries, and its names may have an id several times."""
    ids = pa.concat_arrays([one.names for one in found]).dictionary_encode()
    by_name = pc.sort_indices(ids.dictionary)
    rank = np.empty(len(by_name), np.int32)
    rank[by_name.to_numpy()] = np.arange(len(by_name), dtype=np.int32)
    rank = rank[ids.indices.to_numpy()]
    firsts = np.cumsum([0, *(len(one.names) for one in found)])
    who = np.concatenate([rank[first + one.who] for first, one in zip(firsts, found, strict=False)])
    order, seq, as_of, score, boundary = map(np.concatenate, zip(*(one[2:] for one in found), strict=True))
    rows = np.lexsort((seq, order, who, boundary))
    columns = (column[rows] for column in (who, order, seq, as_of, score, boundary))
    place = np.arange(rows.shape[0]) - np.searchsorted(boundary[rows], boundary[rows])
    return Released(ids.dictionary.take(by_name), *columns, place)


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
        self._pending: list[Columns] = []

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
        as_of, of = np.unique(published.as_of[rows], return_inverse=True)
        boundary = np.array([boundary_of(self._ends, each) for each in as_of.tolist()], np.int64)
        columns = (published.who, _RANK_OF_CODE[published.change], published.seq, published.as_of, published.score)
        names = pa.array(published.names.strings(), pa.string())  # two may have the same id
        self._pending.append(Columns(names, *(column[rows] for column in columns), boundary[of]))

    def _release(self) -> None:
        through = min(self._through, self._durable())
        if through <= self.released:
            return
        complete, self._pending = _split(self._pending, through)
        found: list[Released] = []
        if complete:
            found.append(in_order(complete))
            self.updates += len(found[0].boundary)
        self.released = through
        self._deliver(found, through)


def _split(pending: Sequence[Columns], through: int) -> tuple[list[Columns], list[Columns]]:
    """The updates of boundaries up to one, and those of later ones."""
    early, late = [], []
    for one in pending:
        is_early = one.boundary <= through
        if is_early.all() or not is_early.any():
            (early if is_early.all() else late).append(one)
        else:
            early.append(one.where(is_early))
            late.append(one.where(~is_early))
    return early, late


def boundary_of(ends: Sequence[int], as_of: int) -> int:
    """The last seq of the boundary that a seq belongs to."""
    return ends[bisect_left(ends, as_of)]


def updates_of(
    released: Released,
    rows: np.ndarray | None,
    look_up: LookUp,
    most_bytes: int | None = PIECE_BYTES,
    tag_of: TagOf | None = None,
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
    tag_of : callable, optional
        Tag of the log up to a boundary, for ids that have one.
    """
    rows = np.arange(len(released.boundary)) if rows is None else rows
    found: list[Update] = []
    size_bytes, count = 0, len(rows) if most_bytes is None else _FIRST
    while len(found) < len(rows):
        some = _encoded(released, rows[len(found) : len(found) + count], look_up, tag_of)
        found += some
        if most_bytes is not None:
            size_bytes += sum(len(one.data) for one in some)
            if size_bytes >= most_bytes:
                break
            count = max(1, (most_bytes - size_bytes) * len(found) // size_bytes)
    return found


def tagged(position: str, tag: str) -> str:
    """The id of an event at a position, with the tag of the log (`WriteAheadLog.tag_of`), if it has one."""
    return f"{position}-{tag}" if tag else position


def _encoded(released: Released, rows: np.ndarray, look_up: LookUp, tag_of: TagOf | None) -> list[Update]:
    """Updates with their JSON, made for all of them at once: a sixth of the time of one after another."""
    names = released.names.take(pa.array(released.who[rows])).to_pylist()
    numbers = (released.order, released.seq, released.as_of, released.boundary, released.place)
    order, seqs, as_of, boundaries, places = (column[rows].tolist() for column in numbers)
    tags = {boundary: "" if tag_of is None else tagged("", tag_of(boundary)) for boundary in set(boundaries)}
    ids = [f"{boundary}-{place}{tags[boundary]}" for boundary, place in zip(boundaries, places, strict=True)]
    texts = look_up(list(dict.fromkeys(seqs)))
    message_ids, text, lon, lat = zip(*map(texts.__getitem__, seqs), strict=True)
    changes = [_NAMES[rank] for rank in order]
    found = list(map(Update, ids, changes, names, message_ids, seqs, as_of, released.scores(rows), text, lon, lat))
    for one, data in zip(found, _ENCODER.encode_lines(found).split(b"\n"), strict=False):  # behind the last end is ""
        one.data = data
    return found
