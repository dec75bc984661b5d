"""Rows of a feed are cleaned as the batch ETL cleans them: the same messages, the same reasons at the same lines."""

import gzip
import json
from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from matching.errors import ConfigError
from spark_etl.clean import LINE_BITS, clean_split
from spark_etl.feed_options import FeedOptions
from spark_etl.feed_rows import FeedCleaner, Rejected, file_path, rows_of, with_found_columns
from spark_etl.finding import find_columns
from spark_etl.ingest import Split
from spark_etl.options import EtlOptions
from spark_etl.sources import find_sources

GOOD = [
    {"id": f"m{n}", "tweet": f"ramen {n} Käse", "lat": n % 90, "lng": str(n % 180), "created_at": 1_539_202_764 + n}
    for n in range(120)
]
#: Lines of JSON, each bad in its way.
BAD = [
    b"",
    b"[1, 2]",
    b"{",
    b'{"tweet": "\xff", "lat": 1, "lng": 1}',
    b'{"tweet": true, "lat": 1, "lng": 1}',
    b'{"tweet": "far", "lat": 91, "lng": 1}',
    b'{"tweet": "no place"}',
    b'{"tweet": 7, "lat": 1, "lng": 1}',
    b'{"tweet": "x", "lat": "north", "lng": 1}',
    b'{"tweet": "x", "lat": 1, "lng": 1, "id": {"a": 1}}',
    b'{"tweet": "nul \\u0000", "lat": 1, "lng": 1}',
    b'{"tweet": "x", "lat": NaN, "lng": 1}',
    b'{"tweet": "x", "lat": 1, "lng": 1, "op": "burn"}',
    b'{"tweet": "x", "lat": 1, "lng": 1, "price": "dear"}',
]


def options(**given):
    return EtlOptions(inputs=("-",), **given)


def split_found(found):
    """Messages by their lines, and rejected rows."""
    found = list(found)
    return [json.loads(one) for one in found if isinstance(one, bytes)], [
        one for one in found if not isinstance(one, bytes)
    ]


def batch_of(path, given):
    """What the batch ETL makes of a file: id, place and words of messages; reason and line of rejected rows."""
    sources = find_sources(EtlOptions(**{**given.__dict__, "inputs": (str(path),)}))
    found, _ = find_columns(sources, given)
    rows = [row for batch in clean_split(Split(sources[0], 0, 1), found) for row in batch.to_pylist()]
    kept = [
        (one["message_id"], one["lon"], one["lat"], one["text"], one["event_time_us"])
        for one in rows
        if not one["reason"]
    ]
    rejected = [(one["reason"], one["row_id"] & (1 << LINE_BITS) - 1, one["original"]) for one in rows if one["reason"]]
    return kept, rejected


def micros(text):
    moment = datetime.fromisoformat(text) - datetime(1970, 1, 1, tzinfo=UTC)
    return moment.days * 86_400 * 10**6 + moment.seconds * 10**6 + moment.microseconds


def write_jsonl(path):
    lines = [json.dumps(one).encode() for one in GOOD]
    path.write_bytes(b"\n".join(lines[:50] + BAD + lines[50:]))


def write_packed(path):
    lines = b"\n".join([*(json.dumps(one).encode() for one in GOOD), *BAD])
    path.write_bytes(gzip.compress(lines)[:-20])  # cut off


def write_csv(path):
    rows = [f'{one["id"]},"{one["tweet"]}, ""quoted""",{one["lat"]},{one["lng"]},{one["created_at"]}' for one in GOOD]
    path.write_text("\n".join(["id,tweet,lat,lng,created_at", *rows, "too,few", "x,,1,1,", "y,z,,1,", "w,z,1,,never"]))


def write_parquet(path):
    broken = [{"id": "b", "tweet": "no place", "lat": None, "lng": "1", "created_at": None}]
    pq.write_table(pa.Table.from_pylist([*GOOD, *broken]), path)


def write_document(path):
    path.write_text(json.dumps([*GOOD, 7, {"tweet": "no place", "lat": 1}]))


@pytest.mark.parametrize(
    ("name", "write", "least"),
    [
        ("a.jsonl", write_jsonl, 10),
        ("a.jsonl.gz", write_packed, 1),
        ("a.csv", write_csv, 3),
        ("a.parquet", write_parquet, 1),
        ("a.json", write_document, 2),
    ],
)
def test_file_gives_the_messages_and_the_reasons_of_the_batch(tmp_path, name, write, least):
    path, given = tmp_path / name, options(attribute=("price:number",) if name == "a.jsonl" else ())
    write(path)
    messages, rejected = split_found(FeedCleaner(given).file(str(path)))
    kept, refused = batch_of(path, given)
    assert [(one.reason, one.place["line"], one.row) for one in rejected] == refused and len(refused) >= least
    assert all(one.place["file"] == str(path) for one in rejected)
    time_of = [None if one.get("time") is None else micros(one["time"]) for one in messages]
    found = [(one["id"], one["lon"], one["lat"], one["text"]) for one in messages]
    assert [(*one, time) for one, time in zip(found, time_of, strict=True)] == kept and len(kept) > 50
    assert all(json.loads(one.line())["reason"] == one.reason for one in rejected)


def test_values_are_lines_whose_columns_are_found_one_by_one():
    other = b'{"properties": {"body": "udon"}, "geometry": {"type": "Point", "coordinates": [5, 6]}}'
    unclear = b'{"body": "a", "tweet": "b", "lat": 1, "lon": 2}'
    lines = [*(json.dumps(one).encode() for one in GOOD[:3]), None, *BAD[1:], other, unclear]
    batch = pa.RecordBatch.from_pydict(
        {
            "value": pa.array(lines, pa.binary()),
            "key": pa.array([b"k"] * len(lines), pa.binary()),
            "offset": pa.array(range(len(lines)), pa.int64()),
        }
    )
    given = options(attribute=("price:number",), strict_attributes=True)
    messages, rejected = split_found(FeedCleaner(given).values(batch))
    assert [one["id"] for one in messages[:3]] == ["m0", "m1", "m2"]
    assert (messages[-1]["text"], messages[-1]["lon"], messages[-1]["lat"]) == ("udon", 5.0, 6.0)
    expected = [
        *("empty_line", "not_json", "not_json", "bad_utf8", "wrong_type", "coordinate_out_of_range"),
        *("missing_coordinate", "wrong_type", "coordinate_not_number", "bad_id", "nul_byte"),
        *("number_not_finite", "bad_op", "bad_attribute", "ambiguous_column"),
    ]
    assert [one.reason for one in rejected] == expected
    assert [one.place["offset"] for one in rejected] == [*range(3, 17), 18]
    text = pa.RecordBatch.from_pydict({"value": [json.dumps(GOOD[0])]})
    assert len(list(FeedCleaner(options()).values(text))) == 1


def test_versions_keep_when_they_end_and_their_language_and_none_is_another_by_its_content():
    """In any form of rows; a live stream counts `ttl_s` from its arrival, and refuses what it cannot read."""
    flat = {"object_id": "o", "text": "flat", "lat": 1.0, "lon": 2.0}
    rows = [
        flat | {"ttl_s": "5"},
        flat | {"ttl_s": None, "expires_at": "01/02/2030"},
        flat | {"id": "v3", "expires_at": "soon", "lang": "de"},
        flat | {"id": "o", "lang": "xx"},
        flat | {"deleted": True},
        {"id": "o", "deleted": True},
        {"object_id": "o", "op": "delete"},
    ]
    cleaner = FeedCleaner(options(time_format="%d/%m/%Y"))
    names = list(dict.fromkeys(name for row in rows for name in row))
    table = pa.RecordBatch.from_pylist([{name: row.get(name) for name in names} for row in rows])
    values = pa.RecordBatch.from_pydict({"value": [json.dumps(row) for row in rows]})
    for found in (cleaner.columns(table), cleaner.values(values)):
        messages, rejected = split_found(found)
        came = "id", "object_id", "lang", "ttl_s", "expires_at"
        ends = [tuple(map(one.get, came)) for one in messages]
        assert rejected == [] and ends == [
            (None, "o", None, "5", None),
            (None, "o", None, None, "2030-02-01T00:00:00+00:00"),
            ("v3", "o", "de", None, "soon"),
            ("o", None, "xx", None, None),
            (None, "o", None, None, None),
            ("o", None, None, None, None),
            (None, "o", None, None, None),
        ]
        assert [one.get("deleted") for one in messages] == [None] * 4 + [True, True, None]
        assert messages[-1] == {"object_id": "o", "op": "delete", "text": ""}, "a deletion needs no place"


def test_table_of_a_stream_keeps_times_attributes_ranges_and_deletions():
    rows = [
        {"id": "p", "text": "a", "lon": 1.0, "lat": Decimal("2.5"), "time": datetime(2024, 1, 1, 12, tzinfo=UTC)},
        {"id": "r", "text": "b", "west": 1.0, "south": 1.0, "east": 3.0, "north": 2.0, "object_id": "o", "since": 5.0},
        {"id": "d", "op": "delete", "object_id": "o", "lon": 1.0, "lat": Decimal("2.5")},
        {"id": "x", "text": "c", "lon": 181.0, "lat": Decimal("1.0")},
    ]
    names = list(dict.fromkeys(name for row in rows for name in row))
    batch = pa.RecordBatch.from_pylist([{name: row.get(name) for name in names} for row in rows])
    given = with_found_columns(names, options(attribute=("opened=since:time",)))
    messages, rejected = split_found(FeedCleaner(given).columns(batch))
    assert messages[0] == {"id": "p", "text": "a", "lon": 1.0, "lat": 2.5, "time": "2024-01-01T12:00:00+00:00"}
    assert (messages[1]["west"], messages[1]["north"], messages[1]["object_id"]) == (1.0, 2.0, "o")
    assert messages[1]["opened"] == "1970-01-01T00:00:05+00:00"
    assert messages[2]["op"] == "delete" and messages[2]["object_id"] == "o"
    assert [one.reason for one in rejected] == ["coordinate_out_of_range"]
    assert json.loads(rejected[0].row)["id"] == "x"


def test_file_that_no_row_can_be_read_of_is_one_rejected_row(tmp_path):
    cleaner = FeedCleaner(options())
    for name, content, reason, what in (
        ("a.csv", "a,b\n1,2\n", "missing_column", "text"),
        ("b.jsonl", '{"body": "x", "tweet": "y", "lat": 1, "lon": 1}\n', "ambiguous_column", "--column text=body"),
        ("c.bin", "\x00", "broken_file", "does not show the format"),
        ("d.parquet", "no parquet", "broken_file", "cannot be read"),
    ):
        (tmp_path / name).write_text(content)
        (found,) = cleaner.file(str(tmp_path / name))
        assert isinstance(found, Rejected) and found.reason == reason and what in found.row
        assert found.place == {"file": str(tmp_path / name), "line": 0}
    with pytest.raises(FileNotFoundError):  # not rejected: it may be there when it is tried again
        list(cleaner.file(str(tmp_path / "gone.csv")))


def test_stream_without_text_or_place_is_refused():
    with pytest.raises(
        ConfigError, match=r"no column for lat and lon; it has body, other.*--column lat=NAME --column lon=NAME"
    ):
        with_found_columns(["body", "other"], options())
    with pytest.raises(ConfigError, match="--column text=body or --column text=tweet"):
        with_found_columns(["body", "tweet", "lat", "lon"], options())
    assert with_found_columns(["post", "x", "y"], options()).columns()["text"] == "post"
    assert rows_of({"value": "binary"}) == rows_of({"value": "string"}) == "values"
    assert rows_of({"value": "bigint"}) == rows_of({"text": "string"}) == "columns"
    assert file_path("file:/a b/c%20d.csv") == "/a b/c%20d.csv"


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({}, "--out: name"),
        ({"out": "feed", "sink": "../x"}, "--stream"),
        ({"out": "feed", "every": -1.0}, "--every"),
        ({"out": "feed", "files": 0}, "--files 0"),
        ({"out": "feed", "option": ("a",), "format": "kafka"}, "NAME=VALUE"),
        ({"out": "feed", "inputs": ("in",), "option": ("a=b",)}, "for sources of Spark"),
        ({"out": "feed"}, "name at least one folder"),
        ({"out": "feed", "inputs": ("absent",)}, "no such folder"),
        ({"out": "feed", "inputs": ("-",)}, "standard input"),
        ({"out": "feed", "inputs": ("in/**/x.csv",)}, r"\*\*"),
        ({"out": "in/feed", "inputs": ("in",)}, "lies in the input"),
        ({"out": "in", "inputs": ("in/a",)}, "lies in the feed"),
        ({"out": "feed", "inputs": ("in", "in/a")}, "read twice"),
        ({"out": "feed", "inputs": ("a", "b"), "format": "delta"}, "one path at most"),
        ({"out": "feed", "inputs": ("in",), "time_format": "x"}, "time format"),
    ],
)
def test_setting_that_cannot_be_used_is_refused_by_name(tmp_path, monkeypatch, given, what):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in" / "a").mkdir(parents=True)
    etl = {name: given[name] for name in ("inputs", "time_format") if name in given}
    own = {name: value for name, value in given.items() if name not in etl}
    with pytest.raises(ConfigError, match=what):
        FeedOptions(etl=EtlOptions(**{"inputs": (), **etl}), **own).check()
    FeedOptions(etl=EtlOptions(inputs=("in",)), out="feed").check()
    FeedOptions(etl=EtlOptions(inputs=()), out="feed", format="kafka", option=("subscribe=a=b",)).check()


def test_with_found_columns_two_of_one_name_are_refused_if_one_is_needed():
    with pytest.raises(ConfigError, match="2 columns are called text"):
        with_found_columns(["text", "lat", "lon", "text"], EtlOptions(("-",)))
    assert with_found_columns(["text", "lat", "lon", "note", "note"], EtlOptions(("-",))).text_column == "text"


def test_feed_values_whose_place_is_no_utf8_are_taken():
    place = pa.array([b"\xff"], pa.binary()).view(pa.string())
    batch = pa.record_batch({"value": [b'{"text":"a","lat":1,"lon":2}'], "key": place})
    assert isinstance(next(iter(FeedCleaner(EtlOptions(("-",))).values(batch))), bytes)
