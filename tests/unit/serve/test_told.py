"""`tell` of subscriptions at a server that runs: what webhooks and followers of `/v1/told` get, and changes of it."""

import http.client
import json
from collections.abc import Generator
from datetime import UTC, datetime, timedelta

import pytest

import skyray
from tests.support.endpoints import Endpoint
from tests.support.hooking import await_that
from tests.support.serving import Served, call, kill

ALLOWED = ("--set", "webhooks.allow_host=127.0.0.1")


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with Served(tmp_path_factory.mktemp("told") / "out", *ALLOWED) as one:
        yield one


def subscribe(served, name, tell=None, **more):
    row = {"subscription_id": name, "kind": "boolean", "keywords": name, "region": [139, 35, 140, 36], **more}
    answer = served.call("POST", "/v1/subscriptions?replace=true", row | ({"tell": tell} if tell is not None else {}))
    assert answer.status in (200, 201), answer
    return answer.json


def publish(served, *texts):
    rows = [{"text": text, "lon": 139.5, "lat": 35.5} for text in texts]
    assert served.call("POST", "/v1/messages?wait=delivered", rows).json["accepted"] == len(texts)


def hooked(served, name, url):
    made = served.call("POST", "/v1/webhooks", {"url": url, "subscription_id": name})
    assert made.status == 201, made
    return made.json


def tellings(port, since=0, **headers):
    """All that is told so far behind a number, by `/v1/told`, as lines."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    try:
        connection.request("GET", f"/v1/told?since={since}", headers=headers)
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        found = []
        while "progress" not in (row := json.loads(answer.readline())):
            found.append(row)
        return found
    finally:
        connection.close()


def told_of(port, name):
    found = [row["told"] for row in tellings(port) if "told" in row]
    return [one for one in found if one["told"]["subscription_id"] == name]


def test_updates_of_a_paused_subscription_wait_and_are_one_digest_when_it_is_paused_no_more(served):
    with Endpoint() as endpoint:
        subscribe(served, "quince", {"paused": True})
        hook = hooked(served, "quince", endpoint.url)
        publish(served, "quince 1", "quince 2", "quince 3")
        await_that(lambda: served.call("GET", "/v1/subscriptions/quince/tell").json["held"] == 3)
        state = served.call("GET", "/v1/subscriptions/quince/tell").json
        assert state == {"subscription_id": "quince", "tell": {"paused": True}, "held": 3, "due_s": None}
        assert not endpoint.book and not told_of(served.port, "quince")
        results = served.call("GET", "/v1/subscriptions/quince/results").json["results"]
        assert len(results) == 3, "matching goes on"
        etag = served.call("GET", "/v1/subscriptions/quince").headers["etag"]
        assert served.call("PUT", "/v1/subscriptions/quince/tell", {"paused": False}).status == 200
        (came,) = endpoint.await_(lambda book: len(book) == 1)
        body = json.loads(came.body)
        assert body["type"] == "skyray.told" and [one["text"] for one in came.updates] == [
            f"quince {n}" for n in (1, 2, 3)
        ]
        (told,) = told_of(served.port, "quince")
        assert body["data"]["told"] == told["told"] and told["updates"] == came.updates
        assert came.id == f"{hook['id']}_{told['told']['id']}" and told["told"]["count"] == 3
        publish(served, "quince 4")  # as it comes, since `{"paused": false}` says nothing else
        assert [one["text"] for one in endpoint.await_(lambda book: len(book) == 2)[1].updates] == ["quince 4"]
        assert json.loads(endpoint.book[1].body)["type"] == "skyray.updates"
        assert served.call("GET", "/v1/subscriptions/quince").headers["etag"] == etag


def test_set_times_give_a_digest_each_and_the_follower_goes_on_behind_its_last_number(served):
    now = datetime.now(UTC)
    times = [f"{now + timedelta(seconds=3 * n):%H:%M:%S}" for n in range(1, 12)]
    subscribe(served, "medlar", {"at": times})
    first = len(tellings(served.port))
    for number in range(20):
        publish(served, f"medlar {number}")
    await_that(lambda: sum(one["told"]["count"] for one in told_of(served.port, "medlar")) == 20)
    told = told_of(served.port, "medlar")
    assert [one["text"] for each in told for one in each["updates"]] == [f"medlar {n}" for n in range(20)]
    windows = [one["told"]["window"] for one in told]
    assert len(set(windows)) == len(windows) and {window[11:19] for window in windows} <= set(times)
    assert [row["told"]["id"] for row in tellings(served.port, first) if "told" in row][: len(told)] != []
    last = tellings(served.port)[-1]["told"]["number"]
    assert tellings(served.port, last) == []


def test_messages_like_one_that_was_told_are_left_out_and_no_more_than_n_an_hour_come_one_by_one(served):
    subscribe(served, "sloe", {"similar": 0.75})
    publish(served, "sloe in the old house", "sloe in the old house", "the old house in sloe!", "sloe elsewhere, new")
    await_that(lambda: sum(len(one["updates"]) for one in told_of(served.port, "sloe")) == 2)
    subscribe(served, "damson", {"most_an_hour": 2})
    for number in range(5):
        publish(served, f"damson {number}")
    await_that(lambda: served.call("GET", "/v1/subscriptions/damson/tell").json["held"] == 3)
    texts = [one["text"] for each in told_of(served.port, "damson") for one in each["updates"]]
    due_s = served.call("GET", "/v1/subscriptions/damson/tell").json["due_s"]
    assert texts == ["damson 0", "damson 1"] and due_s % 3600 == 0
    assert [one["text"] for each in told_of(served.port, "sloe") for one in each["updates"]] == [
        "sloe in the old house", "sloe elsewhere, new",
    ]  # fmt: skip


def test_subscription_that_is_ended_or_told_as_before_leaves_nothing_waiting(served):
    with Endpoint() as endpoint:
        subscribe(served, "crab", {"paused": True}, owner="orchard")
        assert served.call("POST", "/v1/webhooks", {"url": endpoint.url, "owner": "orchard"}).status == 201
        publish(served, "crab 1")
        await_that(lambda: served.call("GET", "/v1/subscriptions/crab/tell").json["held"] == 1)
        assert served.call("DELETE", "/v1/subscriptions/crab").status == 200
        publish(served, "nothing")
        assert [one["text"] for one in endpoint.await_(lambda book: len(book) == 1)[0].updates] == ["crab 1"]
        subscribe(served, "crab", owner="orchard")  # without `tell`
        publish(served, "crab 2")
        assert [one["text"] for one in endpoint.await_(lambda book: len(book) == 2)[1].updates] == ["crab 2"]


@pytest.mark.parametrize("tell", [{"at": ["25:00"]}, {"zone": "Mars/Olympus"}, "daily", {"often": 3}])
def test_bad_tell_is_refused_with_column_and_value_at_every_door(served, tell):
    row = {"subscription_id": "bad", "kind": "boolean", "keywords": "bad", "region": [139, 35, 140, 36], "tell": tell}
    answer = served.call("POST", "/v1/subscriptions", row)
    assert (answer.status, answer.json["reason"], answer.json["column"]) == (422, "bad_tell", "tell"), answer
    subscribe(served, "good")
    answer = served.call("PUT", "/v1/subscriptions/good/tell", tell)
    assert (answer.status, answer.json["reason"]) == (422, "bad_tell"), answer
    assert served.call("GET", "/v1/subscriptions/good/tell").json["tell"] is None


def test_unknown_subscriptions_have_no_tell_and_other_owners_are_not_seen(served):
    assert served.call("GET", "/v1/subscriptions/nobody/tell").status == 404
    assert served.call("PUT", "/v1/subscriptions/nobody/tell", {}).status == 404
    assert call(served.port, "GET", "/v1/told?since=-1").status == 422


def test_what_is_held_and_what_was_set_is_there_after_a_kill(tmp_path):
    with Served(tmp_path / "out", *ALLOWED) as served:
        subscribe(served, "s")
        served.call("PUT", "/v1/subscriptions/s/tell", {"paused": True})
        publish(served, "s 1", "s 2")
        await_that(lambda: served.call("GET", "/v1/subscriptions/s/tell").json["held"] == 2)
        kill(served)
    with Served(tmp_path / "out", *ALLOWED) as served:
        await_that(lambda: served.call("GET", "/v1/subscriptions/s/tell").json["held"] == 2)
        publish(served, "s 3")
        await_that(lambda: served.call("GET", "/v1/subscriptions/s/tell").json["held"] == 3)
        served.call("PUT", "/v1/subscriptions/s/tell", {})
        await_that(lambda: told_of(served.port, "s"))
        (told,) = told_of(served.port, "s")
        assert [one["text"] for one in told["updates"]] == ["s 1", "s 2", "s 3"]


def test_client_in_python_sets_when_to_be_told_and_follows_each_telling_once(served):
    with skyray.Client(f"http://127.0.0.1:{served.port}") as client:
        client.subscribe(subscription_id="rowan", kind="boolean", keywords="rowan", region=[139, 35, 140, 36])
        assert client.tell("rowan", paused=True)["tell"] == {"paused": True}
        before = client.told(subscription="rowan")
        client.publish_many([{"text": f"rowan {n}", "lon": 139.5, "lat": 35.5} for n in range(3)], wait="delivered")
        await_that(lambda: client.tell("rowan", {"paused": True})["held"] == 3)
        last = tellings(served.port)
        since = last[-1]["told"]["number"] if last else 0
        client.tell("rowan", most_an_hour=10)
        told = next(client.told(subscription=["rowan"], since=since))
        assert [one.text for one in told.updates] == ["rowan 0", "rowan 1", "rowan 2"] and told.number > since
        assert (told.told.count, told.told.left_out) == (3, 0) and told.told.window
        client.publish({"text": "rowan 3", "lon": 139.5, "lat": 35.5})
        again = next(client.told(subscription="rowan", since=told.number))
        assert [one.text for one in again.updates] == ["rowan 3"] and again.told.window is None
        assert client.tell("rowan")["tell"] is None
        assert isinstance(before, Generator)
        before.close()
