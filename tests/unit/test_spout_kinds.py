"""Finding out whether files may ask for a kind."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from spouts.kinds import may_ask_for

ROWS = [{"subscription_id": f"s{n}", "kind": "topk", "keywords": ["x" * 40]} for n in range(40_000)]
WITH_ONE = [*ROWS, {"subscription_id": "last", "kind": "skyline", "keywords": ["tea"]}]


def lines(rows) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstandard.compress])
def test_files_of_lines_ask_for_a_kind_only_if_they_name_it(tmp_path, pack):
    without, with_one = tmp_path / "without", tmp_path / "with"
    without.write_bytes(pack(lines(ROWS)))
    with_one.write_bytes(pack(lines(WITH_ONE)))
    assert not may_ask_for("skyline", [without])
    assert may_ask_for("skyline", [with_one]) and may_ask_for("skyline", [without, with_one])


def test_word_across_blocks_is_found_wherever_it_lies(tmp_path):
    path = tmp_path / "lines"
    for shift in range(8):
        path.write_bytes(b" " * ((1 << 20) - shift) + b"skyline")
        assert may_ask_for("skyline", [path]), shift


def test_word_spelled_by_numbers_is_taken_for_what_it_may_be(tmp_path):
    path = tmp_path / "lines"
    path.write_bytes(b'{"kind": "sk\\u0079line"}')
    assert json.loads(path.read_bytes())["kind"] == "skyline" and may_ask_for("skyline", [path])


def test_tables_ask_by_their_kind_column_alone(tmp_path):
    for name, rows in (("without", [*ROWS[:5], {**ROWS[0], "keywords": ["skyline"]}]), ("with", WITH_ONE)):
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / name)
    assert not may_ask_for("skyline", [tmp_path / "without"])
    assert may_ask_for("skyline", [tmp_path / "with"])


@pytest.mark.parametrize("content", [None, b"PAR1 and nothing else", b"\x1f\x8b broken", b"\x28\xb5\x2f\xfd broken"])
def test_files_that_cannot_be_read_may_ask_for_anything(tmp_path, content):
    path = tmp_path / "file"
    if content is not None:
        path.write_bytes(content)
    assert may_ask_for("skyline", [path])
