"""Small output folders of the ETL, written without it."""

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from matching.attributes import ATTRIBUTE, AttributeSchema
from matching.pieces import named_ids
from matching.words.tokeniser import tokeniser_number
from spark_etl.schemas import ATTRIBUTE_TYPES

SCHEMA = pa.schema(
    [
        ("seq", pa.int64()),
        ("message_id", pa.string()),
        ("lon", pa.float64()),
        ("lat", pa.float64()),
        ("west", pa.float64()),
        ("south", pa.float64()),
        ("east", pa.float64()),
        ("north", pa.float64()),
        ("event_time", pa.timestamp("us", "UTC")),
        ("terms", pa.list_(pa.int32())),
        ("counts", pa.list_(pa.int32())),
        ("weights", pa.list_(pa.float32())),
        ("text", pa.string()),
        ("object_id", pa.string()),
        ("op", pa.int8()),
    ]
)


def random_rows(count: int, words: int = 12, seed: int = 1, grid: int = 8, late_s: int = 0) -> list[dict]:
    """Messages on a grid of points with up to five terms, higher ids more often; some are rectangles, some empty."""
    rng = np.random.default_rng(seed)
    rows = []
    for seq in range(count):
        terms = sorted({words - 1 - int(one) % words for one in rng.zipf(1.4, rng.integers(0, 6)) - 1})
        lon, lat = (rng.integers(-grid, grid + 1, 2) / grid * np.array([180.0, 90.0])).tolist()
        box = [lon, lat, lon, lat]
        if rng.random() < 0.1:
            box = [max(-180.0, lon - 20.0), lat, min(180.0, lon + 20.0), lat]
        rows.append(
            {
                "seq": seq,
                "message_id": f"message {seq}",
                "lon": lon,
                "lat": lat,
                **dict(zip(("west", "south", "east", "north"), box, strict=True)),
                "event_time": (seq + int(rng.integers(0, late_s + 1))) * 1_000_000,
                "terms": terms,
                "counts": rng.integers(1, 4, len(terms)).tolist(),
                "weights": [1.0 / math.sqrt(len(terms)) for _ in terms],
                "text": " ".join(f"w{term}" for term in terms),
                "object_id": f"message {seq}",
                "op": 0,
            }
        )
    return rows


def write_etl(
    directory: Path, rows: list[dict], words: int = 12, files: int = 2, attributes: Sequence[str] = ()
) -> Path:
    """Write `rows` as an ETL output folder whose vocabulary is w0, w1, ...; returns it.

    Of `attributes` (`NAME:TYPE`) rows have the columns `attribute_NAME`; they may have a `word_order`.
    """
    schema, ordered = SCHEMA, "word_order" in rows[0]
    if ordered:
        schema = schema.append(pa.field("word_order", pa.list_(pa.int32())))
    for one in AttributeSchema.parse(attributes).attributes:
        schema = schema.append(pa.field(ATTRIBUTE + one.name, ATTRIBUTE_TYPES[one.type]))
    (directory / "messages").mkdir(parents=True)
    size = max(1, -(-len(rows) // files))
    for number, start in enumerate(range(0, len(rows), size)):
        table = pa.Table.from_pylist(rows[start : start + size], schema)
        pq.write_table(table, directory / "messages" / f"part-{number:05d}.parquet", row_group_size=100)
    frequency, collected = np.zeros(words, np.int64), np.zeros(words, np.int64)
    for row in rows:
        terms = np.array(row["terms"], np.int64)
        frequency[terms] += 1
        collected[terms] += np.array(row["counts"], np.int64)
    idf = np.log(1.0 + len(rows) / np.maximum(frequency, 1))
    columns = {
        "term_id": pa.array(np.arange(words, dtype=np.int32)),
        "term": pa.array([f"w{word}" for word in range(words)]),
        "document_frequency": pa.array(frequency),
        "collection_count": pa.array(collected),
        "idf": pa.array(idf),
    }
    pq.write_table(pa.table(columns), directory / "vocabulary.parquet")
    sides = [min(row["lon"] for row in rows), min(row["lat"] for row in rows)]
    sides += [max(row["lon"] for row in rows), max(row["lat"] for row in rows)]
    manifest = {"format_version": 1, "tokeniser": tokeniser_number(), "kept": len(rows)}
    manifest |= {"total_tokens": int(collected.sum()), "extent": sides}
    manifest |= {"options": {"attribute": list(attributes)}} if attributes else {}
    manifest |= {"word_order": True} if ordered else {}
    (directory / "manifest.json").write_text(json.dumps(manifest))
    return directory


def with_order(rows: list[dict], seed: int = 1) -> list[dict]:
    """The rows with their words in some order, each as often as it occurs, words without a term among them."""
    rng = np.random.default_rng(seed)
    for row in rows:
        words = [-1] * int(rng.integers(0, 3)) + [int(one) for one in np.repeat(row["terms"], row["counts"])]
        row["word_order"] = rng.permutation(np.array(words, np.int32)).tolist()
        row["text"] = " ".join("other" if one < 0 else f"w{one}" for one in row["word_order"])
    return rows


def with_hashtags(rows: list[dict], seed: int = 1) -> list[dict]:
    """As `with_order`; words without a term are hashtags that name words with one."""
    rng = np.random.default_rng(seed)
    for row in with_order(rows, seed):
        words = [(one, int(rng.integers(12))) for one in row["word_order"]]
        row["word_order"] = [each for one, w in words for each in ((one, *named_ids([w])) if one < 0 else (one,))]
        row["text"] = " ".join(f"#w{named}" if one < 0 else f"w{one}" for one, named in words)
    return rows


def with_objects(rows: list[dict]) -> list[dict]:
    """A third are versions of some objects, which move and change their words, and every tenth of these deletes."""
    rng = np.random.default_rng(3)
    for row in rows:
        if rng.random() < 0.34:
            row["object_id"] = f"thing {rng.integers(12)}"
            if rng.random() < 0.1:
                row |= {"op": 1, "terms": [], "counts": [], "weights": []}
    return rows


def write_lines(path: Path, *rows: dict | bytes) -> Path:
    """A file of JSON Lines; bytes are lines as they are."""
    path.write_bytes(b"".join((row if isinstance(row, bytes) else json.dumps(row).encode()) + b"\n" for row in rows))
    return path
