"""A value that does not fit its attribute is missing at every door, and reported with its row, which is taken."""

import json
from dataclasses import replace

import pyarrow as pa
import pytest

import skyray
from gateway.live.vocabulary_files import empty_start
from gateway.serve.writer import PublishedRow, Subscribe, Unsubscribe
from spark_etl.feed_rows import FeedCleaner, Rejected
from spark_etl.options import EtlOptions
from spouts.log import Origin
from tests.support.live_streams import Stream
from tests.support.writing import WriterStream

PLACE = {"lon": 1, "lat": 1, "text": "bike"}
ROWS = [
    {"id": "a", "price": "VB", **PLACE},
    {"id": "b", "price": 284, **PLACE},
    {"id": "c", "price": ["x"], "listed": "soon", **PLACE},
    {"id": "d", **PLACE},
]
ATTRIBUTES = ("price:number", "listed:time")
CHEAP = {"subscription_id": "cheap", "kind": "boolean", "keywords": "bike", "region": [0, 0, 2, 2]}
UNPRICED = CHEAP | {"subscription_id": "unpriced", "where": {"price": {"exists": False}}}
CHEAP |= {"where": {"price": {"lte": 900}}}
#: Columns and values that are warned of, by id.
WARNED = {"a": [("price", "VB")], "c": [("price", "list"), ("listed", "soon")]}
#: Values of the messages.
VALUES = [(None, None), (284.0, None), (None, None), (None, None)]
WHY = {"price": "no number: ", "listed": "no time: "}


def checked(warnings):
    """Columns and values of warnings, whose reason in words begins as it should."""
    assert all(one["why"].startswith(WHY[one["column"]]) for one in warnings)
    return [(one["column"], one["value"]) for one in warnings]


def lines(rows):
    return [json.dumps(row).encode() for row in rows]


@pytest.mark.parametrize("origin", [None, Origin("kafka://x/y", "0", 7, "")], ids=["request", "broker"])
@pytest.mark.parametrize("many", [1, 5], ids=["few", "many"])
def test_misfit_of_a_request_or_broker_is_a_warning_and_the_message_is_there(tmp_path, origin, many):
    rows = [row | {"id": f"{row['id']}{n}"} for n in range(many) for row in ROWS]  # few, or read together
    with WriterStream(tmp_path / "out", attributes=ATTRIBUTES) as stream:
        found = stream.submit(*(PublishedRow(line, origin) for line in lines(rows)))
        again = stream.submit(*(PublishedRow(line, origin) for line in lines([rows[0], rows[0] | {"price": 5}])))
        stream.writer.begin()
        stream.end()
        assert [one["status"] for one in found] == ["accepted"] * len(rows)
        warned = {one["id"]: checked(one["warnings"]) for one in found if "warnings" in one}
        assert warned == {f"{name}{n}": wanted for n in range(many) for name, wanted in WARNED.items()}
        assert stream.admission.misfits == {"price": 2 * many, "listed": many}
        assert [one["status"] for one in again] == ["duplicate", "refused"]
        assert (again[1]["column"], again[1]["value"]) == ("id", "a0")
        (record,) = stream.records()
        assert record.block is not None
        assert [one.attributes for one in record.block.messages()] == VALUES * many


@pytest.mark.parametrize("many", [1, 5], ids=["few", "many"])
def test_misfit_is_refused_where_attributes_are_strict(tmp_path, many):
    rows = [row | {"id": f"{row['id']}{n}"} for n in range(many) for row in ROWS]
    with WriterStream(tmp_path / "out", attributes=ATTRIBUTES, strict=True) as stream:
        found = stream.submit(*map(PublishedRow, lines(rows)))
        stream.writer.begin()
        stream.end()
        refused = [(one["reason"], one["column"], one["value"]) for one in found if one["status"] == "refused"]
        assert refused == [("bad_attribute", "price", "VB"), ("bad_attribute", "price", "list")] * many
        assert not stream.admission.misfits


def test_misfit_of_a_pipe_is_reported_and_matched_as_missing(tmp_path):
    (out := tmp_path / "out").mkdir()
    stream = Stream(empty_start(out, ATTRIBUTES), out, world="earth")
    for row in ({"subscribe": CHEAP}, {"subscribe": UNPRICED}, *ROWS):
        stream.take(row)
    stream.pipe.close_batch()
    said = {json.loads(one["row"])["id"]: checked(one["warnings"]) for one in stream.refused}
    assert said == WARNED and not stream.pipe.refused and stream.gate.misfits == {"price": 2, "listed": 1}
    stream.finish(stream.match())
    found = {(one["subscription_id"], one["message_id"]) for one in stream.told}
    assert found == {("cheap", "b"), *(("unpriced", name) for name in "acd")}


def test_misfit_of_an_engine_is_missing_or_refused():
    for strict, wanted in ((False, "acd"), (True, "d")):
        engine = skyray.Engine(attributes=ATTRIBUTES, strict_attributes=strict)
        engine.subscribe(UNPRICED)
        assert [one["message_id"] for one in engine.publish(ROWS)] == list(wanted)
        assert engine.rejected == ({"bad_attribute": 2} if strict else {})
        assert engine.misfits == ({} if strict else {"price": 2, "listed": 1})


def test_misfit_of_a_feed_comes_to_the_stream_as_it_is():
    """The stream that reads the feed reports it: a feed that dropped it would hide it."""
    options = EtlOptions(inputs=("-",), attribute=ATTRIBUTES)
    batch = pa.RecordBatch.from_pydict({"value": [json.dumps(row) for row in ROWS]})
    found = [json.loads(one) for one in FeedCleaner(options).values(batch) if isinstance(one, bytes)]
    assert [(one.get("price"), one.get("listed")) for one in found] == [
        ("VB", None), (284.0, None), (["x"], "soon"), (None, None),
    ]  # fmt: skip
    rejected = [one for one in FeedCleaner(replace(options, strict_attributes=True)).values(batch)]
    assert [json.loads(one.line())["column"] for one in rejected if isinstance(one, Rejected)] == ["price", "price"]


DEEP = '{"text": "a", "lon": 1, "lat": 1, "extra"'[:40]
#: Bad rows of every kind, by reason: what their refusal names.
BAD = {
    "not_json": (b"no", None, "no"),
    "wrong_type": (b'{"text": "a", "lon": {}, "lat": 1}', "lon", "object"),
    "missing_coordinate": (b'{"text": "a"}', "lon", None),
    "ambiguous_column": (b'{"body": "a", "tweet": "b", "lat": 1}', None, '{"body": "a", "tweet": "b", "lat": 1}'),
    "bad_op": (b'{"text": "a", "lon": 1, "lat": 1, "op": 7}', "op", 7),
    "bad_rectangle": (b'{"text": "a", "west": 3, "south": 1, "east": 2, "north": 2}', "west", 3),
    "too_deep": (b'{"text": "a", "lon": 1, "lat": 1, "extra": ' + b"[" * 99 + b"]" * 99 + b"}", None, DEEP),
}


def test_every_refused_row_names_a_column_or_is_quoted(tmp_path):
    with WriterStream(tmp_path / "out") as stream:
        found = stream.submit(
            *(PublishedRow(line) for line, _, _ in BAD.values()), Unsubscribe("none"), Subscribe(CHEAP | {"kind": "x"}),
            Subscribe(CHEAP | {"lon": 1}), Subscribe(CHEAP | {"at": 3}), PublishedRow(b'{"unsubscribe": "s"}'),
        )  # fmt: skip
        stream.writer.begin()
        stream.end()
    for (reason, (_, column, value)), one in zip(BAD.items(), found, strict=False):
        assert (one["reason"], one["column"], one["value"]) == (reason, column, value)
    assert [(one["column"], one["value"]) for one in found[len(BAD) :]] == [
        ("unsubscribe", "none"), ("kind", "x"), ("region", "list"), ("at", 3), ("unsubscribe", "s"),
    ]  # fmt: skip
