"""Converts the Arrow columns of a message file to `Rows`; checks the ETL's contract, repairs nothing.

Numbers and names are NumPy views of the Arrow buffers.
"""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from matching.attributes import ATTRIBUTE, MISSING_KEY, category_key, list_keys, number_keys
from matching.errors import InputError
from matching.model import NO_COUNTS, NO_KEYS, NO_ORDER, NO_TIMES, NO_WORDS, Int32, Int64, MessageBatch, Names
from matching.reserved import with_reserved
from matching.space import Space
from matching.window import NO_FLOOR, Window
from matching.words.beginnings import TermColumns, with_named_words
from spouts.cutting import Rows
from spouts.quarantine import drop_terms
from spouts.versions import Objects, object_columns

SIDES = ("west", "south", "east", "north")
_REQUIRED = {
    "seq": pa.int64(),
    "message_id": pa.string(),
    "lon": pa.float64(),
    "lat": pa.float64(),
    "terms": pa.list_(pa.int32()),
    "weights": pa.list_(pa.float32()),
}
OBJECT_COLUMNS = ("object_id", "op")
#: The words of a message in order of appearance, as of `matching.words.message_words.MessageTerms.ids`.
ORDER = "word_order"
#: Marks messages that a live stream quarantined for their date.
AHEAD = "ahead"
_TIME = pa.timestamp("us", "UTC")
#: Of numbers, categories and times; those of lists are checked apart, as their members have a name.
_ATTRIBUTE_TYPES = (pa.float64(), pa.string(), pa.large_string(), pa.int64())
#: Columns of message files, as readers of single columns get them.
TYPES = {
    **_REQUIRED,
    **dict.fromkeys(SIDES, pa.float64()),
    "event_time": _TIME,
    "object_id": pa.string(),
    "op": pa.int64(),
    AHEAD: pa.bool_(),
    ORDER: pa.list_(pa.int32()),
}
REMEDY = "run the ETL again, or restore the file"


class Columns:
    """The columns of message files, file after file.

    Parameters
    ----------
    window, space
        As in `spouts.parquet.ParquetSource`.
    objects : bool
        Read which objects messages are about, where a file says so.
    kind_columns : collection of str
        Columns that the kinds require (`Kind.columns`).
    latest_us, timed
        See `spouts.parquet.ParquetSource`.
    untimed : bool
        Messages may lack a time; those are in no time window.
    reserved : int, optional
        Id of the term that all visible messages have beside those of the files (`matching.reserved`): all but
        deletions, and those that are ahead or outside the world.
    """

    def __init__(
        self,
        window: Window,
        space: Space,
        objects: bool,
        kind_columns: Collection[str] = (),
        latest_us: int | None = None,
        timed: bool = False,
        untimed: bool = False,
        reserved: int | None = None,
    ):
        self.window = window
        self.space = space
        self._objects = objects
        self._counts = "counts" in kind_columns
        self._own_times = "event_time_us" in kind_columns
        self._stream_times = timed or window.kind == "time"
        self._times = self._own_times or self._stream_times
        self._untimed = untimed
        self._reserved = reserved
        self.latest_us = latest_us
        self._path = Path()
        self._attributes: list[str] = []

    def of_file(self, path: Path, schema: pa.Schema) -> list[str]:
        """Switch to this file and return the columns to read. Raises InputError if the ETL did not write it."""
        self._path = path
        present = set(schema.names)
        for name, expected in _REQUIRED.items():
            found = schema.field(name).type if name in present else None
            if found is None or not _same_type(found, expected):
                raise damaged(self._path, f"column {name!r} should be {expected} and is {found or 'missing'}")
        columns = list(_REQUIRED)
        if "event_time" in present:
            if not pa.types.is_timestamp(schema.field("event_time").type):
                raise damaged(self._path, f"column 'event_time' is {schema.field('event_time').type}, no timestamp")
            columns.append("event_time")
        elif self._times:
            raise damaged(self._path, f"column 'event_time' is missing, and {_why_times(self.window)}")
        if self._counts:
            found = schema.field("counts").type if "counts" in present else None
            if found is None or not _same_type(found, pa.list_(pa.int32())):
                raise damaged(self._path, f"column 'counts' should be list<int32> and is {found or 'missing'}")
            columns.append("counts")
        sides = [side for side in SIDES if side in present]
        if sides and len(sides) < 4:
            raise damaged(self._path, f"has {', '.join(sides)} and not all four sides of range messages")
        wanted = OBJECT_COLUMNS if self._objects else ("op",)
        columns += [name for name in wanted if has_column(self._path, schema, name)]
        if AHEAD in present:
            if not pa.types.is_boolean(schema.field(AHEAD).type):
                raise damaged(
                    self._path, f"column {AHEAD!r} is {schema.field(AHEAD).type}, where true or false belongs"
                )
            columns.append(AHEAD)
        if ORDER in present:
            if not _same_type(schema.field(ORDER).type, TYPES[ORDER]):
                raise damaged(self._path, f"column {ORDER!r} should be list<int32> and is {schema.field(ORDER).type}")
            columns.append(ORDER)
        self._attributes = [name for name in schema.names if name.startswith(ATTRIBUTE)]
        for name in self._attributes:
            found = schema.field(name).type
            of_list = pa.types.is_list(found) and pa.types.is_string(found.value_type)
            if found not in _ATTRIBUTE_TYPES and not of_list:
                raise damaged(self._path, f"column {name!r} is {schema.field(name).type}, which no attribute is")
        return columns + sides + self._attributes

    def rows(self, columns: dict[str, pa.Array], first_seq: int) -> Rows:
        """Convert a row group of that file, whose first message must be `first_seq`. O(values).

        Raises
        ------
        InputError
            If the columns are not what the ETL writes, or the rows are not the next ones.
        """
        for name in _REQUIRED:
            if columns[name].null_count and name not in ("terms", "weights"):
                raise damaged(self._path, f"column {name!r} has {columns[name].null_count} nulls")
        seq = columns["seq"].to_numpy()
        self._check_seq(seq, first_seq)
        lon, lat = columns["lon"].to_numpy(), columns["lat"].to_numpy()
        if not (np.isfinite(lon).all() and np.isfinite(lat).all()):
            raise damaged(self._path, "has a coordinate that is not finite")
        offsets, terms, weights = self._convert_terms(columns["terms"], columns["weights"])
        counts = self._convert_counts(columns["counts"], offsets) if self._counts else NO_COUNTS
        times = self._convert_times(columns["event_time"]) if self._times else None
        outside = ~self.space.contains(lon, lat)
        ahead = np.zeros(len(seq), np.bool_)
        if AHEAD in columns:  # decided by the live stream
            ahead |= columns[AHEAD].fill_null(False).to_numpy(zero_copy_only=False)
        if times is not None and self.latest_us is not None:
            ahead |= times > self.latest_us
        order_offsets, order = NO_WORDS, NO_ORDER
        if ORDER in columns:
            order_offsets, order = self._convert_order(columns[ORDER])
        if outside.any() or ahead.any():
            keep = ~outside & ~ahead if ahead.any() else ~outside
            if ORDER in columns:
                order_offsets, (order,) = drop_terms(order_offsets, keep, order)
            offsets, (terms, weights, counts) = drop_terms(offsets, keep, terms, weights, counts)
        if outside.any():
            lon = np.clip(lon, self.space.west, self.space.east)
            lat = np.clip(lat, self.space.south, self.space.north)
        if order.shape[0]:
            own = counts if self._counts else np.zeros_like(terms)
            named = with_named_words(order, order_offsets, TermColumns(offsets, terms, own, weights, own, own))
            offsets, terms, weights = named.offsets, named.terms, named.weights
            counts = named.counts if self._counts else counts
        if self._reserved is not None:
            visible = ~(outside | ahead)
            if "op" in columns:
                visible &= columns["op"].fill_null(0).to_numpy(zero_copy_only=False) == 0
            offsets, terms, weights, counts = with_reserved(
                self._reserved, visible, offsets, terms, weights, counts if self._counts else None
            )
        box = self._convert_sides(columns, lon, lat, outside)
        x, y = self.space.project(lon, lat)
        if times is not None and ahead.any():
            # expired from the start: in no window, and does not advance stream time
            times = np.where(ahead, NO_FLOOR, times)
        life = seq if times is None else self.window.lives(seq, times)
        own = times if times is not None and self._own_times else NO_TIMES
        keys = NO_KEYS
        if self._attributes:
            keys = np.concatenate([attribute_keys(columns[name]) for name in self._attributes], axis=1)
        messages = MessageBatch(
            seq, x, y, *box, life, offsets, terms, weights, counts, own, keys, self.space.vectors(lon, lat),
            order_offsets, order,
        )  # fmt: skip
        objects = self._convert_objects(columns) if self._objects else None
        return Rows(
            messages,
            names_of(columns["message_id"]),
            times if self._stream_times else None,
            outside if outside.any() else None,
            objects,
            ahead if ahead.any() else None,
        )

    def _check_seq(self, seq: Int64, first_seq: int) -> None:
        expected = np.arange(first_seq, first_seq + seq.shape[0], dtype=np.int64)
        if not np.array_equal(seq, expected):
            row = int(np.argmax(seq != expected))
            raise InputError(
                "bad_order",
                f"{self._path}: seq {seq[row]} where {expected[row]} comes next, so a file or row before it is missing "
                f"or out of order; {REMEDY}",
            )

    def _convert_objects(self, columns: dict[str, pa.Array]) -> Objects:
        names, op = object_columns(columns)
        if strange := set(op.unique().to_pylist()) - {0, 1}:
            raise damaged(self._path, f"column 'op' has {sorted(strange)[0]}, which is neither publish nor delete")
        return Objects(names.to_pylist(), op.to_numpy() == 1)

    def _convert_times(self, column: pa.Array) -> Int64:
        if column.null_count:
            if not self._untimed:
                raise null_times(self._path, column.null_count, self.window)
            times = column.cast(_TIME).cast(pa.int64())
            return times.fill_null(NO_FLOOR).to_numpy()
        return column.cast(_TIME).view(pa.int64()).to_numpy()

    def _convert_sides(
        self, columns: dict[str, pa.Array], lon: Any, lat: Any, outside: Any
    ) -> tuple[Any, Any, Any, Any]:
        """West, south, east, north; the point itself where sides are null or the message is `outside`."""
        nulls = {columns[side].null_count for side in SIDES if side in columns}
        if not nulls or nulls == {len(lon)}:
            return lon, lat, lon, lat
        missing = columns["west"].is_null().to_numpy(zero_copy_only=False)
        sides = []
        for side, point in zip(SIDES, (lon, lat, lon, lat), strict=True):
            column = columns[side]
            if not np.array_equal(column.is_null().to_numpy(zero_copy_only=False), missing):
                raise damaged(self._path, "has messages with some sides of a rectangle and not all")
            sides.append(np.where(missing | outside, point, column.to_numpy(zero_copy_only=False)))
        west, south, east, north = sides
        if not ((west <= east) & (south <= north)).all() or not np.isfinite(sides).all():
            raise damaged(self._path, "has a rectangle whose sides are swapped or not finite")
        return west, south, east, north

    def _convert_terms(self, terms: pa.ListArray, weights: pa.ListArray) -> tuple[Int64, Any, Any]:
        cuts = terms.offsets.to_numpy()
        flat, flat_weights = terms.values, weights.values
        weight_cuts = weights.offsets.to_numpy()
        if (
            flat.null_count
            or flat_weights.null_count
            or not np.array_equal(cuts - cuts[:1], weight_cuts - weight_cuts[:1])
        ):
            raise damaged(self._path, "has messages whose terms and weights differ in number")
        offsets = (cuts - cuts[:1]).astype(np.int64)
        term_ids = flat.slice(cuts[0], offsets[-1]).to_numpy()
        values = flat_weights.slice(weight_cuts[0], offsets[-1]).to_numpy()
        if term_ids.shape[0]:
            ascends = np.ones(term_ids.shape[0], bool)
            ascends[1:] = term_ids[1:] > term_ids[:-1]
            ascends[offsets[:-1][offsets[:-1] < term_ids.shape[0]]] = True  # the first term of each message
            if not ascends.all() or term_ids.min() < 0 or not np.isfinite(values).all():
                raise damaged(
                    self._path, "has terms that do not ascend within a message, or weights that are not finite"
                )
        return offsets, term_ids, values

    def _convert_order(self, words: pa.ListArray) -> tuple[Int64, Int32]:
        cuts = words.offsets.to_numpy()
        if words.null_count or words.values.null_count:
            raise damaged(self._path, f"column {ORDER!r} has nulls")
        return (cuts - cuts[:1]).astype(np.int64), words.values.slice(cuts[0], cuts[-1] - cuts[0]).to_numpy()

    def _convert_counts(self, counts: pa.ListArray, offsets: Int64) -> Int32:
        cuts, flat = counts.offsets.to_numpy(), counts.values
        if flat.null_count or not np.array_equal(cuts - cuts[:1], offsets):
            raise damaged(self._path, "has messages whose terms and counts differ in number")
        values = flat.slice(cuts[0], offsets[-1]).to_numpy()
        if values.shape[0] and values.min() < 1:
            raise damaged(self._path, "has a term with a count below 1")
        return values


def names_of(column: pa.Array) -> Names:
    """Ids of a string column without nulls; the bytes are a view of Arrow's."""
    if len(column) == 0:
        return Names.of(())
    column = column.cast(pa.large_string())
    _, offset_buffer, data_buffer = column.buffers()
    cuts = np.frombuffer(offset_buffer, np.int64)[column.offset : column.offset + len(column) + 1]
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer is not None else np.zeros(0, np.uint8)
    return Names(cuts - cuts[0], data[cuts[0] : cuts[-1]])


def has_column(path: Path, schema: pa.Schema, name: str) -> bool:
    """Whether a file has this one of `OBJECT_COLUMNS`; raises InputError if its type is wrong."""
    if name not in schema.names:
        return False
    found = schema.field(name).type
    if not (pa.types.is_integer(found) if name == "op" else _same_type(found, pa.string())):
        raise damaged(path, f"column {name!r} is {found}, where {'a whole number' if name == 'op' else 'text'} belongs")
    return True


def _same_type(found: pa.DataType, expected: pa.DataType) -> bool:
    if pa.types.is_list(expected):  # the name of the element differs from writer to writer
        return pa.types.is_list(found) and found.value_type == expected.value_type
    return found == expected or (expected == pa.string() and found == pa.large_string())


def null_times(where: Path, nulls: int, window: Window) -> InputError:
    """The error for messages without event time where the window or a kind's scores need one."""
    instead = "use a window of count:N" if window.kind == "time" else "leave subscriptions of that kind out"
    return InputError(
        "bad_time",
        f"{where}: {nulls:,} messages have no event time, and {_why_times(window)}; "
        f"{instead}, or run the ETL with a column of the time (--column time=NAME) that every row has",
    )


def _why_times(window: Window) -> str:
    if window.kind == "time":
        return "the window goes by time"
    return "there are subscriptions whose scores fade with time, or batches end by it"


def damaged(path: Path, what: str) -> InputError:
    """The error for a file that is not what the ETL writes."""
    return InputError("broken_file", f"{path}: {what}; {REMEDY}")


def first_line(error: Exception) -> str:
    """First line of an error's text; its type's name where it has none."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def attribute_keys(column: pa.Array) -> Int64:
    """Keys of the values of an attribute: numbers, categories (text), times or lists; int64[n, width]. O(n)."""
    if pa.types.is_list(column.type):
        return list_keys(column.to_pylist())
    if pa.types.is_float64(column.type):
        return number_keys(column.to_numpy(zero_copy_only=False))[:, None]
    if pa.types.is_int64(column.type):
        return column.fill_null(MISSING_KEY).to_numpy()[:, None]
    coded = column.dictionary_encode()
    keys = np.array([category_key(text) for text in coded.dictionary.to_pylist()] + [MISSING_KEY], np.int64)
    return keys[coded.indices.fill_null(-1).to_numpy()][:, None]
