"""What files of subscriptions ask for: which kinds they may name, and the first row that there is something about."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from matching.errors import InputError
from matching.fields import Refusal
from matching.kind_table import Kind
from matching.kinds import KINDS
from matching.space import Space
from matching.vocabulary import Vocabulary
from spouts.scan import scan_kinds, scan_rows

ASKED = ("skyline", "topk", "knn")
ROWS = [{"subscription_id": f"s{n}", "kind": "topk", "keywords": ["x" * 40]} for n in range(40_000)]
WITH_ONE = [*ROWS, {"subscription_id": "last", "kind": "skyline", "keywords": ["tea"]}]


def lines(rows) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstandard.compress])
def test_scan_kinds_files_of_lines_are_the_kinds_whose_names_occur(tmp_path, pack):
    without, with_one = tmp_path / "without", tmp_path / "with"
    without.write_bytes(pack(lines(ROWS)))
    with_one.write_bytes(pack(lines(WITH_ONE)))
    assert scan_kinds(ASKED, [without]) == ("topk",)
    assert scan_kinds(ASKED, [with_one]) == scan_kinds(ASKED, [without, with_one]) == ("skyline", "topk")
    assert scan_kinds(ASKED, []) == ()


def test_scan_kinds_word_across_blocks_is_found_wherever_it_lies(tmp_path):
    path = tmp_path / "lines"
    for shift in range(8):
        path.write_bytes(b" " * ((1 << 20) - shift) + b"skyline")
        assert scan_kinds(ASKED, [path]) == ("skyline",), shift


def test_scan_kinds_word_spelled_by_numbers_is_taken_for_what_it_may_be(tmp_path):
    path = tmp_path / "lines"
    path.write_bytes(b'{"kind": "sk\\u0079line"}')
    assert json.loads(path.read_bytes())["kind"] == "skyline" and scan_kinds(ASKED, [path]) == ASKED


def test_scan_kinds_tables_ask_by_their_kind_column_alone(tmp_path):
    for name, rows in (("without", [*ROWS[:5], {**ROWS[0], "keywords": ["skyline"]}]), ("with", WITH_ONE)):
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / name)
    assert scan_kinds(ASKED, [tmp_path / "without"]) == ("topk",)
    assert scan_kinds(ASKED, [tmp_path / "with"]) == ("skyline", "topk")


@pytest.mark.parametrize(
    "content", [None, b"PAR1 and nothing else", b"\x1f\x8b\x08 broken", b"\x28\xb5\x2f\xfd broken"]
)
def test_scan_kinds_files_that_cannot_be_read_may_ask_for_anything(tmp_path, content):
    path = tmp_path / "file"
    if content is not None:
        path.write_bytes(content)
    assert scan_kinds(ASKED, [path]) == ASKED


# --------------------------------------------------------------------------------------- the first that something finds

WORDS, EARTH = Vocabulary.of_counts([{"tea": 1}]), Space(-180.0, -90.0, 180.0, 90.0)
POINT = {"keywords": "tea", "lon": 1.0, "lat": 2.0, "k": 3, "alpha": 0.5}


def row(name, kind, **more):
    return {"subscription_id": name, "kind": kind, **POINT, **more}


def test_scan_rows_passes_over_rows_that_a_run_would_set_aside(tmp_path):
    path, other = tmp_path / "a", tmp_path / "b"
    path.write_bytes(
        b"junk\n" + lines([row("no", "topk"), row("fine", "topk"), row("bad", "topk", k=0), row("idle", "idle")])
    )
    other.write_bytes(lines([row("ring", "ring"), row("found", "topk"), row("later", "topk")]))

    def finds(row):
        return row["subscription_id"] != "no"

    def refuses(parsed):
        return None if parsed.subscription_id == "fine" else Refusal("no", f"kind {parsed.kind}")

    found = scan_rows(finds, refuses, [path, other], WORDS, EARTH)
    assert found == (("found", other, 2, Refusal("no", "kind 1")), ("topk",))
    assert scan_rows(finds, refuses, [path], WORDS, EARTH) == (None, ("topk",))
    assert scan_rows(lambda _: False, refuses, [path, other], WORDS, EARTH) == (None, ("topk",))
    both = [other, tmp_path / "c"]
    both[1].write_bytes(lines([row("near", "knn"), row("wide", "skyline")]))
    assert scan_rows(lambda _: True, lambda _: None, both, WORDS, EARTH) == (None, ("topk", "knn", "skyline"))
    idle = Kind(5, "idle", "point")
    assert scan_rows(finds, refuses, [path, other], WORDS, EARTH, KINDS.plus(idle))[0] == found[0]
    more = KINDS.plus(idle, Kind(6, "ring", "point", KINDS.named("topk").operator))
    assert scan_rows(finds, refuses, [path, other], WORDS, EARTH, more)[0] == (
        "ring",
        other,
        1,
        Refusal("no", "kind 6"),
    )


def test_scan_rows_a_file_that_is_missing_is_named(tmp_path):
    with pytest.raises(InputError, match="nowhere"):
        scan_rows(lambda _: True, lambda _: None, [tmp_path / "nowhere"], WORDS, EARTH)
