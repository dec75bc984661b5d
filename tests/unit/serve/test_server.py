"""The server's socket, and where it may listen."""

import asyncio
import contextlib
import json
import resource
import socket
import sys
import threading
from asyncio import selector_events
from typing import Any

import pytest

from gateway.serve import server
from gateway.serve.server import Server, bind
from matching.errors import ConfigError
from tests.support.processes import Command


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_server_sends_answers_at_once(host):
    """Not once their headers are acknowledged, as Nagle's algorithm would have it."""

    async def accepted():
        found = asyncio.get_running_loop().create_future()
        with bind(host, 0) as listening:
            server = await asyncio.start_server(lambda _, writer: found.set_result(writer), sock=listening)
            _, client = await asyncio.open_connection(*listening.getsockname()[:2])
            writer = await found
            chosen = writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            for each in (client, writer):
                each.close()
                with contextlib.suppress(OSError):
                    await each.wait_closed()
            server.close()
            return chosen

    assert asyncio.run(accepted()) == 1


def test_server_whose_port_is_taken_says_so():
    with bind("127.0.0.1", 0) as one, pytest.raises(ConfigError, match="choose another --port"):
        bind("127.0.0.1", one.getsockname()[1])


def test_server_has_threads_take_turns_more_often_while_it_serves():
    before_s = sys.getswitchinterval()
    with bind("127.0.0.1", 0) as listening:
        with Server(None, listening, 3):
            assert sys.getswitchinterval() == pytest.approx(server.SWITCH_S) and before_s > server.SWITCH_S
        assert sys.getswitchinterval() == before_s


def test_server_sends_the_head_of_an_answer_with_the_first_part_of_its_body(monkeypatch):
    """In one call; also where there is no body, and where parts follow."""
    transport: Any = vars(selector_events)["_SelectorSocketTransport"]  # of which uvicorn has one a connection
    written: list[bytes] = []
    write = transport.write
    monkeypatch.setattr(transport, "write", lambda self, data: (written.append(bytes(data)), write(self, data))[1])

    async def answers(scope, receive, send):
        sized = [] if scope["path"] == "/parts" else [(b"content-length", scope["path"][1:].encode())]
        await send({"type": "http.response.start", "status": 200, "headers": sized})
        if not sized:
            await send({"type": "http.response.body", "body": b"first", "more_body": True})
        await send({"type": "http.response.body", "body": b"x" * (int(scope["path"][1:]) if sized else 2)})

    connect = socket.create_connection
    with (
        bind("127.0.0.1", 0) as listening,
        Server(answers, listening, 9),
        connect(listening.getsockname(), 20) as client,
    ):
        for method, path, bodies in (
            (b"GET", b"/3", [b"xxx"]),
            (b"GET", b"/0", [b""]),
            (b"HEAD", b"/3", [b""]),
            (b"GET", b"/parts", [b"5\r\nfirst\r\n", b"2\r\nxx\r\n0\r\n\r\n"]),
        ):
            written.clear()
            client.sendall(b"%b %b HTTP/1.1\r\nHost: here\r\n\r\n" % (method, path))
            answer = b""
            while not answer.endswith(b"\r\n\r\n" + b"".join(bodies)):
                answer += client.recv(1_000)
            assert len(written) == len(bodies), (path, written)
            assert written[0].endswith(bodies[0])


@pytest.mark.parametrize("stops", [False, True])
def test_server_sends_the_last_chunk_of_an_answer_though_its_request_does_not_end(monkeypatch, stops):
    """Of a connection that is to close, at once: also of a server that stops, which cancels what it waits for."""
    serving: list[Server] = []

    async def answers(scope, receive, send):
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"first", "more_body": True})
        while stops and serving[0]._server.servers[0].is_serving():
            await asyncio.sleep(0.01)
        await send({"type": "http.response.body", "body": b"last"})

    monkeypatch.setattr(server, "GRACE_S", 1)
    with (
        bind("127.0.0.1", 0) as listening,
        Server(answers, listening, 9) as one,
        socket.create_connection(listening.getsockname(), 5) as client,
    ):
        serving.append(one)
        close = b"" if stops else b"Connection: close\r\n"
        client.sendall(b"POST / HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n%b\r\n1\r\nx\r\n" % close)
        answer = b""
        while b"first" not in answer:
            answer += client.recv(1_000)
        one._server.should_exit = stops
        while not answer.endswith(b"\r\n5\r\nfirst\r\n4\r\nlast\r\n0\r\n\r\n"):
            assert (data := client.recv(1_000)), answer
            answer += data
        client.sendall(b"0\r\n\r\n")
        assert client.recv(1_000) == b""


def test_server_closes_what_sends_no_whole_request(monkeypatch):
    """Headers that drip, and connections that say nothing; one that has sent a request may stay."""

    async def slowly(scope, receive, send):
        await asyncio.sleep(0.6)
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    monkeypatch.setattr(server, "HEADERS_S", 0.2)
    with bind("127.0.0.1", 0) as listening:
        address = listening.getsockname()
        with Server(slowly, listening, 3):
            silent, dripping, whole = (socket.create_connection(address, 10) for _ in range(3))
            dripping.sendall(b"GET / HTTP/1.1\r\nHost: ")
            whole.sendall(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
            assert silent.recv(100) == b"" and dripping.recv(100) == b""
            assert whole.recv(100).startswith(b"HTTP/1.1 204")
            for each in (silent, dripping, whole):
                each.close()


def test_server_closes_what_keeps_a_connection_open_behind_an_answer_with_no_next_request(monkeypatch):
    """An empty line, or the body of a request that was answered before it came, stop uvicorn's own timer."""

    async def answers(scope, receive, send):
        await send({"type": "http.response.start", "status": 401, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    monkeypatch.setattr(server, "HEADERS_S", 0.3)
    with bind("127.0.0.1", 0) as listening, Server(answers, listening, 9):
        head = b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: "
        for request, more in ((head + b"0\r\n\r\n", b"\r\n"), (head + b"1000000\r\n\r\n", b"x")):
            with socket.create_connection(listening.getsockname(), 20) as client:
                for _ in range(2):  # the second request finds the connection open
                    client.sendall(request)
                    assert client.recv(1000).startswith(b"HTTP/1.1 401")
                    if more == b"x":
                        break
                client.sendall(more)
                assert client.recv(100) == b"", more


def test_server_reads_headers_of_64_kib_at_most_and_bodies_of_any_length():
    async def counts(scope, receive, send):
        size, event = 0, await receive()
        while event["more_body"]:
            size, event = size + len(event["body"]), await receive()
        text = b"%d" % (size + len(event["body"]))
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(text))]})
        await send({"type": "http.response.body", "body": text})

    with bind("127.0.0.1", 0) as listening, Server(counts, listening, 9):
        with socket.create_connection(listening.getsockname(), 20) as client, contextlib.suppress(ConnectionError):
            client.sendall(b"GET / HTTP/1.1\r\nHost: here\r\nX: " + b"x" * 2**20)
            answer = client.recv(100)
            assert answer.startswith(b"HTTP/1.1 431")
            while data := client.recv(2**16):
                answer += data
            assert b"application/problem+json" in answer and b'"headers_too_long"' in answer
        with socket.create_connection(listening.getsockname(), 20) as client:
            for size in (2**20, 0, 2**18):
                client.sendall(b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: %d\r\n\r\n" % size + b"x" * size)
                answer = b""
                while not answer.endswith(b"\r\n\r\n%d" % size):
                    answer += client.recv(1000)


def test_server_asks_for_a_descriptor_of_each_connection():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    try:
        with bind("127.0.0.1", 0) as listening, Server(None, listening, 600):
            assert resource.getrlimit(resource.RLIMIT_NOFILE) == (min(1_600, before[1]), before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_server_answers_a_connection_too_many():
    answered, begun = asyncio.Event(), threading.Semaphore(0)

    async def waits(scope, receive, send):
        begun.release()
        await answered.wait()
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    with bind("127.0.0.1", 0) as listening:
        address = listening.getsockname()
        with Server(waits, listening, 2) as one:
            every = []
            for status in (b"204", b"204", b"503"):
                every.append((status, socket.create_connection(address, 10)))
                every[-1][1].sendall(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
                assert status == b"503" or begun.acquire(timeout=10)
            assert every[-1][1].recv(12) == b"HTTP/1.1 503"
            refused = b""
            while data := every[-1][1].recv(1000):
                refused += data
            head, body = refused.lower().split(b"\r\n\r\n")
            assert b"content-type: application/problem+json" in head and b"retry-after: 5" in head
            assert json.loads(body)["reason"] == "too_many_connections"
            one.call(answered.set)
            for status, each in every[:-1]:
                assert each.recv(12) == b"HTTP/1.1 " + status
            for _, each in every:
                each.close()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--set", "limits.most_connections=0"], "at least 1"),
        (["--set", "recovery.checkpoint_every=0"], "leave it out"),
        (["--trusted-proxy", "*"], "give an address, or a network"),
        (["--set", "recovery.checkpoint_every=301"], "at most 300"),
    ],
)
def test_serve_refuses_what_it_cannot_keep(tmp_path, options, said):
    with Command(["serve", "--out", tmp_path / "out", *options]) as command:
        code, _, error = command.finish(60)
    assert code == 2 and said in error and not (tmp_path / "out").exists()
