"""The HTTP API of a server that runs: bodies, outcomes, subscriptions, updates, errors, its description."""

import http.client
import json
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

import pytest

from gateway.client import rows
from tests.support.serving import NDJSON, Follower, Served, call, events_of, lines_of, position

GEOJSON = "application/geo+json"
SQUARE = {"type": "Polygon", "coordinates": [[[4, 52], [5, 52], [5, 53], [4, 53], [4, 52]]]}
BOTH = {"type": "MultiPolygon", "coordinates": [SQUARE["coordinates"], [[[7, 52], [8, 52], [8, 53], [7, 52]]]]}
AS_GEOJSON = [
    {"kind": "boolean", "keywords": "a", "region": [139, 35, 140, 36], "note": {"free": [1]}},
    {"kind": "boolean", "keywords": "a", "circle": {"lon": 4.9, "lat": 52.37, "radius_m": 5000}},
    {"kind": "boolean", "keywords": ["a", "b"], "polygon": SQUARE, "match": "any"},
    {"kind": "boolean", "keywords": "a", "polygon": BOTH, "not_keywords": "c"},
    {"kind": "topk", "keywords": "a", "lon": 4.5, "lat": 52, "k": 3, "alpha": 0.5, "radius_m": 9000},
    {"kind": "knn", "keywords": "a", "lon": 4.5, "lat": 52, "k": 3, "polygon": BOTH},
    {"kind": "decay", "keywords": "a", "lon": 4.5, "lat": 52, "k": 1, "alpha": 0, "expires_at": "2100-01-01"},
    {"kind": "skyline", "keywords": "a", "region": [170, -10, 180, 10]},
]
PROBLEM = {"type", "title", "status", "detail", "reason", "do"}


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    options = ("--window", "count:1000", "--attribute", "price:number", "--attribute", "type=house.type:category")
    with Served(tmp_path_factory.mktemp("api") / "out", *options, "--stem", "english") as one:
        yield one


def ramen(name, **more):
    return {"subscription_id": name, "kind": "boolean", "keywords": name, "region": [139, 35, 140, 36], **more}


def message(name, text):
    return {"id": name, "text": text, "lon": 139.5, "lat": 35.5}


def problem(answer, status, reason):
    assert (answer.status, answer.json["reason"]) == (status, reason), answer
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json.keys() >= PROBLEM and answer.json["status"] == status
    return answer


def here(served):
    """The id of the last event."""
    return served.call("GET", "/v1/updates?poll=1&wait_s=0").lines[-1]["progress"]["id"]


def polled(served, since, query=""):
    return [one for one in served.call("GET", f"/v1/updates?poll=1&since={since}{query}").lines if "change" in one]


def test_messages_one_is_answered_with_its_number_and_again_as_before(served):
    first = served.call("POST", "/v1/messages", message("one", "tea"))
    assert first.status == 200 and first.json["status"] == "accepted"
    again = served.call("POST", "/v1/messages", message("one", "tea")).json
    assert again == first.json | {"status": "duplicate"}
    problem(served.call("POST", "/v1/messages", message("one", "coffee")), 409, "duplicate_id")
    spelt = b'{"lat": 35.5,\n "lon": 139.5,\r\n "text": "tea", "id": "one"}'
    assert call(served.port, "POST", "/v1/messages", spelt, Content_Type="application/json").json == again
    without = {"text": "no id", "lon": 1, "lat": 1}
    seqs = [served.call("POST", "/v1/messages", without).json["seq"] for _ in range(2)]
    assert seqs[0] < seqs[1]


def test_messages_of_an_array_bad_ones_have_a_reason_beside_the_good_ones(served):
    rows = [
        message("a1", "tea"),
        {"text": "x", "lon": 500, "lat": 0},
        7,
        message("a1", "tea"),
        {"subscribe": ramen("x")},
    ]
    answer = served.call("POST", "/v1/messages", rows).json
    outcomes = [(one["line"], one["status"], one.get("reason")) for one in answer["outcomes"]]
    assert outcomes == [
        (1, "accepted", None),
        (2, "refused", "coordinate_out_of_range"),
        (3, "refused", "not_json"),
        (4, "duplicate", None),
        (5, "refused", "not_a_message"),
    ]
    assert (answer["accepted"], answer["duplicates"], answer["refused"]) == (1, 1, 3)
    assert answer["outcomes"][0]["seq"] == answer["outcomes"][3]["seq"]
    problem(served.call("POST", "/v1/messages", {"text": "x", "lon": 500, "lat": 0}), 422, "coordinate_out_of_range")
    problem(served.call("POST", "/v1/messages", {"unsubscribe": "s"}), 422, "not_a_message")
    problem(call(served.port, "POST", "/v1/messages", b"[1,", Content_Type="application/json"), 400, "not_json")
    problem(call(served.port, "POST", "/v1/messages", b"[" * 100_000, Content_Type="application/json"), 400, "not_json")
    assert served.call("POST", "/v1/messages", []).json["outcomes"] == []


def test_messages_as_lines_have_an_outcome_a_line_while_more_come(served):
    """The producer sends its next line once the one before was answered."""
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=300)
    connection.putrequest("POST", "/v1/messages?wait=delivered")
    connection.putheader("Content-Type", NDJSON["Content-Type"])
    connection.putheader("Transfer-Encoding", "chunked")
    connection.endheaders()

    def send(data):
        connection.send(b"%x\r\n%s\r\n" % (len(data), data))

    send(lines_of([message("l1", "tea")]) + b"\n" + b'{"id": "l')
    answer = connection.getresponse()
    assert json.loads(answer.readline()) | {"seq": 0} == {"line": 1, "status": "accepted", "id": "l1", "seq": 0}
    send(b'2", "text": "cut in two", "lon": 1, "lat": 1}\n')
    assert json.loads(answer.readline())["line"] == 3
    send(b'{"text": "' + b"x" * 2**20 + b'"}\nnone\n' + json.dumps(message("l4", "tea")).encode())
    send(b"")
    rest = [json.loads(line) for line in answer.read().splitlines()]
    assert [one.get("reason") or one.get("id") for one in rest[:-1]] == ["line_too_long", "not_json", "l4"]
    assert [one["line"] for one in rest[:-1]] == [4, 5, 6] and rest[-1] == {"delivered": True}
    connection.close()


def test_messages_of_many_lines_are_all_logged_though_the_client_reads_nothing_before_it_has_sent_all(served):
    rows = [{"id": f"many {number}", "text": "x", "lon": 1, "lat": 1} for number in range(30_000)]
    outcomes = call(served.port, "POST", "/v1/messages", iter([lines_of(rows)]), **NDJSON).lines
    assert [one["line"] for one in outcomes] == list(range(1, 30_001))
    assert len({one["seq"] for one in outcomes}) == 30_000


def test_requests_at_once_share_batches_and_each_gets_its_own_outcomes(served):
    def publish(number):
        return served.call("POST", "/v1/messages", [message(f"c{number}-{place}", "x") for place in range(3)]).json

    with ThreadPoolExecutor(32) as threads:
        answers = list(threads.map(publish, range(64)))
    assert all([one["id"] for one in answer["outcomes"]] == [f"c{number}-{place}" for place in range(3)]
               for number, answer in enumerate(answers))  # fmt: skip
    assert len({one["seq"] for answer in answers for one in answer["outcomes"]}) == 192


def test_subscription_is_created_read_replaced_and_ended_by_its_entity_tag(served):
    made = served.call("POST", "/v1/subscriptions", ramen("life"))
    assert made.status == 201 and made.headers["etag"] == made.json["etag"]
    path = made.headers["location"]
    read = served.call("GET", path)
    assert read.json == ramen("life") and read.headers["etag"] == made.json["etag"]
    assert served.call("POST", "/v1/subscriptions", ramen("life")).json["status"] == "unchanged"
    problem(served.call("POST", "/v1/subscriptions", ramen("life", note="x")), 409, "subscription_exists")
    problem(served.call("PUT", path, ramen("life", note="x"), If_Match='"other"'), 412, "precondition_failed")
    problem(served.call("PUT", path, ramen("life", note="x"), If_None_Match="*"), 412, "precondition_failed")
    second = served.call("PUT", path, ramen("life", note="x"), If_Match=made.json["etag"]).json
    assert second["status"] == "replaced" and second["etag"] != made.json["etag"]
    problem(served.call("DELETE", path, If_Match=made.json["etag"]), 412, "precondition_failed")
    assert served.call("DELETE", path, If_Match=second["etag"]).json["status"] == "deleted"
    problem(served.call("GET", path), 404, "unknown_subscription")
    problem(served.call("DELETE", path), 404, "unknown_subscription")
    problem(served.call("PUT", path, ramen("other")), 422, "bad_id")
    assert served.call("PUT", path, ramen("life"), If_None_Match="*").status == 201
    problem(served.call("POST", "/v1/subscriptions", ramen("bad", kind="none")), 422, "unknown_kind")
    for other in ({}, [], 7, True):
        assert served.call("POST", "/v1/subscriptions", ramen("bad", kind=other)).status == 422, other
    named = served.call("POST", "/v1/subscriptions", ramen("x") | {"subscription_id": None}).json
    assert len(named["subscription_id"]) == 32


def test_subscriptions_as_lines_have_an_outcome_each_and_are_listed_page_by_page(served):
    rows = [ramen(f"page {number}") for number in range(7)]
    sent = [*rows, ramen("page 8", k_of="none", kind="knn"), {"unsubscribe": "page 3"}, {"unsubscribe": "page 3"}]
    outcomes = call(served.port, "POST", "/v1/subscriptions", lines_of(sent), **NDJSON).lines
    assert [one["status"] for one in outcomes] == ["created"] * 7 + ["refused", "deleted", "refused"]
    found, after = [], -1
    while after is not None:
        page = served.call("GET", f"/v1/subscriptions?prefix=page&limit=4&after={after}").json
        assert len(page["subscriptions"]) <= 4
        found += [one["subscription_id"] for one in page["subscriptions"]]
        after = page["after"]
    assert found == [f"page {number}" for number in (0, 1, 2, 4, 5, 6)]
    assert served.call("GET", "/v1/subscriptions?prefix=page&kind=knn").json["subscriptions"] == []
    page = served.call("GET", "/v1/subscriptions?id=page%205&id=page%203&id=page%201&id=none&limit=1").json
    assert [one["subscription_id"] for one in page["subscriptions"]] == ["page 1"]
    page = served.call("GET", f"/v1/subscriptions?id=page%205&id=page%201&after={page['after']}").json
    assert [one["subscription_id"] for one in page["subscriptions"]] == ["page 5"] and page["after"] is None


def test_subscriptions_go_out_as_geojson_and_come_in_again_as_they_were(served):
    rows = [row | {"subscription_id": f"geo-{place}"} for place, row in enumerate(AS_GEOJSON)]
    made = served.call("POST", "/v1/subscriptions", rows).json
    assert [one["status"] for one in made] == ["created"] * len(rows), made
    answer = served.call("GET", "/v1/subscriptions?prefix=geo-", Accept=GEOJSON)
    assert answer.headers["content-type"] == GEOJSON
    out = answer.json
    found = served.call("GET", "/v1/subscriptions?prefix=geo-&format=geojson&limit=3").json
    assert found["after"] is not None and found == {
        "type": "FeatureCollection", "features": out["features"][:3], "after": found["after"]
    }  # fmt: skip
    shapes = [one["geometry"] and one["geometry"]["type"] for one in out["features"]]
    assert shapes == ["Polygon", "Point", "Polygon", "MultiPolygon", "Point", "Point", "Point", "Polygon"]
    again = call(served.port, "POST", "/v1/subscriptions", answer.body, Content_Type=GEOJSON).json
    assert [one["status"] for one in again] == ["unchanged"] * len(rows)
    assert [one["etag"] for one in again] == [one["etag"] for one in made]
    for row in rows:
        served.call("DELETE", f"/v1/subscriptions/{row['subscription_id']}")
    again = call(served.port, "POST", "/v1/subscriptions", answer.body, Content_Type=GEOJSON).json
    assert [(one["line"], one["status"]) for one in again] == [(line, "created") for line in range(1, 9)]
    assert served.call("GET", "/v1/subscriptions?prefix=geo-").json["subscriptions"] == rows

    bad = [
        {"type": "Feature", "geometry": None, "properties": {"kind": "boolean", "keywords": "a"}},
        {"type": "Feature", "geometry": {"type": "LineString", "coordinates": []}, "properties": {}},
        {"type": "Feature", "id": "x", "geometry": None, "properties": {"subscription_id": "y"}},
        {"type": "Feature", "geometry": None},
        {"type": "Feature", "id": 7, "geometry": {"type": "Point", "coordinates": [1, 2, 3]},
         "properties": {"kind": "knn", "keywords": "a", "k": 1}},
    ]  # fmt: skip
    body = json.dumps({"type": "FeatureCollection", "features": bad}).encode()
    outcomes = call(served.port, "POST", "/v1/subscriptions", body, Content_Type=GEOJSON).json
    reasons = [one.get("reason") for one in outcomes]
    assert reasons == ["bad_region", "bad_geojson", "bad_id", "bad_geojson", None]
    for wrong in (b"[]", b"{", b'{"type": "Feature"}', b'{"type": "FeatureCollection", "features": 1}'):
        answer = call(served.port, "POST", "/v1/subscriptions", wrong, Content_Type=GEOJSON)
        assert (answer.status, answer.json["reason"]) == (422, "bad_geojson")

    def met(region):
        found = served.call("GET", f"/v1/subscriptions?prefix=geo-&region={region}").json["subscriptions"]
        return [one["subscription_id"] for one in found]

    assert met("139.5,35.5,139.6,35.6") == ["geo-0"] and met("179,-90,-179,90") == ["geo-7"]
    assert met("6,52,7.5,52.5") == ["geo-3"] and met("4.9,52.37,4.9,52.37") == ["geo-1", "geo-2", "geo-3"]
    answer = served.call("GET", "/v1/subscriptions?region=1")
    assert (answer.status, answer.json["reason"]) == (422, "bad_region")


def test_subscription_ends_by_itself_when_its_time_is_over(served):
    made = served.call("POST", "/v1/subscriptions", ramen("short", ttl_s=0.5))
    assert made.status == 201 and "expires_at" in served.call("GET", "/v1/subscriptions/short").json
    assert served.call("POST", "/v1/subscriptions", ramen("long", expires_at="2100-01-01")).status == 201
    served.await_(lambda: served.call("GET", "/v1/subscriptions/short").status == 404, 20)
    assert served.call("GET", "/v1/subscriptions/long").status == 200
    for wrong in ({"ttl_s": 0}, {"ttl_s": "5"}, {"expires_at": "2001-01-01"}, {"expires_at": "soon"}):
        problem(served.call("POST", "/v1/subscriptions", ramen("wrong", **wrong)), 422, "bad_time")


def test_updates_ids_are_the_same_whatever_is_filtered(served):
    for name in ("apple", "pear"):
        served.call("POST", "/v1/subscriptions", ramen(name))
    knn = {"subscription_id": "near", "kind": "knn", "keywords": "apple", "lon": 139.5, "lat": 35.5, "k": 1}
    served.call("POST", "/v1/subscriptions", knn)
    since = here(served)
    rows = [message("f1", "apple pear"), message("f2", "pear"), message("f3", "apple")]
    assert served.call("POST", "/v1/messages?wait=delivered", rows).json["delivered"] is True
    every = polled(served, since)
    shown = [(one["subscription_id"], one["change"], one["message_id"]) for one in every]
    assert shown == [
        ("apple", "match", "f1"),
        ("apple", "match", "f3"),
        ("near", "enter", "f1"),
        ("pear", "match", "f1"),
        ("pear", "match", "f2"),
    ]
    for query, wanted in (
        ("&subscription=pear", {"pear"}),
        ("&subscription=pear&subscription=near", {"pear", "near"}),
        ("&kind=knn", {"near"}),
        ("&kind=boolean&subscription=near", set()),
        ("&region=139.5,35.5,139.5,35.5", {"apple", "pear", "near"}),
        ("&region=139,35,139.4,36", set()),
        ("&region=100,30,150,40&subscription=pear", {"pear"}),
    ):
        assert polled(served, since, query + "&wait_s=0") == [one for one in every if one["subscription_id"] in wanted]
    assert polled(served, every[2]["id"]) == every[3:], "behind an id"
    assert polled(served, since, "&limit=1")[0] == every[0]


def test_updates_of_a_region_that_crosses_180_degrees_and_of_no_region(served):
    row = {"subscription_id": "date line", "kind": "boolean", "keywords": "line", "region": [-180, -90, 180, 90]}
    served.call("POST", "/v1/subscriptions", row)
    since = here(served)
    places = [(-180, -10), (-179, 0), (-170, 10), (-169.9, 0), (0, 0), (169.9, 0), (170, 0), (180, 10.1), (180, 10)]
    rows = [{"text": "line", "lon": lon, "lat": lat} for lon, lat in places]
    served.call("POST", "/v1/messages?wait=delivered", rows)
    found = [(one["lon"], one["lat"]) for one in polled(served, since, "&region=170,-10,-170,10")]
    assert found == [(-180, -10), (-179, 0), (-170, 10), (170, 0), (180, 10)]
    for wrong in ("", "1,2,3", "1,2,3,x", "0,5,1,4", "0,0,181,1", "nan,0,1,1", "0,-91,1,1", "0,0,1,1,1"):
        problem(served.call("GET", f"/v1/updates?region={wrong}"), 422, "bad_region")
    problem(served.call("GET", "/v1/updates?poll=1&snapshot=1"), 422, "bad_parameter")


def test_match_knows_words_that_no_message_has_had(served):
    served.call("POST", "/v1/subscriptions", ramen("papaya"))
    answer = served.call("POST", "/v1/match", message("p", "one papaya")).json
    assert [one["subscription_id"] for one in answer["reached"]] == ["papaya"]
    assert answer["reached"][0]["words"] == ["papaya"]


def test_words_of_results_are_those_of_the_language_of_both(served):
    served.call("POST", "/v1/subscriptions", ramen("häuser", lang="german") | {"subscription_id": "house"})
    sent = [message("h1", "ein Haus") | {"lang": "de"}, message("h2", "Häuser")]
    served.call("POST", "/v1/messages?wait=delivered", sent)
    results = served.call("GET", "/v1/subscriptions/house/results").json["results"]
    assert {row["message_id"]: row["words"] for row in results} == {"h1": [":german:haus"], "h2": ["häuser"]}


def test_updates_by_events_lines_and_poll_are_the_same(served):
    served.call("POST", "/v1/subscriptions", ramen("melon"))
    since = here(served)
    with Follower(served.port, f"since={since}&subscription=melon") as follower:
        waiting = threading.Thread(target=lambda: found.extend(polled(served, since, "&subscription=melon&wait_s=30")))
        found: list = []
        waiting.start()
        seq = served.call("POST", "/v1/messages", message("g1", "melon")).json["seq"]
        waiting.join(30)
        follower.await_through(seq)
        assert [row for _, row in follower.book] == found and len(found) == 1
    answer = served.call("GET", f"/v1/updates?poll=1&since={since}&subscription=melon", Accept="text/event-stream")
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = events_of(answer.body.decode())
    assert [one.data for one in events[:-1]] == found and events[-1].event == "progress"
    assert position(events[-1].id) > position(events[0].id) and events[-1].data["through"] >= seq


def test_updates_behind_a_place_that_the_stream_has_not_reached_say_so(served):
    (gap, progress) = served.call("GET", "/v1/updates?poll=1&since=99999999-3&wait_s=0").lines
    assert (
        gap["gap"]["reason"] == "unknown_position" and gap["gap"]["do"] and progress["progress"]["id"] == here(served)
    )
    for wrong in ("x", "1-2-3", "-5", "1-x"):
        problem(served.call("GET", f"/v1/updates?since={wrong}"), 422, "bad_position")
    problem(served.call("GET", "/v1/updates?kind=none"), 422, "unknown_kind")


def test_stream_says_what_clients_need_to_know(served):
    seq = served.call("POST", "/v1/messages?wait=delivered", message("newest", "tea")).json["seq"]
    stream = served.call("GET", "/v1/stream").json
    assert stream.pop("disk")["free_bytes"] > 0
    assert {one["name"] for one in stream.pop("fields")} <= {"lang"}, "another test's messages have it"
    assert stream == {
        "attributes": [
            {"name": "price", "type": "number", "misfits": 0},
            {"name": "type", "type": "category", "misfits": 0},
        ],
        "kinds": ["boolean", "topk", "decay", "knn", "skyline"],
        "distance": "sphere",
        "projection": "plate-carree",
        "world": [-180, -90, 180, 90],
        "window": "count:1000",
        "stem": "english",
        "fold_accents": False,
        "next_seq": seq + 1,
        "first_kept_seq": 0,
        "complete_through": seq,
    }


def test_errors_are_problems_whatever_is_wrong(served):
    problem(served.call("GET", "/nowhere"), 404, "no_such_path")
    problem(served.call("DELETE", "/v1/messages"), 405, "no_such_method")
    problem(call(served.port, "POST", "/v1/messages", b"a=b", Content_Type="text/plain"), 415, "wrong_media_type")
    gzip = {"Content_Type": "application/json", "Content_Encoding": "gzip"}
    problem(call(served.port, "POST", "/v1/messages", b"{}", **gzip), 415, "wrong_encoding")
    problem(served.call("GET", "/health", Host="evil.example"), 421, "wrong_host")
    problem(served.call("GET", "/v1/subscriptions?limit=0"), 422, "bad_parameter")
    long = call(served.port, "POST", "/v1/messages", b"[" + b" " * 2**24 + b"]", Content_Type="application/json")
    problem(long, 413, "body_too_long")
    assert served.call("GET", "/health", Host=f"localhost:{served.port}").json["status"] == "ok"


def test_errors_name_the_methods_of_a_path_and_the_kinds_there_are(served):
    methods = {"": "GET, HEAD, POST", "/s1": "DELETE, GET, HEAD, PUT", "/s1/results": "GET, HEAD"}
    for rest, allowed in methods.items():
        for method in ("PATCH", "OPTIONS"):
            answer = problem(served.call(method, f"/v1/subscriptions{rest}"), 405, "no_such_method")
            assert answer.headers["allow"] == allowed
    for path in ("subscriptions", "updates"):
        assert "topk" in problem(served.call("GET", f"/v1/{path}?kind=top"), 422, "unknown_kind").json["do"]
    columns = ramen("no ttl", ttl_s=None, expires_at=None)
    assert served.call("PUT", "/v1/subscriptions/no%20ttl", columns).status == 201
    assert served.call("DELETE", "/v1/subscriptions/no%20ttl").status == 200


def test_description_is_openapi_3_1_and_whole(served):
    description = served.call("GET", "/openapi.json").json
    assert description["openapi"].startswith("3.1")
    assert {"/v1/messages", "/v1/subscriptions", "/v1/subscriptions/{subscription_id}", "/v1/updates"} <= description[
        "paths"
    ].keys()

    def references(part):
        if isinstance(part, dict):
            yield from ([part["$ref"]] if isinstance(part.get("$ref"), str) else [])
            part = list(part.values())
        for each in part if isinstance(part, list) else ():
            yield from references(each)

    found = set(references(description))
    assert len(found) > 5
    for one in found:
        place = description
        for step in one.removeprefix("#/").split("/"):
            place = place[step]
    assert "text/event-stream" in description["paths"]["/v1/updates"]["get"]["responses"]["200"]["content"]
    schemas = description["components"]["schemas"]
    assert schemas["Message"]["examples"] and "x-row" not in json.dumps(description)
    for row in (rows.MessageOutcome, rows.SubscriptionOutcome, rows.Update):
        assert schemas[row.__name__]["properties"].keys() == set(row.__struct_fields__), "as the client decodes it"
        assert schemas[row.__name__]["examples"]
    assert schemas["MessagesAnswer"]["properties"]["outcomes"]["items"] == {
        "$ref": "#/components/schemas/MessageOutcome"
    }
    for path in ("/v1/messages", "/v1/subscriptions"):
        kinds = description["paths"][path]["post"]["responses"]["200"]["content"].keys()
        assert kinds == {"application/json", "application/x-ndjson"}
        answers = description["paths"][path]["post"]["responses"]
        assert {"413", "429"} <= answers.keys() and "Retry-After" in answers["429"]["headers"]


@pytest.mark.promtool
def test_metrics_are_as_prometheus_wants_them(served):
    served.call("POST", "/v1/messages?wait=delivered", [message("measured", "tea"), 7])
    served.await_(lambda: b"skyray_component_busy_ratio{" in served.call("GET", "/metrics").body)
    figures = served.call("GET", "/metrics").body
    done = subprocess.run(["promtool", "check", "metrics"], input=figures, capture_output=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, b""), done


def test_server_that_is_stopped_ends_streams_with_a_hint_and_leaves_a_run(tmp_path):
    """Also while 50 clients follow, one sends lines, and another's body is only half there."""
    with Served(tmp_path / "out") as served:
        served.call("POST", "/v1/subscriptions", ramen("tea"))
        served.call("POST", "/v1/messages", message("m", "tea"))
        following = [follow(served) for _ in range(50)]
        lines, answer = lines_in_flight(served)
        half = http.client.HTTPConnection("127.0.0.1", served.port, timeout=300)
        half.putrequest("POST", "/v1/messages")
        half.putheader("Content-Type", "application/json")
        half.putheader("Content-Length", "100")
        half.endheaders(b"{")
        said = served.end(10)
        for connection, stream in following:
            assert stream.read().endswith(b"retry: 1000\n\n")
            connection.close()
        assert json.loads(answer.readline())["problem"]["reason"] == "shutting_down" and answer.read() == b""
        for connection in (lines, half):
            connection.close()
    assert "event=ended messages=2 updates=2 subscriptions=1 " in said
    assert json.loads((tmp_path / "out" / "run.json").read_text())["state"] == "interrupted"


def follow(served):
    """A client whose stream has begun."""
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=300)
    connection.request("GET", "/v1/updates?since=begin", headers={"Accept": "text/event-stream"})
    answer = connection.getresponse()
    assert b"retry: 1000\n" in [answer.readline() for _ in range(6)]
    return connection, answer


def lines_in_flight(served):
    """A producer whose first line is answered, and whose request goes on."""
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=300)
    connection.putrequest("POST", "/v1/messages")
    for name, value in {**NDJSON, "Transfer-Encoding": "chunked"}.items():
        connection.putheader(name, value)
    connection.endheaders()
    line = json.dumps(message("flight", "tea")).encode() + b"\n"
    connection.send(b"%x\r\n%s\r\n" % (len(line), line))
    answer = connection.getresponse()
    assert json.loads(answer.readline())["status"] == "accepted"
    return connection, answer


ODD_IDS = ["a/b", "a/results", "/", "a//b", "a%2Fb", "a b?c#d", "é中", "a+b&c=d;e", "%", "results", "..x", "a\\b"]


@pytest.mark.parametrize("name", ODD_IDS)
def test_subscription_id_with_reserved_characters_is_read_replaced_asked_and_ended(served, name):
    path = f"/v1/subscriptions/{quote(name, safe='')}"
    columns = {"kind": "boolean", "keywords": "odd", "region": [139, 35, 140, 36]}
    made = served.call("PUT", path, columns)
    assert (made.status, made.json["subscription_id"], made.headers["location"]) == (201, name, path)
    assert served.call("GET", path).json == {**columns, "subscription_id": name}
    assert served.call("GET", f"{path}/results").json["subscription_id"] == name
    problem(served.call("GET", f"{path}/none"), 404, "no_such_path")
    assert served.call("PUT", path, {**columns, "keywords": "even"}).json["status"] == "replaced"
    assert served.call("DELETE", path).json == {"status": "deleted", "subscription_id": name} | {
        "from_seq": served.call("GET", "/v1/stream").json["next_seq"]
    }
    problem(served.call("GET", path), 404, "unknown_subscription")
