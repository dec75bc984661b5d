"""The steps after cleaning for input that fits into memory: the same output, byte by byte, without shuffles.

For such input Spark's shuffles, sorts and joins take several times as long as the work itself. The same steps by Spark
are in `spark_etl.clean`, `spark_etl.vocabulary` and `spark_etl.vectorise`.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from matching.attributes import NO_ATTRIBUTES, AttributeSchema
from matching.fields import FIRST_US
from spark_etl.schemas import VOCABULARY_SCHEMA
from spark_etl.vectorise import message_file

_BATCH_ROWS = 8192
_CONTENT_BYTES = 16
_REJECTED = ("row_id", "reason", "original", "fault")


class Deduplicated(NamedTuple):
    """The kept rows, in the order of the input, and the repeats.

    kept : pa.Table            of `clean.CLEAN_SCHEMA`
    duplicates : int           later rows of the same id and content
    clashes : list of int      `row_id` of later rows of the same id and other content
    """

    kept: pa.Table
    duplicates: int
    clashes: list[int]


def find_duplicates(folder: Path) -> Deduplicated:
    """Separate the first message of each id from its repeats, in the files of `clean.clean_rows`. O(n log n)."""
    tables = [pq.read_table(path) for path in sorted(folder.glob("part-*.parquet"))]
    table = pa.concat_tables(table.filter(table["reason"].is_null()) for table in tables).combine_chunks()
    row_id = table["row_id"].to_numpy()
    message = pc.dictionary_encode(table["message_id"]).combine_chunks().indices.to_numpy()  # type: ignore[attr-defined]
    content = np.frombuffer(b"".join(table["content"].to_pylist()), np.uint8).reshape(-1, _CONTENT_BYTES)
    order = np.lexsort((row_id, message))
    is_first = np.ones(order.shape[0], bool)
    is_first[1:] = message[order[1:]] != message[order[:-1]]
    first = order[np.maximum.accumulate(np.where(is_first, np.arange(order.shape[0]), 0))]
    same = (content[order] == content[first]).all(axis=1)
    return Deduplicated(
        table.take(np.sort(order[is_first])),
        int((~is_first & same).sum()),
        np.sort(row_id[order[~is_first & ~same]]).tolist(),
    )


def stream_order(kept: pa.Table) -> pa.Table:
    """The kept rows in the order of the stream (`clean.stream_order`), with `seq` as first column."""
    # No time is before the year 1, so an earlier one stands for none.
    time = kept["event_time_us"].fill_null(FIRST_US - 1)
    keys = pa.table({"time": time, "message_id": kept["message_id"]})
    order = pc.sort_indices(keys, [("time", "ascending"), ("message_id", "ascending")])  # type: ignore[attr-defined]
    return kept.take(order).add_column(0, "seq", pa.array(np.arange(len(kept))))


def times_of(messages: pa.Table) -> tuple[int, Callable[[int], int]]:
    """Number of times of messages in the order of the stream, and a function that gives the nth."""
    times = messages["event_time_us"].drop_null().to_numpy()
    return times.shape[0], lambda nth: int(times[nth])


def term_statistics(messages: pa.Table, log: Callable[[float], float]) -> pa.Table:
    """The columns of the vocabulary but the id, by ascending document frequency, then by the bytes of the term.

    Parameters
    ----------
    messages : pa.Table
        `terms`, distinct within a message, and their `counts`.
    log : callable
        Java's natural logarithm, whose last bit may differ from that of other libraries.
    """
    terms = pa.chunked_array(chunk.flatten() for chunk in messages["terms"].chunks).combine_chunks()
    counts = np.concatenate([chunk.flatten().to_numpy() for chunk in messages["counts"].chunks])
    distinct = terms.dictionary_encode()
    which, number = distinct.indices.to_numpy(), len(distinct.dictionary)
    frequency = np.bincount(which, minlength=number)
    collected = np.bincount(which, weights=counts, minlength=number).astype(np.int64)
    values, place = np.unique(frequency, return_inverse=True)
    idf = np.array([log(1.0 + float(len(messages)) / value) for value in values.tolist()], np.float64)[place]
    columns = [distinct.dictionary, frequency, collected, idf]
    schema = pa.schema(list(VOCABULARY_SCHEMA)[1:])
    table = pa.table(dict(zip(schema.names, columns, strict=True)), schema=schema)
    return table.sort_by([("document_frequency", "ascending"), ("term", "ascending")])


def split_stop_terms(statistics: pa.Table, kept: int, stop_share: float) -> tuple[pa.Table, list[str]]:
    """Remove the terms that are in more than `stop_share` of the messages."""
    if stop_share >= 1:
        return statistics, []
    stopped = statistics["document_frequency"].to_numpy() > stop_share * kept
    names = statistics["term"].filter(pa.array(stopped)).to_pylist()
    return statistics.filter(pa.array(~stopped)), sorted(names)


def batches_of(table: pa.Table) -> Iterator[pa.RecordBatch]:
    """The rows of a table in batches."""
    return iter(table.combine_chunks().to_batches(_BATCH_ROWS))


def write_messages(
    messages: pa.Table,
    out: str,
    rows_per_file: int,
    likely_us: tuple[int, int] | None,
    schema: AttributeSchema = NO_ATTRIBUTES,
) -> list[dict[str, Any]]:
    """Write the files of messages, as `vectorise.write_messages`."""
    return [
        message_file(batches_of(messages.slice(start, rows_per_file)), out, start // rows_per_file, likely_us, schema)
        for start in range(0, len(messages), rows_per_file)
    ]


def rejected_rows(folder: Path) -> pa.Table:
    """`row_id`, `reason`, `original`, `fault` of the rows rejected by themselves, in the order of the input."""
    tables = [pq.read_table(path, columns=list(_REJECTED)) for path in sorted(folder.glob("part-*.parquet"))]
    table = pa.concat_tables(table.filter(table["reason"].is_valid()) for table in tables)
    return table.sort_by("row_id")
