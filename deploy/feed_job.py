"""`skyray feed` by `spark-submit`, on a cluster's Spark, with its own settings:

    spark-submit --master yarn --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.3.0 deploy/feed_job.py \
        --out /shared/feed --format kafka --option kafka.bootstrap.servers=broker:9092 --option subscribe=posts

skyray needs to be installed for the driver's Python and the workers'; feed, checkpoint and files of the input are
folders that all of them reach by the same path. Options are those of `skyray feed` (`--help`); of master and memory
`spark-submit` decides.
"""

import argparse
import signal
import sys
import threading
from dataclasses import fields
from typing import Any, get_args, get_origin, get_type_hints

from pyspark.sql import SparkSession

from gateway.commands.etl import CALLED
from matching.errors import ConfigError, EngineError
from spark_etl.feed_options import CLEANING, FeedOptions
from spark_etl.options import EtlOptions
from spark_etl.stream import Fed, run_feed

#: Fields that name columns, by `--column`.
_COLUMNS = {
    field.name: field.name.removesuffix("_column") for field in fields(EtlOptions) if field.name.endswith("_column")
}
_COLUMNS["geometry"] = "geometry"
#: What is `spark-submit`'s own.
_SPARK = ("master", "driver_memory", "packages")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="feed_job.py", description="Clean raw messages as they come into a feed.")
    parser.add_argument("inputs", nargs="*", metavar="IN", help="folders or patterns of files")
    for owner in (FeedOptions, EtlOptions):
        hints = get_type_hints(owner, include_extras=True)
        for field in fields(owner):
            if not (owner is FeedOptions or field.name in CLEANING) or field.name in _SPARK:
                continue
            if hasattr(hints[field.name], "__metadata__") and field.name not in _COLUMNS:
                _add(parser, field.name, *get_args(hints[field.name]))
    parser.add_argument(
        "--column", action="append", default=[], metavar="ROLE=NAME", help="column of a role of messages"
    )
    return parser


def _add(parser: argparse.ArgumentParser, name: str, kind: Any, meaning: str) -> None:
    flag = f"--{CALLED.get(name, name).replace('_', '-')}"
    meaning = meaning.replace("%", "%%")
    if kind is bool:
        parser.add_argument(flag, dest=name, action="store_true", default=argparse.SUPPRESS, help=meaning)
    elif get_origin(kind) is tuple:
        parser.add_argument(flag, dest=name, action="append", default=argparse.SUPPRESS, help=meaning)
    else:
        read = kind if kind in (int, float) else str
        parser.add_argument(flag, dest=name, type=read, default=argparse.SUPPRESS, help=meaning)


def main(arguments: list[str]) -> int:
    """Feed until SIGTERM or SIGINT, or with `--once` to the end; the exit code."""
    given: dict[str, Any] = vars(_parser().parse_args(arguments))
    roles = {role: name for name, role in _COLUMNS.items()}
    for one in given.pop("column"):
        role, equals, column = one.partition("=")
        if not equals or role not in roles:
            print(f"error: --column {one}: write ROLE=NAME, of {', '.join(roles)}", file=sys.stderr)
            return ConfigError.exit_code
        given[roles[role]] = column
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    own = {field.name for field in fields(FeedOptions)} - {"etl"}
    etl = EtlOptions(**{name: value for name, value in given.items() if name not in own})
    options = FeedOptions(etl=etl, **{name: value for name, value in given.items() if name in own})
    stop = threading.Event()
    try:
        options.check()
        spark = SparkSession.builder.appName(f"skyray feed {options.sink}").getOrCreate()
        for number in (signal.SIGTERM, signal.SIGINT):  # Spark has set its own
            signal.signal(number, lambda *_: stop.set())
        totals = run_feed(options, _say, stop.is_set, spark=spark)
    except EngineError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(f"{totals.batches:,} batches, {totals.rows:,} messages, rejected {dict(totals.rejected)}")
    return 0


def _say(fed: Fed) -> None:
    print(f"batch {fed.batch:,}: {fed.rows:,} messages, rejected {fed.rejected}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
