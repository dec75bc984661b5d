"""Many clients of `skyray serve` in one event loop, over plain sockets: followers, a producer, one that subscribes.

All of them go on whatever happens to the server: followers connect again with their last id, the others send again what
was not answered. Each keeps a book of its own, by which a test decides what is missing, extra or repeated.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from tests.support.serving import FIELDS, lines_of, position

#: Seconds in which a request is answered, or sent again; and of which a client rests before it tries again.
PATIENCE_S, REST_S = 300.0, 0.05
_LOST = (OSError, asyncio.IncompleteReadError, TimeoutError, ValueError, IndexError)

Row = dict[str, Any]


class Differences(NamedTuple):
    """Updates of all books: how many were compared, are missing, extra, come again, or are out of order."""

    compared: int = 0
    missing: int = 0
    extra: int = 0
    repeated: int = 0
    disordered: int = 0

    @property
    def wrong(self) -> int:
        return sum(self) - self.compared


class Reply(NamedTuple):
    status: int
    body: bytes


async def request(port: int, method: str, path: str, body: bytes, media: str, half: Callable[[], Any] | None) -> Reply:
    """One request on a connection of its own; with `half` that is awaited when half of the body is sent."""
    reading, writing = await asyncio.open_connection("127.0.0.1", port)
    try:
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
        writing.write(f"{head}Content-Type: {media}\r\nContent-Length: {len(body)}\r\n\r\n".encode())
        middle = len(body) // 2 if half is not None else 0
        writing.write(body[:middle])
        await writing.drain()
        if half is not None:
            await half()
        writing.write(body[middle:])
        await writing.drain()
        answer = await reading.read()
    finally:
        writing.close()
    head, _, rest = answer.partition(b"\r\n\r\n")
    status = int(head.split(b" ", 2)[1])
    return Reply(status, _unchunked(rest) if b"transfer-encoding: chunked" in head.lower() else rest)


def _unchunked(data: bytes) -> bytes:
    """A chunked body; raises ValueError if it was cut off."""
    found = []
    while True:
        size, _, data = data.partition(b"\r\n")
        count = int(size, 16)
        if not count:
            return b"".join(found)
        found.append(data[:count])
        data = data[count + 2 :]


class Follower:
    """Follows all updates, or those of some subscriptions, and connects again with its last id.

    Parameters
    ----------
    port : int
    subscriptions : sequence of str, optional
        Ids; all without.
    hang_up : int
        It leaves of itself after so many updates, wherever that is, and comes again; 0: never.

    Attributes
    ----------
    book : list of (str, bytes)    ids and data of the updates, in the order in which they came
    through : int                  of the last progress
    """

    def __init__(self, port: int, subscriptions: Sequence[str] | None = None, hang_up: int = 0):
        self.subscriptions = None if subscriptions is None else frozenset(subscriptions)
        self.book: list[tuple[str, bytes]] = []
        self.gaps: list[bytes] = []
        self.through = -1
        self.connections = 0
        self._port = port
        self._hang_up = hang_up
        self._last = ""
        self._writing: asyncio.StreamWriter | None = None
        wanted = "".join(f"&subscription={name}" for name in subscriptions or ())
        self._path = f"/v1/updates?since=begin{wanted}"

    async def run(self) -> None:
        """Follow until it is cancelled."""
        while True:
            with suppress(*_LOST):
                await self._follow()
            await asyncio.sleep(REST_S)

    def leave(self) -> None:
        """Hang up now, and come again."""
        if self._writing is not None:
            self._writing.close()

    async def _follow(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            reading, writing = await asyncio.open_connection("127.0.0.1", self._port)
        self._writing = writing
        try:
            last = f"Last-Event-ID: {self._last}\r\n" if self._last else ""
            head = f"GET {self._path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n{last}\r\n"
            writing.write(head.encode())
            async with asyncio.timeout(PATIENCE_S):
                status = await reading.readline()
                while (await reading.readline()).strip():
                    pass
            if b" 200 " in status:
                self.connections += 1
                await self._read(reading)
        finally:
            writing.close()

    async def _read(self, reading: asyncio.StreamReader) -> None:
        rest, before = b"", len(self.book)
        while True:
            async with asyncio.timeout(PATIENCE_S):  # there is a heartbeat
                count = int(await reading.readline(), 16)
                data = await reading.readexactly(count + 2)
            if not count:
                return
            *blocks, rest = (rest + data[:-2]).split(b"\n\n")
            for block in blocks:
                self._take(dict(line.split(b": ", 1) for line in block.split(b"\n") if b": " in line))
                if self._hang_up and len(self.book) == before + self._hang_up:
                    return  # what else came with it is not read

    def _take(self, event: dict[bytes, bytes]) -> None:
        if b"data" not in event:
            return
        name, place = event.get(b"event", b"message"), event.get(b"id", b"").decode()
        if name == b"gap":
            self.gaps.append(event[b"data"])
        elif name == b"progress":
            self.through = max(self.through, json.loads(event[b"data"])["through"])
        else:
            self.book.append((place, event[b"data"]))
        self._last = place or self._last

    def compare(self, told: Counter) -> Differences:
        """The book beside what there was to send (`tests.support.serving.written`)."""
        names = self.subscriptions
        where = FIELDS.index("subscription_id")
        wanted = Counter({row: count for row, count in told.items() if names is None or row[where] in names})
        rows = [json.loads(data) for _, data in self.book]
        mine = Counter(tuple(row[name] for name in FIELDS) for row in rows)
        ids = [position(name) for name, _ in self.book]
        return Differences(
            compared=wanted.total(),
            missing=(wanted - mine).total(),
            extra=sum(count for row, count in mine.items() if row not in wanted),
            repeated=sum(count - wanted[row] for row, count in mine.items() if count > wanted[row] > 0),
            disordered=sum(before >= after for before, after in zip(ids, ids[1:], strict=False)),
        )


def compare_all(followers: Iterable[Follower], told: Counter) -> Differences:
    """All books together."""
    return Differences(*map(sum, zip(*(one.compare(told) for one in followers), strict=True)))


class Producer:
    """Publishes messages at a rate, a request at a time, and sends the same again until it is answered.

    Parameters
    ----------
    port : int
    message_of : callable
        A number -> a message with an id.
    a_second : int
        Messages.
    rows : int
        Messages of a request.

    Attributes
    ----------
    book : dict of str to int    seqs of the messages that were answered, by id
    again : int                  messages that were answered as duplicates
    wrong : list                 answers that should not have been
    """

    def __init__(self, port: int, message_of: Callable[[int], Row], a_second: int, rows: int = 50):
        self.book: dict[str, int] = {}
        self.again = self.halves = 0
        self.wrong: list[Any] = []
        self.over = False
        self._port = port
        self._message_of = message_of
        self._a_second = a_second
        self._rows = rows
        self._number = 0
        self._stop_at_half = False
        self._half = asyncio.Event()
        self._go_on = asyncio.Event()

    async def run(self) -> None:
        """Publish until `over`, and until all that was begun is answered."""
        loop = asyncio.get_running_loop()
        while not self.over:
            began_s = loop.time()
            rows = [self._message_of(self._number + place) for place in range(self._rows)]
            self._number += self._rows
            await self._publish(rows)
            await asyncio.sleep(max(0.0, self._rows / self._a_second - (loop.time() - began_s)))

    async def at_half(self) -> None:
        """Wait until half of a request is sent; the other half waits for `go_on`."""
        self._half.clear()
        self._go_on.clear()
        self._stop_at_half = True
        await self._half.wait()

    def go_on(self) -> None:
        """Send the other half."""
        self._go_on.set()

    async def _wait_at_half(self) -> None:
        self._stop_at_half = False
        self.halves += 1
        self._half.set()
        await self._go_on.wait()

    async def _publish(self, rows: list[Row]) -> None:
        while rows:
            half = self._wait_at_half if self._stop_at_half else None
            with suppress(*_LOST):
                async with asyncio.timeout(PATIENCE_S):
                    reply = await request(
                        self._port, "POST", "/v1/messages", lines_of(rows), "application/x-ndjson", half
                    )
                if reply.status == 200:
                    for line in reply.body.splitlines():
                        self._take(json.loads(line))
                    rows = [row for row in rows if row["id"] not in self.book]
                elif reply.status not in (429, 503):
                    self.wrong.append(reply)
            if rows:
                await asyncio.sleep(REST_S)

    def _take(self, one: Row) -> None:
        """An outcome; of the same message it is the same for ever."""
        if one["status"] not in ("accepted", "duplicate"):
            if one["status"] != "failed":  # the log could not be written: it is sent again
                self.wrong.append(one)
            return
        self.again += one["status"] == "duplicate"
        if self.book.setdefault(one["id"], one["seq"]) != one["seq"]:
            self.wrong.append(one)


class Subscriber:
    """Replaces subscriptions one after the other, and sends the same again until it is answered.

    Attributes
    ----------
    changes : int
        Those that were answered.
    """

    def __init__(self, port: int, rows: Iterable[Row], a_second: float):
        self.changes = 0
        self.wrong: list[Reply] = []
        self._port = port
        self._rows = iter(rows)
        self._pause_s = 1 / a_second

    async def run(self) -> None:
        """Change until it is cancelled, or all rows are sent."""
        for row in self._rows:
            await self.put(row)
            await asyncio.sleep(self._pause_s)

    async def put(self, row: Row) -> None:
        """PUT of one subscription, until it is answered."""
        path = f"/v1/subscriptions/{row['subscription_id']}"
        while True:
            with suppress(*_LOST):
                async with asyncio.timeout(PATIENCE_S):
                    reply = await request(self._port, "PUT", path, json.dumps(row).encode(), "application/json", None)
                if reply.status in (200, 201):
                    self.changes += 1
                    return
                if reply.status not in (429, 503):
                    self.wrong.append(reply)
                    return
            await asyncio.sleep(REST_S)


async def await_(what: Callable[[], bool], seconds: float, say: Callable[[], object] = lambda: "") -> None:
    """Poll until something is so."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + seconds
    while not what():
        assert loop.time() < deadline_s, say()
        await asyncio.sleep(0.01)
