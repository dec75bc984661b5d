"""A stream of raw messages into a feed: Spark's Structured Streaming, cleaned as the batch ETL cleans, each row once.

`skyray feed` and `deploy/feed_job.py` call `run_feed`. Files are listed by Spark, which remembers which it has read,
and read by `spark_etl.feed_rows` in its Python workers as the ETL reads them; rows of other sources come from Spark.
`spark_etl.feed_sink` commits batches to the feed, which `gateway.sources.folder` reads into a running topology.
"""

import fcntl
import os
import shutil
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from matching.errors import ConfigError, EngineError
from spark_etl.clean import literal
from spark_etl.feed_folder import FeedSink
from spark_etl.feed_options import FeedOptions
from spark_etl.feed_rows import FILES, rows_of
from spark_etl.feed_sink import FeedDataSource, check_checkpoint, cleaning_option
from spark_etl.nats_source import NatsDataSource
from spark_etl.session import spark_session
from spark_etl.sources import NAMES_OF_DATA

#: Seconds between two checks of the feed.
_LOOK_S = 0.2
#: Spark would pass over files a week older than the newest, and a file that is not read is a message lost.
_ANY_AGE = "36500d"
_FILE_SCHEMA = "path string, modificationTime timestamp, length long, content binary"


class Fed(NamedTuple):
    """A committed batch: its number, messages, and rejected rows by reason code."""

    batch: int
    rows: int
    rejected: dict[str, int]


@dataclass
class FeedTotals:
    """What this run of the job has committed."""

    batches: int = 0
    rows: int = 0
    rejected: Counter[str] = field(default_factory=Counter)

    def add(self, fed: Fed) -> None:
        """Count a batch."""
        self.batches += 1
        self.rows += fed.rows
        self.rejected.update(fed.rejected)


def run_feed(
    options: FeedOptions,
    on_batch: Callable[[Fed], None] = lambda fed: None,
    stopping: Callable[[], bool] = lambda: False,
    on_start: Callable[[int], None] = lambda batches: None,
    spark: SparkSession | None = None,
) -> FeedTotals:
    """Stream into the feed until `stopping`, or with `once` until what is there is taken.

    Parameters
    ----------
    options : FeedOptions
    on_batch : callable
        Gets each batch that is committed, in order.
    stopping : callable
        Asked a few times a second.
    on_start : callable
        Called once the query runs, with the number of batches of earlier runs.
    spark : SparkSession, optional
        Session to use and leave running; by default a Java process of this run.

    Raises
    ------
    ConfigError
        For a setting that cannot be used, a sink that another checkpoint or process writes, missing Java.
    EngineError
        If the query fails; the same call continues after the last committed batch.
    """
    options.check()
    sink = FeedSink(options.folder(), options.sink)
    with ExitStack() as stack:
        stack.enter_context(_only_one(sink))
        check_checkpoint(sink, options.checkpoint_folder())
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
        scratch = sink.path / ".spark"
        if spark is None:
            shutil.rmtree(scratch, ignore_errors=True)  # of a process that was killed
            more = {"spark.jars.packages": options.packages} if options.packages else {}
            spark = stack.enter_context(spark_session(options.etl, scratch, short=options.once, more=more))
        before = sink.batches()
        try:
            query = begin_feed(spark, options)
            on_start(before)
            totals = _watch(query, sink, before, on_batch, stopping)
        except (PySparkException, Py4JError) as error:
            raise _failure(error, scratch / "spark.log") from error
        stack.callback(shutil.rmtree, scratch, ignore_errors=True)  # only where all went well: it has Spark's log
    return totals


def begin_feed(spark: SparkSession, options: FeedOptions) -> StreamingQuery:
    """Start the query; it runs until it is stopped, or with `once` until what is there is taken."""
    spark.dataSource.register(FeedDataSource)
    spark.dataSource.register(NatsDataSource)
    rows, kind = _input(spark, options)
    etl = replace(options.etl, input_format=options.format if options.of_files else "auto")
    writer = rows.writeStream.format("skyray").queryName(f"skyray feed {options.sink}").option("rows", kind)
    writer = writer.option("sink", options.sink).option("etl", cleaning_option(etl))
    writer = writer.option("checkpointLocation", str(options.checkpoint_folder()))
    if options.once:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{round(options.every * 1000)} milliseconds")
    return writer.start(str(options.folder()))


def _input(spark: SparkSession, options: FeedOptions) -> tuple[DataFrame, str]:
    """The rows, and what they are."""
    if options.of_files:
        streams = (_files(spark, given, options.files) for given in options.etl.inputs)
        return reduce(DataFrame.union, streams), FILES
    reader = spark.readStream.format(options.format).options(**options.source_options())
    rows = reader.load(*map(str, options.etl.inputs))
    return rows, rows_of({name: kind for name, kind in rows.dtypes})


def _files(spark: SparkSession, given: str, most: int) -> DataFrame:
    """Names of new files; Spark opens none, since their content is not among the columns."""
    path = str(Path(given).absolute())
    reader = spark.readStream.format("binaryFile").schema(_FILE_SCHEMA)
    reader = reader.option("maxFilesPerTrigger", most).option("maxFileAge", _ANY_AGE)
    if not Path(path).exists():
        return reader.load(path).select("path", "modificationTime")  # a pattern
    found = reader.option("recursiveFileLookup", True).load(literal(path)).select("path", "modificationTime")
    return found.where(F.col("path").rlike(NAMES_OF_DATA)) if Path(path).is_dir() else found


def _watch(
    query: StreamingQuery,
    sink: FeedSink,
    before: int,
    on_batch: Callable[[Fed], None],
    stopping: Callable[[], bool],
) -> FeedTotals:
    totals, known = FeedTotals(), before
    while True:
        over = not query.isActive
        count = sink.batches(known)
        for number in range(known, count):
            batch = sink.batch(number)
            assert batch is not None, "it was counted"
            fed = Fed(number, batch.rows, dict(batch.rejected))
            totals.add(fed)
            on_batch(fed)
        known = count
        if over:
            break
        if stopping():
            query.stop()
            continue
        time.sleep(_LOOK_S)
    if (failed := query.exception()) is not None:
        raise failed
    return totals


@contextmanager
def _only_one(sink: FeedSink) -> Iterator[None]:
    """A lock on the sink for as long as the block lasts. Raises ConfigError if another process has it."""
    try:
        sink.path.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(sink.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise ConfigError(f"--out: {sink.path} cannot be written ({error.strerror}); choose another folder") from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(
                f"{sink.path}: another process feeds this sink now; wait for its end, or name another --stream"
            ) from None
        yield
    finally:
        os.close(descriptor)


def _failure(error: Any, log: Path) -> Exception:
    """The error of a query, for people: our own by its words, else the informative line of Spark's."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    for line in reversed(lines):
        kind, colon, words = line.partition(": ")
        if colon and kind.rpartition(".")[2] in ("ConfigError", "InputError"):
            return ConfigError(words)
    errors = [line for line in lines if "Error" in line and not line.startswith(("at ", "File ", "Traceback"))]
    where = f"; Spark's log is {log}" if log.exists() else ""
    reason = (errors or lines or ["no reason given"])[-1 if errors else 0]
    return EngineError(
        f"the stream has failed: {reason}{where}. What is committed stays, and the same command goes on behind it"
    )
