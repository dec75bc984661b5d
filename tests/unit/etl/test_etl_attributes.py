"""Attributes from every form of input to checked values, and what a dry run suggests; without Spark."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from matching.errors import ConfigError, InputError
from spark_etl.clean import clean_schema, clean_split
from spark_etl.finding import find_columns
from spark_etl.ingest import Split, check_columns
from spark_etl.options import EtlOptions
from spark_etl.sources import find_sources
from spark_etl.suggesting import MAX_CATEGORIES, suggested_attributes
from spark_etl.trial import try_rows

ATTRIBUTES = ("price:number", "type=meta.type:category", "listed:time")
ROWS = [
    {"text": "a", "lat": 1, "lon": 2, "price": 5, "meta": {"type": "house"}, "listed": "2020-05-01"},
    {"text": "b", "lat": 1, "lon": 2, "price": 2.5, "meta": {"type": None}},
    {"text": "c", "lat": 1, "lon": 2, "meta": None, "listed": 1588291200},
]
VALUES = [(5.0, "house", 1588291200000000), (2.5, None, None), (None, None, 1588291200000000)]


def cleaned(path, attributes=ATTRIBUTES, **given):
    """The cleaned rows of a file, as dicts."""
    options = EtlOptions(inputs=(str(path),), attribute=attributes, **given)
    sources = find_sources(options)
    options, _ = find_columns(sources, options)
    check_columns(sources, options)
    batches = list(clean_split(Split(sources[0], 0, 1), options))
    assert all(batch.schema == clean_schema(options.attributes()) for batch in batches)
    return [row for batch in batches for row in batch.to_pylist()]


def values_of(rows):
    return [(row["attribute_0"], row["attribute_1"], row["attribute_2"]) for row in rows]


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_attributes_of_lines_documents_and_tables_are_the_same(tmp_path):
    document = tmp_path / "raw.json"
    document.write_text(json.dumps(ROWS))
    table = tmp_path / "raw.parquet"
    pq.write_table(pa.Table.from_pylist([row | {"listed": "2020-05-01"} for row in ROWS[:1]]), table)
    assert values_of(cleaned(write_lines(tmp_path / "raw.jsonl", ROWS))) == VALUES
    assert values_of(cleaned(document)) == VALUES
    assert values_of(cleaned(table)) == VALUES[:1]


def test_attributes_of_csv_are_read_from_text(tmp_path):
    path = tmp_path / "raw.csv"
    path.write_text(
        "text,lat,lon,price,type,listed\na,1,2,5,house,2020-05-01\nb,1,2, 2.5 ,,\nc,1,2,,,2020-05-01T00:00Z\n"
    )
    assert values_of(cleaned(path, ("price:number", "type:category", "listed:time"))) == VALUES


@pytest.mark.parametrize(
    ("bad", "column", "value"),
    [
        ({"price": "cheap"}, "price", "cheap"),
        ({"price": [5]}, "price", "list"),
        ({"price": True}, "price", True),
        ({"meta": {"type": ["house"]}}, "meta.type", "list"),
        ({"meta": {"type": {"x": 1}}}, "meta.type", "object"),
        ({"listed": "soon"}, "listed", "soon"),
    ],
)
def test_bad_attribute_is_missing_and_counted_or_spoils_its_row_by_option(tmp_path, bad, column, value):
    path = write_lines(tmp_path / "raw.jsonl", [ROWS[0], ROWS[0] | bad, ROWS[1]])
    rows = cleaned(path)
    assert [row["reason"] for row in rows] == [None] * 3 and [row["misfits"] for row in rows] == [[], [column], []]
    there = ["price", "meta.type", "listed"].index(column)
    assert values_of(rows)[1] == tuple(None if at == there else one for at, one in enumerate(VALUES[0]))
    rows = cleaned(path, strict_attributes=True)
    faults = [row["fault"] and json.loads(row["fault"]) for row in rows]
    assert faults == [None, {"column": column, "value": value}, None] and rows[1]["reason"] == "bad_attribute"
    assert values_of(rows) == [VALUES[0], (None, None, None), VALUES[1]]


def test_rows_with_other_bad_values_are_other_rows(tmp_path):
    """What was sent counts: a value that does not fit is missing, and still one of the content."""
    bad = [ROWS[0] | {"price": price} for price in ("VB", "VB", None, "on request", ["VB"])]
    contents = [row["content"] for row in cleaned(write_lines(tmp_path / "raw.jsonl", bad))]
    assert contents[0] == contents[1] and len(set(contents)) == 4


def test_message_without_id_is_another_where_an_attribute_is_another(tmp_path):
    rows = cleaned(write_lines(tmp_path / "raw.jsonl", [ROWS[0], ROWS[0], ROWS[0] | {"price": 6}]))
    ids = [row["message_id"] for row in rows]
    assert ids[0] == ids[1] != ids[2] and [row["object_id"] for row in rows] == ids
    assert rows[0]["content"] == rows[1]["content"] != rows[2]["content"]


def test_same_id_with_another_attribute_is_rejected(tmp_path):
    rows = [ROWS[0] | {"id": "x"}, ROWS[0] | {"id": "x"}, ROWS[0] | {"id": "x", "price": 6}]
    found = try_rows(EtlOptions((str(write_lines(tmp_path / "raw.jsonl", rows)),), attribute=ATTRIBUTES), 10)
    assert (found["kept"], found["duplicates"], found["rejected_by_reason"]) == (1, 1, {"duplicate_id": 1})


def test_bad_lines_beside_attributes_keep_their_reasons(tmp_path):
    path = write_lines(tmp_path / "raw.jsonl", ROWS)
    path.write_text(path.read_text() + "nonsense\n\n[1]\n")
    assert [row["reason"] for row in cleaned(path)][3:] == ["not_json", "empty_line", "not_json"]


def test_column_of_an_attribute_that_no_table_has_is_named(tmp_path):
    path = tmp_path / "raw.csv"
    path.write_text("text,lat,lon\na,1,2\n")
    with pytest.raises(InputError, match=r"no column cost \(--attribute price=cost:number\)"):
        cleaned(path, ("price=cost:number",))


@pytest.mark.parametrize("attribute", ["price", "price:money", "text:category"])
def test_options_refuse_an_attribute_that_cannot_be(attribute):
    with pytest.raises(ConfigError, match="attribute"):
        EtlOptions(("x",), attribute=(attribute,)).check()


def test_suggested_attributes_are_numbers_times_and_few_categories():
    rows = [
        {
            "a": number,
            "b": f"{number}.5",
            "c": "2020-05-01",
            "d": {"e": "xy"[number % 2], "f": f"n{number}"},
            "g": "same",
        }
        | {"h": [1, 2], "i": ["t"], "text": "xy"[number % 2], "j k": number % 3 == 0, "op": number}
        for number in range(2 * MAX_CATEGORIES + 2)
    ]
    assert suggested_attributes(rows, {"text"}) == [
        *("a:number", "b:number", "c:time", "d.e:category"),
        *("j_k=j k:category", "my_op=op:number"),
    ]


def test_suggested_attributes_of_a_column_with_a_bad_value_are_none():
    assert suggested_attributes([{"price": 1}, {"price": [1, "x"]}, {"price": "cheap"}], set()) == []


def test_dry_run_suggests_options_that_the_etl_takes(tmp_path):
    path = write_lines(tmp_path / "raw.jsonl", ROWS * 2)
    suggested = try_rows(EtlOptions((str(path),)), 10)["attributes_suggested"]
    assert suggested == ["price:number"]
    found = try_rows(EtlOptions((str(path),), attribute=tuple(suggested)), 10)
    assert found["attributes_suggested"] == []
    assert {one["name"]: one["taken_for"] for one in found["columns_seen"]}["price"] == "attribute price"
