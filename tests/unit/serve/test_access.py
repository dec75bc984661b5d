"""Keys, tickets and limits where requests come at once, keys end in the middle, and clients leave early."""

import asyncio
import http.client
import json
import threading
from contextlib import suppress
from types import SimpleNamespace

import pytest

from gateway.serve import bodies
from gateway.serve.access import MOST_WRONG, Access, Caller
from gateway.serve.app import make_app
from gateway.serve.keys import KeyRing, RefusedKey, create_key, revoke_key
from gateway.serve.limits import Limits
from gateway.serve.problems import ApiError
from gateway.serve.registry import Registry
from matching.errors import ConfigError
from tests.support.doors import door_of
from tests.support.serving import NDJSON, call, lines_of
from tests.support.writing import await_
from topology.settings import KEYS

SUBSCRIBE, PUBLISH = frozenset({"subscribe"}), frozenset({"publish"})


def bearer(text):
    return {"Authorization": f"Bearer {text}"}


def request_of(text, address="10.0.0.1", path="/v1/subscriptions"):
    """What the gate sees of a request."""
    headers = [(b"authorization", f"Bearer {text}".encode())]
    return {"type": "http", "path": path, "query_string": b"", "headers": headers, "client": (address, 1)}


def message(name):
    return {"id": name, "text": "tea", "lon": 1, "lat": 1}


def ramen(name, **more):
    return {"subscription_id": name, "kind": "boolean", "keywords": "ramen", "region": [139, 35, 140, 36], **more}


def test_keys_whose_last_one_is_revoked_or_whose_file_is_gone_let_nobody_in(tmp_path):
    path = tmp_path / KEYS
    assert not Access(KeyRing(path), Limits()).needs_key, "there never was one"
    key, _ = create_key(path, SUBSCRIBE)
    access = Access(KeyRing(path), Limits())
    assert access.needs_key
    revoke_key(path, key.key_id)
    assert access.needs_key and Access(KeyRing(path), Limits()).needs_key, "also after a restart"
    path.unlink()
    assert access.needs_key


def test_key_whose_hash_is_damaged_is_wrong(tmp_path):
    path = tmp_path / KEYS
    key, text = create_key(path, SUBSCRIBE)
    path.write_text(path.read_text().replace(key.hash, "none"))
    assert KeyRing(path).check(text) == RefusedKey("wrong_key", "there is no such key")


def test_wrong_keys_of_an_address_are_counted_and_stop_no_right_one(tmp_path):
    """Neither one that was never seen, as after a restart, nor that whose id the wrong ones have."""
    key, text = create_key(tmp_path / KEYS, SUBSCRIBE, "shop")
    for wrong in ("sk_000000000000_x", f"sk_{key.key_id}_x", "sk_x_y", "x", f"{text}x", text[:-1]):
        access, found = Access(KeyRing(tmp_path / KEYS), Limits()), []
        for _ in range(MOST_WRONG + 5):
            with pytest.raises(ApiError) as caught:
                access.caller(request_of(wrong))
            found.append((caught.value.status, caught.value.body["reason"]))
        assert found == [(401, "wrong_key")] * MOST_WRONG + [(429, "too_many_tries")] * 5, wrong
        assert access.caller(request_of(text)).owner == "shop"
        with pytest.raises(ApiError, match="no such key"):
            access.caller(request_of(wrong, "10.0.0.2"))


@pytest.fixture
def second(monkeypatch):
    """A clock of the limits that does not move by itself."""
    clock = SimpleNamespace(now_s=1_000.0)
    monkeypatch.setattr("limits.storage.memory.time", SimpleNamespace(time=lambda: clock.now_s))
    return clock


def test_limits_count_what_is_taken_and_not_what_is_refused(tmp_path, second):
    access, caller = Access(KeyRing(tmp_path / KEYS), Limits(most_messages_per_s=10)), Caller("one", PUBLISH)
    access.count_messages(caller, 8)
    for _ in range(3):
        with pytest.raises(ApiError) as caught:
            access.count_messages(caller, 5)
        assert (caught.value.status, caught.value.headers) == (429, {"Retry-After": "1"})
    access.count_messages(caller, 2)
    with pytest.raises(ApiError) as caught:
        access.count_messages(caller, 11)
    assert caught.value.status == 413 and "Retry-After" not in caught.value.headers, "waiting does not help"
    second.now_s += 1.5
    access.count_messages(caller, 10)


def test_limits_lines_take_what_is_left_of_each_second(tmp_path, second):
    async def story():
        access, caller = Access(KeyRing(tmp_path / KEYS), Limits(most_messages_per_s=10)), Caller("one", PUBLISH)
        access.count_messages(caller, 6)
        waiting = asyncio.create_task(access.pace_messages(caller, 4 + 10))
        for _ in range(10):
            await asyncio.sleep(0.02)
        with pytest.raises(ApiError):
            access.count_messages(caller, 1)  # lines have taken what was left
        assert not waiting.done()
        second.now_s += 1.5
        await asyncio.wait_for(waiting, 20)

    asyncio.run(story())


def test_streams_of_clients_that_leave_before_they_begin_are_not_counted(tmp_path):
    with door_of(tmp_path / "out", Limits(most_streams=1)) as (_, door, port):
        app = make_app(door, None, frozenset(["127.0.0.1"]))
        for _ in range(3):
            asyncio.run(leaves_at_once(app))
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
        connection.request("GET", "/v1/updates")
        assert connection.getresponse().status == 200
        answer = call(port, "GET", "/v1/updates?poll=1&wait_s=0")
        assert (answer.status, answer.json["reason"]) == (429, "too_many_streams"), "a poll is one, too"
        connection.close()


async def leaves_at_once(app):
    """A request for a stream whose client is gone before the answer begins."""

    async def receive():
        return {"type": "http.disconnect"}

    async def send(event):
        await asyncio.sleep(0)
        raise OSError("the client is gone")

    scope = request_of("", "127.0.0.1", "/v1/updates") | {"method": "GET", "headers": [(b"host", b"127.0.0.1")]}
    scope |= {"asgi": {"version": "3.0", "spec_version": "2.4"}, "http_version": "1.1", "scheme": "http"}
    scope |= {"root_path": "", "raw_path": b"/v1/updates", "server": ("127.0.0.1", 80)}
    with suppress(Exception):  # the server logs it
        await app(scope, receive, send)


def test_streams_in_all_are_bounded(tmp_path):
    access = Access(KeyRing(tmp_path / KEYS), Limits(most_streams_in_all=2))
    three = Caller("three", SUBSCRIBE)
    with access.stream(Caller("one", SUBSCRIBE)):
        with access.stream(Caller("two", SUBSCRIBE)), pytest.raises(ApiError) as caught, access.stream(three):
            pass
        assert (caught.value.status, caught.value.body["reason"]) == (503, "too_many_streams")
        with access.stream(three):
            pass


def test_key_that_is_revoked_ends_lines_that_are_sent_and_polls_that_wait(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    key, text = create_key(out / KEYS, frozenset({"subscribe", "publish"}))
    with door_of(out) as (stream, door, port):
        sending = []
        for path, row in (("/v1/messages", message("a")), ("/v1/subscriptions", ramen("a"))):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
            connection.putrequest("POST", path)
            for name, value in {**NDJSON, **bearer(text), "Transfer-Encoding": "chunked"}.items():
                connection.putheader(name, value)
            connection.endheaders()
            send(connection, row)
            answer = connection.getresponse()
            assert json.loads(answer.readline())["status"] in ("accepted", "created")
            sending.append((connection, answer, row))
        polled = []
        poll = threading.Thread(
            target=lambda: polled.append(call(port, "GET", "/v1/updates?poll=1&wait_s=2", **bearer(text)))
        )
        poll.start()
        await_(lambda: door.hub.clients == 1)
        revoke_key(out / KEYS, key.key_id)
        for connection, answer, row in sending:  # one sends on, the other waits
            if "id" in row:
                send(connection, {**row, "id": "b"})
            last = json.loads(answer.readline())
            assert last["status"] == "failed" and last["problem"]["reason"] == "wrong_key"
            connection.close()
        poll.join(20)
        assert polled[0].status == 401 and b"progress" not in polled[0].body
        assert stream.wal.next_seq == 1


def send(connection, row):
    data = lines_of([row])
    connection.send(b"%x\r\n%s\r\n" % (len(data), data))


def test_key_of_all_owners_has_no_owner(tmp_path):
    with pytest.raises(ConfigError, match="admin"):
        create_key(tmp_path / KEYS, frozenset({"admin"}), "shop")


def test_owner_of_an_id_stays_whatever_the_log_has_and_none_is_as_absent(tmp_path):
    with door_of(tmp_path / "out") as (stream, _, port):
        registry: Registry = stream.registry
        assert call(port, "POST", "/v1/subscriptions", ramen("none", owner=None)).status == 201
        assert registry.get("none").owner == ""
        assert call(port, "POST", "/v1/subscriptions", ramen("a", owner="shop")).status == 201
        stream.admission.row({"subscribe": ramen("a")})  # as `skyray live` does
        assert registry.get("a").owner == registry.owner_of("a") == "shop" and registry.owned["shop"] == 1


def test_body_that_does_not_come_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(bodies, "BODY_S", 0.2)
    with door_of(tmp_path / "out") as (_, _, port):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
        connection.putrequest("POST", "/v1/messages")
        connection.putheader("Content-Type", "application/json")
        connection.putheader("Content-Length", "100")
        connection.endheaders(b"{")
        answer = connection.getresponse()
        assert answer.status == 408 and json.loads(answer.read())["reason"] == "body_too_slow"
        connection.close()
