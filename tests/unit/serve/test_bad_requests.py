"""Hostile requests to one server: each gets its reason, what is good beside it is taken, and the server stays."""

import gzip
import json
import random
import zlib
from collections import Counter
from urllib.parse import quote

import psutil
import pytest

from tests.support.serving import NDJSON, Served, call

JSON = {"Content_Type": "application/json"}
SQUARE = [[139, 35], [140, 35], [140, 36], [139, 36], [139, 35]]
MEBIBYTE = 2**20


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with Served(tmp_path_factory.mktemp("bad") / "out", "--window", "count:1000") as one:
        assert one.call("POST", "/v1/subscriptions", ramen("all", region=[-180, -90, 180, 90])).status == 201
        yield one
        assert one.call("GET", "/ready").status == 200
        assert "Traceback" not in one.end()


def ramen(name, **more):
    return {"subscription_id": name, "kind": "boolean", "keywords": "ramen", **more}


def message(name, **more):
    return {"id": name, "text": "ramen", "lon": 139.5, "lat": 35.5, **more}


def post(served, path, data):
    """A body of bytes, as JSON; its status, and the reason of a refusal."""
    answer = call(served.port, "POST", path, data, **JSON)
    assert answer.status < 400 or answer.headers["content-type"] == "application/problem+json"
    return answer.status, answer.json.get("reason")


def memory_of(served):
    return psutil.Process(served.process.pid).memory_info().rss


def reached(served, name):
    """Subscriptions that have an update of a message."""
    lines = served.call("GET", "/v1/updates?poll=1&since=begin&wait_s=0&limit=100000").lines
    return {row["subscription_id"] for row in lines if row.get("message_id") == name}


def test_bad_lines_are_counted_by_reason_and_the_good_among_them_are_taken(served):
    bad = {
        b'{"id": "x", "text": "ramen", "lon": 1': "not_json",
        b'\xff\xfe{"text": "ramen", "lon": 1, "lat": 1}': "bad_utf8",
        b'{"text": "ra\x00men", "lon": 1, "lat": 1}': "nul_byte",
        b'{"text": "ra\xffmen", "lon": 1, "lat": 1}': "bad_utf8",
        b'{"text": ["ramen"], "lon": 1, "lat": 1}': "wrong_type",
        b'{"text": "ramen", "lon": {}, "lat": 1}': "wrong_type",
        b'{"text": 7, "lon": 1, "lat": 1}\r': "wrong_type",
        b'"ramen"': "not_json",
        b"[" * 2_000: "not_json",
        b"": None,  # no row
    }
    rows = [line for line in bad for _ in range(1_000)]
    random.Random(1).shuffle(rows)
    wanted = Counter(reason for line in rows if (reason := bad[line]))
    for at in range(10):
        rows.insert(at * 1_000 + 7, json.dumps(message(f"good {at}")).encode() + b"\r")
    before, refused = memory_of(served), served.call("GET", "/health").json["refused"]
    outcomes = call(served.port, "POST", "/v1/messages?wait=delivered", b"\n".join(rows), **NDJSON).lines
    assert outcomes.pop() == {"delivered": True}
    assert Counter(one["reason"] for one in outcomes if one["status"] == "refused") == wanted
    assert [one["id"] for one in outcomes if one["status"] == "accepted"] == [f"good {at}" for at in range(10)]
    assert [one["line"] for one in outcomes] == [at for at, row in enumerate(rows, start=1) if row.strip()]
    assert served.call("GET", "/health").json["refused"] - refused == wanted.total()
    assert memory_of(served) - before < 50 * MEBIBYTE
    assert "all" in reached(served, "good 9")


@pytest.mark.parametrize("before", [b"\xef\xbb\xbf", b"\x1e", b"\x1e\xef\xbb\xbf \r\n"])
def test_what_stands_before_a_body_or_a_line_costs_no_row(served, before):
    """A mark of the order of bytes, and record separators (RFC 8142): the same rows as without them."""
    name = f"marked {before.hex()}"
    one, two = (json.dumps(message(f"{name} {at}")).encode() for at in range(2))
    assert post(served, "/v1/messages", before + one) == (200, None)
    for body, form in ((before + b"[" + one + b"," + two + b"]", JSON), (before + one + b"\n" + before + two, NDJSON)):
        answer = call(served.port, "POST", "/v1/messages?wait=delivered", body, **form)
        found = [each for each in (answer.lines if form is NDJSON else answer.json["outcomes"]) if "status" in each]
        assert [each["status"] for each in found] in (["duplicate", "accepted"], ["duplicate", "duplicate"]), found
    assert {"all"} == reached(served, f"{name} 0") == reached(served, f"{name} 1")
    row = json.dumps(ramen(name, region=[1, 1, 2, 2])).encode()
    feature = json.dumps({"type": "Feature", "id": name, "geometry": None, "properties": json.loads(row)}).encode()
    assert post(served, "/v1/subscriptions", before + row) == (201, None)
    features = before + b'{"type": "FeatureCollection", "features": [' + feature + b"]}"
    geojson = {"Content_Type": "application/geo+json"}
    for body, form in ((before + row, NDJSON), (before + b"[" + row + b"]", JSON), (features, geojson)):
        answer = call(served.port, "POST", "/v1/subscriptions", body, **form)
        assert answer.body.count(b'"unchanged"') == 1, answer


def test_messages_are_answered_alike_with_the_framework_and_without_it(served):
    lines, json_of = NDJSON, json.dumps
    twice = [message("alike"), {"id": "no place", "text": "ramen"}, "ramen"]
    requests = [
        (json_of(message("alike")).encode(), JSON),
        (json_of({**message("alike"), "lon": 200}).encode(), JSON),
        (json_of({**message("alike"), "text": "other"}).encode(), JSON),
        (json_of(twice).encode(), JSON),
        (b"[]", JSON),
        (b"{", JSON),
        (b"", JSON),
        (b"[" + b"{}," * 20_000 + b"{}]", JSON),
        (b"\n".join(json_of(row).encode() for row in twice), lines),
        (b"", lines),
        (b"ramen", {"Content_Type": "text/plain"}),
        (b"{}", {**JSON, "Content_Encoding": "gzip"}),
    ]
    assert served.call("POST", "/v1/messages", message("alike")).status == 200
    for body, headers in requests:
        # a query that the short way does not know goes through the framework
        short, long = (
            call(served.port, "POST", f"/v1/messages?{query}", body, **headers)
            for query in ("wait=delivered", "wait=delivered&")
        )
        assert (short.status, short.body) == (long.status, long.body), body[:80]
        assert {**short.headers, "date": ""} == {**long.headers, "date": ""}
    assert served.call("POST", "/v1/messages?wait=never", message("never")).json["reason"] == "bad_parameter"


@pytest.mark.parametrize(
    ("lon", "lat", "reason"),
    [
        ("NaN", "1", "number_not_finite"),
        ("Infinity", "1", "number_not_finite"),
        ('"nan"', "1", "coordinate_not_finite"),
        ('"-inf"', "1", "coordinate_not_finite"),
        ("1e400", "1", "number_not_finite"),
        ("180.0000001", "1", "coordinate_out_of_range"),
        ("35.5", "139.5", "coordinate_out_of_range"),
        ('"east"', "1", "coordinate_not_number"),
        ("null", "1", "missing_coordinate"),
        ("true", "1", "wrong_type"),
        ("-0.0", "-0.0", None),
        ("180", "90", None),
        ("-180", "-90", None),
        ('"12.5"', "1", None),
    ],
)
def test_numbers_that_are_no_place_are_refused_and_the_edges_match(served, lon, lat, reason):
    name = f"place {lon} {lat}".replace('"', "'")
    body = f'{{"id": "{name}", "text": "ramen", "lon": {lon}, "lat": {lat}}}'.encode()
    assert post(served, "/v1/messages?wait=delivered", body)[1] == reason
    assert ("all" in reached(served, name)) == (reason is None)


def test_what_is_too_long_is_refused_by_its_limit(served):
    for row in (message("long", text="x" * 10 * MEBIBYTE), message("wide", more=["x" * 100] * 20_000)):
        assert post(served, "/v1/messages", json.dumps(row).encode()) == (413, "line_too_long")
    assert post(served, "/v1/messages", b"[" + b" " * 16 * MEBIBYTE + b"]") == (413, "body_too_long")
    many = " ".join(f"w{at}" for at in range(100_000))
    assert post(served, "/v1/messages", json.dumps(message("terms", text=many[:60_000])).encode())[1] is None
    rows = [
        ("too_many_keywords", ramen("s", keywords=many[:20_000], region=[1, 1, 2, 2])),
        ("too_many_corners", ramen("s", polygon={"type": "Polygon", "coordinates": [ring(20_000)]})),
        ("requires_nothing", ramen("s", keywords="", region=[-180, -90, 180, 90])),
        ("bad_id", ramen("s" * 513, region=[1, 1, 2, 2])),
    ]
    for reason, row in rows:
        assert post(served, "/v1/subscriptions", json.dumps(row).encode()) == (422, reason)
        assert post(served, "/v1/preview", json.dumps(row).encode())[0] == 422
    row = json.dumps(ramen("s", polygon={"type": "Polygon", "coordinates": [[]]})).encode()
    million = row.replace(b"[[]]", b"[[[0,0]%s]]" % (b",[1,1]" * 1_000_000))
    assert post(served, "/v1/subscriptions", million) == (413, "line_too_long")


def ring(corners):
    every = [[round(at / corners, 6), 0] for at in range(corners)] + [[1, 1]]
    return [*every, every[0]]


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        ({"region": [1, 1, 1, 1]}, None),
        ({"region": [170, 1, -170, 2]}, None),  # over the antimeridian
        ({"region": [1, 2, 2, 1]}, "bad_region"),
        ({"region": [1, 1, 2]}, "bad_region"),
        ({"region": [1, 1, 2, "NaN"]}, "coordinate_not_finite"),
        ({"circle": {"lon": 1, "lat": 1, "radius_m": 0}}, "bad_radius"),
        ({"circle": {"lon": 1, "lat": 1, "radius_m": -5}}, "bad_radius"),
        ({"circle": {"lon": 1, "lat": 1, "radius_m": 1e9}}, "bad_radius"),
        (
            {"polygon": {"type": "Polygon", "coordinates": [[[0, 0], [2, 2], [2, 0], [0, 2], [0, 0]]]}},
            "invalid_polygon",
        ),
        ({"polygon": {"type": "Polygon", "coordinates": [[[1, 1], [1, 1], [1, 1], [1, 1]]]}}, "invalid_polygon"),
        ({"polygon": {"type": "Polygon", "coordinates": [SQUARE[:-1]]}}, "bad_polygon"),
        ({"polygon": {"type": "Polygon", "coordinates": [SQUARE]}}, None),
        ({"polygon": {"type": "Point", "coordinates": [1, 1]}}, "bad_polygon"),
        ({"region": [1, 1, 2, 2], "circle": {"lon": 1, "lat": 1, "radius_m": 5}}, "wrong_place"),
    ],
)
def test_shapes_that_enclose_nothing_are_taken_or_refused_as_documented(served, shape, reason):
    status, found = post(served, "/v1/subscriptions", json.dumps(ramen(None, **shape)).encode())
    assert (status, found) == ((201, None) if reason is None else (422, reason))


@pytest.mark.parametrize(
    "text",
    [
        "x" * 60_000,
        "\u0301" * 60_000,
        "\u202e\u200f" * 30_000,
        "\U0001f469\u200d\U0001f680" * 15_000,
        "\u0430a\u0430" * 20_000,
        "_" * 60_000,
        "\u2019" * 60_000,
    ],  # fmt: skip
    ids=["no space", "marks", "right to left", "joined", "homoglyphs", "underlines", "apostrophes"],
)
def test_hostile_text_is_matched_by_the_words_it_has(served, text):
    name = f"text {zlib.crc32(text.encode())}"
    assert (
        post(served, "/v1/messages?wait=delivered", json.dumps(message(name, text=f"{text} Ramen")).encode())[0] == 200
    )
    assert "all" in reached(served, name)


def test_deep_and_wide_json_is_refused_or_taken_and_never_fails(served):
    for deep in (b"[" * 100_000, b'{"a":' * 100_000, b'{"text": ' + b"[" * 100_000, b'[{"id":' * 50_000):
        for path in ("/v1/messages", "/v1/subscriptions", "/v1/match", "/v1/preview"):
            assert post(served, path, deep) in ((400, "not_json"), (422, "not_json")), path
    wide = message("wide") | {f"column {at}": at for at in range(30_000)}
    assert post(served, "/v1/messages", json.dumps(wide).encode())[0] == 200
    twice = b'{"id": "first", "id": "twice", "text": "udon", "text": "ramen", "lon": 1, "lat": 2}'
    assert call(served.port, "POST", "/v1/messages?wait=delivered", twice, **JSON).json["id"] == "twice", "the last"
    assert "all" in reached(served, "twice")


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "gzip, gzip", "identity, gzip", "GZIP", "x"])
@pytest.mark.parametrize("path", ["/v1/messages", "/v1/subscriptions"])
def test_compressed_bodies_are_not_read(served, encoding, path):
    bomb, before = gzip.compress(bytes(8 * MEBIBYTE)), memory_of(served)
    for kind in (JSON, NDJSON):
        answer = call(served.port, "POST", path, bomb, **kind, Content_Encoding=encoding)
        assert (answer.status, answer.json["reason"]) == (415, "wrong_encoding")
    assert post(served, path, bomb)[0] in (400, 422), "without saying so"
    assert memory_of(served) - before < 50 * MEBIBYTE


#: Values of parameters, and bodies, of all sorts.
VALUES = [
    "",
    " ",
    "0",
    "-1",
    "1e9",
    "9" * 40,
    "true",
    "null",
    "begin",
    "17-0",
    "\0",
    "\r\nX: y",
    "é" * 300,
    "../..",
    "%",
]
BODIES = [
    *(b"", b"null", b"{}", b"[]", b"[[]]", b"0", b'"x"', b"{" * 99, b"\xff\xfe", b'{"unsubscribe": {}}'),
    *(b'{"kind": "topk", "keywords": {}, "k": -1}', b'{"subscribe": 1, "unsubscribe": 2}', b'{"polygon": []}'),
    *(json.dumps(row).encode() for row in (message("f"), ramen("f", region=[1, 1, 2, 2]))),
]


def random_request(rng, path, method, operation):
    """A request of an operation of the description: method, path, body, headers."""
    query, headers = ({"poll": "1", "wait_s": "0"} if path in ("/v1/updates", "/v1/told") else {}), {}
    for each in operation.get("parameters", []):
        if each["in"] == "path":
            path = path.replace("{subscription_id}", quote(rng.choice(VALUES) or "f", safe=""))
        elif each["in"] == "query" and each["name"] not in query and rng.random() < 0.4:
            query[each["name"]] = quote(rng.choice(VALUES), safe="")
        elif each["in"] == "header" and rng.random() < 0.3:
            headers[each["name"].replace("-", "_")] = rng.choice(["*", '"x"', "W/", "0-0", "x" * 300])
    body = rng.choice(BODIES) if method in ("post", "put") else None
    if body is not None and rng.random() < 0.9:
        headers["Content_Type"] = rng.choice(["application/json", "application/x-ndjson", "text/plain"])
    return method.upper(), path + "?" + "&".join("=".join(one) for one in query.items()), body, headers


def test_random_requests_of_every_path_never_fail(served):
    described, rng, seen = served.call("GET", "/openapi.json").json, random.Random(7), Counter()
    for _ in range(20):
        for path, methods in described["paths"].items():
            for name, operation in methods.items():
                method, address, body, headers = random_request(rng, path, name, operation)
                answer = call(served.port, method, address, body, **headers)
                assert answer.status < 500, (method, address, body, answer)
                problem = answer.headers["content-type"] == "application/problem+json"
                assert problem == (answer.status >= 400), (method, address, body, answer)
                seen[answer.status] += 1
    assert seen.keys() >= {200, 404, 415, 422}, seen


def test_refusals_name_the_column_as_it_came_and_its_value(served):
    row = {"id": "x", "tweet": "ramen", "lng": 1, "latitude": "north"}
    answer = call(served.port, "POST", "/v1/messages", json.dumps(row).encode(), **JSON)
    assert (answer.status, answer.json["column"], answer.json["value"]) == (422, "latitude", "north")
    assert answer.json["detail"].startswith("latitude is 'north' (")
    rows = [row, message("y", lat=95), message("z", text=["ramen"]), message("v", lon=None)]
    found = served.call("POST", "/v1/messages", rows).json["outcomes"]
    named = [(one["column"], one.get("value")) for one in found]
    assert named == [("latitude", "north"), ("lat", 95), ("text", "list"), ("lon", None)]
    answer = served.call("POST", "/v1/subscriptions", ramen("s", region=[1, 1, 2, 99]))
    assert (answer.json["column"], answer.json["value"]) == ("region", "list")
    answer = served.call("POST", "/v1/subscriptions", ramen("s"))
    assert answer.json["column"] == "region" and "everywhere is [-180, -90, 180, 90]" in answer.json["detail"]
    answer = served.call("POST", "/v1/subscriptions", ramen({"a": "x" * 9_000}, region=[1, 1, 2, 2]))
    assert answer.json["reason"] == "bad_id" and len(answer.body) < 1_000, "not what may be long"


@pytest.mark.parametrize("form", ["one", "array", "lines", "geojson"])
def test_refused_subscription_without_id_has_its_line_and_no_id_that_the_server_made(served, form):
    rows = [ramen(None, region=[1, 2, 2, 1]), ramen(None), ramen(None, region=[1, 1, 2, 2], ttl_s=-1)]
    rows = [{name: value for name, value in row.items() if value is not None} for row in rows]
    if form == "one":
        found = [served.call("POST", "/v1/subscriptions", row).json for row in rows]
    elif form == "array":
        found = served.call("POST", "/v1/subscriptions", rows).json
    elif form == "lines":
        body = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
        found = call(served.port, "POST", "/v1/subscriptions", body, **NDJSON).lines
    else:
        features = [{"type": "Feature", "geometry": None, "properties": row} for row in rows]
        collection = json.dumps({"type": "FeatureCollection", "features": features}).encode()
        found = call(served.port, "POST", "/v1/subscriptions", collection, Content_Type="application/geo+json").json
    assert [one["reason"] for one in found] == ["bad_region", "bad_region", "bad_time"]
    assert [one.get("line") for one in found] == ([None] * 3 if form == "one" else [1, 2, 3])
    assert not any("subscription_id" in one for one in found)
    assert [(one["column"], one.get("value")) for one in found] == [("region", "list"), ("region", None), ("ttl_s", -1)]
    assert [one["detail"].split(":")[0] for one in found[:2]] == ["the subscription"] * 2
    named = served.call("POST", "/v1/subscriptions", [ramen("mine")]).json[0]
    assert named["subscription_id"] == "mine" and named["detail"].startswith("subscription 'mine': ")


def test_refusal_of_a_change_says_where_the_fault_is(served):
    gone = served.call("DELETE", "/v1/subscriptions/nobody")
    assert (gone.status, gone.json["where"]) == (404, "path")
    in_body = served.call("POST", "/v1/subscriptions", {"unsubscribe": "nobody"})
    assert (in_body.status, in_body.json["where"]) == (404, "body")
    for method, body in (("DELETE", None), ("PUT", ramen("all", region=[1, 1, 2, 2]))):
        stale = served.call(method, "/v1/subscriptions/all", body, If_Match='"x"')
        assert (stale.status, stale.json["where"]) == (412, "header If-Match")
