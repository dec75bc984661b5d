"""Long bodies: cut off the event loop, refused before any row is made if they have too many, answered in pieces."""

import asyncio
import http.client
import json
import os
import socket
import threading
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from gateway.serve import bodies
from gateway.serve.access import Caller
from gateway.serve.bodies import LineOutcomes
from gateway.serve.fair import Room, Share
from gateway.serve.writer import MOST_ROWS, PublishedRow
from matching import decoding
from matching.decoding import has_more_members
from matching.kinds import KINDS
from tests.support.doors import door_of
from tests.support.serving import NDJSON, call
from tests.support.writing import await_
from topology.preparing import Preparing
from topology.warmup import WORDS

JSON, GEOJSON = {"Content-Type": "application/json"}, {"Content-Type": "application/geo+json"}
TEXTS = st.text('ab,[]{}"\\ \u00e9\U0001f600', max_size=8)
VALUES = st.recursive(
    TEXTS | st.integers() | st.none(), lambda part: st.lists(part) | st.dictionaries(TEXTS, part), max_leaves=12
)


@given(st.lists(VALUES, max_size=8), st.booleans(), st.sampled_from([1, 3, 8, 2**20]), st.integers(1, 9))
def test_members_of_an_array_are_counted_as_a_reader_of_json_counts_them(rows, escaped, block_bytes, most):
    whole, decoding._BLOCK_BYTES = decoding._BLOCK_BYTES, block_bytes
    try:
        for indent in (None, 1):
            array = json.dumps(rows, ensure_ascii=escaped, indent=indent).encode()
            assert has_more_members(array, most) == (len(rows) > most)
    finally:
        decoding._BLOCK_BYTES = whole


@pytest.fixture(scope="module")
def port(tmp_path_factory):
    with door_of(tmp_path_factory.mktemp("bodies") / "out") as (_, _, found):
        yield found


@pytest.mark.parametrize(
    ("path", "media", "before", "after"),
    [
        ("/v1/messages", JSON, b" \r\n\t[", b"]"),
        ("/v1/subscriptions", JSON, b"[", b"]"),
        ("/v1/subscriptions", GEOJSON, b'{"type": "FeatureCollection", "features": [', b"]}"),
    ],
)
def test_array_of_too_many_rows_is_refused_with_their_number_before_any_is_taken(port, path, media, before, after):
    refused = call(port, "GET", "/health").json["refused"]
    for rows in (MOST_ROWS + 1, 5_000_000):
        answer = call(port, "POST", path, before + b"{}," * (rows - 1) + b"{}" + after, **media)
        assert (answer.status, answer.json["reason"]) == (413, "too_many_rows")
        assert f"{MOST_ROWS:,}" in answer.json["detail"] and NDJSON["Content-Type"] in answer.json["do"]
    assert call(port, "GET", "/health").json["refused"] == refused
    answer = call(port, "POST", path, before + b"{}," * 9 + b"{}" + after, **media)
    assert answer.status == 200 and b'"line":10,' in answer.body


def test_array_of_as_many_rows_as_may_be_is_taken_and_answered_in_order(port):
    rows = [{"id": f"m{row}", "text": "a, [b] {\\", "lon": 1, "lat": row % 80} for row in range(MOST_ROWS)]
    rows[7]["lat"] = 91
    answer = call(port, "POST", "/v1/messages", rows)
    assert answer.status == 200 and int(answer.headers["content-length"]) == len(answer.body)
    assert answer.json["accepted"] == MOST_ROWS - 1 and answer.json["refused"] == 1
    assert [one["line"] for one in answer.json["outcomes"]] == list(range(1, MOST_ROWS + 1))
    wanted = [row["id"] if row["lat"] < 91 else None for row in rows]
    assert [one.get("id") for one in answer.json["outcomes"]] == wanted
    made = [{"kind": "boolean", "keywords": "tea", "region": [0, 0, row, 1]} for row in (1, 2, 3)]
    assert [one["line"] for one in call(port, "POST", "/v1/subscriptions", made).json] == [1, 2, 3]
    assert call(port, "POST", "/v1/subscriptions", b"[]", **JSON).json == []


def test_long_body_is_cut_and_checked_in_a_thread_and_its_answer_is_sent_in_pieces(port, monkeypatch):
    threads = []
    for name in ("_members", "refused"):
        whole = getattr(bodies, name)

        def noted(*arguments, whole=whole):
            threads.append(threading.current_thread().name)
            return whole(*arguments)

        monkeypatch.setattr(bodies, name, noted)
    monkeypatch.setattr(bodies, "MOST_LINE_BYTES", 10)
    monkeypatch.setattr(bodies, "GROUP_ROWS", 100)
    answer = call(port, "POST", "/v1/messages", [{"text": "x" * 200}] * 1_000)
    assert [one["reason"] for one in answer.json["outcomes"]] == ["line_too_long"] * 1_000
    assert len(threads) == 1_001 and not any("http" in name for name in threads)


def test_bodies_that_are_read_are_bounded_together_and_another_address_finds_room(tmp_path, monkeypatch):
    monkeypatch.setattr("gateway.serve.access.MOST_BUFFERED_BYTES", 100_000)
    with door_of(tmp_path / "out") as (_, door, port), closing(socket.create_connection(("127.0.0.1", port))) as slow:
        head = "POST /v1/messages HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        slow.sendall(head.encode() + b"Content-Length: 50000\r\n\r\n[" + b" " * 49_998)
        await_(lambda: door.access.buffers.used == (49_999,))
        for path in ("/v1/messages", "/v1/subscriptions", "/v1/match", "/v1/preview", "/v1/webhooks"):
            answer = call(port, "POST", path, b"{}", **JSON)
            assert (answer.status, answer.json["reason"]) == (429, "overloaded"), path
            assert answer.headers["retry-after"] == "1"
        other = http.client.HTTPConnection("127.0.0.1", port, timeout=300, source_address=("127.0.0.2", 0))
        other.request("POST", "/v1/messages", json.dumps({"text": "tea", "lon": 1, "lat": 1}), JSON)
        assert other.getresponse().status == 200
        other.close()
        slow.sendall(b"]")
        assert slow.recv(100).startswith(b"HTTP/1.1 200")
        await_(lambda: door.access.buffers.used == (0,))
        assert call(port, "POST", "/v1/messages", [{"text": "tea", "lon": 1, "lat": 1}]).json["accepted"] == 1


def test_outcomes_of_lines_that_nobody_reads_are_bounded_and_all_come_once_they_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(bodies, "GROUP_ROWS", 10)
    room, caller, found = Room(20_000), Caller("a", frozenset()), []

    async def story(door):
        reads, body = asyncio.Event(), b'{"text": "tea", "lon": 1, "lat": 95}\n' * 500

        async def receive():
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(event):
            await reads.wait()
            found.append(event.get("body", b""))

        scope = {"type": "http", "method": "POST", "headers": [], "buffer": Share(room, "a")}
        answer = asyncio.create_task(LineOutcomes(door, caller, PublishedRow)(scope, receive, send))
        while room.used[0] < 8_000:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        assert room.used[0] <= 10_000 and not answer.done() and door.writer.refused.total() < 200
        reads.set()
        await answer

    with door_of(tmp_path / "out") as (_, door, _):
        asyncio.run_coroutine_threadsafe(asyncio.wait_for(story(door), 60), door.hub.calls.loop).result(70)
        assert [json.loads(line)["line"] for line in b"".join(found).splitlines()] == list(range(1, 501))
        assert door.writer.refused.total() == 500 and room.used == (0,)


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/subscriptions"])
def test_lines_are_read_ahead_of_the_log_within_a_bound_and_keep_their_order(tmp_path, monkeypatch, path):
    may, force = threading.Event(), os.fsync
    monkeypatch.setattr("gateway.live.write_ahead_log.os.fsync", lambda file: may.wait(60) and force(file))
    monkeypatch.setattr(bodies, "GROUP_ROWS", 10)
    key, more = "id", {"text": "tea", "lon": 1, "lat": 1}
    if path == "/v1/subscriptions":
        key, more = "subscription_id", {"kind": "boolean", "keywords": "tea", "region": [0, 0, 2, 2]}
    lines = b"".join(json.dumps({key: f"m{number}", **more}).encode() + b"\n" for number in range(300))
    most_rows = 10 * (bodies.GROUPS_AHEAD + 2)  # one more is being logged, and one waits behind the others
    may.set()
    with door_of(tmp_path / "out") as (stream, _, port):
        may.clear()
        answers = []
        asking = threading.Thread(target=lambda: answers.append(call(port, "POST", path, lines, **NDJSON)))
        asking.start()
        await_(lambda: stream.writer.lines + stream.writer.waiting >= most_rows - 10)
        assert call(port, "GET", "/health").status == 200 and not answers
        assert stream.writer.lines + stream.writer.waiting <= most_rows
        may.set()
        asking.join(60)
        outcomes = [json.loads(line) for line in answers[0].body.splitlines()]
        assert [one[key] for one in outcomes] == [f"m{number}" for number in range(300)]
        assert [one["line"] for one in outcomes] == list(range(1, 301))
        if key == "id":
            assert [one["seq"] for one in outcomes] == list(range(300))
        else:
            assert list(stream.registry.last) == [f"m{number}" for number in range(300)]


def test_lines_of_subscriptions_whose_kernels_are_compiled_are_not_overtaken_by_later_ones(tmp_path, monkeypatch):
    monkeypatch.setattr(bodies, "GROUP_ROWS", 2)
    may = threading.Event()

    class Held(Preparing):
        def _prepare(self, name):
            assert may.wait(60)

    preparing = Held(KINDS, {}, {}, load=False, ready=["boolean", WORDS])
    near = {"kind": "knn", "keywords": "tea", "lon": 1, "lat": 1, "k": 1}
    inside = {"kind": "boolean", "keywords": "tea", "region": [0, 0, 2, 2]}
    rows = [{"subscription_id": f"s{number}", **(near if number < 2 else inside)} for number in range(6)]
    with door_of(tmp_path / "out", preparing=preparing) as (stream, _, port):
        answers = []
        body = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
        path = "/v1/subscriptions"
        asking = threading.Thread(target=lambda: answers.append(call(port, "POST", path, body, **NDJSON)))
        asking.start()
        await_(lambda: stream.writer.waiting == 2)
        for _ in range(5):  # the loop has had every chance to go on
            assert call(port, "GET", "/health").json["waiting"] == 2
        may.set()
        asking.join(60)
        assert [json.loads(line)["status"] for line in answers[0].body.splitlines()] == ["created"] * 6
        assert list(stream.registry.last) == [row["subscription_id"] for row in rows]


def test_body_of_line_ends_alone_lets_others_have_the_loop():
    async def turns_of_others():
        turns = 0

        async def receive():
            return {"type": "http.request", "body": b"\r\n" * 200_000 + b"{}", "more_body": False}

        async def other():
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        groups = [one async for one in bodies._groups(Request({"type": "http"}, receive))]
        task.cancel()
        assert groups == [([200_001], [b"{}"])]
        return turns

    assert asyncio.run(turns_of_others()) >= 200_000 // bodies.GROUP_ROWS
