"""Server-Sent Events from bytes, wherever chunks divide them.

Read as the WHATWG specification says: lines end with LF, CR or CR LF, a byte order mark may come first, comments are
left out, `data` of several lines is joined by LF, an event without its empty line is none.
"""

from collections.abc import Iterator
from typing import NamedTuple

_MARK = b"\xef\xbb\xbf"


class ServerEvent(NamedTuple):
    """An event: its name ("message" by default), its own id (None without), its data."""

    name: str
    id: str | None
    data: bytes


class EventParser:
    """Takes chunks of bytes, gives whole events.

    Attributes
    ----------
    retry_ms : int or None
        After how long the server wants to be called again.
    size_bytes : int
        Of the event that has not ended yet.
    """

    def __init__(self) -> None:
        self.retry_ms: int | None = None
        self._rest = b""
        self._after_cr = False
        self._at_start = True
        self._reset()

    def feed(self, chunk: bytes) -> Iterator[ServerEvent]:
        """The events that end within this chunk."""
        for line in self._lines(chunk):
            if line:
                self._take(line)
                continue
            if self._data:
                yield ServerEvent(self._name or "message", self._id, b"\n".join(self._data))
            self._reset()

    @property
    def size_bytes(self) -> int:
        return len(self._rest) + sum(map(len, self._data))

    def _reset(self) -> None:
        self._name = ""
        self._id: str | None = None
        self._data: list[bytes] = []

    def _lines(self, chunk: bytes) -> list[bytes]:
        if not chunk:
            return []
        if self._after_cr:
            chunk = chunk.removeprefix(b"\n")  # the second half of CR LF
        data = self._rest + chunk
        if self._at_start:
            if len(data) < len(_MARK) and _MARK.startswith(data):
                self._rest = data
                return []
            data, self._at_start = data.removeprefix(_MARK), False
        self._after_cr = data.endswith(b"\r")
        lines = data.splitlines()
        self._rest = lines.pop() if lines and not data.endswith((b"\n", b"\r")) else b""
        return lines

    def _take(self, line: bytes) -> None:
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
        elif field == b"event":
            self._name = value.decode(errors="replace")
        elif field == b"id" and b"\0" not in value:
            self._id = value.decode(errors="replace")
        elif field == b"retry" and value.isdigit():
            self.retry_ms = int(value[:9])
