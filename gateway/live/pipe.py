"""Reads messages and changes of subscriptions line by line, and cuts them into batches.

    {"id": "m1", "text": "ramen is open", "lon": 139.69, "lat": 35.68}
    {"subscribe": {"subscription_id": "s1", "kind": "knn", "keywords": "ramen", "lon": 139.7, "lat": 35.7, "k": 3}}
    {"unsubscribe": "s1"}

A thread reads ahead into a bounded queue, so that a fast producer waits. The pipe closes a batch when it is full, or
when its first line has waited for the linger time, but not while too many batches are in flight. A change takes effect
at its place in the stream.
"""

import queue
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import IO, Any

import msgspec

from gateway.live.admission import Admission, RefusedLine
from gateway.live.batching import Batching
from gateway.live.in_flight import InFlight
from gateway.live.mapping import ColumnMapping
from gateway.live.open_batch import InputLine
from gateway.live.reading import MANY, NOT_READ
from gateway.live.write_ahead_log import WriteAheadLog
from gateway.shell.terminal import as_json
from matching.reasons import MAX_LINE_BYTES
from matching.runs import runs
from matching.validate import ParsedMessage, bare
from topology.preparing import Preparing

#: Lines that are read and not in a batch yet, and their bytes.
READ_AHEAD, READ_AHEAD_BYTES = 20_000, 32 * 2**20
#: Bytes that are read from a pipe at a time, at most.
_CHUNK_BYTES = 2**18
#: Lines that are queued at a time.
_SOME = 1_000
#: Seconds between two checks of `stop` while no line arrives.
_LOOK_S = 0.2
#: Seconds for which an overdue batch waits for capacity, before it takes further lines.
_AGAIN_S = 0.02
#: Characters of a refused line that are reported.
_QUOTED = 200


class Pipe:
    """Reads lines and gives them to the write-ahead log, batch by batch.

    Parameters
    ----------
    refuse : callable
        Called with each refusal: a dict of `line` (or of `source`, `partition` and `offset`), `reason`, `what`, `row`,
        `column` and `value`. Also with each message that was taken without some values: in place of `reason`, `what`,
        `column` and `value` the dict has `warnings`, each with `column`, `value` and `why`.
    batch : int
        Messages and changes of a batch at most.
    linger_s : float
        Seconds after which a batch closes, counted from the arrival of its first line.
    mapping : ColumnMapping, optional
        Renames the columns of each line.
    preparing : Preparing, optional
        Compiles the kernels of kinds; the pipe stores no batch before the kernels of its kinds are ready.

    Attributes
    ----------
    batching : Batching
        The open batch.
    lines : int
    refused : Counter    lines, by reason
    failure : Exception or None
        The error that ended `run`.
    started, ended : bool
        Whether `start` was called, and whether its thread has returned.
    """

    def __init__(
        self,
        admission: Admission,
        wal: WriteAheadLog,
        refuse: Callable[[dict[str, Any]], None],
        in_flight: InFlight,
        batch: int = 5_000,
        linger_s: float = 0.05,
        mapping: ColumnMapping | None = None,
        preparing: Preparing | None = None,
    ):
        self.lines = 0
        self.refused: Counter[str] = Counter()
        self.failure: BaseException | None = None
        self.started = self.ended = False
        self._wal = wal
        self._refuse = refuse
        self._in_flight = in_flight
        self.batching = Batching(admission, wal, in_flight, batch, linger_s, mapping, preparing)
        self._lines = _Lines(READ_AHEAD)

    @property
    def batches(self) -> int:
        """How many were stored."""
        return self.batching.batches

    def start(self, source: IO[bytes] | None, stop: Callable[[], bool], lines_before: int = 0) -> None:
        """Call `run` in a thread, and store its error in `failure`."""

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
            None: other threads call `offer`.
        lines_before : int
            Lines that were read before this call; the first line of the source has the next number.

        Raises
        ------
        DeliveryError
            If the log cannot store a batch; its other errors pass through, too.
        """
        if source is not None:
            threading.Thread(target=self._read, args=(source, lines_before), name="lines", daemon=True).start()
        batching = self.batching
        while not stop():
            batching.end_expired()
            if not batching.open and self._lines.empty():
                self._wal.keep_positions()
                batching.pass_time(time.monotonic())
            left_s, full = batching.left_s(_LOOK_S), batching.full
            if full or (left_s <= 0.0 and self._lines.empty()):
                if self._in_flight.await_capacity(_LOOK_S if full else _AGAIN_S):
                    self.close_batch()
                continue
            # queued lines join an overdue batch until it is full
            lines = self._lines.get_some(min(max(0.0, left_s), _LOOK_S), *batching.room)
            if None in lines:
                break
            self.take_all([line for line in lines if line is not None])
        self.close_batch()
        self._wal.keep_positions()

    def offer(self, line: InputLine, timeout_s: float) -> bool:
        """Put a line into the queue, from another thread; False if the queue is still full after `timeout_s`."""
        try:
            self._lines.put(line, timeout=timeout_s)
        except queue.Full:
            return False
        return True

    def take_all(self, lines: Sequence[InputLine]) -> None:
        """As `take`, of many lines, as many as the open batch has room for."""
        reader = self.batching.reader
        many = len(lines) >= MANY and not self.batching.table_is_full
        found = reader.read([line.data for line in lines]) if many else NOT_READ
        for first, last, place in runs(found.rows, len(lines)):
            if place < 0:
                self.take(lines[first])
                if reader is not self.batching.reader:  # the line has declared an attribute, which those behind it have
                    self.take_all(lines[last:])
                    return
                continue
            some = lines[first:last]
            for line in some:
                if line.origin is not None:
                    self._wal.reached(line.origin)
            self.lines += last - first
            came_s = [line.came_s for line in some]
            taken = found.part(place, place + last - first)
            self.batching.extend(taken, [line.data for line in some], came_s, some[-1].number)

    def take(self, line: InputLine) -> None:
        """Put one line of the queue into the open batch, or report its refusal. Skips lines without a row (`bare`)."""
        self.lines += 1
        if line.origin is not None:
            self._wal.reached(line.origin)
        if not bare(line.data):
            return
        found = self.batching.admit(line, self.batching.mapping.rename(line.data))
        said: dict[str, Any] = {}
        if isinstance(found, RefusedLine):
            self.refused[found.reason] += 1
            said = {"reason": found.reason, "what": found.what, **found.named(line.data)}
        elif isinstance(found, ParsedMessage) and found.misfits:
            said = {"warnings": [one.named for one in found.misfits]}
        if not said:
            return
        quoted = line.data[:_QUOTED].decode(errors="replace").rstrip("\r\n")
        place = {"line": line.number}
        if line.origin is not None:
            place = {"source": line.origin.source, "partition": line.origin.partition, "offset": line.origin.offset}
        self._refuse({**place, **said, "row": quoted})

    def close_batch(self) -> None:
        """Store the open batch; changes without a message belong to the next one."""
        self.batching.close()

    def _read(self, source: IO[bytes], number: int) -> None:
        """Queue all lines of a source, cut at `MAX_LINE_BYTES` + 1, then None; `number`: that of the line before."""
        rest = b""
        read: Callable[[int], bytes] = getattr(source, "read1", source.read)  # what is there, as soon as anything is
        try:
            while chunk := read(_CHUNK_BYTES):
                *whole, rest = (rest + chunk).split(b"\n")
                came_s = time.monotonic()
                cut = [data[: MAX_LINE_BYTES + 1] for data in whole]
                lines = [InputLine(number + place, data, came_s) for place, data in enumerate(cut, 1)]
                self._lines.put_some(lines)
                number, rest = number + len(whole), rest[: MAX_LINE_BYTES + 1]
            if rest:
                self._lines.put(InputLine(number + 1, rest, time.monotonic()))
        finally:
            self._lines.put(None)


class _Lines(queue.Queue[InputLine | None]):
    """A queue that is full by the number of its lines, or by their bytes."""

    def _init(self, maxsize: int) -> None:
        super()._init(maxsize)
        self._bytes = 0

    def _qsize(self) -> int:
        return self.maxsize if self._bytes >= READ_AHEAD_BYTES else super()._qsize()

    def _put(self, item: InputLine | None) -> None:
        super()._put(item)
        self._bytes += 0 if item is None else len(item.data)

    def put_some(self, lines: Sequence[InputLine]) -> None:
        """Put lines, some at a time, each time there is room for one."""
        for first in range(0, len(lines), _SOME):
            with self.not_full:
                while self._qsize() >= self.maxsize:
                    self.not_full.wait()
                for line in lines[first : first + _SOME]:
                    self._put(line)
                self.not_empty.notify()

    def get_some(self, timeout_s: float, most: int, most_bytes: int) -> list[InputLine | None]:
        """Lines that are there, up to so many, or bytes but for the last; [] after the timeout, [None] at the end."""
        found: list[Any] = []
        with suppress(queue.Empty):
            found.append(self.get(timeout=timeout_s))
        if not found or found[0] is None:
            return found
        with self.mutex:
            while self.queue and self.queue[0] is not None and len(found) < most:
                most_bytes -= len(found[-1].data)
                if most_bytes <= 0:
                    break
                found.append(self._get())
            self.not_full.notify_all()
        return found

    def _get(self) -> InputLine | None:
        item: InputLine | None = super()._get()
        self._bytes -= 0 if item is None else len(item.data)
        return item


def one_line(data: bytes) -> bytes:
    """JSON without line ends, which it may have between tokens, where blanks mean the same, but not in strings."""
    return data.replace(b"\r", b" ").replace(b"\n", b" ") if b"\n" in data or b"\r" in data else data


def to_standard_output() -> Callable[[bytes], None]:
    """Return a thread-safe function that writes lines to standard output and flushes.

    On a terminal it escapes control characters.
    """
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
