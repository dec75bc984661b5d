"""The write-ahead log of a live stream: input lines, batch by batch, appended to one file.

A record is a head (one line of JSON) and the lines. `last_seq` in the head is that of the batch that the lines close,
or -1 if they close none: subscription changes alone, which belong to the next batch. So seqs, boundaries and which
messages are dated too far `ahead` are decided once, and every reader agrees. The head has the number of bytes that
follow, and a checksum of them, of itself, and of the checksum of the record before: so a record that is torn, changed,
or behind another one than it was written behind counts as absent. The head of a batch has the terms that are admitted
with it, in order, so that every reader gives them the same ids and weights. A clock mark (`gateway.live.stream_clock`)
is a record of one line, and a message. With a time window each record has the stream time after it. If lines came from
a message broker (`gateway.sources`), the head has how far it was read; a record without lines has nothing else.

Written by `gateway.live.write_ahead_log`; read on in `spouts.live`, which turns records into messages and changes.
"""

import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import xxhash

from matching.decoding import cut_deep, is_deep
from matching.errors import CheckpointError, InputError


class Admitted(NamedTuple):
    """Terms that are admitted with a batch.

    terms : tuple of str    in order of admission
    messages : int          those of the vocabulary and of the stream, before the batch: the terms are weighed by it
    """

    terms: tuple[str, ...] = ()
    messages: int = 0


class Origin(NamedTuple):
    """Where a line came from.

    source : str       name of a source of `gateway.sources`
    partition : str
    offset : int       grows within the partition
    token : str        by which the source knows what it has at this offset again
    """

    source: str
    partition: str
    offset: int
    token: str


#: How far a source was read: partition -> offset and token of the last line, by the source's name.
Positions = dict[str, dict[str, tuple[int, str]]]
#: Of a record without new terms.
NONE_ADMITTED = Admitted()


class Record(NamedTuple):
    """Lines that were logged together.

    last_seq : int    of the batch that they close, -1 if they close none
    line : int    number of input lines so far
    changes : tuple of int    which of the lines are changes of subscriptions, ascending; the others are messages
    lines : list of bytes    without their ends
    time_us : int    stream time after them, with a time window, None while there is none
    mark : bool    the line is a clock mark: the stream was idle, and the clock says `time_us`
    ahead : tuple of int    which of the lines are messages dated too long after their arrival, ascending
    admitted : Admitted    of the batch that the lines close
    positions : Positions    how far sources are read after them, of partitions that were read
    checksum : str    in hexadecimal, of this record and all before it; empty of one that an earlier release wrote
    """

    last_seq: int
    line: int
    changes: tuple[int, ...]
    lines: list[bytes]
    time_us: int | None = None
    mark: bool = False
    ahead: tuple[int, ...] = ()
    admitted: Admitted = NONE_ADMITTED
    positions: Positions = {}
    checksum: str = ""

    @property
    def messages(self) -> int:
        """How many of the lines are messages."""
        return len(self.lines) - len(self.changes)

    def message_lines(self) -> list[bytes]:
        changes = frozenset(self.changes)
        return [line for place, line in enumerate(self.lines) if place not in changes]

    def messages_ahead(self) -> list[bool]:
        """For each message whether it was dated too far ahead when it arrived."""
        changes, ahead = frozenset(self.changes), frozenset(self.ahead)
        return [place in ahead for place in range(len(self.lines)) if place not in changes]

    def changes_from(self, first_seq: int) -> Iterator[tuple[int, bytes]]:
        """The changes, each with the seq before which it takes effect; `first_seq` is that of the first message."""
        for earlier, place in enumerate(self.changes):
            yield first_seq + place - earlier, self.lines[place]


class _Head(msgspec.Struct, omit_defaults=True):
    last_seq: int
    line: int
    changes: tuple[int, ...]
    bytes: int
    xxh3: str
    time_us: int | None = None
    mark: bool = False
    ahead: tuple[int, ...] = ()
    terms: tuple[str, ...] = ()
    messages: int = 0
    positions: Positions = {}
    before: str | None = None  # `xxh3` of the record before, "" of the first; None in logs of earlier releases

    @property
    def admitted(self) -> Admitted:
        return Admitted(self.terms, self.messages)


_HEAD = msgspec.json.Decoder(_Head)
_CHECKSUM = b'"xxh3":"'


def encode_record(
    lines: Sequence[bytes],
    changes: Collection[int],
    line: int,
    last_seq: int,
    time_us: int | None = None,
    mark: bool = False,
    ahead: Collection[int] = (),
    admitted: Admitted = NONE_ADMITTED,
    positions: Positions | None = None,
    before: str = "",
) -> bytes:
    """A record as the log has it; the fields as in `Record`, lines with or without their ends; `before` is the
    `checksum_in` of the record before it."""
    data = b"".join(each.rstrip(b"\r\n") + b"\n" for each in lines)
    more = admitted.terms, admitted.messages, positions or {}, before
    head = _Head(last_seq, line, tuple(changes), len(data), "", time_us, mark, tuple(ahead), *more)
    head.xxh3 = _checksum(head, data)
    return msgspec.json.encode(head) + b"\n" + data


def checksum_in(record: bytes) -> str:
    """The checksum that the head of an encoded record has: that of the record and of all before it."""
    start = record.index(_CHECKSUM) + len(_CHECKSUM)
    return record[start : record.index(b'"', start)].decode()


def _checksum(head: _Head, data: bytes) -> str:
    """xxh3 of the lines and of the head, which names the record before; in logs of earlier releases of the lines, the
    admitted terms and the positions."""
    digest = xxhash.xxh3_64(data)
    if head.before is not None:
        digest.update(msgspec.json.encode(msgspec.structs.replace(head, xxh3="")))
        return digest.hexdigest()
    if head.terms:
        digest.update(msgspec.json.encode(head.admitted))
    if head.positions:
        digest.update(msgspec.json.encode(head.positions))
    return digest.hexdigest()


class LogReader:
    """Reads record after record, also while more are appended.

    Parameters
    ----------
    path : path
    offset : int
        Where a record begins.

    Attributes
    ----------
    offset : int
        Where the next record begins, in bytes.

    Raises
    ------
    InputError
        If the file cannot be opened.
    """

    def __init__(self, path: str | os.PathLike[str], offset: int = 0):
        self.path = Path(path)
        self.offset = offset
        self._before = (0, "")  # where the record that was read last ends, and its checksum
        try:
            self._file = open(self.path, "rb")  # noqa: SIM115 - closed by `close`
        except OSError as error:
            raise InputError("missing_file", f"{self.path}: the log cannot be read ({error.strerror})") from error

    def skim(self) -> Record | None:
        """As `read`, but neither reads nor checks the lines of a record that is not the last: it has none.

        O(1), a few microseconds.
        """
        head = self._head()
        end = 0 if head is None else self._file.tell() + head.bytes
        if head is not None and end < os.fstat(self._file.fileno()).st_size:
            self.offset = end
            return _record(head, [])._replace(ahead=())
        return self.read()

    def read(self) -> Record | None:
        """The next record; None while there is no whole one.

        Raises
        ------
        CheckpointError
            If it is damaged, and is not the last one.
        """
        size = os.fstat(self._file.fileno()).st_size
        if size <= self.offset:
            return None
        head = self._head()
        data = b"" if head is None else self._file.read(head.bytes)
        if head is None or len(data) != head.bytes or not self._is_next(head) or _checksum(head, data) != head.xxh3:
            if self._file.tell() < size:
                raise CheckpointError(
                    f"{self.path}: is damaged at byte {self.offset:,}, and {size - self.offset:,} bytes follow; bring "
                    "the file back, or cut it there and lose what follows"
                )
            return None
        self.offset = self._file.tell()
        self._before = self.offset, head.xxh3
        # earlier releases took rows of any depth, in columns that nothing reads
        return _record(head, [cut_deep(line) if is_deep(line) else line for line in data.split(b"\n")[:-1]])

    def _is_next(self, head: _Head) -> bool:
        """Whether a record was written behind the one before it, where that is known."""
        end, checksum = self._before
        return not head.before or end != self.offset or head.before == checksum

    def _head(self) -> _Head | None:
        self._file.seek(self.offset)
        try:
            return _HEAD.decode(self._file.readline())
        except (msgspec.MsgspecError, ValueError):
            return None

    @property
    def more(self) -> bool:
        """Whether bytes follow the last record that was read."""
        return os.fstat(self._file.fileno()).st_size > self.offset

    def force(self) -> None:
        """Force the file to disk (fsync), whichever process wrote it."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def _record(head: _Head, lines: list[bytes]) -> Record:
    more = head.time_us, head.mark, head.ahead, head.admitted, head.positions, "" if head.before is None else head.xxh3
    return Record(head.last_seq, head.line, head.changes, lines, *more)


def read_records(path: str | os.PathLike[str], offset: int = 0) -> Iterator[tuple[Record, int, int]]:
    """The records of a log from an offset on, and where each begins and ends, without one that is torn at the end.

    Raises
    ------
    InputError, CheckpointError
        As `LogReader`.
    """
    reader = LogReader(path, offset)
    try:
        while True:
            offset = reader.offset
            record = reader.read()
            if record is None:
                return
            yield record, offset, reader.offset
    finally:
        reader.close()
