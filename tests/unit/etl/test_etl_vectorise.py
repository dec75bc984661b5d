"""Vectors and files of the ETL, without Spark."""

import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from matching.pieces import JOINED, JOINED_ID, NAMED_ID
from matching.text import term_form
from matching.validate import RawMessage
from spark_etl import vectorise as module
from spark_etl.clean import CLEAN_SCHEMA
from spark_etl.options import EtlOptions
from spark_etl.ordered import OrderedRows, count_terms, cut
from spark_etl.rows import CleanRow, RowCleaner
from spark_etl.schemas import MESSAGE_SCHEMA, VOCABULARY_SCHEMA
from spark_etl.vectorise import vectorise

TERM_IDS = {"rare": 0, "mid": 1, "often": 2}
IDF = np.array([3.0, 2.0, 1.0])


def batch_of(*texts: dict[str, int]) -> pa.RecordBatch:
    rows = []
    for number, counts in enumerate(texts):
        row = dict.fromkeys(CLEAN_SCHEMA.names) | {"message_id": f"m{number}", "lon": 1.0, "lat": 2.0, "text": "x"}
        row |= {"object_id": "o", "op": 0, "terms": list(counts), "counts": list(counts.values())}
        row["word_order"] = in_order(counts)
        rows.append(row | {"event_time_us": number, "seq": number})
    return pa.RecordBatch.from_pylist(rows, schema=CLEAN_SCHEMA.append(pa.field("seq", pa.int64())))


def in_order(counts: dict[str, int]) -> list[int]:
    """Places of terms, each as often as it occurs, the last one first, and the first two without a space between."""
    places = [place for place, count in enumerate(counts.values()) for _ in range(count)][::-1]
    return [*places[:1], *([JOINED_ID] if len(places) > 1 else []), *places[1:]]


MESSAGES = [{"often": 2, "rare": 1}, {}, {"gone": 3}, {"mid": 1, "gone": 1, "rare": 2, "often": 1}]


def expected(counts):
    known = sorted((TERM_IDS[term], count) for term, count in counts.items() if term in TERM_IDS)
    raw = [count * float(IDF[term_id]) for term_id, count in known]
    total = 0.0
    for value in raw:
        total += value * value
    return [t for t, _ in known], [c for _, c in known], [np.float32(value / math.sqrt(total)) for value in raw]


@pytest.mark.parametrize("start", [0, 1, 3])
def test_vectorise_any_slice_agrees_with_plain_python(start):
    found = vectorise(batch_of(*MESSAGES).slice(start), TERM_IDS, IDF)
    assert found.schema == MESSAGE_SCHEMA
    rows = found.to_pylist()
    assert [(row["terms"], row["counts"], row["weights"]) for row in rows] == [expected(m) for m in MESSAGES[start:]]
    assert [row["seq"] for row in rows] == list(range(start, 4))
    ids = [
        [place if place < 0 else TERM_IDS.get(list(one)[place], -1) for place in in_order(one)]
        for one in MESSAGES[start:]
    ]
    assert [row["word_order"] for row in rows] == ids


@pytest.mark.parametrize("start", [0, 1, 2])
def test_vectorise_puts_the_word_of_a_hashtag_behind_it_and_changes_no_vector(start):
    ids, messages = TERM_IDS | {"#mid": 3}, [{"often": 1, "#mid": 2}, {"#gone_rare": 1}, {"#none": 1, "mid": 1}, {}]
    rows = vectorise(batch_of(*messages).slice(start), ids, np.append(IDF, 0.5)).to_pylist()
    named = {"mid": NAMED_ID - 1, "gone": NAMED_ID + 1, "": NAMED_ID - JOINED_ID, "rare": NAMED_ID}
    orders = [
        [3, named["mid"], JOINED_ID, 3, named["mid"], 2],
        [-1, named["gone"], named[""], named["rare"]],
        [1, JOINED_ID, -1],
        [],
    ]
    assert [row["word_order"] for row in rows] == orders[start:]
    assert [row["terms"] for row in rows] == [[2, 3], [], [1], []][start:]


def test_vectorise_gives_the_word_of_a_hashtag_the_form_of_all_words():
    (row,) = vectorise(batch_of({"#runs": 1}), {"run": 0}, np.ones(1), form=term_form("english")).to_pylist()
    assert row["word_order"] == [-1, NAMED_ID]


def test_cleaned_row_has_its_terms_in_order_with_what_joins_them():
    row = RawMessage(text="BTC&ETH, btc 東京 #eth_pay", lon=1, lat=1)
    clean = RowCleaner(EtlOptions(inputs=("x",), out="y")).clean(row)
    assert isinstance(clean, CleanRow)
    assert clean.terms == ["btc", JOINED, "eth", "btc", "東", "東京", "京", "#eth_pay"]
    assert clean.counts == {"btc": 2, "eth": 1, "東": 1, "東京": 1, "京": 1, "#eth_pay": 1, "pay": 0}


def test_vectorise_without_rows_or_vocabulary_gives_empty_lists():
    assert vectorise(batch_of(), TERM_IDS, IDF).num_rows == 0
    assert vectorise(batch_of({"a": 1}), {}, np.zeros(0)).to_pylist()[0]["terms"] == []


def terms_table(rows: int) -> pa.Table:
    columns = {"term_id": range(rows), "term": [f"t{n}" for n in range(rows)], "document_frequency": [1] * rows}
    columns |= {"collection_count": [1] * rows, "idf": [0.5] * rows}
    return pa.table({name: list(column) for name, column in columns.items()}, schema=VOCABULARY_SCHEMA)


def test_write_parquet_cuts_of_the_batches_do_not_show_in_the_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "ROW_GROUP_ROWS", 100)
    table = terms_table(1050)
    digests = set()
    for number, size in enumerate((1, 7, 100, 333, 5000)):
        batches = iter(table.to_batches(size))
        told = module._write_parquet(batches, VOCABULARY_SCHEMA, str(tmp_path), f"{number}.parquet")
        digests.add(told["sha256"])
        assert told["rows"] == 1050
    assert len(digests) == 1
    file = pq.ParquetFile(tmp_path / "3.parquet")
    assert file.num_row_groups == 11 and file.read() == table
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{n}.parquet" for n in range(5)]


def test_write_parquet_without_rows_keeps_the_schema(tmp_path):
    module._write_parquet(iter(()), MESSAGE_SCHEMA, str(tmp_path), "messages/part-00000.parquet")
    assert pq.read_schema(tmp_path / "messages" / "part-00000.parquet") == MESSAGE_SCHEMA


@pytest.mark.parametrize("size", [1, 3, 4, 100])
def test_cut_groups_whatever_the_batches(size):
    keys = [0, 0, 0, 2, 2, 5, 5, 5, 5, 9]
    table = pa.table({"key": keys, "row": range(10)})
    groups = cut(iter(table.to_batches(size)), lambda batch: batch.column("key").to_numpy())
    found = {key: [row for batch in part for row in batch.column("row").to_pylist()] for key, part in groups}
    assert found == {0: [0, 1, 2], 2: [3, 4], 5: [5, 6, 7, 8], 9: [9]}


def test_ordered_rows_are_read_by_number_over_files_and_row_groups(tmp_path):
    rows, files = [{"row_id": n} for n in range(100)], []
    for number, size in enumerate((7, 30, 1, 62)):
        part = pa.Table.from_pylist(rows[len(OrderedRows(files)) :][:size])
        pq.write_table(part, tmp_path / f"{number}.parquet", row_group_size=8)
        files.append((str(tmp_path / f"{number}.parquet"), size))
    found = OrderedRows(files)
    assert len(found) == 100 and len(OrderedRows([])) == 0
    for first in range(0, 100, 3):
        for end in range(first, 131, 9):
            read = [row for batch in found.batches(first, end, ["row_id"]) for row in batch.to_pylist()]
            assert read == [row | {"seq": row["row_id"]} for row in rows[first:end]]


def test_count_terms_of_a_slice_counts_its_messages_and_occurrences():
    counted = count_terms(batch_of(*MESSAGES).slice(1)).to_pylist()
    found = {row["term"]: (row["document_frequency"], row["collection_count"]) for row in counted}
    assert found == {"gone": (2, 4), "mid": (1, 1), "rare": (1, 2), "often": (1, 1)} and len(counted) == 4
