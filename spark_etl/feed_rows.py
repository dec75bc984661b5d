"""Rows of a stream of Spark as lines of messages, cleaned as `skyray etl` cleans them. Needs no Spark.

A row is a message in columns, a value with a line of JSON (`values`), or the name of a file (`files`), which is read
here as the ETL reads it, so that a bad row has the same reason code in both.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pyarrow as pa

from matching.attributes import TIME, AttributeSchema
from matching.errors import ConfigError, EngineError, InputError
from matching.expiry import expiry_us
from matching.fields import text_columns
from matching.reasons import MAX_LINE_BYTES
from matching.table_values import rows_of_table
from matching.validate import DELETE, RawMessage, decode_object
from spark_etl.finding import FirstColumns, columns_of_roles, columns_of_row, find_columns
from spark_etl.geoparquet import with_geometry
from spark_etl.ingest import InputRow, Split, check_columns, read_blocks, repeated_column, table_rows
from spark_etl.options import EtlOptions
from spark_etl.paths import attribute_picker, picker
from spark_etl.rows import CleanRow, RowCleaner, fault_of, is_deletion, readable
from spark_etl.sources import find_sources
from spark_etl.times import moment_of, time_reader

#: What a row of the stream is.
COLUMNS, VALUES, FILES = "columns", "values", "files"
#: The column of a line of JSON.
VALUE = "value"
#: Shapes of lines that are remembered, and columns of each, at most.
_SHAPES, _SHAPE_COLUMNS = 1_000, 200
_SIDES = ("west", "south", "east", "north")


class Rejected(NamedTuple):
    """A rejected row: its reason code, its text, and where it stands and what is at fault, as far as that is known."""

    reason: str
    row: str
    place: Mapping[str, Any]

    def line(self) -> bytes:
        """The row as a line of `rejected/`."""
        return json.dumps({"reason": self.reason, **self.place, "row": self.row}, ensure_ascii=False).encode()


#: A line of a message, or a rejected row.
Found = bytes | Rejected


class FeedCleaner:
    """Makes lines of messages of rows; one cleaner for many rows. Takes about 30 us a row.

    Parameters
    ----------
    options : EtlOptions
        Columns that they leave open are found by their names: in each file, and in each value.

    Raises
    ------
    ConfigError
        For an option that cannot be used.
    """

    def __init__(self, options: EtlOptions):
        self._options = replace(options, objects=True)  # with the columns that say when a version ends its object
        self._cleaner = RowCleaner(options)
        self._read_time = time_reader(options.time_format)
        self._schema = options.attributes()
        self._attributes = attribute_picker(self._schema)
        self._picks = _Picks(self._options)

    def file(self, path: str) -> Iterator[Found]:
        """The rows of a file in order.

        A file whose columns cannot be found, or whose form is not known, is one rejected row of line 0.

        Raises
        ------
        OSError
            If it is not there, or cannot be opened.
        """
        with open(path, "rb"):
            pass
        try:
            sources = find_sources(replace(self._options, inputs=(path,)))
            given = with_geometry(sources, self._options)
            options, _ = find_columns(sources, given)
            check_columns(sources, options, given.named())
        except InputError as error:
            yield Rejected(error.reason_code, str(error), {"file": path, "line": 0})
            return
        except ConfigError as error:
            yield Rejected("broken_file", str(error), {"file": path, "line": 0})
            return
        for block in read_blocks(Split(sources[0], 0, 1), options):
            for row in block:
                yield self._found(row, options, {"file": path, "line": row.line})

    def values(self, batch: pa.RecordBatch) -> Iterator[Found]:
        """The lines of JSON in the column `value`; what else identifies a row says where a rejected one stood."""
        names = [field.name for field in batch.schema if field.name != VALUE and _identifies(field.type)]
        places = rows_of_table(batch.select(names))
        for value, named in zip(batch.column(VALUE), places, strict=True):
            place = {} if isinstance(named, str) else named
            line = value.as_buffer().to_pybytes() if value.is_valid else b""
            found = self._of_line(line)
            if isinstance(found, Rejected):
                yield found._replace(place={**place, **found.place})
            else:
                yield self._found(found, self._options, place)

    def columns(self, batch: pa.RecordBatch) -> Iterator[Found]:
        """The rows of a table."""
        for row in table_rows(batch, 0, self._options.columns(), self._options.geometry, self._schema):
            yield self._found(row, self._options, {})

    def _of_line(self, line: bytes) -> InputRow | Rejected:
        if len(line) > MAX_LINE_BYTES:
            return InputRow(0, "line_too_long", b"")
        row = decode_object(line)
        if isinstance(row, str):
            return InputRow(0, row, line)
        pick = self._picks.of(row)
        if isinstance(pick, InputError):
            return Rejected(pick.reason_code, readable(line), {"what": str(pick)})
        return InputRow(0, pick(row), line, self._attributes(row))

    def _found(self, row: InputRow, options: EtlOptions, place: Mapping[str, Any]) -> Found:
        cleaned = self._cleaner.clean(row.values, row.attributes)
        if isinstance(cleaned, CleanRow):
            return message_line(cleaned, self._schema, self._as_it_came(row.values))
        return Rejected(cleaned, readable(row.original), {**place, **fault_of(row, cleaned, options).named})

    def _as_it_came(self, values: RawMessage | str) -> dict[str, Any]:
        """Its language, and what ends the object, or when; the stream that reads the line knows what these mean."""
        assert not isinstance(values, str), "it was cleaned"
        at_us = expiry_us(None, values.expires_at, None, self._read_time)
        expires_at = moment_of(at_us).isoformat() if isinstance(at_us, int) else _as_json(values.expires_at)
        deleted = True if is_deletion(values) else None
        ends = {"deleted": deleted, "ttl_s": _as_json(values.ttl_s), "expires_at": expires_at}
        return {"lang": _as_json(values.lang), **ends}


class _Picks:
    """Where the values of a message are in an object, by its shape; columns without a name are found."""

    def __init__(self, options: EtlOptions):
        self._options = options
        self._sought = options.sought()
        self._plain = picker(options.columns(), options.geometry)
        self._usual = {column for column in options.names() if column}
        self._known: dict[Any, Callable[[Mapping[str, Any]], RawMessage | str] | InputError] = {}

    def of(self, row: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], RawMessage | str] | InputError:
        if not self._sought or row.keys() <= self._usual:
            return self._plain
        there = columns_of_row(row)
        shape = tuple(there.seen), tuple(there.points)
        found = self._known.get(shape)
        if found is None:
            found = self._find(there)
            if len(self._known) >= _SHAPES:
                self._known.clear()
            if len(there.seen) <= _SHAPE_COLUMNS:
                self._known[shape] = found
        return found

    def _find(self, there: FirstColumns) -> Callable[[Mapping[str, Any]], RawMessage | str] | InputError:
        needed = [role for role in self._sought if role in ("text", "lat", "lon")]
        try:
            found = columns_of_roles(there, needed, "this message")
        except InputError as error:
            return error
        for role in set(self._sought) - set(needed):
            try:
                found |= columns_of_roles(there, [role], "this message")
            except InputError:
                found[role] = ""  # may be absent: the message is not lost for it
        options = self._options.with_columns(found)
        return picker(options.columns(), options.geometry)


def with_found_columns(names: Sequence[str], options: EtlOptions) -> EtlOptions:
    """The options with the columns of a table that are found by their names.

    Raises
    ------
    ConfigError
        If the text or the place is not there, or several columns may be it.
    """
    try:
        found = columns_of_roles(FirstColumns(list(names), {}, [], 0), options.sought(), "the stream")
    except InputError as error:
        raise ConfigError(str(error)) from None
    options = options.with_columns(found)
    if repeated := repeated_column(names, options):
        raise ConfigError(f"the stream: {repeated}")
    columns = options.columns()

    def is_there(role: str) -> bool:
        own = text_columns(columns[role], names) if role == "text" else [columns[role]]
        return own == [""] or any(name in names or name.partition(".")[0] in names for name in own)

    placed = options.geometry or all(map(is_there, _SIDES))
    absent = [role for role in ("text", *(() if placed else ("lat", "lon"))) if not is_there(role)]
    if absent:
        raise ConfigError(
            f"the stream has no column for {' and '.join(absent)}; it has {', '.join(names)}. Rename its columns, or "
            f"say which they are: {' '.join(f'--column {role}=NAME' for role in absent)}"
        )
    return options


def message_line(row: CleanRow, schema: AttributeSchema, more: Mapping[str, Any]) -> bytes:
    """A message with the columns of any message line and `more`, and its attributes by their names.

    A value that does not fit its attribute is as it came: the stream that reads the line reports it.
    """
    message, time_us = row.message, row.message.event_time_us
    is_version = message.object_id != message.message_id  # of one object two may have the same content, and each counts
    values = {
        "id": None if is_version and message.content.hex() == message.message_id else message.message_id,
        "text": message.text,
        "lon": message.lon,
        "lat": message.lat,
        **{side: getattr(message, side) for side in _SIDES},
        "time": None if time_us is None else moment_of(time_us).isoformat(),
        "object_id": message.object_id if is_version else None,
        "op": "delete" if message.op == DELETE else None,
        **more,
    }
    for one, value in zip(schema.attributes, row.attributes, strict=True):
        if value is not None:
            values[one.name] = moment_of(value).isoformat() if one.type == TIME and isinstance(value, int) else value
    for misfit in row.misfits:
        values[schema.attributes[misfit.number].name] = _as_json(misfit.fault.value)
    there = {name: value for name, value in values.items() if value is not None and value == value}  # NaN: no place
    return json.dumps(there).encode()


def _as_json(value: Any) -> Any:
    """A value as it came, as text if JSON has none like it."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return str(value)
    return value


def rows_of(names: Mapping[str, Any]) -> str:
    """Form of the rows of a stream, by the names of its columns and their Arrow or Spark types: `VALUES`, `COLUMNS`."""
    return VALUES if str(names.get(VALUE, "")).lower().startswith(("binary", "string")) else COLUMNS


def _identifies(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_string(kind)


def file_path(uri: str) -> str:
    """The path of a file that Spark names by its URI.

    Raises
    ------
    EngineError
        If it is no file that is reached by its path.
    """
    plain = plain_path(uri)
    if not plain.startswith("/"):
        raise EngineError(f"{uri}: is no file that every worker reaches by its path")
    return plain


def plain_path(path: str) -> str:
    """A path, or that of a `file:` URI; any other URI as it is."""
    return path.removeprefix("file://").removeprefix("file:")
