"""A look at the first rows, without Spark: what it says is what the ETL does with them."""

import io
import json
import sys

import pytest

from matching.errors import ConfigError, InputError
from spark_etl.options import EtlOptions
from spark_etl.trial import try_rows

ROWS = [
    {"tweet_id": 1, "body": "Ramen, café!", "latitude": 35.7, "lng": 139.7, "ts": "Wed Oct 10 20:19:24 +0000 2018"},
    {"tweet_id": 1, "body": "Ramen, café!", "latitude": 35.7, "lng": 139.7, "ts": "Wed Oct 10 20:19:24 +0000 2018"},
    {"tweet_id": 1, "body": "other", "latitude": 35.7, "lng": 139.7},
    {"tweet_id": 2, "body": "udon", "latitude": 35.7, "lng": 139.7, "ts": "soon"},
    {"tweet_id": 3, "body": "soba", "latitude": 135.7, "lng": 139.7},
    {"tweet_id": 4, "body": ":-)", "latitude": 35.7, "lng": 139.7},
]


def text_of(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture
def raw(tmp_path):
    path = tmp_path / "raw.jsonl"
    path.write_text(text_of(ROWS) + "nonsense\n" + text_of(ROWS))
    return path


def test_try_rows_says_what_becomes_of_the_first_rows(raw, tmp_path):
    found = try_rows(EtlOptions(inputs=(str(raw),), fold_accents=True), 7)
    assert {name: found[name] for name in ("read", "kept", "duplicates", "rejected")} == {
        "read": 7,
        "kept": 3,
        "duplicates": 1,
        "rejected": 3,
    }
    assert found["rejected_by_reason"] == {"coordinate_out_of_range": 1, "duplicate_id": 1, "not_json": 1}
    assert (found["null_times"], found["bad_times"], found["messages_without_terms"]) == (2, 1, 1)
    assert found["columns_found"] == ["id", "lat", "lon", "text", "time"]
    assert [(one["name"], one["rows"], one["taken_for"]) for one in found["columns_seen"]] == [
        ("tweet_id", 7, "id"),
        ("body", 7, "text"),
        ("latitude", 7, "lat"),
        ("lng", 7, "lon"),
        ("ts", 4, "time"),
    ]
    assert [(one["reason"], one["line"]) for one in found["rejected_examples"]] == [
        ("coordinate_out_of_range", 5),
        ("duplicate_id", 3),
        ("not_json", 7),
    ]
    assert found["cleaned"][0] == {
        "message_id": "1",
        "lon": 139.7,
        "lat": 35.7,
        "event_time": "2018-10-10T20:19:24Z",
        "text": "Ramen, café!",
        "terms": ["ramen", "cafe"],
    }
    assert [path.name for path in tmp_path.iterdir()] == ["raw.jsonl"]


def test_try_rows_required_times(raw):
    found = try_rows(EtlOptions(inputs=(str(raw),), require_time=True), 7)
    assert found["rejected_by_reason"] == {
        "bad_time": 1,
        "coordinate_out_of_range": 1,
        "missing_time": 2,
        "not_json": 1,
    }


def test_try_rows_standard_input_is_read_like_a_file(raw, monkeypatch):
    expected = try_rows(EtlOptions(inputs=(str(raw),)), 100)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw.read_bytes())))
    piped = try_rows(EtlOptions(inputs=("-",)), 100)
    assert {example.pop("file") for example in piped["rejected_examples"]} == {"stdin"}
    assert {example.pop("file") for example in expected["rejected_examples"]} == {"raw.jsonl"}
    assert piped == expected


def test_try_rows_nothing_usable_says_why_and_what_to_do(tmp_path):
    path = tmp_path / "raw.jsonl"
    path.write_text(text_of({"text": "a", "lat": 139.7, "lon": 35.7} for _ in range(3)) + "nonsense\n")
    with pytest.raises(InputError, match=r"3 coordinate_out_of_range .* line 1: .*1 not_json .* line 4: 'nonsense'"):
        try_rows(EtlOptions(inputs=(str(path),)), 10)
    path.write_text("")
    with pytest.raises(InputError, match="no rows"):
        try_rows(EtlOptions(inputs=(str(path),)), 10)
    with pytest.raises(ConfigError, match="at least 1"):
        try_rows(EtlOptions(inputs=(str(path),)), 0)


def test_try_rows_value_of_the_wrong_type_names_its_column(raw, tmp_path):
    rows = [{"body": 7, "latitude": 1, "lng": 2}, {"body": "a", "latitude": [1], "lng": 2}]
    raw.write_text(text_of([*ROWS, *rows]))
    examples = try_rows(EtlOptions(inputs=(str(raw),)), 100)["rejected_examples"]
    assert [one["column"] for one in examples if one["reason"] == "wrong_type"] == ["body", "latitude"]
    assert all("value" in one for one in examples)
    raw.write_text(text_of(rows))
    with pytest.raises(InputError, match="2 wrong_type .*: column body.*To mend it, correct these rows") as refused:
        try_rows(EtlOptions(inputs=(str(raw),)), 100)
    assert "dry-run" not in str(refused.value)


@pytest.mark.parametrize(
    ("encoding", "said"), [("utf-16", "--encoding, such as utf-16"), ("latin-1", "--encoding, such as latin-1")]
)
def test_try_rows_of_another_encoding_says_the_option_that_helps(tmp_path, encoding, said):
    path = tmp_path / "raw.jsonl"
    path.write_bytes('{"text": "café", "lat": 1, "lon": 2}\n'.encode(encoding))
    with pytest.raises(InputError, match=said):
        try_rows(EtlOptions((str(path),)), 5)
    assert try_rows(EtlOptions((str(path),), encoding=encoding), 5)["kept"] == 1
