"""uvicorn in a thread beside the topology, which has the main thread.

Used by `gateway.commands.serve`.
"""

import asyncio
import contextlib
import resource
import socket
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from gateway.serve.problems import MEDIA_TYPE, answer, body_of, later
from matching.errors import ConfigError, TopologyError

#: Seconds that requests may take to end when the server does.
GRACE_S = 4
#: Connections at a time, beyond which a server answers with 503.
MOST_CONNECTIONS = 10_000
#: Seconds within which the headers of a request have to come.
HEADERS_S = 10.0
#: Bytes of the headers of a request at most.
MOST_HEADERS_BYTES = 64 * 2**10
#: Seconds after which one for which there was no room should come again.
RETRY_S = 5
_AS_HTTP = "write the request as HTTP/1.1 says, with headers of at most 64 KiB"
#: Descriptors for what is no connection.
_OTHER_FILES = 1_000
#: Seconds that the server may take to start.
_START_S = 30.0


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens. Raises ConfigError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # asyncio turns Nagle's algorithm off only where the protocol is named: else answers wait 40 ms for an
        # acknowledgement of their headers
        listening = socket.socket(family, kind, protocol)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(2048)
        except OSError:
            listening.close()
            raise
    except OSError as error:
        raise ConfigError(
            f"{host} port {port}: cannot be listened on ({error.strerror or error}); choose another --port or --host"
        ) from error
    return listening


class _Uvicorn(uvicorn.Server):
    """Sets `begun` once it listens."""

    def __init__(self, config: uvicorn.Config):
        super().__init__(config)
        self.begun = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.begun.set()


class _Impatient(HttpToolsProtocol):
    """Closes a connection if the headers of a request do not end within `HEADERS_S`, or within the limit of bytes."""

    _timer: asyncio.TimerHandle | None = None
    _between = True  # what comes next are headers
    _size_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_headers()

    def data_received(self, data: bytes) -> None:
        self._size_bytes += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._between and self._size_bytes > MOST_HEADERS_BYTES:
            self.send_400_response("The headers are too long.")
        elif not self.cycle or self.cycle.response_complete:  # else uvicorn's own timer begins after the answer
            self._expect_headers()

    def send_400_response(self, msg: str) -> None:
        body = msgspec.json.encode(body_of(400, "bad_request", msg, "the request line and the headers", _AS_HTTP))
        head = f"content-type: {MEDIA_TYPE}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        self.transport.write(STATUS_LINE[400] + head.encode() + body)
        self.transport.close()

    def on_headers_complete(self) -> None:
        self._between = False
        self._forget_timer()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._between, self._size_bytes = True, 0
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_timer()
        super().connection_lost(exc)

    def _expect_headers(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(HEADERS_S, self.transport.close)

    def _forget_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _Bounded:
    """Answers what comes by a connection too many; uvicorn's own answer is plain text."""

    def __init__(self, app: ASGIApp, most_connections: int, connections: Callable[[], int]):
        self._app = app
        self._most = most_connections
        self._connections = connections

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._connections() <= self._most:
            await self._app(scope, receive, send)
            return
        problem = later(503, "too_many_connections", f"{self._most:,} are open, and no more may be", RETRY_S)
        problem.headers["Connection"] = "close"
        await answer(problem)(scope, receive, send)


class Server:
    """Serves an app while the block lasts.

    Parameters
    ----------
    app : ASGI application
    listening : socket
    on_start : callable
        Called with the event loop, in its thread, before the first request.
    most_connections : int
        Beyond it a connection is answered with 503.
    """

    def __init__(
        self,
        app: Any,
        listening: socket.socket,
        on_start: Callable[[asyncio.AbstractEventLoop], None],
        most_connections: int = MOST_CONNECTIONS,
    ):
        config = uvicorn.Config(
            _Bounded(app, most_connections, lambda: len(self._server.server_state.connections)),
            log_config=None,
            access_log=False,
            http=_Impatient,
            ws="none",
            lifespan="off",
            timeout_graceful_shutdown=GRACE_S,
            server_header=False,
        )
        self._server = _Uvicorn(config)
        self._most_connections = most_connections
        self._socket = listening
        self._on_start = on_start
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)
        self.loop: asyncio.AbstractEventLoop | None = None

    def __enter__(self) -> "Server":
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = self._most_connections + _OTHER_FILES  # the soft limit is often 1,024
        if soft != resource.RLIM_INFINITY and soft < wanted:
            most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
        self._thread.start()
        self._server.begun.wait(_START_S)
        if not self._server.started:
            raise TopologyError(f"the HTTP server has not started ({self._failure}); start it again")
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(GRACE_S + 2)
        with contextlib.suppress(OSError):
            self._socket.close()

    @property
    def running(self) -> asyncio.AbstractEventLoop:
        """The event loop, once it has begun."""
        assert self.loop is not None, "it runs"
        return self.loop

    def call(self, function: Callable[[], None]) -> None:
        """Call a function in the event loop, soon."""
        assert self.loop is not None, "it runs"
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(function)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._failure = error
        finally:
            self._server.begun.set()  # of one that failed before

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._on_start(self.loop)
        await self._server.serve(sockets=[self._socket])
