"""Processes that read what is pushed: many sockets in one loop without tasks, so that they cost little.

A collector connects, says "ready" through its pipe, and notes when each event was read until it gets an `End`; then it
sends what it has noted, and its processor time. Of a server that is killed and started again it reads on (`resumes`).
"""

import re
import resource
import selectors
import socket
import time
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np

from benchmarks.push_load import Received

#: Seconds within which all clients are connected, and that a collector reads on once it has all: more may come.
_CONNECT_S, _LONGER_S = 60.0, 0.3
#: Seconds between two tries to connect again.
_AGAIN_S = 0.1


class Reading(NamedTuple):
    """How the clients of a server read.

    host, port
    requests : tuple of bytes    what each client sends
    joined, times                a client follows once it has read these bytes so often
    event : bytes
        Pattern to the event's end with groups for the numbers of subscription and message, and perhaps its `as_of`.
    resumes : bool
        A client whose connection has ended connects again behind the last event that it has read.
    """

    host: str
    port: int
    requests: tuple[bytes, ...]
    joined: bytes
    times: int
    event: bytes
    resumes: bool = False


class End(NamedTuple):
    """End once so many events are read, or at a time (monotonic seconds)."""

    events: int
    until_s: float


class Collected(NamedTuple):
    """What a collector has read, its processor time in seconds, and connections that the server ended."""

    received: Received
    processor_s: float
    ended: int


class _Book:
    """Events as they come."""

    def __init__(self) -> None:
        self.rows: list[tuple[float | int, ...]] = []
        self._end: End | None = None
        self._whole_s = float("inf")

    def is_over(self, pipe: Connection) -> bool:
        if self._end is None and pipe.poll():
            self._end = pipe.recv()
        now_s = time.monotonic()
        if self._end is not None and len(self.rows) >= self._end.events:
            self._whole_s = min(self._whole_s, now_s)
        return now_s > self._whole_s + _LONGER_S or (self._end is not None and now_s > self._end.until_s)

    def collected(self, begun_s: float, ended: int) -> Collected:
        spent_s = time.process_time() - begun_s
        columns: Any = list(zip(*self.rows, strict=True)) or [()] * 4
        at_s, *numbers = columns
        return Collected(Received(np.array(at_s, float), *(np.array(n, np.int64) for n in numbers)), spent_s, ended)


def collect(pipe: Connection, reading: Reading) -> None:
    """Read with one socket for each request."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, len(reading.requests) + 100)), hard))
    selector = selectors.DefaultSelector()
    for number in range(len(reading.requests)):
        _connect(selector, reading, number)
    _await_joined(selector, reading)
    pipe.send("ready")
    begun_s, book, ended = time.process_time(), _Book(), 0
    tails, last_ids = [b""] * len(reading.requests), [b""] * len(reading.requests)
    away: list[int] = []
    whole, again_s = re.compile(reading.event), 0.0
    while not book.is_over(pipe):
        if away and time.monotonic() >= again_s:
            away, again_s = _connected_again(selector, reading, away, last_ids), time.monotonic() + _AGAIN_S
        for key, _ in selector.select(0.02):
            data, client = _read(key.fileobj), key.data
            if not data:
                _end(selector, key.fileobj)
                tails[client] = b""
                ended += not reading.resumes
                away += [client] if reading.resumes else []
                continue
            now_s, data, last = time.monotonic(), tails[client] + data, 0
            for match in whole.finditer(data):
                book.rows.append((now_s, client, *map(int, match.groups())))
                last = match.end()
            # the begin of an event that is not whole yet is behind the last line that is
            done = data.rfind(b"\n\n") + 1
            if reading.resumes and (found := data.rfind(b"id: ", 0, done)) >= 0:
                last_ids[client] = data[found + 4 : data.index(b"\n", found)]
            tails[client] = data[max(last, done) :]
    pipe.send(book.collected(begun_s, ended))
    for key in list(selector.get_map().values()):
        _end(selector, key.fileobj)


def _connect(selector: selectors.BaseSelector, reading: Reading, client: int, last_id: bytes = b"") -> None:
    """A client's socket, with its request sent."""
    one = socket.create_connection((reading.host, reading.port), _CONNECT_S)
    head = b"\r\nLast-Event-ID: %b\r\n\r\n" % last_id if last_id else b"\r\n\r\n"
    one.sendall(reading.requests[client].removesuffix(b"\r\n\r\n") + head)
    one.setblocking(False)
    selector.register(one, selectors.EVENT_READ, client)


def _end(selector: selectors.BaseSelector, one: Any) -> None:
    selector.unregister(one)
    one.close()


def _connected_again(
    selector: selectors.BaseSelector, reading: Reading, away: list[int], last_ids: list[bytes]
) -> list[int]:
    """The clients that are still away, since the server takes no connections yet."""
    for place, client in enumerate(away):
        try:
            _connect(selector, reading, client, last_ids[client])
        except OSError:
            return away[place:]
    return []


def _await_joined(selector: selectors.BaseSelector, reading: Reading) -> None:
    """Read until all clients follow."""
    heard = [b""] * len(reading.requests)
    waiting, deadline_s = set(range(len(heard))), time.monotonic() + _CONNECT_S
    while waiting:
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{len(waiting)} clients do not follow after {_CONNECT_S:.0f} s: {heard[min(waiting)]}")
        for key, _ in selector.select(1.0):
            heard[key.data] += _read(key.fileobj)
            if heard[key.data].count(reading.joined) >= reading.times:
                waiting.discard(key.data)


def _read(one: Any) -> bytes:
    try:
        return one.recv(1 << 18)
    except ConnectionError:
        return b""


def listen(pipe: Connection, channel: str) -> None:
    """Read the notifications of a database's channel in one connection, which `PGHOST` and so on name."""
    import psycopg

    with psycopg.connect(autocommit=True) as sql:
        sql.execute(f"LISTEN {channel}".encode())
        pipe.send(sql.info.backend_pid)
        begun_s, book = time.process_time(), _Book()
        while not book.is_over(pipe):
            for notified in sql.notifies(timeout=0.02, stop_after=1):
                now_s = time.monotonic()
                for pair in notified.payload.split(","):
                    subscription, _, message = pair.partition(" ")
                    book.rows.append((now_s, 0, int(subscription), int(message)))
        pipe.send(book.collected(begun_s, 0))


class SlowClient:
    """Follows everything, a line a second; `end` reads the rest at once.

    Attributes
    ----------
    lines : int    that it has read slowly
    """

    def __init__(self, host: str, port: int):
        self.lines = 0
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8_192)
        self._socket.settimeout(20.0)
        self._socket.connect((host, port))
        self._socket.sendall(b"GET /v1/updates HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n\r\n")
        heard = b""
        while b"event: progress" not in heard:
            heard += self._socket.recv(1_024)
        self._next_s = time.monotonic()

    def look(self) -> None:
        """Read a line, if a second is over."""
        if time.monotonic() < self._next_s:
            return
        self._next_s += 1.0
        self._socket.setblocking(False)
        try:
            while (byte := self._socket.recv(1)) not in (b"\n", b""):
                pass
            self.lines += byte == b"\n"
        except BlockingIOError:
            pass

    def end(self, seconds: float) -> bool:
        """Read what is left for some seconds at most; whether a `gap` was in it."""
        self._socket.settimeout(1.0)
        deadline_s, tail = time.monotonic() + seconds, b""
        try:
            while time.monotonic() < deadline_s and b"event: gap" not in tail:
                data = self._socket.recv(1 << 18)
                if not data:
                    break
                tail = tail[-20:] + data
        except TimeoutError:
            pass
        self._socket.close()
        return b"event: gap" in tail
