"""`skyray feed-demo`: files -> `skyray feed` (Spark) -> a feed -> `skyray live` -> updates, each a process of its own.

Places of the world are written as files while both processes run. Some of the updates are shown as they come. At the
end they are compared with those of `skyray run` over the stream's log, and with the oracle. It does nothing that the
other commands do not do.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.commands.demo import WINDOW, Demo
from gateway.shell.options import Command, Json, example
from gateway.shell.places import check_places, places, standing_query
from gateway.shell.terminal import Terminal, cell, shortened
from matching.errors import EngineError
from matching.extras import require
from matching.kinds import KINDS
from spark_etl.feed_folder import FeedSink

#: Seconds of messages in a file; every row of this number is made unusable; seconds from one shown update to the next.
FILE_S, BAD_EVERY, SHOWN_S = 0.5, 100, 2.0
#: Seconds for anything to happen.
_PATIENCE_S = 600.0
#: Degrees each way that a region covers around its place; subscriptions of each kind that are verified.
_REACH, _SAMPLE = 8.0, 50

app = typer.Typer()


@app.command("feed-demo", cls=Command, epilog=example("skyray feed-demo --out runs/feed-demo"))
def feed_demo(
    out: Annotated[Path, typer.Option(help="Work folder; an earlier demo in it is replaced.")] = Path("runs/feed-demo"),
    seconds: Annotated[float, typer.Option(min=1.0, max=3_600.0, help="How long files are written.")] = 20.0,
    per_kind: Annotated[int, typer.Option(min=1, help="Subscriptions of each kind.")] = 200,
    json: Json = False,
) -> int:
    """Write files, stream them with Spark into a running topology, and check what came out.

    The world's towns come as files, two a second, some rows of which cannot be used. skyray feed cleans them into a
    feed, skyray live reads the feed and writes updates, some of which are shown. At the end the updates are compared
    with those of skyray run over the log of the stream, and with the oracle. Takes a minute or two.
    """
    return run_feed_demo(Terminal(json), out, seconds, per_kind)


def run_feed_demo(terminal: Terminal, out: Path, seconds: float, per_kind: int) -> int:
    """Run everything; 0 only if the updates are those of a run over the log, and exactly the oracle's.

    Raises
    ------
    ConfigError
        If something is missing, with the remedy, or the folder has anything else.
    EngineError
        If one of the processes ends early, with its last words.
    """
    check_places(15_000)
    require("spark", "the demo")
    from gateway.live.status import read_status
    from spark_etl.session import check_java

    check_java()
    demo = Demo(terminal, out, "skyray feed-demo")
    demo.clear_folder()
    rows = list(places())
    raw, feed, live, again = (out / name for name in ("incoming", "feed", "live", "again"))
    raw.mkdir()
    feed.mkdir()
    (out / "mine.jsonl").write_text("".join(json.dumps(one) + "\n" for one in subscriptions(rows, per_kind)))
    sink, shown = FeedSink(feed, "posts"), _Shown(terminal, out / "live.out")
    with demo.step("stream", "streaming"), ExitStack() as stack:
        terminal.line("starting skyray feed (Spark) and skyray live")
        reading = ("live", "--from", f"feed:{feed}", "--out", live, "--subscriptions", out / "mine.jsonl")
        options = ("--window", WINDOW, "--checkpoint-every", 2, "--query-bolts", 1)
        commands = ("feed", raw, "--out", feed), (*reading, *options)
        sides = [stack.enter_context(_Side(out, command)) for command in commands]
        _await(sides, lambda: all("reads" in side.said() for side in sides))
        terminal.line(f"both are up; {len(rows):,} messages come as files, {1 / FILE_S:g} a second")
        for file in _files(raw, rows, max(1, round(seconds / FILE_S))):
            file.rename(raw / file.name[1:])
            next_s = time.monotonic() + FILE_S
            _await(sides, lambda: time.monotonic() >= next_s, shown.look)  # noqa: B023 - called at once
        terminal.line(f"all is written: {len(rows):,} rows")
        _await(sides, lambda: _counted(sink)["rows"] >= len(rows), shown.look)
        figures = _counted(sink)
        _await(sides, lambda: int(read_status(live)["line"] or 0) >= figures["messages"], shown.look)
        count = f"{figures['messages']:,} messages went through the feed, in {sink.batches():,} batches"
        terminal.line(f"{count}; ending both")
        for side in sides:
            side.end()
    figures |= {"updates": shown.look()}
    with (
        demo.step("again", "matching the log of the stream again"),
        _Side(out, ("run", "--batch", f"log:{live}", "--out", again)) as run,
    ):
        run.end(0)
    digests = {path.name: json.loads((path / "run.json").read_bytes())["digest"] for path in (live, again)}
    same = digests["live"] == digests["again"]
    answer = figures | {"exact": same, "same_as_run_over_log": same, "digests": digests}

    def render(shown: Any) -> None:
        word = "the same updates as" if same else "OTHER UPDATES than"
        shown.print(f"{word} skyray run --batch log:{cell(live)} (digest {digests['live']})", markup=False)
        rejected = cell(figures["rejected"]) or "none"
        shown.print(f"{count}, rejected {rejected}, {figures['updates']:,} updates", markup=False)

    return demo.judge(live, _SAMPLE, answer, render)


def subscriptions(rows: Sequence[Mapping[str, Any]], per_kind: int) -> Iterator[dict[str, Any]]:
    """Standing queries around places of the stream, by words of their countries and zones."""
    for kind in KINDS.run:
        for number in range(per_kind):
            place = rows[(number * 7_919 + 13) % len(rows)]
            country, zone = place["text"].split(", ")[1:3]
            words = country if kind.place == "region" else f"{country} {zone.split(' (')[0]}"
            yield standing_query(kind, number, words, (place["lon"], place["lat"]), _REACH)


class _Side:
    """A command as a process, with what it writes in files of the work folder, named like the command."""

    def __init__(self, out: Path, arguments: Sequence[object]):
        self._name = str(arguments[0])
        self._err = out / f"{self._name}.log"
        with (out / f"{self._name}.out").open("wb") as told, self._err.open("wb") as said:
            command = [sys.executable, "-m", "gateway.entry", *map(str, arguments)]
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=told, stderr=said)

    def __enter__(self) -> "_Side":
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.kill()

    def said(self) -> str:
        return self._err.read_text(errors="replace")

    def check(self, codes: Sequence[int | None] = (None,)) -> None:
        """Raises EngineError if it has ended otherwise than with one of these exit codes; None: it runs."""
        if self._process.poll() not in codes:
            last = (self.said().strip().splitlines() or ["nothing"])[-1]
            raise EngineError(f"skyray {self._name} ended early and said: {last} (all of it: {self._err})")

    def end(self, code: int | None = None) -> None:
        """Let it end in order; with `code` by itself, and with that one."""
        if code is None:
            self._process.terminate()
        self._process.wait(_PATIENCE_S)
        self.check((self._process.poll() if code is None else code,))


def _await(sides: Sequence[_Side], what: Callable[[], bool], meanwhile: Callable[[], object] = lambda: None) -> None:
    until_s = time.monotonic() + _PATIENCE_S
    while not what():
        for side in sides:
            side.check()
        meanwhile()
        if time.monotonic() > until_s:
            raise EngineError(f"nothing has come for {_PATIENCE_S:g} s; look at the *.log files of the demo")
        time.sleep(0.05)


class _Shown:
    """Shows an update now and then, of those that the stream writes; counts all."""

    def __init__(self, terminal: Terminal, path: Path):
        self._terminal, self._path = terminal, path
        self._at = self._count = 0
        self._next_s = 0.0

    def look(self) -> int:
        with self._path.open("rb") as file:
            file.seek(self._at)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._at += len(whole)
        lines = [line for line in whole.splitlines() if line.startswith(b'{"change"')]
        self._count += len(lines)
        if lines and time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + SHOWN_S
            row = json.loads(lines[-1])
            text = shortened(row.get("text", ""), 40)
            self._terminal.line(f"update {self._count:,}: {row['change']} {row['subscription_id']}: {text}")
        return self._count


def _files(raw: Path, rows: Sequence[dict[str, Any]], count: int) -> Iterator[Path]:
    """Write all rows in so many hidden files, one after the other; some rows cannot be used."""
    size = -(-len(rows) // count)
    for begin in range(0, len(rows), size):
        file = raw / f".part-{begin // size:04d}.jsonl"
        with file.open("w") as out:
            for number, row in enumerate(rows[begin : begin + size], begin + 1):
                out.write(json.dumps(row if number % BAD_EVERY else row | {"lat": "somewhere"}) + "\n")
        yield file


def _counted(sink: FeedSink) -> dict[str, Any]:
    """Messages, rejected rows by reason, and rows in all, of the batches so far."""
    found: dict[str, Any] = {"messages": 0, "rejected": {}}
    for number in range(sink.batches()):
        batch = sink.batch(number)
        assert batch is not None, "it was counted"
        found["messages"] += batch.rows
        for reason, count in batch.rejected.items():
            found["rejected"][reason] = found["rejected"].get(reason, 0) + count
    return found | {"rows": found["messages"] + sum(found["rejected"].values())}
