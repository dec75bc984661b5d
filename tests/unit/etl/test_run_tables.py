"""Tables of a run for Spark: rows of the files in their order, columns that lack as null, folders that are refused."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from matching.errors import ConfigError
from spark_etl.run_tables import RunTable, TableReader

ROWS = [
    {"as_of": n, "subscription_id": f"s{n % 7}", "message_id": f"m{n}", "seq": n, "change": "match", "score": None}
    for n in range(300)
]


def run_folder(folder, state="finished", sink="parquet", **files):
    folder.mkdir()
    (folder / "updates").mkdir()
    (folder / "run.json").write_text(json.dumps({"state": state, "settings": {"sink": sink}}))
    for name, rows in files.items():
        table = pa.Table.from_pylist(rows)
        if "score" in table.column_names:
            table = table.set_column(table.column_names.index("score"), "score", table["score"].cast(pa.float64()))
        pq.write_table(table, folder / "updates" / f"{name.replace('_', '-')}.parquet")
    return folder


def rows_of(folder, table):
    reader = TableReader(RunTable.of({"path": f"file://{folder}", "table": table}))
    return [row for one in reader.partitions() for batch in reader.read(one) for row in batch.to_pylist()]


def test_updates_are_those_of_published_parts_in_order(tmp_path):
    folder = run_folder(tmp_path / "run", "running", part_00001=ROWS[100:], part_00000=ROWS[:100])
    (folder / "updates" / ".part-00002.parquet").write_bytes(b"not published")
    assert rows_of(folder, "updates") == ROWS
    assert RunTable.of({"path": str(folder)}).schema().names == list(ROWS[0])
    assert rows_of(run_folder(tmp_path / "empty"), "updates") == []


def test_results_have_all_columns(tmp_path):
    folder = run_folder(tmp_path / "run")
    rows = [{"subscription_id": "s", "rank": 1, "message_id": "m", "seq": 7, "score": 0.5}]
    pq.write_table(pa.Table.from_pylist(rows), folder / "results.parquet")
    assert rows_of(folder, "results") == [rows[0] | {"text_score": None}]


def test_folder_that_is_no_run_and_tables_that_are_not_there_are_refused(tmp_path):
    folder = run_folder(tmp_path / "run", "running")
    for options, what in (
        ({"path": str(tmp_path)}, "is no folder of a run"),
        ({"path": "s3://bucket/run"}, "name the folder"),
        ({}, "name the folder"),
        ({"path": str(folder), "table": "messages"}, "choose one of updates, results"),
        ({"path": str(folder), "table": "results"}, "when a run has finished; this one is running"),
        ({"path": str(run_folder(tmp_path / "lines", sink="jsonl"))}, "only parquet is read"),
    ):
        with pytest.raises(ConfigError, match=what):
            RunTable.of(options)
