"""What goes from the write-ahead log of a live stream to its spouts without being read again.

The process that logs a record has its messages and changes in columns already. Where the spouts run in the same
process, they take these from here by the place of the record in the log; what is not here they read from the log: on
Ray, after a restart or a rollback, and what was dropped because a spout was late. Both ways give the same.
"""

import os
import threading
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from spouts.change_block import ChangeBlock
from spouts.cutting import Rows
from spouts.log import Record
from topology.core.wakeup import Wakeup

#: Bytes of batches that wait for the spout, and of changes; the oldest are dropped beyond.
MOST_BYTES, MOST_CHANGES_BYTES = 64 << 20, 256 << 20
#: Bytes of a record without changes and terms, and of a term, about.
_RECORD_BYTES, _TERM_BYTES = 600, 80

_T = TypeVar("_T")


class Handed(NamedTuple):
    """The messages of a record.

    rows : Rows
    unknown_words : int    distinct words of each message without an id, summed
    end : int              where the next record begins, in bytes
    changes : tuple of int    as of `spouts.log.Record`
    """

    rows: Rows
    unknown_words: int
    end: int
    changes: tuple[int, ...]


class HandedRecord(NamedTuple):
    """A record without its messages.

    record : Record          without block and terms
    end : int                where the next record begins, in bytes
    changes : ChangeBlock    None without any
    """

    record: Record
    end: int
    changes: ChangeBlock | None

    @property
    def size_bytes(self) -> int:
        lines = 0 if self.changes is None else self.changes.size_bytes
        return _RECORD_BYTES + _TERM_BYTES * len(self.record.admitted.terms) + lines


class ByOffset(Generic[_T]):
    """What is handed over, by the offset of its record; for two threads.

    Parameters
    ----------
    most_bytes : int
        Beyond them the oldest are dropped.

    Attributes
    ----------
    taken : int
        How many the spout took.
    size_bytes : int
        Of those that wait.
    """

    def __init__(self, most_bytes: int):
        self.most_bytes = most_bytes
        self.taken = self.size_bytes = 0
        self._waiting: dict[int, tuple[_T, int]] = {}  # with its bytes, by ascending offset
        self._lock = threading.Lock()

    def put(self, offset: int, handed: _T, size_bytes: int) -> None:
        """Leave what a record has, behind those before it."""
        with self._lock:
            self._waiting[offset] = handed, size_bytes
            self.size_bytes += size_bytes
            while self.size_bytes > self.most_bytes:
                self._drop(next(iter(self._waiting)))

    def take(self, offset: int) -> _T | None:
        """What the record at an offset has, None if it is not here. Drops what is of records before it."""
        with self._lock:
            while self._waiting and (first := next(iter(self._waiting))) < offset:
                self._drop(first)
            if offset not in self._waiting:
                return None
            self.taken += 1
            return self._drop(offset)

    def _drop(self, offset: int) -> _T:
        handed, size_bytes = self._waiting.pop(offset)
        self.size_bytes -= size_bytes
        return handed


class Handover:
    """Batches and changes of one log.

    Attributes
    ----------
    came : Wakeup
        Set with each record that is in the log.
    end : int
        Bytes of the log.
    batches : ByOffset of Handed
    records : ByOffset of HandedRecord
    """

    def __init__(self) -> None:
        self.came = Wakeup()
        self.end = 0
        self.batches = ByOffset[Handed](MOST_BYTES)
        self.records = ByOffset[HandedRecord](MOST_CHANGES_BYTES)

    def put(self, offset: int, record: HandedRecord, handed: Handed | None) -> None:
        """Leave a record that is in the log, and its messages; without these the spout is to read them."""
        self.records.put(offset, record, record.size_bytes)
        if handed is not None:
            rows = handed.rows
            self.batches.put(offset, handed, sum([column.nbytes for column in (*rows.messages, *rows.names)]))
        self.end = record.end
        self.came.set()


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
