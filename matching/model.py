"""Columnar types: messages, subscriptions, changes, updates.

Each type is a NamedTuple of C-contiguous numpy arrays of one length n (ragged columns are an offsets array of
n + 1 entries and a flat array). Numba takes them as they are, Ray ships them without a copy, `topology.core.frames`
writes them. One dtype per role, fixed here, so that every kernel has exactly one compiled signature.

Numbers, not names, travel inside the engine: a message is its `seq`, a subscription its `number`, a term its `term_id`.
External id strings go straight to the delivery bolt (`Names`).
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

SEQ = np.int64
TERM = np.int32
WEIGHT = np.float32
SCORE = np.float64

Int8 = NDArray[np.int8]
Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
UInt8 = NDArray[np.uint8]
Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]

#: Optional columns of messages (`Kind.columns`) where no kind needs them.
NO_COUNTS: Int32 = np.zeros(0, np.int32)
#: Order of words where no message has any.
NO_ORDER: Int32 = np.zeros(0, np.int32)
NO_TIMES: Int64 = np.zeros(0, np.int64)
#: Versions that are replaced, where the stream is one of messages.
NO_PREVIOUS: Int64 = np.zeros(0, np.int64)
#: Attributes of messages that have none.
NO_KEYS: Int64 = np.zeros((0, 0), np.int64)
#: Unit vectors where distances are measured in the plane.
NO_VECTORS: Float64 = np.zeros((0, 3))
#: Radii of subscriptions where none has one.
NO_RADII: Float64 = np.zeros(0)
#: Filters of subscriptions where none has any.
NO_WORDS: Int64 = np.zeros(0, np.int64)

#: Kinds of subscription by their code in `SubscriptionTable.kind`; `matching.kinds` has a row for each.
BOOLEAN, TOPK, DECAY, KNN, SKYLINE = range(5)

#: Codes in `UpdateBatch.change`, and their names on disk.
MATCH, ENTER, LEAVE, CHANGE = range(4)
CHANGES = ("match", "enter", "leave", "change")

#: Stands for a subscription's keyword that the vocabulary lacks. No message carries it and it sorts last.
UNKNOWN_TERM = 2**31 - 1
#: Codes in `SubscriptionTable.match`: as many keywords as the kind requires, or one where the kind requires all.
KEYWORDS_BY_KIND, ANY_KEYWORD = range(2)


class Names(NamedTuple):
    """External id strings as flat arrays: UTF-8 `data` cut at `offsets` (int64[n + 1])."""

    offsets: Int64
    data: UInt8

    @classmethod
    def of(cls, strings: Sequence[str]) -> "Names":
        """Pack strings. O(total bytes)."""
        if len(strings) > 1 and (whole := "".join(strings)).isascii():  # half the time
            offsets = np.array([0, *accumulate(map(len, strings))], np.int64)
            return cls(offsets, np.frombuffer(whole.encode(), np.uint8))
        encoded = [text.encode("utf-8", "surrogatepass") for text in strings]
        offsets = np.array([0, *accumulate(map(len, encoded))], np.int64)
        return cls(offsets, np.frombuffer(b"".join(encoded), np.uint8))

    @classmethod
    def join(cls, parts: Sequence["Names"]) -> "Names":
        """Names behind each other. O(their bytes); of one part itself."""
        if len(parts) == 1:
            return parts[0]
        shifts = np.cumsum([0] + [int(part.offsets[-1] - part.offsets[0]) for part in parts])
        ends = [part.offsets[1:] - part.offsets[0] + shift for part, shift in zip(parts, shifts, strict=False)]
        data = [part.data[part.offsets[0] : part.offsets[-1]] for part in parts]
        return cls(np.concatenate([np.zeros(1, np.int64), *ends]), np.concatenate([np.zeros(0, np.uint8), *data]))

    def cut(self, first: int, last: int) -> "Names":
        """Names `first` to `last` (exclusive); the bytes are a view. O(last - first)."""
        offsets = self.offsets[first : last + 1]
        return Names(offsets - offsets[0], self.data[offsets[0] : offsets[-1]])

    def take(self, rows: Int64) -> "Names":
        """Some of the names. O(their bytes)."""
        starts = self.offsets[rows]
        if rows.shape[0] == 1:  # as in most small batches
            ends = self.offsets[rows + 1]
            return Names(np.array([0, ends[0] - starts[0]], np.int64), self.data[starts[0] : ends[0]].copy())
        lengths = self.offsets[rows + 1] - starts
        offsets = np.zeros(rows.shape[0] + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        # for each byte its place in the whole: consecutive within a name
        return Names(offsets, self.data[np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])])

    def string(self, row: int) -> str:
        """Unpack one string."""
        return self.data[self.offsets[row] : self.offsets[row + 1]].tobytes().decode("utf-8", "surrogatepass")

    def strings(self) -> list[str]:
        """Unpack every string. O(total bytes)."""
        data, cuts = self.data.tobytes(), pairwise(self.offsets.tolist())
        if data.isascii():  # half the time
            text = data.decode("ascii")
            return [text[a:b] for a, b in cuts]
        return [data[a:b].decode("utf-8", "surrogatepass") for a, b in cuts]


class MessageBatch(NamedTuple):
    """Messages in ascending `seq`; with gaps where a router dropped some.

    seq : int64[n]            position in the stream, dense from 0 over the whole stream
    x, y : float64[n]         the point in the unit square (`matching.space.Space.project`)
    west, south, east, north : float64[n]
                              degrees, closed; a point message has west = east = lon, south = north = lat (for a
                              batch of points `east is west` and `north is south`, which costs no second copy)
    life : int64[n]           the message is alive while `life > Boundary.floor`: its seq (count window) or its
                              event time in microseconds (time window)
    term_offsets : int64[n+1] term_offsets[i]:term_offsets[i + 1] are the terms of message i
    terms : int32[nnz]        ascending within a message, without repeats; of a visible message the last one is reserved
                              (`matching.reserved`)
    weights : float32[nnz]    unit tf-idf vector over the terms in the vocabulary
    counts : int32[nnz]       occurrences of each term in its message; empty where no kind needs it
    event_time_us : int64[n]  microseconds; empty where no kind needs it
    keys : int64[n, a]        keys of the attributes (`matching.attributes`); int64[0, 0] where messages have none
    vector : float64[n, 3]    the point as a unit vector (`matching.geo.sphere`), if distances are measured on the
                              sphere; float64[0, 3] if in the plane
    order_offsets : int64[n+1]    order[order_offsets[i]:order_offsets[i + 1]] are the words of message i in order of
                              appearance; empty (0) where no message has any
    order : int32[words]      their terms, below 0 for a word that has none, `matching.pieces.JOINED_ID` between pieces
                              of a word, and behind a hashtag the word that it names (`matching.pieces.NAMED_ID`)
    previous_seq : int64[n]   of a stream of objects: seq of the living version that this row replaces or ends, -1 if
                              there is none; empty (0) in a stream of messages. A row with one that is not visible (has
                              no reserved term) is a deletion.
    """

    seq: Int64
    x: Float64
    y: Float64
    west: Float64
    south: Float64
    east: Float64
    north: Float64
    life: Int64
    term_offsets: Int64
    terms: Int32
    weights: Float32
    counts: Int32 = NO_COUNTS
    event_time_us: Int64 = NO_TIMES
    keys: Int64 = NO_KEYS
    vector: Float64 = NO_VECTORS
    order_offsets: Int64 = NO_WORDS
    order: Int32 = NO_ORDER
    previous_seq: Int64 = NO_PREVIOUS

    def __len__(self) -> int:  # a NamedTuple would count its fields
        return self.seq.shape[0]

    def alive(self, floor: int) -> "MessageBatch":
        """The messages with life > floor, for a batch longer than the window. O(n), or a copy."""
        living = self.life > floor
        return self if living.all() else self.take(np.flatnonzero(living))

    def take(self, rows: NDArray[np.integer]) -> "MessageBatch":
        """The messages at `rows` (ascending), as a new batch. O(rows + their terms)."""
        offsets, picked = take_ragged(self.term_offsets, rows)
        west, south = self.west[rows], self.south[rows]
        return MessageBatch(
            self.seq[rows],
            self.x[rows],
            self.y[rows],
            west,
            south,
            west if self.east is self.west else self.east[rows],
            south if self.north is self.south else self.north[rows],
            self.life[rows],
            offsets,
            self.terms[picked],
            self.weights[picked],
            self.counts[picked] if self.counts.shape[0] else self.counts,
            self.event_time_us[rows] if self.event_time_us.shape[0] else self.event_time_us,
            self.keys[rows] if self.keys.shape[1] else self.keys,
            self.vector[rows] if self.vector.shape[0] else self.vector,
            *take_optional(self.order_offsets, self.order, rows),
            self.previous_seq[rows] if self.previous_seq.shape[0] else self.previous_seq,
        )

    def having(self, **columns: np.ndarray) -> "MessageBatch":
        """The same with other columns. O(1)."""
        changed: Any = self._asdict() | columns  # `_replace` would take the rows for fields
        return MessageBatch(**changed)


class SubscriptionTable(NamedTuple):
    """Subscriptions of any kinds, one a row, in the order of their registration.

    number : int64[n]         internal id, dense from 0 in the order of registration, never used twice
    kind : int8[n]            code of its row in `matching.kinds`
    at : int64[n]             takes effect before the message of this seq
    x, y : float64[n]         the point in the unit square; NaN for kinds with a region
    region : float64[n, 4]    west, south, east, north in degrees, closed; west > east crosses the antimeridian
                              (some kinds only); NaN for kinds with a point
    match : int8[n]           which of its keywords a message must have: `KEYWORDS_BY_KIND` or `ANY_KEYWORD`
    k : int32[n]              0 where the kind has none
    alpha : float64[n]        weight of the spatial score; NaN where the kind has none
    term_offsets : int64[n+1]
    terms : int32[nnz]        ascending, without repeats; `UNKNOWN_TERM` at most once, last, only where all are needed;
                              of one without keywords the reserved term alone (`matching.reserved`)
    weights : float32[nnz]    unit idf vector over the terms in the vocabulary
    filter_offsets : int64[n+1]    filter_words[filter_offsets[i]:filter_offsets[i + 1]] is the filter of subscription
                              i (`matching.filters`), nothing for one without; empty (0) where no row has one
    filter_words : int64[words]
    vector : float64[n, 3]    the point as a unit vector, NaN for kinds with a region; empty (0, 3) if distances are
                              measured in the plane
    radius_m : float64[n]     metres at which its proximity is 0, NaN for a subscription that names no radius; empty (0)
                              where no row names one
    """

    number: Int64
    kind: Int8
    at: Int64
    x: Float64
    y: Float64
    region: Float64
    match: Int8
    k: Int32
    alpha: Float64
    term_offsets: Int64
    terms: Int32
    weights: Float32
    filter_offsets: Int64 = NO_WORDS
    filter_words: Int64 = NO_WORDS
    vector: Float64 = NO_VECTORS
    radius_m: Float64 = NO_RADII

    def __len__(self) -> int:
        return self.number.shape[0]

    def take(self, rows: NDArray[np.integer]) -> "SubscriptionTable":
        """The subscriptions at `rows` (indices, not a mask), as a new table. O(rows + their terms and filters)."""
        offsets, picked = take_ragged(self.term_offsets, rows)
        return SubscriptionTable(
            self.number[rows],
            self.kind[rows],
            self.at[rows],
            self.x[rows],
            self.y[rows],
            self.region[rows],
            self.match[rows],
            self.k[rows],
            self.alpha[rows],
            offsets,
            self.terms[picked],
            self.weights[picked],
            *take_optional(self.filter_offsets, self.filter_words, rows),
            self.vector[rows] if self.vector.shape[0] else self.vector,
            self.radius_m[rows] if self.radius_m.shape[0] else self.radius_m,
        )

    def having(self, **columns: np.ndarray) -> "SubscriptionTable":
        """The same with other columns. O(1)."""
        changed: Any = self._asdict() | columns  # `_replace` would take the rows for fields
        return SubscriptionTable(**changed)

    def of_kind(self, kind: int) -> "SubscriptionTable":
        """The rows of one kind, in order."""
        return self.take(np.flatnonzero(self.kind == kind))


class Removals(NamedTuple):
    """Unsubscriptions: `number` (int64[n]) of `kind` (int8[n]) ends before message `at` (int64[n])."""

    number: Int64
    kind: Int8
    at: Int64

    def of_kind(self, kind: int) -> "Removals":
        """Those of one kind. O(n)."""
        if not self.kind.size:
            return self
        rows = np.flatnonzero(self.kind == kind)
        return Removals(self.number[rows], self.kind[rows], self.at[rows])


class Backfill(NamedTuple):
    """Matches of messages that came before a subscription took effect (`matching.backfill`), n of them.

    number, at : int64[n]    the subscription, and the message before which it takes effect
    seq : int64[n]           the message; ascending for each subscription
    names : Names            its id
    """

    number: Int64
    at: Int64
    seq: Int64
    names: Names

    def __len__(self) -> int:
        return self.number.shape[0]


class ChangeList(NamedTuple):
    """All subscription changes that take effect inside one batch, in order of `at` then arrival.

    A replaced subscription is a removal of the old number and a new number at the same seq.

    follows : int64[n], optional    for each row of `added` the number that had its external id before, -1 if none; that
                                    one is removed in this change list or in an earlier one. None if all are -1
    owner: int64[n], optional       for each row of `added` the query task it is placed on (`distribution.placed`); None
                                    where routers compute it
    backfill : Backfill, optional   of subscriptions of `added`
    """

    batch: int
    added: SubscriptionTable
    names: Names
    removed: Removals
    follows: Int64 | None = None
    owner: Int64 | None = None
    backfill: Backfill | None = None


class UpdateBatch(NamedTuple):
    """Updates of results.

    as_of : int64[n]     `match`: seq of the message; others: last seq of the boundary, or of a kind without results
                         the seq of the row that causes it
    number : int64[n]    the subscription
    seq : int64[n]       the message; of `change` the new version of an object that stays in the result
    change : int8[n]     position in `CHANGES`
    score : float64[n]   NaN for `match`
    """

    as_of: Int64
    number: Int64
    seq: Int64
    change: Int8
    score: Float64

    def __len__(self) -> int:
        return self.number.shape[0]


class ResultBatch(NamedTuple):
    """Standing results: `number` int64[n], `rank` int32[n] from 1, `seq` int64[n], `score` float64[n].

    text_score : float64[n]    text relevance of `skyline`, whose score is the spatial one; NaN for other kinds, None
                               where no row has one
    """

    number: Int64
    rank: Int32
    seq: Int64
    score: Float64
    text_score: Float64 | None = None

    def __len__(self) -> int:
        return self.number.shape[0]


def take_ragged(offsets: Int64, rows: NDArray[np.integer]) -> tuple[Int64, Int64]:
    """Cut rows out of a ragged column.

    Returns
    -------
    new_offsets : int64[len(rows) + 1]
    picked : int64[nnz]     positions in the flat array, row after row

    Notes
    -----
    O(rows + picked).
    """
    lengths = offsets[rows + 1] - offsets[rows]
    new_offsets = np.zeros(rows.shape[0] + 1, np.int64)
    np.cumsum(lengths, out=new_offsets[1:])
    picked = np.arange(new_offsets[-1], dtype=np.int64)
    picked += np.repeat(offsets[rows] - new_offsets[:-1], lengths)
    return new_offsets, picked


def take_optional(offsets: Int64, values: Any, rows: NDArray[np.integer]) -> tuple[Int64, Any]:
    """Some rows of a ragged column that may be empty, such as the filters of a table. O(rows + values)."""
    if not offsets.shape[0]:
        return offsets, values
    new_offsets, picked = take_ragged(offsets, rows)
    return new_offsets, values[picked]


_SHAPES = {"term_offsets": (1,), "region": (0, 4), "keys": (0, 0), "vector": (0, 3)}


def _columns(table_type: type) -> dict:
    """Empty arrays for the fields of a table type, by the role of each name."""
    dtypes = {
        "kind": np.int8,
        "match": np.int8,
        "change": np.int8,
        "k": np.int32,
        "rank": np.int32,
        "counts": np.int32,
        "terms": TERM,
        "weights": WEIGHT,
        "term_offsets": np.int64,
        "filter_offsets": np.int64,
        "filter_words": np.int64,
        "order_offsets": np.int64,
        "order": np.int32,
    }
    integers = {"seq", "life", "number", "at", "as_of", "event_time_us", "keys", "previous_seq"}
    columns: dict = {}
    for name in table_type._fields:  # type: ignore[attr-defined]
        dtype = dtypes.get(name, np.int64 if name in integers else np.float64)
        shape = _SHAPES.get(name, (0,))
        columns[name] = np.zeros(shape, dtype)
    return columns


def empty(table_type: type):
    """A table of the given type without rows."""
    return table_type(**_columns(table_type))


def take_rows(table: Any, rows: NDArray[Any] | slice) -> Any:
    """Some rows (mask, indices or slice) of a NamedTuple of columns of one length, or None. O(columns and rows)."""
    return type(table)(*(None if column is None else column[rows] for column in table))


def concatenate(tables: Sequence):
    """Join tables of one type row-wise; at least one is needed. The first column has a value a row. O(total rows)."""
    first = tables[0]
    if len(tables) == 1:
        return first
    columns, rows = {}, [table[0].shape[0] for table in tables]
    for name in first._fields:
        parts = [getattr(table, name) for table in tables]
        if name == "term_offsets":
            starts = np.cumsum([0] + [part[-1] - part[0] for part in parts[:-1]])
            joined = [part[1:] - part[0] + start for part, start in zip(parts, starts, strict=True)]
            columns[name] = np.concatenate([np.zeros(1, np.int64), *joined])
        elif name in ("filter_offsets", "order_offsets"):
            columns[name] = _join_optional_offsets(parts, rows)
        elif name == "keys":
            columns[name] = _join_keys(parts, rows)
        elif name == "text_score":
            columns[name] = _join_optional(parts, rows)
        elif name in ("vector", "radius_m"):
            columns[name] = _join_where_any(parts, rows, np.nan)
        elif name == "previous_seq":
            columns[name] = _join_where_any(parts, rows, -1)
        else:
            columns[name] = np.concatenate(parts)
    return type(first)(**columns)


def centres(messages: MessageBatch) -> tuple[Float64, Float64]:
    """Longitude and latitude of messages; of a range message the centre. O(n)."""
    return (messages.west + messages.east) / 2.0, (messages.south + messages.north) / 2.0


def join_messages(parts: Sequence[MessageBatch]) -> MessageBatch:
    """All messages of all parts, in order; without a range message `east is west` and `north is south`."""
    joined = concatenate(parts)
    if joined.east is joined.west and joined.north is joined.south:
        return joined
    if np.array_equal(joined.east, joined.west) and np.array_equal(joined.north, joined.south):
        return _as_points(joined)
    return joined


def _as_points(messages: MessageBatch) -> MessageBatch:
    return messages.having(east=messages.west, north=messages.south)


NO_MESSAGES = _as_points(empty(MessageBatch))
NO_UPDATES: UpdateBatch = empty(UpdateBatch)


def _join_optional_offsets(parts: Sequence[Int64], rows: Sequence[int]) -> Int64:
    """Offsets of a ragged column of all rows; empty if no table has any."""
    if all(part.shape[0] == 0 for part in parts):
        return NO_WORDS
    lengths = [
        np.diff(part) if part.shape[0] else np.zeros(count, np.int64) for part, count in zip(parts, rows, strict=True)
    ]
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(np.concatenate(lengths))])


def widened(keys: Int64, rows: int, width: int) -> Int64:
    """Keys of so many messages with so many attributes, int64[rows, width]: those not in `keys` are missing, the least
    int64. O(rows * width) where some are not."""
    if keys.shape[1] == width:
        return keys
    found = np.full((rows, width), np.iinfo(np.int64).min)
    if keys.shape[1]:
        found[:, : keys.shape[1]] = keys
    return found


def _join_keys(parts: Sequence[Int64], lengths: Sequence[int]) -> Int64:
    """Keys of all messages; of attributes that a table has not they are missing."""
    width = max(part.shape[1] for part in parts)
    if not width:
        return parts[0]
    return np.concatenate([widened(part, rows, width) for part, rows in zip(parts, lengths, strict=True)])


def _join_where_any(parts: Sequence[Any], lengths: Sequence[int], missing: float) -> Any:
    """Join a column that is empty where no row of a table has it; those rows are `missing` if others have it."""
    if not any(part.shape[0] for part in parts):
        return parts[0]
    filled = [
        part if part.shape[0] else np.full((rows, *part.shape[1:]), missing, part.dtype)
        for part, rows in zip(parts, lengths, strict=True)
    ]
    return np.concatenate(filled)


def _join_optional(parts: Sequence[Float64 | None], lengths: Sequence[int]) -> Float64 | None:
    """Join a column, NaN for tables without it; None if no table has it."""
    if all(part is None for part in parts):
        return None
    filled = [np.full(rows, np.nan) if part is None else part for part, rows in zip(parts, lengths, strict=True)]
    return np.concatenate(filled)
