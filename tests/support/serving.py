"""`skyray serve` as a process, and clients of it by the standard library alone."""

import http.client
import json
import re
import socket
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq

from tests.support.processes import Command

NDJSON = {"Content-Type": "application/x-ndjson"}
#: Columns of an update that are compared.
FIELDS = ("as_of", "subscription_id", "message_id", "seq", "change", "score")


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.body.splitlines()]


def call(port: int, method: str, path: str, body: Any = None, timeout: float = 60, **headers: str) -> Answer:
    """One request; a body that is neither bytes nor an iterator is sent as JSON."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    if body is not None and not isinstance(body, bytes) and not hasattr(body, "__next__"):
        body, named = json.dumps(body).encode(), {"Content-Type": "application/json", **named}
    try:
        connection.request(method, path, body, named, encode_chunked=hasattr(body, "__next__"))
        answer = connection.getresponse()
        found = {name.lower(): value for name, value in answer.getheaders()}
        return Answer(answer.status, found, answer.read())
    finally:
        connection.close()


def lines_of(rows: list[Any]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


class Served(Command):
    """A server of a folder; ready once the block begins."""

    def __init__(self, out: Path, *options: object, port: int = 0):
        bolts = [] if "--query-bolts" in options else ["--query-bolts", 1]
        super().__init__(["serve", "--out", out, "--port", port, *bolts, *options])
        self.await_(lambda: "event=ready" in self.read()[1])
        self.port = int(re.findall(r"http://127\.0\.0\.1:(\d+)", self.read()[1])[0])

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        return call(self.port, method, path, body, **headers)

    def end(self, seconds: float = 20) -> str:
        """SIGTERM; what it said."""
        self.process.terminate()
        code, _, said = self.finish(seconds)
        assert code == 0, said
        return said


class Replayed(Command):
    """A server that replays a run; ready once the block begins."""

    def __init__(self, run: Path):
        super().__init__(["show", run, "--page", "--port", 0])
        self.await_(lambda: "show: ready" in self.read()[1])
        self.port = int(re.findall(r"http://127\.0\.0\.1:(\d+)", self.read()[1])[0])

    def call(self, method: str, path: str, body: Any = None) -> Answer:
        return call(self.port, method, path, body)


class Event(NamedTuple):
    id: str | None
    event: str
    data: Any


def events_of(text: str) -> list[Event]:
    """Events of a stream, as the specification of Server-Sent Events reads them; comments and hints left out."""
    found = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if ": " in line)
        if "data" in fields:
            found.append(Event(fields.get("id"), fields.get("event", "message"), json.loads(fields["data"])))
    return found


class Follower:
    """Follows the updates of a server that may be killed: connects again with its last id, until it is ended.

    Attributes
    ----------
    book : list of (str, dict)    ids and data of the updates, in the order in which they came
    through : int                 of the last progress
    gaps : list of dict
    snapshots : dict of str to dict    by subscription_id
    """

    def __init__(self, port: int, query: str = "since=begin"):
        self.book: list[tuple[str, dict]] = []
        self.gaps: list[dict] = []
        self.snapshots: dict[str, dict] = {}
        self.through = -1
        self.connections = 0
        self._port = port
        self._query = query
        self._last = ""
        self._over = threading.Event()
        self._socket: socket.socket | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Follower":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(20)

    def await_through(self, seq: int, seconds: float = 300) -> None:
        """Wait for the progress up to a message."""
        deadline = time.monotonic() + seconds
        while self.through < seq:
            assert time.monotonic() < deadline, (self.through, seq)
            threading.Event().wait(0.01)

    def _run(self) -> None:
        while not self._over.is_set():
            with suppress(OSError, http.client.HTTPException):
                self._follow()
            self._over.wait(0.05)

    def _follow(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=10)
        headers = {"Accept": "text/event-stream", **({"Last-Event-ID": self._last} if self._last else {})}
        connection.request("GET", f"/v1/updates?{self._query}", headers=headers)
        self._socket = connection.sock
        answer = connection.getresponse()
        if answer.status != 200:
            return
        self.connections += 1
        block = ""
        while not self._over.is_set():
            line = answer.readline().decode()
            if not line:
                return
            if line != "\n":
                block += line
                continue
            for event in events_of(block):
                self._take(event)
            block = ""

    def _take(self, event: Event) -> None:
        if event.event == "gap":
            self.gaps.append(event.data)
        elif event.event == "snapshot":
            self.snapshots[event.data["subscription_id"]] = event.data
        elif event.event == "progress":
            self.through = max(self.through, event.data["through"])
        else:
            self.book.append((event.id or "", event.data))
        self._last = event.id or self._last


def position(text: str) -> tuple[int, int]:
    """An id as a place."""
    boundary, index, *_ = text.split("-")
    return int(boundary), int(index)


def written(out: Path) -> Counter:
    """The updates that a folder has, as a multiset of their `FIELDS`."""
    parts = (pq.read_table(path, columns=list(FIELDS)) for path in sorted((out / "updates").glob("part-*")))
    return Counter(row for part in parts for row in zip(*(part[name].to_pylist() for name in FIELDS), strict=True))


def kill(served: Command) -> None:
    """SIGKILL, and wait."""
    served.process.kill()
    served.process.wait(20)
