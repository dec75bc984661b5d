"""Answers about a stream that runs are those about the folder that it leaves."""

import json
from collections import Counter

import numpy as np
import pyarrow.parquet as pq
import pytest

from gateway.runs.explaining import explain
from gateway.serve.replay import Replay, Wanted
from gateway.serve.update_parts import BEGINNING
from gateway.subscriptions.preview import preview_subscriptions
from tests.support.beside import BOX, LATE, WORDS, random_message, random_subscription
from tests.support.serving import NDJSON, Served, call, lines_of, position

COUNT = 250
QUERIES = {
    2: f"({WORDS[0]} OR {LATE[0]}) -{WORDS[1]}",
    3: f"{WORDS[0]} OR ({WORDS[1]} {WORDS[2]}) OR ({LATE[1]} -{WORDS[0]})",
    6: {"all": [{"any": [WORDS[1], {"all": [WORDS[2], WORDS[3]]}]}], "none": [{"all": [WORDS[0], WORDS[1]]}]},
    7: f"{WORDS[2]} -({WORDS[0]} {WORDS[1]})",
    9: f"{WORDS[1]} (late* OR {WORDS[2]})",
    11: f'({WORDS[0]} OR {WORDS[1]}) -"{WORDS[1]} {WORDS[0]}"~2',
}
#: What both answers have.
SAME = (
    "in_result",
    "reason",
    "why",
    "as_of",
    "words",
    "missing",
    "score",
    "rank",
    "threshold",
    "rivals",
    "parts",
    "distance_km",
)
READ_AS = {
    2: "(w0 OR late0) -w1",
    3: "(w0 OR (w1 w2) OR (late1 -w0))",
    6: "(w1 OR (w2 w3)) -(w0 w1)",
    7: "w2 -(w0 w1)",
    9: "w1 (late* OR w2)",
    11: '(w0 OR w1) -"w1 w0"~2',
}


@pytest.fixture(scope="module", params=["time:5000", pytest.param("count:60", marks=pytest.mark.wide)])
def ended(request, tmp_path_factory):
    """The folder of a stream that has ended, and what it answered before."""
    rng, out = np.random.default_rng(11), tmp_path_factory.mktemp("asking") / "out"
    subscriptions = [random_subscription(rng, place) | {"subscription_id": f"s{place}"} for place in range(40)]
    for place in range(0, 40, 4):
        words = {"kind": "boolean", "keywords": [*WORDS, *LATE][place // 4]}
        subscriptions[place] = {"subscription_id": f"s{place}", **words, "region": [-20, -10, 20, 10]}
    subscriptions[1] = {"subscription_id": "s1", "kind": "boolean", "everything": True}
    for place, query in QUERIES.items():
        kind = {"kind": "boolean", "region": [-20, -10, 20, 10]}
        if place % 2:
            kind = {"kind": "topk", "lon": 0, "lat": 0, "k": 4, "alpha": 0.5}
        subscriptions[place] = {"subscription_id": f"s{place}", **kind, "query": query}
    messages = [random_message(rng, place) for place in range(COUNT)]
    answers: dict = {"explain": {}, "results": {}, "preview": {}, "subscriptions": subscriptions}
    with Served(out, "--world", BOX, "--window", request.param, "--set", "stream.batch_rows=20") as served:
        for first, last in ((0, 20), (20, 40)):
            rows = lines_of(subscriptions[first:last])
            outcomes = call(served.port, "POST", "/v1/subscriptions", rows, **NDJSON).lines
            assert {one["status"] for one in outcomes} == {"created"}
            read = {int(one["subscription_id"][1:]): one["read_as"] for one in outcomes if "read_as" in one}
            assert read == (READ_AS if not first else {})
            served.call("POST", "/v1/messages?wait=delivered", messages[first * 5 : last * 5])
        answers["match"] = [matched_and_sent(served, message) for message in messages[200:]]
        check_metrics(served)
        check_refusals(served)
        for row in subscriptions:
            name = row["subscription_id"]
            answers["results"][name] = served.call("GET", f"/v1/subscriptions/{name}/results").json["results"]
            seqs = {*rng.integers(0, COUNT, 2).tolist(), *(one["seq"] for one in answers["results"][name][:2])}
            for seq in seqs:
                query = f"/v1/explain?subscription={name}&message=seq:{seq}"
                answers["explain"][name, seq] = served.call("GET", query).json
            answers["preview"][name] = served.call("POST", "/v1/preview", row).json
        answers["updates"] = served.call("GET", "/v1/updates?since=begin&poll=1&limit=100000").lines
        answers["active"] = served.call("GET", "/v1/subscriptions").json["subscriptions"]
        served.end()
    return out, answers


def test_explain_of_a_stream_that_runs_is_that_of_its_folder(ended):
    out, answers = ended
    reasons, clauses = Counter(), Counter()
    for (name, seq), found in answers["explain"].items():
        wanted = explain(out, name, f"seq:{seq}")
        assert {key: found[key] for key in SAME} == json.loads(json.dumps({key: wanted[key] for key in SAME})), (
            name,
            seq,
        )
        assert [one["change"] for one in found["updates"]] == [one["change"] for one in wanted["updates"]]
        reasons[found["reason"]] += 1
        clauses[found["why"].partition("query: ")[2]] += found["reason"] == "query"
    assert any(" is not there" in text for text in clauses), clauses
    assert len(reasons) > 5 and reasons["in_result"] > 10, reasons


def test_results_of_a_stream_that_runs_are_those_that_it_leaves(ended):
    out, answers = ended
    left: dict = {}
    for row in pq.read_table(out / "results.parquet").to_pylist():
        left.setdefault(row["subscription_id"], []).append(
            tuple(row[name] for name in ("rank", "message_id", "seq", "score"))
        )
    shown = {
        name: [tuple(row[key] for key in ("rank", "message_id", "seq", "score")) for row in rows]
        for name, rows in answers["results"].items()
        if rows and rows[0]["rank"] is not None
    }
    assert shown == left and len(left) > 5
    words = {row["subscription_id"]: row.get("keywords") or row.get("query") for row in answers["subscriptions"]}
    assert any(rows and not words[name] for name, rows in answers["results"].items())
    for name, rows in answers["results"].items():
        assert all(bool(row["words"]) == bool(words[name]) and row["text"] for row in rows)
    rows = [row for rows in answers["results"].values() for row in rows]
    assert {row["distance_km"] is None for row in rows} == {True, False}


def test_replay_of_the_folder_answers_as_the_stream_did(ended):
    """With the ids that the updates had, but for the digits of the log, which a folder of results has not."""
    out, answers = ended
    replay = Replay(out)
    updates, behind, _ = replay.updates(Wanted(BEGINNING, replay.last), 100_000, newest=False)
    *sent, progress = answers["updates"]
    plain = [row | {"id": row["id"].rpartition("-")[0]} for row in sent]
    assert [json.loads(one.data) for one in updates.updates()] == plain and len(sent) > 200
    assert behind.text == plain[-1]["id"] and position(behind.text) <= position(progress["progress"]["id"])
    for name, rows in answers["results"].items():
        assert replay.results(name, replay.last)["results"] == rows
    for (name, seq), found in answers["explain"].items():
        again = replay.explain(name, f"seq:{seq}", found["as_of"])
        found["updates"] = [row | {"id": row["id"].rpartition("-")[0]} for row in found["updates"]]
        assert {key: found[key] for key in (*SAME, "updates")} == json.loads(
            json.dumps({key: again[key] for key in (*SAME, "updates")})
        )
    columns = [{key: value for key, value in row.items() if key != "at"} for row in answers["active"]]
    listed = replay.subscriptions(replay.last, -1, 1_000, None, "")[0]
    assert [{key: value for key, value in row.items() if key != "at"} for row in listed] == columns


def test_preview_of_a_stream_that_runs_is_that_of_its_folder(ended, tmp_path):
    out, answers = ended
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in answers["subscriptions"]))
    some = 0
    for wanted in preview_subscriptions([tmp_path / "mine.jsonl"], out, BOX):
        found = answers["preview"][wanted["subscription_id"]]
        same = ("candidates", "messages", "day", "week", "newest", "conditions")
        assert found["read"] >= COUNT and [found[key] for key in same] == [wanted[key] for key in same]
        some += found["messages"] > 0
    assert some > 20


def matched_and_sent(served, message):
    """Whom a message reaches as /v1/match says, and then as its updates say: the kind that matches at once."""
    before = served.call("GET", "/health").json["next_seq"]
    answer = served.call("POST", "/v1/match?limit=1000", message).json
    assert served.call("GET", "/health").json["next_seq"] in (before, before + 1), "a clock mark at most"
    seq = served.call("POST", "/v1/messages?wait=delivered", message).json["seq"]
    query = f"/v1/updates?poll=1&wait_s=0&since={seq - 1}&kind=boolean"
    matched = {row["subscription_id"] for row in served.call("GET", query).lines if row.get("change") == "match"}
    return answer, {one["subscription_id"] for one in answer["reached"] if one["kind"] == "boolean"}, matched


def test_match_says_whom_a_message_would_reach_before_it_comes(ended):
    reached = 0
    for answer, boolean, matched in ended[1]["match"]:
        assert boolean == matched and answer["complete"] and answer["subscriptions"] == 40
        assert answer["reached_in_all"] + sum(answer["not_reached"].values()) == 40
        reached += len(matched)
    assert reached > 10


def check_refusals(served):
    for method, path, body, reason in (
        ("POST", "/v1/match", {"text": "x"}, "missing_coordinate"),
        ("POST", "/v1/preview", {"kind": "none"}, "unknown_kind"),
        ("POST", "/v1/preview", {"kind": "knn", "keywords": True, "lon": 1, "lat": 1, "k": 3}, "wrong_type"),
        ("GET", "/v1/explain?subscription=s1&message=none", None, "unknown_message"),
        ("GET", "/v1/explain?subscription=none&message=seq:0", None, "unknown_subscription"),
        ("GET", "/v1/subscriptions/none/results", None, "unknown_subscription"),
    ):
        assert served.call(method, path, body).json["reason"] == reason


def check_metrics(served):
    """Names, types and values of what Prometheus reads, and the topology."""
    # a message is measured once its updates are out, which `wait=delivered` may tell before
    whole = f"skyray_latency_seconds_count {COUNT}.0".encode()
    served.await_(lambda: whole in served.call("GET", "/metrics").body)
    answer = served.call("GET", "/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    lines = answer.body.decode().splitlines()
    types = dict(line.split()[2:4] for line in lines if line.startswith("# TYPE"))
    values = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}
    for name, kind in types.items():
        assert name.startswith(("skyray_", "process_")) and (kind != "counter" or name.endswith("_total")), (name, kind)
    assert (
        values["skyray_messages_total"] == COUNT
        and values["skyray_subscriptions"] == 40
        and values["skyray_broad_subscriptions"] == served.call("GET", "/health").json["broad"] == 1
        and values["skyray_ready"] == 1
    )
    assert values['skyray_latency_seconds_bucket{le="+Inf"}'] == values["skyray_latency_seconds_count"] >= COUNT
    assert values["skyray_latency_seconds_sum"] > 0 and values['skyray_latency_seconds_bucket{le="67.108864"}'] > 0
    assert any(name.startswith('skyray_component_received_payloads_total{component="query"}') for name in values)
    assert not [name for name in values if "subscription=" in name]
    answer = served.call("GET", "/v1/topology").json
    assert answer["ready"] and answer["behind"] == 0 and "query" in answer["topology"]["components"]
