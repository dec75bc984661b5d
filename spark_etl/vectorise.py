"""Fourth step of the ETL: turn terms into weighted vectors of term ids, and write the output files.

Spark's Python workers write each file by pyarrow from one sorted partition, in row groups of fixed size, so the bytes
depend on the rows alone and not on cores, batches or retries. `spark_etl.job` calls the `write_` functions, and for
small input the `_file` functions without Spark (`spark_etl.small`). What a file contains is fixed by
`spark_etl.schemas`: a change there or here breaks `docs/formats.md`.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from matching.attributes import NO_ATTRIBUTES, AttributeSchema
from matching.model import TERM
from matching.text import unit_weights
from matching.validate import DELETE
from spark_etl.clean import LINE_BITS, reject_line
from spark_etl.schemas import MESSAGE_SCHEMA, VOCABULARY_SCHEMA, message_schema
from spark_etl.sources import InputFile
from spark_etl.written import replacing

#: Rows of a row group of every Parquet file that the ETL writes.
ROW_GROUP_ROWS = 16_384
#: Rejects of this many consecutive lines of an input file go into one output file.
REJECT_LINES_PER_FILE = 1_000_000

#: Schema in which a worker returns the description of each file it wrote (`_description`), as JSON.
_WRITTEN_SCHEMA = "written string"
_Batches = Iterator[pa.RecordBatch]


def write_vocabulary(statistics: DataFrame, out: str) -> dict[str, Any]:
    """Write `vocabulary.parquet` by one Spark task, which streams the rows; returns what `vocabulary_file` returns."""

    def write(batches: _Batches) -> _Batches:
        yield _described(vocabulary_file(batches, out))

    columns = statistics.select(VOCABULARY_SCHEMA.names[1:]).repartition(1)
    in_place = columns.sortWithinPartitions("document_frequency", "term")
    written = _written_by(in_place.mapInArrow(write, _WRITTEN_SCHEMA))
    return written[0] if written else vocabulary_file(iter(()), out)  # Spark starts no task where there are no terms


def vocabulary_file(batches: _Batches, out: str) -> dict[str, Any]:
    """Write `vocabulary.parquet`, and number the terms from 0 in the order of the rows.

    Parameters
    ----------
    batches : iterator of pa.RecordBatch
        The columns of `VOCABULARY_SCHEMA` but the id; rows by ascending document frequency, then by the term's bytes.
    out : str
        The output directory.

    Returns
    -------
    dict
        `name`, `rows`, `size_bytes` and `sha256` of the file, and `tokens`: occurrences of all terms.
    """
    tokens = 0

    def numbered() -> _Batches:
        nonlocal tokens
        first = 0
        for batch in batches:
            ids = pa.array(np.arange(first, first + batch.num_rows, dtype=np.int32))
            first += batch.num_rows
            tokens += int(batch.column("collection_count").to_numpy().sum())
            yield pa.RecordBatch.from_arrays([ids, *batch.columns], schema=VOCABULARY_SCHEMA)

    return _write_parquet(numbered(), VOCABULARY_SCHEMA, out, "vocabulary.parquet") | {"tokens": tokens}


def write_messages(
    numbered: DataFrame,
    out: str,
    kept: int,
    rows_per_file: int,
    likely_us: tuple[int, int] | None,
    schema: AttributeSchema = NO_ATTRIBUTES,
) -> list[dict[str, Any]]:
    """Write `messages/part-NNNNN.parquet`, `rows_per_file` rows each, from rows of `clean.CLEAN_SCHEMA` with a `seq`.

    The vocabulary must be in `out` before: every worker reads it once (about 150 bytes of memory a term).

    Parameters
    ----------
    numbered : DataFrame
        Rows of `clean.CLEAN_SCHEMA` and `seq`, dense from 0.
    out : str
        The output directory.
    kept : int
        Number of rows.
    rows_per_file : int
    likely_us : (int, int), optional
        First and last likely event time in microseconds, as of `count_facts`.
    schema : AttributeSchema, optional

    Returns
    -------
    list of dict
        One a file, as `message_file` returns it.
    """
    files = max(1, -(-kept // rows_per_file))

    def write(batches: _Batches) -> _Batches:
        for number, part in _cut(batches, lambda batch: batch.column("seq").to_numpy() // rows_per_file):
            yield _described(message_file(part, out, number, likely_us, schema))

    file_number = F.floor(F.col("seq") / F.lit(rows_per_file)).cast("int")
    in_place = numbered.repartitionById(files, file_number).sortWithinPartitions("seq")
    return _written_by(in_place.mapInArrow(write, _WRITTEN_SCHEMA))


def message_file(
    batches: _Batches,
    out: str,
    number: int,
    likely_us: tuple[int, int] | None,
    schema: AttributeSchema = NO_ATTRIBUTES,
) -> dict[str, Any]:
    """Write the file `messages/part-NNNNN.parquet` of this `number`, in the order of the stream.

    Parameters
    ----------
    batches : iterator of pa.RecordBatch
        Rows of the file, by ascending seq.
    out, likely_us, schema
        As of `write_messages`.
    number : int

    Returns
    -------
    dict
        `name`, `rows`, `size_bytes` and `sha256` of the file, and `facts`: those of `count_facts`, and for each
        attribute column the number of messages with a value.
    """
    facts: list[dict[str, Any]] = []
    attribute_names = message_schema(schema).names[len(MESSAGE_SCHEMA) :]

    def vectors() -> _Batches:
        for batch in batches:
            vector = vectorise(batch, *_load_vocabulary(str(Path(out) / "vocabulary.parquet")), schema)
            valued = {name: batch.num_rows - vector.column(name).null_count for name in attribute_names}
            facts.append(count_facts(batch, vector, likely_us) | valued)
            yield vector

    file = _write_parquet(vectors(), message_schema(schema), out, f"messages/part-{number:05d}.parquet")
    return file | {"facts": add_facts(facts)}


def write_rejected(rejected: DataFrame, out: str, sources: list[InputFile]) -> list[dict[str, Any]]:
    """Write `rejected/part-FFFFF-NNNNN.jsonl`, F the number of the input file, in the order of the input."""

    def write(batches: _Batches) -> _Batches:
        yield from map(_described, rejected_files(batches, out, sources))

    chunk = F.shiftright("row_id", LINE_BITS) * F.lit(1 << LINE_BITS) + F.floor(
        F.col("row_id").bitwiseAND(F.lit((1 << LINE_BITS) - 1)) / F.lit(REJECT_LINES_PER_FILE)
    )
    columns = rejected.select("row_id", "reason", "original", "column")
    in_place = columns.repartition(chunk).sortWithinPartitions("row_id")
    return _written_by(in_place.mapInArrow(write, _WRITTEN_SCHEMA))


def rejected_files(batches: _Batches, out: str, sources: list[InputFile]) -> Iterator[dict[str, Any]]:
    """Write rejected rows to files, one after the other; yields the description of each file.

    Parameters
    ----------
    batches : iterator of pa.RecordBatch
        Columns `row_id`, `reason`, `original` and `column`; rows by ascending `row_id`.
    out : str
    sources : list of InputFile
        The input files, by the number in `row_id`.
    """
    for chunk, part in _cut(batches, lambda batch: _chunks(batch.column("row_id").to_numpy())):
        file_number, number = divmod(chunk, 1 << LINE_BITS)
        lines = (
            reject_line(sources, *row)
            for batch in part
            for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)
        )
        yield _write_lines(lines, out, f"rejected/part-{file_number:05d}-{number:05d}.jsonl")


def _chunks(row_ids: np.ndarray) -> np.ndarray:
    """int64[n]: the output file of each row, as input file number << LINE_BITS | number of the chunk of its lines."""
    line = row_ids & ((1 << LINE_BITS) - 1)
    return row_ids - line + line // REJECT_LINES_PER_FILE


def count_facts(batch: pa.RecordBatch, vector: pa.RecordBatch, likely_us: tuple[int, int] | None) -> dict[str, Any]:
    """Counts of the messages of a batch for the manifest, and their extent: west, south, east, north in degrees.

    Parameters
    ----------
    batch, vector : pa.RecordBatch
        Of `clean.CLEAN_SCHEMA`, and the result of `vectorise` for it.
    likely_us : (int, int), optional
        First and last likely event time in microseconds (`spark_etl.span`); times outside are counted as odd.
    """
    times = batch.column("event_time_us").drop_null().to_numpy()
    odd = np.zeros(0, bool) if likely_us is None else (times < likely_us[0]) | (times > likely_us[1])
    ranges = batch.num_rows - batch.column("west").null_count
    sides = [
        np.concatenate([batch.column(name).drop_null().to_numpy() for name in names])
        for names in (("lon", "west"), ("lat", "south"), ("lon", "east"), ("lat", "north"))
    ]
    return {
        "null_times": batch.num_rows - times.shape[0],
        "bad_times": int(batch.column("bad_time").to_numpy(zero_copy_only=False).sum()),
        "odd_times": int(odd.sum()),
        "deletes": int((batch.column("op").to_numpy() == DELETE).sum()),
        "range_messages": ranges,
        "messages_without_terms": int((np.diff(vector.column("terms").offsets.to_numpy()) == 0).sum()),
        "extent": [float(sides[0].min()), float(sides[1].min()), float(sides[2].max()), float(sides[3].max())],
    }


def add_facts(facts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Combine the facts of one or more files of messages."""
    wests, souths, easts, norths = zip(*(one["extent"] for one in facts), strict=True)
    counts = {name: sum(one[name] for one in facts) for name in facts[0] if name != "extent"}
    return counts | {"extent": [min(wests), min(souths), max(easts), max(norths)]}


def vectorise(
    batch: pa.RecordBatch, term_ids: dict[str, int], idf: np.ndarray, schema: AttributeSchema = NO_ATTRIBUTES
) -> pa.RecordBatch:
    """Replace the terms of messages by ascending ids and compute their weights; drop terms outside the vocabulary.

    Parameters
    ----------
    batch : pa.RecordBatch
        `terms` list<string>, `counts` and `word_order` (places in `terms`) list<int32> among its columns, and the
        others of `MESSAGE_SCHEMA`, the time as `event_time_us`.
    term_ids : dict of str to int
    idf : float64[terms]     by term id
    schema : AttributeSchema, optional
        Its attributes are the columns `attribute_N` of the batch.

    Returns
    -------
    pa.RecordBatch
        Of `message_schema(schema)`. The weights are `matching.text.unit_weights` of count * idf.
    """
    terms: Any = batch.column("terms")
    lengths = np.diff(terms.offsets.to_numpy())
    rows = np.repeat(np.arange(batch.num_rows), lengths)
    # Each distinct term of the batch is looked up once.
    encoded = terms.flatten().dictionary_encode()
    ids_of_distinct = np.array([term_ids.get(term, -1) for term in encoded.dictionary.to_pylist()], TERM)
    ids = ids_of_distinct[encoded.indices.to_numpy()]
    words: Any = batch.column("word_order")
    ends = words.offsets.to_numpy()
    places = words.flatten().to_numpy() + np.repeat(
        terms.offsets.to_numpy()[:-1] - terms.offsets[0].as_py(), np.diff(ends)
    )
    in_order = pa.ListArray.from_arrays(pa.array((ends - ends[0]).astype(np.int32)), pa.array(ids[places]))
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
        "word_order": in_order,
    }
    arrays = [columns[name] if name in columns else batch.column(name) for name in MESSAGE_SCHEMA.names]
    arrays += [batch.column(f"attribute_{number}") for number in range(len(schema))]
    written = message_schema(schema)
    return pa.RecordBatch.from_arrays(
        [array.cast(field.type) for array, field in zip(arrays, written, strict=True)], schema=written
    )


@lru_cache(maxsize=1)
def _load_vocabulary(path: str) -> tuple[dict[str, int], np.ndarray]:
    """Ids by term, and idf (float64[terms]) by id; cached in the worker process."""
    table = pq.read_table(path, columns=["term", "idf"])
    return {term: number for number, term in enumerate(table["term"].to_pylist())}, table["idf"].to_numpy()


def _cut(batches: _Batches, key_of: Callable[[pa.RecordBatch], np.ndarray]) -> Iterator[tuple[int, _Batches]]:
    """Split batches whose rows are sorted by an integer key into one iterator for each value of the key.

    The caller must exhaust each iterator before it takes the next, as with `itertools.groupby`.
    """
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
    """Write one Parquet file whose row groups have `ROW_GROUP_ROWS` rows each, whatever the sizes of the batches."""
    rows = buffered_rows = 0
    buffered: list[pa.RecordBatch] = []
    path = Path(out) / name
    with (
        replacing(path) as unfinished,
        pq.ParquetWriter(unfinished, schema, compression="zstd", version="2.6") as writer,
    ):
        for batch in batches:
            rows += batch.num_rows
            buffered.append(batch)
            buffered_rows += batch.num_rows
            while buffered_rows >= ROW_GROUP_ROWS:
                table = pa.Table.from_batches(buffered).combine_chunks()
                writer.write_table(table.slice(0, ROW_GROUP_ROWS), ROW_GROUP_ROWS)
                buffered = table.slice(ROW_GROUP_ROWS).to_batches()
                buffered_rows -= ROW_GROUP_ROWS
        if buffered_rows or not rows:
            writer.write_table(pa.Table.from_batches(buffered, schema).combine_chunks(), ROW_GROUP_ROWS)
    return _description(path, name, rows)


def _write_lines(lines: Iterator[str], out: str, name: str) -> dict[str, Any]:
    path = Path(out) / name
    rows = 0
    with replacing(path) as unfinished, unfinished.open("w", encoding="utf-8", newline="\n") as stream:
        for line in lines:
            stream.write(line + "\n")
            rows += 1
    return _description(path, name, rows)


def _description(path: Path, name: str, rows: int) -> dict[str, Any]:
    """Name, rows, size and digest of a written file, for the manifest."""
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return {
        "name": name,
        "rows": rows,
        "size_bytes": path.stat().st_size,
        "sha256": digest,
    }


def _described(description: dict[str, Any]) -> pa.RecordBatch:
    """A description as the one row that a Spark worker returns."""
    return pa.RecordBatch.from_pydict({"written": [json.dumps(description)]})


def _written_by(descriptions: DataFrame) -> list[dict[str, Any]]:
    """Run the job that writes, and collect the descriptions of its files."""
    return [json.loads(row[0]) for row in descriptions.collect()]
