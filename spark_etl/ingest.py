"""First step: find the input files, and read them row by row inside Spark's tasks.

Lines are read as bytes here rather than by Spark's readers, so that bad UTF-8, NULs or a line of a gigabyte spoil one
row and not the job, and so that each rejected row can be named by file and line. A file is cut into blocks; every task
that shares a file reads all of it but handles only its own blocks. Gzip cannot be entered in the middle, and
decompressing or counting lines is some fifty times cheaper than what follows, so this spreads one file over all cores
without a shuffle. What happens to a row is next, in `spark_etl.clean`.
"""

import csv
import glob
import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import IO, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from matching.errors import ConfigError, InputError
from matching.reasons import MAX_LINE_BYTES
from matching.validate import MESSAGE_ROLES, MessageDecoder, RawMessage
from spark_etl.options import EtlOptions

#: Bytes (or, for tables, rows) that are handled at once; the unit that tasks share a file by.
BLOCK_BYTES = 2**20
BLOCK_ROWS = 4096
#: Most tasks that read the same file, since each of them decompresses it.
MAX_SHARES = 16
#: Input that is worth a task of its own.
TASK_BYTES = 4 * 2**20

_SUFFIXES = {
    ".jsonl": "jsonl",
    ".json": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
}
_COMPRESSION_SUFFIXES = (".gz", ".gzip", ".zst", ".zstd")
_BROKEN = (OSError, EOFError, zlib.error, zstandard.ZstdError, pa.ArrowException)


class Source(NamedTuple):
    """One input file. `name` is its path below the folder all inputs share, for people to find a row by."""

    number: int
    path: str
    name: str
    file_format: str
    compression: str
    size_bytes: int

    @property
    def text_bytes(self) -> int:
        """Size once unpacked, roughly."""
        return self.size_bytes * (4 if self.compression or self.file_format == "parquet" else 1)


class Share(NamedTuple):
    """Blocks `part`, `part + parts`, `part + 2 * parts`, ... of a source."""

    source: Source
    part: int
    parts: int


class Row(NamedTuple):
    """One row of the input: its line (from 1; for tables its row), the values or a reason code, and how it looked."""

    line: int
    values: RawMessage | str
    original: bytes | str


def find_sources(options: EtlOptions) -> list[Source]:
    """The input files in order, each once.

    Raises
    ------
    ConfigError
        If a path or pattern leads to nothing, or a file's format cannot be told.
    InputError
        If a file cannot be opened.
    """
    paths = list(dict.fromkeys(path for given in options.inputs for path in _expand(given)))
    shared = Path(paths[0]).parent
    while not all(path.is_relative_to(shared) for path in paths):
        shared = shared.parent
    sources = []
    for number, path in enumerate(paths):
        try:
            with path.open("rb") as stream:
                start = stream.read(64)
            size_bytes = path.stat().st_size
        except OSError as error:
            raise InputError(
                "broken_file", f"{path}: cannot be opened ({error.strerror}); check its permissions"
            ) from None
        compression = "gzip" if start[:2] == b"\x1f\x8b" else "zstd" if start[:4] == b"\x28\xb5\x2f\xfd" else ""
        file_format = _format_of(path, start, compression) if options.input_format == "auto" else options.input_format
        name = path.relative_to(shared).as_posix()
        sources.append(Source(number, str(path), name, file_format, compression, size_bytes))
    return sources


def _expand(given: str) -> list[Path]:
    """Absolute paths of the files that one input stands for."""
    path = Path(given)
    if path.is_dir():
        found = [
            file
            for file in path.rglob("*")
            if file.is_file()
            and not any(part[0] in "._" for part in file.relative_to(path).parts)
            and _plain_suffix(file) in _SUFFIXES
        ]
        missing = f"{given}: no file in this folder is named {', '.join(_SUFFIXES)} (with or without .gz or .zst)"
    elif path.is_file():
        return [path.resolve()]
    else:
        found = [Path(name) for name in glob.glob(given, recursive=True) if Path(name).is_file()]
        missing = f"{given}: no such file or folder, and no file matches it as a pattern"
    if not found:
        raise ConfigError(missing)
    return sorted(file.resolve() for file in found)


def _plain_suffix(path: Path) -> str:
    name = path.with_suffix("") if path.suffix.lower() in _COMPRESSION_SUFFIXES else path
    return name.suffix.lower()


def _format_of(path: Path, start: bytes, compression: str) -> str:
    if start[:4] == b"PAR1":
        return "parquet"
    file_format = _SUFFIXES.get(_plain_suffix(path))
    if file_format is None:
        if compression or start.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] != b"{":
            raise ConfigError(f"{path}: the name does not tell the format; set it to one of jsonl, csv, parquet")
        return "jsonl"
    return file_format


def plan_tasks(sources: list[Source], cores: int) -> list[list[Share]]:
    """What each task reads: large files are shared, small ones grouped. The output does not depend on it."""
    shares = []
    for source in sources:
        parts = max(1, min(cores, MAX_SHARES, source.text_bytes // TASK_BYTES))
        shares += [(source.text_bytes / parts, Share(source, part, parts)) for part in range(parts)]
    tasks: list[list[Share]] = []
    room = 0.0
    for weight, share in shares:
        if not tasks or room < weight:
            tasks.append([])
            room = max(TASK_BYTES, sum(other for other, _ in shares) / (4 * cores))
        tasks[-1].append(share)
        room -= weight
    return tasks


def read_blocks(share: Share, options: EtlOptions) -> Iterator[list[Row]]:
    """The rows of a share, block by block. Never raises for what is in a file.

    A file that breaks off (a truncated gzip, a damaged Parquet) gives its rows up to there, and then, from its first
    share only, one row with the reason `broken_file`.
    """
    reader = {"jsonl": _json_blocks, "csv": _csv_blocks, "parquet": _parquet_blocks}[share.source.file_format]
    blocks = reader(share.source, options)
    number = 0
    while True:
        try:
            make_rows = next(blocks, None)
            if make_rows is None:
                return
            rows = make_rows() if number % share.parts == share.part else []
        except _BROKEN as error:
            if share.part == 0:
                yield [Row(0, "broken_file", f"{share.source.path}: {error}")]
            return
        number += 1
        if rows:
            yield rows


# Each reader gives one function a block: it is called only by the task that the block belongs to.
_Blocks = Iterator[Callable[[], list[Row]]]


def _open(source: Source) -> IO[bytes]:
    """The file's plain bytes."""
    if source.compression == "gzip":
        return gzip.open(source.path, "rb")  # type: ignore[return-value]
    stream = open(source.path, "rb")  # noqa: SIM115 - closed by the caller
    if source.compression == "zstd":
        return zstandard.ZstdDecompressor().stream_reader(stream, read_across_frames=True, closefd=True)  # type: ignore[return-value]
    return stream


def line_blocks(stream: IO[bytes]) -> Iterator[tuple[int, bytes | None]]:
    """Cut a stream into blocks of whole lines: (number of the first line, from 1, and the bytes).

    A line over `MAX_LINE_BYTES` is a block of its own, without bytes (None); no more of it is ever held. The cuts
    depend on nothing but the content of the stream.
    """
    line, held, skipping = 1, b"", False
    while chunk := _read_fully(stream):
        if skipping:
            end = chunk.find(b"\n")
            if end < 0:
                continue
            yield line, None
            line, chunk, skipping = line + 1, chunk[end + 1 :], False
        end = chunk.rfind(b"\n") + 1
        if end:
            block = held + chunk[:end]
            yield line, block
            line, held = line + block.count(b"\n"), chunk[end:]
        else:
            held += chunk
            if len(held) > MAX_LINE_BYTES:
                held, skipping = b"", True
    if skipping:
        yield line, None
    elif held:
        yield line, held


def _read_fully(stream: IO[bytes]) -> bytes:
    """`BLOCK_BYTES` of a stream; fewer only at its end."""
    pieces, wanted = [], BLOCK_BYTES
    while wanted and (piece := stream.read(wanted)):
        pieces.append(piece)
        wanted -= len(piece)
    return b"".join(pieces)


def _json_blocks(source: Source, options: EtlOptions) -> _Blocks:
    decode = MessageDecoder(options.columns()).decode

    def rows_of(first_line: int, block: bytes | None) -> list[Row]:
        if block is None:
            return [Row(first_line, "line_too_long", b"")]
        if first_line == 1:
            block = block.removeprefix(b"\xef\xbb\xbf")
        lines = block.removesuffix(b"\n").split(b"\n")
        return [Row(number, decode(line), line) for number, line in enumerate(lines, first_line)]

    with closing(_open(source)) as stream:
        for first_line, block in line_blocks(stream):
            yield lambda first_line=first_line, block=block: rows_of(first_line, block)


def _csv_blocks(source: Source, options: EtlOptions) -> _Blocks:
    csv.field_size_limit(MAX_LINE_BYTES)  # of this worker process; the default refuses texts the gate would let in
    too_long: list[int] = []

    def lines() -> Iterator[str]:
        for first_line, block in line_blocks(stream):
            if block is None:
                too_long.append(first_line)
                yield "\n"
            else:
                # Bad bytes become lone surrogates, which the gate finds. Only \n ends a line here, as above.
                text = (block.removeprefix(b"\xef\xbb\xbf") if first_line == 1 else block).decode(
                    "utf-8", "surrogateescape"
                )
                yield from io.StringIO(text, newline="\n")

    with closing(_open(source)) as stream:
        delimiter = "\t" if _plain_suffix(Path(source.path)) == ".tsv" else options.csv_delimiter
        reader = csv.reader(lines(), delimiter=delimiter)
        header = next(reader, [])
        columns = options.columns()
        places = [header.index(columns[role]) if columns[role] in header else -1 for role in MESSAGE_ROLES]
        block: list[tuple[int, list[str] | None]] = []
        while True:
            line = reader.line_num + 1
            try:
                fields = next(reader, None)
                if fields is None:
                    break
            except csv.Error:
                block.append((line, None))
            else:
                if fields or too_long or reader.line_num == line:
                    block.append((line, fields))
            if len(block) >= BLOCK_ROWS:
                yield lambda block=block: _csv_rows(block, places, len(header), delimiter, set(too_long))
                block = []
        yield lambda: _csv_rows(block, places, len(header), delimiter, set(too_long))


def _csv_rows(
    block: list[tuple[int, list[str] | None]], places: list[int], width: int, delimiter: str, too_long: set[int]
) -> list[Row]:
    rows = []
    for line, fields in block:
        original = delimiter.join(fields or ()).encode("utf-8", "surrogateescape")
        if fields and len(fields) == width:
            values = RawMessage._make([None if place < 0 else fields[place] for place in places])
            rows.append(Row(line, values, original))
        else:
            reason = "line_too_long" if line in too_long else "bad_csv" if fields or fields is None else "empty_line"
            rows.append(Row(line, reason, original))
    return rows


def _parquet_blocks(source: Source, options: EtlOptions) -> _Blocks:
    columns = options.columns()
    with pq.ParquetFile(source.path) as file:
        wanted = [name for name in dict.fromkeys(columns.values()) if name in file.schema_arrow.names]
        first_row = 1
        for batch in file.iter_batches(BLOCK_ROWS, columns=wanted, use_threads=False):
            yield lambda batch=batch, first_row=first_row: _table_rows(batch, first_row, columns)
            first_row += batch.num_rows


def _table_rows(batch: pa.RecordBatch, first_row: int, columns: dict[str, str]) -> list[Row]:
    values = {name: _python_values(batch.column(name)) for name in batch.schema.names}
    absent = [None] * batch.num_rows
    by_role = [values.get(columns[role], absent) for role in MESSAGE_ROLES]
    rows = []
    for number, row in enumerate(zip(*by_role, strict=True), first_row):
        raw = RawMessage._make(row)
        if any(isinstance(value, _Undecodable) for value in row):
            rows.append(Row(number, "bad_utf8", b""))
        else:
            rows.append(Row(number, raw, json.dumps(raw._asdict(), ensure_ascii=False, default=str)))
    return rows


class _Undecodable:
    """A string of a Parquet file that is not UTF-8."""


def _python_values(column: pa.Array) -> list[Any]:
    if pa.types.is_timestamp(column.type) and column.type.unit == "ns":
        column = column.cast(pa.timestamp("us", column.type.tz), safe=False)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return column.to_pylist()
    try:
        return column.to_pylist()
    except UnicodeDecodeError:
        return [_decoded(value) for value in column.cast(pa.large_binary()).to_pylist()]


def _decoded(value: bytes | None) -> str | None | _Undecodable:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return _Undecodable()


def check_columns(sources: list[Source], options: EtlOptions) -> None:
    """Look at the header of every table for the columns that messages cannot do without.

    Raises
    ------
    InputError
        `missing_column`, naming the file, the column and what there is instead. JSON Lines have no header: there, rows
        without a value are rejected one by one.
    """
    columns = options.columns()
    for source in sources:
        try:
            names = _header(source, options)
        except _BROKEN as error:
            raise InputError("broken_file", f"{source.path}: cannot be read ({error}); check or replace it") from None
        if names is None:
            continue
        place = {columns["lat"], columns["lon"]}
        rectangle = {columns[side] for side in ("west", "south", "east", "north")}
        absent = {columns["text"]} - set(names)
        if not rectangle <= set(names):
            absent |= place - set(names)
        if absent:
            raise InputError(
                "missing_column",
                f"{source.path}: no column {', '.join(sorted(absent))}; it has {', '.join(names) or 'none'}. "
                "Name the columns of text, latitude and longitude in the options",
            )


def _header(source: Source, options: EtlOptions) -> list[str] | None:
    """Column names of a table; None for JSON Lines."""
    if source.file_format == "parquet":
        with pq.ParquetFile(source.path) as file:
            return file.schema_arrow.names
    if source.file_format != "csv":
        return None
    with closing(_open(source)) as stream:
        start = _read_fully(stream).removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace")
    delimiter = "\t" if _plain_suffix(Path(source.path)) == ".tsv" else options.csv_delimiter
    return next(csv.reader(io.StringIO(start), delimiter=delimiter), [])
