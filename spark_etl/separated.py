"""Cuts text into lines, and lines of CSV into fields, whatever ends a line and separates the fields.

Only LF ends a line, or only CR where the first line ends in CR alone (Excel's "CSV (Macintosh)"). A first line `sep=;`
is Excel's way to say what separates the fields. Blank lines above the header are passed over.
"""

import csv
import io
import re
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import NamedTuple

from matching.reasons import MAX_LINE_BYTES
from matching.unpacking import UNPACKING_ERRORS, Unpacked
from spark_etl.options import EtlOptions
from spark_etl.sources import InputFile
from spark_etl.unpacking import open_unpacked

#: Bytes of a block of lines.
BLOCK_BYTES = 2**20
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_END = re.compile(r"\r\n|\r|\n")
_BLANK_LINES = re.compile(r"(?:[ \t]*+(?:\r\n|\r|\n))*+")
_SEPARATOR = re.compile(r'\s*"?sep=([^"\r\n])\1*"?\s*', re.IGNORECASE)


def line_blocks(stream: Unpacked, line_end: bytes = b"\n") -> Iterator[tuple[int, bytes | None]]:
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
            end = chunk.find(line_end)
            if end < 0:
                continue
            yield line, None
            line, chunk, skipping = line + 1, chunk[end + 1 :], False
        end = chunk.rfind(line_end) + 1
        if end:
            block = rest + chunk[:end]
            yield line, block
            line, rest = line + block.count(line_end), chunk[end:]
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
    except UNPACKING_ERRORS as error:
        return b"".join(pieces), error
    return b"".join(pieces), None


def lines_of(block: bytes | None) -> list[bytes | None]:
    """The lines of a block of `line_blocks`."""
    return [None] if block is None else list(block.removesuffix(b"\n").split(b"\n"))


class CsvForm(NamedTuple):
    """The columns' names of a CSV file, what separates fields, what ends a line, and the lines above the names."""

    names: list[str]
    delimiter: str
    line_end: bytes
    above: int


class CsvRow(NamedTuple):
    """The number of a row's first line, its fields, and the reason why it cannot be used; "" if it can."""

    line: int
    fields: list[str]
    reason: str


def csv_form(source: InputFile, options: EtlOptions) -> CsvForm:
    """The form of a CSV file by its beginning. A header that cannot be parsed names no column."""
    with closing(open_unpacked(source.path, source.compression, options.encoding)) as stream:
        start = _read_fully(stream)[0].removeprefix(_BYTE_ORDER_MARK).decode("utf-8", "replace")
    blank = _BLANK_LINES.match(start)[0]  # type: ignore[index]
    start = start.removeprefix(blank)
    delimiter, above = source.delimiter or options.csv_delimiter, len(_END.findall(blank))
    end = _END.search(start)
    if end and (said := _SEPARATOR.fullmatch(start[: end.start()])):
        delimiter, above, start = said[1], above + 1, start[end.end() :]
    names: list[str] = []
    with suppress(csv.Error):
        names = next(csv.reader(io.StringIO(start, newline=""), delimiter=delimiter), [])
    return CsvForm(names, delimiter, b"\r" if end and end[0] == "\r" else b"\n", above)


def csv_rows(source: InputFile, options: EtlOptions, form: CsvForm) -> Iterator[CsvRow]:
    """The rows below the header. Bytes that are not UTF-8 are lone surrogates, which later checks find.

    Raises one of `UNPACKING_ERRORS` after the last row before the damage.
    """
    csv.field_size_limit(MAX_LINE_BYTES)  # of this worker process; the default refuses texts that the checks accept
    too_long: set[int] = set()

    def lines() -> Iterator[str]:
        for first_line, block in line_blocks(stream, form.line_end):
            if block is None:
                too_long.add(first_line)
                yield "\n"
            else:
                text = block.decode("utf-8", "surrogateescape")
                yield from io.StringIO(text.replace("\r", "\n") if form.line_end == b"\r" else text, newline="\n")

    with closing(open_unpacked(source.path, source.compression, options.encoding)) as stream:
        texts = lines()
        for _ in range(form.above):
            next(texts, None)
        reader = csv.reader(texts, delimiter=form.delimiter)
        with suppress(csv.Error):
            next(reader, None)
        while True:
            line = form.above + reader.line_num + 1
            fields: list[str] | None = []
            reason = "bad_csv"
            with suppress(csv.Error):
                fields = next(reader, None)
                if fields is None:
                    return
                reason = "" if fields and len(fields) == len(form.names) else "bad_csv" if fields else "empty_line"
            if line in too_long:
                reason = "line_too_long"
            yield CsvRow(line, fields or [], reason)
