"""Matches the lines of standard input, or the messages of a broker, for `skyray live`."""

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from gateway.commands import stream_options as stream
from gateway.commands.delivering import Deliveries
from gateway.commands.running import with_metrics
from gateway.live.in_flight import InFlight
from gateway.live.logged_changes import ActiveKinds
from gateway.live.opening import open_stream
from gateway.live.pipe import Pipe, to_standard_output
from gateway.live.recording import record
from gateway.live.retain_settings import RetainSettings
from gateway.live.retaining import Retention
from gateway.live.subscription_files import subscribe_all
from gateway.serve.garbage import Garbage
from gateway.serve.included import IncludedValues
from gateway.serve.released import LineWriter
from gateway.serve.releasing import MOST_PENDING_BYTES, Releaser
from gateway.shell.interrupts import draining, end_in_order
from gateway.shell.logs import Noted, log_kind, logging_as
from gateway.shell.terminal import Terminal, as_json, writing_to
from gateway.sources.feed import Feed, into_pipe
from gateway.sources.uris import source_of
from matching.errors import ConfigError, EngineError
from topology.core.executors.logs import driver_log
from topology.folder import FINISHED, INTERRUPTED
from topology.given import Given
from topology.live import LiveRun
from topology.preparing import Preparing
from topology.settings import LIVE_CREDITS
from topology.warmup import WORDS


def pipe_stream(
    settings: Given,
    columns: Mapping[str, str],
    offered: stream.StreamOptions,
    retained: RetainSettings,
    to: Sequence[str],
    to_wait_s: float,
    rejects: Path | None,
    metrics: tuple[int | None, Path | None],
    json: bool,
) -> int:
    """`skyray live` without `--status`; `columns` by role, `metrics` as of `running.with_metrics`."""
    out = offered.out
    if offered.from_ and out is None:
        raise ConfigError("--from: how far it is read is in the log of a folder; name one with --out")
    if to and out is None:
        raise ConfigError("--to: updates are delivered from the parts of a folder; name one with --out")
    if to and settings.get("checkpoint_every") == 0:
        raise ConfigError("--checkpoint-every 0: --to delivers what checkpoints commit; leave it out")
    if not retained.keeps_all and (out is None or settings.get("checkpoint_every") == 0):
        raise ConfigError("[retain] needs a folder with checkpoints; name one with --out")
    source = source_of(offered.from_) if offered.from_ else None
    deliveries = Deliveries(to)
    terminal = Terminal()
    linger_s = (50.0 if offered.linger_ms is None else offered.linger_ms) / 1000.0
    write = to_standard_output()
    with ExitStack() as stack:
        stack.enter_context(logging_as(offered.log_format))
        log = driver_log()
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
            columns,
            offered.vocabulary,
            offered.attribute,
            offered.stem,
            durable,
            active := ActiveKinds(),
        )
        reading = {"strict": offered.strict_attributes, "numbers": offered.numbers}
        reading |= {"fold_accents": offered.fold_accents}
        with stack.enter_context(Garbage()).loading():
            config, admission, mapping, wal, earlier = open_stream(stack, *given, **reading, **passing)
        executor = config.executor
        in_flight = InFlight(config.credits or LIVE_CREDITS)
        wanted, vocabulary = (active.includes, active.is_standing), admission.vocabulary
        included = IncludedValues(*wanted, wal.values, lambda: vocabulary.attributes, wal.ends)
        lines = LineWriter(write, wal.look_up, included)
        releaser = Releaser(in_flight, wal.ends, lambda: wal.durable_through, lines.deliver, executor == "local", True)
        in_flight.has_room = lambda: releaser.pending_bytes < MOST_PENDING_BYTES
        stack.enter_context(releaser)
        wal.settle = releaser.settle
        live = {"live": wal.settings}
        run = LiveRun(config, wal.run, str(wal.log), releaser.address, live, earlier, lambda: wal.size_bytes)
        releaser.resume(run.resumes_after())
        preparing = stack.enter_context(Preparing.of(config, log_kind))
        pipe = Pipe(admission, wal, refuse, in_flight, offered.batch, linger_s, mapping, preparing)
        loaded = {"subscriptions": 0, "rejected": 0}
        if earlier:
            in_flight.add(wal.next_seq - 1, [])  # updates of the logged messages come first
        else:
            loaded = subscribe_all(pipe.batching, offered.subscriptions)
        step("starting Ray" if executor == "ray" else "loading kernels")
        retention = Retention(wal, admission.window, retained, [deliveries.reached])
        stopping, noted = stack.enter_context(draining()), Noted()
        feed = None if source is None else Feed(source, wal, into_pipe(pipe, stopping))

        def begin() -> None:
            starting.close()
            stack.callback(deliveries.close)
            deliveries.begin_parts(folder, run.identity, wal.ends, wal.look_up, included)
            if earlier:
                place = "the last checkpoint" if run.from_checkpoint else "the first message"
                log.info("resumes", messages=wal.next_seq - wal.mark_count, matches_from=place, folder=str(out))
            named = "standard input" if feed is None else feed.name
            next_line = {"next_line": wal.line + 1} if out is not None and feed is None else {}
            log.info("reads", source=named, subscriptions=len(admission.active), **next_line)
            stack.enter_context(retention)
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
            for part in (feed, pipe, releaser, retention):
                if part is not None and part.failure is not None:
                    raise part.failure
            deliveries.check()
            noted.look(time.monotonic())
            return pipe.ended and releaser.reached(run.incarnation) >= wal.next_seq - 1

        preparing.wait([WORDS, *(kind.name for kind in admission.kinds_met)])
        preparing.leave_a_core()
        stopping()  # from here on the first interrupt drains

        def own(snapshot: Any) -> Iterator[Any]:
            return live_families(wal, admission, pipe, releaser, feed)

        on_progress = stack.enter_context(with_metrics(metrics, "live", noted.note, folder, own))
        report = run.run(over, lambda: wal.next_seq, on_progress)
        figures = _figures(pipe, admission, releaser, report, loaded, wal.mark_count)
        figures |= {} if feed is None else {"source": feed.figures()}
        if out is not None:
            try:
                record(wal, admission, INTERRUPTED if stopping() else FINISHED, report)
            except EngineError as error:
                run.fail(error)
                raise
            figures |= {"digest": report["digest"], "out": str(out)}
        if json:
            stream.say(as_json(figures))
        else:
            log.info("ended", **figures)
        deliveries.end("the same command", to_wait_s)
    end_in_order()
    return 0


def live_families(wal: Any, admission: Any, pipe: Any, releaser: Any, feed: Any) -> Iterator[Any]:
    """Figures of a live stream for Prometheus, under the names of those of `skyray serve`."""
    from gateway.metrics import stream_families

    latency, figures = releaser.in_flight.latency, None if feed is None else feed.figures()
    active, refused, misfits = len(admission.active), dict(pipe.refused), dict(admission.misfits)
    yield from stream_families(wal, pipe.batches, refused, misfits, active, releaser.updates, latency, figures)


def _durable(write: Callable[[bytes], None]) -> Callable[[int], None]:
    return lambda line: write(b'{"durable": {"line": %d}}\n' % line)


@contextmanager
def _refusing(path: Path | None) -> Iterator[Any]:
    """The function that reports refused lines."""
    if path is None:
        yield lambda row: driver_log().warning("row_refused" if "reason" in row else "taken_without", **row)
        return
    with writing_to(path), open(path, "a", encoding="utf-8") as file:

        def refuse(row: dict[str, Any]) -> None:
            with writing_to(path):
                file.write(as_json(row) + "\n")
                file.flush()

        yield refuse


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
