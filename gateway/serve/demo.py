"""Content of `skyray serve --demo`: subscriptions of every kind, and a producer of messages.

Both are generated, the same each time, and pass the gate of all requests: `gateway.serve.writer`. Subscriptions of the
kinds whose kernels take longest come last (`topology.preparing`).
"""

import sys
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from gateway.serve.writer import TURN_ROWS, LogWriter, PublishedRow, Subscribe
from gateway.shell.logs import LogFormat
from gateway.shell.places import standing_query
from gateway.shell.terminal import cell
from matching.kind_table import Kind
from matching.kinds import KINDS
from topology.core.executors.logs import driver_log

#: Messages a second, by default.
RATE_PER_S = 20.0
SUBSCRIPTIONS_OF_A_KIND = 60
_SEED = 11
#: Name, longitude and latitude of towns, around which messages and subscriptions are.
_TOWNS = (
    ("tokyo", 139.69, 35.69), ("osaka", 135.50, 34.69), ("seoul", 126.98, 37.57), ("delhi", 77.21, 28.61),
    ("nairobi", 36.82, -1.29), ("cairo", 31.24, 30.04), ("athens", 23.73, 37.98), ("paris", 2.35, 48.86),
    ("london", -0.13, 51.51), ("lisbon", -9.14, 38.72), ("lima", -77.04, -12.05), ("toronto", -79.38, 43.65),
)  # fmt: skip
_WORDS = (
    "ramen", "coffee", "bakery", "market", "museum", "concert", "festival", "sale", "bike", "bus", "train", "ferry",
    "rain", "snow", "wind", "sunrise", "football", "chess", "cinema", "library",
)  # fmt: skip
_ENDINGS = "opens early", "is busy today", "closes at ten", "starts now", "was moved"
#: Standard deviation of places around a town, and half the side of a region, in degrees.
_AROUND, _HALF_SIDE = 0.15, 0.5
#: Seconds between two tries of what the writer does not take yet.
_AGAIN_S = 0.1


def message(number: int, time_text: str) -> dict[str, Any]:
    """Message `number` of the demo; but for its time the same at every call."""
    rng = np.random.default_rng([_SEED, number])
    town, lon, lat = _TOWNS[rng.integers(len(_TOWNS))]
    words = rng.choice(_WORDS, 2, replace=False)
    return {
        "id": f"demo-{number}",
        "text": f"{words[0]} and {words[1]} in {town}: {_ENDINGS[rng.integers(len(_ENDINGS))]}",
        "lon": round(lon + _AROUND * rng.standard_normal(), 5),
        "lat": round(lat + _AROUND * rng.standard_normal(), 5),
        "time": time_text,
    }


def subscriptions(kind: Kind, count: int = SUBSCRIPTIONS_OF_A_KIND) -> list[dict[str, Any]]:
    """Subscriptions of a kind, the same at every call: each around a town, of a word or two."""
    rng = np.random.default_rng([_SEED, kind.code, 1])
    return [_subscription(kind, number, rng) for number in range(1, count + 1)]


def _subscription(kind: Kind, number: int, rng: np.random.Generator) -> dict[str, Any]:
    _, *place = _TOWNS[rng.integers(len(_TOWNS))]
    words = rng.choice(_WORDS, 1 if kind.all_keywords else 2, replace=False).tolist()
    k = int(rng.integers(3, 8)) if "k" in kind.fields else 0
    return standing_query(kind, number, words, (place[0], place[1]), _HALF_SIDE, k)


class DemoTraffic:
    """A thread that registers the subscriptions, and publishes messages until it is stopped.

    Parameters
    ----------
    first : int
        Number of the first message: a resumed stream has those before it.

    Attributes
    ----------
    refused : int
        Rows that were not taken: none, unless the stream was made with other settings.
    """

    def __init__(self, writer: LogWriter, rate_per_s: float, first: int):
        self.refused = 0
        self._writer = writer
        self._rate_per_s = rate_per_s
        self._number = first
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="demo", daemon=True)

    def begin(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Publish nothing more; returns once the thread has ended."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        for kind in sorted(KINDS.run, key=lambda kind: kind.windowed):
            rows = [Subscribe(columns) for columns in subscriptions(kind)]
            self._submit(rows, sum(len(msgspec.json.encode(row.columns)) for row in rows))
        began, published = time.monotonic(), 0
        while not self._over.wait(max(0.0, began + published / self._rate_per_s - time.monotonic())):
            due = int((time.monotonic() - began) * self._rate_per_s) + 1 - published
            now = datetime.now(UTC).isoformat()
            count = min(max(1, due), TURN_ROWS)  # after a pause of the writer they come in several requests
            rows = [PublishedRow(msgspec.json.encode(message(self._number + at, now))) for at in range(count)]
            self._submit(rows, sum(len(row.data) for row in rows))
            self._number += len(rows)
            published += len(rows)

    def _submit(self, rows: Sequence[PublishedRow | Subscribe], size_bytes: int) -> None:
        """Hand rows to the writer, again and again while too many wait."""
        while not self._over.is_set() and not self._writer.submit(rows, size_bytes, self._note):
            self._over.wait(_AGAIN_S)

    def _note(self, outcomes: list[dict[str, Any]]) -> None:
        self.refused += sum(one["status"] in ("refused", "failed") for one in outcomes)


class Announcer:
    """Says what people can do with a demo, and how far it is.

    Parameters
    ----------
    log_format : str
        `json`: as events of the log, since programs read it; else as lines for people.
    """

    def __init__(self, log_format: LogFormat):
        self._is_text = log_format == "text"
        self._began = time.monotonic()
        self._first = False

    def begins(self, url: str, out: Path, rate_per_s: float) -> None:
        """Say what to open, and two commands to copy."""
        kinds = [kind.name for kind in KINDS.run]
        count = len(kinds) * SUBSCRIPTIONS_OF_A_KIND
        self._say(f"demo: {count:,} subscriptions of {', '.join(kinds)}; {rate_per_s:g} messages a second")
        self._say(f"demo: everything is in {cell(out)}")
        self._say(f"demo: open {url} in a browser, or follow and ask from another terminal:")
        self._say(f"  curl -N -H 'Accept: text/event-stream' '{url}/v1/updates?since=begin'")
        self._say(f"  curl '{url}/v1/subscriptions/{kinds[0]}-1/results'")
        self._say("demo: a kind is ready when its kernels are compiled, which takes up to a minute each the first time")

    def kind(self, name: str, is_ready: bool) -> None:
        """Say that a kind is ready, or begins to be prepared."""
        self._say(f"demo: {name} is ready" if is_ready else f"demo: preparing {name} ...")

    def updates(self, count: int) -> None:
        """Say once that there are updates."""
        if count and not self._first:
            self._first = True
            self._say(f"demo: first update after {time.monotonic() - self._began:.1f} s; Ctrl-C ends it in order")

    def ended(self, out: Path) -> None:
        """Say how to check the folder."""
        self._say(f"demo: compare every update with the oracle: skyray verify {cell(out)}")

    def _say(self, line: str) -> None:
        if self._is_text:
            sys.stderr.write(line + "\n")
            sys.stderr.flush()
        else:
            driver_log().info("demo", says=line)
