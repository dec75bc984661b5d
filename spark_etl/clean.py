"""Second step: check every row, cut its text into terms, find duplicates, and number what is left.

The per-row work is `spark_etl.rows` inside Spark's Python workers; finding duplicates and the
order of the stream are left to Spark's shuffles and sorts, so no row ever comes to the driver. Next is
`spark_etl.vocabulary`.
"""

import json
import re
from collections.abc import Callable, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from spark_etl.ingest import Share, read_blocks
from spark_etl.options import EtlOptions
from spark_etl.rows import MAX_ORIGINAL_CHARACTERS, RowCleaner, readable
from spark_etl.sources import Source

#: `row_id` = number of the file << LINE_BITS | line: the order of the input, which decides who is first.
LINE_BITS = 40

CLEAN_SCHEMA = pa.schema(
    [
        ("row_id", pa.int64()),
        ("reason", pa.string()),
        ("original", pa.string()),
        ("message_id", pa.string()),
        ("content", pa.binary()),
        ("lon", pa.float64()),
        ("lat", pa.float64()),
        ("west", pa.float64()),
        ("south", pa.float64()),
        ("east", pa.float64()),
        ("north", pa.float64()),
        ("event_time_us", pa.int64()),
        ("text", pa.string()),
        ("object_id", pa.string()),
        ("op", pa.int32()),
        ("terms", pa.list_(pa.string())),
        ("counts", pa.list_(pa.int32())),
        ("bad_time", pa.bool_()),
    ]
)
_CLEAN_SPARK_SCHEMA = (
    "row_id long, reason string, original string, message_id string, content binary, lon double, lat double, "
    "west double, south double, east double, north double, event_time_us long, text string, object_id string, op int, "
    "terms array<string>, counts array<int>, bad_time boolean"
)


def clean_rows(spark: SparkSession, tasks: list[list[Share]], options: EtlOptions) -> DataFrame:
    """One row for each row of the input (`CLEAN_SCHEMA`): either a reason, or a checked message and its terms."""
    numbers = spark.range(0, len(tasks), 1, len(tasks))
    return numbers.mapInArrow(_cleaner(tasks, options), _CLEAN_SPARK_SCHEMA)


def _cleaner(
    tasks: list[list[Share]], options: EtlOptions
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What runs in a Python worker."""

    def clean(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                for share in tasks[number]:
                    yield from clean_share(share, options)

    return clean


def clean_share(share: Share, options: EtlOptions) -> Iterator[pa.RecordBatch]:
    """The cleaned rows of a share, one batch a block."""
    cleaner = RowCleaner(options)
    first_id = share.source.number << LINE_BITS
    nothing = [None] * (len(CLEAN_SCHEMA) - 3)
    for block in read_blocks(share, options):
        rows = []
        for line, values, original in block:
            row = cleaner.clean(values)
            if isinstance(row, str):
                rows.append([first_id | line, row, readable(original), *nothing])
            else:
                terms, counts = list(row.counts), list(row.counts.values())
                message = row.message[:-1]  # `ahead` is for live streams
                rows.append([first_id | line, None, None, *message, terms, counts, row.bad_time])
        columns = zip(*rows, strict=True)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, CLEAN_SCHEMA, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=CLEAN_SCHEMA)


def judge_duplicates(cleaned: DataFrame) -> DataFrame:
    """Tell the first message of each id from its repeats.

    Returns
    -------
    DataFrame
        `row_id`, `message_id`, `event_time_us` of the rows without a reason, and `verdict`: `kept` for the first of an
        id in the order of the input, `duplicate` for a later one of the same content, `duplicate_id` for one of other
        content.
    """
    by_id = Window.partitionBy("message_id").orderBy("row_id")
    candidates = cleaned.where(F.col("reason").isNull()).select("row_id", "message_id", "content", "event_time_us")
    ranked = candidates.select(
        "*",
        F.row_number().over(by_id).alias("place"),
        F.first("content").over(by_id).alias("first_content"),
    )
    verdict = (
        F.when(F.col("place") == 1, "kept").when(F.col("content") == F.col("first_content"), "duplicate")
    ).otherwise("duplicate_id")
    return ranked.select("row_id", "message_id", "event_time_us", verdict.alias("verdict"))


def stream_order(judged: DataFrame) -> DataFrame:
    """The kept rows in the order of the stream: by event time, nulls first, then by the bytes of the id."""
    kept = judged.where(F.col("verdict") == "kept")
    return kept.orderBy(F.col("event_time_us").asc_nulls_first(), "message_id").select("row_id")


def literal(path: str) -> str:
    """A path that Spark is to read as it is, and not as a pattern: folders may be named `a[2]` or `{x}`."""
    return re.sub(r"([\\\[\]{}*?])", r"\\\1", path)


def write_numbered(ordered: DataFrame, number_column: str, path: str) -> DataFrame:
    """Number sorted rows densely from 0 without bringing them together.

    Spark numbers rows within each partition while it writes them to `path`; then only the size of each partition is
    needed to know where it starts.

    Returns
    -------
    DataFrame
        The rows with `number_column` (long) in front.
    """
    spark = ordered.sparkSession
    ordered.select(F.monotonically_increasing_id().alias("_place"), "*").write.parquet(path)
    written = spark.read.parquet(literal(path))
    partition = F.shiftright("_place", 33)
    sizes = written.groupBy(partition.alias("_partition")).count().collect()  # one row a partition
    starts, total = [], 0
    for number, size in sorted(tuple(row) for row in sizes):
        starts.append((number, total))
        total += size
    start_of = spark.createDataFrame(starts, "_partition long, _start long")
    row = F.col("_place").bitwiseAND(F.lit(2**33 - 1))
    joined = written.withColumn("_partition", partition).join(F.broadcast(start_of), "_partition")
    return joined.select((F.col("_start") + row).alias(number_column), *ordered.columns)


def rejected_rows(cleaned: DataFrame, judged: DataFrame) -> DataFrame:
    """`row_id`, `reason`, `original` of every row that was rejected (repeats of the same content are not)."""
    at_once = cleaned.where(F.col("reason").isNotNull()).select("row_id", "reason", "original")
    clashes = judged.where(F.col("verdict") == "duplicate_id").select("row_id")
    described = F.to_json(F.struct(F.col("message_id").alias("id"), "lon", "lat", "text"))
    later = cleaned.join(clashes, "row_id").select(
        "row_id",
        F.lit("duplicate_id").alias("reason"),
        F.substring(described, 1, MAX_ORIGINAL_CHARACTERS).alias("original"),
    )
    return at_once.unionByName(later)


def place_of(sources: list[Source], row_id: int) -> tuple[str, int]:
    """Name of the file and line of a row."""
    return sources[row_id >> LINE_BITS].name, row_id & ((1 << LINE_BITS) - 1)


def reject_line(sources: list[Source], row_id: int, reason: str, original: str) -> str:
    """One line of a file of rejected rows: where the row stood, why it was rejected, how it looked."""
    name, line = place_of(sources, row_id)
    record = {"reason": reason, "file": name, "line": line, "row": original}
    return json.dumps(record, ensure_ascii=False)
