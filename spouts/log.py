"""The log of a live stream: lines in the batches that whoever took them has closed, appended to one file.

A record is a head, one line of JSON, and the lines themselves. `last_seq` in the head is that of the batch that the
lines close, or -1 if they close none: changes of subscriptions alone, which count with the next batch. So seqs and
boundaries are decided once, and so is which messages are set aside for their date (`ahead`), and whoever reads the log
comes to the same ones. A record is whole or it is not there: its head says how many bytes follow, and their checksum. A
mark of a clock (`gateway.live.stream_clock`) is a record of one line, and a message of its own. Where the window goes
by time, each record says the time of the stream behind it.

Written by `gateway.live.write_ahead_log`; read on in `spouts.live`, which makes messages and changes of it.
"""

import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import xxhash

from matching.errors import CheckpointError, InputError


class Record(NamedTuple):
    """Lines that were taken together.

    last_seq : int    of the batch that they close, -1 if they close none
    line : int    how many lines of input there had been by then
    changes : tuple of int    which of the lines are changes of subscriptions, ascending; the others are messages
    lines : list of bytes    without their ends
    time_us : int    time of the stream behind them, where its window goes by time and it has one
    mark : bool    the one line is a mark: nothing came, and it is `time_us` by a clock
    ahead : tuple of int    which of the lines are messages dated too long after their arrival, ascending
    """

    last_seq: int
    line: int
    changes: tuple[int, ...]
    lines: list[bytes]
    time_us: int | None = None
    mark: bool = False
    ahead: tuple[int, ...] = ()

    @property
    def messages(self) -> int:
        """How many of the lines are messages."""
        return len(self.lines) - len(self.changes)

    def message_lines(self) -> list[bytes]:
        """The messages."""
        changes = frozenset(self.changes)
        return [line for place, line in enumerate(self.lines) if place not in changes]

    def messages_ahead(self) -> list[bool]:
        """Of each message whether it was set aside when it came."""
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


_HEAD = msgspec.json.Decoder(_Head)


def encode_record(
    lines: Sequence[bytes],
    changes: Collection[int],
    line: int,
    last_seq: int,
    time_us: int | None = None,
    mark: bool = False,
    ahead: Collection[int] = (),
) -> bytes:
    """A record as the log has it; the fields as in `Record`, lines with or without their ends."""
    data = b"".join(each.rstrip(b"\r\n") + b"\n" for each in lines)
    checksum = xxhash.xxh3_64_hexdigest(data)
    head = _Head(last_seq, line, tuple(changes), len(data), checksum, time_us, mark, tuple(ahead))
    return msgspec.json.encode(head) + b"\n" + data


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
        try:
            self._file = open(self.path, "rb")  # noqa: SIM115 - closed by `close`
        except OSError as error:
            raise InputError("missing_file", f"{self.path}: the log cannot be read ({error.strerror})") from error

    def skim(self) -> Record | None:
        """As `read`, but the lines of a record that is not the last one are neither read nor checked: it has none.

        O(1), and no more than a few microseconds.
        """
        size = os.fstat(self._file.fileno()).st_size
        self._file.seek(self.offset)
        try:
            head = _HEAD.decode(self._file.readline())
        except (msgspec.MsgspecError, ValueError):
            head = None
        end = 0 if head is None else self._file.tell() + head.bytes
        if head is not None and end < size:
            self.offset = end
            return Record(head.last_seq, head.line, head.changes, [], head.time_us, head.mark)
        return self.read()

    def read(self) -> Record | None:
        """The next record, None while no whole one is there.

        Raises
        ------
        CheckpointError
            If it is damaged, and is not the last one.
        """
        size = os.fstat(self._file.fileno()).st_size
        if size <= self.offset:
            return None
        self._file.seek(self.offset)
        try:
            head = _HEAD.decode(self._file.readline())
            data = self._file.read(head.bytes)
            sound = len(data) == head.bytes and xxhash.xxh3_64_hexdigest(data) == head.xxh3
        except (msgspec.MsgspecError, ValueError):
            sound = False
        if not sound:
            if self._file.tell() < size:
                raise CheckpointError(
                    f"{self.path}: is damaged at byte {self.offset:,}, and {size - self.offset:,} bytes follow; bring "
                    "the file back, or cut it there and lose what follows"
                )
            return None
        self.offset = self._file.tell()
        lines = data.split(b"\n")[:-1]
        return Record(head.last_seq, head.line, head.changes, lines, head.time_us, head.mark, head.ahead)

    @property
    def more(self) -> bool:
        """Whether something has been written behind the last record that was read."""
        return os.fstat(self._file.fileno()).st_size > self.offset

    def force(self) -> None:
        """See that what is in the file by now is on disk, whoever has written it."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_records(path: str | os.PathLike[str]) -> Iterator[tuple[Record, int, int]]:
    """The records of a log and where each begins and ends; one that was cut off at the end is left out.

    Raises
    ------
    InputError, CheckpointError
        As `LogReader`.
    """
    reader = LogReader(path)
    try:
        while True:
            offset = reader.offset
            record = reader.read()
            if record is None:
                return
            yield record, offset, reader.offset
    finally:
        reader.close()
