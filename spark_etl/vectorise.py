"""Fifth step of the ETL: turn terms into weighted vectors of term ids, and write the output files.

Spark's Python workers write each file by pyarrow from sorted rows, in row groups of fixed size, so the bytes depend on
the rows alone and not on cores, batches or retries. What a file contains is fixed by `spark_etl.schemas`: a change
there or here breaks `docs/formats.md`.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from matching.attributes import NO_ATTRIBUTES, AttributeSchema
from matching.model import TERM
from matching.pieces import JOINED_ID, NAMED_ID, named_ids
from matching.text import named_by, term_form
from matching.validate import DELETE
from matching.vocabulary import unit_weights
from spark_etl.clean import LINE_BITS, reject_line
from spark_etl.ordered import REJECTED_COLUMNS, Ordered
from spark_etl.schemas import MESSAGE_SCHEMA, VOCABULARY_SCHEMA, message_schema
from spark_etl.sources import InputFile
from spark_etl.written import Batches, replacing, results_of, results_of_numbers

#: Rows of a row group of every Parquet file that the ETL writes.
ROW_GROUP_ROWS = 16_384
#: Before the column of an attribute, in facts: how many messages have a value there that does not fit.
MISFITS = "misfits "
_TERM_ORDER = ("document_frequency", "term")


def write_vocabulary(statistics: DataFrame, out: str, most: float) -> dict[str, Any]:
    """Write `vocabulary.parquet` by one Spark task: terms by ascending document frequency, then by their bytes.

    Parameters
    ----------
    statistics : DataFrame
        Of `vocabulary.term_statistics`.
    out : str
        The output directory.
    most : float
        Terms of a higher document frequency are left out.

    Returns
    -------
    dict
        `name`, `rows`, `size_bytes` and `sha256` of the file, `tokens`: occurrences of all its terms, and `stop_terms`:
        the terms left out, sorted.
    """

    def write(batches: Batches) -> Iterator[dict[str, Any]]:
        columns = pa.schema([(field.name, field.type) for field in list(VOCABULARY_SCHEMA)[1:]])
        rows = (pa.RecordBatch.from_arrays(batch.columns, schema=columns) for batch in batches)
        table = pa.Table.from_batches(rows, columns).sort_by([(name, "ascending") for name in _TERM_ORDER])
        staying = int(np.searchsorted(table["document_frequency"].to_numpy(), most, side="right"))
        stop_terms = sorted(table["term"].slice(staying).to_pylist())
        table = table.slice(0, staying).add_column(0, "term_id", pa.array(np.arange(staying, dtype=np.int32)))
        batches = iter(table.cast(VOCABULARY_SCHEMA).to_batches())
        file = _write_parquet(batches, VOCABULARY_SCHEMA, out, "vocabulary.parquet")
        yield file | {"tokens": int(table["collection_count"].to_numpy().sum()), "stop_terms": stop_terms}

    (written,) = results_of(statistics, write)
    return written


def write_files(
    spark: SparkSession,
    rows: Ordered,
    sources: list[InputFile],
    out: str,
    rows_per_file: int,
    likely_us: tuple[int, int] | None,
    schema: AttributeSchema = NO_ATTRIBUTES,
    stem_language: str = "",
    fold_accents: bool = False,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Write `messages/part-NNNNN.parquet`, and `rejected/part-FFFFF-NNNNN.jsonl`, F the number of the input file.

    A Spark task writes a file. The vocabulary must be in `out` before: every worker reads it once (about 150 bytes of
    memory a term).

    Parameters
    ----------
    spark : SparkSession
    rows : Ordered
    sources : list of InputFile
        The input files, by the number in `row_id`.
    out : str
        The output directory.
    rows_per_file : int
        Of messages.
    likely_us : (int, int), optional
        First and last likely event time in microseconds, as of `count_facts`.
    schema : AttributeSchema, optional
    stem_language, fold_accents
        As of `matching.text.term_form`.

    Returns
    -------
    lists of dict
        For each file of messages what `message_file` returns; `name`, `rows`, `size_bytes` and `sha256` of the others.
    """
    files = -(-len(rows.kept) // rows_per_file)

    def write(number: int) -> dict[str, Any]:
        if number < files:
            batches = rows.kept.batches(number * rows_per_file, (number + 1) * rows_per_file)
            return message_file(batches, out, number, likely_us, schema, stem_language, fold_accents)
        chunk, first, end = rows.chunks[number - files]
        lines = (
            reject_line(sources, *row)
            for batch in rows.rejected.batches(first, end)
            for row in zip(*(batch.column(name).to_pylist() for name in REJECTED_COLUMNS), strict=True)
        )
        source, place = divmod(chunk, 1 << LINE_BITS)
        return _write_lines(lines, out, f"rejected/part-{source:05d}-{place:05d}.jsonl")

    written = results_of_numbers(spark, files + len(rows.chunks), write)
    return written[:files], written[files:]


def message_file(
    batches: Batches,
    out: str,
    number: int,
    likely_us: tuple[int, int] | None,
    schema: AttributeSchema = NO_ATTRIBUTES,
    stem_language: str = "",
    fold_accents: bool = False,
) -> dict[str, Any]:
    """Write the file `messages/part-NNNNN.parquet` of this `number`, in the order of the stream.

    Parameters
    ----------
    batches : iterator of pa.RecordBatch
        Rows of the file, by ascending seq.
    out, likely_us, schema, stem_language, fold_accents
        As of `write_files`.
    number : int

    Returns
    -------
    dict
        `name`, `rows`, `size_bytes` and `sha256` of the file, and `facts`: those of `count_facts`, and for each
        attribute column the number of messages with a value, and with one that does not fit.
    """
    facts: list[dict[str, Any]] = []
    attribute_names = message_schema(schema).names[len(MESSAGE_SCHEMA) :]

    def vectors() -> Batches:
        for batch in batches:
            words = _load_vocabulary(str(Path(out) / "vocabulary.parquet"))
            vector = vectorise(batch, *words, schema, term_form(stem_language, fold_accents))
            valued = {name: batch.num_rows - vector.column(name).null_count for name in attribute_names}
            columns = Counter(batch.column("misfits").flatten().to_pylist())
            misfits = {MISFITS + one.path: columns[one.path] for one in schema.attributes}
            facts.append(count_facts(batch, vector, likely_us) | valued | misfits)
            yield vector

    file = _write_parquet(vectors(), message_schema(schema), out, f"messages/part-{number:05d}.parquet")
    return file | {"facts": add_facts(facts)}


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
    sides = [side[~np.isnan(side)] for side in sides]  # deletions may be nowhere
    corners = zip((np.min, np.min, np.max, np.max), sides, strict=True)
    return {
        "null_times": batch.num_rows - times.shape[0],
        "bad_times": int(batch.column("bad_time").to_numpy(zero_copy_only=False).sum()),
        "odd_times": int(odd.sum()),
        "deletes": int((batch.column("op").to_numpy() == DELETE).sum()),
        "range_messages": ranges,
        "messages_without_terms": int((np.diff(vector.column("terms").offsets.to_numpy()) == 0).sum()),
        "extent": [float(pick(side)) for pick, side in corners] if sides[0].shape[0] else None,
    }


def add_facts(facts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Combine the facts of one or more files of messages."""
    counts = {name: sum(one[name] for one in facts) for name in facts[0] if name != "extent"}
    extents = [one["extent"] for one in facts if one["extent"] is not None]
    if not extents:
        return counts | {"extent": None}
    wests, souths, easts, norths = zip(*extents, strict=True)
    return counts | {"extent": [min(wests), min(souths), max(easts), max(norths)]}


def vectorise(
    batch: pa.RecordBatch,
    term_ids: dict[str, int],
    idf: np.ndarray,
    schema: AttributeSchema = NO_ATTRIBUTES,
    form: Callable[[str], str] | None = None,
) -> pa.RecordBatch:
    """Replace the terms of messages by ascending ids and compute their weights; drop terms outside the vocabulary.

    Parameters
    ----------
    batch : pa.RecordBatch
        `terms` list<string>, `counts` (0 of a term for matching alone) and `word_order` (places in `terms`, also as
        `matching.pieces.NAMED_ID` has them; others below 0 stay) list<int32> among its columns, and the others of
        `MESSAGE_SCHEMA`, the time as `event_time_us`.
    term_ids : dict of str to int
    idf : float64[terms]     by term id
    schema : AttributeSchema, optional
        Its attributes are the columns `attribute_N` of the batch.
    form : callable, optional
        What terms were turned into (`matching.text.term_form`): behind each hashtag in `word_order` comes the word that
        it names.

    Returns
    -------
    pa.RecordBatch
        Of `message_schema(schema)`. The weights are `matching.vocabulary.unit_weights` of count * idf.
    """
    terms: Any = batch.column("terms")
    lengths = np.diff(terms.offsets.to_numpy())
    rows = np.repeat(np.arange(batch.num_rows), lengths)
    # Each distinct term of the batch is looked up once.
    encoded = terms.flatten().dictionary_encode()
    distinct = encoded.dictionary.to_pylist()
    ids_of_distinct = np.array([term_ids.get(term, -1) for term in distinct], TERM)
    ids = ids_of_distinct[encoded.indices.to_numpy()]
    words: Any = batch.column("word_order")
    ends = words.offsets.to_numpy()
    places = words.flatten().to_numpy()
    firsts = np.repeat(terms.offsets.to_numpy()[:-1] - terms.offsets[0].as_py(), np.diff(ends))
    own = np.flatnonzero(places >= 0)
    in_order, ends = places.astype(TERM), ends - ends[0]
    terms_in_order = places[own] + firsts[own]
    in_order[own] = ids[terms_in_order]
    alone = np.flatnonzero(places <= NAMED_ID)
    in_order[alone] = NAMED_ID - ids[NAMED_ID - places[alone] + firsts[alone]]
    named = [_named(term, term_ids, form) for term in distinct]
    if any(named):
        lengths_of_distinct = np.array(list(map(len, named)))
        which = encoded.indices.to_numpy()[terms_in_order]
        behind = np.repeat(own + 1, lengths_of_distinct[which])
        in_order = np.insert(in_order, behind, [each for one in which.tolist() for each in named[one]])
        ends = ends + np.searchsorted(behind, ends, "right")
    in_order = pa.ListArray.from_arrays(pa.array(ends.astype(np.int32)), pa.array(in_order))
    counts: Any = batch.column("counts")
    repeats = counts.flatten().to_numpy()
    order = np.lexsort((ids, rows))
    order = order[(ids[order] >= 0) & (repeats[order] > 0)]
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
        **{name: pa.array(np.nan_to_num(batch.column(name).to_numpy())) for name in ("lon", "lat")},
    }
    arrays = [columns[name] if name in columns else batch.column(name) for name in MESSAGE_SCHEMA.names]
    arrays += [batch.column(f"attribute_{number}") for number in range(len(schema))]
    written = message_schema(schema)
    return pa.RecordBatch.from_arrays(
        [array.cast(field.type) for array, field in zip(arrays, written, strict=True)], schema=written
    )


def _named(term: str, term_ids: Mapping[str, int], form: Callable[[str], str] | None) -> list[int]:
    """What stands behind a term in order of appearance: of a hashtag the word that it names."""
    return named_ids([term_ids.get(piece, -1) if piece else JOINED_ID for piece in named_by(term, form)])


@lru_cache(maxsize=1)
def _load_vocabulary(path: str) -> tuple[dict[str, int], np.ndarray]:
    """Ids by term, and idf (float64[terms]) by id; cached in the worker process."""
    table = pq.read_table(path, columns=["term", "idf"])
    return {term: number for number, term in enumerate(table["term"].to_pylist())}, table["idf"].to_numpy()


def _write_parquet(batches: Batches, schema: pa.Schema, out: str, name: str) -> dict[str, Any]:
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
