"""`skyray live`: messages and subscriptions by pipe, updates by pipe.

`gateway/commands/live.py` -> `gateway/pipe.py` (lines and batches) -> `gateway/journal.py` (what is remembered) ->
`gateway/engine.py` -> `matching/alone.py`.
"""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic
from typing import Annotated, Any

import msgspec
import typer

from gateway.options import Command, example
from gateway.terminal import Terminal, as_json, cell, shown, writing_to
from matching.errors import EngineError
from topology.folder import FINISHED, INTERRUPTED

app = typer.Typer()


@app.command(
    cls=Command,
    epilog=example("tail -F posts.jsonl | skyray live --vocabulary etl --subscriptions mine.jsonl > updates.jsonl"),
)
def live(
    vocabulary: Annotated[Path, typer.Option(help="Output folder of `skyray etl`: its words, weights and world.")],
    subscriptions: Annotated[
        list[Path] | None, typer.Option(help="Files of subscriptions that are there from the start.")
    ] = None,
    window: Annotated[
        str, typer.Option(help="How much of the stream is held: count:N or time:SECONDS.")
    ] = "count:20000",
    world: Annotated[str, typer.Option(help="What is covered, as in `skyray run`.")] = "extent",
    batch: Annotated[int, typer.Option(min=1, max=1_000_000, help="Lines of a batch at most.")] = 5_000,
    linger_ms: Annotated[float, typer.Option(min=0.0, max=60_000.0, help="How long a line waits for others.")] = 50.0,
    rejects: Annotated[Path | None, typer.Option(help="File for refused lines; standard error otherwise.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder that remembers lines before they are matched, and is gone on with."),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Tell the figures at the end as JSON on standard error.")
    ] = False,
) -> int:
    """Match messages as they come on standard input, and write updates to standard output at once.

    A line is a message (text, lon, lat, and if need be id and time), {"subscribe": {...}} or {"unsubscribe": "id"}. A
    change counts from its place in the stream on. A bad line is refused with its reason, and nothing beside it is lost.
    Words that the vocabulary lacks are left out. With --out nothing is lost whatever dies, and {"durable": {"line": N}}
    tells up to which line; without it nothing is kept.
    """
    from gateway.engine import Engine
    from gateway.interrupts import draining
    from gateway.pipe import Pipe, to_standard_output
    from matching.warmup import warmup

    terminal = Terminal()
    write = to_standard_output()
    with ExitStack() as stack:
        refuse = stack.enter_context(_refusing(rejects))
        journal = None
        if out is not None:
            from gateway.journal import Journal, settings_of

            settings = settings_of(vocabulary, window, world)
            journal = Journal(out, settings, lambda line: write(b'{"durable": {"line": %d}}\n' % line))
            stack.enter_context(journal.run.held())
            stack.callback(journal.close)
        loaded = {"subscriptions": 0, "rejected": 0}
        with terminal.steps("skyray live") as step:
            step("loading kernels")
            warmup()
            step("loading words and subscriptions")
            engine = Engine(vocabulary, window, world=None if world == "extent" else world)
            pipe = Pipe(engine, sys.stdin.buffer, write, refuse, batch, linger_ms / 1000.0, journal)
            if journal is not None and journal.begin():
                step("going on: matching what has come before")
                journal.replay(pipe)
                _say(f"live: goes on behind {engine.next_seq:,} messages, with the subscriptions there were")
            else:
                if journal is not None:
                    journal.replay(pipe)
                loaded = subscribe_all(pipe, subscriptions or [])
        try:
            with draining() as stop:
                stop()  # from here on the first interrupt is asked for
                _say(f"live: {len(engine.subscriptions):,} subscriptions; reads standard input")
                pipe.run(stop)
                if journal is not None:
                    journal.finish(engine, INTERRUPTED if stop() else FINISHED)
        except EngineError as error:
            if journal is not None:
                journal.fail(error)
            raise
        finally:
            figures = _figures(pipe, loaded)
            if journal is not None:
                figures |= {"digest": journal.digest.hex(), "out": str(out)}
            _say(as_json(figures) if json else f"live: {_in_words(figures)}")
    return 0


def subscribe_all(pipe: Any, files: list[Path]) -> dict[str, int]:
    """Subscribe whoever the files have; how many were accepted, and how many refused. Raises InputError."""
    from gateway.pipe import Line
    from spouts.lines import read_rows

    counts = {"subscriptions": 0, "rejected": 0}
    for path in files:
        for number, row in read_rows(path):
            if isinstance(row, str):
                reason, what = row, row
            else:
                asked = {name: value for name, value in row.items() if name not in ("at", "until")}
                line = msgspec.json.encode({"subscribe": asked})
                reason, what = pipe.put(Line(0, line, monotonic()))
            counts["subscriptions" if reason is None else "rejected"] += 1
            if reason is not None:
                _say(f"{cell(path)}, line {number} refused, {reason}: {cell(what)}")
    pipe.close_batch()
    return counts


@contextmanager
def _refusing(path: Path | None) -> Iterator[Any]:
    """What refused lines are given to."""
    if path is None:
        yield lambda row: _say(
            f"line {row['line']} refused, {row['reason']}: {shown(row['what'])}: {shown(row['row'])}"
        )
        return
    with writing_to(path), open(path, "a", encoding="utf-8") as file:

        def refuse(row: dict[str, Any]) -> None:
            with writing_to(path):
                file.write(as_json(row) + "\n")
                file.flush()

        yield refuse


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def _figures(pipe: Any, loaded: dict[str, int]) -> dict[str, Any]:
    figures, engine = pipe.figures, pipe.engine
    return {
        "lines": figures.lines,
        "messages": engine.last.last_seq + 1,
        "batches": figures.batches,
        "updates": figures.updates,
        "subscriptions": len(engine.subscriptions),
        "refused": dict(figures.refused),
        "refused_of_files": loaded["rejected"],
        "unknown_words": engine.unknown_words,
        "p50_ms": _ms(figures.latency.quantile(0.5)),
        "p99_ms": _ms(figures.latency.quantile(0.99)),
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 1)


def _in_words(figures: dict[str, Any]) -> str:
    parts = [f"{figures[name]:,} {name}" for name in ("lines", "messages", "batches", "updates", "subscriptions")]
    refused = sum(figures["refused"].values()) + figures["refused_of_files"]
    if refused:
        parts.append(f"refused {refused:,} ({cell(figures['refused']) or 'of files'})")
    if figures["unknown_words"]:
        parts.append(f"{figures['unknown_words']:,} words that the vocabulary lacks")
    if figures["p50_ms"] is not None:
        parts.append(f"line in to line out p50 {figures['p50_ms']:,} ms, p99 {figures['p99_ms']:,} ms")
    if "digest" in figures:
        parts.append(f"digest {figures['digest']}; everything is in {cell(figures['out'])}")
    return "; ".join(parts)
