"""HTTP as clients of all sorts speak it: half-closed connections, HTTP/1.0, long headers, two hosts, long bodies."""

import contextlib
import json
import socket
from urllib.parse import quote

import pytest
from fastapi import FastAPI

from gateway.serve import server
from gateway.serve.keys import create_key
from gateway.serve.limits import Limits
from gateway.serve.server import Server, bind
from tests.support.doors import door_of
from tests.support.serving import call, lines_of
from tests.support.writing import await_
from topology.settings import KEYS

HOST = b"Host: 127.0.0.1\r\n"
ROW = {"text": "tea", "lon": 1, "lat": 1}


@pytest.fixture(scope="module")
def door(tmp_path_factory):
    with door_of(tmp_path_factory.mktemp("http") / "out") as (_, door, port):
        yield door, port


@pytest.fixture
def port(door):
    return door[1]


def talk(port, data, *, ends=False, seconds=20):
    """All that a server sends until it closes the connection, or has sent nothing for some seconds."""
    with socket.create_connection(("127.0.0.1", port), seconds) as client:
        client.sendall(data)
        if ends:
            client.shutdown(socket.SHUT_WR)
        found = b""
        with contextlib.suppress(TimeoutError):
            while part := client.recv(2**16):
                found += part
    return found


def request(method, path, body=b"", kind=b"application/json", version=b"1.1", more=b""):
    head = b"%s %s HTTP/%s\r\n%sContent-Type: %s\r\nContent-Length: %d\r\n%s\r\n"
    return head % (method, path, version, HOST, kind, len(body), more) + body


def parts(answer):
    """Status, headers in lower case, body."""
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), head.lower(), body


@pytest.mark.parametrize("kind", [b"application/json", b"application/x-ndjson"])
def test_client_that_closes_its_sending_side_gets_its_answer(port, kind):
    status, _, body = parts(talk(port, request(b"POST", b"/v1/messages", json.dumps(ROW).encode(), kind), ends=True))
    assert status == 200 and b'"accepted"' in body


def test_client_that_closes_its_sending_side_gets_the_answers_of_all_its_requests(port):
    one = request(b"POST", b"/v1/messages", json.dumps(ROW).encode())
    assert talk(port, one * 3, ends=True).count(b'"accepted"') == 3


def test_client_that_closes_its_sending_side_amid_a_request_gets_nothing_and_no_traceback(port, capfd):
    whole = request(b"POST", b"/v1/messages", json.dumps(ROW).encode())
    assert talk(port, whole[:-1], ends=True) == b""
    assert call(port, "GET", "/health").status == 200
    assert "Traceback" not in capfd.readouterr().err


def test_stream_without_an_end_ends_when_its_client_closes_its_sending_side(door, capfd):
    state, port = door
    with socket.create_connection(("127.0.0.1", port), 20) as client:
        client.sendall(b"GET /v1/updates HTTP/1.1\r\n" + HOST + b"\r\n")
        assert client.recv(12) == b"HTTP/1.1 200"
        await_(lambda: state.hub.clients == 1)
        client.shutdown(socket.SHUT_WR)
        while client.recv(2**16):
            pass
    await_(lambda: state.hub.clients == 0)
    assert capfd.readouterr().err == ""


def test_http_1_0_gets_no_chunks_and_the_end_of_the_connection_ends_a_body(port):
    rows = lines_of([ROW, ROW])
    data = request(b"POST", b"/v1/messages", rows, b"application/x-ndjson", b"1.0", b"Expect: 100-continue\r\n")
    status, head, body = parts(talk(port, data))
    assert status == 200 and b"transfer-encoding" not in head and b"content-length" not in head
    assert [json.loads(line)["status"] for line in body.splitlines()] == ["accepted"] * 2
    status, head, body = parts(talk(port, b"GET /health HTTP/1.0\r\n" + HOST + b"\r\n"))
    assert status == 200 and b"content-length: %d\r\n" % len(body) in head and json.loads(body)["status"] == "ok"
    stream = b"GET /v1/updates?since=begin HTTP/1.0\r\n" + HOST + b"Accept: text/event-stream\r\n\r\n"
    status, head, body = parts(talk(port, stream, seconds=0.5))
    assert status == 200 and b"chunked" not in head and body.startswith(b"retry: ")


@pytest.mark.parametrize(
    ("line", "headers", "status", "reason"),
    [
        (b"GET /health", HOST + b"X: " + b"x" * 66_000 + b"\r\n", 431, "headers_too_long"),
        (b"GET /health", HOST + b"".join(b"X%d: 1\r\n" % at for at in range(10_000)), 431, "headers_too_long"),
        (b"GET /health", HOST + b"X: " + b"x" * 2_000_000 + b"\r\n", 431, "headers_too_long"),
        (b"GET /health?" + b"x" * 66_000, HOST, 414, "url_too_long"),
        (b"GET /health", HOST + b"Host: evil\r\n", 400, "bad_request"),
        (b"GET /health", HOST * 2, 400, "bad_request"),
        (b"GET /health", b"", 400, "bad_request"),
        (b"GET http://evil/health", HOST, 421, "wrong_host"),
        (b"GET http://127.0.0.1:1/health", b"Host: evil\r\n", 200, None),
        (b"GET /health", HOST + b"X: " + b"x" * 60_000 + b"\r\n", 200, None),
    ],
    ids=lambda value: str(value)[:30],
)
def test_headers_that_are_too_long_or_name_two_hosts_are_refused(port, line, headers, status, reason):
    found, head, body = parts(talk(port, line + b" HTTP/1.1\r\n" + headers + b"Connection: close\r\n\r\n"))
    assert (found, json.loads(body).get("reason")) == (status, reason)
    assert reason is None or b"application/problem+json" in head


def test_request_that_cannot_be_read_takes_no_answer_from_the_one_before(port, capfd):
    row = json.dumps(ROW).encode()
    for bad in (b"garbage\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\nX: " + b"x" * 70_000 + b"\r\n\r\n"):
        for ends in (False, True):
            answer = talk(port, request(b"POST", b"/v1/messages", row) + bad, ends=ends)
            assert answer.count(b"HTTP/1.1") == 1 and parts(answer)[0] == 200, (bad[:20], answer)
    assert "Traceback" not in capfd.readouterr().err


def test_body_that_cannot_be_read_is_refused_or_ends_the_connection(port, capfd):
    head = b"POST /v1/messages HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\nContent-Type: application/"
    assert parts(talk(port, head + b"json\r\n\r\nzz\r\n"))[0] == 400
    line = lines_of([ROW])
    with socket.create_connection(("127.0.0.1", port), 20) as client:
        client.sendall(head + b"x-ndjson\r\n\r\n%x\r\n%s\r\n" % (len(line), line))
        answer = b""
        while b'"accepted"' not in answer:
            answer += client.recv(2**16)
        client.sendall(b"zz\r\n")
        while part := client.recv(2**16):
            answer += part
    assert answer.count(b"HTTP/1.1") == 1
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("more", [b"", b"Connection: close\r\n"])
@pytest.mark.parametrize("chunked", [False, True])
def test_body_that_is_too_long_is_answered_and_read_to_its_end(port, more, chunked):
    """A connection that is closed before resets the client's, which then reads no answer."""
    body, head = b"x" * 50_000_000, b"POST /v1/messages HTTP/1.1\r\n" + HOST + b"Content-Type: application/json\r\n"
    if chunked:
        data = head + more + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    else:
        data = head + more + b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
    again = b"" if more else b"GET /health HTTP/1.1\r\nConnection: close\r\n" + HOST + b"\r\n"
    answers = talk(port, data + again)
    assert parts(answers)[0] == 413 and b"body_too_long" in answers
    assert more or answers.count(b"HTTP/1.1 200") == 1, "the connection goes on"


def test_body_that_nobody_reads_and_that_does_not_come_holds_no_connection(monkeypatch):
    async def refuses(scope, receive, send):
        await send({"type": "http.response.start", "status": 401, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"no"})

    monkeypatch.setattr(server, "HEADERS_S", 0.3)
    with bind("127.0.0.1", 0) as listening, Server(refuses, listening, 9):
        for more in (b"", b"Expect: 100-continue\r\n", b"Connection: close\r\n"):
            head = b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 9\r\n" + more + b"\r\n"
            answer = talk(listening.getsockname()[1], head)
            assert answer.startswith(b"HTTP/1.1 401") and answer.endswith(b"no") and b" 100 " not in answer


REGION = {"kind": "boolean", "keywords": "ramen", "region": [139, 35, 140, 36]}


def refused(answer, status, reason):
    assert (answer.status, answer.json.get("reason")) == (status, reason), answer
    return answer.json


def test_head_of_every_path_is_answered_as_get_without_a_body(door):
    state, port = door
    state.ready = True
    assert call(port, "PUT", "/v1/subscriptions/headed", REGION).status in (200, 201)
    described = call(port, "GET", "/openapi.json").json["paths"]
    there = {"{subscription_id}": "headed", "/explain": "/explain?subscription=headed&message=seq:0"}
    paths = ["/", "/topology", "/openapi.json", "/page/app.js"]
    for path, methods in described.items():
        for name, value in there.items():
            path = path.replace(name, value)
        if "get" in methods and "webhook_id" not in path:
            paths.append(path)
    assert {"/health", "/ready", "/metrics", "/v1/updates", "/v1/subscriptions/headed"} < set(paths)
    for path in paths:
        answer = talk(port, b"HEAD %s HTTP/1.1\r\n%sConnection: close\r\n\r\n" % (path.encode(), HOST), seconds=10)
        status, _, body = parts(answer)
        wanted = 200 if path == "/v1/updates" else call(port, "GET", path).status
        assert (status, body) == (wanted, b""), path
    await_(lambda: state.hub.clients == 0)
    answer = call(port, "HEAD", "/v1/match")
    assert (answer.status, answer.body) == (405, b"")
    assert call(port, "POST", "/health").headers["allow"] == "GET, HEAD"


@pytest.mark.parametrize(
    ("header", "value", "wanted"),
    [
        ("If-Match", "TAG", 200),
        ("If-Match", '"other", TAG', 200),
        ("If-Match", 'TAG,"other"', 200),
        ("If-Match", '"a, b" ,, TAG', 200),
        ("If-Match", '"other"', 412),
        ("If-Match", "W/TAG", 412),
        ("If-Match", "*", 200),
        ("If-Match", '*, "other"', 422),
        ("If-Match", "other", 422),
        ("If-None-Match", "*", 412),
        ("If-None-Match", "TAG", 412),
        ("If-None-Match", "W/TAG", 412),
        ("If-None-Match", '"other", TAG', 412),
        ("If-None-Match", '"other", W/"another"', 200),
    ],
)
def test_lists_of_entity_tags_are_compared_one_by_one(port, header, value, wanted):
    path = "/v1/subscriptions/tagged"
    call(port, "PUT", path, REGION)
    value = value.replace("TAG", tag := call(port, "GET", path).headers["etag"])
    assert call(port, "PUT", path, REGION, **{header: value}).status == wanted
    read = call(port, "GET", path, **{header: value})
    assert read.status == (304 if (header, wanted) == ("If-None-Match", 412) else wanted)
    assert read.status != 304 or (read.headers["etag"], read.body) == (tag, b"")
    assert call(port, "DELETE", path, **{header: value}).status == wanted


def test_conditions_of_two_headers_are_all_tested(port):
    path = "/v1/subscriptions/both"
    call(port, "PUT", path, REGION)
    tag = call(port, "GET", path).headers["etag"]
    lines = f'PUT {path} HTTP/1.1\r\nIf-Match: "other"\r\nIf-Match: {tag}\r\n'.encode()
    body = b"Content-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s"
    data = json.dumps(REGION).encode()
    assert parts(talk(port, lines + HOST + body % (len(data), data)))[0] == 200
    assert call(port, "GET", path, If_Match='"other"', If_None_Match=tag).status == 412
    assert call(port, "PUT", "/v1/subscriptions/none", REGION, If_Match="*").status == 412
    assert call(port, "PUT", "/v1/subscriptions/none", REGION, If_None_Match="*").status == 201


@pytest.mark.parametrize("name", ["a%2Fb", "a/b", "%", "100%25", "%2525", "a b+c", "é%C3%A9", "..", "?x=1#y"])
def test_ids_are_decoded_once(port, name):
    path = f"/v1/subscriptions/{quote(name, safe='')}"
    columns = REGION | {"subscription_id": name}
    assert call(port, "PUT", path, columns).status in (200, 201)
    assert call(port, "GET", path).json == columns
    assert call(port, "GET", path.replace("/v1/sub", "/v1/%73ub")).json == columns
    assert call(port, "GET", f"/v1/subscriptions?id={quote(name, safe='')}").json["subscriptions"] == [columns]
    assert call(port, "GET", f"{path}/results").json["subscription_id"] == name
    location = call(port, "DELETE", path)
    assert location.status == 200 and call(port, "GET", path).status == 404


def test_parameters_that_a_path_has_not_are_refused_everywhere(door):
    state, port = door
    state.ready = True
    for path, methods in call(port, "GET", "/openapi.json").json["paths"].items():
        for method, operation in methods.items():
            address = f"{path}?no_such_parameter=1"
            body = {} if "requestBody" in operation else None
            found = refused(call(port, method.upper(), address, body), 422, "unknown_parameter")
            assert "no_such_parameter" in found["detail"] and found["where"] == "query"
            for one in operation.get("parameters", []):
                if one["in"] == "query":
                    answer = call(port, method.upper(), f"{path}?{one['name']}s=x", body)
                    assert f"did you mean {one['name']}?" in refused(answer, 422, "unknown_parameter")["detail"]
    answer = call(port, "GET", "/v1/updates?poll=1&subscripton=a")
    assert "did you mean subscription?" in refused(answer, 422, "unknown_parameter")["detail"]


def test_updates_of_a_subscription_that_never_was_are_refused_and_of_one_that_was_are_not(port):
    call(port, "PUT", "/v1/subscriptions/ended", REGION)
    call(port, "DELETE", "/v1/subscriptions/ended")
    assert call(port, "GET", "/v1/updates?poll=1&wait_s=0&since=begin&subscription=ended").status == 200
    for query in ("subscription=nope", "poll=1&wait_s=0&subscription=ended&subscription=nope"):
        found = refused(call(port, "GET", f"/v1/updates?{query}"), 404, "unknown_subscription")
        assert "'nope'" in found["detail"] and found["where"] == "query subscription"


@pytest.mark.parametrize(
    ("trusted", "sent", "seen"),
    [
        ([], "10.9.8.7", "127.0.0.1"),
        (["10.0.0.0/8"], "10.9.8.7", "127.0.0.1"),
        (["127.0.0.1/32"], "10.9.8.7", "10.9.8.7"),
        (["127.0.0.0/8"], "forged, 10.9.8.7, 127.0.0.9", "10.9.8.7"),
    ],
)
def test_addresses_are_those_of_connections_but_for_trusted_proxies(trusted, sent, seen):
    """uvicorn believes everybody on its machine by default, also by the environment."""

    async def tells(scope, receive, send):
        text = scope["client"][0].encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(text))]})
        await send({"type": "http.response.body", "body": text})

    with bind("127.0.0.1", 0) as listening, Server(tells, listening, 9, trusted):
        assert call(listening.getsockname()[1], "GET", "/", X_Forwarded_For=sent).body.decode() == seen


def test_limits_of_an_address_count_whatever_it_says_to_be_forwarded_for(tmp_path):
    with door_of(tmp_path / "out", Limits(most_requests_per_s=5)) as (_, _, port):
        statuses = [call(port, "GET", "/v1/stream", X_Forwarded_For=f"10.9.8.{at}").status for at in range(30)]
    assert statuses.count(429) > 10


def test_health_without_a_key_names_no_host(tmp_path):
    (tmp_path / "out").mkdir()
    keys = {scope: create_key(tmp_path / "out" / KEYS, frozenset({scope}))[1] for scope in ("subscribe", "admin")}
    named, error = "postgres/db@10.1.2.3.public", "postgres/db: 10.1.2.3 cannot be reached"
    sink = {"name": named, "state": "away", "error": error, "delivered": 7}
    with door_of(tmp_path / "out") as (_, door, port):
        door.sinks = lambda: [dict(sink)]
        door.ready = True
        for path in ("/health", "/ready"):
            answer = call(port, "GET", path)
            assert answer.json["sinks"] == [sink | {"name": "postgres", "error": None}]
            assert b"10.1.2.3" not in answer.body
        for scope, shown in (("subscribe", sink | {"name": "postgres", "error": None}), ("admin", sink)):
            answer = call(port, "GET", "/v1/topology", Authorization=f"Bearer {keys[scope]}")
            assert answer.json["sinks"] == [shown]
    with door_of(tmp_path / "open") as (_, door, port):
        door.sinks = lambda: [dict(sink)]
        assert call(port, "GET", "/health").json["sinks"] == [sink], "without keys everybody may see all"


def test_message_is_published_without_the_framework_and_its_unexpected_error_is_a_problem(door, monkeypatch):
    state, port = door

    async def refuse(*_):
        raise AssertionError("the framework was called")

    monkeypatch.setattr(FastAPI, "__call__", refuse)
    answer = call(port, "POST", "/v1/messages", ROW | {"id": "bare"})
    assert (answer.status, answer.json["status"]) == (200, "accepted")
    for path, error in (("/v1/messages", RuntimeError), ("/v1/updates", AssertionError)):
        monkeypatch.setattr(state.writer, "submit", raising(RuntimeError("nobody expected it")))
        answer = call(port, "POST", path, ROW)
        assert (answer.status, answer.json["reason"]) == (500, "failed")
        assert error.__name__ in answer.json["do"] and answer.headers["content-type"] == "application/problem+json"


def raising(error):
    def fail(*_):
        raise error

    return fail
