"""Streams of objects through the whole topology: every router, kills and resumes, against the oracle."""

import json
from collections import Counter
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import skyray
from distribution.routers import ROUTERS
from gateway.commands.delivering import Deliveries
from gateway.engine import Engine
from gateway.runs.explaining import explain
from gateway.runs.verify import verify_run
from gateway.serve.replay import Replay
from gateway.serve.update_parts import END, Parts, Position
from matching.errors import ConfigError, InputError
from tests.support.endpoints import Endpoint
from tests.support.etl_folder import random_rows, write_etl
from tests.support.serving import Follower, Served, free_port, kill
from topology.running import run
from topology.settings import RunConfig

BY_WORDS = ("keyword", "prefix")


PRICE = ["price:number"]
STAYS = ("lon", "lat", "west", "south", "east", "north", "terms", "counts", "weights", "text")


def versions(count: int, seed: int, objects: int = 15) -> list[dict]:
    """Versions of a few objects that move about, change their words and prices and are deleted, several in a batch.

    A third stay where they were, with the same words.
    """
    rng, rows, latest = np.random.default_rng(seed), random_rows(count, seed=seed), {}
    for row in rows:
        row["object_id"] = name = f"thing {rng.integers(objects)}"
        if rng.random() < 0.35 and name in latest:
            row |= {column: latest[name][column] for column in STAYS}
        latest[name] = dict(row)
        row["attribute_price"] = None if rng.random() < 0.1 else float(rng.integers(-2, 8))
        if rng.random() < 0.15:
            row |= {"op": 1, "terms": [], "counts": [], "weights": [], "text": ""}
    return rows


def requested(path, wordless: bool = True, count: int = 40) -> None:
    """Regions large and small, some over the antimeridian; some begin late, end, or are replaced.

    A third ask for changes as well, another one for versions whose price has fallen or is another.
    """
    rng, rows = np.random.default_rng(7), []
    for number in range(count):
        west, south = float(rng.uniform(-180, 180)), float(rng.uniform(-90, 60))
        east = (west + float(rng.uniform(20, 200)) + 180.0) % 360.0 - 180.0
        row = {"subscription_id": f"s{number % 36}", "kind": "boolean"}
        row["region"] = [west, south, east, min(90.0, south + float(rng.uniform(20, 120)))]
        if not wordless or number % 3:
            row["keywords"] = f"w{11 - int(rng.integers(3))}"
        row |= [
            {},
            {"on": ["enter", "leave", "change"]},
            {"where": {"price": {["decreased", "changed"][number % 2]: True}}},
        ][number // 2 % 3]
        row |= {"at": 0} if number < 20 else {"at": int(20 * (number // 5))}
        row |= {"until": int(row["at"] + 150)} if number % 7 == 3 else {}
        rows.append(row)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def settings(tmp_path, name: str, **more) -> RunConfig:
    given = {"window": "count:30", "executor": "local", "batch": "17", "objects": True} | more
    return RunConfig(messages=tmp_path / "etl", subscriptions=(tmp_path / "asked.jsonl",), out=tmp_path / name, **given)


#: The other routers are those of `test_queries.py`; the long set has all of both.
HERE = ("hashing", "location", "prefix", "kop")


@pytest.mark.parametrize(
    "router", [name if name in HERE else pytest.param(name, marks=pytest.mark.long) for name in ROUTERS]
)
def test_run_of_objects_is_exact_under_every_router(tmp_path, router):
    write_etl(tmp_path / "etl", versions(400, 3), attributes=PRICE)
    requested(tmp_path / "asked.jsonl", wordless=router not in BY_WORDS)
    tasks = {"query_bolts": 3, "distribution_bolts": 2, "tuple_bolts": 2, "delivery_bolts": 2}
    run(settings(tmp_path, "out", router=router, seed=5, **tasks))
    changes = Counter(pq.read_table(tmp_path / "out" / "updates").column("change").to_pylist())
    assert changes["enter"] > 100 and changes["leave"] > 100 and changes["change"] > 10 and changes["match"] > 10
    verdict = verify_run(tmp_path / "out", None)
    assert verdict.exact, verdict.render()


@pytest.mark.ray
@pytest.mark.usefixtures("ray_session")
def test_run_of_objects_on_ray_is_exact(tmp_path):
    write_etl(tmp_path / "etl", versions(120, 3), attributes=PRICE)
    requested(tmp_path / "asked.jsonl")
    tasks = {"query_bolts": 3, "distribution_bolts": 2, "delivery_bolts": 2}
    run(settings(tmp_path, "out", router="location", executor="ray", **tasks))
    assert verify_run(tmp_path / "out", None).exact


@pytest.mark.parametrize(
    "signatures",
    ["spatial+text", *(pytest.param(one, marks=pytest.mark.long) for one in ("spatial", "cuckoo+text", "minwise"))],
)
def test_run_of_objects_is_exact_with_signatures(tmp_path, signatures):
    write_etl(tmp_path / "etl", versions(300, 4), attributes=PRICE)
    requested(tmp_path / "asked.jsonl", wordless=False)
    run(settings(tmp_path, "out", router="location", query_bolts=4, signatures=signatures))
    assert verify_run(tmp_path / "out", None).exact


def test_updates_of_objects_name_the_object_and_a_leave_the_version_that_it_ends(tmp_path, monkeypatch):
    """Sinks of a run get the attributes that are asked for, as those of a live stream; of files readers join them."""
    rows = random_rows(6, seed=1)
    for row, lon, text in zip(rows, (5.0, 0.5, 0.6, 9.0, 0.5, 0.0), "abcdef", strict=True):
        row |= {"lon": lon, "lat": 0.0, "terms": [11], "counts": [1], "weights": [1.0], "object_id": "car"}
        row |= {"attribute_price": None if text == "c" else float(row["seq"] // 2)}
        row |= {"west": lon, "east": lon, "south": 0.0, "north": 0.0, "message_id": text}
    rows[5] |= {"op": 1, "terms": [], "counts": [], "weights": []}
    write_etl(tmp_path / "etl", rows, attributes=PRICE)
    row = {"subscription_id": "s", "kind": "boolean", "keywords": "w11", "region": [0, -1, 1, 1], "include": ["price"]}
    (tmp_path / "asked.jsonl").write_text(json.dumps(row) + "\n")
    for sink in ("parquet", "jsonl"):
        run(settings(tmp_path, sink, batch="2", window="count:1", sink=sink))
        assert verify_run(tmp_path / sink, None).exact
    found = pq.read_table(tmp_path / "parquet" / "updates").to_pylist()
    told = [(one["as_of"], one["change"], one["object_id"], one["message_id"], one["seq"]) for one in found]
    assert told == [
        (1, "enter", "car", "b", 1),
        (3, "leave", "car", "c", 2),
        (4, "enter", "car", "e", 4),
        (5, "leave", "car", "e", 4),
    ]
    lines = [json.loads(line) for path in (tmp_path / "jsonl" / "updates").glob("*.jsonl") for line in path.open()]
    assert lines == found
    given: list[Any] = []
    monkeypatch.setattr(Deliveries, "begin_parts", lambda _, *those: given.extend(those))
    Deliveries([]).begin_run(tmp_path / "parquet")
    folder, _, *rest = given
    sent, _ = Parts(folder / "updates", *rest).read_after(Position(-1, END), 5)
    rows = [json.loads(update.data) for update in sent]
    assert [(one["object_id"], one["message_id"]) for one in rows] == [(one[2], one[3]) for one in told]
    carried = [(one["attributes"], one.get("previous")) for one in rows]
    assert carried == [
        ({"price": 0.0}, None),
        ({"price": None}, None),
        ({"price": 2.0}, {"price": 1.0}),
        ({"price": 2.0}, None),
    ]


def test_run_of_objects_refuses_a_kind_that_serves_none_before_it_starts(tmp_path, monkeypatch):
    monkeypatch.setattr("matching.topk.operator.TopkOperator.serves_objects", False)
    write_etl(tmp_path / "etl", versions(30, 5))
    row = {"subscription_id": "s", "kind": "topk", "keywords": "w1", "lon": 0, "lat": 0, "k": 2, "alpha": 0.5}
    (tmp_path / "asked.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(ConfigError, match="topk, whose engine skype serves no stream of objects"):
        run(settings(tmp_path, "out"))


def test_engine_of_objects_follows_a_listing_through_edits_and_its_end(monkeypatch):
    engine = Engine(objects=True, attributes=["price:number"], window="count:1")
    engine.subscribe(
        subscription_id="s", kind="boolean", keywords="flat", region=[0, 0, 2, 2], where={"price": {"lte": 900}}
    )
    flat = {"object_id": "o", "text": "a flat", "lon": 1.0, "lat": 1.0}
    told = []
    for number, price in enumerate((950, 890, 880, 950, 850)):
        told.append(engine.publish([flat | {"id": f"v{number}", "price": price}]))
    told.append(engine.publish([{"id": "end", "object_id": "o", "deleted": True}]))
    told.append(engine.publish([{"id": "again", "object_id": "o", "deleted": True}]))
    found = [[(one["change"], one["message_id"], one["object_id"], one["as_of"]) for one in batch] for batch in told]
    assert found == [[], [("enter", "v1", "o", 1)], [], [("leave", "v2", "o", 3)], [("enter", "v4", "o", 4)],
                     [("leave", "v4", "o", 5)], []]  # fmt: skip
    monkeypatch.setattr("matching.topk.operator.TopkOperator.serves_objects", False)
    unserved = Engine(objects=True)
    with pytest.raises(InputError, match="topk, whose engine skype serves no stream of objects"):
        unserved.subscribe(subscription_id="t", kind="topk", keywords="flat", lon=1.0, lat=1.0, k=2, alpha=0.5)


def test_engine_of_objects_ends_versions_whose_time_is_over_and_counts_what_it_refuses():
    """One ends on a quiet stream, one was replaced before, one goes with a later batch; a full table says so."""
    now = [1_000.0]
    engine = Engine(objects=True, window="living", clock=lambda: now[0])
    engine.subscribe(subscription_id="s", kind="boolean", keywords="flat", region=[0, 0, 2, 2])
    engine.subscribe(subscription_id="near", kind="knn", keywords="flat", lon=1.0, lat=1.0, k=2)
    flat = {"text": "a flat", "lon": 1.0, "lat": 1.0}

    def told(rows=()):
        found = [(one["subscription_id"], one["change"], one["object_id"]) for one in engine.publish(rows)]
        return sorted(found)

    first = [flat | {"object_id": "a", "ttl_s": 5}, flat | {"object_id": "b", "ttl_s": 5}]
    first += [flat | {"object_id": "b"}, flat | {"object_id": "c", "expires_at": 1_020}, flat | {"ttl_s": 0}]
    told(first)
    assert engine.rejected == {"bad_expiry": 1}
    assert {row["object_id"] for row in engine.results("near")} == {"a", "b"}
    now[0] = 1_004.9
    assert told() == []
    now[0] = 1_005.0
    assert told() == [("near", "enter", "c"), ("near", "leave", "a"), ("s", "leave", "a")]
    now[0] = 1_030.0
    assert told([flat | {"object_id": "d", "lon": 1.5}]) == [
        ("near", "enter", "d"), ("near", "leave", "c"), ("s", "enter", "d"), ("s", "leave", "c"),
    ]  # fmt: skip
    assert told() == []
    engine._living.most_bytes = 1
    engine.publish([flat | {"object_id": "e"}, flat | {"object_id": "b"}])
    assert engine.rejected == {"bad_expiry": 1, "too_many_objects": 1}


BOOLEAN = {"subscription_id": "s", "kind": "boolean", "keywords": "flat", "region": [0, 0, 2, 2]}
KNN = {"subscription_id": "s", "kind": "knn", "keywords": "flat", "lon": 1, "lat": 1, "k": 2}
DROPS = {"where": {"price": {"decreased": True}}}


@pytest.mark.parametrize(
    ("objects", "row", "reason"),
    [
        (False, BOOLEAN | DROPS, "needs_objects"),
        (False, KNN | {"on": ["enter", "leave", "change"]}, "needs_objects"),
        (True, KNN | DROPS, "versions_of_results"),
        (True, KNN | {"on": ["enter"]}, "bad_on"),
        (True, BOOLEAN | {"on": ["enters"]}, "bad_on"),
        (True, BOOLEAN | {"on": []}, "bad_on"),
        (True, BOOLEAN | DROPS | {"on": ["enter"]}, "bad_on"),
        (True, BOOLEAN | {"include": ["prize"]}, "bad_include"),
    ],
)
def test_subscription_that_asks_for_what_is_not_there_is_refused(objects, row, reason):
    engine = Engine(objects=objects, attributes=["price:number"])
    with pytest.raises(InputError) as refused:
        engine.subscribe(row)
    assert refused.value.reason_code == reason


def test_run_of_messages_rejects_a_row_that_compares_versions(tmp_path):
    write_etl(tmp_path / "etl", versions(30, 5), attributes=PRICE)
    rows = [{**BOOLEAN, "keywords": "w1", "subscription_id": name, **more} for name, more in (("a", DROPS), ("b", {}))]
    (tmp_path / "asked.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    report = run(settings(tmp_path, "out", objects=False))
    (rejected,) = map(json.loads, (tmp_path / "out" / "rejected.jsonl").read_text().splitlines())
    assert rejected["reason"] == "needs_objects" and report["state"] == "finished"


@pytest.mark.fault
def test_serve_of_objects_tells_enter_and_leave_with_the_object_also_after_a_kill(tmp_path):
    """A listing is posted, edited, moved away and back, and deleted, with a kill in between; the folder is verified."""
    out, port = tmp_path / "out", free_port()
    flat = {"object_id": "o", "text": "a flat", "lon": 1.0, "lat": 1.0}

    def post(served, *rows):
        outcomes = served.call("POST", "/v1/messages", list(rows)).json["outcomes"]
        return [one["status"] for one in outcomes]

    with Follower(port) as follower:
        with Served(out, "--objects", port=port) as served:
            row = {"subscription_id": "s", "kind": "boolean", "keywords": "flat", "region": [0, 0, 2, 2]}
            served.call("POST", "/v1/subscriptions", row)
            assert post(served, flat | {"id": "v1"}, flat | {"id": "v2", "lon": 1.5}) == ["accepted"] * 2
            assert post(served, flat | {"id": "v2", "lon": 1.5}) == ["duplicate"]
            follower.await_through(1)
            kill(served)
        with Served(out, "--objects", port=port) as served:
            assert post(served, flat | {"id": "v3", "lon": 9.0}, flat | {"id": "v4"}) == ["accepted"] * 2
            kill(served)
        with Served(out, "--objects", port=port) as served:
            assert served.call("DELETE", "/v1/objects/o").json["status"] == "accepted"
            assert post(served, {"id": "v5", "object_id": "o", "deleted": True}) == ["accepted"]  # it has ended
            assert post(served, {"id": "car", **flat, "object_id": None}) == ["accepted"]
            assert post(served, {"id": "car", **flat, "object_id": "car", "lon": 1.2}) == ["accepted"]
            follower.await_through(7)
            served.end()
    told = [(row["change"], row["object_id"], row["message_id"], row["as_of"]) for _, row in follower.book]
    assert told == [
        ("enter", "o", "v1", 0),
        ("leave", "o", "v2", 2),
        ("enter", "o", "v4", 3),
        ("leave", "o", "v4", 4),
        ("enter", "car", "car", 6),
    ]
    assert verify_run(out, None).exact


@pytest.mark.fault
def test_listing_that_is_edited_and_deleted_is_told_by_stream_webhook_and_client_also_after_a_kill(tmp_path):
    """Two edits of the price, a kill -9 between them, and a deletion; who asks for changes, for a drop, for prices."""
    out, port = tmp_path / "out", free_port()
    attributes = "--attribute", "title:text", "--attribute", "price:number"
    options = ("--objects", *attributes, "--set", "webhooks.allow_host=127.0.0.1")
    flat = {"object_id": "o", "text": "a flat", "lon": 1.0, "lat": 1.0, "title": "By the sea " * 60}
    wanted = {"kind": "boolean", "keywords": "flat", "region": [0, 0, 2, 2], "include": ["price"]}
    rows = [
        wanted | {"subscription_id": "s", "on": ["enter", "leave", "change"]},
        wanted | {"subscription_id": "drops", "where": {"price": {"decreased_by": 50}}},
        wanted | {"subscription_id": "plain", "include": None},
    ]

    def told(rows):
        return [
            (row["subscription_id"], row["change"], row["message_id"], row.get("attributes"), row.get("previous"))
            for row in rows
        ]

    expected = [
        ("plain", "enter", "v1", None, None),
        ("s", "enter", "v1", {"price": 950.0}, None),
        ("drops", "match", "v2", {"price": 890.0}, {"price": 950.0}),
        ("s", "change", "v2", {"price": 890.0}, {"price": 950.0}),
        ("s", "change", "v3", {"price": 880.0}, {"price": 890.0}),
        ("plain", "leave", "v3", None, None),
        ("s", "leave", "v3", {"price": 880.0}, None),
    ]
    with Follower(port) as follower, Endpoint() as endpoint, Endpoint() as full:
        with Served(out, *options, port=port) as served:
            for row in rows:
                assert served.call("POST", "/v1/subscriptions", row).status == 201
            hook = {"url": endpoint.url, "subscription_id": "s"}
            assert served.call("POST", "/v1/webhooks", hook).status == 201
            hook = {"url": full.url, "subscription_id": "plain", "include": True}
            assert served.call("POST", "/v1/webhooks", hook).status == 201
            for number, price in enumerate((950, 890), 1):
                assert served.call("POST", "/v1/messages", flat | {"id": f"v{number}", "price": price}).status == 200
            kill(served)
        with Served(out, *options, port=port) as served:
            assert served.call("POST", "/v1/messages", flat | {"id": "v3", "price": 880}).status == 200
            assert served.call("DELETE", "/v1/objects/o").status == 200
            follower.await_through(3)
            with skyray.Client(f"http://127.0.0.1:{port}") as client, client.updates(since="begin") as updates:
                read = [next(updates) for _ in expected]
            for one in (endpoint, full):
                one.await_(lambda book: any(row["change"] == "leave" for came in book for row in came.updates))
            why = served.call("GET", "/v1/explain?subscription=s&message=v3").json
            assert why["versions"][0] == "changed with version v3: price 890 -> 880"
            assert why["versions"][1].startswith("left with the deletion ")
            assert (
                "matched with version v2: price 950 -> 890"
                in (served.call("GET", "/v1/explain?subscription=drops&message=v2").json["why"])
            )
            served.end()
    assert told(row for _, row in follower.book) == expected
    assert [(one.change, one.attributes or None, one.previous or None) for one in read] == [
        (change, attributes, previous) for _, change, _, attributes, previous in expected
    ]
    delivered = {one["id"]: one for came in endpoint.book for one in came.updates}
    assert sorted(told(delivered.values())) == sorted(row for row in expected if row[0] == "s")
    delivered = {one["id"]: one for came in full.book for one in came.updates}
    assert sorted(told(delivered.values())) == [
        ("plain", "enter", "v1", {"title": flat["title"], "price": 950.0}, None),
        ("plain", "leave", "v3", {"title": flat["title"], "price": 880.0}, None),
    ]  # fmt: skip
    assert verify_run(out, None).exact
    assert "changed with version v2: price 950 -> 890" in explain(out, "s", "v2")["why"]
    changed, left = explain(out, "s", "v3")["versions"]
    assert changed == "changed with version v3: price 890 -> 880" and left.startswith("left with the deletion ")


@pytest.mark.fault
def test_objects_of_a_server_are_read_and_end_by_time_also_after_a_kill(tmp_path):
    """One version ends after a kill, one is replaced before its time; the stream is quiet when they end."""
    out, port, flat = tmp_path / "out", free_port(), {"text": "a flat", "lon": 1.0, "lat": 1.0}
    options = ("--objects", "--attribute", "price:number")
    with Follower(port) as follower:
        with Served(out, *options, port=port) as served:
            row = {"subscription_id": "s", "kind": "boolean", "keywords": "flat", "region": [0, 0, 2, 2]}
            served.call("POST", "/v1/subscriptions", row)
            rows = [
                flat | {"object_id": "a", "id": "a1", "ttl_s": 6, "price": 7},
                flat | {"object_id": "b", "ttl_s": 6},
            ]
            rows += [flat | {"object_id": "b", "id": "b2"}, flat | {"object_id": "c", "ttl_s": -1}]
            outcomes = served.call("POST", "/v1/messages", rows).json["outcomes"]
            assert [one.get("reason") for one in outcomes] == [None, None, None, "bad_expiry"]
            assert outcomes[3]["column"] == "ttl_s" and outcomes[3]["value"] == -1
            found = served.call("GET", "/v1/objects/a").json
            assert found["message_id"] == "a1" and found["attributes"] == {"price": 7.0} and found["seq"] == 0
            listed = served.call("GET", "/v1/objects?limit=1").json
            assert [one["object_id"] for one in listed["objects"]] == ["a"] and listed["after"] == 0
            kill(served)
        with Served(out, *options, port=port) as served:
            follower.await_through(3)
            assert served.call("GET", "/v1/objects/a").status == 404
            assert [one["object_id"] for one in served.call("GET", "/v1/objects").json["objects"]] == ["b"]
            served.end()
    told = [(row["change"], row["object_id"], row["as_of"], row["seq"]) for _, row in follower.book]
    assert told == [("enter", "a", 0, 0), ("enter", "b", 1, 1), ("leave", "a", 3, 0)]
    assert verify_run(out, None).exact


#: A listing that was near and is far now, two that are between, of which one has ended, and one that only just came.
LISTINGS = [("a", "a1", 1.0), ("b", "b1", 1.2), ("c", "c1", 1.1), ("a", "a2", 1.9), ("c", "", None), ("d", "d1", 1.3)]
NEAREST = {"subscription_id": "s", "kind": "knn", "keywords": "flat", "lon": 1, "lat": 1, "k": 2}


def judged(explained):
    """What is said of each version, by the function that explains one."""
    found = {}
    for name in ("a1", "b1", "c1", "a2", "d1"):
        answer = explained(name)
        found[name] = answer["reason"], answer["rank"], [one["message_id"] for one in answer["rivals"]]
    return found


EXPECTED = {
    "a1": ("object_ended", None, []),
    "b1": ("in_result", 1, []),
    "c1": ("object_ended", None, []),
    "a2": ("rivals", 3, ["b1", "d1"]),
    "d1": ("in_result", 2, ["b1"]),
}


def listings(late: bool) -> list[dict]:
    """The rows of the story, the subscription behind the first three if it comes late."""
    rows = [
        {"object_id": name, "id": own, "text": "a flat", "lon": lon, "lat": 1.0}
        if own
        else {"object_id": name, "deleted": True}
        for name, own, lon in LISTINGS
    ]
    return rows[:3] if not late else rows[3:]


def test_ranked_versions_are_explained_among_the_objects_that_live_by_an_engine():
    engine = Engine(objects=True, window="living")
    engine.publish(listings(late=False))
    engine.subscribe(NEAREST)
    engine.publish(listings(late=True))
    assert judged(lambda name: engine.explain("s", name)) == EXPECTED


@pytest.mark.parametrize("window", ["living", "count:5"])
def test_ranked_versions_are_explained_among_the_objects_that_live_by_a_run_and_its_replay(tmp_path, window):
    rows = random_rows(6, seed=1)
    for row, (name, own, lon) in zip(rows, LISTINGS, strict=True):
        where = 1.0 if lon is None else lon
        row |= {"lon": where, "lat": 1.0, "west": where, "east": where, "south": 1.0, "north": 1.0}
        row |= {"terms": [11], "counts": [1], "weights": [1.0], "object_id": name, "message_id": own or "end"}
        if lon is None:
            row |= {"op": 1, "terms": [], "counts": [], "weights": [], "text": ""}
    write_etl(tmp_path / "etl", rows)
    (tmp_path / "asked.jsonl").write_text(json.dumps(NEAREST | {"keywords": "w11", "at": 3}) + "\n")
    run(settings(tmp_path, "out", window=window, batch="2"))
    assert verify_run(tmp_path / "out", None).exact
    expected = EXPECTED if window == "living" else EXPECTED | {"a2": ("rivals", 3, ["b1", "d1"])}
    assert judged(lambda name: explain(tmp_path / "out", "s", name)) == expected
    replay = Replay(tmp_path / "out")
    for as_of, living in ((5, ["b1", "d1"]), (3, ["c1", "b1"])):
        found = replay.results("s", as_of)["results"]
        assert [(one["message_id"], one["object_id"]) for one in found] == [(name, name[0]) for name in living]
    shown = [(one["object_id"], one["seq"], one.get("deleted")) for one in replay.messages(-1, 5, 9)]
    assert shown == [("b", 1, None), ("a", 3, None), ("c", 4, True), ("d", 5, None)]
    assert [one["seq"] for one in replay.messages(-1, 2, 9)] == [0, 1, 2]


@pytest.mark.fault
def test_served_objects_are_found_by_id_counted_and_explained_among_those_that_live(tmp_path):
    """The last version of one moves within its result, whose update is older than the window."""
    out, port = tmp_path / "out", free_port()
    with Follower(port) as follower, Served(out, "--objects", "--window", "count:6", port=port) as served:

        def post(rows):
            for row in rows:
                assert served.call("POST", "/v1/messages", row).json["status"] == "accepted"

        post(listings(late=False))
        assert served.call("POST", "/v1/subscriptions", NEAREST).status == 201
        post(listings(late=True))
        follower.await_through(5)
        assert judged(lambda name: served.call("GET", f"/v1/explain?subscription=s&message={name}").json) == EXPECTED
        found = served.call("GET", "/v1/objects?id=d&id=c&id=a&id=nobody").json["objects"]
        assert [(one["object_id"], one["message_id"]) for one in found] == [("a", "a2"), ("d", "d1")]
        facts = served.call("GET", "/v1/stream").json["objects"]
        assert facts["living"] == 3 and 0 < facts["size_bytes"] < facts["most_bytes"]
        flat = {"text": "a flat", "lat": 1.0, "lon": 1.0}
        post([flat | {"object_id": name, "id": f"{name} {n}"} for n in range(9) for name in ("b", "d")])
        follower.await_through(23)
        results = served.call("GET", "/v1/subscriptions/s/results").json["results"]
        assert [(one["object_id"], one["message_id"]) for one in results] == [("b", "b 8"), ("d", "d 8")]
        why = served.call("GET", "/v1/explain?subscription=s&message=b+8").json
        assert why["reason"] == "in_result" and why["rank"] == 1
        assert served.call("GET", "/v1/explain?subscription=s&message=a2").json["reason"] == "out_of_window"
        served.end()
    assert verify_run(out, None).exact


def test_run_of_objects_stopped_and_resumed_with_other_bolts_gives_the_same_updates(tmp_path):
    """Twice, so that the table of living objects is saved, loaded, changed and saved again."""
    write_etl(tmp_path / "etl", versions(400, 6), attributes=PRICE)
    requested(tmp_path / "asked.jsonl")
    whole = run(settings(tmp_path, "whole", batch="7"))
    seen = 0

    def note(snapshot) -> None:
        nonlocal seen
        seen = snapshot.published

    bolts = [{}, {"query_bolts": 3, "delivery_bolts": 2}, {"query_bolts": 2, "distribution_bolts": 2}]
    for part, more in enumerate(bolts):
        rate = None if part == 2 else 150.0
        config = settings(tmp_path, "parts", batch="7", checkpoint_every=0.3, rate=rate, **more)
        until = (part + 1) * 15
        report = run(config, note, (lambda at: lambda: seen >= at)(until) if part < 2 else None, resume=part > 0)
        assert report["state"] == ("interrupted" if part < 2 else "finished")
    assert report["digest"] == whole["digest"]
    assert verify_run(tmp_path / "parts", None).exact
