"""The write-ahead log of a live stream: its messages in columns and changes of subscriptions, appended batch by batch.

A record is a head (one line of JSON), changes of subscriptions (a line of JSON each), and messages with their terms in
columns (`spouts.messages`), whose types and lengths the head has. `last_seq` in the head is that of the batch that the
record closes, or -1 if it closes none: changes alone, which belong to the next batch. So seqs, boundaries, terms and
which messages are dated too far ahead are decided once, and every reader agrees; no text is cut into words again.
The head has the number of bytes that follow, and a checksum of them, of itself, and of the checksum of the record
before: so a record that is torn, changed, or behind another one than it was written behind counts as absent. It has the
attributes that are declared with the record, for its changes and messages and all that follow. The head of a
batch has the terms that are admitted with it, in order, so that every reader gives them the same ids and weights. A
clock mark (`gateway.live.stream_clock`) is a record without columns, and a message. With a time window each record has
the stream time after it. If messages came from a message broker (`gateway.sources`), the head has how far it was read;
a record without messages and changes has nothing else.

The beginning of a log may be gone (`gateway.live.pruning`): then `base` beside it stands for it, which is a log, too.
Its records have the messages that are still named, and how many others there were (`Record.rows`); its first one says
where the log goes on. Offsets and seqs stay what they were; those below the size of the base are offsets in the base.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import xxhash

from matching.errors import CheckpointError, InputError
from matching.model import Int64
from matching.words.message_words import MessageTerms
from spouts.messages import MessageBlock, block_of, columns_of


class Admitted(NamedTuple):
    """Terms that are admitted with a batch, and attributes that are declared with a record.

    terms : tuple of str        in order of admission
    messages : int              those of the vocabulary and of the stream, before the batch: the terms are weighed by it
    attributes : tuple of str   as `matching.attributes.Attribute.parse` reads them; the changes of the record may name
                                them, its messages have them, and earlier messages have no value of them
    """

    terms: tuple[str, ...] = ()
    messages: int = 0
    attributes: tuple[str, ...] = ()


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


#: Name of the file that stands for the beginning of a log.
BASE = "base"
#: How far a source was read: partition -> offset and token of the last line, by the source's name.
Positions = dict[str, dict[str, tuple[int, str]]]
#: Of a record without new terms and attributes.
NONE_ADMITTED = Admitted()


class Record(NamedTuple):
    """Messages and changes that were logged together.

    last_seq : int    of the batch that they close, -1 if they close none
    line : int    number of input lines so far
    messages : int    how many
    changes : tuple of int    how many of the messages come before each change, ascending
    lines : list of bytes    the changes, without their ends
    time_us : int    stream time after them, with a time window, None while there is none
    mark : bool    the message is a clock mark: the stream was idle, and the clock says `time_us`
    admitted : Admitted    of the batch that the record closes
    positions : Positions    how far sources are read after them, of partitions that were read
    checksum : str    in hexadecimal, of this record and all before it
    block : MessageBlock    None without messages, and of a clock mark
    terms : MessageTerms    of the messages; None where `block` is
    floor : int    earlier messages may be removed from here on: no later change asks for them; 0 where it says nothing
    logged_s : int    when it was logged, in seconds since 1970; 0 within a minute of a record that says it
    rows : int64[n]    of a base: which of the messages `block` has; None: all
    marks : int    of a base: how many of the messages were clock marks
    goes_on : (int, str, int)    of the first record of a base: where the log goes on, the checksum of the record
                                 before, and the boundary up to which updates need not be there
    """

    last_seq: int
    line: int
    messages: int = 0
    changes: tuple[int, ...] = ()
    lines: Sequence[bytes] = ()
    time_us: int | None = None
    mark: bool = False
    admitted: Admitted = NONE_ADMITTED
    positions: Positions = {}
    checksum: str = ""
    block: MessageBlock | None = None
    terms: MessageTerms | None = None
    floor: int = 0
    logged_s: int = 0
    rows: Int64 | None = None
    marks: int = 0
    goes_on: tuple[int, str, int] | None = None

    def changes_from(self, first_seq: int) -> Iterator[tuple[int, bytes]]:
        """The changes, each with the seq before which it takes effect; `first_seq` is that of the first message."""
        for before, line in zip(self.changes, self.lines, strict=True):
            yield first_seq + before, line


#: Of records. Those of earlier releases have lines of JSON in place of columns.
FORMAT = 2


class _Head(msgspec.Struct, omit_defaults=True):
    last_seq: int
    line: int
    bytes: int
    xxh3: str
    before: str = ""  # `xxh3` of the record before
    format: int = 1
    count: int = 0  # messages
    changes: tuple[int, ...] = ()
    change_bytes: int = 0
    time_us: int | None = None
    mark: bool = False
    terms: tuple[str, ...] = ()
    messages: int = 0
    positions: Positions = {}
    columns: dict[str, tuple[str, int]] = {}  # type and length of each, in the order of their bytes
    attributes: tuple[str, ...] = ()
    floor: int = 0
    logged_s: int = 0
    marks: int = 0
    goes_on: tuple[int, str, int] | None = None


_HEAD = msgspec.json.Decoder(_Head)
_CHECKSUM = b'"xxh3":"'
#: The column of `Record.rows`.
_ROWS = "rows"


def encode_record(record: Record, before: str = "") -> bytes:
    """A record as the log has it, its lines with or without their ends; `before` is the `checksum_in` of the record
    before it."""
    lines = b"".join(each.rstrip(b"\r\n") + b"\n" for each in record.lines)
    columns = {} if record.block is None else columns_of(record.block, record.terms)
    columns |= {} if record.rows is None else {_ROWS: record.rows}
    arrays = [one if one.flags.c_contiguous else np.ascontiguousarray(one) for one in columns.values()]
    data = b"".join([lines, *[one.data for one in arrays]])
    head = _Head(
        record.last_seq,
        record.line,
        len(data),
        "",
        before,
        FORMAT,
        record.messages,
        record.changes,
        len(lines),
        record.time_us,
        record.mark,
        record.admitted.terms,
        record.admitted.messages,
        record.positions,
        {name: (column.dtype.str, column.shape[0]) for name, column in columns.items()},
        record.admitted.attributes,
        record.floor,
        record.logged_s,
        record.marks,
        record.goes_on,
    )
    head.xxh3 = _checksum(head, data)
    return msgspec.json.encode(head) + b"\n" + data


def checksum_in(record: bytes) -> str:
    """The checksum that the head of an encoded record has: that of the record and of all before it."""
    start = record.index(_CHECKSUM) + len(_CHECKSUM)
    return record[start : record.index(b'"', start)].decode()


def _checksum(head: _Head, data: bytes) -> str:
    """xxh3 of what follows the head, and of the head, which names the record before."""
    digest = xxhash.xxh3_64(data)
    digest.update(msgspec.json.encode(msgspec.structs.replace(head, xxh3="")))
    return digest.hexdigest()


class Base(NamedTuple):
    """The file that stands for the beginning of a log.

    seq, offset : int    of the first message that the log has, and of the record in which it is
    checksum : str       of the record before
    boundary : int       up to which updates need not be there
    size_bytes : int     of the base
    file : binary file   open to read
    """

    seq: int
    offset: int
    checksum: str
    boundary: int
    size_bytes: int
    file: Any


def base_of(log: str | os.PathLike[str]) -> Base | None:
    """The base of a log, to be closed; None if the log has its beginning. Raises CheckpointError, OSError."""
    path = Path(log).with_name(BASE)
    try:
        file = open(path, "rb")  # noqa: SIM115 - closed by who has it
    except FileNotFoundError:
        return None
    try:
        head = _HEAD.decode(file.readline())
        if head.goes_on is None:
            raise ValueError("it does not say where the log goes on")
    except (msgspec.MsgspecError, ValueError) as error:
        file.close()
        raise CheckpointError(f"{path}: is damaged ({error}); restore a backup of the folder") from error
    return Base(head.floor, *head.goes_on, os.fstat(file.fileno()).st_size, file)


class LogReader:
    """Reads record after record, also while more are appended.

    Parameters
    ----------
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
            self._log = open(self.path, "rb")  # noqa: SIM115 - closed by `close`
        except OSError as error:
            raise InputError("missing_file", f"{self.path}: the log cannot be read ({error.strerror})") from error
        self.base = base_of(self.path)

    @property
    def _file(self) -> Any:
        """The file that has the next record."""
        return self._log if self.base is None or self.offset >= self.base.size_bytes else self.base.file

    def _pass(self, head: _Head, end: int) -> None:
        """Go on behind a record that ends there."""
        self.offset, self._before = end, (end, head.xxh3)
        if self.base is not None and end == self.base.size_bytes:
            self.offset, self._before = self.base.offset, (self.base.offset, self.base.checksum)

    def skim(self) -> Record | None:
        """As `read`, but neither reads nor checks the changes and messages of a record that is not the last.

        O(1), a few microseconds.
        """
        head = self._head()
        end = 0 if head is None else self._file.tell() + head.bytes
        if head is not None and end < os.fstat(self._file.fileno()).st_size:
            self._pass(head, end)
            self._before = (-1, "")  # of a record that was not checked
            return _record(head)
        return self.read()

    def read_changes(self) -> Record | None:
        """As `read`; of a record without changes it reads the head alone, which then has neither block nor terms."""
        return self._read_or_pass(lambda head: head.change_bytes)

    def read_messages(self) -> Record | None:
        """As `read`; of a record without messages it reads the head alone, whose changes then have no lines."""
        return self._read_or_pass(lambda head: head.count)

    def _read_or_pass(self, wanted: Callable[[_Head], int]) -> Record | None:
        head = self._head()
        end = 0 if head is None else self._file.tell() + head.bytes
        if head is None or wanted(head) or end > os.fstat(self._file.fileno()).st_size:
            return self.read()
        self._pass(head, end)
        return _record(head)

    def read(self) -> Record | None:
        """The next record; None while there is no whole one.

        Raises
        ------
        CheckpointError
            If it is damaged, and is not the last one.
        """
        file = self._file
        size = os.fstat(file.fileno()).st_size
        if size <= self.offset:
            return None
        head = self._head()
        data = b"" if head is None else file.read(head.bytes)
        if head is None or len(data) != head.bytes or not self._is_next(head) or _checksum(head, data) != head.xxh3:
            if self.was_pruned():
                raise CheckpointError(f"{self.path}: its beginning was removed while it was read; try again")
            if file is not self._log:
                path = self.path.with_name(BASE)
                raise CheckpointError(f"{path}: is damaged at byte {self.offset:,}; restore a backup of the folder")
            if file.tell() < size:
                raise CheckpointError(
                    f"{self.path}: is damaged at byte {self.offset:,}, and {size - self.offset:,} bytes follow; bring "
                    "the file back, or cut it there and lose what follows"
                )
            return None
        self._pass(head, file.tell())
        return _record(head, data)

    def was_pruned(self) -> bool:
        """Whether the log has another base than the one that is read, before which its bytes may be gone."""
        try:
            there = os.stat(self.path.with_name(BASE)).st_ino
        except FileNotFoundError:
            return False
        return self.base is None or os.fstat(self.base.file.fileno()).st_ino != there

    def _is_next(self, head: _Head) -> bool:
        """Whether a record was written behind the one before it, where that is known."""
        end, checksum = self._before
        return end != self.offset or head.before == checksum

    def _head(self) -> _Head | None:
        file = self._file
        file.seek(self.offset)
        if file.peek(1)[:1] == b"\0" and self.was_pruned():
            return None  # a hole has no line ends
        try:
            head = _HEAD.decode(file.readline())
        except (msgspec.MsgspecError, ValueError):
            return None
        if head.format != FORMAT:
            raise CheckpointError(
                f"{self.path}: has records of format {head.format} at byte {self.offset:,}, and this release reads "
                f"format {FORMAT}: resume it with the release that wrote it"
            )
        return head

    @property
    def more(self) -> bool:
        """Whether bytes follow the last record that was read."""
        return os.fstat(self._log.fileno()).st_size > self.offset

    def force(self) -> None:
        """Force the file to disk (fsync), whichever process wrote it."""
        os.fsync(self._log.fileno())

    def close(self) -> None:
        self._log.close()
        if self.base is not None:
            self.base.file.close()


def _record(head: _Head, data: bytes | None = None) -> Record:
    """A record; without what follows its head, it has neither changes nor messages, but their numbers and places."""
    admitted, checksum = Admitted(head.terms, head.messages, head.attributes), head.xxh3
    record = Record(head.last_seq, head.line, head.count, time_us=head.time_us, mark=head.mark, admitted=admitted)
    record = record._replace(positions=head.positions, checksum=checksum, changes=head.changes)
    record = record._replace(floor=head.floor, logged_s=head.logged_s, marks=head.marks, goes_on=head.goes_on)
    if data is None:
        return record
    record = record._replace(lines=data[: head.change_bytes].split(b"\n")[:-1])
    if not head.columns:
        return record
    columns, start = {}, head.change_bytes
    for name, (dtype, length) in head.columns.items():
        columns[name] = np.frombuffer(data, dtype, length, start).copy()  # aligned, and kernels may write
        start += columns[name].nbytes
    record = record._replace(rows=columns.pop(_ROWS, None))
    if not columns:
        return record
    block, terms = block_of(columns)
    return record._replace(block=block, terms=terms)


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
