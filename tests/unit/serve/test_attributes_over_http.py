"""Attributes over HTTP: declared by a request or by a condition, and there after a kill."""

from tests.support.serving import Served, call, kill, lines_of

PLACE = {"text": "flat", "lon": 1, "lat": 1}
REGION = {"kind": "boolean", "region": [0, 0, 2, 2]}


def names_of(served, part):
    return {one["name"]: one for one in served.call("GET", "/v1/stream").json[part]}


def test_attributes_are_declared_over_http_and_stay_after_a_kill(tmp_path):
    out = tmp_path / "out"
    rows = [{"id": f"m{n}", **PLACE, "price": n, "tags": ["sea"], "rooms": n % 3} for n in range(20)]
    with Served(out, "--window", "count:1000") as served:
        assert served.call("POST", "/v1/messages", rows[:10]).json["accepted"] == 10
        fields = names_of(served, "fields")
        assert {name: (one["type"], one["share"]) for name, one in fields.items()} == {
            "price": ("number", 1.0), "tags": ("categories", 1.0), "rooms": ("number", 1.0),
        }  # fmt: skip
        assert fields["price"]["samples"], "everybody is an admin where there are no keys"
        put = served.call("PUT", "/v1/stream/attributes/price", {"type": "number"})
        assert (put.status, put.json["status"], put.json["from_seq"]) == (201, "created", 10)
        assert served.call("PUT", "/v1/stream/attributes/price", {"type": "number"}).json["status"] == "unchanged"
        other = served.call("PUT", "/v1/stream/attributes/price", {"type": "time"})
        assert (other.status, other.json["reason"], other.json["value"]) == (409, "attribute_exists", "time")
        for name, body in (
            ("text", {"type": "number"}),
            ("x", {"type": "money"}),
            ("x", {"kind": "number"}),
            ("x", []),
        ):
            assert served.call("PUT", f"/v1/stream/attributes/{name}", body).json["reason"] == "bad_attribute"
        slip = served.call("POST", "/v1/subscriptions", {"subscription_id": "x", **REGION, "where": {"pirce": 3}})
        assert slip.status == 422 and "did you mean price?" in slip.json["detail"]
        where = {"price": {"lte": 15}, "tags": {"all": ["sea"]}}
        made = served.call("POST", "/v1/subscriptions", {"subscription_id": "s", **REGION, "where": where})
        assert made.status == 201 and names_of(served, "attributes").keys() == {"price", "tags"}
        bad = {"id": "bad", **PLACE, "price": "VB", "tags": ["sea"]}
        lines = lines_of([*rows[10:], bad])
        answer = call(served.port, "POST", "/v1/messages", lines, Content_Type="application/x-ndjson")
        assert [one["status"] for one in answer.lines] == ["accepted"] * 11
        assert answer.lines[-1]["warnings"][0]["column"] == "price"
        assert names_of(served, "attributes")["price"]["misfits"] == 1
        assert b'skyray_misfit_values_total{column="price"} 1.0' in served.call("GET", "/metrics").body
        kill(served)
    with Served(out, "--window", "count:1000") as served:
        assert names_of(served, "attributes").keys() == {"price", "tags"}
        late = {"id": "late", **PLACE, "price": 1, "tags": ["lift", "sea"]}
        assert served.call("POST", "/v1/messages?wait=delivered", late).json["delivered"]
        told = served.call("GET", "/v1/updates?poll=1&since=begin&wait_s=0&limit=1000").lines
        assert [one["message_id"] for one in told if "message_id" in one] == [*(f"m{n}" for n in range(10, 16)), "late"]
        assert "Traceback" not in served.end()
