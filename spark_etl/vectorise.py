"""Fourth step: turn terms into weighted vectors of term ids, and write the output files.

Files are written by the Python workers through pyarrow, each from one sorted partition, in row groups of fixed size, so
that the bytes depend on the rows alone and not on cores, batches or retries. Last is `spark_etl.job`, which calls all
this.
"""

import hashlib
import os
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from matching.model import TERM
from matching.text import unit_weights
from spark_etl.clean import LINE_BITS, reject_line
from spark_etl.schemas import MESSAGE_SCHEMA, VOCABULARY_SCHEMA
from spark_etl.sources import Source

ROW_GROUP_ROWS = 16_384
#: Lines of one input file whose rejects share an output file.
REJECT_LINES_PER_FILE = 1_000_000

#: What the workers say about each file they wrote; small, so it may come to the driver.
_WRITTEN_SCHEMA = "name string, rows long, size_bytes long, sha256 string, messages_without_terms long"
_Batches = Iterator[pa.RecordBatch]


def write_vocabulary(numbered: DataFrame, out: str) -> list[dict[str, Any]]:
    """Write `vocabulary.parquet` in the order of the ids, from one task that streams."""

    def write(batches: _Batches) -> _Batches:
        rows = (batch.cast(VOCABULARY_SCHEMA) for batch in batches)
        yield _described(_write_parquet(rows, VOCABULARY_SCHEMA, out, "vocabulary.parquet"))

    columns = numbered.select(VOCABULARY_SCHEMA.names).repartition(1).sortWithinPartitions("term_id")
    return [row.asDict() for row in columns.mapInArrow(write, _WRITTEN_SCHEMA).collect()]


def write_messages(numbered: DataFrame, out: str, kept: int, rows_per_file: int) -> list[dict[str, Any]]:
    """Write `messages/part-NNNNN.parquet`, `rows_per_file` rows each, from rows of `clean.CLEAN_SCHEMA` with a `seq`.

    The vocabulary must have been written to `out` before: every worker reads it once (some 150 bytes of memory a term).
    """
    files = max(1, -(-kept // rows_per_file))

    def write(batches: _Batches) -> _Batches:
        vocabulary = str(Path(out) / "vocabulary.parquet")
        for number, part in _cut(batches, lambda batch: batch.column("seq").to_numpy() // rows_per_file):
            vectors = (vectorise(batch, *_load_vocabulary(vocabulary)) for batch in part)
            yield _described(_write_parquet(vectors, MESSAGE_SCHEMA, out, f"messages/part-{number:05d}.parquet"))

    file_number = F.floor(F.col("seq") / F.lit(rows_per_file)).cast("int")
    in_place = numbered.repartitionById(files, file_number).sortWithinPartitions("seq")
    return [row.asDict() for row in in_place.mapInArrow(write, _WRITTEN_SCHEMA).collect()]


def write_rejected(rejected: DataFrame, out: str, sources: list[Source]) -> list[dict[str, Any]]:
    """Write `rejected/part-FFFFF-NNNNN.jsonl`, F the number of the input file, in the order of the input."""

    def write(batches: _Batches) -> _Batches:
        for chunk, part in _cut(batches, lambda batch: _chunks(batch.column("row_id").to_numpy())):
            file_number, number = divmod(chunk, 1 << LINE_BITS)
            lines = (
                reject_line(sources, *row)
                for batch in part
                for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)
            )
            yield _described(_write_lines(lines, out, f"rejected/part-{file_number:05d}-{number:05d}.jsonl"))

    chunk = F.shiftright("row_id", LINE_BITS) * F.lit(1 << LINE_BITS) + F.floor(
        F.col("row_id").bitwiseAND(F.lit((1 << LINE_BITS) - 1)) / F.lit(REJECT_LINES_PER_FILE)
    )
    columns = rejected.select("row_id", "reason", "original")
    in_place = columns.repartition(chunk).sortWithinPartitions("row_id")
    return [row.asDict() for row in in_place.mapInArrow(write, _WRITTEN_SCHEMA).collect()]


def _chunks(row_ids: np.ndarray) -> np.ndarray:
    """File number << LINE_BITS | chunk of its lines."""
    line = row_ids & ((1 << LINE_BITS) - 1)
    return row_ids - line + line // REJECT_LINES_PER_FILE


def vectorise(batch: pa.RecordBatch, term_ids: dict[str, int], idf: np.ndarray) -> pa.RecordBatch:
    """Replace the terms of messages by ids, ascending, and weigh them; terms outside the vocabulary fall away.

    Parameters
    ----------
    batch : pa.RecordBatch
        `terms` list<string> and `counts` list<int32> among its columns, and the others of `MESSAGE_SCHEMA`, the time as
        `event_time_us`.
    term_ids : dict
    idf : float64[terms]

    Returns
    -------
    pa.RecordBatch
        Of `MESSAGE_SCHEMA`. The weights are `matching.text.unit_weights` of count * idf.
    """
    terms: Any = batch.column("terms")
    lengths = np.diff(terms.offsets.to_numpy())
    rows = np.repeat(np.arange(batch.num_rows), lengths)
    # Each distinct term of the batch is looked up once.
    encoded = terms.flatten().dictionary_encode()
    ids_of_distinct = np.array([term_ids.get(term, -1) for term in encoded.dictionary.to_pylist()], TERM)
    ids = ids_of_distinct[encoded.indices.to_numpy()]
    counts: Any = batch.column("counts")
    repeats = counts.flatten().to_numpy()
    order = np.lexsort((ids, rows))
    order = order[ids[order] >= 0]
    rows, ids, repeats = rows[order], ids[order], repeats[order]
    offsets = np.zeros(batch.num_rows + 1, np.int64)
    np.cumsum(np.bincount(rows, minlength=batch.num_rows), out=offsets[1:])
    weights = unit_weights(idf[ids] * repeats, offsets)
    cuts = pa.array(offsets.astype(np.int32))
    columns: dict[str, Any] = {
        "event_time": batch.column("event_time_us").cast(pa.timestamp("us", "UTC")),
        "terms": pa.ListArray.from_arrays(cuts, pa.array(ids)),
        "counts": pa.ListArray.from_arrays(cuts, pa.array(repeats)),
        "weights": pa.ListArray.from_arrays(cuts, pa.array(weights)),
    }
    arrays = [columns[name] if name in columns else batch.column(name) for name in MESSAGE_SCHEMA.names]
    return pa.RecordBatch.from_arrays(
        [array.cast(field.type) for array, field in zip(arrays, MESSAGE_SCHEMA, strict=True)], schema=MESSAGE_SCHEMA
    )


@lru_cache(maxsize=1)
def _load_vocabulary(path: str) -> tuple[dict[str, int], np.ndarray]:
    """Ids by term and idf by id; kept by the worker for its later tasks."""
    table = pq.read_table(path, columns=["term", "idf"])
    return {term: number for number, term in enumerate(table["term"].to_pylist())}, table["idf"].to_numpy()


def _cut(batches: _Batches, key_of: Callable[[pa.RecordBatch], np.ndarray]) -> Iterator[tuple[int, _Batches]]:
    """Group a stream of batches, sorted by a key, into one stream for each value of the key."""
    waiting: list[pa.RecordBatch] = []

    def refill() -> bool:
        while not waiting:
            batch = next(batches, None)
            if batch is None:
                return False
            if batch.num_rows:
                waiting.append(batch)
        return True

    def group(key: int) -> _Batches:
        while refill():
            batch = waiting.pop()
            same = int(np.searchsorted(key_of(batch), key, side="right"))
            if same < batch.num_rows:
                waiting.append(batch.slice(same))
            if same == 0:
                return
            yield batch.slice(0, same)

    while refill():
        key = int(key_of(waiting[-1])[0])
        yield key, group(key)


def _write_parquet(batches: _Batches, schema: pa.Schema, out: str, name: str) -> dict[str, Any]:
    """Write one Parquet file in row groups of exactly `ROW_GROUP_ROWS` rows, however the batches are cut."""
    rows = without_terms = 0
    held: list[pa.RecordBatch] = []
    held_rows = 0
    path = Path(out) / name
    unfinished = _unfinished(path)
    with pq.ParquetWriter(unfinished, schema, compression="zstd", version="2.6") as writer:
        for batch in batches:
            rows += batch.num_rows
            if "terms" in schema.names:
                without_terms += int(np.count_nonzero(np.diff(batch.column("terms").offsets.to_numpy()) == 0))
            held.append(batch)
            held_rows += batch.num_rows
            while held_rows >= ROW_GROUP_ROWS:
                table = pa.Table.from_batches(held).combine_chunks()
                writer.write_table(table.slice(0, ROW_GROUP_ROWS), ROW_GROUP_ROWS)
                held = table.slice(ROW_GROUP_ROWS).to_batches()
                held_rows -= ROW_GROUP_ROWS
        if held_rows or not rows:
            writer.write_table(pa.Table.from_batches(held, schema).combine_chunks(), ROW_GROUP_ROWS)
    os.replace(unfinished, path)
    return _description(path, name, rows) | {"messages_without_terms": without_terms}


def _write_lines(lines: Iterator[str], out: str, name: str) -> dict[str, Any]:
    path = Path(out) / name
    unfinished = _unfinished(path)
    rows = 0
    with unfinished.open("w", encoding="utf-8", newline="\n") as stream:
        for line in lines:
            stream.write(line + "\n")
            rows += 1
    os.replace(unfinished, path)
    return _description(path, name, rows)


def _unfinished(path: Path) -> Path:
    """Where a file is written before it takes its name; of this process alone, as a task may run twice at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.with_name(f".{path.name}.{os.getpid()}")


def _description(path: Path, name: str, rows: int) -> dict[str, Any]:
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return {
        "name": name,
        "rows": rows,
        "size_bytes": path.stat().st_size,
        "sha256": digest,
        "messages_without_terms": 0,
    }


def _described(description: dict[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([description])


def write_empty_vocabulary(out: str) -> list[dict[str, Any]]:
    """A vocabulary without terms."""
    return [_write_parquet(iter(()), VOCABULARY_SCHEMA, out, "vocabulary.parquet")]
