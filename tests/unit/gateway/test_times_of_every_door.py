"""A time means the same at every door: messages, attributes, conditions and expiry, of files and of lines."""

import json

import pytest

from gateway.live.mapping import ColumnMapping, RenamedLine
from gateway.serve.registry import expiry_us
from matching.attributes import AttributeSchema
from matching.conditions import parse_where
from matching.fields import Refusal, event_time_us
from matching.validate import ParsedMessage, RawMessage
from spark_etl.ingest import InputRow
from spark_etl.options import EtlOptions
from spark_etl.rows import RowCleaner, fault_of
from spouts.parsed import parse_message

OPTIONS = EtlOptions(
    inputs=("unused",), out="unused", attribute=("made:time",), require_time=True, strict_attributes=True
)
SCHEMA: AttributeSchema = OPTIONS.attributes()
TIMES = [
    "2018-10-10T20:19:24+02:00", "2018-10-10+02:00", "2018-10", "20181010201924", 20181010201924, 20181010, 1539202764,
    "1539202764000", "Wed, 10 Oct 2018 20:19:24 GMT", "10 Oct 2018 20:19 PDT", "Wed Oct 10 20:19:24 +0000 2018",
    "Wed Oct 10 20:19:24 2018", "Wed, 10 Oct 2018 22:19:24 +0200 (CEST)",
]  # fmt: skip
NONE = [
    "Wed, 10 Oct 2018 20:19:24 CET", "Wed Oct 10 20:19:24 JST 2018", "2018-10-10 20:19 CET", "2018-10-10-05", "soon",
    "201810102019", 201810102019, 63072000000, "2018-10-10T20:19.5",
]  # fmt: skip


def message(time, made):
    return {"text": "ramen", "lat": 35.6, "lon": 139.6, "id": "m1", "time": time, "made": made}


def cleaned(time, made):
    row = message(time, made)
    return RowCleaner(OPTIONS).clean(RawMessage(**{name: row[name] for name in row if name != "made"}), [made])


def line(time, made):
    renamed = ColumnMapping().rename(json.dumps(message(time, made)).encode())
    assert isinstance(renamed, RenamedLine)
    return parse_message(renamed.row, schema=SCHEMA, strict=True)


@pytest.mark.parametrize("value", TIMES, ids=repr)
def test_time_is_the_same_at_every_door(value):
    wanted = event_time_us(value)
    row, of_line = cleaned(value, value), line(value, value)
    assert not isinstance(row, str) and isinstance(of_line, ParsedMessage)
    assert row.message.event_time_us == of_line.event_time_us == wanted and not row.bad_time
    assert row.attributes == of_line.attributes == (wanted,)
    conditions = parse_where({"made": {"gte": value}}, SCHEMA)
    assert not isinstance(conditions, Refusal) and [one.bounds for one in conditions] == [(("gte", wanted),)]
    assert expiry_us(value) == wanted


@pytest.mark.parametrize("value", NONE, ids=repr)
def test_no_time_is_refused_at_every_door_with_its_column(value):
    assert cleaned(value, None) == line(value, None) == "bad_time"
    assert cleaned(1, value) == line(1, value) == "bad_attribute"
    row = InputRow(1, RawMessage(time=value), b"", (value,))
    faults = [fault_of(row, reason, OPTIONS) for reason in ("bad_time", "bad_attribute")]
    assert faults == [("time", value), ("made", value)]
    refusal = parse_where({"made": {"gte": value}}, SCHEMA)
    assert isinstance(refusal, Refusal) and refusal.reason == "bad_attribute"
    assert refusal.detail == f"made gte: {value!r} is no time"
    assert expiry_us(value) is None
