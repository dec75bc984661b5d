"""Updates of a made-up stream in chunks, and a process that delivers them to NATS until it is killed.

    python -m tests.support.nats_sinking FOLDER URL COUNT

imports all there is to import, and then forks a process for each line that it reads: a killed one is followed by the
next at once. It goes by `limit` in the folder: so many updates may be delivered by now. It writes down what `deliver`
said, and fails if the sink finds less when it is opened the next time.
"""

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, RawStreamMsg, StreamConfig

from gateway.live.update_listener import MessageText
from gateway.serve.released import ReleasedUpdate
from gateway.serve.update_parts import BEGINNING, Position
from gateway.sinks.nats import NatsSink
from gateway.sinks.stream import SinkAway, UpdateChunk
from tests.support.brokers import NatsBroker, add_stream
from tests.support.nats_cluster import NatsCluster
from tests.support.releasing import RawUpdate, release

NAME, SUBJECT, IDENTITY = "UPDATES", "skyray.updates", "5f0c2b9d01e7a384"
#: Seconds that a test waits for a step, and that a process works.
_DEADLINE_S, _LASTS_S = 120.0, 900.0
Servers = NatsBroker | NatsCluster
#: Ids of subscriptions, with what a subject may not have.
_IDS = ["s1", "shop.7", "東京 ramen", "a*b>c", "100%", "~tilde", "x" * 512, *(f"user-{n}" for n in range(40))]


def updates_of(count: int, seed: int = 7) -> list[ReleasedUpdate]:
    """The first so many updates of a stream whose boundaries have from none to 60 of them."""
    rng, found, seq = random.Random(seed), [], -1
    while len(found) < count:
        seq += rng.randint(1, 20)
        some = range(rng.randrange(60))
        wanted = {(rng.choice(_IDS), rng.randrange(3), max(0, seq - rng.randrange(30))) for _ in some}
        rows = [RawUpdate(*one, seq, rng.choice([None, 0.25])) for one in sorted(wanted)]
        found += release(seq, rows, _texts)
    return found[:count]


def _texts(seqs: Any) -> dict[int, MessageText]:
    return {seq: MessageText(f"m{seq}", f"ramen {seq} ラーメン\n", seq % 180, seq % 90) for seq in seqs}


def chunks_of(updates: list[ReleasedUpdate], seed: int = 7) -> Iterator[UpdateChunk]:
    """Updates in chunks of several sizes; some end within a boundary, and some have none."""
    rng, at = random.Random(seed), 0
    while at < len(updates):
        some = updates[at : at + rng.choice([0, 1, 3, 40, 200, 700, 2_500])]
        at += len(some)
        yield chunk_of(some) if some else UpdateChunk([], _behind(updates[at - 1] if at else None), True, 0)


def chunk_of(updates: list[ReleasedUpdate]) -> UpdateChunk:
    behind = _behind(updates[-1])
    return UpdateChunk(updates, behind, False, behind.boundary)


def _behind(update: ReleasedUpdate | None) -> Position:
    return BEGINNING if update is None else Position.of(update.position)


def sink_of(broker: NatsBroker, stream: str = NAME, subject: str = SUBJECT) -> NatsSink:
    return NatsSink([broker.url], stream, subject)


def create(broker: Servers, **options: Any) -> None:
    """Create the stream at the broker."""
    config = StreamConfig(NAME, **{"subjects": [f"{SUBJECT}.*"], **options})
    broker.call(lambda context: add_stream(context, config))


def last_sequence(broker: Servers) -> int:
    async def look(context: JetStreamContext) -> int:
        return (await context.stream_info(NAME)).state.last_seq

    return broker.call(look)


def unread_bytes(broker: NatsBroker) -> int:
    """Bytes that have come to the broker's port, and that it has not read."""
    found = 0
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, _, _, queues, *_ = line.split()
        if int(local.partition(":")[2], 16) == broker.port:
            found += int(queues.partition(":")[2], 16)
    return found


def message(broker: NatsBroker, sequence: int) -> RawStreamMsg:
    return broker.call(lambda context: context.get_msg(NAME, sequence))


class Had(list[Any]):
    """All messages of the stream, in its order: subject, headers, data."""

    @classmethod
    def by(cls, broker: Servers) -> "Had":
        return cls(broker.call(_read_all))

    @property
    def data(self) -> list[bytes]:
        return [one.data for one in self]

    @property
    def ids(self) -> list[str]:
        return [one.headers["Nats-Msg-Id"] for one in self]


async def _read_all(context: JetStreamContext) -> list[Any]:
    count = (await context.stream_info(NAME)).state.messages
    made = await context.add_consumer(NAME, ConsumerConfig(ack_policy=AckPolicy.NONE, inactive_threshold=60.0))
    subscription = await context.pull_subscribe_bind(made.name, NAME)
    found: list[Any] = []
    while len(found) < count:
        found += await subscription.fetch(min(1_000, count - len(found)), 20)
    return found


class SinkProcess:
    """A process with a sink, started with the block; it is killed at its end, too."""

    def __init__(self, folder: Path, broker: Servers, count: int, limit: int):
        self._folder = folder
        self.allow(limit)
        command = [sys.executable, "-m", __name__, str(folder), broker.url, str(count)]
        self._forking = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._pid = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._pid:
            self.kill()
        self._forking.communicate()

    def start(self) -> None:
        assert self._forking.stdin is not None and self._forking.stdout is not None
        print(file=self._forking.stdin, flush=True)
        self._pid = int(self._forking.stdout.readline())

    def kill(self) -> None:
        """SIGKILL, and wait."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        self._reap()

    def allow(self, limit: int) -> None:
        """So many updates may be delivered by now."""
        _write(self._folder / "limit", limit)

    def await_(self, condition: Callable[[], Any]) -> None:
        deadline = time.monotonic() + _DEADLINE_S
        while not condition():
            if (self._folder / "failed").exists():
                raise AssertionError((self._folder / "failed").read_text())
            assert time.monotonic() < deadline, "it does not get further"
            threading.Event().wait(0.005)

    def join(self) -> None:
        self.await_((self._folder / "ended").exists)
        assert self._reap() == 0

    def _reap(self) -> int:
        assert self._forking.stdout is not None
        self._pid = 0
        return int(self._forking.stdout.readline())


def _write(path: Path, value: object) -> None:
    beside = path.with_suffix(".new")
    beside.write_text(str(value))
    beside.replace(path)


def _deliver_all(folder: Path, url: str, updates: list[ReleasedUpdate]) -> None:
    said, deadline = folder / "said", time.monotonic() + _LASTS_S
    places = {one.position: place for place, one in enumerate(updates)}
    sink, rng, done = NatsSink(url.split(","), NAME, SUBJECT), random.Random(len(updates)), 0
    while done < len(updates):
        with contextlib.suppress(SinkAway):
            found = sink.open(IDENTITY)
            done = 0 if found is None else places[found.text] + 1
            promised = int(said.read_text()) if said.exists() else 0
            assert done >= promised, f"deliver said that {promised:,} are durable, and now there are {done:,}"
            while done < len(updates):
                assert time.monotonic() < deadline, "nobody needs it any more"
                limit = int((folder / "limit").read_text())
                some = updates[done : min(limit, done + rng.choice([1, 20, 300, 2_000]))]
                if some:
                    done = places[sink.deliver(chunk_of(some)).text] + 1
                    _write(said, done)
                else:
                    threading.Event().wait(0.002)
        sink.close()
        threading.Event().wait(0.02)
    _write(folder / "ended", done)


def _fork(folder: Path, url: str, count: int) -> None:
    updates = updates_of(count)
    for _ in sys.stdin:
        pid = os.fork()
        if pid == 0:
            try:
                _deliver_all(folder, url, updates)
            except BaseException:
                _write(folder / "failed", traceback.format_exc())
                os._exit(1)
            os._exit(0)
        os.write(1, b"%d\n" % pid)
        os.write(1, b"%d\n" % os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    _fork(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
