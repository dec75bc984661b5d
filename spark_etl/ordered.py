"""Third step: find repeated messages, and sort all rows into the order of the output.

Spark's shuffles and sorts do it, so no row is sent to the driver; its Python workers write the sorted rows as Parquet,
a file a partition, and count the terms of the messages in it.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from matching.fields import FIRST_US
from matching.validate import DELETE
from spark_etl.clean import LINE_BITS
from spark_etl.rows import MAX_ORIGINAL_CHARACTERS
from spark_etl.written import Batches, replacing, results_of

#: Rejects of this many consecutive lines of an input file go into one output file.
REJECT_LINES_PER_FILE = 1_000_000
#: What becomes of a row, and the order in which they are written.
KEPT, DUPLICATE, REJECTED = range(3)
_BATCH_ROWS = 8192
#: Columns of files of terms -> type of Spark.
TERM_COUNTS = {"term": "string", "document_frequency": "long", "collection_count": "long"}
REJECTED_COLUMNS = ["row_id", "reason", "original", "fault"]


class OrderedRows:
    """Rows of sorted Parquet files, by their number over all files.

    Parameters
    ----------
    files : list of (str, int)
        Path and rows of each, of the last ones perhaps not all.
    """

    def __init__(self, files: list[tuple[str, int]]):
        self._paths = [path for path, _ in files]
        self._ends = np.cumsum([0, *(rows for _, rows in files)])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def batches(self, first: int, end: int, columns: list[str] | None = None) -> Batches:
        """The rows from `first` to before `end`, with their number as the column `seq`; reads their row groups only."""
        end = min(end, len(self))  # the last files may have more rows
        for place in range(int(np.searchsorted(self._ends, first, side="right")) - 1, len(self._paths)):
            row = int(self._ends[place])
            if row >= end:
                return
            with pq.ParquetFile(self._paths[place]) as file:
                for group in range(file.num_row_groups):
                    after = row + file.metadata.row_group(group).num_rows
                    if after > first and row < end:
                        yield from self._of_group(file, group, row, first, end, columns)
                    row = after

    @staticmethod
    def _of_group(
        file: pq.ParquetFile, group: int, row: int, first: int, end: int, columns: list[str] | None
    ) -> Batches:
        for batch in file.iter_batches(_BATCH_ROWS, [group], columns, use_threads=False):
            begin, stop = max(first - row, 0), min(end - row, batch.num_rows)
            if begin < stop:
                seq = pa.array(np.arange(row + begin, row + stop))
                yield batch.slice(begin, stop - begin).append_column("seq", seq)
            row += batch.num_rows


class Ordered(NamedTuple):
    """All rows, after `order_rows`.

    kept, rejected : OrderedRows    in the order of the stream, and of the input
    untimed : int                   kept rows without an event time; they come first
    duplicates : int                rows that repeat a message in all
    ends : int                      kept rows that were made: deletions of objects that end by time
    terms : list of str             Parquet files of terms and their counts (`TERM_COUNTS`); a term may be in several
    reasons : dict                  reason -> rejected rows, and `row_id`, `original`, `fault` of the first of them
    broken : list of str            `original` of rows that stand for damaged files
    chunks : list of (int, int, int)
        Output files of rejected rows: input file number << LINE_BITS | number of the chunk of its lines, first row, and
        the row after the last.
    """

    kept: OrderedRows
    rejected: OrderedRows
    untimed: int
    duplicates: int
    ends: int
    terms: list[str]
    reasons: dict[str, tuple[int, list]]
    broken: list[str]
    chunks: list[tuple[int, int, int]]

    def time(self, nth: int) -> int:
        """Event time in microseconds of the nth kept row that has one."""
        row = self.untimed + nth
        return next(self.kept.batches(row, row + 1, ["event_time_us"])).column(0)[0].as_py()


def order_rows(cleaned: DataFrame, folder: str, id_column: str, objects: bool = False) -> Ordered:
    """Find the first message of each id and its repeats, and write all rows to `folder`, sorted.

    Of the messages of an id the first in the order of the input is kept. A later one is a duplicate if its content is
    the same, else it is rejected as `duplicate_id`. Kept rows are in the order of the stream: by event time, nulls
    first, then by the bytes of the id.

    Of a stream of objects only an id that a row has beside its object's is of one row: any other row is a version. Its
    kept rows are by event time, then in the order of the input. A version that ends by time has its deletion among
    them, unless another version of its object has an earlier time: before what has that time, but behind the version.
    None is behind the last row of the input.

    Parameters
    ----------
    cleaned : DataFrame
        Of `clean.clean_rows`.
    folder : str
    id_column : str
        What the column of ids is called in the input.
    objects : bool
        The stream is one of objects.
    """
    # rejected rows have no id, and would be one large group
    alone = F.col("reason").isNotNull()
    if objects:
        made = F.col("message_id") == F.lower(F.hex("content"))
        alone = alone | (F.col("message_id") == F.col("row.object_id")) | made
    group = "message_id", F.when(alone, F.col("row_id"))
    by_id = Window.partitionBy(*group).orderBy("row_id")
    is_first, same = F.row_number().over(by_id) == 1, F.col("content") == F.first("content").over(by_id)
    verdict = F.when(F.col("reason").isNotNull(), REJECTED).when(is_first, KEPT).when(same, DUPLICATE)
    # Moved even where one task cleans all: a sort into several partitions samples its input, and would clean it twice.
    judged = cleaned.repartition(*group).withColumn("verdict", verdict.otherwise(REJECTED))
    judged = _with_ends(judged) if objects else judged.withColumn("is_end", F.lit(False))
    time, name = (F.when(F.col("verdict") == KEPT, F.col(one)) for one in ("event_time_us", "message_id"))
    described = F.to_json(F.struct(F.col("message_id").alias("id"), "row.lon", "row.lat", "row.text"))
    clashes = F.col("reason").isNull() & (F.col("verdict") == REJECTED)
    clash = F.when(clashes, F.substring(described, 1, MAX_ORIGINAL_CHARACTERS)).alias("clash")
    at_fault = F.to_json(F.struct(F.lit(id_column).alias("column"), F.col("message_id").alias("value")))
    fault = F.when(clashes, at_fault).alias("fault")
    then = ["is_late", "row_id", "is_end"] if objects else [name, "row_id"]
    ordered = judged.orderBy("verdict", time.asc_nulls_first(), *then).select("verdict", clash, fault, "row", "is_end")

    def write(batches: Batches) -> Iterator[dict[str, Any]]:
        path = str(Path(folder) / f"part-{TaskContext.get().partitionId():05d}")  # type: ignore[union-attr]
        for number, part in cut(batches, lambda batch: batch.column("verdict").to_numpy()):
            yield {"verdict": number, **_WRITERS[number](part, path)}

    results = results_of(ordered, write)
    kept, duplicates, rejected = ([one for one in results if one["verdict"] == verdict] for verdict in range(3))
    for one in reversed(kept):  # what ends behind the last row of the input has not ended yet
        one["rows"] -= one["behind"]
        one["ends"] -= one["behind"]
        if one["rows"]:
            break
    chunks: Counter[int] = Counter()
    reasons: dict[str, tuple[int, list]] = {}
    for one in rejected:
        chunks.update(dict(one["chunks"]))
        for reason, (rows, first) in one["reasons"].items():
            before = reasons.get(reason, (0, first))
            reasons[reason] = before[0] + rows, before[1]
    ends = [0, *accumulate(chunks.values())]
    return Ordered(
        OrderedRows([(one["path"], one["rows"]) for one in kept]),
        OrderedRows([(one["path"], one["rows"]) for one in rejected]),
        sum(one["untimed"] for one in kept),
        sum(one["rows"] for one in duplicates),
        sum(one["ends"] for one in kept),
        [one["terms"] for one in kept],
        reasons,
        [original for one in rejected for original in one["broken"]],
        list(zip(chunks, ends, ends[1:], strict=False)),
    )


def _with_ends(judged: DataFrame) -> DataFrame:
    """The rows with deletions of objects that end by time, for which `is_end`; `is_late` orders rows of one time."""
    kept, since = F.col("verdict") == KEPT, F.coalesce("event_time_us", F.lit(FIRST_US - 1))
    by_object = Window.partitionBy(F.when(kept, F.col("row.object_id")), F.when(~kept, F.col("row_id")))
    following = F.lead(since).over(by_object.orderBy(since, "row_id"))
    expires = kept & (F.col("row.op") != DELETE) & F.col("row.expires_us").isNotNull()
    end = F.when(expires, F.greatest("row.expires_us", since))
    judged = judged.withColumn("end_us", F.when(following.isNull() | (following >= end), end))
    both = F.when(F.col("end_us").isNull(), F.array(F.lit(False))).otherwise(F.array(F.lit(False), F.lit(True)))
    judged = judged.select("*", F.explode(both).alias("is_end"))
    is_late = ~F.col("is_end") | (F.col("end_us") == since)
    nothing, nowhere = F.array().cast("array<string>"), F.lit(float("nan"))
    numbers = F.array().cast("array<int>")
    values = {name: F.lit(None) for name in judged.select("row.*").columns if name not in _OF_AN_END}
    values |= {"message_id": F.md5(F.concat_ws("\0", "row.object_id", F.col("row_id").cast("string")))}
    values |= {"lon": nowhere, "lat": nowhere, "event_time_us": F.col("end_us"), "text": F.lit(""), "op": F.lit(DELETE)}
    values |= {"terms": nothing, "counts": numbers, "word_order": numbers, "bad_time": F.lit(False), "misfits": nothing}
    row = F.col("row")
    for name, value in values.items():
        row = row.withField(name, F.when(F.col("is_end"), value).otherwise(F.col(f"row.{name}")))
    time = F.when(F.col("is_end"), F.col("end_us")).otherwise(F.col("event_time_us"))
    return judged.withColumns({"is_late": is_late, "row": row, "event_time_us": time})


#: Columns that the deletion of an object that ends by time has from the version that it ends.
_OF_AN_END = ("row_id", "object_id")


def _keep(batches: Batches, path: str) -> dict[str, Any]:
    """Write kept rows, and the counts of their terms; `behind`: rows at the end that were made."""
    rows = untimed = ends = behind = 0

    def messages() -> Batches:
        nonlocal ends, behind
        for batch in batches:
            read = np.flatnonzero(~batch.column("is_end").to_numpy(zero_copy_only=False))
            ends += batch.num_rows - read.shape[0]
            behind = batch.num_rows - 1 - int(read[-1]) if read.shape[0] else behind + batch.num_rows
            yield pa.RecordBatch.from_struct_array(batch.column("row"))

    def counts() -> Batches:
        nonlocal rows, untimed
        for batch in _saved(messages(), f"{path}-kept.parquet"):
            rows += batch.num_rows
            untimed += batch.column("event_time_us").null_count
            yield count_terms(batch)

    for _ in _saved(counts(), f"{path}-terms.parquet"):
        pass
    made = {"ends": ends, "behind": behind}
    return {"path": f"{path}-kept.parquet", "rows": rows, "untimed": untimed, "terms": f"{path}-terms.parquet", **made}


def count_terms(messages: pa.RecordBatch) -> pa.RecordBatch:
    """`term`, `document_frequency` and `collection_count` of messages: `terms`, distinct within each, and `counts`.

    A message that has a term for matching alone, with the count 0, is in neither.
    """
    terms: Any = messages.column("terms")
    counts: Any = messages.column("counts")
    distinct = terms.flatten().dictionary_encode()
    which, number = distinct.indices.to_numpy(), len(distinct.dictionary)
    repeats = counts.flatten().to_numpy()
    collected = np.bincount(which, repeats, number).astype(np.int64)
    columns = [distinct.dictionary, np.bincount(which[repeats > 0], minlength=number), collected]
    return pa.RecordBatch.from_arrays(list(map(pa.array, columns)), list(TERM_COUNTS))


def _pass_over(batches: Batches, _: str) -> dict[str, Any]:
    return {"rows": sum(batch.num_rows for batch in batches)}


def _reject(batches: Batches, path: str) -> dict[str, Any]:
    """Write rejected rows, and count their reasons and the rows of their output files."""
    counts: Counter[str] = Counter()
    chunks: Counter[int] = Counter()
    first: dict[str, list] = {}
    broken: list[str] = []
    for batch in _saved(map(_rejected, batches), f"{path}-rejected.parquet"):
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            row_id, reason, original, fault = row
            counts[reason] += 1
            first.setdefault(reason, [row_id, original, fault])
            line = row_id & ((1 << LINE_BITS) - 1)
            chunks[row_id - line + line // REJECT_LINES_PER_FILE] += 1
            if reason == "broken_file":
                broken.append(original)
    return {
        "path": f"{path}-rejected.parquet",
        "rows": counts.total(),
        "reasons": {reason: [rows, first[reason]] for reason, rows in counts.items()},
        "chunks": list(chunks.items()),
        "broken": broken,
    }


def _rejected(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The columns `REJECTED_COLUMNS`; those of a message whose id has other content are made of it."""
    rows = pa.RecordBatch.from_struct_array(batch.column("row"))
    pairs = ("original", "clash"), ("fault", "fault")
    made = [pc.coalesce(rows.column(own), batch.column(clash)) for own, clash in pairs]  # type: ignore[attr-defined]
    columns = [rows.column("row_id"), rows.column("reason").fill_null("duplicate_id"), *made]
    return pa.RecordBatch.from_arrays(columns, REJECTED_COLUMNS)


_WRITERS = {KEPT: _keep, DUPLICATE: _pass_over, REJECTED: _reject}


def _saved(batches: Batches, path: str) -> Batches:
    """Write batches, of which there is one at least, to a file as they pass."""
    first = next(batches)
    with (
        replacing(Path(path)) as unfinished,
        pq.ParquetWriter(unfinished, first.schema, compression="snappy", write_statistics=False) as writer,
    ):
        for batch in chain((first,), batches):
            writer.write_batch(batch)
            yield batch


def cut(batches: Batches, key_of: Callable[[pa.RecordBatch], np.ndarray]) -> Iterator[tuple[int, Batches]]:
    """Split batches whose rows are sorted by an integer key into one iterator for each value of the key.

    The caller must exhaust each iterator before it takes the next, as with `itertools.groupby`.
    """
    waiting: list[pa.RecordBatch] = []

    def refill() -> bool:
        while not waiting:
            batch = next(batches, None)
            if batch is None:
                return False
            if batch.num_rows:
                waiting.append(batch)
        return True

    def group(key: int) -> Batches:
        while refill():
            batch = waiting.pop()
            same = int(np.searchsorted(key_of(batch), key, side="right"))
            if same < batch.num_rows:
                waiting.append(batch.slice(same))
            if same == 0:
                return
            yield batch.slice(0, same)

    while refill():
        key = int(key_of(waiting[-1])[0])
        yield key, group(key)
