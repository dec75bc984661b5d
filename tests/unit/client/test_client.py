"""The two clients with a real server: every call, each of them by both."""

import asyncio
import copy
import inspect
import json
import os
import socket
import subprocess
import sys
import threading

import pytest

import skyray
from gateway.client.rows import Missed, Progress, Snapshot, Update
from matching.errors import ConfigError, InputError
from tests.support.clients import CLIENTS
from tests.support.documents import blocks, text_of
from tests.support.processes import ROOT
from tests.support.serving import Served, free_port

REGION = [139, 35, 140, 36]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    options = ("--set", "limits.most_messages_per_s=400", "--attribute", "price:number")
    with Served(tmp_path_factory.mktemp("client") / "out", *options) as one:
        yield one


@pytest.fixture(params=CLIENTS)
def client(request, served):
    with CLIENTS[request.param](f"http://127.0.0.1:{served.port}") as one:
        yield one


@pytest.fixture
def word(request):
    """A word that no other test has."""
    return request.node.name.encode().hex()


def message(word, **more):
    return {"text": f"{word} here", "lon": 139.5, "lat": 35.5, **more}


def wanting(word, **more):
    return {"kind": "boolean", "keywords": word, "region": REGION, **more}


def test_client_creates_reads_replaces_lists_and_ends_subscriptions(client, word):
    name = f"{word}/a?b"
    made = client.subscribe(wanting(word), subscription_id=name)
    assert (made.status, made.subscription_id) == ("created", name) and made.etag
    assert client.subscribe(wanting(word), subscription_id=name).status == "unchanged"
    with pytest.raises(skyray.Refused) as caught:
        client.subscribe(wanting(word, match="any"), subscription_id=name)
    assert (caught.value.reason, caught.value.status) == ("subscription_exists", 409)
    assert client.subscribe(wanting(word, match="any"), subscription_id=name, replace=True).status == "replaced"
    found = client.subscription(name)
    assert found.columns == wanting(word, match="any", subscription_id=name)
    assert client.replace(name, wanting(word), etag=found.etag).status == "replaced"
    with pytest.raises(skyray.Refused, match="precondition_failed"):
        client.replace(name, wanting(word), etag=found.etag)
    with pytest.raises(skyray.Refused, match="precondition_failed"):
        client.replace(name, wanting(word, match="any"), new=True)
    assert [one["subscription_id"] for one in client.subscriptions(prefix=word)] == [name]
    assert client.unsubscribe(name).status == "deleted"
    with pytest.raises(skyray.NotFound, match="GET /v1/subscriptions/.*is not active.*GET /v1/subscriptions lists"):
        client.subscription(name)
    assert client.subscribe(wanting(word)).subscription_id, "one of its own"


def test_client_subscribes_many_by_rows_lines_and_features_and_lists_all_pages(client, word):
    rows = [wanting(word, subscription_id=f"{word}-{place}") for place in range(1_100)]
    lines = [json.dumps(row) for row in rows[:2]] + ["", "{", json.dumps({"unsubscribe": f"{word}-0"})]
    outcomes = client.subscribe_many([*lines, *rows[2:], {"kind": "none"}])
    assert [one.line for one in outcomes] == list(range(1, len(outcomes) + 1))
    assert [one.status for one in outcomes[:5]] == ["created", "created", "refused", "refused", "deleted"]
    assert {one.status for one in outcomes[5:-1]} == {"created"} and outcomes[-1].reason == "unknown_kind"
    assert [one["subscription_id"] for one in client.subscriptions(prefix=f"{word}-", kind="boolean")] == [
        f"{word}-{place}" for place in range(1, 1_100)
    ]
    assert not list(client.subscriptions(prefix=word, kind=["knn", "topk"]))
    assert not list(client.subscriptions(prefix=word, region=(0, 0, 1, 1)))
    collection = client.features(prefix=f"{word}-")
    assert len(collection["features"]) == 1_099
    assert {one.status for one in client.subscribe_features(collection)} == {"unchanged"}
    place = {"type": "Point", "coordinates": [139.7, 35.7]}
    feature = {"type": "Feature", "geometry": place, "properties": {"kind": "knn", "keywords": word, "k": 3}}
    (made,) = client.subscribe_features(json.dumps({"type": "FeatureCollection", "features": [feature]}))
    assert made.status == "created" and client.subscription(made.subscription_id).columns["lon"] == 139.7


def test_client_publishes_and_what_is_sent_again_is_taken_once(client, word):
    one = client.publish(message(word, id=word), wait="delivered")
    assert (one.status, one.id, one.delivered) == ("accepted", word, True)
    assert client.publish(message(word, id=word)).status == "duplicate"
    assert client.publish(message(word)).id, "one of its own"
    with pytest.raises(skyray.Refused) as caught:
        client.publish({"text": word})
    assert caught.value.reason == "missing_coordinate"
    outcomes = client.publish_many([message(word), {"text": word}, "{", json.dumps(message(word))], wait="delivered")
    assert [(one.line, one.status, one.delivered) for one in outcomes] == [
        (1, "accepted", True),
        (2, "refused", None),
        (3, "refused", None),
        (4, "accepted", True),
    ]
    with pytest.raises(InputError, match="cannot be JSON: .*give it text"):
        client.publish({"text": word, "lon": object()})


def test_client_publishes_more_than_the_server_takes_at_once(client, word):
    """400 messages a second are taken: 500 at once are refused (413), 250 twice in a second, too (429)."""
    before = client.health()["messages"]
    outcomes = list(client.publish_stream(message(word, id=f"{word}-{place}") for place in range(500)))
    assert [one.id for one in outcomes] == [f"{word}-{place}" for place in range(500)]
    assert {one.status for one in outcomes} == {"accepted"} and client.health()["messages"] == before + 500


def test_client_asks(client, word):
    name = client.subscribe(wanting(word)).subscription_id
    client.publish(message(word, id=word), wait="delivered")
    (row,) = client.results(name).results
    assert (row.message_id, row.words) == (word, [word])
    assert client.explain(name, word)["in_result"] is True
    with pytest.raises(skyray.NotFound, match="has no id"):
        client.explain(name, "nothing")
    assert client.match(message(word))["reached_in_all"] == 1
    assert client.preview(wanting(word), limit=1)["messages"] == 1
    assert client.stream()["kinds"] and client.ready()["status"] == "ok" and client.topology()["ready"] is True


def test_client_follows_from_now_from_a_position_and_with_a_snapshot(client, word):
    name = client.subscribe(wanting(word)).subscription_id
    other = client.subscribe(wanting(word, kind="knn", lon=139.5, lat=35.5, k=2, region=None)).subscription_id
    client.publish(message(word, id=f"{word}-0"), wait="delivered")
    with client.updates(subscription=name) as updates:
        client.publish(message(word, id=f"{word}-1"), wait="delivered")
        client.publish(message(word, id=f"{word}-2"), wait="delivered")
        first = next(updates)
        assert isinstance(first, Update) and first.message_id == f"{word}-1" and updates.position == first.id
    with client.updates(subscription=[name], since=first.id, kind="boolean", region=REGION) as updates:
        assert next(updates).message_id == f"{word}-2"
    with client.updates(subscription={name, other}, since="begin") as updates:
        found = [next(updates).subscription_id for _ in range(4)]
        assert sorted(found) == sorted([name, other] * 2) and updates.connections == 1
    with client.events(subscription=other, snapshot=True) as events:
        snapshot, progress = next(events), next(events)
        assert isinstance(snapshot, Snapshot) and isinstance(progress, Progress)
        assert [row.message_id for row in snapshot.results] == [f"{word}-0", f"{word}-1"]


def test_client_with_a_position_of_another_stream_raises_a_gap_or_hands_it_on(client, word):
    with pytest.raises(skyray.Gap, match="GET /v1/updates: the stream has not come so far") as caught:
        next(iter(client.updates(since="900000-0")))
    assert caught.value.reason == "unknown_position" and caught.value.missed.resume is None
    assert copy.copy(caught.value).missed == caught.value.missed
    missed = []
    with client.events(since="900000-0", on_gap=missed.append) as events:
        assert isinstance(next(events), Missed) and isinstance(next(events), Progress)
    assert len(missed) == 1 and events.position != "900000-0"


def test_client_with_bad_parameters_is_refused(client):
    with pytest.raises(InputError, match="since: 'nonsense' is no position"):
        client.updates(since="nonsense")
    with pytest.raises(skyray.Refused, match="unknown_kind"):
        next(iter(client.updates(kind="none", since="begin")))


@pytest.mark.parametrize("make", CLIENTS.values())
def test_client_of_no_server_says_where_and_what_to_do(make):
    port = free_port()
    with make(f"http://127.0.0.1:{port}", patience_s=0.05) as client:
        with pytest.raises(
            skyray.Unreachable, match=f"GET /health: no answer from http://127.0.0.1:{port}.*see whether"
        ):
            client.health()
        with pytest.raises(skyray.Unreachable):
            next(iter(client.updates(since="begin")))
    for wrong in ("127.0.0.1:8080", "ftp://a", "http://", "http://user:word@host"):
        with pytest.raises(ConfigError, match="is no address of a server"):
            make(wrong)


@pytest.mark.parametrize("make", CLIENTS.values())
def test_client_of_a_server_that_falls_silent_connects_again_with_its_last_id(make):
    """Sends an update and then nothing, without closing."""
    listening, asked = socket.create_server(("127.0.0.1", 0)), []

    def answer():
        opened = []
        for place in range(2):
            one, _ = listening.accept()
            opened.append(one)
            asked.append(one.recv(65_536).decode().lower())
            row = {"id": f"{place}-0", "change": "match", "subscription_id": "s", "message_id": "m", "seq": place}
            row |= {"as_of": place, "score": None, "text": "", "lon": 0, "lat": 0}
            data = f"id: {place}-0\ndata: {json.dumps(row)}\n\n"
            one.sendall(f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n{data}".encode())
        done.wait(30)
        for one in opened:
            one.close()

    done = threading.Event()
    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    try:
        with make(url) as client, client.updates(since="begin", silence_s=0.2) as updates:
            assert [next(updates).id, next(updates).id] == ["0-0", "1-0"]
            assert updates.connections == 2
    finally:
        done.set()
        thread.join(30)
        listening.close()
    assert "last-event-id: begin" in asked[0] and "last-event-id: 0-0" in asked[1]


def test_client_key_is_sent_and_never_shown(client, served):
    with skyray.Client(client.url, key="secret") as one:
        assert "secret" not in repr(one) and one.health()["status"] == "ok"


def test_clients_have_the_same_methods_with_the_same_parameters_and_docstrings():
    def shown(kind):
        methods = {name: getattr(kind, name) for name in dir(kind) if not name.startswith("_")}
        return {name: (inspect.signature(method), method.__doc__) for name, method in methods.items()}

    assert shown(skyray.Client) == shown(skyray.AsyncClient)
    assert all(doc for _, doc in shown(skyray.Client).values())


def test_client_that_blocks_works_where_a_loop_runs_and_refuses_rows_that_wait_for_one(served):
    async def rows():
        await asyncio.sleep(0)
        yield {"text": "never sent"}

    async def main():
        with skyray.Client(f"http://127.0.0.1:{served.port}") as one:
            assert one.health()["status"] == "ok" and next(one.publish_stream(['{"text": 1}'])).status == "refused"
            with pytest.raises(ConfigError, match="give them to skyray.AsyncClient"):
                one.publish_many(rows())

    asyncio.run(main())


def test_skyray_is_imported_without_the_http_library():
    script = "import sys, skyray; skyray.Gap; assert not {'httpx', 'httpx2', 'numba'} & set(sys.modules); skyray.Client"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=300)


def example(name, *arguments):
    """What an example prints; it has fewer than 60 lines."""
    file = ROOT / "examples" / f"{name}.py"
    assert len(file.read_text().splitlines()) < 60
    done = subprocess.run(
        [sys.executable, file, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_example_of_saved_searches_prints_a_digest_and_at_the_next_run_what_is_new(served, tmp_path):
    url, position = f"http://127.0.0.1:{served.port}", tmp_path / "position"
    *found, last = example("saved_searches", url, position)
    assert found == [
        "anna/canal: 1 new: Loft with a view of the canal",
        "anna/garden: 1 new: House with garden",
        "ben/studio: 1 new: Loft with a view of the canal",
    ]
    assert last == f"3 in all, up to {position.read_text()}"
    assert example("saved_searches", url, position) == [f"0 in all, up to {position.read_text()}"]


def test_example_of_sightings_prints_those_near_and_why_another_is_not(served):
    assert example("sightings_near_me", f"http://127.0.0.1:{served.port}") == [
        "nearest hoopoe: enter 'A hoopoe on the lawn'",
        "rare: match 'A hoopoe on the lawn'",
        "rare: match 'Bittern heard in the reed'",
        "nearest hoopoe: leave 'A hoopoe on the lawn'",
        "nearest hoopoe: enter 'Hoopoe again, at the dike'",
        "rare: match 'Hoopoe again, at the dike'",
        "nearest hoopoe: 'Hoopoe again, at the dike', 0.7 km",
        "o5 is not there: outside_circle, the message lies outside the circle: 496 km from the centre, where 25 km are"
        " allowed",
    ]


def test_example_of_news_prints_those_of_each_site_and_geojson(served):
    *found, collection = example("news_near_my_sites", f"http://127.0.0.1:{served.port}")
    assert found == [
        "harbour: Strike at the container terminal",
        "works: Flood warning for the Ruhr",
        "depot: Fire in a depot",
    ]
    assert [one["id"] for one in json.loads(collection)["features"]] == ["n1", "n2", "n5"]


def test_guide_first_lines_print_the_update(served, capsys):
    (script,) = [block for block in blocks("docs/python.md") if block.lines[0] == "from skyray import Client"]
    text = "\n".join(script.lines).replace("8080", str(served.port))
    exec(compile(text, "docs/python.md", "exec"), {})
    assert capsys.readouterr().out.split(" ", 1)[1] == "match m1 Ramen, open late\n"


def test_guide_names_every_method_and_error():
    page = text_of("docs/python.md")
    methods = {name for name in dir(skyray.Client) if not name.startswith("_")} - {"close"}
    missing = [name for name in sorted(methods) if f"`{name}" not in page]
    assert not missing and len(methods) > 20
    assert [one.__name__ for one in skyray.ClientError.__subclasses__() if f"| `{one.__name__}` |" not in page] == []
