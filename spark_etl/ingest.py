"""First step: find the input files, and read them row by row inside Spark's tasks.

Lines are read as bytes rather than by Spark's readers, so that bad UTF-8, NULs or a line of a gigabyte spoil one row
and not the job, and each rejected row has a file and a line. A file is cut into blocks; every task with a split of it
reads all of it but handles only the split's blocks. Gzip cannot be entered in the middle, and decompressing or counting
lines is some fifty times cheaper than cleaning, so one file spreads over all cores without a shuffle. Next:
`spark_etl.clean`.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from matching.attributes import NO_ATTRIBUTES, AttributeSchema
from matching.errors import InputError
from matching.fields import MESSAGE_ROLES, text_columns
from matching.pieces import text_of_columns
from matching.table_values import rows_of_table
from matching.unpacking import UNPACKING_ERRORS
from matching.validate import RawMessage, decode_object
from spark_etl.documents import rows_of_document
from spark_etl.geometry import placed
from spark_etl.options import EtlOptions
from spark_etl.paths import ObjectDecoder, attribute_picker, picker
from spark_etl.separated import BLOCK_BYTES, CsvRow, csv_form, csv_rows, line_blocks, lines_of
from spark_etl.sources import InputFile
from spark_etl.unpacking import open_unpacked

#: Most rows of a block, the unit in which a file is split among tasks; of lines it has `BLOCK_BYTES`.
BLOCK_ROWS = 4096
#: Most splits of a file, since the task of each decompresses all of it.
MAX_SPLITS = 16
#: Least input of a task.
TASK_BYTES = 4 * 2**20

#: Raised by reading a damaged file.
BROKEN = (*UNPACKING_ERRORS, pa.ArrowException)


class Split(NamedTuple):
    """Blocks `part`, `part + parts`, `part + 2 * parts`, ... of a source."""

    source: InputFile
    part: int
    parts: int


class InputRow(NamedTuple):
    """One row of the input: its line (from 1; for tables its row), the values or a reason code, and its text.

    `attributes` are the values of its attributes as they came, in the order of the schema.
    """

    line: int
    values: RawMessage | str
    original: bytes | str
    attributes: tuple[Any, ...] = ()


def plan_tasks(sources: list[InputFile], cores: int) -> list[list[Split]]:
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


def read_blocks(split: Split, options: EtlOptions) -> Iterator[list[InputRow]]:
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
                yield [InputRow(0, "broken_file", f"{split.source.name}: damaged or cut off ({what})")]
            return
        number += 1
        if rows:
            yield rows


_T = TypeVar("_T")
# Each reader gives one function a block; only the task of the block calls it.
_Blocks = Iterator[Callable[[], list[InputRow]]]


def _json_rows(options: EtlOptions) -> Callable[[int, Sequence[bytes | None]], list[InputRow]]:
    """A function from the number of the first row, and the bytes of rows, to rows; None is a row that is too long."""
    decoder = ObjectDecoder(options.columns(), options.geometry)
    schema = options.attributes()
    attributes = attribute_picker(schema)

    def row_of(number: int, line: bytes | None) -> InputRow:
        if line is None:
            return InputRow(number, "line_too_long", b"")
        if not len(schema):
            return InputRow(number, decoder.decode(line), line)
        found = decode_object(line)
        if isinstance(found, str):
            return InputRow(number, found, line)
        return InputRow(number, decoder.pick(found), line, attributes(found))

    return lambda first, lines: [row_of(number, line) for number, line in enumerate(lines, first)]


def _json_blocks(source: InputFile, options: EtlOptions) -> _Blocks:
    rows_of = _json_rows(options)
    with closing(open_unpacked(source.path, source.compression, options.encoding)) as stream:
        for first, block in line_blocks(stream):
            yield lambda first=first, block=block: rows_of(first, lines_of(block))


def _document_blocks(source: InputFile, options: EtlOptions) -> _Blocks:
    rows_of, first = _json_rows(options), 1
    with closing(open_unpacked(source.path, source.compression, options.encoding)) as stream:
        for block in _in_blocks(rows_of_document(stream), lambda row: len(row or b"")):
            yield partial(rows_of, first, block)
            first += len(block)


def _in_blocks(rows: Iterator[_T], size_of: Callable[[_T], int]) -> Iterator[list[_T]]:
    """Blocks of rows that end by their number or their size; an error of reading is raised after the last of them."""
    block: list[_T] = []
    size, broken = 0, None
    try:
        for row in rows:
            block.append(row)
            size += size_of(row)
            if len(block) >= BLOCK_ROWS or size >= BLOCK_BYTES:
                yield block
                block, size = [], 0
    except BROKEN as error:
        broken = error
    yield block
    if broken is not None:
        raise broken


def _csv_blocks(source: InputFile, options: EtlOptions) -> _Blocks:
    form = csv_form(source, options)
    columns = options.columns()
    texts = text_columns(columns["text"], form.names)
    names = [*texts, *(columns[role] for role in RawMessage._fields[1:] if role in columns), options.geometry or ""]
    *places, geometry = (form.names.index(name) if name in form.names else -1 for name in names)
    paths = [one.path for one in options.attributes().attributes]
    attributes = [form.names.index(path) if path in form.names else -1 for path in paths]
    rows_of = partial(_csv_rows, len(texts), places, geometry, attributes, form.delimiter)
    for block in _in_blocks(csv_rows(source, options, form), lambda row: sum(map(len, row.fields))):
        yield partial(rows_of, block)


def _csv_rows(
    texts: int, places: list[int], geometry: int, attributes: list[int], delimiter: str, block: list[CsvRow]
) -> list[InputRow]:
    rows = []
    for line, fields, reason in block:
        original = delimiter.join(fields).encode("utf-8", "surrogateescape")
        if reason:
            rows.append(InputRow(line, reason, original))
            continue
        there = [None if place < 0 else fields[place] for place in places]
        values = RawMessage(text_of_columns(there[:texts]), *there[texts:])
        if geometry >= 0:
            values = placed(values, fields[geometry])
        found = tuple([None if place < 0 else fields[place] for place in attributes])
        rows.append(InputRow(line, values, original, found))
    return rows


def _parquet_blocks(source: InputFile, options: EtlOptions) -> _Blocks:
    columns = options.columns()
    with pq.ParquetFile(source.path) as file:
        there = file.schema_arrow.names
        # The first part of a path names the column.
        schema = options.attributes()
        paths = [*options.names(there), *([options.geometry] if options.geometry else [])]
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
) -> list[InputRow]:
    """The rows of a table, numbered from `first_row`."""
    pick, attributes = picker(columns, geometry), attribute_picker(schema)
    rows = []
    for number, values in enumerate(rows_of_table(_in_microseconds(batch)), first_row):
        if isinstance(values, str):
            rows.append(InputRow(number, values, b""))
        else:
            raw = pick(values)
            found = attributes(values)
            named = {one.name: value for one, value in zip(schema.attributes, found, strict=True)}
            own = {} if isinstance(raw, str) else {role: getattr(raw, role) for role in columns}
            own = {role: value for role, value in own.items() if value is not None or role in MESSAGE_ROLES}
            seen = values if isinstance(raw, str) else own | named
            rows.append(InputRow(number, raw, json.dumps(seen, ensure_ascii=False, default=str), found))
    return rows


def _in_microseconds(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Moments of nanoseconds cut to microseconds, which Python has; pandas' own type costs ten times as much."""
    for number, field in enumerate(batch.schema):
        if pa.types.is_timestamp(field.type) and field.type.unit == "ns":
            cut = batch.column(number).cast(pa.timestamp("us", field.type.tz), safe=False)
            batch = batch.set_column(number, field.name, cut)
    return batch


_READERS = {"jsonl": _json_blocks, "csv": _csv_blocks, "parquet": _parquet_blocks, "json": _document_blocks}


def check_columns(sources: list[InputFile], options: EtlOptions, named: Mapping[str, str] | None = None) -> None:
    """Check the header of every table for the required columns.

    If all sources are tables, the columns `named` by the user (role -> column) and those of attributes must be in one
    of them.

    Raises
    ------
    InputError
        `missing_column`, with the file, the column and the columns it has; `ambiguous_column` if two have the name of
        one that is needed. JSON has no header: rows without a value are rejected one by one.
    """
    columns = options.columns()
    unmet = {one.path: f"--attribute {one}" for one in options.attributes().attributes}
    unmet |= {name: f"--column {role}=NAME" for role, name in (named or {}).items()}
    tables = 0
    for source in sources:
        try:
            names = header_of(source, options)
        except BROKEN as error:
            raise InputError("broken_file", f"{source.path}: cannot be read ({error}); check or replace it") from None
        tables += names is not None
        if not names:  # no table, or one of no lines
            continue
        if repeated := repeated_column(names, options):
            raise InputError("ambiguous_column", f"{source.path}: {repeated}")
        place = {columns["lat"], columns["lon"]}
        rectangle = {columns[side] for side in ("west", "south", "east", "north")}
        own = options.names(names)
        there = set(names) | {name for name in own if name.partition(".")[0] in names}
        texts = text_columns(columns["text"], names)
        absent = set() if there.intersection(texts) else {*texts} - {""}
        if len(texts) > 1 and (option := unmet.pop(columns["text"], None)):
            unmet |= dict.fromkeys(texts, option)
        geometry = options.geometry or ""
        if geometry and geometry not in there and geometry.partition(".")[0] not in there:
            absent.add(geometry)
        if not geometry and not rectangle <= there:
            absent |= place - there
        if absent:
            raise InputError(
                "missing_column",
                f"{source.path}: no column {', '.join(sorted(absent))}; it has {', '.join(names) or 'none'}. "
                + (_separated(names) or "Say which they are: --column text=NAME --column lat=NAME --column lon=NAME"),
            )
        there |= {name for name in unmet if name.partition(".")[0] in names}
        unmet = {name: option for name, option in unmet.items() if name not in there}
    if unmet and tables == len(sources):
        name, option = next(iter(unmet.items()))
        raise InputError(
            "missing_column",
            f"{sources[-1].path}: no column {name} ({option}); it has {', '.join(names or ())}",
        )


def _separated(names: list[str]) -> str:
    """The remedy for a header that another delimiter seems to separate; "" if none does."""
    found = next((mark for mark in ";|\t:," if len(names) == 1 and mark in names[0]), None)
    return f"Say what separates them: --delimiter {found!r}" if found else ""


def header_of(source: InputFile, options: EtlOptions) -> list[str] | None:
    """Column names of a table; None for JSON."""
    if source.file_format == "parquet":
        with pq.ParquetFile(source.path) as file:
            return file.schema_arrow.names
    return csv_form(source, options).names if source.file_format == "csv" else None


def repeated_column(names: Sequence[str], options: EtlOptions) -> str | None:
    """Why the columns of a table cannot be used: that one which is used is there twice. None if they can."""
    paths = [one.path for one in options.attributes().attributes]
    for name in (*options.names(names), options.geometry, *paths):
        if name and names.count(name) > 1:
            return f"{names.count(name)} columns are called {name}, and one is needed: rename the others"
    return None
