"""`skyray feed`: raw messages into a feed by Spark, as they come, for a stream that runs."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import fields
from time import monotonic
from typing import Annotated, Any

import typer

from gateway.commands.etl import SHARED, called
from gateway.commands.etl import SHOWN as CLEANING_SHOWN
from gateway.shell.interrupts import draining
from gateway.shell.options import Command, Defined, Json, example, of_signature, shares
from gateway.shell.terminal import LINE_S, Terminal, cell, table
from matching.extras import require
from spark_etl.feed_options import CLEANING, FeedOptions
from spark_etl.options import EtlOptions

#: Options that the help page shows.
SHOWN = (*("out", "stream", "checkpoint", "format", "option", "packages", "every", "files", "once"), *CLEANING_SHOWN)

app = typer.Typer()


_OPTIONS = (
    *of_signature(FeedOptions, called),
    *(one for one in of_signature(EtlOptions, called) if one.name in CLEANING),
)


@app.command(
    cls=Command,
    epilog=example("skyray feed incoming --out feed; and beside it: skyray live --from feed:feed --out runs/live"),
)
@shares(*SHARED, shown=SHOWN)
def feed(
    options: Annotated[dict[str, Any], Defined(_OPTIONS)],
    raw: Annotated[
        list[str] | None,
        typer.Argument(metavar="[IN]...", help="Folders or patterns of files: JSON, CSV, Parquet; new ones are taken."),
    ] = None,
    json: Json = False,
) -> int:
    """Clean raw messages as they come, and feed them to a running stream with Spark.

    New files of the folders are taken within seconds, or rows of another streaming source of Spark (--format kafka
    --option kafka.bootstrap.servers=HOST:PORT --option subscribe=TOPIC; --format nats --option
    servers=nats://HOST:PORT --option stream=STREAM). Write files elsewhere and move them in: a file is read once, as it
    is when it is seen. Rows are cleaned as by skyray etl, with the same reasons for rejected ones, which are in
    OUT/STREAM/rejected. skyray live and skyray serve read the feed with --from feed:OUT. Each row is in it once,
    whatever is killed: the same command goes on where it was. It runs until Ctrl-C.
    """
    require("spark", "the feed")
    if options.get("format") == "nats":
        require("nats", "--format nats")
    own = {one.name for one in fields(FeedOptions)}
    cleaning: dict[str, Any] = {name: value for name, value in options.items() if name not in own}
    given: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in options.items() if name in own
    }
    cleaning["attribute"] = tuple(cleaning.get("attribute", ()))
    etl = EtlOptions(inputs=tuple(raw or ()), **cleaning)
    found = FeedOptions(etl=etl, **given)
    found.check()
    terminal = Terminal(json)
    totals = run_feed_shown(found, terminal.line)
    answer = {
        "batches": totals.batches,
        "messages": totals.rows,
        "rejected": sum(totals.rejected.values()),
        "rejected_by_reason": dict(sorted(totals.rejected.items())),
        "out": found.out,
        "sink": found.sink,
    }
    terminal.answer(answer, lambda out: _print(out, answer))
    return 0


def run_feed_shown(options: Any, line: Callable[[str], None]) -> Any:
    """Run the feed with a line when it begins, and one for the batches of some seconds; returns its totals."""
    from spark_etl.stream import run_feed

    # as in `etl.py`: an interrupt cuts the connection to Java
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(lambda record: "py4j" not in record.pathname)
    progress = _Progress(line)
    line("feed: starting Spark")

    with draining() as stopping:
        begun = False

        def begin(batches: int) -> None:
            nonlocal begun
            begun = True  # from here on the first interrupt ends it in order
            named = ", ".join(options.etl.inputs) or options.format
            earlier = f", behind {batches:,} batches" if batches else ""
            line(f"feed: reads {named} into {options.out}, sink {options.sink}{earlier}")

        totals = run_feed(options, progress.add, lambda: begun and stopping(), begin)
    progress.flush()
    return totals


class _Progress:
    """Lines about committed batches, `LINE_S` apart."""

    def __init__(self, line: Callable[[str], None]):
        self._line = line
        self._since_s = self._said_s = monotonic()
        self._batches = self._rows = 0
        self._rejected: dict[str, int] = {}
        self._last = -1

    def add(self, fed: Any) -> None:
        self._batches, self._rows, self._last = self._batches + 1, self._rows + fed.rows, fed.batch
        for reason, count in fed.rejected.items():
            self._rejected[reason] = self._rejected.get(reason, 0) + count
        if monotonic() - self._said_s >= LINE_S:
            self.flush()

    def flush(self) -> None:
        if not self._batches:
            return
        now_s = monotonic()
        rate = self._rows / max(now_s - self._since_s, 0.001)
        rejected = f"; rejected {cell(self._rejected)}" if self._rejected else ""
        self._line(
            f"feed: {self._batches:,} batches up to {self._last:,}, {self._rows:,} messages, {rate:,.0f}/s{rejected}"
        )
        self._since_s = self._said_s = now_s
        self._batches, self._rows, self._rejected = 0, 0, {}


def _print(out: Any, answer: Mapping[str, Any]) -> None:
    rows = [(name, answer[name]) for name in ("batches", "messages")]
    rows += [(f"rejected: {reason}", count) for reason, count in answer["rejected_by_reason"].items()]
    out.print(table(("fed", "count"), rows, right=(1,)))
    if answer["rejected"]:
        out.print(f"rejected rows are in {cell(answer['out'])}/{cell(answer['sink'])}/rejected", markup=False)
