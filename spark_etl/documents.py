"""Rows of a file that is one JSON document: an array of objects, or a GeoJSON FeatureCollection.

Read as a stream, since such a file may be larger than memory. Used by `spark_etl.ingest`.
"""

from collections.abc import Iterator
from typing import Any

import ijson

from matching.reasons import MAX_LINE_BYTES
from spark_etl.unpacking import Unpacked

#: What reading a document that is none, or none to its end, raises.
DOCUMENT_ERRORS = (ijson.JSONError,)
_READ_BYTES = 65_536


class _Watched:
    """Bytes of a stream, of which so many may come without a row."""

    def __init__(self, stream: Unpacked):
        self._stream = stream
        self._since = 0
        self.beginning = b""
        while len(self.beginning) < _READ_BYTES and (piece := stream.read(_READ_BYTES)):
            self.beginning += piece
        self.beginning = self.beginning.removeprefix(b"\xef\xbb\xbf")
        self._held = self.beginning

    def rewind_count(self) -> None:
        self._since = 0

    def read(self, size: int = -1, /) -> bytes:
        if size == 0:
            return b""  # asked once, to see whether these are bytes
        piece, self._held = self._held or self._stream.read(_READ_BYTES), b""
        self._since += len(piece)
        if self._since > 2 * MAX_LINE_BYTES:
            raise OSError(f"more than {MAX_LINE_BYTES:,} bytes without a row")
        return piece


def objects_of(stream: Unpacked) -> Iterator[Any]:
    """The members of the array, or the features of each collection, in order; whatever JSON they are.

    Raises
    ------
    one of DOCUMENT_ERRORS, OSError
        After the last whole row, where the document is damaged or goes on for `MAX_LINE_BYTES` without one.
    """
    watched = _Watched(stream)
    start = watched.beginning.lstrip()
    prefix = "item" if start[:1] == b"[" else "features.item" if b'"features"' in start else ""
    for value in ijson.items(watched, prefix, multiple_values=True, use_float=True):
        watched.rewind_count()
        yield value
