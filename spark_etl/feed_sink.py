"""The sink `format("skyray")` of Spark's Structured Streaming: batches for a running topology, each exactly once.

    spark.dataSource.register(FeedDataSource)
    rows.writeStream.format("skyray").option("checkpointLocation", "checkpoint").option("sink", "posts").start("feed")

Rows have the columns of a message (`matching.fields.MESSAGE_ROLES`); they are cleaned as `skyray etl` cleans them, and
rejected ones are counted by reason code in the commit of their batch. Read on in `matching.feed_folder`.
"""

import json
from collections import Counter
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import Row
from pyspark.sql.datasource import DataSource, DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from matching.errors import ConfigError
from matching.feed_folder import FeedSink, RowFile
from matching.validate import DELETE, ParsedMessage
from spark_etl.options import EtlOptions
from spark_etl.paths import picker
from spark_etl.rows import RowCleaner
from spark_etl.times import moment_of


class FeedDataSource(DataSource):
    """The data source; options are `path`, `sink`, `checkpointLocation` and `time_format`."""

    @classmethod
    def name(cls) -> str:
        return "skyray"

    def streamWriter(self, schema: StructType, overwrite: bool) -> "FeedWriter":
        return FeedWriter(self.options)


@dataclass
class _Written(WriterCommitMessage):
    """What a task has written."""

    file: RowFile
    rejected: dict[str, int]


class FeedWriter(DataSourceStreamWriter):
    """Writes the rows of tasks, and commits batches.

    Raises
    ------
    ConfigError
        If an option is missing, or another checkpoint has written to this sink.
    """

    def __init__(self, options: MutableMapping[str, str]):
        for name, example in (("path", "feed"), ("sink", "posts"), ("checkpointLocation", "checkpoint")):
            if not options.get(name):
                raise ConfigError(f"skyray: needs the option {name}, such as .option({name!r}, {example!r})")
        self._options = EtlOptions(inputs=("-",), time_format=options.get("time_format", ""))
        self._sink = FeedSink(_local(options["path"]), options["sink"])
        self._sink.claim(_query(_local(options["checkpointLocation"])))

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        rejected: Counter[str] = Counter()
        return _Written(self._sink.write_rows(self._lines(iterator, rejected)), rejected)

    def commit(self, messages: list[Any], batchId: int) -> None:
        written = [one for one in messages if one is not None]
        rejected = sum((Counter(one.rejected) for one in written), Counter())
        if not self._sink.commit(batchId, [one.file for one in written], rejected):
            self._sink.remove(one.file for one in written)

    def abort(self, messages: list[Any], batchId: int) -> None:
        self._sink.remove(one.file for one in messages if one is not None)

    def _lines(self, rows: Iterator[Row], rejected: Counter[str]) -> Iterator[bytes]:
        cleaner, pick = RowCleaner(self._options), picker(self._options.columns())
        for row in rows:
            found = cleaner.clean(pick(row.asDict(recursive=True)))
            if isinstance(found, str):
                rejected[found] += 1
            else:
                yield _line(found.message)


def _line(message: ParsedMessage) -> bytes:
    """A message with the columns of any message line."""
    time_us = message.event_time_us
    values = {
        "id": message.message_id,
        "text": message.text,
        "lon": message.lon,
        "lat": message.lat,
        **{side: getattr(message, side) for side in ("west", "south", "east", "north")},
        "time": None if time_us is None else moment_of(time_us).isoformat(),
        "object_id": message.object_id,
        "op": "delete" if message.op == DELETE else None,
    }
    return json.dumps({name: value for name, value in values.items() if value is not None}).encode()


def _local(path: str) -> Path:
    plain = path.removeprefix("file://").removeprefix("file:")
    if "://" in plain:
        raise ConfigError(f"skyray: {path}: must be a folder that every worker reaches by its path")
    return Path(plain).absolute()


def _query(checkpoint: Path) -> str:
    """The id that Spark has given to the query of a checkpoint."""
    try:
        return str(json.loads((checkpoint / "metadata").read_bytes())["id"])
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"skyray: {checkpoint}: is no checkpoint of Spark that can be read here ({error})") from None
