"""Updates of whole boundaries in the order of the stream, as columns, as bytes of events, and as sinks take them.

Updates are columns, without the texts of their messages, until somebody reads them: some 50 bytes each. Who reads some
looks their texts up, as many as have so many bytes, and gets the events of all at once.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute

from gateway.live.update_listener import MessageText
from gateway.serve.included import Include, IncludedValues

pc: Any = pyarrow.compute  # its functions are made when it is imported, which type checkers cannot see

#: Place of each change among those of a subscription id at a boundary.
RANKS = {"leave": 0, "match": 1, "enter": 2, "change": 3}
#: Bytes after which a piece of updates ends, whatever their number.
PIECE_BYTES = 4 * 2**20
#: Bytes that `LineWriter` writes at a time, about.
WRITTEN_BYTES = 2**20
#: Updates of which the size of the others is estimated.
_FIRST = 10
#: Bytes of an update's JSON besides its text, whose characters count one each.
_OWN = 250
#: The beginning of an update's JSON, up to its id.
JSON_BEGINS = b'{"id":"'
#: Updates up to which their pieces are joined without Arrow, whose buffers take as long as 20 of these.
_FEW = 8
#: Bytes of a `Released` besides its columns.
_OWN_BYTES = 4_096
_NAMES = sorted(RANKS, key=RANKS.__getitem__)
#: What an update's JSON has of its change: the names, and that of a match that came by a backfill.
_CHANGES = [*(b'"change":"%b"' % name.encode() for name in _NAMES), b'"change":"match","backfill":true']
_ENCODER = msgspec.json.Encoder()
_FIRST_OF_ONE = np.zeros(1, np.int64)

LookUp = Callable[[Sequence[int]], Mapping[int, MessageText]]
TagOf = Callable[[int], str]


class ReleasedUpdate(msgspec.Struct, gc=False, weakref=False):
    """An update for sinks: the fields of its JSON, and `data`, that JSON; `id` is its position in the stream."""

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
    data: bytes
    backfill: bool = False
    object_id: str = ""

    @property
    def position(self) -> str:
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
        return sum([column.nbytes for column in self]) + _OWN_BYTES

    def rows_of(self, wanted: np.ndarray, first: int = 0, last: int | None = None) -> np.ndarray:
        """Rows between two of the subscriptions that `wanted`, bool[names], has."""
        return first + np.flatnonzero(wanted[self.who[first:last]])

    def rows_through(self, boundary: int, index: int) -> int:
        """How many updates are up to a place in a boundary."""
        low, high = (int(np.searchsorted(self.boundary, boundary, side)) for side in ("left", "right"))
        return low + min(index + 1, high - low)

    def behind(self, row: int) -> "Released":
        """The updates from a row on."""
        return Released._make((self.names, *(column[row:] for column in self[1:])))

    def among(self, ids: Collection[str]) -> np.ndarray:
        """Which of `names` are among these ids, as bool[names]."""
        return pc.is_in(self.names, pa.array(list(ids), pa.string())).to_numpy(zero_copy_only=False)

    def facts(self, rows: np.ndarray) -> list[dict[str, Any]]:
        """Rows without what their messages have: subscription_id, change, seq, as_of, score (None: none)."""
        columns = (self.names.take(pa.array(self.who[rows])).to_pylist(), self.order[rows].tolist())
        numbers = self.seq[rows].tolist(), self.as_of[rows].tolist(), self.scores(rows)
        return [
            {"subscription_id": name, "change": _NAMES[rank], "seq": seq, "as_of": as_of, "score": score}
            | ({"backfill": True} if marked else {})
            for name, rank, seq, as_of, score, marked in zip(*columns, *numbers, self.marks(rows).tolist(), strict=True)
        ]

    def marks(self, rows: np.ndarray) -> np.ndarray:
        """bool[n]: which rows came by a backfill."""
        return (self.order[rows] == RANKS["match"]) & (self.as_of[rows] > self.seq[rows])

    def scores(self, rows: np.ndarray) -> list[float | None]:
        """Scores of rows, None for none."""
        return [None if score != score else score for score in self.score[rows].tolist()]


class UpdateColumns(NamedTuple):
    """Updates in any order, of `Released` those columns that are the same."""

    names: pa.Array
    who: np.ndarray
    order: np.ndarray
    seq: np.ndarray
    as_of: np.ndarray
    score: np.ndarray
    boundary: np.ndarray

    @property
    def size_bytes(self) -> int:
        return sum([column.nbytes for column in self])

    def where(self, rows: np.ndarray) -> "UpdateColumns":
        """Some rows, by a mask or numbers."""
        return UpdateColumns._make((self.names, *(column[rows] for column in self[1:])))


def in_order(found: Sequence[UpdateColumns]) -> Released:
    """Updates in the order of the stream; `found` has whole boundaries, and its names may have an id several times."""
    if len(found) == 1 and len(found[0].names) == 1 == len(found[0].seq):  # as of most small batches
        return Released._make((*found[0], np.zeros(1, np.int64)))
    ids = pa.concat_arrays([one.names for one in found]).dictionary_encode()
    by_name = pc.sort_indices(ids.dictionary)
    rank = np.empty(len(by_name), np.int32)
    rank[by_name.to_numpy()] = np.arange(len(by_name), dtype=np.int32)
    rank = rank[ids.indices.to_numpy()]
    firsts = np.cumsum([0, *(len(one.names) for one in found)])
    who = np.concatenate([rank[first + one.who] for first, one in zip(firsts, found, strict=False)])
    order, seq, as_of, score, boundary = map(np.concatenate, zip(*(one[2:] for one in found), strict=True))
    # of objects those are in the order of the messages that cause them, wherever one follows from a message
    cause = np.where(order == RANKS["match"], boundary, as_of)
    rows = np.lexsort((seq, as_of, order, cause, who, boundary))
    columns = (column[rows] for column in (who, order, seq, as_of, score, boundary))
    place = np.arange(rows.shape[0]) - np.searchsorted(boundary[rows], boundary[rows])
    return Released._make((ids.dictionary.take(by_name), *columns, place))


class EventBytes(NamedTuple):
    """Events one after another: `data`, cut at `offsets`, int64[n + 1]."""

    data: bytes
    offsets: np.ndarray

    def at(self, places: np.ndarray) -> bytes:
        """Some of them, by ascending places."""
        begins, ends = self.offsets[places].tolist(), self.offsets[places + 1].tolist()
        if ends[-1] - begins[0] == sum(ends) - sum(begins):  # a run
            return self.data[begins[0] : ends[-1]]
        return b"".join([self.data[begin:end] for begin, end in zip(begins, ends, strict=True)])

    def each(self) -> list[bytes]:
        cuts = self.offsets.tolist()
        return [self.data[begin:end] for begin, end in zip(cuts, cuts[1:], strict=False)]


class UpdateRows:
    """Some updates with their messages: the bytes of their events, made all at once, and `ReleasedUpdate` for sinks.

    Parameters
    ----------
    released : Released
    rows : int64[n] or None
        All by default. As many of the first are taken as have `most_bytes`, and at least one.
    look_up : callable
    most_bytes : int or None
        The last few updates may exceed it; None: all rows.
    tag_of : callable, optional
        Tag of the log up to a boundary, for ids that have one.
    included : IncludedValues, optional
        What updates of some subscriptions carry besides.

    Attributes
    ----------
    released : Released
    rows : int64[n]
        Those that are taken.
    size_bytes : int
        Of their JSON, about.

    Notes
    -----
    All names, numbers and messages become JSON in one call. One `take` of Arrow puts the pieces of each row beside each
    other. Ten updates a message take 0.8 us each, and a message each 1.7, where a struct for each update, encoded by
    msgspec, takes 1.5 and 1.5.
    """

    def __init__(
        self,
        released: Released,
        rows: np.ndarray | None,
        look_up: LookUp,
        most_bytes: int | None = PIECE_BYTES,
        tag_of: TagOf | None = None,
        included: IncludedValues | None = None,
    ):
        self._included = included
        rows = np.arange(len(released.boundary)) if rows is None else rows
        self.released, self._tag_of = released, tag_of
        texts, self.size_bytes, count = _texts_of(released.seq[rows], look_up, most_bytes)
        self.rows = rows[:count]
        self._seqs, self._message = _distinct(released.seq[self.rows])
        self._messages = [texts[seq] for seq in self._seqs.tolist()]
        self._pieces: _Pieces | None = None
        self._events: dict[tuple[tuple[bytes, ...], bytes], EventBytes] = {}

    def __len__(self) -> int:
        return len(self.rows)

    def turned(self) -> "UpdateRows":
        """The same in the opposite order."""
        self.rows, self._message = self.rows[::-1], self._message[::-1]
        self._pieces = None
        self._events.clear()
        return self

    def events(self, before: tuple[bytes, ...], end: bytes) -> EventBytes:
        """The JSON of each update within a frame.

        Parameters
        ----------
        before : tuple of bytes
            What is before each place of the id; the last is where the JSON begins.
        end : bytes
            What is behind the JSON.
        """
        if (before, end) not in self._events:
            nothing = EventBytes(b"", np.zeros(1, np.int64))
            self._events[before, end] = self._joined(before, end) if len(self) else nothing
        return self._events[before, end]

    def where(self, has_place: Callable[[float, float], bool]) -> np.ndarray:
        """Whether the longitude and latitude of the message of each pass a test, as bool[n]."""
        return np.array([has_place(one.lon, one.lat) for one in self._messages], np.bool_)[self._message]

    def updates(self, include: Include | None = None) -> list[ReleasedUpdate]:
        """The updates for sinks, whose ids have no tag. `include` counts in place of the subscriptions' own."""
        if not len(self):
            return []
        released, rows = self.released, self.rows
        places = zip(released.boundary[rows].tolist(), released.place[rows].tolist(), strict=True)
        ids = [f"{boundary}-{place}" for boundary, place in places]
        names = released.names.take(pa.array(released.who[rows])).to_pylist()
        changes = [_NAMES[rank] for rank in released.order[rows].tolist()]
        columns = zip(*map(self._messages.__getitem__, self._message.tolist()), strict=True)
        message_ids, text, lon, lat, objects, _ = columns
        numbers = released.seq[rows].tolist(), released.as_of[rows].tolist(), released.scores(rows)
        data, marks = self._joined((JSON_BEGINS,), b"", include).each(), released.marks(rows).tolist()
        own = ids, changes, names, message_ids, *numbers, text, lon, lat, data, marks, objects
        return list(map(ReleasedUpdate, *own))

    def _joined(self, before: tuple[bytes, ...], end: bytes, include: Include | None = None) -> EventBytes:
        if self._pieces is None:
            self._pieces = self._encoded()
        pieces = self._pieces
        boundaries, boundary = _distinct(self.released.boundary[self.rows])
        tags = ["" if self._tag_of is None else tagged("", self._tag_of(each)) for each in boundaries.tolist()]
        heads = [b"%d-" % each for each in boundaries.tolist()]
        tails = [tag.encode() for tag in tags]
        columns: list[np.ndarray | int] = []
        literals: list[bytes] = []
        end_of_literals = len(pieces.starts)

        def place(some: list[bytes]) -> int:
            nonlocal literals, end_of_literals
            begins, end_of_literals = end_of_literals, end_of_literals + len(some)
            literals += some
            return begins

        for number, literal in enumerate(before):
            begins = [(tail if number else b"") + literal + head for head, tail in zip(heads, tails, strict=True)]
            columns += [place(begins) + boundary, pieces.place]
        changes = [b'%b",%b,"subscription_id":' % (tail, change) for tail in tails for change in _CHANGES]
        columns += [place(changes) + len(_CHANGES) * boundary + self._change(), pieces.name]
        columns += [place([b","]), pieces.head, place([b',"as_of":']), pieces.as_of, place([b',"score":'])]
        columns += [pieces.score, place([b","]), pieces.tail]
        more = self._included and self._included.of(self.released, self.rows, RANKS["leave"], include)
        columns += [place([b"}" + end])] if more is None else [place(more[0]) + more[1], place([b"}" + end])]
        return pieces.joined(columns, literals, len(self))

    def lines(self) -> bytes:
        """Lines of JSON as `skyray live` writes them, which have no ids."""
        if not len(self):
            return b""
        pieces = self._encoded()
        names = [b'{%b,"subscription_id":' % change for change in _CHANGES]
        literals = [*names, b',"as_of":', b",", b',"score":', b"}\n"]
        first = len(pieces.starts)
        as_of, comma, score, end = range(first + len(_CHANGES), first + len(literals))
        more = self._included and self._included.of(self.released, self.rows, RANKS["leave"])
        literals += more[0] if more else []
        columns = [
            first + self._change(),
            pieces.name,
            as_of,
            pieces.as_of,
            comma,
            pieces.head,
            comma,
        ]
        columns += [pieces.tail, score, pieces.score, *([end + 1 + more[1]] if more else []), end]
        return pieces.joined(columns, literals, len(self)).data

    def _change(self) -> np.ndarray:
        """The place of each in `_CHANGES`."""
        marks = self.released.marks(self.rows)
        return np.where(marks, len(_NAMES), self.released.order[self.rows].astype(np.int64))

    def _encoded(self) -> "_Pieces":
        released, rows = self.released, self.rows
        used, who = _distinct(released.who[rows])
        names = released.names if len(used) == len(released.names) else released.names.take(pa.array(used))
        message_ids, text, lon, lat, objects, _ = zip(*self._messages, strict=True)
        items = [
            *names.to_pylist(),
            *map(_Head, message_ids, self._seqs.tolist(), objects),
            *map(_Tail, text, lon, lat),
            *released.place[rows].tolist(),
            *released.as_of[rows].tolist(),
            *released.score[rows].tolist(),
        ]
        data = _ENCODER.encode_lines(items)
        ends = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n"))
        starts = np.concatenate(([0], ends[:-1] + 1))
        first, messages, each = len(used), len(self._seqs), np.arange(len(rows))
        starts[first : first + 2 * messages] += 1  # without what opens and closes an object
        ends[first : first + 2 * messages] -= 1
        head, last = first + self._message, first + 2 * messages
        numbers = last + each, last + len(rows) + each, last + 2 * len(rows) + each
        return _Pieces(data, starts, ends, who, head, head + messages, *numbers)


class _Pieces(NamedTuple):
    """JSON of names, numbers and parts of messages: `data` from `starts` to `ends`, and which of them each row has."""

    data: bytes
    starts: np.ndarray
    ends: np.ndarray
    name: np.ndarray
    head: np.ndarray
    tail: np.ndarray
    place: np.ndarray
    as_of: np.ndarray
    score: np.ndarray

    def joined(self, columns: Sequence[np.ndarray | int], literals: Sequence[bytes], count: int) -> EventBytes:
        """The pieces of each of `count` rows one after another; `columns` has their numbers, those of literals last."""
        if count <= _FEW:
            cuts = zip(self.starts.tolist(), self.ends.tolist(), strict=True)
            pool = [*[self.data[begin:end] for begin, end in cuts], *literals]
            which = [[one] * count if isinstance(one, int) else one.tolist() for one in columns]
            rows = [b"".join(map(pool.__getitem__, row)) for row in zip(*which, strict=True)]
            return EventBytes(b"".join(rows), np.cumsum([0, *map(len, rows)]))
        cuts = np.cumsum([len(self.data), *map(len, literals)])
        offsets = np.empty(2 * (len(self.starts) + len(literals)) + 1, np.int64)  # what is between two pieces is one
        offsets[:-1:2] = np.concatenate((self.starts, cuts[:-1]))
        offsets[1:-1:2] = np.concatenate((self.ends, cuts[1:]))
        offsets[-1] = cuts[-1]
        data = self.data + b"".join(literals)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
        array = pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)
        wanted = np.empty((count, len(columns)), np.int64)
        for number, column in enumerate(columns):
            wanted[:, number] = column
        wanted *= 2
        found = array.take(pa.array(wanted.ravel()))
        _, ends, data = found.buffers()
        return EventBytes(data.to_pybytes(), np.frombuffer(ends, np.int64)[:: len(columns)].copy())


class _Head(msgspec.Struct, gc=False, omit_defaults=True):
    message_id: str
    seq: int
    object_id: str = ""


class _Tail(msgspec.Struct, gc=False):
    text: str
    lon: float
    lat: float


def _distinct(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct values, ascending, and which of them each is; of one value, as in most small batches, in no time."""
    return (values, _FIRST_OF_ONE) if len(values) == 1 else np.unique(values, return_inverse=True)


def _texts_of(seqs: np.ndarray, look_up: LookUp, most_bytes: int | None) -> tuple[Mapping[int, MessageText], int, int]:
    """Texts of the messages of the first updates, the size of these, about, and their number."""
    texts: dict[int, MessageText] = {}
    taken, size_bytes, step = 0, 0, len(seqs) if most_bytes is None else _FIRST
    while taken < len(seqs) and (most_bytes is None or size_bytes < most_bytes):
        some, message = _distinct(seqs[taken : taken + step])
        found = look_up(some.tolist())
        texts.update(found)
        lengths = np.array([len(found[seq].text) for seq in some.tolist()])
        taken += len(message)
        size_bytes += _OWN * len(message) + int(lengths[message].sum())
        step = 0 if most_bytes is None else max(1, (most_bytes - size_bytes) * taken // size_bytes)
    return texts, size_bytes, taken


class LineWriter:
    """Writes released updates as `skyray live` does; `write` takes whole lines, `included` is as of `UpdateRows`."""

    def __init__(self, write: Callable[[bytes], None], look_up: LookUp, included: IncludedValues | None = None):
        self._write = write
        self._look_up = look_up
        self._included = included

    def deliver(self, released: Sequence[Released], through: int) -> None:
        """As `Releaser` calls it; some bytes are written at a time."""
        for one in released:
            done = 0
            while done < len(one.boundary):
                rows = np.arange(done, len(one.boundary))
                some = UpdateRows(one, rows, self._look_up, WRITTEN_BYTES, included=self._included)
                self._write(some.lines())
                done += len(some)


def tagged(position: str, tag: str) -> str:
    """The id of an event at a position, with the tag of the log (`WriteAheadLog.tag_of`), if it has one."""
    return f"{position}-{tag}" if tag else position
