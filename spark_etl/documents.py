"""Rows of a file that is one JSON document: an array of objects, or a GeoJSON FeatureCollection.

It is read as a stream, since it may be larger than memory. Used by `spark_etl.ingest`.
"""

from collections.abc import Iterator
from typing import Any

import ijson

from matching.reasons import MAX_LINE_BYTES
from matching.unpacking import Unpacked

#: Raised for a file that is no document, or a truncated one.
DOCUMENT_ERRORS = (ijson.JSONError,)
_READ_BYTES = 65_536


class _Watched:
    """A stream that raises after `2 * MAX_LINE_BYTES` bytes without a row."""

    def __init__(self, stream: Unpacked):
        self._stream = stream
        self._since = 0
        self.beginning = b""
        while len(self.beginning) < _READ_BYTES and (piece := stream.read(_READ_BYTES)):
            self.beginning += piece
        self.beginning = self.beginning.removeprefix(b"\xef\xbb\xbf")
        self._next = self.beginning

    def rewind_count(self) -> None:
        self._since = 0

    def read(self, size: int = -1, /) -> bytes:
        if size == 0:
            return b""  # ijson probes the type
        piece, self._next = self._next or self._stream.read(_READ_BYTES), b""
        self._since += len(piece)
        if self._since > 2 * MAX_LINE_BYTES:
            raise OSError(f"more than {MAX_LINE_BYTES:,} bytes without a row")
        return piece


def objects_of(stream: Unpacked) -> Iterator[Any]:
    """The members of the array, or the features of each collection, in order; any JSON values.

    Raises
    ------
    one of DOCUMENT_ERRORS, OSError
        After the last whole row, if the document is damaged or has no row within the limit of bytes.
    """
    watched = _Watched(stream)
    start = watched.beginning.lstrip()
    prefix = "item" if start[:1] == b"[" else "features.item" if b'"features"' in start else ""
    for value in ijson.items(watched, prefix, multiple_values=True, use_float=True):
        watched.rewind_count()
        yield value
