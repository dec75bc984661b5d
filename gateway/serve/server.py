"""uvicorn in a thread beside the topology, which has the main thread."""

import asyncio
import contextlib
import resource
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import httptools
import msgspec
import uvicorn
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from gateway.serve.problems import MEDIA_TYPE, answer, body_of, later
from matching.errors import ConfigError, TopologyError

#: Hosts that no other machine can call.
LOOPBACK = ("127.0.0.1", "::1", "localhost")
#: Seconds that requests may take to end when the server does.
GRACE_S = 4
#: Connections at a time, beyond which a server answers with 503.
MOST_CONNECTIONS = 10_000
#: Seconds within which the headers of a request have to come.
HEADERS_S = 10.0
#: Bytes of the headers of a request at most.
MOST_HEADERS_BYTES = 64 * 2**10
#: Seconds for which what is left of a body is read after its answer.
LINGER_S = 60.0
#: Seconds after which one for which there was no room should come again.
RETRY_S = 5
#: Extension of a scope: a function that sends the next part of an answer's body at once, without `send` and the layers
#: around it, if there is room, and returns whether it did. The answer has begun, and no `send` is under way.
WRITE = "skyray.write"
_AS_HTTP = "write the request as HTTP/1.1 says, with headers of at most 64 KiB"
_LONG_HEADERS = 431, "headers_too_long", "the headers are longer than 64 KiB"
_LONG_URL = 414, "url_too_long", "the URL is longer than 64 KiB"
#: Seconds for which a thread that computes keeps Python's lock while others wait. One that sends, or waits for a disk,
#: gives it up each time: beside two that compute it had it back after 10 ms with Python's own 5, and after 0.6 with
#: these, which cost the two 1.5 % of their work.
SWITCH_S = 0.0005
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


class _Protocol(HttpToolsProtocol):
    """HTTP/1.1 as RFC 9110 and 9112 have it, where uvicorn's protocol differs; slow and oversized headers are refused.

    A client may close its sending side and still gets its answers (streams that have no end, end then). HTTP/1.0 gets
    no chunks. What is left of a body is read before its connection closes, so that the client can read the answer.
    """

    _timer: asyncio.TimerHandle | None = None
    _between = True  # what comes next are headers
    _size_bytes = 0  # received since the last request
    _head_bytes = 0  # of the request line and the headers that are complete
    _refusal: tuple[int, str, str] | None = None
    _refused = False
    _at_end = False  # the client sends nothing more

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_headers()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        self._size_bytes += len(data)
        super().data_received(data)
        if self._refused or self.transport.is_closing():
            return
        if self._between and self._size_bytes > MOST_HEADERS_BYTES:
            self._refusal = _LONG_HEADERS
            self.send_400_response("")
        elif not self.cycle or self.cycle.response_complete:  # else uvicorn's own timer begins after the answer
            self._expect_headers()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Returns whether an answer is still to be sent."""
        self._at_end = True
        cycle = self.cycle
        if not cycle or cycle.response_complete or cycle.more_body:
            return False
        cycle.message_event.set()  # a stream that waits for the client to leave
        return True

    def send_400_response(self, msg: str) -> None:
        self._refused, cycle = True, self.cycle  # nothing that is sent from now on is read as a request
        if cycle and not cycle.response_complete and not cycle.more_body:
            cycle.keep_alive = False  # the answer to the request before goes out, and ends the connection
            return
        if cycle and not cycle.response_complete:  # amid a body
            cycle.disconnected = True
            cycle.message_event.set()
            if cycle.response_started:
                self.transport.close()
                return
        status, reason, detail = self._refusal or (400, "bad_request", msg)
        body = msgspec.json.encode(body_of(status, reason, detail, "the request line and the headers", _AS_HTTP))
        head = f"content-type: {MEDIA_TYPE}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        self.transport.write(STATUS_LINE[status] + head.encode() + body)
        self.transport.write_eof()  # the client closes: it could not read the answer if we did, with its data unread
        self._expect_headers()

    def on_message_begin(self) -> None:
        self._head_bytes = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._head_bytes += len(url)
        if self._head_bytes > MOST_HEADERS_BYTES:
            self._refuse(*_LONG_URL)

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        self._head_bytes += len(name) + len(value) + 4
        if self._head_bytes > MOST_HEADERS_BYTES:
            self._refuse(*_LONG_HEADERS)

    def on_headers_complete(self) -> None:
        self._between = False
        self._forget_timer()
        hosts, parser = sum([name == b"host" for name, _ in self.headers]), self.parser
        if hosts > 1 or (not hosts and parser is not None and parser.get_http_version() == "1.1"):
            self._refuse(400, "bad_request", f"the request has {hosts or 'no'} header{'s' * (hosts > 1)} Host")
        if not self.url.startswith((b"/", b"*")):  # an absolute URL goes before the header
            url = httptools.parse_url(self.url)
            if url.host:
                named = url.host + (b":%d" % url.port if url.port else b"")
                self.headers[:] = [*(one for one in self.headers if one[0] != b"host"), (b"host", named)]
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._between, self._size_bytes = True, 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._at_end and self.cycle.response_complete:  # the last one of those that were sent
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_timer()
        super().connection_lost(exc)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        running: Any = partial(self._run, cycle, app)
        super()._start_asgi_task(cycle, running)

    async def _run(self, cycle: RequestResponseCycle, app: Any, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the app for one request."""
        old = scope["http_version"] == "1.0"
        has_all = is_sized = False  # the app has the whole body; the answer has a Content-Length
        start: Message | None = None  # waits for the first part of the body
        scope["extensions"] = {WRITE: partial(self._write, cycle)}
        scope["has_body"] = not cycle.more_body  # `gateway.serve.bodies` then sets no timer for it
        if old:
            cycle.waiting_for_100_continue = False

        async def receive_event() -> Message:
            nonlocal has_all
            event = {"type": "http.disconnect"} if has_all and self._at_end else await receive()
            if has_all and self._at_end:
                return {"type": "http.disconnect"}
            has_all = not event.get("more_body")
            return event

        async def send_event(event: Message) -> None:
            nonlocal is_sized, start
            if event["type"] == "http.response.start":
                is_sized = any(name.lower() == b"content-length" for name, _ in event["headers"])
                if old:
                    cycle.chunked_encoding = False
                if cycle.waiting_for_100_continue:
                    cycle.keep_alive = False  # nobody knows whether the body will come
                start = event
                return
            if start is not None:
                cycle.transport = joined = _JoinedHead(self.transport)  # type: ignore[assignment]
                begins, start = start, None
                try:
                    await send(begins)
                    await send_body(event)
                finally:
                    cycle.transport = self.transport
                    joined.flush()
                return
            await send_body(event)

        async def send_body(event: Message) -> None:
            if old:
                cycle.expected_content_length = len(event.get("body", b""))  # the end of the connection ends the body
            ends = event["type"] == "http.response.body" and not event.get("more_body")
            if ends and cycle.more_body and (is_sized or not cycle.keep_alive):
                await send({**event, "more_body": True})
                if cycle.chunked_encoding:  # the last chunk comes first: a server that stops cancels the wait
                    cycle.transport.write(b"0\r\n\r\n")
                    cycle.chunked_encoding, cycle.expected_content_length = False, 0
                if not await self._discard(cycle, receive):
                    cycle.keep_alive = False
                event = {"type": "http.response.body", "body": b""}
            await send(event)

        with contextlib.suppress(ClientDisconnect):
            await app(scope, receive_event, send_event)
        if has_all and self._at_end and not cycle.response_complete:  # a stream whose client has left
            cycle.disconnected = True
            self.transport.close()

    def _write(self, cycle: RequestResponseCycle, part: bytes) -> bool:
        """See `WRITE`."""
        if cycle.disconnected or cycle.response_complete or not cycle.chunked_encoding or self.flow.write_paused:
            return False
        self.transport.write(b"%x\r\n%b\r\n" % (len(part), part))
        return True

    async def _discard(self, cycle: RequestResponseCycle, receive: Receive) -> bool:
        """Read what is left of a body; False if it does not come: a connection closed before resets the client's."""
        try:
            async with asyncio.timeout(LINGER_S):
                while cycle.more_body and not cycle.disconnected:
                    async with asyncio.timeout(HEADERS_S):
                        await receive()
        except TimeoutError:
            return False
        return True

    def _refuse(self, status: int, reason: str, detail: str) -> None:
        """End the parsing; uvicorn then calls `send_400_response`."""
        self._refusal = status, reason, detail
        raise ValueError(detail)

    def _expect_headers(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(HEADERS_S, self.transport.close)

    def _forget_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _JoinedHead:
    """A transport that sends the head of an answer with the first part of its body: in one packet and system call."""

    def __init__(self, transport: asyncio.Transport):
        self._transport = transport
        self._head: bytes | None = None

    def write(self, data: bytes) -> None:
        if self._head is None:
            self._head = data
        else:
            self._transport.write(self._head + data)
            self._head = b""

    def flush(self) -> None:
        if self._head:
            self._transport.write(self._head)
            self._head = b""

    def close(self) -> None:
        self.flush()
        self._transport.close()


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
    """Serves an app while the block lasts, in which the threads of this process take turns every `SWITCH_S`.

    Parameters
    ----------
    app : ASGI application
    most_connections : int
        Beyond it a connection is answered with 503.
    trusted_proxies : sequence of str
        Addresses and networks of proxies whose header X-Forwarded-For names the client; of nobody else is it read.
    """

    def __init__(
        self,
        app: Any,
        listening: socket.socket,
        most_connections: int = MOST_CONNECTIONS,
        trusted_proxies: Sequence[str] = (),
    ):
        config = uvicorn.Config(
            _Bounded(app, most_connections, lambda: len(self._server.server_state.connections)),
            log_config=None,
            access_log=False,
            http=_Protocol,
            ws="none",
            lifespan="off",
            proxy_headers=bool(trusted_proxies),  # by default uvicorn believes everybody on this machine
            forwarded_allow_ips=list(trusted_proxies),
            timeout_graceful_shutdown=GRACE_S,
            server_header=False,
        )
        self._server = _Uvicorn(config)
        self._most_connections = most_connections
        self._socket = listening
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
        self._switched_s = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(GRACE_S + 2)
        sys.setswitchinterval(self._switched_s)
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
        await self._server.serve(sockets=[self._socket])
