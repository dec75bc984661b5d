"""Second step: check every row and cut its text into terms (`spark_etl.rows`), in Spark's Python workers."""

import json
import re
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from matching.attributes import AttributeSchema
from matching.languages import MARK
from matching.pieces import JOINED, JOINED_ID, NAMED_ID
from matching.validate import ParsedMessage
from spark_etl.ingest import Split, read_blocks
from spark_etl.options import EtlOptions
from spark_etl.rows import RowCleaner, fault_of, readable
from spark_etl.schemas import ATTRIBUTE_TYPES
from spark_etl.sources import InputFile
from spark_etl.written import Batches, by_numbers

#: `row_id` = number of the file << LINE_BITS | line: the order of the input, which decides which row is first.
LINE_BITS = 40

CLEAN_SCHEMA = pa.schema(
    [
        ("row_id", pa.int64()),
        ("reason", pa.string()),
        ("original", pa.string()),
        ("fault", pa.string()),  # JSON of `column` and `value`
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
        # the words in order of appearance: places in `terms`, for matching alone as `NAMED_ID` has them, or `JOINED_ID`
        ("word_order", pa.list_(pa.int32())),
        ("bad_time", pa.bool_()),
        ("misfits", pa.list_(pa.string())),  # columns whose value does not fit, and is missing
        ("expires_us", pa.int64()),  # when a version ends its object
    ]
)
#: Fields of a `ParsedMessage` before those of a live stream alone.
_OWN = ParsedMessage._fields.index("ahead")
#: What Spark finds repeats and the order by.
KEYS = ["row_id", "reason", "message_id", "content", "event_time_us"]


def clean_schema(schema: AttributeSchema) -> pa.Schema:
    """`CLEAN_SCHEMA` and a column for each attribute, `attribute_N`, since Spark reads a dot in a name as a path."""
    types = [ATTRIBUTE_TYPES[one.type] for one in schema.attributes]
    return pa.schema([*CLEAN_SCHEMA, *((f"attribute_{number}", one) for number, one in enumerate(types))])


def clean_rows(spark: SparkSession, tasks: list[list[Split]], options: EtlOptions) -> DataFrame:
    """Clean every row of the input: one row for each; lazy.

    Returns
    -------
    DataFrame
        `row`, a struct of `clean_schema`, which Spark moves as a whole, and beside it the columns `KEYS` of that.
    """

    def clean(number: int) -> Batches:
        for split in tasks[number]:
            for rows in clean_split(split, options):
                yield rows.select(KEYS).append_column("row", rows.to_struct_array())

    whole = clean_schema(options.attributes())
    schema = pa.schema([*map(whole.field, KEYS), ("row", pa.struct(list(whole)))])
    return by_numbers(spark, len(tasks), clean, from_arrow_schema(schema))


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
                fault = json.dumps(fault_of(read, row, options).named)
                rows.append((first_id | read.line, row, readable(read.original), fault, *nothing, None, None, None))
                attributes.append((None,) * len(attribute_types))
            else:
                # `ahead` and what follows is for live streams
                misfits = [str(one.fault.column) for one in row.misfits]
                own = *row.message[:_OWN], row.bad_time, misfits, row.message.expires_us
                rows.append((first_id | read.line, None, None, None, *own))
                found = row.counts
                terms += found
                counts += found.values()
                places = dict(zip(found, range(len(found)), strict=True)) | {JOINED: JOINED_ID}
                if row.message.lang:  # words for matching alone have a mark
                    places |= {MARK + term: NAMED_ID - place for term, place in places.items()}
                order += map(places.__getitem__, row.terms)
                attributes.append(row.attributes)
            cuts.append(len(terms))
            ends.append(len(order))
        *flat, bad_times, misfits, expires = zip(*rows, strict=True)
        arrays = [pa.array(values, field.type) for values, field in zip(flat, CLEAN_SCHEMA, strict=False)]
        offsets = pa.array(cuts, pa.int32())
        arrays.append(pa.ListArray.from_arrays(offsets, pa.array(terms, pa.string())))
        arrays.append(pa.ListArray.from_arrays(offsets, pa.array(counts, pa.int32())))
        arrays.append(pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pa.array(order, pa.int32())))
        arrays.append(pa.array(bad_times, pa.bool_()))
        arrays.append(pa.array(misfits, pa.list_(pa.string())))
        arrays.append(pa.array(expires, pa.int64()))
        for values, column_type in zip(zip(*attributes, strict=True), attribute_types, strict=True):
            arrays.append(pa.array(values, column_type))
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def literal(path: str) -> str:
    """Escape a path for Spark, which would read `a[2]` or `{x}` as a pattern."""
    return re.sub(r"([\\\[\]{}*?])", r"\\\1", path)


def place_of(sources: list[InputFile], row_id: int) -> tuple[str, int]:
    """File name and line of a row."""
    return sources[row_id >> LINE_BITS].name, row_id & ((1 << LINE_BITS) - 1)


def reject_line(sources: list[InputFile], row_id: int, reason: str, original: str, fault: str) -> str:
    """One JSON line for a rejected row: reason, column and value at fault, file, line, text."""
    name, line = place_of(sources, row_id)
    record = {"reason": reason, **json.loads(fault), "file": name, "line": line, "row": original}
    # a lone surrogate in a value at fault is written as its escape
    return json.dumps(record, ensure_ascii=False).encode("utf-8", "backslashreplace").decode()
