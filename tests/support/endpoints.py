"""Endpoints of webhooks on loopback: real sockets, each with a way to behave and a book of what came."""

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, NamedTuple

Headers = dict[str, str]
#: (headers, body, writer) -> a whole answer, or None where the behaviour has written itself.
Behaviour = Callable[[Headers, bytes, asyncio.StreamWriter], Awaitable[bytes | None]]


def answer(status: int, *lines: str, body: bytes = b"") -> bytes:
    head = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", *lines]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


def answers(*statuses: int) -> Behaviour:
    """One status after the other, the last one for ever."""
    left = list(statuses)

    async def behave(headers: Headers, body: bytes, writer: asyncio.StreamWriter) -> bytes:
        status = left.pop(0) if len(left) > 1 else left[0]
        return answer(status, *(["Location: /elsewhere"] if 300 <= status < 400 else []))

    return behave


async def hangs(headers: Headers, body: bytes, writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def drips(headers: Headers, body: bytes, writer: asyncio.StreamWriter) -> None:
    """A byte a second of an answer that is long."""
    writer.write(b"HTTP/1.1 200 X\r\nContent-Length: 1000\r\n\r\n")
    while True:
        writer.write(b".")
        await writer.drain()
        await asyncio.sleep(1)


async def floods(headers: Headers, body: bytes, writer: asyncio.StreamWriter) -> None:
    """An answer without an end."""
    writer.write(b"HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"4000\r\n" + b"." * 0x4000 + b"\r\n")
        await writer.drain()


class Came(NamedTuple):
    """A request."""

    headers: Headers
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def updates(self) -> list[dict[str, Any]]:
        return json.loads(self.body)["data"]["updates"]


class Endpoint:
    """A server in a thread with a loop of its own; `book` has the requests in the order in which they came whole."""

    def __init__(self, behaviour: Behaviour | None = None, port: int = 0):
        self.book: list[Came] = []
        self.connections = 0
        self.behaviour = behaviour or answers(204)
        self.port = port
        self._came = threading.Condition()
        self._begun = threading.Event()
        self._tasks: set[asyncio.Task[None] | None] = set()  # one that hangs would be collected
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    def __enter__(self) -> "Endpoint":
        self._thread.start()
        assert self._begun.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(10)

    def await_(self, condition: Callable[[list[Came]], bool], seconds: float = 300) -> list[Came]:
        """Wait until the book satisfies a condition."""
        with self._came:
            assert self._came.wait_for(lambda: condition(self.book), seconds), [one.id for one in self.book]
            return list(self.book)

    async def _serve(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._connected, "127.0.0.1", self.port)
        self.port = server.sockets[0].getsockname()[1]
        self._begun.set()
        await self._over.wait()
        server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._tasks.add(asyncio.current_task())
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:])}
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                with self._came:
                    self.book.append(Came(headers, body))
                    self._came.notify_all()
                said = await self.behaviour(headers, body, writer)
                if said is None:
                    break
                writer.write(said)
                await writer.drain()
        writer.close()
