"""Messages and changes of subscriptions, line by line as they come; updates out, line by line as they are found.

    {"id": "m1", "text": "ramen is open", "lon": 139.69, "lat": 35.68}
    {"subscribe": {"subscription_id": "s1", "kind": "knn", "keywords": "ramen", "lon": 139.7, "lat": 35.7, "k": 3}}
    {"unsubscribe": "s1"}

A thread reads, so that lines that come while a batch is matched are waiting when it is done; what reads ahead is
bounded, and then the pipe holds the producer back. A batch is closed when it is full, or when the first line in it has
waited for the linger time. A change stands in its place in the stream. Used by `gateway.commands.live`; read on in
`gateway.engine`, which matches, and in `gateway.journal`, which remembers.
"""

import queue
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import IO, Any, NamedTuple, Protocol

import msgspec
import numpy as np

from gateway.engine import Engine
from gateway.terminal import as_json
from matching.errors import CheckpointError, InputError
from matching.reasons import MAX_LINE_BYTES, explain
from matching.validate import decode_object
from topology.core.metrics import LatencyHistogram

#: Lines that are read ahead of the batch at hand, at most.
READ_AHEAD = 20_000
#: How often it is asked whether to stop, while nothing comes.
_LOOK_S = 0.2
#: Characters of a refused line that are told.
_QUOTED = 200


class Line(NamedTuple):
    """One line of the input: its number from 1 on, its bytes, and when it came, by a clock that never jumps."""

    number: int
    data: bytes
    came_s: float


class Keeper(Protocol):
    """Who remembers lines before they are matched, and what was told of them."""

    def keep(self, lines: Sequence[Line], last_seq: int) -> None:
        """These lines were taken; returns when no failure can undo that.

        They end the batch of which message `last_seq` is the last, or, if that is -1, no batch: changes without any
        message, which count with the next one.
        """
        ...

    def told(self, rows: list[dict[str, Any]], last_seq: int) -> None:
        """What the batch that ends with that message has changed."""
        ...


class Figures:
    """Counts of a pipe, for the end.

    Attributes
    ----------
    lines, batches, updates : int
    refused : Counter    lines, by reason
    latency : LatencyHistogram    from line in to line out, of lines that are not refused
    """

    def __init__(self) -> None:
        self.lines = self.batches = self.updates = 0
        self.refused: Counter[str] = Counter()
        self.latency = LatencyHistogram()


class Pipe:
    """Reads lines, has them matched, writes updates.

    Parameters
    ----------
    engine : Engine
    source : binary file
    write : callable
        Takes the lines of a batch as bytes, each with its end.
    refuse : callable
        Takes what is wrong with a line, as a dict of `line`, `reason`, `what` and `row`.
    batch : int
        Messages and changes of a batch at most.
    linger_s : float
        How long the first line of a batch waits for others.
    keeper : Keeper, optional
    """

    def __init__(
        self,
        engine: Engine,
        source: IO[bytes],
        write: Callable[[bytes], None],
        refuse: Callable[[dict[str, Any]], None],
        batch: int = 5_000,
        linger_s: float = 0.05,
        keeper: Keeper | None = None,
    ):
        self.engine = engine
        self.figures = Figures()
        self._source = source
        self._write = write
        self._refuse = refuse
        self._batch = batch
        self._linger_s = linger_s
        self._keeper = keeper
        self._lines: queue.Queue[Line | None] = queue.Queue(READ_AHEAD)
        self._open: list[Line] = []
        #: Lines that have come before the source begins: the first one has the next number.
        self.lines_before = 0

    def run(self, stop: Callable[[], bool] = lambda: False) -> None:
        """Go on until the source ends or `stop` says so, and close the last batch.

        Raises
        ------
        DeliveryError
            And whatever else keeping or writing raises.
        """
        threading.Thread(target=self._read, name="lines", daemon=True).start()
        try:
            self._go_on(stop)
        finally:
            self.close_batch()

    def _go_on(self, stop: Callable[[], bool]) -> None:
        while not stop():
            left_s = self._open[0].came_s + self._linger_s - time.monotonic() if self._open else _LOOK_S
            try:
                line = self._lines.get(timeout=min(max(0.0, left_s), _LOOK_S))
            except queue.Empty:
                if self._open and left_s <= _LOOK_S:
                    self.close_batch()
                continue
            if line is None:
                return
            self.take(line)
            full = self.engine.waiting >= self._batch
            overdue = bool(self._open) and time.monotonic() >= self._open[0].came_s + self._linger_s
            if full or (overdue and self._lines.empty()):  # what is at hand goes with it, as far as there is room
                self.close_batch()

    def take(self, line: Line) -> None:
        """Put one line into the batch that is open, or refuse it. Empty lines are let pass."""
        self.figures.lines += 1
        if not line.data.strip():
            return
        reason, what = self.put(line)
        if reason is None:
            return
        self.figures.refused[reason] += 1
        quoted = line.data[:_QUOTED].decode(errors="replace").rstrip("\r\n")
        self._refuse({"line": line.number, "reason": reason, "what": what, "row": quoted})

    def put(self, line: Line) -> tuple[str | None, str]:
        """Put a line into the batch that is open; why not, as a code and in words, if it is refused."""
        reason, what = self._offer(line.data)
        if reason is None:
            self._open.append(line)
        return reason, what

    def close_batch(self) -> None:
        """Match what waits, and tell what it changes; changes alone count with the next message."""
        lines, self._open = self._open, []
        if not lines:
            return
        messages = self.engine.offered > 0
        if self._keeper is not None:
            self._keeper.keep(lines, self.engine.next_seq - 1 if messages else -1)
        if not messages:
            return
        rows = self._match()
        self.write(rows)
        now_s = time.monotonic()
        self.figures.updates += len(rows)
        self.figures.latency.record(now_s - np.array([line.came_s for line in lines]))

    def write(self, rows: Sequence[dict[str, Any]]) -> None:
        """Write updates out, all at once."""
        if rows:
            self._write(b"".join(map(_encoded, rows)))

    def replay(self, lines: Sequence[bytes], closes: bool) -> list[dict[str, Any]]:
        """Match lines that were taken before once more; what that changes is returned, and not written."""
        for line in lines:
            reason, what = self._offer(line)
            if reason is not None:
                raise CheckpointError(
                    f"a line that was taken before is refused now ({reason}: {what}): {line[:_QUOTED]!r}"
                )
        return self._match() if closes else []

    def _match(self) -> list[dict[str, Any]]:
        rows = self.engine.tell(self.engine.close_batch())
        if self._keeper is not None:
            self._keeper.told(rows, self.engine.last.last_seq)
        self.figures.batches += 1
        return rows

    def _offer(self, data: bytes) -> tuple[str | None, str]:
        row = decode_object(data)
        if isinstance(row, str):
            return row, explain(row, self.engine.kinds)
        if "subscribe" in row or "unsubscribe" in row:
            if len(row) > 1:
                return "unknown_column", "subscribe and unsubscribe stand alone in their line"
            return self._change(row)
        reason = self.engine.offer(row)
        return reason, "" if reason is None else explain(reason, self.engine.kinds)

    def _change(self, row: dict[str, Any]) -> tuple[str | None, str]:
        try:
            if "subscribe" in row:
                asked = row["subscribe"]
                if not isinstance(asked, dict):
                    raise InputError("wrong_type", "subscribe takes an object with the columns of a subscription")
                self.engine.subscribe(asked)
            else:
                if not isinstance(row["unsubscribe"], str):
                    raise InputError("bad_id", "unsubscribe takes the id of a subscription")
                self.engine.unsubscribe(row["unsubscribe"])
        except InputError as error:
            return error.reason_code, str(error)
        return None, ""

    def _read(self) -> None:
        number = self.lines_before
        try:
            while data := self._source.readline(MAX_LINE_BYTES + 1):
                number += 1
                while len(data) > MAX_LINE_BYTES and not data.endswith(b"\n"):
                    more = self._source.readline(MAX_LINE_BYTES)
                    if not more:
                        break
                    data = data[: MAX_LINE_BYTES + 1] + (b"\n" if more.endswith(b"\n") else b"")
                self._lines.put(Line(number, data, time.monotonic()))
        finally:
            self._lines.put(None)


def _encoded(row: dict[str, Any]) -> bytes:
    return msgspec.json.encode(row) + b"\n"


def to_standard_output() -> Callable[[bytes], None]:
    """Writes lines to standard output at once; what a terminal would obey is escaped where there is one."""
    if sys.stdout.isatty():

        def show(data: bytes) -> None:
            for line in data.splitlines():
                sys.stdout.write(as_json(msgspec.json.decode(line)) + "\n")
            sys.stdout.flush()

        return show

    def write(data: bytes) -> None:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()

    return write
