"""Cuts JSON that is not one row a line: an array of rows, GeoJSON FeatureCollections, or values one after the other.

Only strings and brackets are looked at; each row is decoded by itself as a line would be, so what is bad in it spoils
that row alone. The input is read as a stream, since it may be larger than memory.
"""

import io
import re
from codecs import BOM_UTF8
from collections.abc import Iterator

from matching.reasons import MAX_LINE_BYTES
from matching.unpacking import Unpacked
from matching.validate import decode_object

_READ_BYTES = 2**18
_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
#: Whole strings, and what is neither string nor bracket. Possessive, so that no input makes them go back.
_INSIDE = re.compile(rb'[^"{}\[\]]*+(?:%b[^"{}\[\]]*+)*+' % _STRING, re.DOTALL)
#: As before, up to a comma, too.
_BETWEEN = re.compile(rb'[^"{}\[\],]*+(?:%b[^"{}\[\],]*+)*+' % _STRING, re.DOTALL)
_REST_OF_STRING = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
#: What separates values: blanks, the record separator of RFC 8142, byte order marks of files that were joined.
_BLANKS = re.compile(rb"(?:[\s,\x1e]|\xef\xbb\xbf)*+")
#: Anything else than arrays and objects, on one line.
_SCALARS = re.compile(rb"[^{\[\n]*+")
_LINE = re.compile(rb"[^\n]*+")
_FEATURES = re.compile(rb'(?<!\\)"features"\s*:\s*\Z')
#: In a member that cannot be decoded.
_FEATURE = re.compile(rb'"geometry"\s*:|"type"\s*:\s*"Feature"')
#: More than is between the name of a member and its value.
_NAME_BYTES = 256


def rows_of_document(stream: Unpacked) -> Iterator[bytes | None]:
    """The bytes of each row, in order; None for a row of more than `MAX_LINE_BYTES`, which is never held as a whole.

    A row is a member of an array, a feature of a collection, or any other value.

    Raises
    ------
    one of matching.unpacking.UNPACKING_ERRORS
        After the last whole row: EOFError if brackets or quotes are open at the end.
    """
    cutter = _Cutter(stream)
    while first := cutter.next_value():
        if first == b"[":
            yield from cutter.members()
        elif first != b"{":
            yield cutter.take(_SCALARS)
        elif cutter.opens_collection():
            yield from cutter.members()
            cutter.skip_object()
        elif not _is_empty_collection(row := cutter.row()):
            yield row


def is_document(beginning: bytes) -> bool:
    """Whether JSON begins with an array of objects or a FeatureCollection, whose members come in any order."""
    cutter = _Cutter(io.BytesIO(beginning))
    first = cutter.next_value()
    if first == b"[":
        # An array in one line may also be a row that is no object.
        line = cutter.take(_LINE) or b""
        return line[1:].strip()[:1] in (b"", b"{") or line.strip() == b"[]"
    try:
        return first == b"{" and (cutter.opens_collection() or _is_empty_collection(cutter.row()))
    except EOFError:
        return False


def _is_empty_collection(row: bytes | None) -> bool:
    """Whether an object is a FeatureCollection without features that says so behind them."""
    found = decode_object(row) if row and b'"FeatureCollection"' in row else ""
    return isinstance(found, dict) and found.get("type") == "FeatureCollection" and found.get("features") == []


class _Cutter:
    """A position in a stream of JSON, and the bytes since the row began, unless these are too many."""

    def __init__(self, stream: Unpacked):
        self._stream = stream
        self._data = b""
        self._begin = self._at = 0
        self._in_string = self._too_long = False
        self._rows = 0

    def next_value(self) -> bytes:
        """Go to the next value, where a row begins; its first byte, none at the end."""
        self._pass(_BLANKS)
        while len(self._data) - self._at < len(BOM_UTF8) and self._more():  # a part of a mark ends the piece
            self._pass(_BLANKS)
        self._start()
        return self._data[self._at : self._at + 1]

    def take(self, pattern: re.Pattern[bytes]) -> bytes | None:
        """A row of what matches here."""
        self._pass(pattern)
        return self.row()

    def opens_collection(self) -> bool:
        """Go into the features of a FeatureCollection; to the end of an object that is none."""
        self._next(_INSIDE)
        depth = 1
        while depth:
            mark = self._next(_INSIDE)
            if mark == b"[" and depth == 1 and self._is_collection():
                return True
            depth += 1 if mark in b"{[" else -1
        return False

    def _is_collection(self) -> bool:
        """Whether the features of the object that began the row are in the array that begins here."""
        if self._too_long or not _FEATURES.search(self._data[max(self._begin, self._at - _NAME_BYTES) : self._at - 1]):
            return False
        before = decode_object(self._data[self._begin : self._at] + b"]}")
        if isinstance(before, dict) and "type" in before:
            return before["type"] == "FeatureCollection"
        inside = self._at - self._begin
        try:
            self._to_end_of_member()
        except EOFError:
            self._too_long = True
        member = b"" if self._too_long else self._data[self._begin + inside : self._at - 1]
        self._at, self._in_string = self._begin + inside, False
        first = decode_object(member)
        if isinstance(first, dict):
            return first.get("type") == "Feature" or "geometry" in first
        return _FEATURE.search(member) is not None

    def members(self) -> Iterator[bytes | None]:
        """The members of the array that begins here; goes behind its end."""
        if self._at == self._begin:
            self._at += 1
        end = b","
        while end == b",":
            self._start()
            end = self._to_end_of_member()
            row = self.row(without=1)
            if row is None or row.strip():  # a comma may come after the last
                yield row

    def _to_end_of_member(self) -> bytes:
        """Go behind the comma or bracket that ends a member of an array, and return it."""
        depth = 0
        while True:
            mark = self._next(_INSIDE if depth else _BETWEEN)
            if mark in b"{[":
                depth += 1
            elif depth:
                depth -= 1
            elif mark in b",]":
                return mark

    def skip_object(self) -> None:
        """Go behind the end of the object around here."""
        depth = 1
        while depth:
            self._start()
            depth += 1 if self._next(_INSIDE) in b"{[" else -1

    def row(self, without: int = 0) -> bytes | None:
        """The bytes since the row began, without the last few; None if they are too many."""
        self._rows += 1
        return None if self._too_long else self._data[self._begin : self._at - without].strip()

    def _start(self) -> None:
        self._begin, self._too_long = self._at, False

    def _next(self, pattern: re.Pattern[bytes]) -> bytes:
        """Go behind the next byte that `pattern` stops at and that is in no string, and return it.

        Raises EOFError if there is none.
        """
        while True:
            self._pass(_REST_OF_STRING if self._in_string else pattern)
            mark = self._data[self._at : self._at + 1]
            if mark not in (b'"', b"\\", b""):
                self._at += 1
                return mark
            if mark == b'"':
                self._at += 1
                self._in_string = not self._in_string
            elif not mark or not self._more():  # the byte after a backslash is in the next piece
                raise EOFError(f"the document ends within its row {self._rows + 1:,}")

    def _pass(self, pattern: re.Pattern[bytes]) -> None:
        """Go over what matches."""
        while True:
            found = pattern.match(self._data, self._at)
            self._at = found.end() if found else self._at
            if self._at < len(self._data) or not self._more():
                return

    def _more(self) -> bool:
        """Read on, and forget the bytes before the row; whether there was anything."""
        if self._at - self._begin > MAX_LINE_BYTES:
            self._too_long = True
        if self._too_long:
            self._begin = self._at
        piece = self._stream.read(_READ_BYTES)
        self._data = self._data[self._begin :] + piece
        self._at -= self._begin
        self._begin = 0
        return bool(piece)
