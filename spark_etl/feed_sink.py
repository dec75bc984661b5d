"""`format("skyray")` of Spark: a sink of Structured Streaming that feeds a running topology, and a source of what a run
has written.

    spark.dataSource.register(FeedDataSource)
    rows.writeStream.format("skyray").option("checkpointLocation", "checkpoint").option("sink", "posts").start("feed")
    spark.read.format("skyray").option("table", "updates").load("runs/first")

Each batch of a stream is in the feed exactly once. Its rows are cleaned as `skyray etl` cleans them
(`spark_etl.feed_rows`), and rejected ones are counted by reason code in the commit of their batch.
"""

import json
from collections import Counter
from collections.abc import Iterator, MutableMapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from matching.errors import ConfigError
from spark_etl.feed_folder import FeedSink, LineFile, RowFile
from spark_etl.feed_rows import (
    COLUMNS,
    FILES,
    VALUES,
    FeedCleaner,
    Found,
    Rejected,
    file_path,
    plain_path,
    with_found_columns,
)
from spark_etl.options import EtlOptions
from spark_etl.run_tables import RunTable, TableReader

#: Fields of `EtlOptions` that may be options of the sink, beside the columns of a message.
_PLAIN = ("time_format", "world", "geometry")


class FeedDataSource(DataSource):
    """The data source.

    Options of the sink are `path`, `sink`, `checkpointLocation`; names of columns (`text`, `lat`, `lon`, `time`, `id`),
    `time_format`, `world` and `geometry`, as of `skyray etl`; and `rows`: `columns` (the default), `values` (lines of
    JSON in the column `value`) or `files` (paths in the column `path`). Options of the source are `path` and `table`.
    """

    @classmethod
    def name(cls) -> str:
        return "skyray"

    def schema(self) -> StructType:
        return RunTable.of(self.options).schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        return TableReader(RunTable.of(self.options))

    def streamWriter(self, schema: StructType, overwrite: bool) -> "FeedWriter":
        return FeedWriter(self.options, schema.names)


@dataclass
class _Written(WriterCommitMessage):
    """Files that a task has written, each with a sort key among the files of all tasks, and its rejected rows."""

    files: list[tuple[tuple[Any, ...], RowFile]]
    rejected: dict[str, int]
    rejects: str


class FeedWriter(DataSourceStreamArrowWriter):
    """Writes the rows of tasks, and commits batches.

    Raises
    ------
    ConfigError
        If an option is missing, a column cannot be found, or another checkpoint has written to this sink.
    """

    def __init__(self, options: MutableMapping[str, str], names: list[str]):
        for name, example in (("path", "feed"), ("sink", "posts"), ("checkpointLocation", "checkpoint")):
            if not options.get(name):
                raise ConfigError(f"skyray: needs the option {name}, such as .option({name!r}, {example!r})")
        self._rows = options.get("rows", COLUMNS)
        if self._rows not in (COLUMNS, VALUES, FILES):
            raise ConfigError(f"skyray: option rows {self._rows!r}: choose one of {COLUMNS}, {VALUES}, {FILES}")
        self._options = _etl_options(options)
        if self._rows == COLUMNS:
            self._options = with_found_columns(names, self._options)
        self._sink = FeedSink(local_folder(options["path"]), options["sink"])
        self._sink.claim(query_of(local_folder(options["checkpointLocation"])))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        cleaner, rejects = FeedCleaner(self._options), self._sink.rejects_file()
        rejected: Counter[str] = Counter()
        files = []
        try:
            for order, found in self._pieces(cleaner, iterator):
                files.append((order, self._sink.write_rows(_kept(found, rejected, rejects))))
        finally:
            rejects.close()
        return _Written(files, rejected, rejects.name)

    def commit(self, messages: list[Any], batchId: int) -> None:
        written = [one for one in messages if one is not None]
        # a stable sort: files of the input in their order; where tasks have no order, Spark's order of them stays
        files = [file for _, file in sorted((one for each in written for one in each.files), key=lambda one: one[0])]
        rejected = sum((Counter(one.rejected) for one in written), Counter())
        rejects = [one.rejects for one in written]
        if not self._sink.commit(batchId, files, rejected, rejects):
            self._sink.remove(files, rejects)

    def abort(self, messages: list[Any], batchId: int) -> None:
        for one in messages:
            if one is not None:
                self._sink.remove((file for _, file in one.files), [one.rejects])

    def _pieces(
        self, cleaner: FeedCleaner, batches: Iterator[pa.RecordBatch]
    ) -> Iterator[tuple[tuple[Any, ...], Iterator[Found]]]:
        """What goes to a file of its own, with what orders it."""
        if self._rows == FILES:
            for batch in batches:
                for row in batch.to_pylist():
                    yield (row["modificationTime"], row["path"]), cleaner.file(file_path(row["path"]))
            return
        clean = cleaner.values if self._rows == VALUES else cleaner.columns
        yield (), (found for batch in batches for found in clean(batch))


def _kept(found: Iterator[Found], rejected: Counter[str], rejects: LineFile) -> Iterator[bytes]:
    for one in found:
        if isinstance(one, Rejected):
            rejected[one.reason] += 1
            rejects.add(one.line())
        else:
            yield one


def cleaning_option(options: EtlOptions) -> str:
    """All settings of the cleaning as the value of one option of the sink, `etl`."""
    return json.dumps(asdict(options))


def _etl_options(options: MutableMapping[str, str]) -> EtlOptions:
    if given := options.get("etl"):
        fields = json.loads(given)
        return EtlOptions(**fields | {name: tuple(fields[name]) for name in ("inputs", "attribute")})
    named: dict[str, Any] = {
        f"{role}_column": options[role] for role in ("text", "lat", "lon", "time", "id") if role in options
    }
    plain: dict[str, Any] = {name: options[name] for name in _PLAIN if name in options}
    return EtlOptions(inputs=("-",), **named, **plain)


def local_folder(path: str) -> Path:
    """A folder by its path or `file:` URI. Raises ConfigError for any other."""
    plain = plain_path(path)
    if "://" in plain:
        raise ConfigError(f"skyray: {path}: must be a folder that every worker reaches by its path")
    return Path(plain).absolute()


def query_of(checkpoint: Path) -> str:
    """The id that Spark has given to the query of a checkpoint. Raises ConfigError if it cannot be read."""
    try:
        return str(json.loads((checkpoint / "metadata").read_bytes())["id"])
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"skyray: {checkpoint}: is no checkpoint of Spark that can be read here ({error})") from None


def check_checkpoint(sink: FeedSink, checkpoint: Path) -> None:
    """Check that no other checkpoint has written to this sink; Spark itself would fail after half a minute.

    Raises
    ------
    ConfigError
    """
    owner = sink.query()
    if owner is None:
        return
    if not (checkpoint / "metadata").exists():
        raise ConfigError(
            f"{sink.path}: has {sink.batches():,} batches of another checkpoint, and {checkpoint} is a fresh one, "
            "which numbers its batches from 0 again: go on with the checkpoint that wrote here (--checkpoint), or "
            "name another sink (--stream)"
        )
    sink.claim(query_of(checkpoint))


__all__ = ["FeedDataSource", "FeedWriter", "check_checkpoint", "cleaning_option", "local_folder", "query_of"]
