"""Whatever a file holds: a look at it ends with an answer or with an error that says what to do, and good rows stay."""

import gzip
import json
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from matching.errors import ConfigError, InputError
from matching.reasons import REASONS
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
    assert found["read"] == found["kept"] + found["duplicates"] + found["rejected"]
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
