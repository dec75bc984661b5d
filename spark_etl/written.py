"""Work of Spark's Python workers, and the files that they write."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

Batches = Iterator[pa.RecordBatch]


def in_tasks(spark: SparkSession, count: int, work: Callable[[int], Any]) -> list[Any]:
    """Call `work(number)` for each number below `count`, in a Spark task each; returns the results, sent as JSON."""

    def each(batches: Batches) -> Iterator[Any]:
        return (work(number) for batch in batches for number in batch.column(0).to_pylist())

    return of_partitions(spark.range(0, count, 1, count), each)


def of_partitions(rows: DataFrame, work: Callable[[Batches], Iterator[Any]]) -> list[Any]:
    """Call `work` with the rows of each partition, in a Spark task each; returns all results, sent as JSON."""

    def each(batches: Batches) -> Batches:
        return (pa.RecordBatch.from_pydict({"result": [json.dumps(result)]}) for result in work(batches))

    return [json.loads(row[0]) for row in rows.mapInArrow(each, "result string").collect()]


def read_parquet(spark: SparkSession, paths: list[str], schema: str) -> DataFrame:
    """Rows of Parquet files, read by a Spark task each."""

    def read(batches: Batches) -> Batches:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                with pq.ParquetFile(paths[number]) as file:
                    yield from file.iter_batches(use_threads=False)

    return spark.range(0, len(paths), 1, len(paths)).mapInArrow(read, schema)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path to write a file to; it gets its name at the end of the block.

    The temporary name has the process id, as a task may run twice at once.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    yield unfinished
    os.replace(unfinished, path)
