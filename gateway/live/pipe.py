"""Reads messages and changes of subscriptions line by line, and cuts them into batches.

    {"id": "m1", "text": "ramen is open", "lon": 139.69, "lat": 35.68}
    {"subscribe": {"subscription_id": "s1", "kind": "knn", "keywords": "ramen", "lon": 139.7, "lat": 35.7, "k": 3}}
    {"unsubscribe": "s1"}

A thread reads ahead, up to a bound that makes the producer wait. A batch is closed when it is full, or when its first
line has waited for the linger time, but not while too many are in flight. A change takes effect at its place in the
stream. Used by `gateway.commands.live`; read on in `gateway.live.mapping`, which finds the columns of a line, in
`gateway.live.admission`, which checks it, and in `gateway.live.write_ahead_log`, which logs it.
"""

import queue
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import IO, Any, NamedTuple, Protocol

import msgspec

from gateway.live.admission import Admission, Refused
from gateway.live.in_flight import InFlight
from gateway.live.mapping import ColumnMapping
from gateway.shell.terminal import as_json
from matching.reasons import MAX_LINE_BYTES
from matching.validate import ParsedMessage
from spouts.log import Origin
from topology.preparing import Preparing

#: Lines that are read ahead of the open batch, at most.
READ_AHEAD = 20_000
#: Seconds between two checks of `stop` while no line comes.
_LOOK_S = 0.2
#: Seconds after which a batch that waits for capacity takes lines that have come.
_AGAIN_S = 0.02
#: Characters of a refused line that are reported.
_QUOTED = 200


class Line(NamedTuple):
    """One line of the input: its number from 1, its bytes, when it came, by `time.monotonic`, and from which source."""

    number: int
    data: bytes
    came_s: float
    origin: Origin | None = None


class Taken(NamedTuple):
    """An accepted line with the names of a message; `message` is None for a change of subscriptions."""

    line: Line
    message: ParsedMessage | None


class Keeper(Protocol):
    """Stores accepted lines batch by batch, and clock marks between them."""

    @property
    def next_seq(self) -> int:
        """Seq of the next message."""
        ...

    def keep(self, taken: list[Taken]) -> None:
        """Store these lines as a batch; without any message they belong to the next one. Returns when durable."""
        ...

    def reached(self, origin: Origin) -> None:
        """A source is read up to here, in the batch that is stored next."""
        ...

    def keep_positions(self) -> None:
        """Store how far sources are read, if nothing that was stored says so."""
        ...

    def due(self, now_s: float) -> int | None:
        """Stream time of the mark that is due at this `time.monotonic`; None if none is."""
        ...

    def mark(self, time_us: int, now_s: float) -> None:
        """Store a mark of this stream time as a batch of its own; as `keep`."""
        ...


class Pipe:
    """Reads lines and gives them to a `Keeper`, batch by batch.

    Parameters
    ----------
    admission : Admission
    keeper : Keeper
    refuse : callable
        Takes a refusal: a dict of `line`, or `source`, `partition` and `offset`, and of `reason`, `what` and `row`.
    in_flight : InFlight
    batch : int
        Messages and changes of a batch at most.
    linger_s : float
        Seconds that the first line of a batch waits for others.
    mapping : ColumnMapping, optional
        Which columns of a line are those of a message.
    preparing : Preparing, optional
        Prepares the kernels of kinds: a batch waits for those of the kinds that it is the first to have.

    Attributes
    ----------
    lines, batches : int
    refused : Counter    lines, by reason
    failure : Exception or None
        The error that ended `run`.
    started, ended : bool
        Whether `start` was called, and whether its thread has returned.
    """

    def __init__(
        self,
        admission: Admission,
        keeper: Keeper,
        refuse: Callable[[dict[str, Any]], None],
        in_flight: InFlight,
        batch: int = 5_000,
        linger_s: float = 0.05,
        mapping: ColumnMapping | None = None,
        preparing: Preparing | None = None,
    ):
        self.lines = self.batches = 0
        self.refused: Counter[str] = Counter()
        self.failure: BaseException | None = None
        self.started = self.ended = False
        self._admission = admission
        self._keeper = keeper
        self._refuse = refuse
        self._in_flight = in_flight
        self._batch = batch
        self._linger_s = linger_s
        self._mapping = mapping or ColumnMapping()
        self._preparing = preparing
        self._lines: queue.Queue[Line | None] = queue.Queue(READ_AHEAD)
        self._open: list[Taken] = []

    def start(self, source: IO[bytes] | None, stop: Callable[[], bool], lines_before: int = 0) -> None:
        """`run` in a thread; its error is stored in `failure`."""

        def run() -> None:
            try:
                self.run(source, stop, lines_before)
            except BaseException as error:
                self.failure = error
            self.ended = True

        self.started = True
        threading.Thread(target=run, name="pipe", daemon=True).start()

    def run(self, source: IO[bytes] | None, stop: Callable[[], bool] = lambda: False, lines_before: int = 0) -> None:
        """Read until the source ends or `stop` returns True, and close the last batch.

        Parameters
        ----------
        source : binary file, optional
            Without it lines come by `offer`.
        stop : callable
        lines_before : int
            Number of the last line before the source begins.

        Raises
        ------
        DeliveryError
            And what else the keeper raises.
        """
        if source is not None:
            threading.Thread(target=self._read, args=(source, lines_before), name="lines", daemon=True).start()
        while not stop():
            if not self._open and self._lines.empty():
                self._keeper.keep_positions()
                self.pass_time(time.monotonic())
            left_s, full = self._left_s(), len(self._open) >= self._batch
            if full or (left_s <= 0.0 and self._lines.empty()):
                if self._in_flight.await_capacity(_LOOK_S if full else _AGAIN_S):
                    self.close_batch()
                continue
            try:  # lines that are waiting join an overdue batch until it is full
                line = self._lines.get(timeout=min(max(0.0, left_s), _LOOK_S))
            except queue.Empty:
                continue
            if line is None:
                break
            self.take(line)
        self.close_batch()
        self._keeper.keep_positions()

    def offer(self, line: Line, timeout_s: float) -> bool:
        """Hand over a line, from another thread; False if too many wait after so long."""
        try:
            self._lines.put(line, timeout=timeout_s)
        except queue.Full:
            return False
        return True

    def take(self, line: Line) -> None:
        """Put one line into the open batch, or refuse it. Empty lines are skipped."""
        self.lines += 1
        if line.origin is not None:
            self._keeper.reached(line.origin)
        if not line.data.strip():
            return
        refused = self.put(line)
        if refused is None:
            return
        self.refused[refused.reason] += 1
        quoted = line.data[:_QUOTED].decode(errors="replace").rstrip("\r\n")
        place = {"line": line.number}
        if line.origin is not None:
            place = {"source": line.origin.source, "partition": line.origin.partition, "offset": line.origin.offset}
        self._refuse({**place, "reason": refused.reason, "what": refused.what, "row": quoted})

    def put(self, line: Line) -> Refused | None:
        """Put a line into the open batch; returns its refusal, if any."""
        data = self._mapping.rename(line.data)
        if isinstance(data, Refused):
            return data
        found = self._admission.line(data)
        if isinstance(found, Refused):
            return found
        self._open.append(Taken(line._replace(data=data), found))
        return None

    def close_batch(self) -> None:
        """Store the open batch; changes without a message belong to the next one."""
        taken, self._open = self._open, []
        if not taken:
            return
        if self._preparing is not None:
            self._preparing.wait(kind.name for kind in self._admission.kinds_met)
        messages = sum(one.message is not None for one in taken)
        if messages:
            self.batches += 1
            self._in_flight.add(self._keeper.next_seq + messages - 1, [one.line.came_s for one in taken])
        self._keeper.keep(taken)

    def pass_time(self, now_s: float) -> None:
        """While no line comes: store a mark if one is due, unless too many batches are in flight."""
        time_us = self._keeper.due(now_s)
        if time_us is not None and self._in_flight.await_capacity(0.0):
            self._in_flight.add(self._keeper.next_seq, [])
            self._keeper.mark(time_us, now_s)

    def _left_s(self) -> float:
        """Seconds that the open batch may still wait for lines."""
        return self._open[0].line.came_s + self._linger_s - time.monotonic() if self._open else _LOOK_S

    def _read(self, source: IO[bytes], number: int) -> None:
        try:
            while data := source.readline(MAX_LINE_BYTES + 1):
                number += 1
                while len(data) > MAX_LINE_BYTES and not data.endswith(b"\n"):
                    more = source.readline(MAX_LINE_BYTES)
                    if not more:
                        break
                    data = data[: MAX_LINE_BYTES + 1] + (b"\n" if more.endswith(b"\n") else b"")
                self._lines.put(Line(number, data, time.monotonic()))
        finally:
            self._lines.put(None)


def one_line(data: bytes) -> bytes:
    """JSON without line ends: between its tokens they mean nothing, and within strings there are none."""
    return data.replace(b"\r", b" ").replace(b"\n", b" ") if b"\n" in data or b"\r" in data else data


def to_standard_output() -> Callable[[bytes], None]:
    """Writes lines to standard output at once, from any thread; control characters are escaped on a terminal."""
    lock = threading.Lock()

    def show(data: bytes) -> None:
        with lock:
            for line in data.splitlines():
                sys.stdout.write(as_json(msgspec.json.decode(line)) + "\n")
            sys.stdout.flush()

    def write(data: bytes) -> None:
        with lock:
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()

    return show if sys.stdout.isatty() else write
