"""`skyray feed-demo`: files -> `skyray feed` (Spark) -> a feed -> `skyray live` -> updates, each a process of its own.

Places of the world are written as files while both processes run. Some of the updates are shown as they come. At the
end they are compared with those of `skyray run` over the stream's log, and with the oracle. It does nothing that the
other commands do not do; `docs/feed.md` has the picture.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from gateway.commands.verify import verify_shown
from gateway.shell.demo import clear_folder
from gateway.shell.places import check_places, places
from gateway.shell.terminal import Terminal, cell, shortened
from matching.errors import EngineError
from matching.extras import require
from spark_etl.feed_folder import FeedSink

#: File that identifies a demo's work folder.
MARK = ".skyray-feed-demo"
#: Seconds of messages in a file; every row of this number is made unusable; seconds from one shown update to the next.
FILE_S, BAD_EVERY, SHOWN_S = 0.5, 100, 2.0
#: Seconds for anything to happen.
_PATIENCE_S = 600.0
#: Degrees each way that a region covers around its place.
_REACH = 8.0


def run_feed_demo(terminal: Terminal, out: Path, seconds: float, per_kind: int) -> int:
    """Run everything; 0 only if the updates are those of a run over the log, and exactly the oracle's.

    Raises
    ------
    ConfigError
        If something is missing, with the remedy, or the folder has anything else.
    EngineError
        If one of the processes ends early, with what it said.
    """
    from spark_etl.session import check_java

    check_places(15_000)
    require("spark", "the demo")
    check_java()
    clear_folder(out, MARK, "skyray feed-demo")
    rows = list(places())
    raw, feed, live = out / "incoming", out / "feed", out / "live"
    for folder in (raw, feed):
        folder.mkdir()
    (out / "mine.jsonl").write_text("".join(json.dumps(one) + "\n" for one in subscriptions(rows, per_kind)))
    begun_s = time.monotonic()
    with ExitStack() as stack:
        terminal.line("starting skyray feed (Spark) and skyray live")
        reading = ("live", "--from", f"feed:{feed}", "--out", live, "--subscriptions", out / "mine.jsonl")
        options = ("--window", "count:10000", "--checkpoint-every", 2, "--query-bolts", 1)
        sides = [
            stack.enter_context(_Side(out, "feed", ("feed", raw, "--out", feed))),
            stack.enter_context(_Side(out, "live", (*reading, *options))),
        ]
        _await(sides, lambda: all("reads" in side.said() for side in sides))
        terminal.line(f"both are up; {len(rows):,} messages come as files, {1 / FILE_S:g} a second")
        shown = _Shown(terminal, out / "live.out")
        written = _write_all(raw, rows, seconds, lambda: (_check(sides), shown.look()))
        terminal.line(f"all is written: {written:,} rows")
        sink = FeedSink(feed, "posts")
        _await(sides, lambda: _counted(sink)["rows"] >= written, shown.look)
        kept = _counted(sink)["messages"]
        _await(sides, lambda: _logged(live) >= kept, shown.look)
        terminal.line(f"{kept:,} messages went through the feed, in {sink.batches():,} batches; ending both")
        for side in sides:
            side.end()
    figures = _counted(sink) | {"updates": shown.look(), "seconds": round(time.monotonic() - begun_s, 1)}
    return _judge(terminal, out, live, figures)


def subscriptions(rows: Sequence[Mapping[str, Any]], per_kind: int) -> Iterator[dict[str, Any]]:
    """Standing queries around places of the stream, by words of their countries and zones."""
    from matching.kinds import KINDS

    for kind in KINDS.run:
        for number in range(per_kind):
            place = rows[(number * 7_919 + 13) % len(rows)]
            country, zone = place["text"].split(", ")[1:3]
            row = {"subscription_id": f"{kind.name}-{number}", "kind": kind.name, "keywords": country}
            if kind.place == "region":
                west, east = max(-180.0, place["lon"] - _REACH), min(180.0, place["lon"] + _REACH)
                south, north = max(-90.0, place["lat"] - _REACH), min(90.0, place["lat"] + _REACH)
                row["region"] = [west, south, east, north]
            else:
                row |= {"lon": place["lon"], "lat": place["lat"], "k": 5}
                row["keywords"] = f"{country} {zone.split(' (')[0]}"
                row |= {"alpha": 0.5} if "alpha" in kind.fields else {}
            yield row


class _Side:
    """A command as a process, with what it writes in files of the work folder."""

    def __init__(self, out: Path, name: str, arguments: Sequence[object]):
        self._name, self._err = name, out / f"{name}.log"
        with (out / f"{name}.out").open("wb") as told, self._err.open("wb") as said:
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

    def check(self) -> None:
        """Raises EngineError if it has ended."""
        if self._process.poll() is not None:
            last = (self.said().strip().splitlines() or ["nothing"])[-1]
            raise EngineError(f"skyray {self._name} ended early and said: {last} (all of it: {self._err})")

    def end(self) -> None:
        """Let it end in order."""
        self._process.terminate()
        self._process.wait(_PATIENCE_S)


def _check(sides: Sequence[_Side]) -> None:
    for side in sides:
        side.check()


def _await(sides: Sequence[_Side], what: Any, meanwhile: Any = lambda: None) -> None:
    until_s = time.monotonic() + _PATIENCE_S
    while not what():
        _check(sides)
        meanwhile()
        if time.monotonic() > until_s:
            raise EngineError(f"nothing has come for {_PATIENCE_S:g} s; look at the *.log files of the demo")
        time.sleep(0.2)


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


def _write_all(raw: Path, rows: Sequence[dict[str, Any]], seconds: float, meanwhile: Any) -> int:
    """Write all rows in files, evenly over the time; each file is there at once. Returns the number of rows."""
    files = max(1, round(seconds / FILE_S))
    size, begun_s = -(-len(rows) // files), time.monotonic()
    for number, begin in enumerate(range(0, len(rows), size)):
        lines = [json.dumps(_spoilt(row, begin + at)) for at, row in enumerate(rows[begin : begin + size])]
        hidden = raw / f".part-{number:04d}.jsonl"
        hidden.write_text("\n".join(lines) + "\n")
        hidden.rename(raw / hidden.name[1:])
        while time.monotonic() < begun_s + (number + 1) * FILE_S:
            meanwhile()
            time.sleep(0.05)
    return len(rows)


def _spoilt(row: dict[str, Any], number: int) -> dict[str, Any]:
    return row | {"lat": "somewhere"} if number % BAD_EVERY == BAD_EVERY - 1 else row


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


def _logged(live: Path) -> int:
    from gateway.live.status import read_status

    return int(read_status(live)["line"] or 0)


def _judge(terminal: Terminal, out: Path, live: Path, figures: dict[str, Any]) -> int:
    """Compare with a run over the log, and with the oracle."""
    terminal.line("matching the log of the stream again, as skyray run --batch log: does")
    again = out / "again"
    command = [sys.executable, "-m", "gateway.entry", "run", "--batch", f"log:{live}", "--out", str(again)]
    done = subprocess.run(
        [*command, "--executor", "local", "--json"], capture_output=True, text=True, timeout=_PATIENCE_S
    )
    if done.returncode:
        raise EngineError(f"skyray run over the log has failed: {done.stderr.strip()}")
    digests = {name: json.loads((out / name / "run.json").read_bytes())["digest"] for name in ("live", "again")}
    same = digests["live"] == digests["again"]
    terminal.line("checking the updates against the oracle")
    verdict = verify_shown(terminal, live, 50, 0)
    answer = figures | {
        "exact": same and verdict.exact,
        "same_as_run_over_log": same,
        "digests": digests,
        "verify": verdict.as_json(),
        "out": out,
    }

    def render(shown: Any) -> None:
        shown.print(verdict.render())
        word = "the same updates as" if same else "OTHER UPDATES than"
        shown.print(f"{word} skyray run --batch log:{cell(live)} (digest {digests['live']})", markup=False)
        shown.print(
            f"{figures['messages']:,} messages, rejected {cell(figures['rejected']) or 'none'}, "
            f"{figures['updates']:,} updates, {figures['seconds']:,.0f} s; everything is in {cell(out)}",
            markup=False,
        )

    terminal.answer(answer, render)
    return 0 if answer["exact"] else 1
