"""The index of a log's messages: segments (`matching.message_segments`) of all that are logged, for questions.

It follows the log by reading it, so it never waits for the writer nor the writer for it. Whole segments are written
beside the log and mapped into memory; messages behind the last whole one are indexed in memory. The files are derived:
one that is missing, damaged, of another format or of another log is made again.
"""

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from matching.errors import CheckpointError, DeliveryError
from matching.message_segments import MessageSegment
from matching.model import Int64, MessageBatch, Names, take_ragged, widened
from matching.pieces import with_named
from matching.space import Space
from matching.vocabulary import Vocabulary
from matching.window import NO_FLOOR, Window
from spouts.handover import handover_of
from spouts.log import LogReader, Record
from spouts.messages import MessageBlock
from spouts.parsed import block_of, keys_in, weighed
from topology.core.checkpoint.storage import LocalDisk
from topology.core.frames import decode, encode_parts

#: Folder of the segments, beside the log.
FOLDER = "index"
#: Of the files of segments: others are made again.
FORMAT = 2
#: Messages, and words, from which a segment is whole.
SEGMENT, SEGMENT_WORDS = 1 << 17, 1 << 22
#: Segments in memory behind the last whole one, before they become one.
_SMALL = 8
#: Records that are read before others may have the processor, and messages that have to wait to be indexed unasked.
_RECORDS, WAITING = 64, 1 << 13


class _Columns(NamedTuple):
    """Columns of the messages of a record; of `MessageSegment`, but for what is made when it is indexed."""

    ids: Names
    lon: np.ndarray
    lat: np.ndarray
    sides: np.ndarray | None
    time_us: Int64
    keys: Int64
    visible: np.ndarray
    lengths: Int64
    order: np.ndarray

    @classmethod
    def of(cls, block: MessageBlock, ids: np.ndarray, offsets: Int64) -> "_Columns":
        times = block.time_us if block.ahead is None else np.where(block.ahead, NO_FLOOR, block.time_us)
        keys = keys_in(block)
        return cls(block.ids, block.lon, block.lat, block.sides, times, keys, ~block.silent, np.diff(offsets), ids)


class _Place(NamedTuple):
    """A place in the log behind a record: seq of the next message, offset, and offset and checksum of the record."""

    seq: int = 0
    offset: int = 0
    before: int = 0
    checksum: str = ""


class MessageIndex:
    """Follows one log; for any thread.

    Parameters
    ----------
    reserved : int        the reserved term
    writes : bool         write whole segments beside the log; one process at a time may

    Notes
    -----
    About 200 bytes a message of ten words, on disk and in the page cache. 1.5 us to take a message in.
    """

    def __init__(self, log: str | os.PathLike[str], space: Space, reserved: int, writes: bool = False):
        self.log, self._space, self._reserved = Path(log), space, reserved
        self._disk, self._writes = LocalDisk(self.log.parent / FOLDER), writes
        self._lock = threading.Lock()
        self._reader: LogReader | None = None
        self._place = _Place()
        self._whole: list[MessageSegment] = []
        self._small: list[MessageSegment] = []
        self._open: list[_Columns] = []  # all behind the last whole segment
        self._indexed = 0  # how many of `_open` are in `_small`
        self._words = self._rows = 0  # in `_open`

    @property
    def next_seq(self) -> int:
        """Seq of the message behind those that are taken in."""
        return self._place.seq

    def follow(self, through: int, share: Callable[[], None] = lambda: None) -> None:
        """Take in the messages of the log up to a seq, as far as they are there.

        `share` is called again and again meanwhile: it lets others have the processor.

        Raises
        ------
        CheckpointError
            If the log is damaged.
        """
        while self.next_seq <= through and self._take_some(through):
            share()

    def segments(self, through: int, share: Callable[[], None] = lambda: None) -> Sequence[MessageSegment]:
        """All messages up to a seq, and perhaps some behind it, in segments by ascending seq; raises as `follow`."""
        self.follow(through, share)
        with self._lock:
            if len(self._open) > self._indexed:
                begin = 0 if len(self._small) >= _SMALL else self._indexed
                del self._small[len(self._small) if begin else 0 :]
                self._small.append(self._segment(begin))
                self._indexed = len(self._open)
            return [*self._whole, *self._small]

    def close(self) -> None:
        with self._lock:
            if self._reader is not None:
                self._reader.close()
                self._reader = None

    def _take_some(self, through: int) -> bool:
        """Read some records; returns whether there may be more."""
        with self._lock:
            try:
                if self._reader is not None and self._reader.was_pruned():
                    self._begin_anew()
                return self._read_some(through)
            except CheckpointError:
                if self._reader is None or not self._reader.was_pruned():
                    raise
                self._begin_anew()
                return True

    def _begin_anew(self) -> None:
        """Forget everything: the beginning of the log was removed."""
        assert self._reader is not None
        self._reader.close()
        self._reader, self._place = None, _Place()
        self._whole, self._small, self._open, self._indexed, self._rows, self._words = [], [], [], 0, 0, 0

    def _read_some(self, through: int) -> bool:
        if self._reader is None:
            self._reader = LogReader(self.log)
            base = self._reader.base
            begins = _Place() if base is None else _Place(base.seq, base.offset, 0, base.checksum)
            self._place = self._stored(begins)
            self._reader.offset = self._place.offset
        reader = self._reader
        for _ in range(_RECORDS):
            at = reader.offset
            record = reader.read_messages()
            if record is None:
                return False
            self._place = _Place(self._place.seq + record.messages, reader.offset, at, record.checksum)
            if record.messages:
                self._take(record)
            if self._place.seq > through:
                return False
        return True

    def _take(self, record: Record) -> None:
        block, terms = block_of(record, self._place.seq - record.messages, self._space, self.log)
        columns = _Columns.of(block, terms.ids, terms.offsets)
        self._open.append(columns)
        self._rows += len(block)
        self._words += columns.order.shape[0]
        if self._rows >= SEGMENT or self._words >= SEGMENT_WORDS:
            self._whole.append(self._kept(self._segment(0)))
            self._small, self._open, self._indexed, self._rows, self._words = [], [], 0, 0, 0

    def _segment(self, begin: int) -> MessageSegment:
        """The open columns from one on, indexed."""
        some = self._open[begin:]
        first = self._place.seq - sum(one.lon.shape[0] for one in some)
        lon, lat, time_us, visible, lengths, order = (
            np.concatenate([getattr(one, name) for one in some])
            for name in ("lon", "lat", "time_us", "visible", "lengths", "order")
        )
        sides = np.zeros((0, 4))
        if any(one.sides is not None for one in some):
            parts = [np.full((one.lon.shape[0], 4), np.nan) if one.sides is None else one.sides for one in some]
            sides = np.concatenate(parts)
        width = max(one.keys.shape[1] for one in some)
        keys = np.concatenate([widened(one.keys, one.lon.shape[0], width) for one in some])
        offsets = np.zeros(lon.shape[0] + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        ids = with_named(order)
        known = ids >= 0
        words = np.repeat(np.arange(lon.shape[0]), lengths)[known], ids[known]
        return MessageSegment.of(
            first,
            Names.join([one.ids for one in some]),
            lon,
            lat,
            sides,
            time_us,
            keys,
            (offsets, order),
            words,
            visible,
            self._reserved,
        )

    # -- files

    def _kept(self, segment: MessageSegment) -> MessageSegment:
        """A whole segment as it is mapped from its file, which is written first if this index writes.

        All indexes of a log cut it at the same records, so the file may be there. In memory where there is none.
        """
        name, place = f"{segment.first:015d}", self._place
        if not self._writes:
            with suppress(CheckpointError, OSError):
                stored, after = self._read(name)
                return stored if after == place else segment
            return segment
        numbers = {"first": segment.first, "latest_us": segment.latest_us}
        header = {"format": FORMAT, **numbers, "place": list(place), "reserved": self._reserved}
        with suppress(OSError):  # it is made again
            with self._disk.create(f".{name}") as file:
                file.writelines(encode_parts(header, segment.arrays()))
            os.replace(self._disk.folder / f".{name}", self._disk.folder / name)
            with suppress(CheckpointError):
                return self._read(name)[0]
        return segment

    def _read(self, name: str) -> tuple[MessageSegment, _Place]:
        """A segment of a file, and the place behind it. Raises CheckpointError, OSError."""
        header, arrays = decode(self._disk.read(name), str(self._disk.folder / name))
        if (header.get("format"), header.get("reserved")) != (FORMAT, self._reserved):
            raise CheckpointError(f"{name}: is a segment of another format")
        try:
            return MessageSegment(header["first"], header["latest_us"], **arrays), _Place(*header["place"])
        except (KeyError, TypeError) as error:
            raise CheckpointError(f"{name}: is no segment ({error})") from error

    def _stored(self, place: _Place) -> _Place:
        """Read the segments of this log from its beginning on that are there; returns the place behind them.

        Others are removed."""
        names = [name for name in self._disk.names() if not name.startswith(".")]
        if self._writes:
            gone = [name for name in names if name < f"{place.seq:015d}"]
            for name in gone:
                self._disk.remove(name)
        names = [name for name in names if name >= f"{place.seq:015d}"]
        for number, name in enumerate(names):
            try:
                segment, after = self._read(name)
                if segment.first != place.seq or after.seq != place.seq + len(segment) or not self._is_behind(after):
                    raise CheckpointError(f"{name}: is of another log")
            except (CheckpointError, OSError):
                if self._writes:
                    for other in names[number:]:
                        self._disk.remove(other)
                break
            self._whole.append(segment)
            place = after
        return place

    def _is_behind(self, place: _Place) -> bool:
        """Whether the log has the record that a segment ends with, where it was."""
        with closing(LogReader(self.log, place.before)) as reader:
            record = reader.skim()
            return record is not None and reader.offset == place.offset and record.checksum == place.checksum


#: The index of each log that this process keeps one of, by path: the spouts of a server use the server's.
_OPEN: dict[Path, MessageIndex] = {}


def index_of(log: str | os.PathLike[str], space: Space, reserved: int) -> MessageIndex:
    """The index of a log that this process keeps, or another one, which writes only where this process logs."""
    return _OPEN.get(Path(log).absolute()) or MessageIndex(log, space, reserved, handover_of(log) is not None)


def cuts_of(log: Path) -> list[int]:
    """Where the index of a log can begin without being made again: the first message of each whole segment on disk, and
    of what is behind them."""
    disk = LocalDisk(log.parent / FOLDER)
    names = [name for name in disk.names() if not name.startswith(".")]
    if not names:
        return []
    header, _ = decode(disk.read(names[-1]), names[-1])
    return [*map(int, names), int(header["place"][0])]


class IndexFollower:
    """An index that takes in what is logged before anybody asks, in a thread of its own; for a `with` block.

    Parameters
    ----------
    next_seq : callable    seq of the next message of the log
    is_busy : callable     whether the stream has work; a pause follows each step then
    """

    def __init__(self, index: MessageIndex, next_seq: Callable[[], int], is_busy: Callable[[], bool] = lambda: False):
        self._index, self._next_seq, self._is_busy = index, next_seq, is_busy
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="index", daemon=True)

    def __enter__(self) -> MessageIndex:
        _OPEN[self._index.log.absolute()] = self._index
        self._thread.start()
        return self._index

    def __exit__(self, *_: object) -> None:
        _OPEN.pop(self._index.log.absolute(), None)
        self._ends.set()
        self._thread.join()
        self._index.close()

    def _run(self) -> None:
        with suppress(CheckpointError, DeliveryError, OSError, _Ended):  # the next question says what is wrong
            while not self._ends.wait(_LOOK_S):
                if self._next_seq() - self._index.next_seq >= WAITING:
                    self._index.follow(self._next_seq() - 1, self._pause)

    def _pause(self) -> None:
        if self._ends.wait(_PAUSE_S if self._is_busy() else 0.0):
            raise _Ended


class _Ended(Exception):
    """The block has ended."""


def ids_at(segments: Sequence[MessageSegment], seqs: Int64) -> Names:
    """The ids of messages by ascending seq. O(segments + their bytes)."""
    ends = np.searchsorted(seqs, [one.first + len(one) for one in segments])
    found = [Names.of(())]
    for segment, begin, end in zip(segments, [0, *ends[:-1]], ends, strict=True):
        if begin < end:
            offsets, picked = take_ragged(segment.id_offsets, seqs[begin:end] - segment.first)
            found.append(Names(offsets, segment.ids[picked]))
    return Names.join(found)


#: Seconds between two looks at the log, and of a pause between two steps while the stream has work.
_LOOK_S, _PAUSE_S = 0.2, 0.02


def messages_at(
    segments: Sequence[MessageSegment], seqs: Sequence[Int64], vocabulary: Vocabulary, space: Space, window: Window
) -> list[MessageBatch]:
    """Messages of segments with their weights, places and times, a batch for each segment that has any.

    `seqs` has the rows of each segment, ascending. O(messages + their words).
    """
    found = []
    for segment, rows in zip(segments, seqs, strict=True):
        if not rows.shape[0]:
            continue
        words = segment.order_of(rows)
        keys = segment.keys[rows] if segment.keys.shape[1] else segment.keys[:0, :0]
        found.append(
            weighed(
                rows + segment.first,
                segment.lon[rows],
                segment.lat[rows],
                segment.boxes(rows),
                segment.time_us[rows],
                keys,
                segment.is_visible(rows, vocabulary.reserved),
                words,
                vocabulary,
                space,
                window,
            )  # fmt: skip
        )
    return found
