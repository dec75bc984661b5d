"""Keys of a real server: what needs one, what its scopes and owner allow, when it ends; and limits of callers."""

import json
import os
import socket
import stat
import threading
import time
from types import SimpleNamespace

import pytest

from gateway.serve.access import Access
from gateway.serve.access import Caller as AccessCaller
from gateway.serve.keys import Key, KeyRing, RefusedKey, create_key, read_keys, revoke_key
from gateway.serve.limits import Limits
from gateway.serve.problems import ApiError
from matching.errors import ConfigError, InputError
from tests.support.mirrored_disk import MirroredDisk, Unlucky
from tests.support.processes import Command
from tests.support.serving import Served, call, free_port, kill, lines_of
from tests.support.simulated_disk import Machine
from topology.settings import KEYS

#: Answered to anybody: whether the server lives, and its description.
OPEN = {"/health", "/ready", "/openapi.json"}
NDJSON = "application/x-ndjson"


class Caller:
    """Calls a server with one key, or none."""

    def __init__(self, port, key=None):
        self.port = port
        self.headers = {"Authorization": f"Bearer {key}"} if key else {}

    def __call__(self, method, path, body=None, **headers):
        return call(self.port, method, path, body, **headers, **self.headers)


def keys_of(out, **wanted):
    """A key of each name, made before there is a stream."""
    out.mkdir()
    return {name: create_key(out / KEYS, frozenset(scopes), owner)[1] for name, (scopes, owner) in wanted.items()}


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    out = tmp_path_factory.mktemp("keys") / "out"
    made = keys_of(
        out,
        shop=({"subscribe"}, "shop"),
        rival=({"subscribe"}, "rival"),
        feed=({"publish"}, None),
        admin=({"admin"}, None),
    )
    with Served(out, "--allow-origin", "https://shop.example") as one:
        callers = {name: Caller(one.port, key) for name, key in made.items()}
        yield SimpleNamespace(keys=made, out=out, port=one.port, call=one.call, **callers)
        said = one.end()
    assert not any(key in said for key in made.values()), "a key is written nowhere"
    files = [path.read_bytes() for path in out.rglob("*") if path.is_file()]
    assert not any(key.split("_", 2)[2].encode() in data for key in made.values() for data in files)


def ramen(name, **more):
    return {"subscription_id": name, "kind": "boolean", "keywords": "ramen", "region": [139, 35, 140, 36], **more}


def message(name):
    return {"id": name, "text": "ramen", "lon": 139.5, "lat": 35.5}


def refused(answer, status, reason):
    assert (answer.status, answer.json["reason"]) == (status, reason), answer
    return answer


def paths_of(served):
    described = served.call("GET", "/openapi.json").json
    assert described["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
    every = [(path, method.upper()) for path, methods in described["paths"].items() for method in methods]
    assert len(every) > 15
    return [(path.replace("{subscription_id}", "s1"), method) for path, method in every if path not in OPEN]


def test_keys_every_path_asks_for_one_and_for_its_scope(served):
    for path, method in paths_of(served):
        answer = refused(served.call(method, path), 401, "no_key")
        assert answer.headers["www-authenticate"] == "Bearer"
        publishes = path in ("/v1/messages", "/v1/objects", "/metrics") or path.startswith("/v1/objects/")
        wanted = served.shop if publishes else served.feed
        refused(wanted(method, path), 403, "missing_scope")
    refused(Caller(served.port, "sk_000000000000_x")("GET", "/metrics"), 401, "wrong_key")
    for path in OPEN | {"/", "/page/app.js"}:
        assert served.call("GET", path).status in (200, 503)
    for other in (f"Basic {served.keys['shop']}", served.keys["shop"], "Bearer", ""):
        assert served.call("GET", "/v1/subscriptions", Authorization=other).status == 401
    assert served.call("GET", f"/v1/subscriptions?key={served.keys['shop']}").status == 401
    assert served.call("GET", "/nowhere").status == 401, "what is not listed is not open"
    assert served.admin("GET", "/metrics").status == 200


def test_keys_no_path_leads_out_of_the_page(served):
    for rest in (
        "../keys.json",
        "%2e%2e/%2e%2e/keys.json",
        "..%2f..%2fkeys.json",
        "%252e%252e/x",
        "/etc/passwd",
        "%00",
    ):
        assert served.admin("GET", f"/page/{rest}").status in (400, 401, 403, 404), rest


def test_owners_see_and_change_their_own_alone(served):
    assert served.shop("POST", "/v1/subscriptions", ramen("mine")).status == 201
    assert served.rival("POST", "/v1/subscriptions", ramen("theirs")).status == 201
    assert served.admin("POST", "/v1/subscriptions", ramen("nobodys")).status == 201
    listed = {
        name: served.__dict__[name]("GET", "/v1/subscriptions").json["subscriptions"]
        for name in ("shop", "rival", "admin")
    }
    assert [(row["subscription_id"], row["owner"]) for row in listed["shop"]] == [("mine", "shop")]
    assert [row["subscription_id"] for row in listed["rival"]] == ["theirs"]
    assert {row["subscription_id"] for row in listed["admin"]} >= {"mine", "theirs", "nobodys"}
    of_shop = served.admin("GET", "/v1/subscriptions?owner=shop").json["subscriptions"]
    assert of_shop == listed["shop"]
    seq = served.feed("POST", "/v1/messages?wait=delivered", message("o1")).json["seq"]
    rival = served.rival
    for path in ("", "/results"):
        refused(rival("GET", f"/v1/subscriptions/mine{path}"), 404, "unknown_subscription")
    refused(rival("GET", "/v1/explain?subscription=mine&message=o1"), 404, "unknown_subscription")
    refused(rival("DELETE", "/v1/subscriptions/mine"), 404, "unknown_subscription")
    for change in (("PUT", "/v1/subscriptions/mine"), ("POST", "/v1/subscriptions?replace=true")):
        answer = refused(rival(*change, ramen("mine", keywords="udon")), 409, "subscription_exists")
        assert "shop" not in answer.body.decode()
    refused(rival("POST", "/v1/subscriptions", ramen("forged", owner="shop")), 422, "bad_owner")
    (line,) = rival("POST", "/v1/subscriptions", lines_of([{"unsubscribe": "mine"}]), Content_Type=NDJSON).lines
    assert line["reason"] == "unknown_subscription"
    assert served.shop("GET", "/v1/subscriptions/mine").status == 200
    assert [row["subscription_id"] for row in served.rival("POST", "/v1/match", message("x")).json["reached"]] == [
        "theirs"
    ]

    def told(caller, query=""):
        lines = caller("GET", f"/v1/updates?poll=1&wait_s=0&since={seq - 1}{query}").lines
        return {row["subscription_id"] for row in lines if "change" in row}

    assert told(served.shop) == {"mine"} and told(served.rival) == {"theirs"}
    mine = rival("GET", "/v1/updates?poll=1&subscription=mine")
    assert mine.body.replace(b"mine", b"none") == rival("GET", "/v1/updates?poll=1&subscription=none").body
    refused(mine, 404, "unknown_subscription")
    assert told(served.admin, "&subscription=mine&owner=rival") == set(), "naming it does not help"
    assert told(served.admin, "&owner=shop") == {"mine"} and told(served.admin) >= {"mine", "theirs", "nobodys"}
    refused(served.rival("GET", "/v1/updates?poll=1&owner=shop"), 403, "missing_scope")
    # an id stays with its owner: its updates are there still
    assert served.shop("DELETE", "/v1/subscriptions/mine").status == 200
    refused(rival("POST", "/v1/subscriptions", ramen("mine")), 409, "subscription_exists")
    assert served.shop("POST", "/v1/subscriptions", ramen("mine")).status == 201


def test_key_that_is_revoked_or_expired_ends_its_streams(served):
    path = served.out / KEYS
    key, text = create_key(path, frozenset({"subscribe"}), "shop")
    _, brief = create_key(path, frozenset({"subscribe"}), "shop", lasts_s=2.0)
    assert Caller(served.port, text)("GET", "/v1/subscriptions").status == 200, "a new key counts at once"
    ended = []

    def follow(name, secret):
        answer = Caller(served.port, secret)("GET", "/v1/updates")
        ended.append((name, answer.status))

    threads = [threading.Thread(target=follow, args=one) for one in (("revoked", text), ("expired", brief))]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 300
    while served.admin("GET", "/health").json["clients"] < 2:
        assert time.monotonic() < deadline
    revoke_key(path, key.key_id)
    refused(Caller(served.port, text)("GET", "/v1/subscriptions"), 401, "wrong_key")
    for thread in threads:
        thread.join(30)
    assert sorted(ended) == [("expired", 200), ("revoked", 200)]
    refused(Caller(served.port, brief)("GET", "/v1/subscriptions"), 401, "expired_key")
    assert served.shop("GET", "/v1/subscriptions").status == 200


def test_key_that_was_revoked_does_not_come_back_when_the_machine_stops(tmp_path):
    machine = Machine(str(tmp_path))
    disk = MirroredDisk(machine, tmp_path / "disk")
    with disk.watched():
        made = [create_key(disk.root / KEYS, frozenset({"subscribe"}), "shop")[0] for _ in range(2)]
        revoke_key(disk.root / KEYS, made[0].key_id)
    disk.restart()
    disk.lose(Unlucky())
    assert list(read_keys(disk.root / KEYS)) == [made[1].key_id]
    machine.forget()


def test_keys_that_cannot_be_read_let_nobody_in(served):
    path = served.out / KEYS
    whole = path.read_bytes()
    try:
        path.write_bytes(whole[: len(whole) // 2])
        refused(served.admin("GET", "/v1/subscriptions"), 503, "bad_keys")
        refused(served.call("GET", "/v1/subscriptions"), 503, "bad_keys")
    finally:
        path.write_bytes(whole)
    assert served.admin("GET", "/v1/subscriptions").status == 200


def test_scripts_of_named_pages_alone_may_call(served):
    asked = {"Access_Control_Request_Method": "POST", "Access_Control_Request_Headers": "authorization"}
    ours = served.call("OPTIONS", "/v1/messages", Origin="https://shop.example", **asked)
    assert ours.headers["access-control-allow-origin"] == "https://shop.example"
    other = served.call("OPTIONS", "/v1/messages", Origin="https://else.example", **asked)
    assert "access-control-allow-origin" not in other.headers
    refusal = served.call("GET", "/v1/subscriptions", Origin="https://shop.example")
    assert refusal.status == 401 and refusal.headers["access-control-allow-origin"] == "https://shop.example"


def test_owners_survive_a_kill_and_limits_are_kept(tmp_path):
    out, port = tmp_path / "out", free_port()
    made = keys_of(out, shop=({"subscribe", "publish"}, "shop"), rival=({"subscribe"}, "rival"))
    bounds = {"messages_per_s": 50, "subscriptions": 3, "streams": 2}
    options = [word for name, most in bounds.items() for word in ("--set", f"limits.most_{name}={most}")]
    options += ["--require-key", "--allowed-host", "Stream.example"]
    shop, rival = (Caller(port, made[name]) for name in ("shop", "rival"))
    with Served(out, *options, port=port) as one:
        for name in "abc":
            assert shop("POST", "/v1/subscriptions", ramen(name)).status == 201
        refused(shop("POST", "/v1/subscriptions", ramen("d")), 403, "too_many_subscriptions")
        kill(one)
    with Served(out, *options, port=port) as one:
        assert [row["owner"] for row in shop("GET", "/v1/subscriptions").json["subscriptions"]] == ["shop"] * 3
        assert rival("GET", "/v1/subscriptions").json["subscriptions"] == []
        refused(shop("POST", "/v1/subscriptions", ramen("d")), 403, "too_many_subscriptions")
        assert shop("PUT", "/v1/subscriptions/a", ramen("a", keywords="udon")).json["status"] == "replaced"
        assert shop("DELETE", "/v1/subscriptions/a").status == 200
        assert shop("POST", "/v1/subscriptions", ramen("d")).status == 201
        assert rival("POST", "/v1/subscriptions", ramen("e")).status == 201, "of each owner"

        many = [message(f"x{at}") for at in range(51)]
        refused(shop("POST", "/v1/messages", many), 413, "too_many_messages")
        while (answer := shop("POST", "/v1/messages", many[:50])).status == 200:
            pass
        assert refused(answer, 429, "too_many_messages").headers["retry-after"] == "1"
        lines, began = lines_of([message(f"l{at}") for at in range(120)]), time.monotonic()
        outcomes = shop("POST", "/v1/messages", lines, Content_Type=NDJSON).lines
        assert [row["status"] for row in outcomes] == ["accepted"] * 120 and time.monotonic() - began > 1.0

        held = [socket.create_connection(("127.0.0.1", port)) for _ in range(2)]
        head = f"GET /v1/updates HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {made['shop']}\r\n\r\n"
        for each in held:
            each.sendall(head.encode())
            assert each.recv(100).startswith(b"HTTP/1.1 200")
        refused(shop("GET", "/v1/updates"), 429, "too_many_streams")
        for each in held:
            each.close()

        assert shop("GET", "/v1/subscriptions", Host="stream.example:8080").status == 200
        refused(shop("GET", "/v1/subscriptions", Host="else.example"), 421, "wrong_host")
        for key_id in read_keys(out / KEYS):
            revoke_key(out / KEYS, key_id)
        refused(one.call("GET", "/v1/subscriptions"), 401, "no_key")
        assert [shop("GET", "/v1/subscriptions").status for _ in range(25)] == [401] * 20 + [429] * 5
        one.end()


def test_requests_of_a_caller_are_bounded_and_those_of_others_are_not(tmp_path):
    access = Access(KeyRing(tmp_path / KEYS), Limits(most_requests_per_s=2))
    one, other = AccessCaller("one", frozenset()), AccessCaller("other", frozenset())
    with pytest.raises(ApiError, match="2 requests a second"):
        for _ in range(1_000):
            access.count_request(one)
    access.count_request(other)
    Access(KeyRing(tmp_path / KEYS), Limits()).count_request(one)


def test_serve_for_other_machines_wants_a_key(tmp_path):
    with Command(["serve", "--out", tmp_path / "out", "--host", "0.0.0.0", "--port", 0]) as command:
        code, _, error = command.finish(60)
    assert code == 2 and "skyray keys create" in error and not (tmp_path / "out").exists()


def run(*words):
    with Command(["keys", *words]) as command:
        return command.finish(60)


def test_keys_command_makes_lists_and_revokes(tmp_path):
    out = tmp_path / "out"
    code, text, _ = run("create", "--out", out, "--scope", "publish", "--scope", "subscribe", "--owner", "shop")
    assert code == 0 and text.startswith("sk_") and len(text.strip().splitlines()) == 1
    assert stat.S_IMODE(os.stat(out / KEYS).st_mode) == 0o600 and stat.S_IMODE(os.stat(out).st_mode) == 0o700
    code, listed, _ = run("list", "--out", out, "--json")
    (key,) = json.loads(listed)["keys"]
    assert (key["scopes"], key["owner"], key["expires"]) == (["subscribe", "publish"], "shop", None)
    _, key_id, secret = text.strip().split("_", 2)  # a secret may contain what parts them
    assert secret not in listed and key["id"] == key_id
    ring = KeyRing(out / KEYS)
    found = ring.check(text.strip())
    assert isinstance(found, Key) and found.owner == "shop"
    assert isinstance(ring.check(text.strip() + "x"), RefusedKey) and isinstance(ring.check("sk_"), RefusedKey)
    assert run("revoke", key["id"], "--out", out)[0] == 0
    assert ring.check(text.strip()) == RefusedKey("wrong_key", "there is no such key")
    code, _, error = run("revoke", "none", "--out", out)
    assert code == 2 and "skyray keys list" in error
    code, text, _ = run("list", "--keys", out / KEYS)
    assert code == 0 and "every request is refused" in text
    code, _, error = run("list")
    assert code == 2 and "--out or --keys" in error
    code, _, error = run("create", "--out", out, "--scope", "everything")
    assert code == 2 and "choose one of subscribe, publish, admin" in error
    with pytest.raises(ConfigError, match="--owner"):
        create_key(out / KEYS, frozenset({"publish"}), "")
    (out / KEYS).write_text("{")
    with pytest.raises(InputError, match="cannot be read"):
        read_keys(out / KEYS)
    (out / KEYS).write_text('{"format": "skyray-keys-1", "keys": []}')
    with pytest.raises(InputError, match="make new keys"):
        read_keys(out / KEYS)
