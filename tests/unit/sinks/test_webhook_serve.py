"""`/v1/webhooks` of a server that runs: what is registered is delivered, signed, and counted."""

import base64
import hashlib
import hmac
import json
import time

import pytest

from gateway.serve.keys import KeyScope, create_key
from gateway.sinks.webhooks.settings import WebhookSettings
from tests.support.doors import door_of
from tests.support.endpoints import Endpoint, answers
from tests.support.serving import Served, call, kill
from topology.settings import KEYS

SUBSCRIBE, PUBLISH = frozenset[KeyScope](["subscribe"]), frozenset[KeyScope](["publish"])
ALLOWED = ("--set", "webhooks.allow_host=127.0.0.1", "--set", "webhooks.retry_s=0.01", "--set", "webhooks.attempts=3")
PROBLEM = {"type", "title", "status", "detail", "reason", "do"}


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with Served(tmp_path_factory.mktemp("hooks") / "out", "--window", "count:1000", *ALLOWED) as one:
        yield one


def ramen(name, **more):
    return {"subscription_id": name, "kind": "boolean", "keywords": name, "region": [139, 35, 140, 36], **more}


def publish(served, *texts):
    rows = [{"text": text, "lon": 139.5, "lat": 35.5} for text in texts]
    assert served.call("POST", "/v1/messages?wait=delivered", rows).json["accepted"] == len(texts)


def hooked(served, name, url, **more):
    """A webhook for a subscription of its own."""
    assert served.call("POST", "/v1/subscriptions", ramen(name)).status == 201
    made = served.call("POST", "/v1/webhooks", {"url": url, "subscription_id": name, **more})
    assert made.status == 201, made
    return made.json


def shown(served, hook):
    return served.call("GET", f"/v1/webhooks/{hook['id']}").json


def await_counts(served, hook, **wanted):
    """Wait for counts of deliveries, which add up at every look."""
    deadline = time.monotonic() + 300
    while True:
        counts = shown(served, hook)["deliveries"]
        assert counts["accepted"] == counts["delivered"] + counts["waiting"] + counts["dead"]
        if all(counts[name] == count for name, count in wanted.items()):
            return counts
        assert time.monotonic() < deadline, (counts, wanted)


def verify(secret, came):
    """As docs/connect.md has it, by the standard library alone."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = f"{came.headers['webhook-id']}.{came.headers['webhook-timestamp']}.".encode() + came.body
    wanted = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    return f"v1,{wanted}" in came.headers["webhook-signature"].split()


def refused(answer, status, reason):
    assert (answer.status, answer.json["reason"]) == (status, reason), answer
    assert answer.headers["content-type"] == "application/problem+json" and answer.json.keys() >= PROBLEM


def test_webhook_of_a_subscription_gets_its_updates_signed_and_no_others(served):
    with Endpoint() as endpoint:
        hook = hooked(served, "alpha", endpoint.url)
        publish(served, "alpha one", "beta", "alpha two")
        book = endpoint.await_(lambda book: sum(len(one.updates) for one in book) == 2)
        assert [row["text"] for one in book for row in one.updates] == ["alpha one", "alpha two"]
        first = book[0]
        assert first.id == f"{hook['id']}_{first.updates[0]['id']}"
        assert json.loads(first.body)["data"]["webhook_id"] == hook["id"]
        assert all(verify(hook["secret"], one) for one in book)
        assert not verify("whsec_" + base64.b64encode(bytes(32)).decode(), first)
        await_counts(served, hook, delivered=len(book), waiting=0, dead=0)
        assert shown(served, hook)["updates"]["delivered"] == 2
        assert "secret" not in shown(served, hook)


def test_failing_endpoint_is_tried_again_by_the_same_id_until_dead_and_redelivered(served):
    with Endpoint(answers(500, 503, 302, 200)) as endpoint:
        hook = hooked(served, "gamma", endpoint.url)
        publish(served, "gamma")
        await_counts(served, hook, dead=1, waiting=0, delivered=0)
        assert len({one.id for one in endpoint.book}) == 1 and len(endpoint.book) == 3
        assert len({one.body for one in endpoint.book}) == 1
        listed = served.call("GET", f"/v1/webhooks/{hook['id']}/deliveries?status=dead").json["deliveries"]
        assert [(one["attempts"], one["last_error"]["reason"]) for one in listed] == [(3, "redirect")]
        assert served.call("POST", f"/v1/webhooks/{hook['id']}/redeliver").json == {"redelivered": 1}
        await_counts(served, hook, delivered=1, dead=0, waiting=0)
        assert len({(one.id, one.body) for one in endpoint.book}) == 1 and len(endpoint.book) == 4


def test_gone_endpoint_disables_its_webhook_which_resumes_without_a_loss(served):
    with Endpoint(answers(410, 200)) as endpoint:
        hook = hooked(served, "delta", endpoint.url)
        publish(served, "delta one")
        deadline = time.monotonic() + 300
        while shown(served, hook)["state"] != "disabled":
            assert time.monotonic() < deadline
        publish(served, "delta two")
        assert served.call("PATCH", f"/v1/webhooks/{hook['id']}", {"state": "active"}).json["state"] == "active"
        book = endpoint.await_(lambda book: len(book) >= 3)
        assert {row["text"] for one in book for row in one.updates} == {"delta one", "delta two"}
        assert book[0].id in [one.id for one in book[1:]]


def test_digest_comes_as_one_batch_after_its_time(served):
    with Endpoint() as endpoint:
        hook = hooked(served, "epsilon", endpoint.url, every="1s")
        for place in range(3):
            publish(served, f"epsilon {place}")
        endpoint.await_(lambda book: sum(len(one.updates) for one in book) == 3)
        assert len(endpoint.book) <= 2, "a digest, or two where its time came in between"
        await_counts(served, hook, waiting=0, dead=0)


def test_batches_have_at_most_as_many_updates_as_the_webhook_says(served):
    with Endpoint() as endpoint:
        hook = hooked(served, "zeta", endpoint.url, batch_updates=2)
        publish(served, *(f"zeta {place}" for place in range(101)))
        book = endpoint.await_(lambda book: sum(len(one.updates) for one in book) == 101)
        assert max(len(one.updates) for one in book) == 2
        assert len({row["id"] for one in book for row in one.updates}) == 101
        await_counts(served, hook, delivered=len(book), waiting=0, dead=0)


def test_rotated_secret_signs_beside_the_old_one(served):
    with Endpoint() as endpoint:
        hook = hooked(served, "eta", endpoint.url)
        fresh = served.call("POST", f"/v1/webhooks/{hook['id']}/rotate").json["secret"]
        publish(served, "eta")
        (came,) = endpoint.await_(lambda book: len(book) == 1)
        assert fresh != hook["secret"] and verify(fresh, came) and verify(hook["secret"], came)


def test_changed_listed_and_deleted_webhook(served):
    with Endpoint() as endpoint, Endpoint() as other:
        hook = hooked(served, "theta", endpoint.url)
        path = f"/v1/webhooks/{hook['id']}"
        assert served.call("PATCH", path, {"url": other.url, "batch_updates": 7}).json["batch_updates"] == 7
        assert hook["id"] in [one["id"] for one in served.call("GET", "/v1/webhooks").json["webhooks"]]
        publish(served, "theta")
        other.await_(lambda book: len(book) == 1)
        assert served.call("DELETE", path).status == 204 and not endpoint.book
        refused(served.call("GET", path), 404, "unknown_webhook")
        publish(served, "theta")
        assert len(other.book) == 1


def test_bad_webhooks_are_refused_with_a_reason(served):
    served.call("POST", "/v1/subscriptions", ramen("iota"))

    def made(**body):
        return served.call("POST", "/v1/webhooks", body)

    good = {"url": "http://127.0.0.1:9/", "subscription_id": "iota"}
    refused(made(url=good["url"]), 422, "bad_webhook")
    refused(made(**good, owner="x"), 422, "bad_webhook")
    refused(made(**good, every="soon"), 422, "bad_webhook")
    refused(made(**good, batch_updates=0), 422, "bad_webhook")
    refused(made(**good, unknown=1), 422, "bad_webhook")
    refused(made(**good, since="99999999"), 422, "bad_position")
    refused(made(**good | {"subscription_id": "none"}), 404, "unknown_subscription")
    refused(made(**good | {"url": "ftp://127.0.0.1/"}), 422, "bad_url")
    refused(made(**good | {"url": "http://u:p@127.0.0.1/"}), 422, "bad_url")
    refused(made(**good | {"url": "http://localhost/"}), 422, "not_encrypted")
    refused(made(**good | {"url": "https://localhost/"}), 422, "forbidden_address")
    refused(made(**good | {"url": "https://2130706433/"}), 422, "forbidden_address")
    refused(served.call("POST", "/v1/webhooks", b"{", Content_Type="application/json"), 400, "not_json")


def test_metrics_add_up_and_name_no_webhook(served):
    text = served.call("GET", "/metrics").body.decode()
    figures = dict(line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("skyray_webhook"))
    assert "wh_" not in text
    counts = {name: float(figures[f"skyray_webhook_{name}"]) for name in ("waiting_deliveries", "dead_deliveries")}
    totals = {
        name: float(figures[f"skyray_webhook_{name}_deliveries_total"]) for name in ("accepted", "delivered", "dropped")
    }
    assert totals["accepted"] == totals["delivered"] + totals["dropped"] + sum(counts.values())


def test_topology_has_the_webhooks_of_the_metrics(served):
    found = served.call("GET", "/v1/topology").json["webhooks"]
    assert found["accepted"] == sum(found[name] for name in ("delivered", "waiting", "dead", "dropped"))
    text = served.call("GET", "/metrics").body.decode()
    assert f"skyray_webhook_accepted_deliveries_total {float(found['accepted'])}" in text
    for state in ("active", "paused", "disabled"):
        assert f'skyray_webhooks{{state="{state}"}} {float(found[state])}' in text
    assert found["lag"] >= 0 and found["active"] + found["paused"] + found["disabled"] > 0


def test_openapi_has_examples_of_webhooks(served):
    described = served.call("GET", "/openapi.json").json
    assert {"/v1/webhooks", "/v1/webhooks/{webhook_id}/rotate"} <= described["paths"].keys()
    for name in ("WebhookShown", "WebhookMade", "DeliveryList", "Redelivered"):
        assert described["components"]["schemas"][name]["examples"]


def test_key_of_an_owner_sees_its_own_webhooks_alone(tmp_path):
    out = tmp_path / "out"
    with door_of(out, calling=WebhookSettings(webhook_allow_private=True, most_webhooks=2)) as (_, _, port):
        assert call(port, "POST", "/v1/subscriptions", ramen("kappa", owner="shop")).status == 201
        keys = {name: create_key(out / KEYS, SUBSCRIBE, name)[1] for name in ("shop", "other")}
        shop, other = ({"Authorization": f"Bearer {keys[name]}"} for name in ("shop", "other"))
        publisher = {"Authorization": f"Bearer {create_key(out / KEYS, PUBLISH)[1]}"}
        url = {"url": "https://127.0.0.1/"}
        refused(call(port, "POST", "/v1/webhooks", url), 401, "no_key")
        refused(call(port, "POST", "/v1/webhooks", url, **publisher), 403, "missing_scope")
        refused(
            call(port, "POST", "/v1/webhooks", {**url, "subscription_id": "kappa"}, **other),
            404,
            "unknown_subscription",
        )
        refused(call(port, "POST", "/v1/webhooks", {**url, "owner": "shop"}, **other), 403, "missing_scope")
        hook = call(port, "POST", "/v1/webhooks", url, **shop).json
        assert hook["owner"] == "shop"
        path = f"/v1/webhooks/{hook['id']}"
        for method, where in (
            ("GET", path),
            ("DELETE", path),
            ("POST", f"{path}/rotate"),
            ("POST", f"{path}/redeliver"),
            ("GET", f"{path}/deliveries"),
        ):
            refused(call(port, method, where, **other), 404, "unknown_webhook")
        refused(call(port, "PATCH", path, {"state": "paused"}, **other), 404, "unknown_webhook")
        assert call(port, "GET", "/v1/webhooks", **other).json == {"webhooks": []}
        assert call(port, "POST", "/v1/webhooks", {**url, "subscription_id": "kappa"}, **shop).status == 201
        refused(call(port, "POST", "/v1/webhooks", url, **shop), 403, "too_many_webhooks")


def test_webhook_of_an_owner_gets_the_updates_of_all_its_subscriptions(served):
    with Endpoint() as endpoint:
        for name, owner in (("mu", "shop"), ("nu", "shop"), ("xi", "other")):
            served.call("POST", "/v1/subscriptions", ramen(name, owner=owner))
        made = served.call("POST", "/v1/webhooks", {"url": endpoint.url, "owner": "shop"})
        assert made.status == 201
        publish(served, "mu", "nu", "xi")
        book = endpoint.await_(lambda book: sum(len(one.updates) for one in book) == 2)
        assert {row["subscription_id"] for one in book for row in one.updates} == {"mu", "nu"}


@pytest.mark.long
def test_killed_server_delivers_the_rest_once_it_runs_again(tmp_path):
    out = tmp_path / "out"
    with Endpoint(answers(500)) as endpoint:
        with Served(out, "--set", "webhooks.allow_host=127.0.0.1", "--set", "webhooks.retry_s=0.2") as served:
            digest = hooked(served, "lambda", endpoint.url, every="2s")
            hook = served.call("POST", "/v1/webhooks", {"url": endpoint.url, "subscription_id": "lambda"}).json
            publish(served, "lambda one", "lambda two")
            before = endpoint.await_(lambda book: len(book) > 0)
            kill(served)
        endpoint.behaviour = answers(200)
        with Served(out, "--set", "webhooks.allow_host=127.0.0.1", "--set", "webhooks.retry_s=0.2") as served:
            endpoint.await_(lambda book: any(one.id.startswith(digest["id"]) for one in book))
            for one in (hook, digest):
                await_counts(served, one, waiting=0, dead=0)
            for name in (hook["id"], digest["id"]):
                mine = [one for one in endpoint.book if one.id.startswith(name)]
                assert {row["text"] for one in mine for row in one.updates} == {"lambda one", "lambda two"}
                assert len({one.id for one in mine}) == len({(one.id, one.body) for one in mine})
            assert before[0].id in [one.id for one in endpoint.book[len(before) :]]
        assert (out / "sinks.sqlite").stat().st_mode & 0o777 == 0o600


def test_webhook_shows_its_set_times_and_what_it_includes_and_refuses_those_that_are_none(served):
    tell = {"at": ["08:00", "18:30"], "zone": "Europe/Berlin"}
    with Endpoint() as endpoint:
        hook = hooked(served, "times", endpoint.url, tell=tell)
        assert hook["tell"] == shown(served, hook)["tell"] == tell
        path = f"/v1/webhooks/{hook['id']}"
        assert served.call("PATCH", path, {"tell": None}).json["tell"] is None
        publish(served, "times")
        endpoint.await_(lambda book: len(book) == 1)
        assert served.call("PATCH", path, {"include": True}).json["include"] is True
        assert served.call("PATCH", path, {"include": None}).json["include"] is None
        refused(served.call("PATCH", path, {"include": ["prize"]}), 422, "bad_include")
        for wrong in ({"at": "8"}, {"most_an_hour": 3}, {"zone": "Mars"}):
            refused(served.call("PATCH", path, {"tell": wrong}), 422, "bad_webhook")
        body = {"url": endpoint.url, "subscription_id": "times", "tell": tell, "every": "1h"}
        refused(served.call("POST", "/v1/webhooks", body), 422, "bad_webhook")
