"""A feed folder (`spark_etl.feed_folder`): batches that a job such as Spark's commits.

A partition is a sink of the folder, an offset a number of a row, from 0, the token the job that writes the sink.
"""

import time
from collections.abc import Iterator
from pathlib import Path

from gateway.sources.source import Delivered, Position, SourceAway
from matching.errors import ConfigError
from spark_etl.feed_folder import FeedSink, sinks_of

#: Seconds between two looks for a new batch.
_LOOK_S = 0.05
_ANOTHER = "Bring the earlier folder back, or name another --out."


class FolderSource:
    """See `gateway.sources.source.BrokerSource`. Needs no package of its own."""

    extra = ""

    def __init__(self, folder: Path):
        self.name = f"feed/{folder.name}"
        self._folder = folder
        self._readers: dict[str, _SinkReader] = {}
        self._after: dict[str, tuple[int, str]] = {}

    def open(self, after: Position) -> int:
        self.close()
        self._after = dict(after)
        try:
            there = sinks_of(self._folder)
            if missing := sorted(after.keys() - set(there)):
                raise ConfigError(f"{self.name}: has no sink {missing[0]}, which was read. {_ANOTHER}")
            self._look(there)
        except OSError as error:
            raise self._away(error) from error
        return 0

    def read(self, most: int, timeout_s: float) -> list[Delivered]:
        deadline_s = time.monotonic() + timeout_s
        while True:
            try:
                found = self._take(most)
                if not found:
                    self._look(sinks_of(self._folder))
            except OSError as error:
                raise self._away(error) from error
            left_s = deadline_s - time.monotonic()
            if found or left_s <= 0:
                return found
            time.sleep(min(_LOOK_S, left_s))

    def acknowledge(self, position: Position) -> None:
        pass

    def lag(self) -> int | None:
        try:
            return sum(reader.lag() for reader in list(self._readers.values()))
        except OSError:
            return None

    def close(self) -> None:
        self._readers = {}

    def _look(self, there: list[str]) -> None:
        """Open the sinks that are new."""
        for name in there:
            if name not in self._readers:
                self._readers[name] = _SinkReader(self.name, FeedSink(self._folder, name), self._after.get(name))

    def _take(self, most: int) -> list[Delivered]:
        """Rows of each sink, an equal share where all have some."""
        found: list[Delivered] = []
        waiting = list(self._readers.values())
        while waiting and len(found) < most:
            reader = waiting.pop(0)
            found += reader.take(max(1, (most - len(found)) // (len(waiting) + 1)))
        return found

    def _away(self, error: OSError) -> SourceAway:
        return SourceAway(f"{self.name}: {self._folder} cannot be read ({error.strerror}); is it there and readable?")


class _SinkReader:
    """Reads the rows of a sink in order, behind those that were read."""

    def __init__(self, source: str, sink: FeedSink, after: tuple[int, str] | None):
        offset, token = after or (-1, "")
        self._sink = sink
        self._token = sink.query() or ""
        if after is not None and token != self._token:
            raise ConfigError(f"{source}: sink {sink.name} was created anew, by another checkpoint. {_ANOTHER}")
        self._next = offset + 1
        try:
            self._number = sink.batch_with(self._next)
        except ConfigError as error:
            raise ConfigError(f"{error}. {_ANOTHER}") from None
        self._lines: Iterator[bytes] | None = None

    def take(self, most: int) -> list[Delivered]:
        found: list[Delivered] = []
        while len(found) < most:
            if self._lines is None:
                batch = self._sink.batch(self._number)
                if batch is None:
                    break
                self._lines = self._sink.lines(batch, self._next - batch.first)
            line = next(self._lines, None)
            if line is None:
                self._number, self._lines = self._number + 1, None
            else:
                found.append(Delivered(self._sink.name, self._next, self._token, line))
                self._next += 1
        return found

    def lag(self) -> int:
        count = self._sink.batches(self._number)
        last = self._sink.batch(count - 1) if count else None
        return max(0, last.first + last.rows - self._next) if last else 0
