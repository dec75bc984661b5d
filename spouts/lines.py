"""Rows of a subscription file: JSON Lines or CSV (plain, gzip, zstd), or Parquet.

The first bytes decide the format, not the name: a CSV file has a header with `subscription_id` or `unsubscribe`, or
Excel's `sep=;` before it. CR alone ends its lines where it ends the first. Decompression is streamed and lines are
bounded, so a file that unpacks to far more than its size costs time but no memory. Rows are decoded here and checked in
`matching.validate`.
"""

import contextlib
import csv
import itertools
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from matching.errors import InputError
from matching.fields import encodes
from matching.reasons import MAX_LINE_BYTES
from matching.table_values import rows_of_table
from matching.unpacking import UNPACKING_ERRORS, compression_of, unpacked
from matching.validate import OBJECT_COLUMNS, SUBSCRIPTION_COLUMNS, bare, decode_object
from spouts.history import history_of
from topology.core.places import arrow_file, place

_BLOCK_BYTES = 1 << 20
_PARQUET_ROWS = 10_000
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_HEADER = re.compile(rb"(?:^|[,;\t])\s*\"?(?:subscription_id|unsubscribe)\"?\s*(?:[,;\t]|\r?$)")
_SEPARATORS = ",;\t"
#: Excel's way to say what separates the fields.
_SEPARATOR = re.compile(rb"\"?sep=([^\"\r\n])\1*\"?[ \t]*(?:\r\n|\r|\n)", re.IGNORECASE)
_BLANK_LINES = re.compile(rb"(?:[ \t]*+(?:\r\n|\r|\n))*+")
_LINE = re.compile(rb"([^\r\n]*)(\r\n|\r|\n|)")
#: Characters of the longest field of CSV: a polygon of most corners fits. A quote that does not close takes as many.
_FIELD_CHARACTERS, _POLYGON_CHARACTERS = 1 << 17, 1 << 20


class _CsvForm(NamedTuple):
    """The names of columns, what separates fields, whether CR alone ends a line, and how many lines the header has."""

    names: list[str]
    separator: str
    only_returns: bool
    header_lines: int


def read_rows(path: str | os.PathLike[str]) -> Iterator[tuple[int, dict[str, Any] | str]]:
    """Number (from 1) and content of each line that is not blank, or of each row of a table.

    Content is a dict, or the reason code (`matching.reasons`) of a line that is none. Of the folder of a live stream:
    the changes of its log.

    Raises
    ------
    InputError
        If the file is missing, or damaged so that it cannot be read to its end, or has two columns of one name.
    """
    if history := history_of(path):
        yield from enumerate(history.changes(), start=1)
        return
    source: Any = place(path)
    try:
        with source.open("rb") as file:
            start = file.read(4)
            file.seek(0)
            if start == b"PAR1":
                yield from _table_rows(source)
                return
            blocks = unpacked_blocks(file)
            start = b""
            while len(start) < _BLOCK_BYTES and (block := next(blocks, b"")):
                start += block
            blocks = itertools.chain([start], blocks)
            if form := _csv_form(start):
                yield from _csv_rows(path, form, blocks)
                return
            for number, line in enumerate(read_lines(blocks), start=1):
                if line is None:
                    yield number, "line_too_long"
                elif bare(line):
                    yield number, decode_object(line)
    except UNPACKING_ERRORS as error:
        reason = getattr(error, "strerror", None) or str(error)
        code = "missing_file" if isinstance(error, FileNotFoundError) else "broken_file"
        raise InputError(
            code, f"{path}: cannot be read to its end ({reason}); check the path, or make the file again"
        ) from error


def read_lines(blocks: Iterator[bytes]) -> Iterator[bytes | None]:
    """Cut blocks of bytes into lines without their ends; None stands for a line over `MAX_LINE_BYTES`."""
    rest, dropping = b"", False
    for block in blocks:
        lines = (rest + block).split(b"\n")
        rest = lines.pop()
        if lines and dropping:
            yield None
            del lines[0]
            dropping = False
        for line in lines:
            yield line if len(line) <= MAX_LINE_BYTES else None
        if dropping or len(rest) > MAX_LINE_BYTES:
            rest, dropping = b"", True
    if dropping:
        yield None
    elif rest:
        yield rest


def unpacked_blocks(file: BinaryIO) -> Iterator[bytes]:
    """Blocks of a file, unpacked if it is gzip or zstd. Raises one of `UNPACKING_ERRORS`, after what could be read."""
    start = file.read(4)
    file.seek(0)
    plain = unpacked(file, compression_of(start))
    return iter(lambda: plain.read(_BLOCK_BYTES), b"")


def _csv_form(start: bytes) -> _CsvForm | None:
    """The form of a file that begins so; None if it is no CSV."""
    start = start.removeprefix(_BYTE_ORDER_MARK)
    blank = _BLANK_LINES.match(start).end()  # type: ignore[union-attr]
    above = _SEPARATOR.match(start, blank)
    header, end = _LINE.match(start, above.end() if above else blank).groups()  # type: ignore[union-attr]
    if not above and not _HEADER.search(header):
        return None
    text = header.decode("utf-8", "replace")
    separator = above[1].decode("utf-8", "replace") if above else max(_SEPARATORS, key=text.count)
    header_lines = len(re.findall(rb"\r\n|\r|\n", start[:blank])) + (2 if above else 1)
    names: list[str] = []
    others = csv.field_size_limit(_FIELD_CHARACTERS)  # of the whole process
    with contextlib.suppress(csv.Error):
        names = [name.strip() for name in next(csv.reader([text], delimiter=separator[0]), [])]
    csv.field_size_limit(others)
    return _CsvForm(names, separator[0], end == b"\r", header_lines)


def _csv_rows(
    path: str | os.PathLike[str], form: _CsvForm, blocks: Iterator[bytes]
) -> Iterator[tuple[int, dict[str, Any] | str]]:
    """Rows of CSV by the line on which each ends; an empty field is None. Invalid UTF-8 gives `bad_utf8`."""
    names, separator, only_returns, first = form
    _check_names(path, names)
    if only_returns:
        blocks = (block.replace(b"\r", b"\n") for block in blocks)
    lines = itertools.islice(read_lines(blocks), first, None)
    too_long: list[int] = []

    def texts() -> Iterator[str]:
        for number, line in enumerate(lines, start=first + 1):
            if line is None:
                too_long.append(number)
            # invalid UTF-8 becomes lone surrogates, which are found below
            yield "\n" if line is None else line.decode("utf-8", "surrogateescape").rstrip("\r") + "\n"

    reader = csv.reader(texts(), delimiter=separator, strict=True)
    longest = _POLYGON_CHARACTERS if "polygon" in names else _FIELD_CHARACTERS
    while True:
        row: list[str] | str | None = "bad_csv"
        others = csv.field_size_limit(longest)  # of the whole process
        with contextlib.suppress(csv.Error):
            row = next(reader, None)
        csv.field_size_limit(others)
        yield from ((number, "line_too_long") for number in too_long)
        too_long.clear()
        if row is None:
            return
        if isinstance(row, str) or (row and len(row) != len(names)):
            yield reader.line_num + first, "bad_csv"
        elif any(map(str.strip, row)):
            fields = dict(zip(names, row, strict=True))
            good = all(map(encodes, row))
            yield (
                reader.line_num + first,
                {name: _field(name, value) for name, value in fields.items()} if good else "bad_utf8",
            )


def _check_names(path: str | os.PathLike[str], names: Sequence[str]) -> None:
    """Refuse a table that has a column of subscriptions twice."""
    known = {*SUBSCRIPTION_COLUMNS, "unsubscribe"}
    if twice := next((name for name in names if name in known and names.count(name) > 1), None):
        raise InputError(
            "ambiguous_column",
            f"{path}: {names.count(twice)} columns are called {twice}, and one is needed: rename the others",
        )


def _field(name: str, value: str) -> Any:
    """A CSV field: None if blank, a list for a region (with or without brackets), an object, or the text."""
    if not value.strip():
        return None
    if name == "region":
        return re.split(r"[,;\s]+", value.strip(" []"))
    return _object_of(value) if name in OBJECT_COLUMNS else value


def _object_of(text: str) -> Any:
    """An object from its JSON text; the text itself if it is none, which `matching.validate` refuses."""
    decoded = decode_object(text.encode())
    return text if isinstance(decoded, str) else decoded


def _table_rows(path: Path) -> Iterator[tuple[int, dict[str, Any] | str]]:
    number = 0
    try:
        with pq.ParquetFile(arrow_file(path)) as table:
            _check_names(path, table.schema_arrow.names)
            for batch in table.iter_batches(_PARQUET_ROWS, use_threads=False):
                for row in rows_of_table(batch):
                    number += 1
                    yield number, row if isinstance(row, str) else _with_objects(row)
    except pa.ArrowException as error:
        raise InputError(
            "broken_file", f"{path}: cannot be read as Parquet ({str(error).splitlines()[0]}); make the file again"
        ) from error


def _with_objects(row: dict[str, Any]) -> dict[str, Any]:
    """A row of a table with objects for the JSON text of such columns, None for blank ones."""
    texts = {name: row[name] for name in OBJECT_COLUMNS if isinstance(row.get(name), str)}
    return row | {name: _object_of(text) if text.strip() else None for name, text in texts.items()} if texts else row
