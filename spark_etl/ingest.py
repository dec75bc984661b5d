"""First step: find the input files, and read them row by row inside Spark's tasks.

Lines are read as bytes rather than by Spark's readers, so that bad UTF-8, NULs or a line of a gigabyte spoil one row
and not the job, and each rejected row has a file and a line. A file is cut into blocks; every task with a split of it
reads all of it but handles only the split's blocks. Gzip cannot be entered in the middle, and decompressing or counting
lines is some fifty times cheaper than cleaning, so one file spreads over all cores without a shuffle. Used by
`spark_etl.clean`, `spark_etl.job` and `spark_etl.trial`. Next: `spark_etl.clean`.
"""

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from matching.attributes import NO_ATTRIBUTES, AttributeSchema
from matching.errors import InputError
from matching.fields import MESSAGE_ROLES
from matching.reasons import MAX_LINE_BYTES
from matching.table_values import rows_of_table
from matching.unpacking import UNPACKING_ERRORS, Unpacked
from matching.validate import RawMessage, decode_object
from spark_etl.documents import DOCUMENT_ERRORS, objects_of
from spark_etl.geometry import placed
from spark_etl.options import EtlOptions
from spark_etl.paths import ObjectDecoder, attribute_picker, picker
from spark_etl.sources import Source
from spark_etl.unpacking import open_unpacked

#: Bytes (rows for tables) of a block, the unit in which a file is split among tasks.
BLOCK_BYTES = 2**20
BLOCK_ROWS = 4096
#: Most splits of a file, since the task of each decompresses all of it.
MAX_SPLITS = 16
#: Least input of a task.
TASK_BYTES = 4 * 2**20

#: Raised by reading a damaged file.
BROKEN = (*UNPACKING_ERRORS, *DOCUMENT_ERRORS, pa.ArrowException)


class Split(NamedTuple):
    """Blocks `part`, `part + parts`, `part + 2 * parts`, ... of a source."""

    source: Source
    part: int
    parts: int


class Row(NamedTuple):
    """One row of the input: its line (from 1; for tables its row), the values or a reason code, and its text.

    `attributes` are the values of its attributes as they came, in the order of the schema.
    """

    line: int
    values: RawMessage | str
    original: bytes | str
    attributes: tuple[Any, ...] = ()


def plan_tasks(sources: list[Source], cores: int) -> list[list[Split]]:
    """The splits of each task: large files are split, small ones grouped. The output does not depend on it."""
    splits = []
    for source in sources:
        parts = max(1, min(cores, MAX_SPLITS, source.text_bytes // TASK_BYTES))
        splits += [(source.text_bytes / parts, Split(source, part, parts)) for part in range(parts)]
    tasks: list[list[Split]] = []
    capacity = 0.0
    for weight, split in splits:
        if not tasks or capacity < weight:
            tasks.append([])
            capacity = max(TASK_BYTES, sum(other for other, _ in splits) / (4 * cores))
        tasks[-1].append(split)
        capacity -= weight
    return tasks


def read_blocks(split: Split, options: EtlOptions) -> Iterator[list[Row]]:
    """The rows of a split, block by block. Never raises for the content of a file.

    A truncated or damaged file gives its whole rows up to the damage, and then, in its first split only, one row of
    line 0 with the reason `broken_file`.
    """
    blocks = _READERS[split.source.file_format](split.source, options)
    number = 0
    while True:
        try:
            make_rows = next(blocks, None)
            if make_rows is None:
                return
            rows = make_rows() if number % split.parts == split.part else []
        except BROKEN as error:
            if split.part == 0:
                what = " ".join(str(error).split()).replace(split.source.path, split.source.name)
                yield [Row(0, "broken_file", f"{split.source.name}: damaged or cut off ({what})")]
            return
        number += 1
        if rows:
            yield rows


# Each reader gives one function a block; only the task of the block calls it.
_Blocks = Iterator[Callable[[], list[Row]]]


def line_blocks(stream: Unpacked) -> Iterator[tuple[int, bytes | None]]:
    """Cut a stream into blocks of whole lines: (number of the first line, from 1, and the bytes).

    A line over `MAX_LINE_BYTES` is a block of its own, without bytes (None), and never in memory as a whole. The cuts
    depend on the content of the stream alone. An error of reading is raised after the last whole line.
    """
    line, rest, skipping, broken = 1, b"", False, None
    while broken is None:
        chunk, broken = _read_fully(stream)
        if not chunk:
            break
        if skipping:
            end = chunk.find(b"\n")
            if end < 0:
                continue
            yield line, None
            line, chunk, skipping = line + 1, chunk[end + 1 :], False
        end = chunk.rfind(b"\n") + 1
        if end:
            block = rest + chunk[:end]
            yield line, block
            line, rest = line + block.count(b"\n"), chunk[end:]
        else:
            rest += chunk
            if len(rest) > MAX_LINE_BYTES:
                rest, skipping = b"", True
    if broken is not None:
        raise broken
    if skipping:
        yield line, None
    elif rest:
        yield line, rest


def _read_fully(stream: Unpacked) -> tuple[bytes, Exception | None]:
    """`BLOCK_BYTES` of a stream, fewer only at its end or before damage; and the damage."""
    pieces, wanted = [], BLOCK_BYTES
    try:
        while wanted and (piece := stream.read(wanted)):
            pieces.append(piece)
            wanted -= len(piece)
    except BROKEN as error:
        return b"".join(pieces), error
    return b"".join(pieces), None


def _json_blocks(source: Source, options: EtlOptions) -> _Blocks:
    decoder = ObjectDecoder(options.columns(), options.geometry)
    schema = options.attributes()
    attributes = attribute_picker(schema)

    def row_of(number: int, line: bytes) -> Row:
        if not len(schema):
            return Row(number, decoder.decode(line), line)
        found = decode_object(line)
        if isinstance(found, str):
            return Row(number, found, line)
        return Row(number, decoder.pick(found), line, attributes(found))

    def rows_of(first_line: int, block: bytes | None) -> list[Row]:
        if block is None:
            return [Row(first_line, "line_too_long", b"")]
        if first_line == 1:
            block = block.removeprefix(b"\xef\xbb\xbf")
        lines = block.removesuffix(b"\n").split(b"\n")
        return [row_of(number, line) for number, line in enumerate(lines, first_line)]

    with closing(open_unpacked(source.path, source.compression, options.encoding)) as stream:
        for first_line, block in line_blocks(stream):
            yield lambda first_line=first_line, block=block: rows_of(first_line, block)


def _csv_blocks(source: Source, options: EtlOptions) -> _Blocks:
    csv.field_size_limit(MAX_LINE_BYTES)  # of this worker process; the default refuses texts that the checks accept
    too_long: list[int] = []

    def lines() -> Iterator[str]:
        for first_line, block in line_blocks(stream):
            if block is None:
                too_long.append(first_line)
                yield "\n"
            else:
                # Bad bytes become lone surrogates, which the checks find. Only \n ends a line here, as above.
                text = (block.removeprefix(b"\xef\xbb\xbf") if first_line == 1 else block).decode(
                    "utf-8", "surrogateescape"
                )
                yield from io.StringIO(text, newline="\n")

    with closing(open_unpacked(source.path, source.compression, options.encoding)) as stream:
        delimiter = source.delimiter or options.csv_delimiter
        reader = csv.reader(lines(), delimiter=delimiter)
        header = next(reader, [])
        columns = options.columns()
        names = [*(columns[role] for role in MESSAGE_ROLES), options.geometry]
        *places, geometry = (header.index(name) if name in header else -1 for name in names)
        attributes = [header.index(one.path) if one.path in header else -1 for one in options.attributes().attributes]
        rows_of = partial(_csv_rows, places, geometry, attributes, len(header), delimiter)
        block: list[tuple[int, list[str] | None]] = []
        broken = None
        while True:
            line = reader.line_num + 1
            try:
                fields = next(reader, None)
                if fields is None:
                    break
            except csv.Error:
                block.append((line, None))
            except BROKEN as error:
                broken = error
                break
            else:
                if fields or too_long or reader.line_num == line:
                    block.append((line, fields))
            if len(block) >= BLOCK_ROWS:
                yield lambda block=block: rows_of(set(too_long), block)
                block = []
        yield lambda: rows_of(set(too_long), block)
        if broken is not None:
            raise broken


def _csv_rows(
    places: list[int],
    geometry: int,
    attributes: list[int],
    width: int,
    delimiter: str,
    too_long: set[int],
    block: list[tuple[int, list[str] | None]],
) -> list[Row]:
    rows = []
    for line, fields in block:
        original = delimiter.join(fields or ()).encode("utf-8", "surrogateescape")
        if fields and len(fields) == width:
            values = RawMessage._make([None if place < 0 else fields[place] for place in places])
            if geometry >= 0:
                values = placed(values, fields[geometry])
            found = tuple([None if place < 0 else fields[place] for place in attributes])
            rows.append(Row(line, values, original, found))
        else:
            reason = "line_too_long" if line in too_long else "bad_csv" if fields or fields is None else "empty_line"
            rows.append(Row(line, reason, original))
    return rows


def _parquet_blocks(source: Source, options: EtlOptions) -> _Blocks:
    columns = options.columns()
    with pq.ParquetFile(source.path) as file:
        there = file.schema_arrow.names
        # The first part of a path names the column.
        schema = options.attributes()
        paths = [*columns.values(), *([options.geometry] if options.geometry else [])]
        paths += [one.path for one in schema.attributes]
        named = [name if name in there else name.partition(".")[0] for name in paths]
        wanted = [name for name in dict.fromkeys(named) if name in there]
        first_row = 1
        for batch in file.iter_batches(BLOCK_ROWS, columns=wanted, use_threads=False):
            yield lambda batch=batch, first_row=first_row: table_rows(
                batch, first_row, columns, options.geometry, schema
            )
            first_row += batch.num_rows


def table_rows(
    batch: pa.RecordBatch,
    first_row: int,
    columns: dict[str, str],
    geometry: str | None = None,
    schema: AttributeSchema = NO_ATTRIBUTES,
) -> list[Row]:
    """The rows of a table, numbered from `first_row`."""
    pick, attributes = picker(columns, geometry), attribute_picker(schema)
    rows = []
    for number, values in enumerate(rows_of_table(_in_microseconds(batch)), first_row):
        if isinstance(values, str):
            rows.append(Row(number, values, b""))
        else:
            raw = pick(values)
            found = attributes(values)
            named = {one.name: value for one, value in zip(schema.attributes, found, strict=True)}
            seen = values if isinstance(raw, str) else raw._asdict() | named
            rows.append(Row(number, raw, json.dumps(seen, ensure_ascii=False, default=str), found))
    return rows


def _in_microseconds(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Moments of nanoseconds cut to microseconds, which Python has; pandas' own type costs ten times as much."""
    for number, field in enumerate(batch.schema):
        if pa.types.is_timestamp(field.type) and field.type.unit == "ns":
            cut = batch.column(number).cast(pa.timestamp("us", field.type.tz), safe=False)
            batch = batch.set_column(number, field.name, cut)
    return batch


def _document_blocks(source: Source, options: EtlOptions) -> _Blocks:
    pick, attributes = picker(options.columns(), options.geometry), attribute_picker(options.attributes())

    def rows_of(first: int, block: list[Any]) -> list[Row]:
        rows = []
        for number, value in enumerate(block, first):
            is_object = isinstance(value, dict)
            values = pick(value) if is_object else "not_json"
            original = json.dumps(value, ensure_ascii=False)
            rows.append(Row(number, values, original, attributes(value) if is_object else ()))
        return rows

    first, block, broken = 1, [], None
    with closing(open_unpacked(source.path, source.compression, options.encoding)) as stream:
        objects = objects_of(stream)
        while True:
            try:
                block.append(next(objects))
            except StopIteration:
                break
            except BROKEN as error:
                broken = error
                break
            if len(block) == BLOCK_ROWS:
                yield lambda first=first, block=block: rows_of(first, block)
                first, block = first + len(block), []
    yield lambda: rows_of(first, block)
    if broken is not None:
        raise broken


_READERS = {"jsonl": _json_blocks, "csv": _csv_blocks, "parquet": _parquet_blocks, "json": _document_blocks}


def check_columns(sources: list[Source], options: EtlOptions, named: Mapping[str, str] | None = None) -> None:
    """Check the header of every table for the required columns.

    If all sources are tables, the columns `named` by the user (role -> column) and those of attributes must be in one
    of them.

    Raises
    ------
    InputError
        `missing_column`, with the file, the column and the columns it has. JSON has no header: rows without a value are
        rejected one by one.
    """
    columns = options.columns()
    unmet = {f"--{role.replace('_', '-')}": name for role, name in (named or {}).items()}
    unmet |= {f"--attribute {one}": one.path for one in options.attributes().attributes}
    tables = 0
    for source in sources:
        try:
            names = header_of(source, options)
        except BROKEN as error:
            raise InputError("broken_file", f"{source.path}: cannot be read ({error}); check or replace it") from None
        if names is None:
            continue
        place = {columns["lat"], columns["lon"]}
        rectangle = {columns[side] for side in ("west", "south", "east", "north")}
        tables += 1
        there = set(names) | {name for name in columns.values() if name.partition(".")[0] in names}
        absent = {columns["text"]} - there
        geometry = options.geometry or ""
        if geometry and geometry not in there and geometry.partition(".")[0] not in there:
            absent.add(geometry)
        if not geometry and not rectangle <= there:
            absent |= place - there
        if absent:
            raise InputError(
                "missing_column",
                f"{source.path}: no column {', '.join(sorted(absent))}; it has {', '.join(names) or 'none'}. "
                + (_separated(names) or "Say which they are: --text NAME --lat NAME --lon NAME"),
            )
        there |= {name for name in unmet.values() if name.partition(".")[0] in names}
        unmet = {option: name for option, name in unmet.items() if name not in there}
    if unmet and tables == len(sources):
        option, name = next(iter(unmet.items()))
        raise InputError(
            "missing_column",
            f"{sources[-1].path}: no column {name} ({option}); it has {', '.join(names or ())}",
        )


def _separated(names: list[str]) -> str:
    """The remedy for a header that another delimiter seems to separate; "" if none does."""
    found = next((mark for mark in ";|\t:," if len(names) == 1 and mark in names[0]), None)
    return f"Say what separates them: --delimiter {found!r}" if found else ""


def header_of(source: Source, options: EtlOptions) -> list[str] | None:
    """Column names of a table; None for JSON."""
    if source.file_format == "parquet":
        with pq.ParquetFile(source.path) as file:
            return file.schema_arrow.names
    if source.file_format != "csv":
        return None
    with closing(open_unpacked(source.path, source.compression, options.encoding)) as stream:
        start = _read_fully(stream)[0].removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace")
    # any line end; a header that cannot be parsed names no column
    with suppress(csv.Error):
        return next(csv.reader(io.StringIO(start, newline=""), delimiter=source.delimiter or options.csv_delimiter), [])
    return []
