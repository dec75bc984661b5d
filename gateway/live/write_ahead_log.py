"""What came through a pipe, remembered before it is matched: nothing lost, nothing twice, whatever dies.

A folder has

    journal/log            the lines that were taken, batch by batch (`spouts.log`), forced to disk before they are read
    updates/, checkpoints/ as of any run that is saved as it goes
    etl/, subscriptions.jsonl, boundaries.parquet, results.parquet, run.json
                           at the end: the same as a run over files leaves, so that `skyray verify` and `show` accept it

Answers follow from lines and batches alone. Whoever goes on looks through the log, to know who is subscribed, and
matches from the last checkpoint on. Used by `gateway.commands.live`; read on in `gateway.live.recording` for what is
left at the end.
"""

import os
import time
from array import array
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gateway.live.admission import Admission, Refused
from gateway.live.pipe import Taken
from gateway.live.stream_clock import StreamClock
from gateway.live.update_listener import MessageText
from gateway.shell.terminal import writing_to
from matching.errors import CheckpointError, ConfigError
from matching.validate import ParsedMessage, decode_object
from matching.window import NO_FLOOR, Window
from spouts.log import LogReader, encode_record, read_records
from spouts.parsed import parse_message
from topology.folder import RunFolder, checksum
from topology.settings import RunConfig

#: Where the log is in the folder.
LOG = Path("journal", "log")
#: Messages of which it is remembered what they said; of older ones the log knows.
_RECENT = 50_000


class WriteAheadLog:
    """The log of one folder, held by this process; see the module.

    Parameters
    ----------
    folder : Path
    settings : dict
        What answers depend on besides the lines; whoever goes on must have the same.
    durable : callable, optional
        Told the number of the last line that no failure can undo any more; without it nothing is forced to disk.
    window : Window, optional
        If it goes by time, a clock moves the time of the stream while it is quiet.

    Attributes
    ----------
    run : RunFolder
    log : Path
    line : int
        How many lines of input there had been by the last one that was taken.
    ends : sequence of int
        The last seq of each batch.
    marks : dict of int to int
        Seq of each mark of the clock, and the stream time that it says.

    Notes
    -----
    16 bytes a batch, some 100 a mark, and what the last messages said.
    """

    def __init__(
        self,
        folder: Path,
        settings: dict[str, Any],
        durable: Callable[[int], None] | None = None,
        window: Window | None = None,
    ):
        self.folder = folder
        self.run = RunFolder(folder)
        self.settings = settings
        self.log = folder / LOG
        self.line = 0
        self.ends = array("q")
        self.marks: dict[int, int] = {}
        self._clock = StreamClock(window or Window("count", 1))
        self._durable = durable
        self._file: Any = None
        self._reader: LogReader | None = None
        self._offsets = array("q")
        self._size_bytes = 0
        self._recent: dict[int, MessageText] = {}
        self._read_last: tuple[int, list[bytes]] = (-1, [])

    @property
    def next_seq(self) -> int:
        """What the next message gets."""
        return self.ends[-1] + 1 if self.ends else 0

    def begin(self) -> dict[str, Any]:
        """Open the folder, which `run.held()` must hold; what `run.json` says, if there is something to go on with.

        Raises
        ------
        ConfigError
            If the folder holds something else, or was begun with other settings.
        """
        begun = has_begun(self.folder)
        told = self.run.report() if begun else {}
        if begun:
            before = told.get("live") or {}
            changed = [name for name in self.settings if before.get(name) != self.settings[name]]
            if changed:
                raise ConfigError(
                    f"{self.folder}: was begun with another {' and '.join(changed)}; give the same, or another folder"
                )
        with writing_to(self.folder):
            self.log.parent.mkdir(exist_ok=True)
            self.run.clear_hidden()
        return told

    def recover(self, gate: Admission) -> None:
        """Look through the log, so that the gate knows who is subscribed, and be ready for more. O(its bytes)."""
        size, time_us, newest_us = 0, NO_FLOOR, NO_FLOOR
        if self.log.exists():
            for record, offset, end in read_records(self.log):
                for _, line in record.changes_from(0):
                    refused = gate.line(line)
                    if isinstance(refused, Refused):
                        raise CheckpointError(f"{self.log}: a change that was taken is refused now: {refused.what}")
                self._note(offset, record.last_seq)
                self.line, size = record.line, end
                if record.time_us is not None:
                    time_us = record.time_us
                    if record.mark:
                        self.marks[record.last_seq] = time_us
                    else:
                        newest_us = time_us  # at most
        self._clock.resume(newest_us, time_us, time.monotonic())
        with writing_to(self.log):
            new = not self.log.exists()
            self._file = open(self.log, "ab")  # noqa: SIM115 - closed by `close`
            self._file.truncate(size)  # what was being written when the last one died
            if self._durable is not None:
                os.fsync(self._file.fileno())
                for place in (self.log.parent, self.folder, self.folder.absolute().parent) if new else ():
                    _force(place)
        self._size_bytes = size
        self._reader = LogReader(self.log)
        if self.line and self._durable is not None:
            self._durable(self.line)

    def keep(self, taken: list[Taken]) -> None:
        """See `gateway.live.pipe.Keeper`. Raises DeliveryError if the log cannot be written. One write to disk."""
        first, changes = self.next_seq, [place for place, one in enumerate(taken) if one.message is None]
        ahead = [place for place, one in enumerate(taken) if one.message is not None and one.message.ahead]
        for seq, message in enumerate((one.message for one in taken if one.message is not None), start=first):
            self._recent[seq] = _said(message)
            self._recent.pop(seq - _RECENT, None)
        messages = len(taken) - len(changes)
        last_seq = first + messages - 1 if messages else -1
        self.line = max(self.line, taken[-1].line.number)
        for one in taken:
            if one.message is not None and not one.message.ahead:
                self._clock.take(one.message.event_time_us, one.line.came_s)
        lines = [one.line.data for one in taken]
        self._append(encode_record(lines, changes, self.line, last_seq, self._time_us(), ahead=ahead), last_seq)

    def due(self, now_s: float) -> int | None:
        """See `gateway.live.pipe.Keeper`."""
        return self._clock.due(now_s)

    def mark(self, time_us: int, now_s: float) -> None:
        """See `gateway.live.pipe.Keeper`. Raises DeliveryError if the log cannot be written. One write to disk."""
        self._clock.mark(time_us, now_s)
        self.marks[self.next_seq] = time_us
        self._append(encode_record([b""], (), self.line, self.next_seq, time_us, mark=True), self.next_seq)

    def _time_us(self) -> int | None:
        return None if self._clock.time_us == NO_FLOOR else self._clock.time_us

    def _append(self, data: bytes, last_seq: int) -> None:
        self._note(self._size_bytes, last_seq)
        with writing_to(self.log):
            self._file.write(data)
            self._file.flush()
            if self._durable is not None:
                os.fsync(self._file.fileno())
        self._size_bytes += len(data)
        if self.line and self._durable is not None:
            self._durable(self.line)

    def look_up(self, seqs: Sequence[int]) -> Mapping[int, MessageText]:
        """What these messages were. A read for each batch that older ones were in."""
        found = {}
        for seq in seqs:
            said = self._recent.get(seq)
            if said is None:
                parsed = parse_message(decode_object(self._line_of(seq)))
                if isinstance(parsed, str):
                    raise CheckpointError(f"{self.log}: message {seq:,} is damaged ({parsed})")
                said = _said(parsed)
            found[seq] = said
        return found

    def close(self) -> None:
        """Close the log."""
        for file in (self._file, self._reader):
            if file is not None:
                file.close()

    def _note(self, offset: int, last_seq: int) -> None:
        if last_seq >= 0:
            self._offsets.append(offset)
            self.ends.append(last_seq)

    def _line_of(self, seq: int) -> bytes:
        batch = bisect_right(self.ends, seq - 1)
        if self._read_last[0] != batch:
            assert self._reader is not None, "recover() comes first"
            self._reader.offset = self._offsets[batch]
            record = self._reader.read()
            if record is None:
                raise CheckpointError(f"{self.log}: message {seq:,} is not there any more")
            self._read_last = batch, record.message_lines()
        return self._read_last[1][seq - (self.ends[batch - 1] + 1 if batch else 0)]


def has_begun(folder: Path) -> bool:
    """Whether a live stream has left something in a folder to go on with.

    Not where it ended before anything was logged: then subscriptions of files count yet.

    Raises
    ------
    ConfigError
        If the folder holds something else.
    """
    log = folder / LOG
    if log.exists():
        return log.stat().st_size > 0
    left = {entry.name for entry in folder.iterdir() if not entry.name.startswith(".")} if folder.exists() else set()
    if left - {LOG.parts[0]}:
        raise ConfigError(f"{folder}: holds something that is no folder of skyray live; name another one")
    return False


def settings_of(config: RunConfig, named: Mapping[str, str] | None = None) -> dict[str, Any]:
    """What answers depend on besides the lines; `named` are columns that were named (`gateway.live.mapping`).

    Raises InputError if the folder is none of the ETL's.
    """
    sums = {name: checksum(config.messages / name) for name in ("vocabulary.parquet", "manifest.json")}
    fixed = ("window", "world", "projection", "decay_half_life", "decay_smoothing")
    folder = str(config.messages.resolve())
    return {"vocabulary": folder, "checksums": sums, "mapping": dict(named) if named else None} | {
        name: getattr(config, name) for name in fixed
    }


def _said(message: ParsedMessage) -> MessageText:
    return MessageText(message.message_id, message.text, message.lon, message.lat)


def _force(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
