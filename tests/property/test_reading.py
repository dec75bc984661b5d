"""Lines that are read many at a time become the messages that they become singly."""

import json
import random
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.live.admission import Admission, RefusedLine
from gateway.live.mapping import ColumnMapping
from gateway.live.reading import LineReader
from matching.attributes import NO_ATTRIBUTES, AttributeSchema
from matching.fields import event_time_us
from matching.iso_times import iso_times
from matching.reasons import MAX_DEPTH, MAX_LINE_BYTES
from matching.runs import runs
from matching.space import Space
from matching.validate import ParsedMessage
from matching.vocabulary import Vocabulary
from matching.window import Window
from spouts.messages import OpenBlock
from tests.support.examples import examples

SCHEMA = AttributeSchema.parse(["price:number", "sort:category", "open:time", "deep=a.b:number"])
PLAIN = AttributeSchema.parse(["price:number", "sort:category", "open:time"])
USUAL = {"id": "m1", "text": "ramen is open", "lon": 139.69, "lat": 35.68, "time": "2018-10-10T20:19:24Z"}
#: Columns that a line may have, and values that each may have, most of them rare.
VALUES = {
    "text": ["ramen", "", "  ", "a\0b", "é" * 70_000, "x" * 65_536, "x" * 65_537, 5, None, ["a"], "東京 😀", "\ud83d"],
    "lat": [1, 1.5, -0.0, "41.5", "41,5", " -3e1 ", 91, 1e308, "", None, True, {"a": 1}, 10**30, "x", -90],
    "lon": [1, -180.0, 180, "139.7", 181, None, False, "nan", [], 2**70],
    "time": ["2018-10-10T20:19:24Z", "2018-10-10 20:19:24.5", "Wed Oct 10 20:19:24 +0000 2018", 1_539_202_764, 0, "",
             " ", 1_539_202_764_000, 1_539_202_764.25, "soon", None, True, 20181010, 201810102019, 10**16,
             "2018-10-10", []],
    "id": ["m1", 7, 2**53, -(2**63), 2**64, 10**400, 1.0, 1.5, "", None, True, "a\0", "i" * 513, ["m"], " "],
    "price": [5, 5.5, "7", "", None, True, 1e400, "x", -0.0, 2**63, [], 10**30],
    "sort": ["café", "", " ", None, 5, 5.0, True, "a\0", "s" * 513, {}],
    "open": ["2018-10-10T20:19:24Z", 1_539_202_764, None, "never", ""],
    "lang": ["german", "de", "en", "und", "", 7, None, ["de"], {"de": 1}],
}  # fmt: skip
#: Other names of the same columns, and columns that mean nothing here.
OTHERS = ["tweet", "body", "message", "latitude", "longitude", "y", "x", "created_at", "timestamp", "date", "uuid",
          "id_str", "lng", "note", "a", "Text", "west", "object_id", "op", "properties", "geometry", "subscribe",
          "a.b", "lang"]  # fmt: skip
LOOSE = [
    None,
    1,
    "",
    "2018-10-10T20:19:24Z",
    "german",
    {"b": 2},
    {"type": "Point", "coordinates": [1, 2]},
    {"text": "inner"},
    [1, 2],
]
NAMED = [
    {},
    {"text": "tweet"},
    {"text": "note,text,a.b"},
    {"text": "tweet, body"},
    {"time": ""},
    {"lat": "geo.lat", "lon": "geo.lon"},
    {"id": "uuid", "time": "note"},
]


def dumped(row):
    """JSON, with what Python alone writes otherwise."""
    return json.dumps(row).replace("Infinity", "1e999").encode()


@st.composite
def lines(draw):
    """Some lines of one producer, a few of which have something unusual."""
    rng = random.Random(draw(st.integers(0, 2**32)))
    base = dict(USUAL)
    if rng.random() < 0.4:
        base |= {"price": 5, "sort": "café", "open": 1_539_202_764}
    for name in rng.sample(OTHERS, rng.choice([0, 0, 1, 2])):
        base[name] = rng.choice(LOOSE)
    for role, other in (
        ("text", "tweet"),
        ("lat", "latitude"),
        ("lon", "longitude"),
        ("time", "created_at"),
        ("id", "uuid"),
    ):
        if rng.random() < 0.2 and role in base:
            base[other] = base.pop(role)
    if rng.random() < 0.2:
        base.pop("id", None)
    found = []
    for number in range(rng.choice([1, 2, 7, 40])):
        row = base | ({"id": f"m{number}"} if "id" in base else {})
        for name in rng.sample(sorted(VALUES), rng.choice([0, 0, 0, 1, 2])):
            row[name] = rng.choice(VALUES[name])
        if rng.random() < 0.1:
            row.pop(rng.choice(sorted(row)))
        if rng.random() < 0.05:
            row[rng.choice(OTHERS)] = rng.choice(LOOSE)
        line = dumped(row)
        if rng.random() < 0.1:
            place = rng.randrange(len(line))
            line = rng.choice(
                [line[:place], line[:place] + bytes([rng.randrange(256)]) + line[place + 1 :], b"\xef\xbb\xbf " + line,
                 b" " + line + b" \r", b"[" + line + b"]", b"", line + line, line[:-1] + b', "text": "again"}',
                 line[:-1] + b', "note": %s}' % (b"[" * 70 + b"]" * 70), line[:-1] + b', "note": "\xff"}',
                 line[:-1] + b', "note": "\\ud800"}', line[:-1] + b', "note": 1e999}',
                 line.replace(b'"text"', b'"te\\u0078t"'),
                 line[:-1] + b', "note": "%s"}' % (b"n" * MAX_LINE_BYTES)]
            )  # fmt: skip
        found.append(line.replace(b"\n", b" "))
    return found


def singly(admission, mapping, line):
    renamed = mapping.rename(line)
    return renamed if isinstance(renamed, RefusedLine) else admission.row(renamed.row)


def compare(given, schema, named, space="earth", stems=""):
    """Fails if a line of which the reader is sure is another message singly; how many it is sure of."""
    mapping, space = ColumnMapping(named, schema), Space.parse(space, None)
    words = Vocabulary([], [], [], [], 0, attributes=schema, stem_language=stems)
    admission, reader = Admission(words, space, Window("count", 10)), LineReader(mapping, schema, space, False, stems)
    for _ in range(2):  # with shapes that are learnt, and with those that are known
        found, block = reader.read(given), OpenBlock(schema)
        if found.rows:
            block.extend(*found[1:8], (), found.made)
        closed = block.closed()
        for place, row in enumerate(found.rows):
            expected = singly(admission, mapping, given[row])
            assert isinstance(expected, ParsedMessage), (given[row], expected)
            made = expected.message_id == expected.content.hex()
            assert closed.message(place) == expected._replace(content=b""), given[row]
            assert (place in found.made) == made
        parts = list(runs(found.rows, len(given)))
        ends = [last for _, last, _ in parts]
        assert ends[-1:] == [len(given)] and ends == sorted(ends)
        walked = [row for first, last, place in parts if place >= 0 for row in range(first, last)]
        assert walked == found.rows
    return len(found.rows)


@given(
    lines(),
    st.sampled_from([NO_ATTRIBUTES, PLAIN, SCHEMA]),
    st.sampled_from(NAMED),
    st.sampled_from(["earth", "0,0,170,80"]),
    st.sampled_from(["", "english"]),
)
@settings(max_examples=examples(150, 500), deadline=None)
def test_lines_that_are_read_together_are_the_messages_that_they_are_singly(given_lines, schema, named, space, stems):
    compare(given_lines, schema, named, space, stems)


@pytest.mark.parametrize(
    ("change", "schema", "named"),
    [
        ({}, NO_ATTRIBUTES, {}),
        ({"id": None}, NO_ATTRIBUTES, {}),
        ({"lang": "en"}, NO_ATTRIBUTES, {}),
        ({"lang": "de"}, AttributeSchema.parse(["lang:category"]), {}),
        ({"lang": "de", "id": None}, AttributeSchema.parse(["lang:categories"]), {}),
        ({"id": 7, "time": 1_539_202_764, "lat": "41.5"}, NO_ATTRIBUTES, {}),
        ({"price": 5, "sort": "café", "open": 1_539_202_764}, PLAIN, {}),
        ({"tweet": "ramen", "note": {"a": [1]}}, NO_ATTRIBUTES, {"text": "tweet"}),
        ({"tweet": "ramen", "body": ""}, NO_ATTRIBUTES, {"text": "tweet,body,text,missing"}),
        ({"id_str": "7", "message": "other", "time": "Wed Oct 10 20:19:24 +0000 2018"}, NO_ATTRIBUTES, {}),
    ],
)
def test_usual_lines_are_read_together(change, schema, named):
    given_lines = [dumped(USUAL | {"id": f"m{number}"} | change) for number in range(40)]
    assert compare(given_lines, schema, named, stems="english") == 40
    mixed = [dumped(USUAL), *given_lines, dumped(USUAL | {"note": 1}), b"no json", *given_lines]
    assert compare(mixed, schema, named) >= 80


def test_column_within_objects_is_found_as_it_is_singly():
    place = {"text": "ramen", "lat": 1, "lon": 2}
    inner = {"timestamp": "2018-10-10T20:19:24Z", "uuid": "inner"}
    rows = [place | {"properties": inner if number % 3 else {}, "note": number} for number in range(20)]
    compare([dumped(place | {"properties": 0, "note": 1}), *map(dumped, rows)], NO_ATTRIBUTES, {})


def test_line_of_another_depth_or_length_is_left_to_others():
    notes = b"[" * 70 + b"]" * 70, b'"%s"' % (b"n" * MAX_LINE_BYTES)
    deep, long = (dumped(USUAL)[:-1] + b', "note": %s}' % note for note in notes)
    for odd in (deep, long):
        assert compare([dumped(USUAL | {"note": "n"}), odd, dumped(USUAL | {"note": "n"})], NO_ATTRIBUTES, {}) == 2
    flatter = dumped(USUAL)[:-1] + b', "note": %s}' % (b"[" * (MAX_DEPTH - 1) + b"]" * (MAX_DEPTH - 1))
    assert compare([flatter], NO_ATTRIBUTES, {}) == 1


MOMENT = st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59), timezones=st.just(UTC))
PART = st.integers(0, 99).map("{:02}".format)


@given(
    st.lists(
        MOMENT.map(lambda moment: moment.isoformat().replace("+00:00", "Z"))
        | MOMENT.map(lambda moment: moment.replace(tzinfo=None).isoformat(" "))
        | st.tuples(
            st.sampled_from(["2018", "1900", "2000", "0000", "2024"]),
            *[PART] * 5,
            st.sampled_from(["", "Z", ".5", ".1234567", ".", "z", "+01"]),
        ).map(lambda parts: "{}-{}-{}T{}:{}:{}{}".format(*parts))
        | st.text(max_size=30),
        min_size=1,
    )
)
@settings(max_examples=examples(150, 300), deadline=None)
def test_times_that_are_read_together_are_those_that_are_read_singly(texts):
    texts = [text for text in texts if text.isprintable() and text.isascii() or len(text) < 10]
    texts = [text.encode("utf-8", "replace").decode() for text in texts]
    times, read = iso_times(texts)
    for text, time_us, was_read in zip(texts, times.tolist(), read.tolist(), strict=True):
        if was_read:
            assert event_time_us(text) == time_us, text


def test_usual_times_are_read_together():
    texts = ["2018-10-10T20:19:24Z", "2018-10-10 20:19:24", "2018-10-10T20:19:24.123456Z", "2024-02-29T00:00:00.5"]
    assert iso_times(texts)[1].all() and not iso_times(["2023-02-29T00:00:00", "2018-10-10T24:00:00", ""])[1].any()
