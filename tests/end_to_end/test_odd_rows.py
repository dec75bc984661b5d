"""What a door takes can always be read again: odd rows through each, then an end without a warning, and a new life.

How deep a row may be is a number (`matching.reasons.MAX_DEPTH`), whatever the stack of whoever reads it.
"""

import asyncio
import json
import sys

import msgspec
import numpy as np
import pytest

import skyray
from gateway.client import flows
from gateway.client.answers import Answer
from gateway.live.subscription_files import subscribe_all
from gateway.runs.verify import verify_run
from gateway.serve.writer import PublishedRow
from matching.decoding import cut_deep, decode_object, is_deep
from matching.reasons import MAX_DEPTH
from matching.validate import MessageDecoder
from spark_etl.feed_rows import FeedCleaner, Rejected
from spark_etl.ingest import Split, read_blocks
from spark_etl.options import EtlOptions
from spark_etl.sources import find_sources
from spouts.lines import read_rows
from spouts.log import Origin
from tests.support.etl_folder import random_rows, write_etl
from tests.support.live_streams import Stream
from tests.support.log_events import log_events
from tests.support.odd_rows import nest, odd_messages, odd_subscriptions
from tests.support.serving import NDJSON, Served, call
from tests.support.writing import WriterStream
from topology.folder import RUNNING

MESSAGES, SUBSCRIPTIONS = odd_messages(), odd_subscriptions()
TAKEN = [name for name, (_, reason) in MESSAGES.items() if reason is None]
TAKEN_SUBSCRIPTIONS = [name for name, (_, reason) in SUBSCRIPTIONS.items() if reason is None]
JSON = {"Content_Type": "application/json"}
ALL = {"subscription_id": "all", "kind": "boolean", "keywords": "w1", "region": [-20, -10, 20, 10]}


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    return write_etl(tmp_path_factory.mktemp("odd") / "words", random_rows(200))


def reasons_of(rows):
    return [reason for _, reason in rows.values()]


def so_deep(frames, function):
    """Call where the stack of Python has so many frames more."""
    return function() if frames == 0 else so_deep(frames - 1, function)


@pytest.mark.parametrize("frames", [0, 500, 800])
def test_verdict_of_a_row_is_the_same_wherever_the_stack_stands(frames):
    frames = min(frames, sys.getrecursionlimit() - 150)
    decoder = MessageDecoder({"text": "text", "id": "id"})
    for name, (line, reason) in MESSAGES.items():
        found, skipped = so_deep(frames, lambda line=line: (decode_object(line), decoder.decode(line)))
        if reason in ("too_deep", "number_not_finite"):
            assert found == reason, name
            assert skipped == reason or reason != "too_deep", name
        else:
            assert isinstance(found, dict) and getattr(skipped, "id", None) == name


def test_depth_is_that_of_the_json_and_cutting_leaves_what_is_above():
    for most in (1, 2, MAX_DEPTH):
        for form in ("list", "object"):
            for depth in range(max(1, most - 1), most + 3):
                assert is_deep(nest(depth, form), most) == (depth > most)
    row = b'{"a": "[[{\\"", "b": [1, [2, [3], {"x": "]"}], 4], "c": {"d": {"e": []}}}'
    assert json.loads(cut_deep(row, 2)) == {"a": '[[{"', "b": [1, 0, 4], "c": {"d": 0}}
    assert json.loads(cut_deep(row, 3)) == {"a": '[[{"', "b": [1, [2, 0, 0], 4], "c": {"d": {"e": 0}}}
    assert json.loads(cut_deep(row, 4)) == json.loads(row) and len(cut_deep(row, 2)) == len(row)


def changes_of(rows):
    return [b'{"subscribe": %s}' % line for line, _ in rows.values()]


def test_live_lines_of_any_depth_are_judged_and_the_stream_goes_on_from_what_was_taken(words, tmp_path):
    first = Stream(words, tmp_path / "out")
    first.take({"subscribe": ALL})
    for line in (*changes_of(SUBSCRIPTIONS), *(line for line, _ in MESSAGES.values())):
        first.take(line)
    found = [row["reason"] for row in first.refused]
    assert found == [reason for reason in reasons_of(SUBSCRIPTIONS) + reasons_of(MESSAGES) if reason]
    first.pipe.close_batch()
    first.journal.close()  # killed before anything was matched
    first.journal.run.write_report(RUNNING, {"live": first.journal.settings})
    second = Stream(words, tmp_path / "out")
    assert sorted(second.gate.active) == sorted(["all", *TAKEN_SUBSCRIPTIONS])
    second.take({"id": "good", "text": "w1", "lon": 1, "lat": 1})
    second.pipe.close_batch()
    second.finish(second.match())
    told = [row["message_id"] for row in second.told if row["subscription_id"] == "all"]
    assert told == [*TAKEN, "good"] and verify_run(tmp_path / "out").exact


def test_broker_messages_of_any_depth_are_judged_and_known_again_in_a_new_life(tmp_path):
    def rows():
        lines = [line for line, _ in MESSAGES.values()]
        return [PublishedRow(line, Origin("nats/X", "0", at, "")) for at, line in enumerate(lines, start=1)]

    for taken in ("accepted", "duplicate"):
        with WriterStream(tmp_path / "out") as stream:
            found = stream.submit(*rows())
            stream.writer.begin()
            stream.end()
            assert [one.get("reason") for one in found] == reasons_of(MESSAGES)
            assert [one["id"] for one in found if one["status"] == taken] == TAKEN


def test_files_of_subscriptions_and_of_messages_of_any_depth_are_judged_by_row(words, tmp_path):
    path = tmp_path / "subscriptions.jsonl"
    path.write_bytes(b"\n".join(line for line, _ in SUBSCRIPTIONS.values()))
    read = [row if isinstance(row, str) else None for _, row in read_rows(path)]
    assert read == reasons_of(SUBSCRIPTIONS)
    stream = Stream(words, tmp_path / "out")
    with log_events() as said:
        counts = subscribe_all(stream.pipe.batching, [path])
    assert counts["subscriptions"] == len(TAKEN_SUBSCRIPTIONS) == len(SUBSCRIPTIONS) - counts["rejected"]
    assert [one["reason"] for one in said] == ["too_deep"] * counts["rejected"]
    path.write_text(json.dumps(ALL | {"kind": "bool"}) + "\n" + json.dumps(ALL | {"subscription_id": "good"}))
    with log_events() as said:
        assert subscribe_all(stream.pipe.batching, [path]) == {"subscriptions": 1, "rejected": 1}
    assert (said[0]["line"], said[0]["reason"]) == (1, "unknown_kind") and "subscription 'all'" in said[0]["what"]

    path = tmp_path / "messages.jsonl"
    path.write_bytes(b"\n".join(line for line, _ in MESSAGES.values() if b"lng" not in line))
    wanted = [reason for line, reason in MESSAGES.values() if b"lng" not in line]
    options = EtlOptions(inputs=(str(path),), out=str(tmp_path / "etl"))
    (source,) = find_sources(options)
    for one in (options, EtlOptions(inputs=(str(path),), out=str(tmp_path / "etl"), attribute=("size=a.b:number",))):
        rows = [row for block in read_blocks(Split(source, 0, 1), one) for row in block]
        found = [row.values if isinstance(row.values, str) else None for row in rows]
        assert [reason == "too_deep" for reason in found] == [reason == "too_deep" for reason in wanted]
    feed = FeedCleaner(options)
    of_values = [feed._found(feed._of_line(line), options, {}) for line, _ in MESSAGES.values()]
    assert [one.reason if isinstance(one, Rejected) else None for one in of_values] == reasons_of(MESSAGES)


def test_client_says_of_each_line_what_the_server_would(tmp_path):
    lines = [b"\xef\xbb\xbf" + line for line, _ in MESSAGES.values()]

    class Link:
        async def send(self, request):
            sent = [one["id"] for one in json.loads(request.body)]
            outcomes = [{"status": "accepted", "id": name} for name in sent]
            return Answer(200, {}, msgspec.json.encode({"outcomes": outcomes}))

    async def outcomes_of():
        rows = flows.in_groups(Link(), lines, flows.SentRows.of_messages(None), flows.Patience(1.0))
        return [one async for one in rows]

    found = asyncio.run(outcomes_of())
    wanted = [None if reason == "bad_id" else reason for reason in reasons_of(MESSAGES)]  # a server would say it
    assert [one.reason for one in found] == wanted
    assert all(one.detail for one in found if one.reason)


def test_server_judges_rows_of_any_depth_by_each_form_and_goes_on_when_it_was_killed(tmp_path):
    rows = list(MESSAGES.items())
    with Served(tmp_path / "out", "--window", "count:1000") as served:

        def post(path, body, **headers):
            answer = call(served.port, "POST", path, body, **(headers or JSON))
            assert answer.status < 500, answer
            return answer

        assert post("/v1/subscriptions", json.dumps(ALL).encode()).status == 201
        for name, (line, reason) in rows:
            answer = post("/v1/messages", line)
            assert answer.json.get("reason") == reason and answer.status == (422 if reason else 200), (name, answer)
            post("/v1/match", line)
        array = post("/v1/messages", b"[%s]" % b",".join(line for _, (line, _) in rows)).json
        by_lines = post("/v1/messages?wait=delivered", b"\n".join(line for _, (line, _) in rows), **NDJSON).lines
        assert by_lines.pop() == {"delivered": True}
        for outcomes in (array["outcomes"], by_lines):
            assert [one.get("reason") for one in outcomes] == reasons_of(MESSAGES)
            assert [one["id"] for one in outcomes if one["status"] == "duplicate"] == TAKEN
        rows = [(name, line, reason) for name, (line, reason) in SUBSCRIPTIONS.items()]
        for name, line, reason in rows:
            assert post("/v1/subscriptions", line).json.get("reason") == reason, name
            assert call(served.port, "PUT", "/v1/subscriptions/put", line, **JSON).status in (400, 422), name
            post("/v1/preview", line)
        array = post("/v1/subscriptions", b"[%s]" % b",".join(line for _, line, _ in rows)).json
        by_lines = post("/v1/subscriptions", b"\n".join(line for _, line, _ in rows), **NDJSON).lines
        features = [b'{"type": "Feature", "geometry": null, "properties": %s}' % line for _, line, _ in rows]
        body = b'{"type": "FeatureCollection", "features": [%s]}' % b",".join(features)
        geojson = post("/v1/subscriptions", body, Content_Type="application/geo+json").json
        for outcomes in (array, by_lines, geojson):
            assert [one.get("reason") for one in outcomes] == reasons_of(SUBSCRIPTIONS)
            assert [one["status"] for one in outcomes if "reason" not in one] == ["unchanged"] * len(
                TAKEN_SUBSCRIPTIONS
            )
        served.process.kill()
        served.process.wait(20)
    with Served(tmp_path / "out", "--window", "count:1000") as served:
        again = call(served.port, "POST", "/v1/messages?wait=delivered", MESSAGES[TAKEN[0]][0], **JSON).json
        assert again["status"] == "duplicate"
        good = {"id": "good", "text": "w1", "lon": 1, "lat": 1}
        assert served.call("POST", "/v1/messages?wait=delivered", good).json["delivered"]
        listed = served.call("GET", "/v1/subscriptions?limit=100").json["subscriptions"]
        assert [row["subscription_id"] for row in listed] == ["all", *TAKEN_SUBSCRIPTIONS]
        told = served.call("GET", "/v1/updates?poll=1&since=begin&wait_s=0&limit=1000&subscription=all").lines
        assert [row["message_id"] for row in told if "message_id" in row] == [*TAKEN, "good"]
        assert "Traceback" not in served.end()


def test_subscription_whose_id_came_as_a_number_is_ended_by_that_number(words, tmp_path):
    stream = Stream(words, tmp_path / "out")
    good = {"text": "w1", "lon": 1, "lat": 1}
    for line in (
        {"subscribe": ALL | {"subscription_id": 7}}, {"id": "a"} | good, {"unsubscribe": 7.5}, {"unsubscribe": None},
        {"unsubscribe": 8}, {"unsubscribe": 7.0}, {"id": "b"} | good,
    ):  # fmt: skip
        stream.take(line)
    assert [(row["reason"], row.get("column"), row.get("value")) for row in stream.refused] == [
        ("bad_id", "unsubscribe", 7.5), ("bad_id", "unsubscribe", None), ("unknown_subscription", "unsubscribe", 8),
    ]  # fmt: skip
    stream.pipe.close_batch()
    stream.finish(stream.match())
    assert [(row["subscription_id"], row["message_id"]) for row in stream.told] == [("7", "a")]
    assert verify_run(tmp_path / "out").exact
    engine = skyray.Engine()
    engine.subscribe(ALL | {"subscription_id": np.int64(7)})
    engine.unsubscribe(np.int64(7))
    with pytest.raises(skyray.EngineError, match="subscription '7': is not active"):
        engine.unsubscribe(7)
