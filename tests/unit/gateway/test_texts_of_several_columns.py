"""A text of several columns is one text at every door, with a gap that no word and no phrase crosses."""

import json

import pyarrow as pa
import pytest

from gateway.live.mapping import ColumnMapping, RenamedLine
from gateway.live.vocabulary_files import empty_start
from gateway.serve.writer import PublishedRow
from matching.errors import ConfigError, InputError
from matching.pieces import BETWEEN_COLUMNS, text_of_columns
from spark_etl.feed_rows import FeedCleaner, with_found_columns
from spark_etl.finding import find_columns
from spark_etl.ingest import Split, check_columns, read_blocks
from spark_etl.options import EtlOptions
from spark_etl.rows import CleanRow, RowCleaner
from spark_etl.sources import find_sources
from spouts.log import Origin
from tests.support.live_streams import Stream
from tests.support.row_files import write_rows
from tests.support.writing import WriterStream

COLUMNS = {"text": "title,description"}
ROWS = [
    {"id": "a", "title": "rotes Fahrrad", "description": "wie neu", "lon": 1.0, "lat": 1.0},
    {"id": "b", "title": "wie rotes", "description": "Fahrrad neu", "lon": 1.0, "lat": 1.0},
    {"id": "c", "title": "rotes Fahrrad", "lon": 1.0, "lat": 1.0},
    {"id": "d", "title": "", "description": "neu", "lon": 1.0, "lat": 1.0},
    {"id": "e", "lon": 1.0, "lat": 1.0},
    {"id": "f", "title": "neu 東", "description": "京-rotes Fahrrad", "lon": 1.0, "lat": 1.0},
]
TEXTS = [text_of_columns([row.get("title"), row.get("description")]) or "" for row in ROWS]
REGION = {"kind": "boolean", "region": [0, 0, 2, 2]}
#: Subscriptions and the messages that each gets.
WANTED = {"neu": "abdf", '"rotes fahrrad"': "acf", '"rotes fahrrad"~100': "acf", '"fahrrad wie"~100': "", "東京": "",
          "neu fahrrad": "abf"}  # fmt: skip


def test_texts_of_columns_have_a_gap_between_those_that_are_there():
    assert TEXTS[0] == "rotes Fahrrad\u2029wie neu" and TEXTS[2:5] == ["rotes Fahrrad", "neu", ""]
    assert text_of_columns(["a", 7, ["b"]]) == 7 and text_of_columns([None, ""]) is None
    assert BETWEEN_COLUMNS.isspace()


@pytest.mark.parametrize("origin", [None, Origin("kafka://x/y", "0", 7, "")], ids=["request", "broker"])
@pytest.mark.parametrize("many", [1, 5], ids=["few", "many"])
def test_text_of_several_columns_of_a_request_or_broker_is_logged_as_one(tmp_path, origin, many):
    rows = [row | {"id": f"{row['id']}{n}"} for n in range(many) for row in ROWS]
    bad = ROWS[0] | {"id": "bad", "description": ["wie", "neu"]}
    with WriterStream(tmp_path / "out", columns=COLUMNS) as stream:
        found = stream.submit(*(PublishedRow(json.dumps(row).encode(), origin) for row in [*rows, bad]))
        stream.writer.begin()
        stream.end()
        assert [one["status"] for one in found] == ["accepted"] * len(rows) + ["refused"]
        assert (found[-1]["reason"], found[-1]["column"], found[-1]["value"]) == ("wrong_type", "description", "list")
        (record,) = stream.records()
        assert record.block is not None
        assert [one.text for one in record.block.messages()] == TEXTS * many


def test_phrases_of_a_stream_do_not_go_from_one_column_to_the_next(tmp_path):
    (out := tmp_path / "out").mkdir()
    stream = Stream(empty_start(out), out, world="earth", named=COLUMNS)
    for query in WANTED:
        stream.take({"subscribe": {"subscription_id": query, "query": query, **REGION}})
    for row in ROWS:
        stream.take(row)
    stream.pipe.close_batch()
    stream.finish(stream.match())
    found = dict.fromkeys(WANTED, "")
    for one in stream.told:
        found[one["subscription_id"]] += one["message_id"]
    assert not stream.refused and found == WANTED


def cleaned(path, **given):
    """The texts that the ETL's workers read."""
    options = EtlOptions((str(path),), text_column=COLUMNS["text"], **given)
    sources = find_sources(options)
    options, _ = find_columns(sources, options)
    check_columns(sources, options, options.named())
    cleaner, found = RowCleaner(options), []
    for block in read_blocks(Split(sources[0], 0, 1), options):
        for row in block:
            one = cleaner.clean(row.values, row.attributes)
            assert isinstance(one, CleanRow), one
            found.append(one)
    return found


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
def test_text_of_several_columns_of_a_file_is_one(tmp_path, form):
    path = tmp_path / f"raw.{form}"
    write_rows(path, ROWS)
    found = cleaned(path)
    assert [one.message.text for one in found] == TEXTS
    assert found[0].terms == ["rotes", "fahrrad", "", "", "wie", "neu"]
    (tmp_path / "one").mkdir()
    write_rows(tmp_path / "one" / f"raw.{form}", [{**ROWS[0], "title,description": "alone"}])
    assert [one.message.text for one in cleaned(tmp_path / "one")] == ["alone"], "a column of that very name is one"
    write_rows(path, [{name: value for name, value in row.items() if name != "title"} for row in ROWS])
    with pytest.raises(InputError, match="title") as refused:
        cleaned(path)
    assert refused.value.reason_code == "missing_column"


def test_text_of_several_columns_of_a_feed_is_one():
    options = EtlOptions(("-",), text_column="title, description")
    lines = pa.RecordBatch.from_pydict({"value": [json.dumps(row) for row in ROWS]})
    table = pa.RecordBatch.from_pylist(ROWS)
    cleaner = FeedCleaner(with_found_columns(table.schema.names, options))
    for found in (FeedCleaner(options).values(lines), cleaner.columns(table)):
        assert [json.loads(one)["text"] if isinstance(one, bytes) else one for one in found] == TEXTS
    with pytest.raises(ConfigError, match="no column for text"):
        with_found_columns(["name", "lon", "lat"], options)


def test_columns_of_a_text_are_no_fields_without_a_meaning():
    mapping = ColumnMapping(COLUMNS)
    found = mapping.rename(json.dumps(ROWS[0] | {"price": 5}).encode())
    assert isinstance(found, RenamedLine)
    assert {*ROWS[0]} - {*found.taken} == set() and "price" not in found.taken
