"""A feed under fire: files are written while Spark's process and the topology's are killed, and all of it is compared.

`python -m tests.support.feed_trial --seconds 150` prints the figures.
"""

import argparse
import json
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from spark_etl.feed_folder import FeedSink
from spouts.log import LogReader
from tests.support.logged import messages_in
from tests.support.processes import Command
from tests.support.serving import written

#: Of how many rows one cannot be used; seconds of messages in a file; seconds for anything to happen.
BAD_EVERY, FILE_S, DEADLINE_S = 40, 0.25, 600.0
#: Subscriptions of each kind.
COUNTS = {"boolean": 300, "knn": 60, "topk": 60, "decay": 30, "skyline": 20}
WORDS = 400


class Written(NamedTuple):
    """What the producer has written: ids of the messages that can be used, and rows that cannot."""

    ids: list[str]
    bad: int


class Producer:
    """Writes files of messages at a rate, in three forms in turn, each there at once, until it is ended.

    Attributes
    ----------
    written : Written
    seconds : float    how long it has written
    """

    def __init__(self, folder: Path, rate: int, seed: int = 5):
        self.written = Written([], 0)
        self.seconds = 0.0
        self._folder = folder
        self._rows = round(rate * FILE_S)
        self._random = np.random.default_rng(seed)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def begin(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(60)

    def _run(self) -> None:
        begun_s, number = time.monotonic(), 0
        while not self._over.is_set():
            rows = self.rows(number)
            self._put(number, rows)
            good = [row["id"] for row in rows if row["lat"] <= 90]
            self.written.ids.extend(good)
            self.written = Written(self.written.ids, self.written.bad + len(rows) - len(good))
            number += 1
            self._over.wait(max(0.0, begun_s + number * FILE_S - time.monotonic()))
        self.seconds = time.monotonic() - begun_s

    def rows(self, number: int) -> list[dict[str, Any]]:
        """The messages of a file; now and then a word that was never there before."""
        random, count = self._random, self._rows
        words = np.minimum(random.zipf(1.3, (count, 5)), WORDS)
        places = random.uniform((-180, -85), (180, 85), (count, 2))
        found = []
        for at, (drawn, (lon, lat)) in enumerate(zip(words.tolist(), places.tolist(), strict=True)):
            row = number * count + at
            text = " ".join(f"w{word}" for word in drawn) + (f" new{row}" if row % 50 == 0 else "")
            moment = 1_700_000_000_000 + row  # a millisecond apart, so that both ways number them alike
            bad = row % BAD_EVERY == BAD_EVERY - 1
            found.append({"id": f"m{row:09d}", "text": text, "lon": lon, "lat": 95.0 if bad else lat, "time": moment})
        return found

    def _put(self, number: int, rows: list[dict[str, Any]]) -> None:
        kind = ("jsonl", "csv", "parquet")[number % 3]
        path = self._folder / f"part-{number:06d}.{kind}"
        hidden = path.with_name(f".{path.name}")
        if kind == "parquet":
            pq.write_table(pa.Table.from_pylist(rows), hidden)
        elif kind == "csv":
            lines = [",".join(map(str, row.values())) for row in rows]
            hidden.write_text("\n".join([",".join(rows[0]), *lines, ""]))
        else:
            hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
        hidden.rename(path)


def write_subscriptions(path: Path, seed: int = 9) -> None:
    """Subscriptions of all kinds; some for words that come later."""
    random = np.random.default_rng(seed)
    rows = []
    for kind, count in COUNTS.items():
        for number in range(count):
            words = [f"w{word}" for word in np.unique(np.minimum(random.zipf(1.3, 2), WORDS)).tolist()]
            lon, lat = random.uniform((-150, -60), (150, 60)).tolist()
            row: dict[str, Any] = {"subscription_id": f"{kind}-{number}", "kind": kind, "keywords": words}
            if kind in ("boolean", "skyline"):
                half = 30 if kind == "boolean" else 5
                row["region"] = [lon - half, lat - half / 2, lon + half, lat + half / 2]
            else:
                row |= {"lon": lon, "lat": lat, "k": 5} | ({} if kind == "knn" else {"alpha": 0.5})
            if kind == "boolean" and number % 10 == 0:
                row["keywords"] = [f"new{number * 50}"]
                row["region"] = [-180, -90, 180, 90]
            rows.append(row)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


class Logged:
    """Ids in the log of a live stream, read as it grows."""

    def __init__(self, folder: Path):
        self.ids: list[str] = []
        self._path = folder / "journal" / "log"
        self._reader: LogReader | None = None

    def count(self) -> int:
        if self._reader is None and self._path.exists():
            self._reader = LogReader(self._path)
        while self._reader is not None and (record := self._reader.read()) is not None:
            self.ids += [one.message_id for one in messages_in([record])]
        return len(self.ids)

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()


class Side:
    """A process that is killed and started again, by its command line."""

    def __init__(self, name: str, arguments: Sequence[object], progress: Callable[[], int]):
        self.name, self.kills = name, 0
        self._arguments = arguments
        self._progress = progress
        self._earlier: list[Command] = []
        self.start()

    def start(self) -> None:
        self._from = self._progress()
        self.command = Command(self._arguments)

    def await_progress(self) -> None:
        """Until it has done something since its last start: a kill before would show nothing."""
        self.command.await_(lambda: self._progress() > self._from, DEADLINE_S)

    def kill(self, all_of_it: bool) -> None:
        """SIGKILL, with all that it has started or without, and start again."""
        assert self.command.process.poll() is None, self.command.read()
        started = self.command.started() if all_of_it else []
        self.command.process.kill()
        for process in started:
            process.kill()
        self.command.process.wait(30)
        self.kills += 1
        self._earlier.append(self.command)
        self.start()

    def close(self) -> None:
        for one in (self.command, *self._earlier):
            one.__exit__()


class Found(NamedTuple):
    """Figures of a trial, and what the updates and results are."""

    figures: dict[str, Any]
    differences: dict[str, Any]


def differences(expected: Counter, found: Counter) -> dict[str, int]:
    """How many are missing and extra; `repeated` are those of the extra ones that are expected, fewer times."""
    extra = found - expected
    repeated = sum(count for row, count in extra.items() if row in expected)
    return {
        "compared": sum(expected.values()),
        "missing": sum((expected - found).values()),
        "extra": sum(extra.values()) - repeated,
        "repeated": repeated,
    }


def run_trial(folder: Path, rate: int, seconds: float, kills: int, say: Callable[[str], None]) -> Found:
    """Feed, kill, and compare.

    Parameters
    ----------
    folder : Path
    rate : int
        Messages a second that are written.
    seconds : float
        How long they are.
    kills : int
        Of each side.
    say : callable
    """
    raw, feed, live = folder / "raw", folder / "feed", folder / "live"
    raw.mkdir()
    feed.mkdir()
    mine = folder / "mine.jsonl"
    write_subscriptions(mine)
    sink, log, producer = FeedSink(feed, "posts"), Logged(live), Producer(raw, rate)
    spark_line = ["feed", raw, "--out", feed, "--every", 0.5, "--master", "local[2]", "--driver-memory", "768m"]
    live_line = ["live", "--from", f"feed:{feed}", "--out", live, "--subscriptions", mine]
    live_line += ["--window", "count:5000", "--checkpoint-every", 2, "--query-bolts", 1]
    moments = np.random.default_rng(3)
    sides = [Side("Spark", spark_line, sink.batches)]
    try:
        sides.append(Side("the topology", live_line, log.count))
        for side in sides:
            side.command.await_(lambda side=side: "reads" in side.command.read()[1], DEADLINE_S)
        begun_s = time.monotonic()
        producer.begin()
        for number in range(2 * kills):
            side = sides[number % 2]
            side.await_progress()
            threading.Event().wait(moments.uniform(0.0, 3.0))  # within a batch, too
            wanted_s = begun_s + seconds * (number + 1) / (2 * kills + 1)
            while time.monotonic() < wanted_s:
                threading.Event().wait(0.1)
            side.kill(all_of_it=number % 4 < 2)
            said = f"{len(producer.written.ids):,} written, {sink.batches():,} batches, {log.count():,} logged"
            say(f"{time.monotonic() - begun_s:6.1f} s: killed {side.name}; {said}")
        for side in sides:
            side.await_progress()
        while time.monotonic() < begun_s + seconds:
            threading.Event().wait(0.1)
        producer.end()
        say(f"{time.monotonic() - begun_s:6.1f} s: {len(producer.written.ids):,} written, {log.count():,} logged")
        sides[1].command.await_(lambda: log.count() >= len(producer.written.ids), DEADLINE_S)
        drained_s = time.monotonic() - begun_s
        threading.Event().wait(2.0)  # whatever comes twice comes now
        log.count()
        for side in sides:
            side.command.process.terminate()
        ended = [side.command.finish(300) for side in sides]
    finally:
        producer.end()
        for side in sides:
            side.close()
        log.close()
    assert [code for code, *_ in ended] == [143, 0], ended
    batches = [sink.batch(number) for number in range(sink.batches())]
    named = {file.name for batch in batches for file in batch.files}
    figures = {
        "rate": rate,
        "seconds": round(producer.seconds, 1),
        "drained_s": round(drained_s, 1),
        "kills": {side.name: side.kills for side in sides},
        "messages": len(producer.written.ids),
        "batches": len(batches),
        "rejected": dict(sum((Counter(batch.rejected) for batch in batches), Counter())),
        "bad": producer.written.bad,
        "torn_files": len({path.name for path in (sink.path / "rows").iterdir()} - named),
    }
    say(json.dumps(figures))
    found = {"log": differences(Counter(producer.written.ids), Counter(log.ids))}
    found["updates"] = differences(_again(folder, live), written(live))
    found |= _against_batch(folder, raw, mine, live)
    return Found(figures, found)


def _skyray(*arguments: object) -> None:
    with Command(arguments) as command:
        code, _, said = command.finish(900)
    assert code == 0, said


def _again(folder: Path, live: Path) -> Counter:
    """Updates of a run over the log of the stream."""
    _skyray("run", "--batch", f"log:{live}", "--out", folder / "again", "--executor", "local")
    return written(folder / "again")


def _against_batch(folder: Path, raw: Path, mine: Path, live: Path) -> dict[str, dict[str, int]]:
    """Matches of `boolean` and results of `knn` against those of a run over a fresh ETL of the same files."""
    _skyray("etl", raw, "--out", folder / "etl", "--master", "local[2]", "--driver-memory", "768m")
    common = ["--messages", folder / "etl", "--subscriptions", mine, "--world", "earth", "--window", "count:5000"]
    _skyray("run", *common, "--executor", "local", "--out", folder / "fresh")
    pairs, nearest = [], []
    for out in (folder / "fresh", live):
        parts = [pq.read_table(path) for path in sorted((out / "updates").glob("part-*"))]
        rows = pa.concat_tables(parts).select(["subscription_id", "message_id", "change"]).to_pylist()
        pairs.append(Counter((r["subscription_id"], r["message_id"]) for r in rows if r["change"] == "match"))
        results = pq.read_table(out / "results.parquet").to_pylist()
        mine_of = (row for row in results if row["subscription_id"].startswith("knn"))
        nearest.append(Counter((r["subscription_id"], r["rank"], r["message_id"], r["score"]) for r in mine_of))
    return {"boolean": differences(*pairs), "knn": differences(*nearest)}


def assert_exact(found: Found, kills: int) -> None:
    """Nothing is missing, extra or repeated, and there was something to see."""
    figures = found.figures
    assert figures["kills"] == {"Spark": kills, "the topology": kills}
    assert figures["rejected"] == {"coordinate_out_of_range": figures["bad"]} and figures["bad"] > 0
    for what, each in found.differences.items():
        assert (each["missing"], each["extra"], each["repeated"]) == (0, 0, 0), (what, found)
    assert found.differences["updates"]["compared"] >= 1_000 and found.differences["boolean"]["compared"] >= 1_000
    assert found.differences["knn"]["compared"] >= 100


def say(line: str) -> None:
    """To standard error."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=150.0)
    parser.add_argument("--rate", type=int, default=2_000)
    parser.add_argument("--kills", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="skyray-feed-trial-") as scratch:
        trial = run_trial(Path(scratch), given.rate, given.seconds, given.kills, say)
    sys.stdout.write(json.dumps(trial._asdict(), indent=1) + "\n")
    assert_exact(trial, given.kills)
