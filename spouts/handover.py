"""What goes from the write-ahead log of a live stream to its spouts without being read again.

The process that logs a batch has its columns already, and has checked its subscriptions. Where the spouts run in the
same process, they take the batch from here by its place in the log, and a subscription by its line; what is not here
they read from the log: on Ray, after a restart or a rollback, and what was dropped because a spout was late. Both ways
give the same.
"""

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from matching.validate import ParsedSubscription
from spouts.cutting import Rows

#: Bytes of batches that wait for the spout, and of subscriptions; the oldest are dropped beyond.
MOST_BYTES, MOST_CHANGES_BYTES = 64 << 20, 256 << 20
#: What a checked subscription takes beside its line, about.
_CHECKED_BYTES = 1_500


class Handed(NamedTuple):
    """The messages of a record.

    rows : Rows
    unknown_words : int    distinct words of each message without an id, summed
    end : int              where the next record begins, in bytes
    """

    rows: Rows
    unknown_words: int
    end: int


class Handover:
    """Batches of one log by the offset of their record; for two threads.

    Attributes
    ----------
    came : threading.Event
        Set with each record that is in the log; the spout clears it before it looks.
    taken : int
        How many batches the spout took.
    size_bytes : int
        Of the arrays of the batches that wait.
    changes : HandedChanges
    """

    def __init__(self) -> None:
        self.came = threading.Event()
        self.taken = self.size_bytes = 0
        self._waiting: dict[int, tuple[Handed, int]] = {}  # with its bytes, by ascending offset
        self._lock = threading.Lock()
        self.changes = HandedChanges()

    def put(self, offset: int, handed: Handed | None) -> None:
        """Leave a batch whose record is in the log, behind those before it; None: the spout is to read the record."""
        if handed is not None:
            size_bytes = _size_of(handed)
            with self._lock:
                self._waiting[offset] = handed, size_bytes
                self.size_bytes += size_bytes
                while self.size_bytes > MOST_BYTES:
                    self._drop(next(iter(self._waiting)))
        self.came.set()

    def take(self, offset: int) -> Handed | None:
        """The batch of the record at an offset, None if it is not here. Drops the batches before it."""
        with self._lock:
            for passed in [each for each in self._waiting if each < offset]:
                self._drop(passed)
            if offset not in self._waiting:
                return None
            self.taken += 1
            return self._drop(offset)

    def _drop(self, offset: int) -> Handed:
        handed, size_bytes = self._waiting.pop(offset)
        self.size_bytes -= size_bytes
        return handed


class HandedChanges:
    """Checked subscriptions by their line, which says all of them but the ids of words; for two threads.

    Attributes
    ----------
    taken : int
        How many the spout took.
    size_bytes : int
        Of those that wait, about.
    """

    def __init__(self) -> None:
        self.taken = self.size_bytes = 0
        self._waiting: dict[bytes, ParsedSubscription] = {}  # by the time of their coming
        self._lock = threading.Lock()

    def put(self, line: bytes, parsed: ParsedSubscription) -> None:
        """Leave a subscription whose line is logged, or will be."""
        with self._lock:
            if line not in self._waiting:
                self.size_bytes += len(line) + _CHECKED_BYTES
            self._waiting[line] = parsed
            while self.size_bytes > MOST_CHANGES_BYTES:
                self._drop(next(iter(self._waiting)))

    def take(self, lines: Sequence[bytes]) -> list[ParsedSubscription | None]:
        """The subscriptions of lines, None for those that are not here; they are not here any more."""
        with self._lock:
            found = [self._drop(line) if line in self._waiting else None for line in lines]
        self.taken += len(found) - found.count(None)
        return found

    def _drop(self, line: bytes) -> ParsedSubscription:
        self.size_bytes -= len(line) + _CHECKED_BYTES
        return self._waiting.pop(line)


#: By the path of the log: of the streams that this process logs.
_OPEN: dict[Path, Handover] = {}


def open_handover(log: str | os.PathLike[str]) -> Handover:
    """Begin to hand over the batches of a log, until `close_handover`."""
    return _OPEN.setdefault(Path(log).absolute(), Handover())


def handover_of(log: str | os.PathLike[str]) -> Handover | None:
    """The batches of a log, if this process logs them."""
    return _OPEN.get(Path(log).absolute())


def close_handover(log: str | os.PathLike[str]) -> None:
    _OPEN.pop(Path(log).absolute(), None)


def _size_of(handed: Handed) -> int:
    rows = handed.rows
    return sum(column.nbytes for column in (*rows.messages, *rows.names))
