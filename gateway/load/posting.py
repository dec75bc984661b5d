"""One streaming POST of lines of JSON: sends each line when it is due, and reads the answers meanwhile.

One thread makes lines ahead, another reads answers, so that no line waits for the answer to an earlier one. `Posted`
has the delays: how late the last line and the latest line were, and how long the server accepted no data.
"""

import http.client
import math
import queue
import resource
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec

#: Seconds between two checks for due lines; timeout of a request in seconds, to the end of its answer.
_TICK_S, _ANSWER_S = 0.001, 60.0
#: Most lines of one piece of a body; pieces that are encoded ahead.
_MOST_AT_ONCE, _AHEAD = 1_000, 3


class ServerAddress(NamedTuple):
    """URL of a server, and the API key if it needs one."""

    url: str
    key: str | None

    def connect(self, timeout_s: float = _ANSWER_S) -> http.client.HTTPConnection:
        """A connection to it, not opened yet."""
        parts = urlsplit(self.url)
        made = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        return made(parts.hostname or "", parts.port, timeout=timeout_s)

    def path(self, path: str) -> str:
        return urlsplit(self.url).path.rstrip("/") + path


class PostingShare(NamedTuple):
    """The share of one process: of the numbers `first` to `end` every `step`-th from the `offset`-th on.

    All processes together send `rate` a second; number `first` is due at `begin_s` (monotonic).
    """

    first: int
    end: int
    offset: int
    step: int
    rate: float
    begin_s: float

    @property
    def numbers(self) -> range:
        return range(self.first + self.offset, self.end, self.step)


class Posted(NamedTuple):
    """Figures of a request: seconds behind the schedule at its end, at most, and blocked by the server; share of a
    processor; time of its end (monotonic); error, empty if it did not fail."""

    behind_at_end_s: float
    furthest_behind_s: float
    blocked_s: float
    processor_share: float
    ended_s: float
    failure: str


class Ahead:
    """Iterator over lines that a thread makes ahead; the constructor waits for the first piece.

    Parameters
    ----------
    pieces : iterable of list of bytes
        Non-empty lists; the thread iterates over them.
    """

    def __init__(self, pieces: Iterable[list[bytes]]):
        self._pieces: queue.Queue[list[bytes]] = queue.Queue(_AHEAD)
        self._over = False
        self._thread = threading.Thread(target=self._make, args=(pieces,), daemon=True)
        self._thread.start()
        self._first = self._pieces.get()

    def __iter__(self) -> Iterator[bytes]:
        lines = self._first
        while lines:
            yield from lines
            lines = self._pieces.get()

    def close(self) -> None:
        """Stop the thread, and wait until it has ended."""
        self._over = True
        while self._thread.is_alive():
            try:
                self._pieces.get(timeout=0.05)
            except queue.Empty:
                continue

    def _make(self, pieces: Iterable[list[bytes]]) -> None:
        try:
            for piece in pieces:
                if self._over:
                    break
                self._pieces.put(piece)
        finally:
            self._pieces.put([])


def post(server: ServerAddress, path: str, lines: Ahead, part: PostingShare, take: Callable[[bytes], None]) -> Posted:
    """Send the lines of a part, one for each of its numbers, as one request; `take` gets each line of the answer.

    `take` is called in a thread that has ended when this returns.
    """
    connection = server.connect()
    spent_s, failure = processor_s(), ""
    sending, answers = Sending(part), _Answers(connection, take)
    try:
        connection.putrequest("POST", server.path(path))
        connection.putheader("Content-Type", "application/x-ndjson")
        connection.putheader("Transfer-Encoding", "chunked")
        if server.key is not None:
            connection.putheader("Authorization", f"Bearer {server.key}")
        connection.endheaders()
        answers.start()
        sending.run(connection, iter(lines))
        connection.send(b"0\r\n\r\n")
    except OSError as error:
        failure = f"the connection broke: {error}"
    ended_s = time.monotonic()
    share = (processor_s() - spent_s) / max(ended_s - part.begin_s, 1e-9)
    if answers.ident is not None:
        answers.join()
    lines.close()
    connection.close()
    return Posted(
        sending.behind_s, sending.furthest_s, sending.blocked_s, share, ended_s, failure or answers.failure
    )  # fmt: skip


class Sending:
    """Sends each line when it is due.

    Attributes
    ----------
    behind_s, furthest_s : float    seconds that the last line was late, and that the latest line was
    blocked_s : float               seconds that the socket accepted no data
    """

    def __init__(self, part: PostingShare):
        self._part = part
        self.behind_s = self.furthest_s = self.blocked_s = 0.0

    def run(self, connection: http.client.HTTPConnection, lines: Iterator[bytes]) -> None:
        part = self._part
        count = len(part.numbers)
        each_s = part.step / part.rate
        first_s = part.begin_s + part.offset / part.rate
        sent = 0
        while sent < count:
            now_s = time.monotonic()
            due = min(count, math.floor((now_s - first_s) / each_s) + 1) if now_s >= first_s else 0
            if due <= sent:
                time.sleep(max(_TICK_S, first_s + sent * each_s - now_s))
                continue
            some = min(due - sent, _MOST_AT_ONCE)
            data = b"".join([next(lines) for _ in range(some)])
            handing_s = time.monotonic()
            connection.send(b"%x\r\n%s\r\n" % (len(data), data))
            handed_s = time.monotonic()
            self.blocked_s += handed_s - handing_s
            self.behind_s = handed_s - (first_s + sent * each_s)
            self.furthest_s = max(self.furthest_s, self.behind_s)
            sent += some


class _Answers(threading.Thread):
    """Reads the lines of an answer while the request is sent; `failure` is empty if all is well."""

    def __init__(self, connection: http.client.HTTPConnection, take: Callable[[bytes], None]):
        super().__init__(daemon=True)
        self._connection = connection
        self._take = take
        self.failure = ""

    def run(self) -> None:
        try:
            response = self._connection.getresponse()
            if response.status != 200:
                self.failure = f"status {response.status}: {response.read(500).decode(errors='replace')}"
                return
            while line := response.readline():
                self._take(line)
        except (OSError, http.client.HTTPException, msgspec.MsgspecError) as error:
            self.failure = f"the answers broke off: {type(error).__name__}: {error}"


def processor_s() -> float:
    """Seconds of processor time of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
