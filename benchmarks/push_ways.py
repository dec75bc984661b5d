"""Servers that push, for `benchmarks.push`: Skyray, PostGIS with NOTIFY, and Redis, which matches nothing.

Each takes the same messages at the same times. PostGIS has its best shape: one index over word and box, a prepared
statement for all that are due, unlogged tables, notifications of many updates each; and one connection that listens, so
that sending to clients costs it nothing. Redis has a channel for each subscription; the publisher knows the updates
from the oracle, so that what is measured is what push alone costs.
"""

import http.client
import json
import shutil
import socket
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from contextlib import closing, suppress
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Self

import numpy as np
import psutil

from benchmarks.peers import PostGIS
from benchmarks.push_clients import Collected, End, Reading, SlowClient, collect, listen
from benchmarks.push_load import Messages, Subscriptions
from matching.errors import ConfigError, TopologyError
from tests.support.serving import Served

#: Seconds that a server may take to start, and a collector to be ready or to answer.
_START_S, _ANSWER_S = 120.0, 90.0
#: Seconds between two looks at what is due, and from being ready to the first message.
_TICK_S, _FIRST_S = 0.002, 0.3
#: Messages that are sent at once at most.
_MOST_AT_ONCE = 1_000
#: Bytes of an update in Skyray's events, about; Redis sends as many.
_UPDATE_BYTES = 200


class Paced:
    """Messages that are due one after another, whether the server keeps up or not.

    Attributes
    ----------
    begun_s : float    when the first was due, monotonic
    behind_s : float   how late a message was handed over at most
    """

    def __init__(self, rate: float, count: int):
        self.rate = rate
        self.count = count
        self.begun_s = time.monotonic() + _FIRST_S
        self.behind_s = 0.0

    def run(self, send: Any, look: Any) -> None:
        """Call `send` with the rows that are due, first and behind the last, and `look` in between."""
        sent = 0
        while sent < self.count:
            now_s = time.monotonic()
            due = min(self.count, int((now_s - self.begun_s) * self.rate) + 1 if now_s >= self.begun_s else 0)
            if due > sent:
                self.behind_s = max(self.behind_s, now_s - self.begun_s - sent / self.rate)
                due = min(due, sent + _MOST_AT_ONCE)
                send(sent, due)
                sent = due
            else:
                look()
                time.sleep(max(_TICK_S, self.begun_s + sent / self.rate - now_s))


class Collector:
    """A process that reads while the block lasts; `hello` is what it says first."""

    def __init__(self, target: Any, *arguments: Any):
        context = get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=target, args=(other, *arguments), daemon=True)
        self._process.start()
        other.close()
        self.hello = self._receive()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.close()
        self._process.join(5)
        self._process.kill()

    def end(self, events: int, seconds: float) -> Collected:
        """What was read, once there are so many events, or after some seconds."""
        self._pipe.send(End(events, time.monotonic() + seconds))
        return self._receive()

    def _receive(self) -> Any:
        if not self._pipe.poll(_ANSWER_S):
            raise TopologyError(f"a process that reads has said nothing for {_ANSWER_S:.0f} s: take fewer clients")
        return self._pipe.recv()


class Way(ABC):
    """A server while the block lasts. `a_client`: subscriptions of each client; None if one client reads all."""

    name = ""
    has_slow_client = False

    def __init__(self, subscriptions: Subscriptions, clients: int, folder: Path):
        self.subscriptions = subscriptions
        self.clients = clients
        self.folder = folder
        self.a_client: int | None = len(subscriptions.word) // clients

    @classmethod
    def absence(cls) -> str | None:
        """Why it cannot run here, and what changes it; or None."""
        return None

    @abstractmethod
    def __enter__(self) -> Self: ...

    @abstractmethod
    def __exit__(self, *_: object) -> None: ...

    @abstractmethod
    def collector(self) -> Collector:
        """Its clients."""

    @abstractmethod
    def publish(self, messages: Messages, wanted: np.ndarray, paced: Paced, look: Any) -> int:
        """Publish as `paced` says; how many messages the server has accepted."""

    @abstractmethod
    def processes(self) -> list[psutil.Process]:
        """The processes that serve."""

    def slow_client(self) -> SlowClient:
        """One that follows everything, a line a second. Raises ConfigError where no client may be slow."""
        raise ConfigError(f"{self.name}: every client of it is one of those that are timed")

    def processor_s(self) -> float:
        """Seconds that its processes have taken so far, without those that have ended."""
        spent_s = 0.0
        for one in self.processes():
            with suppress(psutil.NoSuchProcess):  # PostgreSQL's come and go
                spent_s += sum(one.cpu_times()[:2])
        return spent_s

    def _followed(self) -> list[range]:
        each = self.a_client or 0
        return [range(number * each, (number + 1) * each) for number in range(self.clients)]


class Skyray(Way):
    """`skyray serve` in one process; clients follow Server-Sent Events, messages come in one request of lines."""

    name, has_slow_client = "skyray", True
    _turn = 0

    def __enter__(self) -> Self:
        file = self.folder / "subscriptions.jsonl"
        with open(file, "w") as lines:
            columns = zip(self.subscriptions.word.tolist(), self.subscriptions.box.tolist(), strict=True)
            for number, (word, box) in enumerate(columns):
                row = {"subscription_id": f"s{number}", "kind": "boolean", "keywords": f"w{word}", "region": box}
                lines.write(json.dumps(row) + "\n")
        self._served = Served(self.folder / "serve", "--subscriptions", file)
        self._port = self._served.port
        self._await_matching(time.monotonic() + _START_S)
        return self

    def _await_matching(self, deadline_s: float) -> None:
        """Wait until a message is delivered: with the first one all subscriptions are taken in."""
        body, number = b"false", 0
        while b'"delivered":true' not in body.replace(b" ", b""):
            if time.monotonic() > deadline_s:
                self.__exit__()
                raise TopologyError(f"`skyray serve` has delivered no message in {_START_S:.0f} s: {body[:500]!r}")
            with closing(http.client.HTTPConnection("127.0.0.1", self._port, timeout=_START_S)) as one:
                row = {"id": f"first-{number}", "text": "first", "lon": 0, "lat": 0}
                one.request(
                    "POST", "/v1/messages?wait=delivered", json.dumps(row), {"Content-Type": "application/json"}
                )
                body = one.getresponse().read()
            number += 1

    def __exit__(self, *_: object) -> None:
        try:
            self._served.end(30)
        finally:
            self._served.__exit__()

    def processes(self) -> list[psutil.Process]:
        return [psutil.Process(self._served.process.pid)]

    def collector(self) -> Collector:
        requests = []
        for names in self._followed():
            query = "&".join(f"subscription=s{number}" for number in names)
            head = f"GET /v1/updates?{query} HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n\r\n"
            requests.append(head.encode())
        # ids of messages have the turn before the number
        event = rb'"subscription_id":"s(\d+)","message_id":"m%d-(\d+)"[^\n]*\n\n' % self._turn
        return Collector(collect, Reading("127.0.0.1", self._port, tuple(requests), b"event: progress", 1, event))

    def slow_client(self) -> SlowClient:
        return SlowClient("127.0.0.1", self._port)

    def publish(self, messages: Messages, wanted: np.ndarray, paced: Paced, look: Any) -> int:
        columns = zip(messages.words.tolist(), messages.place.tolist(), strict=True)
        lines = [
            b'{"id":"m%d-%d","text":"w%d w%d","lon":%r,"lat":%r}\n' % (self._turn, number, *words, *place)
            for number, (words, place) in enumerate(columns)
        ]  # fmt: skip
        self._turn += 1
        with closing(socket.create_connection(("127.0.0.1", self._port), _START_S)) as one:
            one.sendall(
                b"POST /v1/messages HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/x-ndjson\r\n"
                b"Transfer-Encoding: chunked\r\n\r\n"
            )
            answers = _Answers(one, b"\r\n0\r\n\r\n")

            def send(first: int, end: int) -> None:
                data = b"".join(lines[first:end])
                one.sendall(b"%x\r\n%s\r\n" % (len(data), data))

            paced.begun_s = time.monotonic() + _FIRST_S
            paced.run(send, look)
            one.sendall(b"0\r\n\r\n")
            return answers.text().count(b'"status":"accepted"')


class PostGISNotify(Way):
    """The PostgreSQL that `PGHOST` and so on name."""

    name = "postgis"
    #: The messages are kept, and joined to boxes by word and place; a notification has 350 updates at most.
    _statement = (
        "WITH given AS MATERIALIZED (SELECT * FROM unnest(%s::int[], %s::int[], %s::int[], %s::float8[], %s::float8[])"
        " AS g(id, first, second, lon, lat)),"
        " kept AS (INSERT INTO push.messages SELECT * FROM given),"
        " found AS (SELECT s.id AS subscription, m.id AS message, (row_number() OVER () - 1) / 350 AS part FROM"
        " (SELECT id, ST_MakePoint(lon, lat) AS place, unnest(ARRAY[first, second]) AS word FROM given OFFSET 0) m"
        " JOIN push.subscriptions s ON s.word = m.word AND s.region && m.place)"
        " SELECT pg_notify('skyray_push', string_agg(subscription || ' ' || message, ',')) FROM found GROUP BY part"
    )

    @classmethod
    def absence(cls) -> str | None:
        return PostGIS.absence()

    def __enter__(self) -> Self:
        import psycopg

        options = " ".join(f"-c {each}" for each in PostGIS._set.split()[:-1])
        self._sql = psycopg.connect(autocommit=True, options=options)
        for extension in ("postgis", "btree_gist"):
            self._sql.execute(f"CREATE EXTENSION IF NOT EXISTS {extension} SCHEMA public")
        self._sql.execute(
            "CREATE SCHEMA push; CREATE UNLOGGED TABLE push.subscriptions (id int, word int, region geometry);"
            "CREATE UNLOGGED TABLE push.messages (id int, first int, second int, lon float8, lat float8)"
        )
        columns = (self.subscriptions.word.tolist(), *self.subscriptions.box.T.tolist())
        self._sql.execute(
            "INSERT INTO push.subscriptions SELECT id - 1, word, ST_MakeEnvelope(west, south, east, north) FROM"
            " unnest(%s::int[], %s::float8[], %s::float8[], %s::float8[], %s::float8[])"
            " WITH ORDINALITY AS s(word, west, south, east, north, id)",
            columns,
        )
        self._sql.execute("CREATE INDEX ON push.subscriptions USING gist (word, region)")
        self._sql.execute("VACUUM ANALYZE push.subscriptions")
        self.a_client = None
        self._listening = 0
        return self

    def __exit__(self, *_: object) -> None:
        self._sql.execute("DROP SCHEMA push CASCADE")
        self._sql.close()

    def processes(self) -> list[psutil.Process]:
        backends = self._sql.info.backend_pid, self._listening
        return [psutil.Process(pid) for pid in backends if pid and psutil.pid_exists(pid)]

    def collector(self) -> Collector:
        self._sql.execute("TRUNCATE push.messages")
        made = Collector(listen, "skyray_push")
        self._listening = made.hello
        return made

    def publish(self, messages: Messages, wanted: np.ndarray, paced: Paced, look: Any) -> int:
        columns = [*messages.words.T, *messages.place.T]

        def send(first: int, end: int) -> None:
            given = (list(range(first, end)), *(column[first:end].tolist() for column in columns))
            self._sql.execute(self._statement.encode(), given, prepare=True)

        paced.run(send, look)
        kept = self._sql.execute("SELECT count(*) FROM push.messages").fetchone()
        return kept[0] if kept else 0


class RedisPublish(Way):
    """A redis-server of its own, without files."""

    name = "redis"

    @classmethod
    def absence(cls) -> str | None:
        return None if shutil.which("redis-server") else "redis-server is not installed: apt-get install redis-server"

    def __enter__(self) -> Self:
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            self._port = one.getsockname()[1]
        words = ["redis-server", "--port", str(self._port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        self._server = subprocess.Popen(words, cwd=self.folder, stdout=subprocess.DEVNULL)
        deadline_s = time.monotonic() + _START_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self._port), 1.0).close()
                return self
            except OSError:
                if self._server.poll() is not None or time.monotonic() > deadline_s:
                    self._server.kill()
                    raise TopologyError("redis-server has not started: start it by hand to see why") from None
                time.sleep(0.05)

    def __exit__(self, *_: object) -> None:
        self._server.terminate()
        self._server.wait(20)

    def processes(self) -> list[psutil.Process]:
        return [psutil.Process(self._server.pid)]

    def collector(self) -> Collector:
        requests = tuple(_words(b"SUBSCRIBE", *(b"s%d" % number for number in names)) for names in self._followed())
        joined, times = b"$9\r\nsubscribe\r\n", self.a_client or 0
        event = rb"s(\d+) m(\d+) \.*\r\n"
        return Collector(collect, Reading("127.0.0.1", self._port, requests, joined, times, event))

    def publish(self, messages: Messages, wanted: np.ndarray, paced: Paced, look: Any) -> int:
        rows = [
            _words(b"PUBLISH", b"s%d" % subscription, (b"s%d m%d " % (subscription, number)).ljust(_UPDATE_BYTES, b"."))
            for subscription, number in wanted.tolist()
        ]
        at = np.searchsorted(wanted[:, 1], np.arange(len(messages.words) + 1))
        with closing(socket.create_connection(("127.0.0.1", self._port), _START_S)) as one:
            answers = _Answers(one, b"+PONG\r\n")

            def send(first: int, end: int) -> None:
                one.sendall(b"".join(rows[at[first] : at[end]]))

            paced.begun_s = time.monotonic() + _FIRST_S
            paced.run(send, look)
            one.sendall(_words(b"PING"))
            answers.text()
        return len(messages.words)


def _words(*words: bytes) -> bytes:
    """A command as Redis reads it."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


class _Answers:
    """Reads what a server answers in a thread, until these bytes close it."""

    def __init__(self, one: socket.socket, last: bytes):
        self._socket, self._last = one, last
        self._found = bytearray()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def text(self) -> bytes:
        self._thread.join(_START_S)
        return bytes(self._found)

    def _read(self) -> None:
        while not self._found.endswith(self._last) and (data := self._socket.recv(1 << 18)):
            self._found += data


#: By name.
WAYS: dict[str, type[Way]] = {way.name: way for way in (Skyray, PostGISNotify, RedisPublish)}
