"""A proxy in front of an object store that throttles, cuts connections and loses answers, by a seeded plan."""

import http.client
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np

SLOW_DOWN = b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>"
#: What may happen to a request: refused, cut before the store has it, or done while its answer is lost.
FAULTS = ("throttled", "cut before", "cut after")


class FaultyProxy(ThreadingHTTPServer):
    """Passes requests on to a store; `counts` says what happened to how many."""

    daemon_threads = True

    def __init__(self, store: str, share: float, seed: int):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.store = store.removeprefix("http://")
        self.share = share
        self.counts: Counter[str] = Counter()
        self._random = np.random.default_rng(seed)
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def next_fault(self) -> str:
        """What happens to the next request; empty if it is passed on."""
        with self._lock:
            fault = str(self._random.choice(FAULTS)) if self._random.random() < self.share else ""
            self.counts[fault or "passed"] += 1
            return fault


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FaultyProxy

    def _pass(self) -> None:
        fault = self.server.next_fault()
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if fault == "throttled":
            self._answer(503, [("Content-Type", "application/xml")], SLOW_DOWN)
        elif fault == "cut before":
            self._cut()
        else:
            status, headers, body = self._ask(data)
            if fault:
                self._cut()
            else:
                self._answer(status, headers, body)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass  # noqa: N815 - named by the base class

    def _ask(self, data: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        upstream = http.client.HTTPConnection(self.server.store, timeout=300)
        try:
            upstream.request(self.command, self.path, data, dict(self.headers.items()))
            answer = upstream.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            upstream.close()

    def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.send_response_only(status)
        dropped = {"transfer-encoding", "connection"} | ({"content-length"} if self.command != "HEAD" else set())
        for name, value in headers:
            if name.lower() not in dropped:
                self.send_header(name, value)
        if self.command != "HEAD":
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(b"" if self.command == "HEAD" else body)

    def _cut(self) -> None:
        self.close_connection = True
        self.connection.close()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def handle(self) -> None:
        with suppress(ConnectionError, ValueError):  # a client that has gone, or a connection that was cut
            super().handle()


@contextmanager
def faults_before(store: str, share: float, seed: int) -> Iterator[FaultyProxy]:
    """A proxy in front of the store at that endpoint, to which `share` of the requests are lost in some way."""
    with FaultyProxy(store, share, seed) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield proxy
        finally:
            proxy.shutdown()
            thread.join()
