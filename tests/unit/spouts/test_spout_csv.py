"""Subscriptions in CSV and Parquet: the same rows as in JSON Lines, whatever separates the fields; bad ones beside
good ones."""

import csv
import gzip
import io
import json
import string

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from matching.attributes import AttributeSchema
from matching.errors import InputError
from matching.kinds import KINDS
from matching.reasons import MAX_CORNERS
from matching.space import EARTH, Space
from matching.validate import SUBSCRIPTION_COLUMNS
from matching.vocabulary import Vocabulary
from spouts.lines import read_rows
from spouts.subscriptions import load_changes
from tests.support.etl_folder import write_lines

WORDS = Vocabulary.of_counts([{"ramen": 1, "soup": 2}])
ROWS = [
    {"subscription_id": "s1", "kind": "topk", "keywords": "ramen, soup", "lon": "1.5", "lat": 2, "k": 3, "alpha": 1},
    {"subscription_id": "s2", "kind": "boolean", "keywords": "ramen", "region": "[-1, -2, 3.5, 4]", "note": 'say "hi"'},
    {"subscription_id": "s3", "kind": "skyline", "keywords": "soup", "region": "-1 -2 3.5 4", "note": "two\nlines"},
]  # fmt: skip
COLUMNS = ["subscription_id", "kind", "keywords", "lon", "lat", "k", "alpha", "region", "note"]


def write(path, rows=ROWS, columns=COLUMNS, **options):
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", **options)
    writer.writeheader()
    writer.writerows(rows)
    path.write_text(text.getvalue(), encoding="utf-8", newline="")
    return path


def loaded(path):
    return load_changes([path], WORDS, Space(*EARTH), kinds=KINDS)


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("lineterminator", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("above", ["", "sep=%s", "\ufeffsep=%s", '"SEP=%s"'])
def test_csv_rows_are_what_json_lines_are(tmp_path, above, delimiter, lineterminator):
    path = write(tmp_path / "a.csv", delimiter=delimiter, lineterminator=lineterminator)
    above = above and (above % delimiter + lineterminator).encode()
    path.write_bytes((above or b"") + path.read_bytes())
    found = loaded(path)
    path = tmp_path / "a.jsonl"
    as_json = [dict(row) for row in ROWS]
    for row in as_json[1:]:
        row["region"] = [-1, -2, 3.5, 4]
    path.write_text("".join(json.dumps(row) + "\n" for row in as_json))
    expected = loaded(path)
    assert found.names.strings() == expected.names.strings() == ["s1", "s2", "s3"]
    assert all(a.tobytes() == b.tobytes() for a, b in zip(found.table, expected.table, strict=True))


def test_csv_free_columns_and_lines_are_told(tmp_path):
    rows = list(read_rows(write(tmp_path / "a.csv")))
    assert [line for line, _ in rows] == [2, 3, 5], "a row is told by the line on which it ends"
    assert rows[1][1]["note"] == 'say "hi"' and rows[2][1]["note"] == "two\nlines"
    assert rows[0][1]["region"] is None


def test_csv_packed_and_marked_is_read(tmp_path):
    plain = write(tmp_path / "a.csv").read_bytes()
    (tmp_path / "b").write_bytes(gzip.compress(b"\xef\xbb\xbf" + plain))
    assert loaded(tmp_path / "b").names.strings() == ["s1", "s2", "s3"]


def test_csv_unsubscribe_rows_are_taken(tmp_path):
    rows = [*ROWS, {"unsubscribe": "s1", "at": "9"}]
    changes = loaded(write(tmp_path / "a.csv", rows, [*COLUMNS, "unsubscribe", "at"]))
    assert changes.counts["unsubscribed"] == 1 and changes.removed.at.tolist() == [9]


SQUARE = {"type": "Polygon", "coordinates": [[[0, 0], [4, 0], [4, 4], [0, 4], [0, 0]]]}
WITH_OBJECTS = [
    {"subscription_id": "s1", "kind": "boolean", "keywords": "ramen", "polygon": SQUARE},
    {"subscription_id": "s2", "kind": "boolean", "keywords": "soup", "where": {"price": {"lte": 5}, "type": ["é"]},
     "circle": {"lon": 1, "lat": 2.5, "radius_m": 5000}},
    {"subscription_id": "s3", "kind": "boolean", "keywords": "soup", "region": [-1, -2, 3, 4], "where": {}},
    {"subscription_id": "s4", "kind": "boolean", "keywords": "soup", "region": [-1, -2, 3, 4]},
]  # fmt: skip
OBJECT_COLUMNS = ("where", "circle", "polygon")


def as_text(rows):
    """Rows whose objects are JSON text."""
    return [
        {name: json.dumps(value) if name in OBJECT_COLUMNS else value for name, value in row.items()} for row in rows
    ]


def write_as_text(path, rows, **options):
    """Rows with objects as text, in CSV or Parquet."""
    names = ["subscription_id", "kind", "keywords", "region", *OBJECT_COLUMNS]
    if path.suffix == ".csv":
        return write(path, rows, names, **options)
    table = pa.Table.from_pylist([dict.fromkeys(names) | row for row in rows])
    pq.write_table(table, path)
    return path


def loaded_with_attributes(path):
    words = Vocabulary.of_counts([{"ramen": 1, "soup": 2}], attributes=AttributeSchema.parse(ATTRIBUTES))
    return load_changes([path], words, Space(*EARTH), kinds=KINDS)


ATTRIBUTES = ["price:number", "type:category"]
TABLES = [
    ("a.csv", {"delimiter": ","}),
    ("a.csv", {"delimiter": ";"}),
    ("a.csv", {"delimiter": "\t"}),
    ("a.parquet", {}),
]


@pytest.mark.parametrize(("name", "options"), TABLES)
def test_tables_have_objects_as_json_text(tmp_path, name, options):
    lines = write_lines(tmp_path / "a.jsonl", *WITH_OBJECTS)
    expected = loaded_with_attributes(lines)
    path = write_as_text(tmp_path / name, as_text(WITH_OBJECTS), **options)
    found = loaded_with_attributes(path)
    assert found.names.strings() == expected.names.strings() == ["s1", "s2", "s3", "s4"]
    assert all(a.tobytes() == b.tobytes() for a, b in zip(found.table, expected.table, strict=True))
    for (_, row), written in zip(read_rows(path), WITH_OBJECTS, strict=True):
        assert {column: row[column] for column in OBJECT_COLUMNS} == {
            column: written.get(column) for column in OBJECT_COLUMNS
        }


@pytest.mark.parametrize(("name", "options"), TABLES)
@pytest.mark.parametrize(
    ("column", "text", "reason", "what"),
    [
        ("where", '{"price": {"lte": 5}', "bad_where", "where is text that is no JSON (Input data was truncated)"),
        ("where", '{"price": 5,, "type": "x"}', "bad_where", "where is text that is no JSON (JSON is malformed"),
        ("where", "price < 5", "bad_where", "where is text that is no JSON (JSON is malformed"),
        ("where", '["price"]', "bad_where", "where is text where an object belongs: '[\"price\"]'"),
        ("where", '{"price": "cheap"}', "bad_attribute", "price: 'cheap' is no number"),
        ("where", '{"price": NaN}', "bad_where", "where is text that is no JSON (JSON is malformed"),
        ("circle", '{"lon": 1', "bad_circle", "circle is text that is no JSON (Input data was truncated)"),
        ("polygon", "POLYGON ((0 0, 1 1))", "bad_polygon", "polygon is text that is no JSON (JSON is malformed"),
        ("polygon", "[" * 100_000, "bad_polygon", "polygon is text that is no JSON"),
    ],
)
def test_tables_broken_json_text_is_refused_with_what_is_wrong(tmp_path, name, options, column, text, reason, what):
    place = {} if column != "where" else {"region": [-1, -2, 3, 4]}
    bad = {"subscription_id": "bad", "kind": "boolean", "keywords": "soup", column: text, **place}
    rows = as_text(WITH_OBJECTS)
    changes = loaded_with_attributes(write_as_text(tmp_path / name, [rows[0], bad, *rows[1:]], **options))
    assert changes.names.strings() == ["s1", "s2", "s3", "s4"] and changes.rejected_by_reason == {reason: 1}
    assert changes.first_rejected[0]["what"].startswith(what), changes.first_rejected


def test_csv_has_the_largest_polygon(tmp_path):
    turns = np.linspace(0, 2 * np.pi, MAX_CORNERS, endpoint=False)
    ring = np.stack([40 * np.cos(turns), 40 * np.sin(turns)], axis=1).tolist()
    polygon = {"type": "Polygon", "coordinates": [[*ring, ring[0]]]}
    large = {"subscription_id": "large", "kind": "boolean", "keywords": "soup", "polygon": polygon}
    changes = loaded_with_attributes(write_as_text(tmp_path / "a.csv", as_text([*WITH_OBJECTS, large])))
    assert changes.names.strings()[-1] == "large" and not changes.rejected_by_reason
    assert changes.table.filter_words.shape[0] > 2 * MAX_CORNERS


BAD = {
    b"s4,topk": "bad_csv",
    b's4,topk,"soup" x,1,1,3,0.5,,': "bad_csv",
    b"s4,topk,soup,1,1,3,0.5,,,,": "bad_csv",
    b"s4,topk,soup,1,1,3,0.5,,\xff": "bad_utf8",
    b"s4,topk,soup,1,1,many,0.5,,": "bad_k",
    b"s4,skyline,soup,,,,,1 2 3,": "bad_region",
    b"s4,skyline,soup,,,,,a b c d,": "coordinate_not_number",
    b",topk,soup,1,1,3,0.5,,": "missing_id",
}


@pytest.mark.parametrize("line", BAD)
def test_csv_a_bad_row_is_rejected_and_the_good_ones_load(tmp_path, line):
    header, *good = write(tmp_path / "a.csv").read_bytes().splitlines(keepends=True)
    (tmp_path / "b.csv").write_bytes(header + good[0] + line + b"\n\n" + b"".join(good[1:]))
    changes = loaded(tmp_path / "b.csv")
    assert changes.rejected_by_reason == {BAD[line]: 1}
    assert changes.names.strings() == ["s1", "s2", "s3"]


@given(rows=st.lists(st.lists(st.text(string.printable, max_size=6), min_size=3, max_size=3), max_size=6))
def test_csv_any_fields_come_back(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    text = io.StringIO()
    csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL).writerows([["subscription_id", "kind", "note"], *rows])
    path.write_text(text.getvalue(), encoding="utf-8", newline="")
    found = [row for _, row in read_rows(path)]
    expected = [row for row in rows if any(map(str.strip, row))]
    assert len(found) == len(expected)
    for got, row in zip(found, expected, strict=True):
        assert not isinstance(got, str)
        for name, value in zip(("subscription_id", "kind", "note"), row, strict=True):
            # the reader of lines takes a carriage return before the end of a line for a part of it
            assert (got[name] or "").replace("\r", "").strip() == value.replace("\r", "").strip()


def test_json_lines_with_the_name_of_a_column_in_them_are_not_csv(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(dict.fromkeys(sorted(SUBSCRIPTION_COLUMNS))) + "\n" + json.dumps(ROWS[0]))
    assert loaded(path).names.strings() == ["s1"]


@pytest.mark.parametrize("separator", [";", "|"])
def test_csv_rows_below_a_line_that_says_the_separator_have_their_lines(tmp_path, separator):
    path = tmp_path / "a.csv"
    lines = [f"sep={separator}", "subscription_id;kind;keywords;k", "s1;knn;ramen;3", "short;1", "s2;knn;soup;3"]
    path.write_text("\n".join([lines[0], *(line.replace(";", separator) for line in lines[1:])]))
    assert [(line, row if isinstance(row, str) else row["subscription_id"]) for line, row in read_rows(path)] == [
        (3, "s1"),
        (4, "bad_csv"),
        (5, "s2"),
    ]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"], ids=["LF", "CRLF", "CR"])
@pytest.mark.parametrize("above", [[""], ["", " \t", ""], ["", "sep=;;;"]], ids=["one", "several", "separator"])
def test_csv_rows_below_blank_lines_have_their_lines(tmp_path, above, end):
    path = tmp_path / "a.csv"
    path.write_bytes(end.join([*above, "subscription_id;kind;keywords;k", "s1;knn;ramen;3"]).encode("utf-8-sig"))
    assert [(line, row["subscription_id"]) for line, row in read_rows(path)] == [(len(above) + 2, "s1")]


@pytest.mark.parametrize("name", ["a.csv", "a.parquet"])
def test_csv_and_parquet_with_two_columns_of_one_name_are_refused(tmp_path, name):
    path = tmp_path / name
    if name == "a.csv":
        path.write_text("subscription_id,kind,keywords,note,keywords,note\n1,knn,a,,b,\n")
    else:
        columns = ["subscription_id", "keywords", "keywords"]
        pq.write_table(pa.table([pa.array(["1"])] * 3, names=columns), path)
    with pytest.raises(InputError, match=f"{name}: 2 columns are called keywords") as refused:
        list(read_rows(path))
    assert refused.value.reason_code == "ambiguous_column"


def test_csv_columns_that_mean_nothing_may_have_one_name(tmp_path):
    (tmp_path / "a.csv").write_text("subscription_id,note,note,,\n1,a,b,,\n")
    assert [row["subscription_id"] for _, row in read_rows(tmp_path / "a.csv")] == ["1"]


def test_csv_header_that_cannot_be_parsed_refuses_its_rows(tmp_path):
    (tmp_path / "a.csv").write_text("subscription_id," + "x" * 200_000 + "\n1,a\n")
    assert list(read_rows(tmp_path / "a.csv")) == [(2, "bad_csv")]


@pytest.mark.parametrize("before", [b"\xef\xbb\xbf", b"\x1e", b" \t"])
def test_lines_of_json_pass_over_what_is_before_a_row(tmp_path, before):
    (tmp_path / "a").write_bytes(before + b'{"a": 1}\n' + before + b"\n" + before + b'{"a": 2}\n')
    assert list(read_rows(tmp_path / "a")) == [(1, {"a": 1}), (3, {"a": 2})]
