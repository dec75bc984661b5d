"""The write-ahead log of a live stream: what was accepted is durable before it is matched.

A folder has

    journal/log            messages in columns and changes of subscriptions, batch by batch (`spouts.log`)
    journal/base           what stands for its beginning, where that was removed (`gateway.live.pruning`)
    journal/durable        how far it was acknowledged (`gateway.live.acknowledged`)
    journal/start/         the empty vocabulary that a stream without another starts with
    journal/vocabulary/    a copy of the vocabulary that any other starts with
    updates/, checkpoints/ as of any run with checkpoints
    results.parquet, run.json
                           at the end, as a run over files leaves them

Answers depend on messages, changes, batches and admitted terms only. To resume, the log is scanned for these terms and
for active subscriptions, and matching continues from the last checkpoint.
"""

import os
import threading
import time
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gateway.live.acknowledged import DurableMark, refuse_lost
from gateway.live.admission import Admission
from gateway.live.living_versions import LivingVersions
from gateway.live.open_batch import OpenBatch
from gateway.live.recent_blocks import RecentBlocks
from gateway.live.stream_clock import StreamClock
from gateway.live.update_listener import MessageText
from gateway.shell.terminal import writing_to
from matching.errors import CheckpointError, ConfigError
from matching.fields import Refusal
from matching.model import Int64, Names
from matching.validate import ParsedMessage
from matching.window import NO_FLOOR, Window
from matching.words.message_words import MessageTerms
from spouts.change_block import ChangeBlock, Changed
from spouts.cutting import Rows
from spouts.handover import Handed, HandedRecord, Handover, close_handover, open_handover
from spouts.history import EMPTY_START, LOG, VOCABULARY
from spouts.log import Admitted, LogReader, Origin, Positions, Record, checksum_in, encode_record, read_records
from spouts.messages import MessageBlock
from spouts.parsed import block_of, deletions_in, rows_of
from topology.core.checkpoint.storage import LocalDisk, force, written
from topology.core.executors.logs import driver_log
from topology.folder import RunFolder, checksum
from topology.settings import KEYS, LiveConfig

#: Settings on which answers depend besides the lines, and `most_terms`.
ANSWER_SETTINGS = ("window", "objects", "world", "projection", "distance", "decay_half_life", "decay_smoothing")
#: Seconds between two records that say when they were logged.
_LOGGED_S = 60
_REFUSED_NOW = "a change that was accepted is refused now"


class LoggedValues(NamedTuple):
    """Attributes of a logged message, in the order of the schema, and the version that it replaces (-1: none)."""

    attributes: tuple[Any, ...]
    previous: int


class WriteAheadLog:
    """The log of one folder, which this process has locked; see the module.

    Parameters
    ----------
    settings : dict
        What answers depend on besides the lines; resuming needs the same.
    durable : callable, optional
        Called with the number of the last durable line; without it nothing is forced to disk.
    window : Window, optional
        If it is by time, a clock advances stream time while the stream is idle.
    hands_over : bool
        The topology runs in this process: its spout takes batches without reading the log (`spouts.handover`).

    Attributes
    ----------
    run : RunFolder
    log : Path
    line : int
        Number of the last accepted line of input.
    ends : sequence of int
        The last seq of each batch.
    durable_through : int
        Seq of the last message that is on disk, -1 if none is. A batch can be matched a little before.
    marks : dict of int to int
        Seq of each clock mark -> its stream time in us.
    size_bytes : int
        Of the log, as far as it was replayed and appended to.
    positions : Positions
        How far message sources are read by what is durable.
    settle : callable
        Called when `durable_through` has grown.
    living : LivingVersions or None
        Of a stream of objects.
    mark_count : int
        How many messages are, or were, clock marks.
    first_seq : int
        Of the first message that is kept; of earlier ones some are (`spouts.log.BASE`).
    floor : (int, int)
        The message before which no later change asks for any, and where the log says so, in bytes.
    logged_s : dict of int to int
        When some messages were logged, about one a minute, in seconds since 1970, by seq.

    Notes
    -----
    Memory: 24 bytes a batch, some 100 a mark, the texts of the last messages, and some 200 for each living object.
    """

    def __init__(
        self,
        folder: Path,
        settings: dict[str, Any],
        durable: Callable[[int], None] | None = None,
        window: Window | None = None,
        hands_over: bool = False,
    ):
        self.folder = folder
        self.run = RunFolder(folder)
        self.settings = settings
        self.log = folder / LOG
        self.line = 0
        self.ends = array("q")
        self.durable_through = -1
        self.marks: dict[int, int] = {}
        self.positions: Positions = {}
        self.settle: Callable[[], None] = lambda: None
        self.mark_count = self.first_seq = 0
        self.floor = (0, 0)
        self.logged_s: dict[int, int] = {}
        self._next_floor = self._logged_s = 0
        self._base_ends, self._base_offsets = array("q"), array("q")
        self.living = LivingVersions() if settings.get("objects") else None
        self._clock = StreamClock(window or Window("count", 1))
        self._durable = durable
        self._hands_over = hands_over
        self._file: Any = None
        self._mark: DurableMark | None = None
        self._before = ""  # checksum of the last record
        self._reader: LogReader | None = None
        self._admission: Admission | None = None
        self._handover: Handover | None = None
        self._offsets = array("q")
        self._tags = array("L")
        self.size_bytes = 0
        self._reached: Positions = {}  # what the next record has
        self._declared = 0  # attributes that the log has, and the start
        self._recent = RecentBlocks()
        self._read_last: tuple[int, MessageBlock] | None = None  # and its first seq
        self._reading = threading.Lock()

    @property
    def next_seq(self) -> int:
        """Seq of the next message."""
        return self.ends[-1] + 1 if self.ends else 0

    def begin(self) -> dict[str, Any]:
        """Open the folder, which `run.locked()` has locked; returns `run.json` if there is a stream to resume, else {}.

        Raises
        ------
        ConfigError
            If the folder holds something else, or was begun with other settings.
        """
        begun = has_begun(self.folder)
        report = self.run.report() if begun else {}
        if begun:
            before = report.get("live") or {}
            before.setdefault("most_terms", 0)  # earlier releases admitted none
            before.setdefault("objects", False)
            changed = [name for name in self.settings if before.get(name) != self.settings[name]]
            if changed:
                raise ConfigError(
                    f"{self.folder}: was begun with another {' and '.join(changed)}; give the same, or another folder"
                )
        with writing_to(self.folder):
            self.log.parent.mkdir(exist_ok=True)
            _copy_vocabulary(self.settings["vocabulary"], self.folder / VOCABULARY)
        return report

    def recover(self, admission: Admission, on_read: Callable[[float], None] = lambda share: None) -> None:
        """Replay the log's changes and admitted terms into `admission`, and open the log to append. O(its bytes).

        `on_read` as of `replay`.

        Raises
        ------
        CheckpointError
            If the log is damaged, or lacks what was acknowledged.
        DeliveryError
            If it cannot be written.
        """
        if self._hands_over:
            self._handover = open_handover(self.log)
        newest_us, time_us, changes_wait = self.replay(admission, on_read)
        if self._handover is not None:
            self._handover.end = self.size_bytes
        self._declared = len(admission.vocabulary.attributes)
        refuse_lost(self.folder, self.log, self.size_bytes, self.next_seq - 1)
        self._clock.resume(newest_us, time_us, time.monotonic(), changes_wait)
        with writing_to(self.log):
            self._file = open(self.log, "ab")  # noqa: SIM115 - closed by `close`
            torn_bytes = self._file.tell() - self.size_bytes
            if torn_bytes:
                driver_log().warning("torn_record", file=str(self.log), at_byte=self.size_bytes, cut_bytes=torn_bytes)
            self._file.truncate(self.size_bytes)  # a record that was not finished
            if self._durable is not None:
                os.fsync(self._file.fileno())
                if not self.size_bytes:  # an earlier process may have made it, and died before it forced its name
                    for place in (self.log.parent, self.folder, self.folder.absolute().parent):
                        force(place)
                self._mark = DurableMark(self.folder, self.size_bytes)
        self.durable_through = self.next_seq - 1
        self.rebase()
        if self.line and self._durable is not None:
            self._durable(self.line)

    def replay(
        self, admission: Admission, on_read: Callable[[float], None] = lambda share: None
    ) -> tuple[int, int, bool]:
        """Replay the log's changes and admitted terms into `admission`, without writing. O(its bytes).

        Parameters
        ----------
        on_read : callable
            Called with each record: how much of the log is read, 0 to 1.

        Returns
        -------
        int, int, bool
            A time that no message is newer than, and stream time, both in us; whether changes of subscriptions wait for
            the next batch.

        Raises
        ------
        CheckpointError
            If the log is damaged.
        """
        self._admission = admission
        time_us, newest_us, changes_wait = NO_FLOOR, NO_FLOOR, False
        waiting: list[tuple[int, int, Record]] = []  # behind the last batch: the next one admits their words
        size_bytes = self.log.stat().st_size if self.log.exists() else 0
        for record, offset, end in read_records(self.log) if size_bytes else ():
            if record.last_seq not in (-1, self.next_seq + record.messages - 1):
                raise CheckpointError(
                    f"{self.log}: is damaged at byte {offset:,} (seq {record.last_seq:,}); restore it"
                )
            refused = admission.logged(record, self.next_seq)
            if refused is not None:
                raise CheckpointError(f"{self.log}: {_REFUSED_NOW}: {refused.what}")
            if record.last_seq >= 0:
                waiting.clear()
            elif record.changes:
                waiting.append((offset, end, record))
            if self.living is not None and record.block is not None and record.terms is not None:
                self.living.take(self.next_seq, record.block, record.terms, record.rows)
            if record.floor:
                self.floor = record.floor, offset
            if record.logged_s:
                self.logged_s[self.next_seq] = self._logged_s = record.logged_s
            self.mark_count += record.mark + record.marks
            self._note(offset, record.last_seq, record.checksum if record.rows is None else "")
            self._note_positions(record.positions)
            self.line, self.size_bytes, self._before = record.line, end, record.checksum
            on_read(end / size_bytes)
            if record.messages or record.changes:
                changes_wait = record.changes[-1:] == (record.messages,)
            if record.time_us is not None:
                time_us = record.time_us
                if record.mark:
                    self.marks[record.last_seq] = time_us
                else:
                    newest_us = time_us  # at most
        for offset, end, record in waiting:
            changes = admission.logged_words(record.lines)
            if isinstance(changes, Refusal):
                raise CheckpointError(f"{self.log}: {_REFUSED_NOW} ({changes.reason}); restore it")
            self._hand_over(offset, end, record, None, changes)
        return newest_us, time_us, changes_wait

    def keep(self, batch: OpenBatch) -> None:
        """Store lines, and return when they are durable; one write to disk. Raises DeliveryError.

        With a message among them they are a batch; changes alone belong to the next batch.
        """
        first, block = self.next_seq, batch.messages.closed()
        self.line = max(self.line, batch.line)
        changes = tuple(batch.changes)
        self._clock.take_all(block.time_us, block.ahead, batch.message_came_s)
        self._clock.note_changes(batch.ends_with_change, batch.came_s[-1])
        if not len(block):
            self._append(Record(-1, self.line, 0, changes, batch.lines), changes=batch.checked)
            return
        admitted, terms, handed = self._weigh(block)
        if self.living is not None:
            block = block.having(previous=self.living.take(first, block, terms))
        self._recent.put(first, block)
        count = len(block)
        record = Record(
            first + count - 1, self.line, count, changes, batch.lines, admitted=admitted, block=block, terms=terms
        )
        self._append(record, handed, batch.checked)

    def due(self, now_s: float) -> int | None:
        """Stream time in us of the clock mark that is due at this `time.monotonic`, or None. Raises DeliveryError."""
        if self._mark is not None and self._mark.waits(now_s):
            with writing_to(self._mark.path):
                self._mark.force(now_s)
        return self._clock.due(now_s)

    def mark(self, time_us: int, now_s: float) -> None:
        """Store a clock mark of this stream time as a durable batch of its own. Raises DeliveryError."""
        self._clock.mark(time_us, now_s)
        admitted, last_seq = self._admit([]), self.next_seq
        self.marks[last_seq] = time_us
        self.mark_count += 1
        self._append(Record(last_seq, self.line, 1, time_us=time_us, mark=True, admitted=admitted))

    def reached(self, origin: Origin) -> None:
        """Note that a source is read up to `origin`; the batch that is stored next carries this position."""
        partitions = self._reached.setdefault(origin.source, {})
        partitions[origin.partition] = origin.offset, origin.token

    def announce(self, floor: int) -> None:
        """Say with the next record that later changes ask for no message before this one; for any thread."""
        self._next_floor = floor

    def rebase(self) -> None:
        """Read the log as it is, after its beginning was removed. O(records of the base)."""
        ends, offsets, reader = array("q"), array("q"), LogReader(self.log)
        while reader.base is not None and reader.offset < reader.base.size_bytes:
            offset, record = reader.offset, reader.skim()
            if record is None:
                raise CheckpointError(f"{self.log}: its base ends before byte {reader.base.size_bytes:,}; restore it")
            if record.last_seq >= 0:
                ends.append(record.last_seq)
                offsets.append(offset)
        with self._reading:
            earlier, self._reader, self._read_last = self._reader, reader, None
            self._base_ends, self._base_offsets = ends, offsets
            self.first_seq = 0 if reader.base is None else reader.base.seq
        if earlier is not None:
            earlier.close()

    def keep_positions(self) -> None:
        """Store the positions of the sources, unless the last stored batch has them. Raises DeliveryError."""
        if self._reached:
            self._append(Record(-1, self.line))

    def _hand_over(
        self, offset: int, end: int, record: Record, handed: tuple[Rows, int] | None, changes: Sequence[Changed]
    ) -> None:
        """Leave a record, which is at these bytes of the log, to the spouts, if they run in this process."""
        if self._handover is not None:
            assert self._admission is not None, "recover() comes first"
            admits = self._admission.vocabulary.most_terms > 0
            block = ChangeBlock.of(changes, record.lines, admits) if changes else None
            whole = None if handed is None else Handed(*handed, end, record.changes)
            self._handover.put(offset, HandedRecord(record._replace(block=None, terms=None), end, block), whole)

    def _admit(self, terms: Sequence[str]) -> Admitted:
        """Admit the new terms of a batch."""
        assert self._admission is not None, "recover() comes first"
        return self._admission.new_terms.admit(terms, self.next_seq - self.mark_count)

    def _weigh(self, block: MessageBlock) -> tuple[Admitted, MessageTerms, tuple[Rows, int] | None]:
        """Admit the new terms of a batch; returns also the terms of its messages, and what is handed over."""
        assert self._admission is not None, "recover() comes first"
        words, space = self._admission.new_terms.words, self._admission.space
        cut = words.cut(block.words())
        admitted = self._admit(words.new_terms(cut))
        terms = words.terms(cut)
        if self._handover is None:
            return admitted, terms, None
        rows = rows_of(block, terms, words.vocabulary, self.next_seq, space, self._admission.window)
        return admitted, terms, (rows, int(terms.unknown.sum()))

    def _time_us(self) -> int | None:
        return None if self._clock.time_us == NO_FLOOR else self._clock.time_us

    def _note_positions(self, read: Positions) -> None:
        for source, partitions in read.items():
            # a copy: other threads read it
            self.positions[source] = self.positions.get(source, {}) | partitions

    def _append(self, record: Record, handed: tuple[Rows, int] | None = None, changes: Sequence[Changed] = ()) -> None:
        """Write a record, with stream time, the attributes that were declared and the positions that were reached.

        The spout may take the rows of the batch once it could read them from the log.
        """
        reached, self._reached = self._reached, {}
        time_us = record.time_us if record.mark else self._time_us()
        assert self._admission is not None, "recover() comes first"
        schema = self._admission.vocabulary.attributes
        if len(schema) > self._declared:
            new = tuple(map(str, schema.attributes[self._declared :]))
            record, self._declared = record._replace(admitted=record.admitted._replace(attributes=new)), len(schema)
        floor, self._next_floor = self._next_floor, 0
        record = record._replace(time_us=time_us, positions=reached, floor=floor)
        if not 0 <= int(now_s := time.time()) - self._logged_s < _LOGGED_S:
            self._logged_s = self.logged_s[self.next_seq] = int(now_s)
            record = record._replace(logged_s=self._logged_s)
        data = encode_record(record, self._before)
        self._before = checksum_in(data)
        self._note(self.size_bytes, record.last_seq, self._before)
        with writing_to(self.log):
            self._file.write(data)
            self._file.flush()
            self._hand_over(self.size_bytes, self.size_bytes + len(data), record, handed, changes)
            if self._durable is not None:
                os.fsync(self._file.fileno())
        self.size_bytes += len(data)
        if self._mark is not None:
            with writing_to(self._mark.path):
                self._mark.note(self.size_bytes)
        if floor:
            self.floor = floor, self.size_bytes - len(data)
        self._note_positions(reached)
        self.durable_through = self.next_seq - 1
        if self.line and self._durable is not None:
            self._durable(self.line)
        self.settle()

    def has_texts(self, seqs: Collection[int]) -> bool:
        """Whether the texts of these messages are in memory; for any thread."""
        return not seqs or self._recent.has(min(seqs))

    def look_up(self, seqs: Sequence[int]) -> Mapping[int, MessageText]:
        """Texts of messages by seq, for any thread. One read of the log for each batch of older ones."""
        found: dict[int, MessageText] = {}
        wanted = np.array(seqs, np.int64)
        while wanted.shape[0]:
            first, block = self._block_of(int(wanted[0]))
            here = (wanted >= first) & (wanted < first + len(block))
            rows = wanted[here] - first
            ids, texts = (_some(column, rows) for column in (block.ids, block.texts))
            of, langs = ([""] * len(rows) if one is None else _some(one, rows) for one in (block.objects, block.langs))
            objects = bool(self.settings.get("objects"))  # earlier releases had messages alone
            of = [(one or name) * objects for one, name in zip(of, ids, strict=True)]
            columns = [ids, texts, block.lon[rows].tolist(), block.lat[rows].tolist(), of, langs]
            found.update(zip(wanted[here].tolist(), map(MessageText, *columns), strict=True))
            wanted = wanted[~here]
        return found

    def message(self, seq: int) -> ParsedMessage:
        """A message without the hash of its content, for any thread. Raises CheckpointError if it is not there."""
        first, block = self._block_of(seq)
        return block.message(seq - first)

    def values(self, seqs: Iterable[int]) -> dict[int, LoggedValues]:
        """Attributes of messages by seq, for any thread."""
        found = {}
        for seq in seqs:
            first, block = self._block_of(seq)
            previous = -1 if block.previous is None else int(block.previous[seq - first])
            found[seq] = LoggedValues(block.values(seq - first), previous)
        return found

    def _block_of(self, seq: int) -> tuple[int, MessageBlock]:
        """The batch of a message, and its first seq, from memory or the log."""
        return self._recent.get(seq) or self._read_block(seq)

    def records_from(self, seq: int) -> Iterator[tuple[int, Record]]:
        """The logged batches from that of a message on, as far as they are logged now, each with its first seq."""
        with self._reading:
            if seq >= self.next_seq:
                return
            first, offset = self.place_of(seq)
        for record, _, _ in read_records(self.log, offset):
            yield first, record
            first += record.messages

    def place_of(self, seq: int) -> tuple[int, int]:
        """The first seq of the batch of a message, and where it is in the log, in bytes. O(log batches)."""
        ends, offsets = (self.ends, self._offsets) if seq >= self.first_seq else (self._base_ends, self._base_offsets)
        batch = bisect_right(ends, seq - 1)
        return ends[batch - 1] + 1 if batch else 0, offsets[batch]

    def blocks_from(self, seq: int) -> Iterator[tuple[int, MessageBlock]]:
        """The logged messages from the batch of this seq on, batch by batch, each with its first seq; no marks."""
        for first, record in self.records_from(seq):
            if record.block is not None:
                yield first, self._whole(record, first)

    def close(self) -> None:
        """Close the log."""
        close_handover(self.log)
        for file in (self._file, self._reader, self._mark):
            if file is not None:
                file.close()

    def tag_of(self, boundary: int) -> str:
        """Eight hexadecimal digits for the log up to the end of the batch with this last seq, for any thread.

        Two logs that differ up to there have different tags. Empty for a batch of an earlier release, and for a seq
        that is no batch's last.
        """
        batch = bisect_left(self.ends, boundary)
        there = batch < len(self.ends) and self.ends[batch] == boundary and self._tags[batch]
        return f"{self._tags[batch]:08x}" if there else ""

    def window_floor(self, last_seq: int, length: int) -> int:
        """The floor of a count window over objects at a boundary (`matching.window.Floors`), for any thread.

        Reads the messages of the window.
        """
        while last_seq >= 0:
            first, block = self._block_of(last_seq)
            kept = np.flatnonzero(~deletions_in(block)[: last_seq + 1 - first])
            if kept.shape[0] > length:
                return first + int(kept[-length - 1])
            length, last_seq = length - kept.shape[0], first - 1
        return -1

    def _note(self, offset: int, last_seq: int, checksum: str) -> None:
        if last_seq >= 0:
            self._offsets.append(offset)
            self._tags.append(int(checksum[:8] or "0", 16))
            self.ends.append(last_seq)

    def _read_block(self, seq: int) -> tuple[int, MessageBlock]:
        """The logged batch of a message, and its first seq."""
        with self._reading:
            first, offset = self.place_of(seq) if seq < self.next_seq else (0, -1)
            if self._read_last is None or self._read_last[0] != first or offset < 0:
                assert self._reader is not None, "recover() comes first"
                record = None
                if offset >= 0:
                    self._reader.offset = offset
                    record = self._reader.read()
                if record is None or (record.block is None and record.rows is None):
                    raise CheckpointError(f"{self.log}: message {seq:,} is missing")
                self._read_last = first, self._whole(record, first)
            return first, self._read_last[1]

    def _whole(self, record: Record, first: int) -> MessageBlock:
        """The messages of a record, those that were removed among them."""
        if record.rows is None and record.block is not None:
            return record.block
        assert self._admission is not None, "recover() comes first"
        return block_of(record, first, self._admission.space, self.log)[0]


def _some(names: Names, rows: Int64) -> list[str]:
    """The strings of some rows."""
    return names.take(rows).strings()


def has_begun(folder: Path) -> bool:
    """Whether a folder has a live stream to resume.

    False if it ended before anything was logged: subscriptions of files are then loaded.

    Raises
    ------
    ConfigError
        If the folder holds something else.
    """
    log = folder / LOG
    if log.exists():
        return log.stat().st_size > 0
    left = {entry.name for entry in folder.iterdir() if not entry.name.startswith(".")} if folder.exists() else set()
    if left - {LOG.parts[0], KEYS}:
        raise ConfigError(f"{folder}: holds something that is no folder of skyray live; name another one")
    return False


def settings_of(config: LiveConfig, named: Mapping[str, str] | None = None) -> dict[str, Any]:
    """What answers depend on besides the lines; `named` columns as of `gateway.live.mapping`.

    `vocabulary` is None for an empty start.

    Raises InputError if the ETL has not written the folder.
    """
    sums = {name: checksum(config.messages / name) for name in ("vocabulary.parquet", "manifest.json")}
    folder = None if config.messages == config.out / EMPTY_START else str(config.messages.resolve())
    return {"vocabulary": folder, "checksums": sums, "mapping": dict(named) if named else None} | {
        name: getattr(config, name) for name in (*ANSWER_SETTINGS, "most_terms")
    }


def _copy_vocabulary(named: str | None, copy: Path) -> None:
    """Copy the words of an ETL folder, unless they are there; the manifest last, by which they are whole."""
    if named is None or (copy / "manifest.json").exists():
        return
    copy.mkdir(exist_ok=True)
    for name in ("vocabulary.parquet", "manifest.json"):
        with written(LocalDisk(copy), name, f".{name}.tmp") as file:
            file.write((Path(named) / name).read_bytes())
