"""Lines of a live stream have the columns that files have: named ones, paths, and those found by their names."""

import json

import numpy as np
import pytest

from gateway.live.admission import RefusedLine
from gateway.live.mapping import ColumnMapping, RenamedLine
from matching.errors import ConfigError
from matching.validate import decode_object
from spouts.subscriptions import load_vocabulary
from tests.support.beside import Beside, random_message, random_subscription
from tests.support.documents import blocks
from tests.support.etl_folder import random_rows, write_etl
from tests.support.live_streams import Stream, counted

PLACE = {"lat": 35.7, "lon": 139.7}


def renamed(row, **named):
    found = ColumnMapping(named).rename(json.dumps(row).encode())
    if isinstance(found, RefusedLine):
        return found
    return found.row


@pytest.mark.parametrize(
    ("row", "named", "message"),
    [
        ({"tweet": "a", "latitude": 1, "lng": 2}, {}, {"text": "a", "lat": 1, "lon": 2}),
        ({"text": "a", "location": {"lat": 1, "lon": 2}}, {}, {"text": "a", "lat": 1, "lon": 2}),
        ({"text": "a", "geometry": {"type": "Point", "coordinates": [2, 1]}}, {}, {"text": "a", "lat": 1, "lon": 2}),
        ({"geometry": {"type": "Point", "coordinates": [2, 1]}, "properties": {"title": "b", "text": "a", "uuid": 7}},
         {}, {"text": "a", "lat": 1, "lon": 2, "id": 7}),
        ({"text": "a", "body": "b", **PLACE}, {"text": "body"}, {"text": "b", **PLACE}),
        ({"text": "a", "u": {"at": [2, 1]}}, {"lat": "u.at.1", "lon": "u.at.0"}, {"text": "a", "lat": 1, "lon": 2}),
        ({"text": "a", **PLACE, "created_at": "Wed Oct 10 20:19:24 +0000 2018"}, {},
         {"text": "a", **PLACE, "time": "Wed Oct 10 20:19:24 +0000 2018"}),
        ({"text": "a", **PLACE, "time": 5, "id": 1}, {"time": "", "id": ""}, {"text": "a", **PLACE}),
        ({"text": "a", **PLACE, "date": "Monday"}, {}, {"text": "a", **PLACE}),  # perhaps no time at all
        ({"text": "a", **PLACE, "ts": 5, "date": 6}, {}, {"text": "a", **PLACE}),  # either
        ({"tweet": "a", **PLACE, "op": 1, "object_id": "o", "id_str": "9"}, {},
         {"text": "a", **PLACE, "op": 1, "object_id": "o", "id": "9"}),
        ({"tweet": "a", **PLACE, "id": 10**30}, {}, {"text": "a", **PLACE, "id": 10**30}),
    ],
)  # fmt: skip
def test_mapping_line_gets_the_names_of_a_message(row, named, message):
    assert renamed(row, **named) == message


@pytest.mark.parametrize(
    "line",
    [
        b'{"text":  "a", "lat": 1, "lon": 2, "time": "2018", "id": "m"}',
        b'{"text": "a", "lat": 1, "lon": 2,  "user": "u"}',
        b'{"text": "a", "lat": 1, "lon": 2, "time": "Wed, 10 Oct 2018 20:19:24 +0000"}',
        b'{"text": "a", "lat": 1, "lon": 2, "time": "no time"}',
        b'{"subscribe": {"text": "a"}, "created_at": 5}',
        b'{"unsubscribe": "s1"}',
        b"no line",
        b"[1]",
        b'{"geometry": {"type": "Point", "coordinates": "none"}}',
        b'{"text": {"text": null}, "lat": [], "lon": {}}',
    ],
)
def test_mapping_line_that_needs_no_other_names_keeps_what_it_says(line):
    found = ColumnMapping().rename(line)
    assert isinstance(found, RenamedLine) and found.row == decode_object(found.data)
    assert found.data == line or json.loads(found.data) == {
        name: value for name, value in json.loads(line).items() if name in ("text", "lat", "lon", "time")
    }


@pytest.mark.parametrize(
    ("row", "say"),
    [
        ({"tweet": "a", "body": "b", **PLACE}, "--column text=tweet or --column text=body"),
        (
            {"text": "a", "home": {"lat": 1, "lon": 2}, "work": {"lat": 1, "lon": 2}},
            "--column lat=home.lat --column lon=home.lon",
        ),
    ],
)
def test_mapping_line_in_which_several_may_be_meant_is_refused(row, say):
    found = renamed(row)
    assert isinstance(found, RefusedLine) and found.reason == "ambiguous_column" and say in found.what


def test_mapping_of_what_messages_do_not_have_is_refused():
    with pytest.raises(ConfigError, match="name those of text"):
        ColumnMapping({"place": "x"})


def test_live_takes_the_line_that_the_guide_shows(tmp_path):
    (block,) = (
        block for block in blocks("docs/start.md") if block.language == "json" and "created_at" in block.lines[0]
    )
    stream = Stream(write_etl(tmp_path / "etl", random_rows(50)), tmp_path / "out", world="earth")
    stream.take(block.lines[0].encode())
    (message,) = stream.pipe.batching.open.messages.closed().messages()
    assert message.message_id == "1050118621198921728" and (message.lon, message.lat) == (139.7, 35.7)
    assert message.event_time_us == 1_539_202_764_000_000 and message.text == json.loads(block.lines[0])["text"]


def test_live_lines_of_other_names_tell_what_the_oracle_does(tmp_path):
    """The same messages by names that are found, in two shapes, and by names that were given."""

    words = write_etl(tmp_path / "words", random_rows(200))
    rng = np.random.default_rng(6)
    subscriptions = [random_subscription(rng, number) for number in range(30)]
    messages = [random_message(rng, number) for number in range(60)]
    beside = Beside("count:30", load_vocabulary(words))
    for row in subscriptions:
        beside.subscribe(row)
    for row in messages:
        beside.offer(row)
    expected = beside.publish(by_seq=True)
    assert sum(expected.values()) >= 10
    for number, named in enumerate(({}, {"text": "said.what"})):
        stream = Stream(words, tmp_path / f"out{number}", window="count:30", named=named)
        for row in subscriptions:
            stream.take({"subscribe": row})
        for place, row in enumerate(messages):
            rest = {name: value for name, value in row.items() if name not in ("text", "lat", "lon", "id")}
            where = ({"latitude": row["lat"], "lng": row["lon"]} if place % 2 else
                     {"place": {"type": "Point", "coordinates": [row["lon"], row["lat"]]}})  # fmt: skip
            text = {"said": {"what": row["text"]}, "text": "other"} if named else {"tweet": row["text"]}
            stream.take({**rest, **where, **text, "id_str": row["id"]})
        stream.pipe.close_batch()
        stream.match()
        assert not stream.refused and counted(stream.told) == expected


def test_live_folder_begun_with_another_mapping_is_refused(tmp_path):
    etl = write_etl(tmp_path / "etl", random_rows(50))
    stream = Stream(etl, tmp_path / "out", named={"text": "body"})
    stream.take({"body": "w1", "lat": 1.0, "lon": 1.0})
    stream.pipe.close_batch()
    stream.match()
    for named in ({}, {"text": "tweet"}, {"text": "body", "id": "x"}):
        with pytest.raises(ConfigError, match="was begun with another mapping"):
            Stream(etl, tmp_path / "out", named=named)
    assert Stream(etl, tmp_path / "out", named={"text": "body"}).before
