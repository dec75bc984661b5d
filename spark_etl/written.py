"""Work of Spark's Python workers, and the files that they write."""

import gc
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

Batches = Iterator[pa.RecordBatch]
_RESULT = "result string"


def by_workers(rows: DataFrame, work: Callable[[Batches], Batches], schema: StructType | str) -> DataFrame:
    """The rows that `work` makes of those of each partition, in a Spark task each; lazy."""

    def each(batches: Batches) -> Batches:
        # A worker collects garbage after each task: 0.03 s among what is imported, half the time of a small task.
        gc.freeze()
        return work(batches)

    return rows.mapInArrow(each, schema)


def by_numbers(spark: SparkSession, count: int, work: Callable[[int], Batches], schema: StructType | str) -> DataFrame:
    """The rows of `work(number)` for each number below `count`, in a Spark task each; lazy."""

    def each(batches: Batches) -> Batches:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from work(number)

    return by_workers(spark.range(0, count, 1, count), each, schema)


def results_of(rows: DataFrame, work: Callable[[Batches], Iterator[Any]]) -> list[Any]:
    """Call `work` with the rows of each partition, in a Spark task each; returns all results, sent as JSON."""

    def each(batches: Batches) -> Batches:
        return map(_row_of, work(batches))

    return [json.loads(row[0]) for row in by_workers(rows, each, _RESULT).collect()]


def results_of_numbers(spark: SparkSession, count: int, work: Callable[[int], Any]) -> list[Any]:
    """Call `work(number)` for each number below `count`, in a Spark task each; returns the results, sent as JSON."""
    rows = by_numbers(spark, count, lambda number: iter([_row_of(work(number))]), _RESULT)
    return [json.loads(row[0]) for row in rows.collect()]


def read_parquet(spark: SparkSession, paths: list[str], schema: str) -> DataFrame:
    """Rows of Parquet files, read by a Spark task each."""

    def read(number: int) -> Batches:
        with pq.ParquetFile(paths[number]) as file:
            yield from file.iter_batches(use_threads=False)

    return by_numbers(spark, len(paths), read, schema)


def _row_of(result: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"result": [json.dumps(result)]})


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path to write a file to; it gets its name at the end of the block.

    The temporary name has the process id, as a task may run twice at once.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    yield unfinished
    os.replace(unfinished, path)
