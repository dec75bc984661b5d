"""Long streams in files: messages drawn again, with replacement, of some that are real or made up.

What is drawn from (`Base`) is the output of `skyray etl`, or made by `benchmarks.workload`. A drawn message has the
words of one of the base, moves by about a kilometre, and gets attributes of its own: a price, bedrooms and a type, a
tenth of each missing.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import workload
from matching.attributes import ATTRIBUTE, AttributeSchema
from matching.errors import InputError
from matching.half_life import EPOCH_US
from matching.model import Float32, Float64, Int32, Int64, take_ragged
from matching.words.tokeniser import tokeniser_number
from spark_etl.schemas import ATTRIBUTES_VERSION, VOCABULARY_SCHEMA, message_schema
from spouts.message_files import list_message_files
from spouts.subscriptions import load_vocabulary

#: Messages of the base that are made up, and of an ETL folder at most.
MADE_UP, MOST = 200_000, 500_000
#: Rows of a file, and of a row group.
_FILE_ROWS, _GROUP_ROWS = 131_072, 16_384
_JITTER_DEG = 0.01
_TYPES, _MISSING = 12, 0.1
SCHEMA = AttributeSchema.parse(("price:number", "beds:number", "type:category"))
_LOW, _HIGH = np.array([[-180.0], [-90.0]]), np.array([[180.0], [90.0]])


class Base(NamedTuple):
    """What messages are drawn of.

    places : float64[2, n]                      longitude and latitude
    offsets, terms, counts, weights             terms of each message: int64[n + 1], int32, int32 and float32[nnz]
    words : list of str                         by term id, the rarest first
    frequency, occurrences : int64[terms]       messages that have a term; how often it occurs
    idf : float64[terms]
    """

    places: Float64
    offsets: Int64
    terms: Int32
    counts: Int32
    weights: Float32
    words: list[str]
    frequency: Int64
    occurrences: Int64
    idf: Float64


def made_up(seed: int, count: int = MADE_UP) -> Base:
    """Messages by the recipe of `benchmarks.workload`."""
    batch, idf = workload.make_messages(count, seed, timed=True)
    frequency = np.bincount(batch.terms, minlength=idf.shape[0])
    occurrences = np.bincount(batch.terms, batch.counts, minlength=idf.shape[0]).astype(np.int64)
    words = [f"w{term}" for term in range(idf.shape[0])]
    return Base(
        np.stack([batch.west, batch.south]), batch.term_offsets, batch.terms, batch.counts, batch.weights, words,
        frequency, occurrences, idf,
    )  # fmt: skip


def of_etl(directory: str) -> Base:
    """The messages of an ETL folder that have terms, `MOST` at most, spread evenly. Raises InputError."""
    files = list_message_files(directory)
    if not files:
        raise InputError("missing_file", f"{directory}: no ETL output; give the --out of a finished `skyray etl`")
    vocabulary = load_vocabulary(directory)
    stored = pq.read_table(files, columns=["lon", "lat", "terms", "weights", "counts"])
    terms, weights, counts = (stored[name].combine_chunks() for name in ("terms", "weights", "counts"))
    offsets = terms.offsets.to_numpy().astype(np.int64)
    some = np.flatnonzero(np.diff(offsets))
    some = some[:: max(1, -(-some.size // MOST))]
    if not some.size:
        raise InputError("no_terms", f"{directory}: no message in it has a term; run the ETL on other texts")
    cuts, picked = take_ragged(offsets, some)
    flat, times, shares = (column.values.to_numpy()[picked] for column in (terms, counts, weights))
    size = len(vocabulary)
    frequency = np.maximum(1, np.bincount(flat, minlength=size))
    occurrences = np.maximum(1, np.bincount(flat, times, minlength=size).astype(np.int64))
    places = np.stack([stored[name].to_numpy()[some] for name in ("lon", "lat")])
    return Base(places, cuts, flat, times, shares, list(vocabulary.terms), frequency, occurrences, vocabulary.idf)


def write_stream(base: Base, folder: Path, count: int, seed: int, rate: float) -> None:
    """Write `count` messages as an ETL folder, `rate` a second by event time; 10 us and 150 bytes a message."""
    rng = np.random.default_rng([seed, 11])
    drawn = rng.integers(0, base.places.shape[1], count)
    _write(base, folder, drawn, rng, rate)


def write_sample(base: Base, folder: Path, seed: int) -> None:
    """Write the base itself as an ETL folder, which subscriptions take after; none of it is published."""
    _write(base, folder, np.arange(base.places.shape[1]), np.random.default_rng([seed, 12]), 1e3)


def _write(base: Base, folder: Path, drawn: Int64, rng: np.random.Generator, rate: float) -> None:
    (folder / "messages").mkdir(parents=True)
    schema, extents = message_schema(SCHEMA), []
    for number, first in enumerate(range(0, drawn.shape[0], _FILE_ROWS)):
        rows = drawn[first : first + _FILE_ROWS]
        places = base.places[:, rows] + rng.normal(size=(2, rows.shape[0])) * _JITTER_DEG
        places = np.clip(places, _LOW, _HIGH)
        extents.append([*places.min(axis=1), *places.max(axis=1)])
        columns = dict(_columns(base, rows, first, places, rng, rate))
        table = pa.Table.from_arrays(
            [columns[name].cast(schema.field(name).type) for name in schema.names], schema=schema
        )
        pq.write_table(table, folder / "messages" / f"part-{number:05d}.parquet", row_group_size=_GROUP_ROWS)
    _write_vocabulary(base, folder)
    low, high = np.min(extents, axis=0)[:2], np.max(extents, axis=0)[2:]
    manifest = {
        "format_version": ATTRIBUTES_VERSION,
        "tokeniser": tokeniser_number(),
        "kept": drawn.shape[0],
        "total_tokens": int(base.occurrences.sum()),
        "extent": [float(low[0]), float(low[1]), float(high[0]), float(high[1])],
        "stop_terms": [],
        "deletes": 0,
        "options": {"attribute": ["price:number", "beds:number", "type:category"]},
    }
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1))


def _columns(
    base: Base, rows: Int64, first: int, places: Float64, rng: np.random.Generator, rate: float
) -> Iterator[tuple[str, Any]]:
    """The columns of `message_schema`, of messages from seq `first` on."""
    seq = np.arange(first, first + rows.shape[0])
    names = pa.array([f"m{number}" for number in seq.tolist()])
    offsets, picked = take_ragged(base.offsets, rows)
    cuts = pa.array(offsets.astype(np.int32))
    yield from (("seq", pa.array(seq)), ("message_id", names), ("object_id", names))
    yield from (("lon", pa.array(places[0])), ("lat", pa.array(places[1])))
    for side in ("west", "south", "east", "north"):
        yield side, pa.nulls(rows.shape[0], pa.float64())
    yield "event_time", pa.array(EPOCH_US + (seq * (1e6 / rate)).astype(np.int64), pa.timestamp("us", "UTC"))
    for name, values in (("terms", base.terms), ("counts", base.counts), ("weights", base.weights)):
        yield name, pa.ListArray.from_arrays(cuts, pa.array(values[picked]))
    ends, words = repeated(offsets, base.terms[picked], base.counts[picked])
    yield "word_order", pa.ListArray.from_arrays(pa.array(ends.astype(np.int32)), pa.array(words))
    yield "text", pa.array([""] * rows.shape[0])
    yield "op", pa.array(np.zeros(rows.shape[0], np.int32))
    n, weight = rows.shape[0], 1.0 / np.arange(1, _TYPES + 1)
    missing = rng.random((3, n)) < _MISSING
    prices, beds = np.round(rng.lognormal(12.5, 0.6, n), -3), rng.integers(1, 7, n).astype(np.float64)
    kinds = np.array([f"type {number}" for number in range(_TYPES)])[rng.choice(_TYPES, n, p=weight / weight.sum())]
    yield f"{ATTRIBUTE}price", pa.array(prices, mask=missing[0])
    yield f"{ATTRIBUTE}beds", pa.array(beds, mask=missing[1])
    yield f"{ATTRIBUTE}type", pa.array(kinds.tolist(), mask=missing[2])


def repeated(offsets: Int64, terms: Int32, counts: Int32) -> tuple[Int64, Int32]:
    """Terms of messages, each as often as it occurs, as if they had appeared in this order."""
    before: Any = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    return before[offsets], np.repeat(terms, counts)


def _write_vocabulary(base: Base, folder: Path) -> None:
    columns = [np.arange(len(base.words), dtype=np.int32), base.words, base.frequency, base.occurrences, base.idf]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, VOCABULARY_SCHEMA, strict=True)]
    pq.write_table(pa.Table.from_arrays(arrays, schema=VOCABULARY_SCHEMA), folder / "vocabulary.parquet")
