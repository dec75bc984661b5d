"""`skyray live`: messages and subscriptions by pipe, updates by pipe.

`gateway/commands/live.py` -> `gateway/live/pipe.py` (lines and batches) -> `gateway/live/write_ahead_log.py` (the log)
-> `topology/live.py` -> `spouts/live.py` -> the bolts of any run -> `bolts/publishing.py` ->
`gateway/serve/releasing.py` (boundaries, written as lines by `gateway/serve/released.py`).
"""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.commands import stream_options as stream
from gateway.commands.delivering import Deliveries
from gateway.commands.run import with_metrics
from gateway.commands.stream_options import READ, SinkPatience, UpdateSinks
from gateway.live.in_flight import InFlight
from gateway.live.opening import open_stream
from gateway.live.pipe import Pipe, to_standard_output
from gateway.live.recording import record
from gateway.live.status import read_status
from gateway.serve.released import LineWriter
from gateway.serve.releasing import MOST_PENDING_BYTES, Releaser
from gateway.shell.interrupts import draining
from gateway.shell.options import Command, Defined, MetricsPort, MetricsTargets, example, shares
from gateway.shell.terminal import Terminal, as_json, cell, shown, writing_to
from gateway.sources.feed import Feed, into_pipe
from gateway.sources.uris import source_of
from matching.errors import ConfigError, EngineError
from topology.core.places import require_local
from topology.folder import FINISHED, INTERRUPTED
from topology.given import Given
from topology.live import LiveRun
from topology.preparing import Preparing
from topology.settings import LIVE_CREDITS
from topology.warmup import WORDS

app = typer.Typer()


@app.command(
    cls=Command,
    epilog=example("tail -F posts.jsonl | skyray live --vocabulary etl --subscriptions mine.jsonl > updates.jsonl"),
)
@shares("columns", *READ, shown=(*stream.SHOWN, "rejects", "status", "checkpoint_every"))
def live(
    settings: Annotated[Given, Defined(stream.live_settings())],
    columns: Annotated[Given, Defined(stream.column_options())],
    stream_options: Annotated[Given, Defined(stream.stream_options())],
    to: UpdateSinks = None,
    to_wait_s: SinkPatience = 30.0,
    rejects: Annotated[Path | None, typer.Option(help="File for refused lines; standard error otherwise.")] = None,
    status: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Print the state of such a folder and its next line, and exit.")
    ] = None,
    metrics_port: MetricsPort = None,
    metrics_targets: MetricsTargets = None,
    json: Annotated[
        bool, typer.Option("--json", help="Figures at the end as JSON on standard error; with --status, the answer.")
    ] = False,
) -> int:
    """Match messages as they come on standard input, and write updates to standard output at once.

    A line is a message (text, lon, lat, and if need be id and time), {"subscribe": {...}} or {"unsubscribe": "id"}. A
    change takes effect at its place in the stream. A bad line is refused with its reason; the others are matched. Words
    that are new get a weight when they first come, and keep it. With --out no accepted line is lost by a crash, and
    {"durable": {"line": N}} is the last one on disk; without --out nothing is kept. With --from the lines are
    messages of a broker, each read once, until Ctrl-C. With --to all updates go to a database or a broker as well, with
    each checkpoint, and the command ends once they are there. With --status nothing is read or matched.
    """
    if status is not None:
        require_local(status=status)
        return _print_status(status, json)
    offered = stream.StreamOptions(**stream_options)
    out = offered.out
    require_local(out=out, vocabulary=offered.vocabulary)
    if offered.from_ and out is None:
        raise ConfigError("--from: how far it is read is in the log of a folder; name one with --out")
    if to and out is None:
        raise ConfigError("--to: updates are delivered from the parts of a folder; name one with --out")
    if to and settings.get("checkpoint_every") == 0:
        raise ConfigError("--checkpoint-every 0: --to delivers what checkpoints commit; leave it out")
    source = source_of(offered.from_) if offered.from_ else None
    deliveries = Deliveries(to or (), lambda line: stream.say(f"live: {line}"))
    terminal = Terminal()
    linger_s = (50.0 if offered.linger_ms is None else offered.linger_ms) / 1000.0
    write = to_standard_output()
    with ExitStack() as stack:
        refuse = stack.enter_context(_refusing(rejects))
        folder = out or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="skyray-live-")))
        # without --out nothing can be resumed: a failure ends the run
        passing = {} if out is not None else {"checkpoint_every": 0.0, "sink": "count"}
        starting = stack.enter_context(ExitStack())
        step = starting.enter_context(terminal.steps("skyray live"))
        step("loading words and subscriptions")
        durable = None if out is None else _durable(write)
        given = (
            folder,
            settings,
            stream.named_columns(columns),
            offered.vocabulary,
            offered.attribute,
            offered.stem,
            durable,
        )
        reading = {"strict": offered.strict_attributes, "numbers": offered.numbers}
        reading |= {"fold_accents": offered.fold_accents}
        config, admission, mapping, wal, earlier = open_stream(stack, *given, **reading, **passing)
        executor = config.executor
        in_flight = InFlight(config.credits or LIVE_CREDITS)
        lines = LineWriter(write, wal.look_up)
        releaser = Releaser(in_flight, wal.ends, lambda: wal.durable_through, lines.deliver, executor == "local", True)
        in_flight.has_room = lambda: releaser.pending_bytes < MOST_PENDING_BYTES
        stack.enter_context(releaser)
        wal.settle = releaser.settle
        live = {"live": wal.settings}
        run = LiveRun(config, wal.run, str(wal.log), releaser.address, live, earlier, lambda: wal.size_bytes)
        releaser.resume(run.resumes_after())
        preparing = stack.enter_context(Preparing.of(config))
        pipe = Pipe(admission, wal, refuse, in_flight, offered.batch, linger_s, mapping, preparing)
        loaded = {"subscriptions": 0, "rejected": 0}
        if earlier:
            in_flight.add(wal.next_seq - 1, [])  # updates of the logged messages come first
        else:
            loaded = stream.subscribe_all(pipe.batching, offered.subscriptions)
        step("starting Ray" if executor == "ray" else "loading kernels")
        stopping = stack.enter_context(draining())
        feed = None if source is None else Feed(source, wal, into_pipe(pipe, stopping))

        def begin() -> None:
            starting.close()
            stack.callback(deliveries.close)
            deliveries.begin_parts(folder, run.identity, wal.ends, wal.look_up)
            if earlier:
                place = "the last checkpoint" if run.from_checkpoint else "the first of them"
                stream.say(
                    f"live: resumes after {wal.next_seq - len(wal.marks):,} messages, with their subscriptions; "
                    f"matches from {place} on"
                )
            if out is not None and feed is None:
                stream.say(f"live: the next line of input is line {wal.line + 1}")
            named = "standard input" if feed is None else feed.name
            stream.say(f"live: {len(admission.active):,} subscriptions; reads {named}")
            if feed is not None:
                pipe.start(None, stopping, wal.line)
                feed.begin()
                stack.callback(feed.close)
                return
            # not sys.stdin: Python would wait at exit for the thread that reads it
            pipe.start(open(0, "rb", closefd=False), stopping, wal.line)  # noqa: SIM115

        def over() -> bool:
            """Whether the input has ended and all its updates are written; the first call starts the pipe."""
            if not pipe.started:
                begin()
            for part in (feed, pipe, releaser):
                if part is not None and part.failure is not None:
                    raise part.failure
            deliveries.check()
            return pipe.ended and releaser.reached(run.incarnation) >= wal.next_seq - 1

        preparing.wait([WORDS, *(kind.name for kind in admission.kinds_met)])
        preparing.leave_a_core()
        stopping()  # from here on the first interrupt drains

        def own(snapshot: Any) -> Iterator[Any]:
            return live_families(wal, admission, pipe, releaser, feed)

        on_progress = stack.enter_context(with_metrics((metrics_port, metrics_targets), "live", None, folder, own))
        report = run.run(over, lambda: wal.next_seq, on_progress)
        figures = _figures(pipe, admission, releaser, report, loaded, len(wal.marks))
        figures |= {} if feed is None else {"source": feed.figures()}
        if out is not None:
            try:
                record(wal, admission, INTERRUPTED if stopping() else FINISHED, report)
            except EngineError as error:
                run.fail(error)
                raise
            figures |= {"digest": report["digest"], "out": str(out)}
        stream.say(as_json(figures) if json else f"live: {_in_words(figures)}")
        deliveries.end("the same command", to_wait_s)
    return 0


def live_families(wal: Any, admission: Any, pipe: Any, releaser: Any, feed: Any) -> Iterator[Any]:
    """Figures of a live stream for Prometheus, under the names of those of `skyray serve`."""
    from gateway.metrics import stream_families

    latency, figures = releaser.in_flight.latency, None if feed is None else feed.figures()
    active, refused, misfits = len(admission.active), dict(pipe.refused), dict(admission.misfits)
    yield from stream_families(wal, pipe.batches, refused, misfits, active, releaser.updates, latency, figures)


def _print_status(folder: Path, json: bool) -> int:
    found = read_status(folder)

    def render(out: Any) -> None:
        for name, value in found.items():  # no thousands separators: scripts read the figures
            if value is not None:
                out.print(f"{name.replace('_', ' '):<9}  {shown(str(value))}", markup=False, soft_wrap=True)

    Terminal(json).answer(found, render)
    return 0


def _durable(write: Callable[[bytes], None]) -> Callable[[int], None]:
    return lambda line: write(b'{"durable": {"line": %d}}\n' % line)


@contextmanager
def _refusing(path: Path | None) -> Iterator[Any]:
    """The function that reports refused lines."""
    if path is None:
        yield lambda row: stream.say(_said(row))
        return
    with writing_to(path), open(path, "a", encoding="utf-8") as file:

        def refuse(row: dict[str, Any]) -> None:
            with writing_to(path):
                file.write(as_json(row) + "\n")
                file.flush()

        yield refuse


def _said(row: dict[str, Any]) -> str:
    """A refused line, or a message that was taken without some values, in words."""
    if "reason" in row:
        return f"{_place(row)} refused, {row['reason']}: {shown(row['what'])}: {shown(row['row'])}"
    without = ", ".join(f"{one['column']} ({shown(str(one['value']))} is {one['why']})" for one in row["warnings"])
    return f"{_place(row)} taken without {shown(without)}: {shown(row['row'])}"


def _place(row: dict[str, Any]) -> str:
    if "source" in row:
        return f"{row['source']}, partition {row['partition']}, offset {row['offset']}"
    return f"line {row['line']}"


def _figures(
    pipe: Any, admission: Any, releaser: Any, report: dict[str, Any], loaded: dict[str, int], marks: int
) -> dict[str, Any]:
    latency = releaser.in_flight.latency
    return {
        "lines": pipe.lines,
        "messages": report["spouts"]["messages"]["messages"] - marks,
        "clock_marks": marks,
        "batches": pipe.batches,
        "updates": releaser.updates,
        "subscriptions": len(admission.active),
        "refused": dict(pipe.refused),
        "refused_of_files": loaded["rejected"],
        "misfits": dict(admission.misfits),
        "set_aside": dict(admission.set_aside),
        "unknown_words": report["spouts"]["messages"]["unknown_words"],
        "p50_ms": _ms(latency.quantile(0.5)),
        "p99_ms": _ms(latency.quantile(0.99)),
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 1)


def _in_words(figures: dict[str, Any]) -> str:
    parts = [f"{figures[name]:,} {name}" for name in ("lines", "messages", "batches", "updates", "subscriptions")]
    refused = sum(figures["refused"].values()) + figures["refused_of_files"]
    if refused:
        parts.append(f"refused {refused:,} ({cell(figures['refused']) or 'of files'})")
    if figures["misfits"]:
        parts.append(f"values that do not fit their attribute: {cell(figures['misfits'])}")
    if figures["set_aside"]:
        parts.append(f"set aside where times matter: {cell(figures['set_aside'])}")
    if figures["unknown_words"]:
        parts.append(f"{figures['unknown_words']:,} new words that were not admitted")
    if figures["p50_ms"] is not None:
        parts.append(f"line in to line out p50 {figures['p50_ms']:,} ms, p99 {figures['p99_ms']:,} ms")
    if "digest" in figures:
        parts.append(f"digest {figures['digest']}; everything is in {cell(figures['out'])}")
    return "; ".join(parts)
