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
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import IO, Any, NamedTuple, Protocol

import msgspec

from gateway.live.admission import Admission, Change, Refused
from gateway.live.in_flight import InFlight
from gateway.live.mapping import ColumnMapping, RenamedLine
from gateway.live.reading import MANY, NOT_READ, LineReader, ReadLines
from gateway.shell.terminal import as_json
from matching.attributes import NO_ATTRIBUTES, AttributeSchema
from matching.reasons import MAX_LINE_BYTES
from matching.validate import ParsedMessage, bare, decode_object
from spouts.log import Origin
from spouts.messages import OpenBlock
from topology.preparing import Preparing
from topology.warmup import WORDS

#: Lines that are read and not in a batch yet, and their bytes.
READ_AHEAD, READ_AHEAD_BYTES = 20_000, 32 * 2**20
#: Bytes of lines with which a batch is full, however few they are.
BATCH_BYTES = 16 * 2**20
#: Bytes that are read from a pipe at a time, at most.
_CHUNK_BYTES = 2**18
#: Lines that are queued at a time.
_SOME = 1_000
#: Seconds between two checks of `stop` while no line arrives.
_LOOK_S = 0.2
#: Seconds for which an overdue batch waits for capacity, before it takes further lines.
_AGAIN_S = 0.02
#: Of messages that are read together one of so many is looked at for fields without an attribute: a look takes 20 us.
_SAMPLE = 128
#: Characters of a refused line that are reported.
_QUOTED = 200


class Line(NamedTuple):
    """One line of the input.

    number : int      from 1
    data : bytes
    came_s : float    `time.monotonic` at its arrival
    origin : Origin or None    its source, partition and offset; None for a line of a pipe or a request
    """

    number: int
    data: bytes
    came_s: float
    origin: Origin | None = None


class OpenBatch:
    """Accepted lines that are logged together.

    Parameters
    ----------
    schema : AttributeSchema

    Attributes
    ----------
    messages : OpenBlock
    changes : list of int       how many of the messages come before each change of subscriptions
    lines : list of bytes       the changes
    checked : list              the same, checked
    came_s : list of float      `time.monotonic` at the arrival of each line
    message_came_s : list of float    the same of the messages
    line : int                  number of the last line
    size_bytes : int            of the lines
    """

    def __init__(self, schema: AttributeSchema):
        self.messages = OpenBlock(schema)
        self.changes: list[int] = []
        self.lines: list[bytes] = []
        self.checked: list[Change] = []
        self.came_s: list[float] = []
        self.message_came_s: list[float] = []
        self.line = self.size_bytes = 0

    def __len__(self) -> int:
        return len(self.came_s)

    def append(self, line: Line, found: ParsedMessage | Change) -> None:
        """Take a line, its columns renamed, and what it was checked to be."""
        if isinstance(found, ParsedMessage):
            self.messages.append(found)
            self.message_came_s.append(line.came_s)
        else:
            self.changes.append(len(self.messages))
            self.lines.append(line.data)
            self.checked.append(found)
        self.came_s.append(line.came_s)
        self.line = line.number
        self.size_bytes += len(line.data)

    def note(self, line: int, came_s: float) -> None:
        """Take a line that has neither a message nor a change: it has declared an attribute."""
        self.came_s.append(came_s)
        self.line = line

    def extend(self, found: ReadLines, ahead: Sequence[int], lines: Sequence[Line]) -> None:
        """Take the messages of lines, in their order."""
        columns = found.ids, found.texts, found.lon, found.lat, found.time_us, found.attributes
        self.messages.extend(*columns, ahead, found.made)
        came_s = [line.came_s for line in lines]
        self.message_came_s += came_s
        self.came_s += came_s
        self.line = lines[-1].number
        self.size_bytes += sum(len(line.data) for line in lines)

    @property
    def ends_with_change(self) -> bool:
        """Whether a change comes after the last message."""
        return self.changes[-1:] == [len(self.messages)]


class Keeper(Protocol):
    """Stores accepted lines batch by batch, and clock marks between them (`gateway.live.stream_clock`).

    `gateway.live.write_ahead_log.WriteAheadLog` is one.
    """

    @property
    def next_seq(self) -> int:
        """Seq of the next message."""
        ...

    def keep(self, batch: OpenBatch) -> None:
        """Store these lines, and return when they are durable.

        With a message among them they are a batch; changes alone belong to the next batch.
        """
        ...

    def reached(self, origin: Origin) -> None:
        """Note that a source is read up to `origin`; the batch that is stored next carries this position."""
        ...

    def keep_positions(self) -> None:
        """Store the positions of the sources, unless the last stored batch has them."""
        ...

    def due(self, now_s: float) -> int | None:
        """Stream time in microseconds of the clock mark that is due at this `time.monotonic`; None if none is due."""
        ...

    def mark(self, time_us: int, now_s: float) -> None:
        """Store a clock mark of this stream time as a batch of its own; returns when it is durable."""
        ...


class Pipe:
    """Reads lines and gives them to a `Keeper`, batch by batch.

    Parameters
    ----------
    admission : Admission
    keeper : Keeper
    refuse : callable
        Called with each refusal: a dict of `line` (or of `source`, `partition` and `offset`), `reason`, `what`, `row`,
        `column` and `value`. Also with each message that was taken without some values: in place of `reason`, `what`,
        `column` and `value` the dict has `warnings`, each with `column`, `value` and `why`.
    in_flight : InFlight
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
        self._unseen = 0  # lines until the next one whose fields are looked at
        self._schema = NO_ATTRIBUTES
        self._reader = LineReader(self._mapping, NO_ATTRIBUTES, admission.space)
        self._lines = _Lines(READ_AHEAD)
        self._open = OpenBatch(admission.vocabulary.attributes)
        self._follow_schema()

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
        stop : callable
        lines_before : int
            Lines that were read before this call; the first line of the source has the next number.

        Raises
        ------
        DeliveryError
            If the keeper cannot store a batch; other errors of the keeper pass through, too.
        """
        if source is not None:
            threading.Thread(target=self._read, args=(source, lines_before), name="lines", daemon=True).start()
        while not stop():
            if not self._open and self._lines.empty():
                self._keeper.keep_positions()
                self.pass_time(time.monotonic())
            left_s, full = self._left_s(), self._full
            if full or (left_s <= 0.0 and self._lines.empty()):
                if self._in_flight.await_capacity(_LOOK_S if full else _AGAIN_S):
                    self.close_batch()
                continue
            # queued lines join an overdue batch until it is full
            room = self._batch - len(self._open), self._left_bytes
            lines = self._lines.get_some(min(max(0.0, left_s), _LOOK_S), *room)
            if None in lines:
                break
            self.take_all([line for line in lines if line is not None])
        self.close_batch()
        self._keeper.keep_positions()

    def offer(self, line: Line, timeout_s: float) -> bool:
        """Put a line into the queue, from another thread; False if the queue is still full after `timeout_s`."""
        try:
            self._lines.put(line, timeout=timeout_s)
        except queue.Full:
            return False
        return True

    def subscribe(self, columns: Mapping[str, Any]) -> Refused | None:
        """Put a subscription into the open batch, before `run`; returns its refusal, if any."""
        data = msgspec.json.encode({"subscribe": columns})
        found = self._admit(Line(0, data, time.monotonic()), RenamedLine(data, decode_object(data)))
        return found if isinstance(found, Refused) else None

    def take_all(self, lines: Sequence[Line]) -> None:
        """As `take`, of many lines, as many as the open batch has room for."""
        reader = self._reader
        found = reader.read([line.data for line in lines]) if len(lines) >= MANY else NOT_READ
        for first, last, place in found.runs(len(lines)):
            if place < 0:
                self.take(lines[first])
                if reader is not self._reader:  # the line has declared an attribute, which those behind it have
                    self.take_all(lines[last:])
                    return
                continue
            for line in lines[first:last]:
                if line.origin is not None:
                    self._keeper.reached(line.origin)
            self.lines += last - first
            self._take_read(found.part(place, place + last - first), lines[first:last])

    def _take_read(self, found: ReadLines, lines: Sequence[Line]) -> None:
        """Put messages that the reader is sure of into the open batch."""
        step = 1 if self._admission.recent.is_new else _SAMPLE
        for line in lines[self._unseen :: step]:
            self._note(self._mapping.rename(line.data), sampled=True)
        self._unseen = 0 if step == 1 else (self._unseen - len(lines)) % _SAMPLE
        self._open.extend(found, self._admission.ahead_of(found.time_us), lines)

    def take(self, line: Line) -> None:
        """Put one line of the queue into the open batch, or report its refusal. Skips lines without a row (`bare`)."""
        self.lines += 1
        if line.origin is not None:
            self._keeper.reached(line.origin)
        if not bare(line.data):
            return
        found = self._admit(line, self._mapping.rename(line.data))
        said: dict[str, Any] = {}
        if isinstance(found, Refused):
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

    def _admit(self, line: Line, renamed: RenamedLine | Refused) -> ParsedMessage | Change | Refused:
        """Check a line, and append it with its new names to the open batch; returns what it is, or its refusal."""
        if isinstance(renamed, Refused):
            return renamed
        found = self._admission.row(renamed.row, lambda role: self._mapping.column_of(line.data, role), renamed.data)
        if isinstance(found, Refused):
            return found
        self._follow_schema()
        self._note(renamed)
        self._open.append(line._replace(data=renamed.data), found)
        return found

    def _note(self, renamed: RenamedLine | Refused, sampled: bool = False) -> None:
        """Note the fields of a message that no attribute is declared for."""
        if isinstance(renamed, RenamedLine) and renamed.came:
            self._admission.recent.note(renamed.came, renamed.taken, self._schema, sampled)

    def _follow_schema(self) -> None:
        """Read lines from now on with the attributes that are declared."""
        schema = self._admission.vocabulary.attributes
        if schema is not self._schema:
            self._schema = schema
            self._reader = LineReader(self._mapping, schema, self._admission.space)
            self._mapping.declare(schema)
            self._open.messages.declare(schema)

    def close_batch(self) -> None:
        """Store the open batch; changes without a message belong to the next one."""
        batch, self._open = self._open, OpenBatch(self._admission.vocabulary.attributes)
        if not batch:
            return
        if self._preparing is not None:
            self._preparing.wait([WORDS, *(kind.name for kind in self._admission.kinds_met)])
        if messages := len(batch.messages):
            self.batches += 1
            self._in_flight.add(self._keeper.next_seq + messages - 1, batch.came_s)
        self._keeper.keep(batch)

    def pass_time(self, now_s: float) -> None:
        """Store a clock mark if one is due, unless too many batches are in flight; called while no line arrives."""
        time_us = self._keeper.due(now_s)
        if time_us is not None and self._in_flight.await_capacity(0.0):
            self._in_flight.add(self._keeper.next_seq, [])
            self._keeper.mark(time_us, now_s)

    @property
    def _full(self) -> bool:
        """Whether the open batch takes no more lines."""
        return len(self._open) >= self._batch or self._left_bytes <= 0

    @property
    def _left_bytes(self) -> int:
        """Bytes of lines for which the open batch has room; the last line may exceed it."""
        return BATCH_BYTES - self._open.size_bytes

    def _left_s(self) -> float:
        """Seconds that the open batch may still wait for lines."""
        return self._open.came_s[0] + self._linger_s - time.monotonic() if self._open else _LOOK_S

    def _read(self, source: IO[bytes], number: int) -> None:
        """Queue all lines of a source, cut at `MAX_LINE_BYTES` + 1, then None; `number`: that of the line before."""
        rest = b""
        read: Callable[[int], bytes] = getattr(source, "read1", source.read)  # what is there, as soon as anything is
        try:
            while chunk := read(_CHUNK_BYTES):
                *whole, rest = (rest + chunk).split(b"\n")
                came_s = time.monotonic()
                cut = [data[: MAX_LINE_BYTES + 1] for data in whole]
                lines = [Line(number + place, data, came_s) for place, data in enumerate(cut, 1)]
                self._lines.put_some(lines)
                number, rest = number + len(whole), rest[: MAX_LINE_BYTES + 1]
            if rest:
                self._lines.put(Line(number + 1, rest, time.monotonic()))
        finally:
            self._lines.put(None)


class _Lines(queue.Queue[Line | None]):
    """A queue that is full by the number of its lines, or by their bytes."""

    def _init(self, maxsize: int) -> None:
        super()._init(maxsize)
        self._bytes = 0

    def _qsize(self) -> int:
        return self.maxsize if self._bytes >= READ_AHEAD_BYTES else super()._qsize()

    def _put(self, item: Line | None) -> None:
        super()._put(item)
        self._bytes += 0 if item is None else len(item.data)

    def put_some(self, lines: Sequence[Line]) -> None:
        """Put lines, some at a time, each time there is room for one."""
        for first in range(0, len(lines), _SOME):
            with self.not_full:
                while self._qsize() >= self.maxsize:
                    self.not_full.wait()
                for line in lines[first : first + _SOME]:
                    self._put(line)
                self.not_empty.notify()

    def get_some(self, timeout_s: float, most: int, most_bytes: int) -> list[Line | None]:
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

    def _get(self) -> Line | None:
        item: Line | None = super()._get()
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
