"""Three servers of NATS that replicate a stream; one of them can be killed and started again."""

import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self, TypeVar

import nats.errors
from nats.js import JetStreamContext

from tests.support.brokers import NatsBroker
from tests.support.serving import free_port

_SERVERS, _DEADLINE_S = 3, 60.0
_Result = TypeVar("_Result")


class NatsCluster:
    """Started, and with a leader, once the block begins."""

    def __init__(self, folder: Path):
        routes = [f"nats://127.0.0.1:{free_port()}" for _ in range(_SERVERS)]
        self.servers = [
            NatsBroker(folder / name, "-n", name, "-cluster_name", "c", "-cluster", route, "-routes", ",".join(routes))
            for name, route in zip("abc", routes, strict=True)
        ]

    def __enter__(self) -> Self:
        with ThreadPoolExecutor(_SERVERS) as pool:  # none answers before most of them are there
            list(pool.map(NatsBroker.start, self.servers))
        return self

    def __exit__(self, *_: object) -> None:
        for server in self.servers:
            server.kill()

    @property
    def url(self) -> str:
        return ",".join(server.url for server in self.servers)

    def call(self, what: Callable[[JetStreamContext], Awaitable[_Result]]) -> _Result:
        """Ask any server, until one answers."""
        deadline, turn = time.monotonic() + _DEADLINE_S, 0
        while True:
            try:
                return self.servers[turn % _SERVERS].call(what)
            except (TimeoutError, OSError, nats.errors.Error):
                assert time.monotonic() < deadline, "no server answers"
                turn += 1
                threading.Event().wait(0.1)

    def leader(self, stream: str) -> NatsBroker:
        """The server that leads a stream."""

        async def look(context: JetStreamContext) -> str:
            info = await context.stream_info(stream)
            return (info.cluster.leader if info.cluster else None) or ""

        deadline = time.monotonic() + _DEADLINE_S
        while not (name := self.call(look)):
            assert time.monotonic() < deadline, "the stream has no leader"
        return next(server for server in self.servers if server.folder.name == name)
