"""Results at the end of a stream: sorted, with names, merged from several delivery tasks, and written to a file.

`results.parquet` is sorted by subscription id, then rank, and has the same bytes for any number of tasks.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bolts.names import IdColumn
from bolts.payloads import NamedResults
from bolts.shares import Ids
from bolts.sinks import GROUP_ROWS, RESULT_SCHEMA, open_writer, writing
from matching.model import Names, ResultBatch, take_rows
from topology.core.checkpoint.storage import Output, is_stored, open_disk


def sort_results(results: ResultBatch, subscriptions: Ids) -> ResultBatch:
    """Sort results by subscription id, then rank. O(n log n)."""
    distinct, rows = np.unique(results.number, return_inverse=True)
    order_of = np.empty(distinct.shape[0], np.int64)
    ids = subscriptions.names(distinct)
    order_of[pc.call_function("array_sort_indices", [ids]).to_numpy()] = np.arange(distinct.shape[0])
    return take_rows(results, np.lexsort((results.rank, order_of[rows])))


def table_of(results: ResultBatch, subscriptions: Ids, messages: IdColumn) -> pa.Table:
    """Results as a table of `RESULT_SCHEMA`, with names instead of numbers."""
    text_score = results.text_score
    columns = [
        subscriptions.encode(results.number).dictionary_decode(),
        pa.array(results.rank),
        messages.encode(results.seq).dictionary_decode(),
        pa.array(results.seq),
        pa.array(results.score),
        # null, not NaN, for kinds that have none
        pa.nulls(len(results), pa.float64()) if text_score is None else pa.array(text_score, from_pandas=True),
    ]
    return pa.Table.from_arrays(columns, schema=RESULT_SCHEMA)


def tables_of(results: ResultBatch, subscriptions: Ids, messages: IdColumn) -> Iterator[pa.Table]:
    """`table_of` in groups of rows; an empty one if there are none, for the schema."""
    for first in range(0, max(1, len(results)), GROUP_ROWS):
        yield table_of(take_rows(results, slice(first, first + GROUP_ROWS)), subscriptions, messages)


def merge_tables(tables: Sequence[pa.Table]) -> pa.Table:
    """The results of several tasks in one table, sorted as by `sort_results`. O(n log n)."""
    return pa.concat_tables(tables).sort_by([("subscription_id", "ascending"), ("rank", "ascending")])


def payload_of(results: pa.Table) -> NamedResults:
    """The payload that takes a table of `RESULT_SCHEMA` to another task."""
    subscriptions, messages = (Names.of(results.column(name).to_pylist()) for name in ("subscription_id", "message_id"))
    rank, seq, score, text_score = (results.column(name).to_numpy() for name in ("rank", "seq", "score", "text_score"))
    return NamedResults(subscriptions, messages, rank, seq, score, text_score)


def table_of_payload(results: NamedResults) -> pa.Table:
    """Inverse of `payload_of`."""
    columns = [
        pa.array(results.subscriptions.strings(), pa.string()),
        pa.array(results.rank),
        pa.array(results.messages.strings(), pa.string()),
        pa.array(results.seq),
        pa.array(results.score),
        pa.array(results.text_score, from_pandas=True),
    ]
    return pa.Table.from_arrays(columns, schema=RESULT_SCHEMA)


def write_results(folder: str, incarnation: int, pieces: Iterable[pa.Table]) -> tuple[Output, int]:
    """Write `results.parquet` under a hidden name; returns the file and its size. Raises DeliveryError."""
    path = f"{folder}/results.parquet"
    hidden = f".results.{incarnation}.parquet.tmp"
    if is_stored(path):
        hidden = f"results.{incarnation}.parquet"
        path = f"{folder}/{hidden}"
    disk = open_disk(folder)
    with writing(path), disk.create(hidden) as file:
        writer = open_writer(file, RESULT_SCHEMA)
        try:
            for piece in pieces:
                writer.write_table(piece, GROUP_ROWS)
        finally:
            writer.close()
    with writing(path):
        size_bytes = disk.sync(hidden)
    return Output(f"{folder}/{hidden}", path), size_bytes
