"""Does a server of weeks stay as it is: memory, descriptors, threads and folder of `skyray serve` under a steady load.

A producer, subscriptions that are replaced, followers that leave and come again; every few seconds a sample of the
server with all its processes. The server remembers the ids of up to 2,000,000 messages, which fill its memory first: so
many messages, of the same kind, are sent as fast as it takes them. After this warm-up nothing may grow but the log and
the updates, which have to stay: of these the report has the bytes a message. In the end the folder is verified, and
what has come since the warm-up is compared with the count of a follower of everything.
"""

import http.client
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import psutil
import pyarrow.parquet as pq

from benchmarks import command
from benchmarks.command import verdict
from gateway.runs.verify import verify_run
from tests.support.serving import Served, call

_KINDS = ("boolean", "topk", "knn", "skyline")
_WORDS, _ROWS = 2_000, 100
#: Seconds in which a follower has everything at most, and between two tries of a client.
_PATIENCE_S, _REST_S = 120.0, 0.2
#: A follower leaves after so many seconds and comes again.
_LEAVES_S = 30.0
#: Messages of a request while the server warms up, and seconds for followers to begin after it.
_WARM_ROWS, _SETTLE_S = 1_000, 30.0
#: Seconds in which the server matches at most what it has taken.
_MATCHING_S = 900.0
#: Seconds in which it ends at most: it gives its followers and sinks ten, and does not read its log.
_ENDING_S = 60.0
#: What may have grown from the first third after the warm-up to the last: descriptors, threads, share of checkpoints.
_MORE_DESCRIPTORS, _MORE_THREADS, _CHECKPOINT_RATIO = 8, 2, 1.5


class Sample(NamedTuple):
    """The server at a moment, all its processes together; bytes of the parts of its folder."""

    second: float
    rss_bytes: int
    descriptors: int
    threads: int
    log_bytes: int
    update_bytes: int
    checkpoint_bytes: int
    messages: int


def bench(
    minutes: Annotated[float, "without the warm-up"] = 30.0,
    warm_up: Annotated[int, "messages before them, as fast as may be; ids fill memory for 2,000,000"] = 2_200_000,
    rate: Annotated[int, "messages a second"] = 500,
    subscriptions: Annotated[int, "of four kinds"] = 2_000,
    followers: Annotated[int, "clients, the first of which follows everything and never leaves"] = 50,
    every: Annotated[float, "seconds between two samples"] = 10.0,
    most_growth: Annotated[float, "MiB of memory a minute"] = 1.0,
    executor: Annotated[str, "local or ray"] = "local",
    tell: command.Tell = print,
) -> dict[str, Any]:
    """Samples, what grows by the minute, and whether all is flat and exact."""
    with (
        tempfile.TemporaryDirectory(prefix="skyray-soak-") as scratch,
        _Sampled(Path(scratch) / "out", executor) as one,
    ):
        load = _Load(one.port, rate, subscriptions, followers, warm_up)
        began_s = time.monotonic()
        with load:
            filling = list(_samples(one, began_s, load.warm.is_set, every, load, tell))
            load.follow()
            until_s = time.monotonic() + _SETTLE_S + 60 * minutes
            samples = list(_samples(one, began_s, lambda: time.monotonic() > until_s, every, load, tell))
            load.stop_sending()
            load.await_all()
        began_s = time.monotonic()
        one.end(_ENDING_S)
        ended_s = time.monotonic() - began_s
        written = _updates_after(one.out, warm_up - 1)
        tell(f"verifies; it took {ended_s:.1f} s to end")
        report = verify_run(one.out, sample=max(200, 600 // len(_KINDS)))
    steady = [each for each in samples if each.second >= samples[0].second + _SETTLE_S]
    found = figures(steady) | {"end_s": ended_s, "messages": load.sent, "updates": load.whole.updates}
    found["warm_up_s"] = filling[-1].second if filling else 0.0
    same = report.exact and not load.whole.disordered and load.whole.updates == written
    flat = flatness(found, most_growth)
    workload = {"minutes": minutes, "warm_up": warm_up, "rate": rate, "subscriptions": subscriptions}
    return {
        "workload": workload | {"followers": followers, "executor": executor, "kinds": list(_KINDS)},
        "measured": found,
        "flat": all(flat.values()),
        "flat_by": flat,
        **verdict(same, sum(report.oracle_updates.values()), sum(report.subscriptions.values())),
        "samples": [each._asdict() for each in (*filling, *samples)],
    }


def figures(samples: list[Sample]) -> dict[str, Any]:
    """What grows by the minute (least squares), what did from the first third to the last, and bytes a message."""
    minute = np.array([each.second for each in samples]) / 60
    third = max(1, len(samples) // 3)
    found: dict[str, Any] = {"samples": len(samples)}
    rss_mib = np.array([each.rss_bytes for each in samples]) / 2**20
    found["rss_mib"] = float(np.median(rss_mib[-third:]))
    found["rss_mib_a_minute"] = float(np.polyfit(minute, rss_mib, 1)[0]) if len(samples) > 1 else 0.0
    for name in ("descriptors", "threads", "checkpoint_bytes"):
        values = [getattr(each, name) for each in samples]
        found[name] = {"first": float(np.median(values[:third])), "last": float(np.median(values[-third:]))}
    first, last = samples[0], samples[-1]
    messages = max(1, last.messages - first.messages)
    found["log_bytes_a_message"] = (last.log_bytes - first.log_bytes) / messages
    found["update_bytes_a_message"] = (last.update_bytes - first.update_bytes) / messages
    return found


def flatness(found: dict[str, Any], most_growth: float) -> dict[str, bool]:
    """Which of the figures stay as they are."""
    descriptors, threads, checkpoints = (found[name] for name in ("descriptors", "threads", "checkpoint_bytes"))
    return {
        "rss": found["rss_mib_a_minute"] <= most_growth,
        "descriptors": descriptors["last"] - descriptors["first"] <= _MORE_DESCRIPTORS,
        "threads": threads["last"] - threads["first"] <= _MORE_THREADS,
        "checkpoints": checkpoints["last"] <= _CHECKPOINT_RATIO * checkpoints["first"],
    }


class _Sampled(Served):
    """A server as a process, and its folder."""

    def __init__(self, out: Path, executor: str):
        super().__init__(out, "--executor", executor, "--window", "count:20000", "--set", "stream.most_terms=100000")
        self.out = out

    def sample(self, began_s: float, messages: int) -> Sample:
        rss = descriptors = threads = 0
        main = psutil.Process(self.process.pid)
        for each in (main, *main.children(recursive=True)):
            with suppress(psutil.Error):
                rss += each.memory_info().rss
                descriptors += each.num_fds()
                threads += each.num_threads()
        updates, checkpoints, whole = (_bytes_of(self.out / name) for name in ("updates", "checkpoints", "."))
        rest = whole - updates - checkpoints
        return Sample(time.monotonic() - began_s, rss, descriptors, threads, rest, updates, checkpoints, messages)


def _updates_after(out: Path, seq: int) -> int:
    """How many updates a folder has that are as of later messages."""
    as_of = (pq.read_table(path, columns=["as_of"])["as_of"] for path in (out / "updates").glob("part-*"))
    return sum(int((one.to_numpy() > seq).sum()) for one in as_of)


def _bytes_of(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):  # the server removes and renames files meanwhile
            total += path.stat().st_size if path.is_file() else 0
    return total


def _samples(
    served: _Sampled, began_s: float, over: Callable[[], bool], every_s: float, load: "_Load", tell: command.Tell
) -> Iterator[Sample]:
    number, first_s = 0, time.monotonic()
    while not over():
        time.sleep(max(0.0, first_s + number * every_s - time.monotonic()))
        number += 1
        if load.failure is not None:
            raise RuntimeError("a client of the soak has failed") from load.failure
        one = served.sample(began_s, load.sent)
        if number % 6 == 1:
            tell(f"{one.second:,.0f} s: {one.rss_bytes / 2**20:,.0f} MiB, {one.descriptors} descriptors, "
                 f"{one.threads} threads, {one.messages:,} messages, {load.whole.updates:,} updates")  # fmt: skip
        yield one


class _Follower(threading.Thread):
    """Counts updates; comes again with its last id."""

    def __init__(self, port: int, query: str, leaves: bool):
        super().__init__(daemon=True)
        self.since = "begin"
        self.updates = self.disordered = 0
        self.through = -1
        self.over = threading.Event()
        self._port = port
        self._query = query
        self._leaves = leaves
        self._last = (-1, -1)
        self._last_id = ""

    def run(self) -> None:
        while not self.over.is_set():
            with suppress(OSError, http.client.HTTPException):
                self._follow()
            self.over.wait(_REST_S)

    def _follow(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        headers = {"Last-Event-ID": self._last_id} if self._last_id else {}
        until_s = time.monotonic() + _LEAVES_S
        try:
            connection.request("GET", f"/v1/updates?since={self.since}{self._query}", headers=headers)
            answer = connection.getresponse()
            while not self.over.is_set() and (line := answer.readline()):
                self._take(json.loads(line))
                if self._leaves and time.monotonic() > until_s:
                    return
        finally:
            connection.close()

    def _take(self, row: dict[str, Any]) -> None:
        if "progress" in row:
            self.through = row["progress"]["through"]
            self._last_id = row["progress"].get("id", self._last_id)
        elif "change" in row:
            boundary, index, *_ = row["id"].split("-")
            place = int(boundary), int(index)
            self.disordered += place <= self._last
            self._last, self._last_id = place, row["id"]
            self.updates += 1


class _Load:
    """All clients, each a thread, while the block lasts; followers from `follow` on.

    Attributes
    ----------
    sent : int
    warm : Event    set once the messages of the warm-up are sent
    """

    def __init__(self, port: int, rate: int, subscriptions: int, followers: int, warm_up: int):
        self.sent = 0
        self.warm = threading.Event()
        self._warm_up = warm_up
        self._following = threading.Event()
        self.failure: BaseException | None = None
        self._port = port
        self._rate = rate
        self._subscriptions = subscriptions
        self._words = [f"word{number}" for number in range(_WORDS)]
        rng = np.random.default_rng(5)
        self._followers = [_Follower(port, self._query(rng, place), place % 5 == 1) for place in range(followers)]
        self.whole = self._followers[0]
        self._over = threading.Event()
        self._senders = [threading.Thread(target=self._guarded, args=(each,), daemon=True)
                         for each in (self._publish, self._replace)]  # fmt: skip

    def __enter__(self) -> "_Load":
        rng = np.random.default_rng(6)
        rows = [self._subscription(rng, place) for place in range(self._subscriptions)]
        self._post("/v1/subscriptions", rows)
        for thread in self._senders:
            thread.start()
        return self

    def follow(self) -> None:
        """Let followers begin behind the warm-up, once its updates are out, and the sender keep to its rate."""
        self.await_through(self._warm_up - 1)
        for one in self._followers:
            one.since = str(self._warm_up - 1) if self._warm_up else "begin"
            one.start()
        self._following.set()

    def __exit__(self, *_: object) -> None:
        self.stop_sending()
        begun = [each for each in self._followers if each.is_alive()]
        for each in begun:
            each.over.set()
        for each in begun:
            each.join(10)  # a progress comes every five seconds

    def stop_sending(self) -> None:
        self._over.set()
        self._following.set()
        for each in self._senders:
            each.join(60)

    def await_all(self) -> None:
        """Wait until the one that follows everything has everything."""
        deadline_s = time.monotonic() + _PATIENCE_S
        while self.whole.through < self.sent - 1:
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"followers have come to {self.whole.through:,} of {self.sent:,} messages")
            time.sleep(_REST_S)

    def await_through(self, seq: int) -> None:
        """Wait until all updates as of messages up to one are out."""
        deadline_s = time.monotonic() + _MATCHING_S
        while call(self._port, "GET", "/health").json["complete_through"] < seq:
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"the server has not matched message {seq:,}")
            time.sleep(_REST_S)

    def _query(self, rng: np.random.Generator, place: int) -> str:
        names = rng.choice(self._subscriptions, min(20, self._subscriptions), replace=False) if place else ()
        return "".join(f"&subscription=s{number}" for number in names)

    def _guarded(self, work: Any) -> None:
        try:
            work()
        except BaseException as error:
            self.failure = error

    def _publish(self) -> None:
        rng = np.random.default_rng(7)
        while self.sent < self._warm_up and not self._over.is_set():
            self._send(rng, min(_WARM_ROWS, self._warm_up - self.sent))
        self.warm.set()
        self._following.wait()
        due_s = time.monotonic()
        while not self._over.wait(max(0.0, due_s - time.monotonic())):
            count = min(_ROWS, self._rate)
            due_s += count / self._rate
            self._send(rng, count)

    def _send(self, rng: np.random.Generator, count: int) -> None:
        """Send the next messages, whose words have a Zipf distribution, and wait until they are taken."""
        words = rng.zipf(1.3, (count, 8)) % _WORDS
        rows = [
            {"id": f"m{self.sent + place}", "text": " ".join(self._words[word] for word in words[place].tolist())}
            | self._place(rng)
            for place in range(count)
        ]
        self._post("/v1/messages", rows)
        self.sent += count

    def _replace(self) -> None:
        """A subscription is replaced every second."""
        rng = np.random.default_rng(8)
        while not self._over.wait(1.0):
            place = int(rng.integers(self._subscriptions))
            self._post("/v1/subscriptions?replace=true", [self._subscription(rng, place)])

    def _subscription(self, rng: np.random.Generator, place: int) -> dict[str, Any]:
        kind = _KINDS[place % len(_KINDS)]
        words = [self._words[word] for word in (rng.zipf(1.3, 2) % _WORDS).tolist()]
        row: dict[str, Any] = {"subscription_id": f"s{place}", "kind": kind, "keywords": words}
        if kind in ("boolean", "skyline"):
            west, south = float(rng.uniform(-180, 150)), float(rng.uniform(-90, 60))
            return row | {"region": [west, south, west + 30, south + 30]}
        return row | self._place(rng) | {"k": 5} | ({"alpha": 0.5} if kind == "topk" else {})

    def _place(self, rng: np.random.Generator) -> dict[str, float]:
        return {"lon": float(rng.uniform(-180, 180)), "lat": float(rng.uniform(-90, 90))}

    def _post(self, path: str, rows: list[dict[str, Any]]) -> None:
        while (answer := call(self._port, "POST", path, rows)).status == 429:
            time.sleep(_REST_S)
        if answer.status >= 300 or b'"status":"refused"' in answer.body:
            raise RuntimeError(f"POST {path}: {answer.status} {answer.body[:500]!r}")


if __name__ == "__main__":
    sys.exit(command.main(bench))
