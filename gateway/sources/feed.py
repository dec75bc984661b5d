"""Reads a source in a thread and hands what it has to the gate; opens it again, with patience, when the broker is away.

A message is handed over once in this process, since reading continues behind the last one that was handed over; and
once in all, since a restart continues behind the position in the log.
"""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from gateway.live.open_batch import InputLine
from gateway.live.pipe import Pipe, one_line
from gateway.live.write_ahead_log import WriteAheadLog
from gateway.sources.source import BrokerSource, Position, SourceAway
from spouts.log import Origin

#: Messages that are read at a time at most, in the first read, and bytes from which on fewer are.
MOST_READ, FIRST_READ, READ_BYTES = 2_000, 100, 16 * 2**20
#: Seconds that a read waits for messages; that a wait for room lasts before the end of the stream is looked for.
_READ_S, _ROOM_S = 0.2, 0.1
#: Seconds before a broker that is away is tried again, doubled each time.
LEAST_PAUSE_S, MOST_PAUSE_S = 0.1, 5.0

#: Takes lines, each with its origin; False if there is no room now, and nothing was taken.
HandOver = Callable[[Sequence[InputLine]], bool]


class Feed:
    """The thread of one source.

    Parameters
    ----------
    wal : WriteAheadLog
        It has the position to begin behind.
    hand_over : callable
        See `HandOver`.

    Attributes
    ----------
    state : str
        `connecting`, `reading`, `away` (tried again and again) or `ended`.
    error : str
        Why the broker is away; "" if it is not.
    records, reconnects, removed : int
        Messages that were handed over; times that the broker was away; messages that it removed before they were read.
    failure : BaseException or None
        What ended the thread: the stream is not the one that was read before, say.
    ended : bool
    """

    def __init__(self, source: BrokerSource, wal: WriteAheadLog, hand_over: HandOver):
        self.state, self.error = "connecting", ""
        self.records = self.reconnects = self.removed = 0
        self.failure: BaseException | None = None
        self.ended = False
        self._source = source
        self._wal = wal
        self._hand_over = hand_over
        self._read: dict[str, tuple[int, str]] = dict(wal.positions.get(source.name, {}))
        self._number = wal.line
        self._most = FIRST_READ
        self._acknowledged: Position = {}
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="source", daemon=True)

    @property
    def name(self) -> str:
        return self._source.name

    def begin(self) -> None:
        """Start the thread."""
        self._thread.start()

    def finish(self) -> None:
        """Read no more; what was handed over stays so."""
        self._closing.set()

    def close(self, seconds: float = 5.0) -> None:
        """As `finish`, and wait until the source is closed, so long at most."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(seconds)

    def figures(self) -> dict[str, Any]:
        """For people and metrics, from any thread."""
        at = {partition: offset for partition, (offset, _) in self._wal.positions.get(self.name, {}).items()}
        return {
            "name": self.name,
            "state": self.state,
            "error": self.error or None,
            "lag": self._source.lag(),
            "records": self.records,
            "reconnects": self.reconnects,
            "removed": self.removed,
            "durable": at,
        }

    def _run(self) -> None:
        pause_s = LEAST_PAUSE_S
        try:
            while not self._closing.is_set():
                try:
                    self.removed += self._source.open(self._read)
                    self.state, self.error, pause_s = "reading", "", LEAST_PAUSE_S
                    while not self._closing.is_set():
                        self._advance()
                except SourceAway as error:
                    self.state, self.error = "away", str(error)
                    self.reconnects += 1
                    self._closing.wait(pause_s)
                    pause_s = min(2 * pause_s, MOST_PAUSE_S)
                finally:
                    self._source.close()
        except BaseException as error:
            self.failure = error  # the driver raises it
        if self.failure is None:
            self.state = "ended"
        self.ended = True

    def _advance(self) -> None:
        """Read some messages, hand them over, and report what is durable."""
        lines = self._new(self._most)
        size_bytes = sum(len(line.data) for line in lines)
        if lines:
            self._most = min(MOST_READ, 2 * self._most, max(1, READ_BYTES * len(lines) // max(1, size_bytes)))
        while lines and not self._closing.is_set():
            if self._hand_over(lines):
                self._note(lines)
                break
        durable = self._wal.positions.get(self.name, {})
        if durable is not self._acknowledged:
            self._acknowledged = durable
            self._source.acknowledge(durable)

    def _new(self, most: int) -> list[InputLine]:
        """The next messages, without any that a broker delivers again."""
        found, came_s, last = [], time.monotonic(), {key: offset for key, (offset, _) in self._read.items()}
        for one in self._source.read(most, _READ_S):
            if one.offset > last.get(one.partition, -1):
                last[one.partition] = one.offset
                number = self._number + len(found) + 1
                origin = Origin(self.name, one.partition, one.offset, one.token)
                found.append(InputLine(number, one_line(one.data), came_s, origin))
        return found

    def _note(self, lines: Sequence[InputLine]) -> None:
        for line in lines:
            if line.origin is not None:
                self._read[line.origin.partition] = line.origin.offset, line.origin.token
        self._number += len(lines)
        self.records += len(lines)


def into_pipe(pipe: Pipe, stop: Callable[[], bool]) -> HandOver:
    """Hands lines to `skyray live`, waiting while too many are ahead; when the stream ends, the rest is not taken."""

    def hand_over(lines: Sequence[InputLine]) -> bool:
        for line in lines:
            while not pipe.offer(line, _ROOM_S):
                if pipe.ended or stop():
                    return True  # it takes no line any more
        return True

    return hand_over
