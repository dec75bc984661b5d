"""Whatever a file holds: a look at it ends with an answer or with an error that says what to do, and good rows stay."""

import csv
import gzip
import io
import json
import tempfile
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from matching.errors import ConfigError, InputError
from matching.reasons import REASONS
from spark_etl.feed_rows import FeedCleaner, Rejected
from spark_etl.options import EtlOptions
from spark_etl.trial import try_rows

GOOD = {"id": "good", "text": "ramen", "lat": 1, "lon": 2, "time": 1_539_202_764}
NAMES = st.sampled_from(["text", "body", "message", "lat", "lon", "x", "y", "id", "time", "ts", "geometry", "user"])
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["", "Wed Oct 10 20:19:24 +0000 2018", "91", "1e999", "\x1b[2J", "ｃａｆé", "\ud800"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=5,
)
ROWS = st.dictionaries(NAMES, VALUES, max_size=6).map(lambda row: json.dumps(row).encode("utf-8", "replace"))
LINES = st.lists(ROWS | st.binary(max_size=40), max_size=6)
NAMED = EtlOptions(
    inputs=(), text_column="text", lat_column="lat", lon_column="lon", time_column="time", id_column="id"
)


def looked_at(name, data, given=None):
    """What `--dry-run` says of a file, or None after an error that people can read."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        path.write_bytes(data)
        options = replace(given or EtlOptions(()), inputs=(str(path),))
        try:
            found = try_rows(options, 1000)
        except (InputError, ConfigError) as error:
            assert str(error) and "Traceback" not in str(error) and error.exit_code in (2, 4)
            return None
        fed = list(FeedCleaner(options).file(str(path)))
    assert found["read"] == found["kept"] + found["duplicates"] + found["rejected"]
    assert len(fed) == found["read"] and sum(isinstance(one, Rejected) for one in fed) <= found["rejected"]
    assert found["rejected_by_reason"].keys() <= REASONS.keys()
    json.dumps(found, default=str).encode("utf-8", "replace")
    return found


@example([b"PAR1"])
@example([b"\x1f\x8b"])
@given(LINES)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_etl_any_lines_beside_a_good_one_lose_nothing(lines):
    data = b"\n".join([*lines, json.dumps(GOOD).encode()])
    # what begins so says that it is something else: an array, or packed
    assume(not data.removeprefix(b"\xef\xbb\xbf").lstrip().startswith((b"[", b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd")))
    for name, packed in (("raw.jsonl", data), ("raw.jsonl.gz", gzip.compress(data))):
        found = looked_at(name, packed, NAMED)
        assert found is not None and found["kept"] >= 1
        assert found["read"] == data.count(b"\n") + 1
    looked_at("raw.jsonl", data)


@example("raw.csv", [b"\r"])
@given(st.sampled_from(["raw.csv", "raw.json", "raw.geojson", "raw.parquet", "raw.csv.gz", "raw.zst"]), LINES)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_etl_any_bytes_under_any_name_are_answered(name, lines):
    data = b"\n".join(lines)
    looked_at(name, data)
    looked_at(name, b"text,lat,lon,time\nramen,1,2,soon\n" + data)
    looked_at(name, b"[" + b",".join(lines) + b"]")
    looked_at(name, b"PAR1" + data + b"PAR1")


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_etl_every_cut_of_a_file_keeps_the_rows_before_it(pack):
    data = b"".join(json.dumps(GOOD | {"id": n}).encode() + b"\n" for n in range(30))
    packed = pack(data)
    kept = []
    for cut in range(1, len(packed), 7):
        found = looked_at("raw.jsonl", packed[:cut], NAMED)
        kept.append(found["kept"] if found else 0)
    assert kept == sorted(kept) and kept[-1] >= 29


PACKS = st.sampled_from([bytes, gzip.compress, zstandard.compress])
#: Values of JSON between good rows; brackets and quotes are whole, all else may be wrong.
ODD_VALUES = (
    VALUES.map(lambda value: json.dumps(value).encode("utf-8", "replace"))
    | st.binary(max_size=12).map(lambda some: b'"%b"' % some.translate(None, b'"\\\n\r'))
    | st.integers(-(2**200), 2**200).map(lambda number: b"%d" % number)
    | st.integers(1, 3000).map(lambda depth: b"[" * depth + b"]" * depth)
    | st.sampled_from(
        [
            b"NaN",
            b"-Infinity",
            b"1e400",
            b"1E-400",
            b"tru",
            b"'a'",
            b"",
            b"0x1",
            b'"\\ud800"',
            b'"\\q"',
            b"1.",
            b"/**/1",
        ]
    )
)
GOOD_ROWS = [json.dumps(GOOD | {"id": name, "text": f"ramen {name}"}).encode() for name in "ac"]


def json_forms(rows):
    """The same rows in each form of JSON: the name of a file, and its bytes."""
    lines = b"\n".join(rows)
    yield "raw.jsonl", lines
    yield "raw.geojson", lines
    yield "raw.json", b"\xef\xbb\xbf" + lines
    yield "raw.geojsonseq", b"".join(b"\x1e" + row + b"\n" for row in rows)
    yield "raw.json", b"[" + b",\n".join(rows) + b"]"
    yield "raw.geojson", b'{"type":"FeatureCollection","features":[' + b",".join(rows) + b"]}"


@given(st.sampled_from(["more", "text", "lat", "time", "id", "op", "west", "features", "type"]), ODD_VALUES, PACKS)
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_etl_an_odd_value_of_json_spoils_its_row_alone_and_alike_in_each_form(column, value, pack):
    rows = [GOOD_ROWS[0], b'{"id":"b","text":"udon","lat":1,"lon":2,"%b":%b}' % (column.encode(), value), GOOD_ROWS[1]]
    found = [looked_at(name, pack(data), NAMED) for name, data in json_forms(rows)]
    counts = ("read", "kept", "rejected_by_reason", "bad_times")
    assert all(one["kept"] >= 2 and one["read"] == 3 for one in found)
    assert all([one[name] for name in counts] == [found[0][name] for name in counts] for one in found)


@given(
    st.lists(
        st.binary(max_size=12) | st.text(max_size=6).map(lambda text: text.encode("utf-8", "replace")), max_size=9
    ),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.sampled_from([",", ";", "\t"]),
    PACKS,
)
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_etl_odd_fields_of_csv_spoil_their_row_alone(fields, end, separator, pack):
    out = io.StringIO(newline="")
    writer = csv.writer(out, delimiter=separator, lineterminator=end)
    odd = [field.translate(None, b"\0").decode("utf-8", "surrogateescape") for field in fields]
    if end == "\r":
        odd = [field.replace("\n", "") for field in odd]
    writer.writerows(
        [["id", "text", "lat", "lon", "time"], ["a", "ramen a", 1, 2, ""], odd, ["c", "ramen c", 1, 2, ""]]
    )
    data = f"sep={separator}{end}{out.getvalue()}".encode("utf-8", "surrogateescape")
    found = looked_at("raw.csv", pack(data), NAMED)
    assert found is not None and found["kept"] >= 2 and found["read"] == 3


ZONES = st.sampled_from([None, "UTC", "Asia/Tokyo", "W. Europe Standard Time", "+25:99", "nowhere"])
UNITS = st.sampled_from(["ms", "us", "ns"])
TYPES = st.one_of(
    st.builds(pa.timestamp, UNITS, ZONES),
    st.sampled_from([pa.date32(), pa.date64(), pa.time32("ms"), pa.time64("us"), pa.time64("ns"), pa.duration("us")]),
    st.sampled_from(
        [pa.int64(), pa.uint64(), pa.float64(), pa.float16(), pa.decimal128(38, 3), pa.string(), pa.bool_()]
    ),
    st.just(pa.dictionary(pa.int32(), pa.timestamp("us"))),
)
BYTES_OF = {1: 1, 16: 2, 32: 4, 64: 8, 128: 16}


def odd_column(kind, data):
    """Three values of a type, the middle one of these bytes and the others null."""
    if pa.types.is_dictionary(kind):
        return pa.array(
            [None, int.from_bytes(data[:8], "little", signed=True), None], pa.timestamp("us")
        ).dictionary_encode()
    if pa.types.is_string(kind):
        return pa.array([None, data, None], pa.binary()).view(pa.string())
    width = BYTES_OF[kind.bit_width]
    values = pa.py_buffer(bytes(width) + data[:width].ljust(width, b"\xff") + bytes(width))
    return pa.Array.from_buffers(kind, 3, [pa.py_buffer(b"\2"), values])


@given(
    st.sampled_from(["more", "more.deep", "time", "id", "object_id", "op", "west"]),
    TYPES,
    st.binary(min_size=1, max_size=16),
    st.sampled_from(["list", "struct", "plain"]),
)
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_etl_odd_values_of_parquet_spoil_their_row_alone(column, kind, data, nested):
    odd = odd_column(kind, data)
    if nested != "plain":
        column = "more"  # a list or an object is no id, in good rows neither
    if nested == "struct":
        odd = pa.StructArray.from_arrays([odd, pa.array([1, 2, 3])], ["deep", "n"])
    elif nested == "list":
        odd = pa.ListArray.from_arrays([0, 1, 2, 3], odd)
    table = {"text": ["ramen a", "udon", "ramen c"], "lat": [1.0, 1.0, 1.0], "lon": [2.0, 2.0, 2.0]}
    out = io.BytesIO()
    try:
        pq.write_table(pa.table(table | {column: odd}), out)
    except pa.ArrowException:
        assume(False)
    given = replace(NAMED, id_column="id" if column == "id" else "")
    for more in (given, EtlOptions(())):
        found = looked_at("raw.parquet", out.getvalue(), more)
        assert found is not None and found["kept"] >= 2 and found["read"] == 3
