"""Second step: check every row, cut its text into terms, find duplicates, and number what is left.

The per-row work is `spark_etl.rows` in Spark's Python workers; duplicates and the order of the stream are found by
Spark's shuffles and sorts, so no row is sent to the driver.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from matching.attributes import CATEGORY, NO_ATTRIBUTES, NUMBER, TIME, AttributeSchema
from matching.validate import ParsedMessage
from spark_etl.ingest import Split, read_blocks
from spark_etl.options import EtlOptions
from spark_etl.rows import MAX_ORIGINAL_CHARACTERS, RowCleaner, column_at_fault, readable
from spark_etl.schemas import ATTRIBUTE_TYPES
from spark_etl.sources import InputFile
from spark_etl.written import replacing

#: `row_id` = number of the file << LINE_BITS | line: the order of the input, which decides which row is first.
LINE_BITS = 40

CLEAN_SCHEMA = pa.schema(
    [
        ("row_id", pa.int64()),
        ("reason", pa.string()),
        ("original", pa.string()),
        ("column", pa.string()),
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
        ("word_order", pa.list_(pa.int32())),  # the words in order of appearance: places in `terms`
        ("bad_time", pa.bool_()),
    ]
)
#: Fields of a `ParsedMessage` before those of a live stream alone.
_OWN = ParsedMessage._fields.index("ahead")
_ATTRIBUTE_SPARK_TYPES = {NUMBER: "double", CATEGORY: "string", TIME: "long"}
_REASONS_SCHEMA = pa.schema([("reason", pa.string()), ("rows", pa.int64())])
_CLEAN_SPARK_SCHEMA = (
    "row_id long, reason string, original string, column string, message_id string, content binary, lon double, "
    "lat double, west double, south double, east double, north double, event_time_us long, text string, "
    "object_id string, op int, terms array<string>, counts array<int>, word_order array<int>, bad_time boolean"
)


def clean_schema(schema: AttributeSchema) -> pa.Schema:
    """`CLEAN_SCHEMA` and a column for each attribute, `attribute_N`, since Spark reads a dot in a name as a path."""
    types = [ATTRIBUTE_TYPES[one.type] for one in schema.attributes]
    return pa.schema([*CLEAN_SCHEMA, *((f"attribute_{number}", one) for number, one in enumerate(types))])


def clean_rows(spark: SparkSession, tasks: list[list[Split]], options: EtlOptions, path: str) -> DataFrame:
    """Clean every row of the input and write it to `path` as Parquet, a file a task.

    The workers write the files themselves: the rows are wide, and Java does not need them yet.

    Returns
    -------
    DataFrame
        `reason` (null for a checked message) and `rows`, a few rows a task; lazy: collecting it runs the tasks.
    """
    numbers = spark.range(0, len(tasks), 1, len(tasks))
    return numbers.mapInArrow(_cleaner(tasks, options, path), "reason string, rows long")


def read_cleaned(spark: SparkSession, path: str, schema: AttributeSchema = NO_ATTRIBUTES) -> DataFrame:
    """Read the output of `clean_rows`: one row for each row of the input (`clean_schema`)."""
    types = [_ATTRIBUTE_SPARK_TYPES[one.type] for one in schema.attributes]
    columns = [_CLEAN_SPARK_SCHEMA, *(f"attribute_{number} {one}" for number, one in enumerate(types))]
    return spark.read.schema(", ".join(columns)).parquet(literal(path))


def _cleaner(
    tasks: list[list[Split]], options: EtlOptions, path: str
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function of a Python worker."""

    def clean(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                reasons: Counter[str | None] = Counter()
                with (
                    replacing(Path(path) / f"part-{number:05d}.parquet") as unfinished,
                    pq.ParquetWriter(unfinished, clean_schema(options.attributes()), compression="snappy") as writer,
                ):
                    for split in tasks[number]:
                        for rows in clean_split(split, options):
                            writer.write_batch(rows)
                            for found in rows.column("reason").value_counts().to_pylist():
                                reasons[found["values"]] += found["counts"]
                yield pa.RecordBatch.from_pydict(
                    {"reason": list(reasons), "rows": list(reasons.values())}, schema=_REASONS_SCHEMA
                )

    return clean


def clean_split(split: Split, options: EtlOptions) -> Iterator[pa.RecordBatch]:
    """The cleaned rows of a split, one batch a block."""
    cleaner = RowCleaner(options)
    first_id = split.source.number << LINE_BITS
    nothing = (None,) * _OWN
    schema = clean_schema(options.attributes())
    attribute_types = schema.types[len(CLEAN_SCHEMA) :]
    for block in read_blocks(split, options):
        rows: list[tuple] = []
        terms: list[str] = []
        counts: list[int] = []
        cuts, order, ends = [0], list[int](), [0]
        attributes: list[tuple] = []
        for read in block:
            row = cleaner.clean(read.values, read.attributes)
            if isinstance(row, str):
                column = column_at_fault(read, row, options)
                rows.append((first_id | read.line, row, readable(read.original), column, *nothing, None))
                attributes.append((None,) * len(attribute_types))
            else:
                # `ahead`, the last field, is for live streams
                rows.append((first_id | read.line, None, None, None, *row.message[:_OWN], row.bad_time))
                found = row.counts
                terms += found
                counts += found.values()
                places = dict(zip(found, range(len(found)), strict=True))
                order += map(places.__getitem__, row.terms)
                attributes.append(row.attributes)
            cuts.append(len(terms))
            ends.append(len(order))
        *flat, bad_times = zip(*rows, strict=True)
        arrays = [pa.array(values, field.type) for values, field in zip(flat, CLEAN_SCHEMA, strict=False)]
        offsets = pa.array(cuts, pa.int32())
        arrays.append(pa.ListArray.from_arrays(offsets, pa.array(terms, pa.string())))
        arrays.append(pa.ListArray.from_arrays(offsets, pa.array(counts, pa.int32())))
        arrays.append(pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pa.array(order, pa.int32())))
        arrays.append(pa.array(bad_times, pa.bool_()))
        for values, column_type in zip(zip(*attributes, strict=True), attribute_types, strict=True):
            arrays.append(pa.array(values, column_type))
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def find_duplicates(cleaned: DataFrame, path: str) -> dict[str, int]:
    """Find the first message of each id and its repeats, and write a verdict of each to `path`.

    Writes `row_id`, `message_id`, `event_time_us` of the rows without a reason, a folder for each verdict: `kept` for
    the first of an id in the order of the input, `duplicate` for a later one of the same content, `duplicate_id` for
    one of other content. `of_verdict` reads it.

    Returns
    -------
    dict
        Verdict -> rows.
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
    verdicts = ranked.select("row_id", "message_id", "event_time_us", verdict.alias("verdict"))
    verdicts.write.partitionBy("verdict").parquet(path)
    return {
        folder.name.removeprefix("verdict="): sum(_rows_by_file(folder))
        for folder in sorted(Path(path).glob("verdict=*"))
    }


def of_verdict(spark: SparkSession, path: str, verdict: str) -> DataFrame:
    """`row_id`, `message_id`, `event_time_us` of the rows that `find_duplicates` gave a verdict."""
    rows = spark.read.schema("row_id long, message_id string, event_time_us long")
    return rows.parquet(literal(str(Path(path) / f"verdict={verdict}")))


def stream_order(kept: DataFrame) -> DataFrame:
    """The kept rows in the order of the stream: by event time, nulls first, then by the bytes of the id."""
    ordered = kept.orderBy(F.col("event_time_us").asc_nulls_first(), "message_id")
    return ordered.select("row_id", "event_time_us")


def literal(path: str) -> str:
    """Escape a path for Spark, which would read `a[2]` or `{x}` as a pattern."""
    return re.sub(r"([\\\[\]{}*?])", r"\\\1", path)


def write_numbered(ordered: DataFrame, number_column: str, path: str) -> DataFrame:
    """Number sorted rows densely from 0 without collecting them.

    Spark numbers rows within each partition while it writes them to `path`; the sizes of the partitions give their
    first numbers.

    Returns
    -------
    DataFrame
        The rows with `number_column` (long) in front.
    """
    spark = ordered.sparkSession
    placed = ordered.select(F.monotonically_increasing_id().alias("_place"), "*")
    placed.write.parquet(path)
    starts = np.cumsum([0, *_rows_by_file(Path(path))])
    start = F.array(*(F.lit(int(one)) for one in starts))[F.shiftright("_place", 33).cast("int")]
    row = F.col("_place").bitwiseAND(F.lit(2**33 - 1))
    written = spark.read.schema(placed.schema).parquet(literal(path))
    return written.select((start + row).alias(number_column), *ordered.columns)


def _rows_by_file(folder: Path) -> list[int]:
    """Number of rows of each partition that Spark wrote; files are named by the number of the partition."""
    sizes = {int(path.name.split("-")[1]): pq.read_metadata(path).num_rows for path in folder.glob("part-*.parquet")}
    return [sizes.get(number, 0) for number in range(max(sizes, default=-1) + 1)]


def rejected_rows(cleaned: DataFrame, clashes: DataFrame | None) -> DataFrame:
    """`row_id`, `reason`, `original`, `column` of every rejected row; `clashes` are those of verdict `duplicate_id`."""
    at_once = cleaned.where(F.col("reason").isNotNull()).select("row_id", "reason", "original", "column")
    if clashes is None:
        return at_once
    described = F.to_json(F.struct(F.col("message_id").alias("id"), "lon", "lat", "text"))
    later = cleaned.join(clashes.select("row_id"), "row_id").select(
        "row_id",
        F.lit("duplicate_id").alias("reason"),
        F.substring(described, 1, MAX_ORIGINAL_CHARACTERS).alias("original"),
        F.lit(None).cast("string").alias("column"),
    )
    return at_once.unionByName(later)


def place_of(sources: list[InputFile], row_id: int) -> tuple[str, int]:
    """File name and line of a row."""
    return sources[row_id >> LINE_BITS].name, row_id & ((1 << LINE_BITS) - 1)


def reject_line(sources: list[InputFile], row_id: int, reason: str, original: str, column: str | None = None) -> str:
    """One JSON line for a rejected row: file, line, reason, text."""
    name, line = place_of(sources, row_id)
    record = {"reason": reason, "column": column, "file": name, "line": line, "row": original}
    if column is None:
        del record["column"]
    return json.dumps(record, ensure_ascii=False)
