"""The log of a live stream read where it is: its messages, changes of subscriptions, batches and words.

The folder of a stream stands for all of them where a folder of messages, a file of subscriptions or a file of
boundaries is named. It is read as far as `run.json` says that the stream goes (`log_bytes`); while it runs, as far as
the log goes now. A log only ever grows, so what was read stays. Opening reads the heads of the records alone.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import closing
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from matching.decoding import decode_object
from matching.errors import CheckpointError
from matching.model import Int64
from spouts.log import NONE_ADMITTED, Admitted, LogReader, Record
from topology.core.places import is_remote

#: Where the log is in the folder.
LOG = Path("journal", "log")
#: Where the words of a stream are that starts without any.
EMPTY_START = Path("journal", "start")
#: Where a copy of the vocabulary is of a stream that starts with one: its folder can be read without the original.
VOCABULARY = Path("journal", "vocabulary")
#: Says what the log is of.
_REPORT = "run.json"
#: Messages, and bytes of the log, from which no more records are read together.
_MESSAGES, _BYTES = 4_096, 4 << 20


class History:
    """The log of a stream, up to a byte.

    Parameters
    ----------
    folder : Path
        Of the stream.
    settings : dict
        What answers depend on, as `run.json` has it: the world, the words that the stream began with and the like.
    through : int, optional
        Where its log ends, in bytes; by default at its last whole record.

    Attributes
    ----------
    settings : dict
    start : Path
        Folder of the words that the stream began with.
    most_terms : int
        How many terms it may admit.
    admitted : list of Admitted
        Terms admitted and attributes declared so far, record by record.
    ends : int64[batches]
        The last seq of each batch.
    sizes : list of int
        Messages of each group of records that are read together.
    floors : list of (int, int)
        Seqs, and from each on the message before which later changes ask for none, since it may be removed.
    first_kept, kept_after : int
        Messages before the first are gone but for some (`spouts.log.BASE`), and updates up to the second may be.
    messages, marks : int
        How many messages the log has, clock marks among them, and how many clock marks.

    Raises
    ------
    CheckpointError
        If the log is damaged, or shorter than `through`.

    Notes
    -----
    Some microseconds a record. Memory: 8 bytes a batch, 16 a group, and the admitted terms.
    """

    def __init__(self, folder: Path, settings: dict[str, Any], through: int | None = None):
        self.log = folder / LOG
        self.start = start_of(folder, settings)
        self.settings = settings
        self.most_terms = int(settings.get("most_terms", 0))
        self.admitted: list[Admitted] = []
        self.sizes: list[int] = []
        self.floors: list[tuple[int, int]] = []
        self.messages = self.marks = 0
        self._offsets: list[int] = []  # of the groups
        self._tail = 0  # behind the last batch
        ends = self._skim(through)
        self.ends: Int64 = np.array(ends, np.int64)

    def _skim(self, through: int | None) -> list[int]:
        ends, group_bytes = list[int](), _BYTES
        with closing(LogReader(self.log)) as reader:
            offset, base = 0, reader.base
            self.first_kept, self.kept_after = (0, -1) if base is None else (base.seq, base.boundary)
            while (through is None or offset < through) and (record := reader.skim()) is not None:
                if record.last_seq not in (-1, self.messages + record.messages - 1):
                    what = f"is damaged at byte {offset:,} (seq {record.last_seq:,}); restore it"
                    raise CheckpointError(f"{self.log}: {what}")
                if record.admitted != NONE_ADMITTED:
                    self.admitted.append(record.admitted)
                if record.floor:
                    self.floors.append((self.messages, record.floor))
                if record.last_seq >= 0:
                    if group_bytes >= _BYTES or self.sizes[-1] >= _MESSAGES:
                        self.sizes.append(0)
                        self._offsets.append(offset)
                        group_bytes = 0
                    self.sizes[-1] += record.messages
                    group_bytes += reader.offset - offset
                    self.messages += record.messages
                    self.marks += record.mark + record.marks
                    ends.append(record.last_seq)
                    self._tail = reader.offset
                offset = reader.offset
        if through is not None and offset != through:
            what = f"has {offset:,} bytes of whole records, and run.json says {through:,}; restore the folder"
            raise CheckpointError(f"{self.log}: {what}")
        self._end = offset
        return ends

    def batches(self, group: int) -> Iterator[tuple[int, Record]]:
        """The records of a group, each with its first seq. Raises CheckpointError if they are damaged."""
        first, left = sum(self.sizes[:group]), self.sizes[group]
        with closing(LogReader(self.log, self._offsets[group])) as reader:
            while left > 0:
                record = reader.read_messages()
                if record is None:
                    raise CheckpointError(f"{self.log}: ends before message {first:,}; restore the folder")
                if record.messages:
                    yield first, record
                    first, left = first + record.messages, left - record.messages

    def changes(self) -> Iterator[dict[str, Any]]:
        """Rows of subscriptions, as files have them: each with the seq before which it takes effect, `at`."""
        return self._changes(0, 0)

    def last_changes(self) -> Iterator[dict[str, Any]]:
        """Those behind the last batch, whose new terms the next one would admit."""
        return self._changes(self._tail, self.messages)

    def _changes(self, offset: int, seq: int) -> Iterator[dict[str, Any]]:
        with closing(LogReader(self.log, offset)) as reader:
            while reader.offset < self._end:
                record = reader.read_changes()
                if record is None:
                    raise CheckpointError(f"{self.log}: ends before byte {self._end:,}; restore the folder")
                for at, line in record.changes_from(seq):
                    row: Any = decode_object(line)
                    yield row.get("subscribe", row) | {"at": at}
                seq += record.messages

    def bytes_through(self, last_seq: int) -> int:
        """Where the batch with this last seq ends, in bytes. Raises CheckpointError if there is none."""
        offset = seq = 0
        with closing(LogReader(self.log)) as reader:
            while seq <= last_seq and offset < self._end and (record := reader.skim()) is not None:
                offset, seq = reader.offset, seq + record.messages
        if seq != last_seq + 1:
            raise CheckpointError(f"{self.log}: ends before message {last_seq:,}, which a checkpoint has")
        return offset


def history_of(path: str | os.PathLike[str]) -> History | None:
    """The log of the stream of a folder; None if the path is another one. Raises as `History`."""
    if is_remote(path):
        return None
    folder = Path(path)
    try:
        log, text = (folder / LOG).stat(), (folder / _REPORT).read_bytes()
        report = json.loads(text)
        settings = report["live"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    through = report.get("log_bytes")
    return _opened(folder.absolute(), json.dumps(settings), through, log.st_ino, log.st_mtime_ns)


@lru_cache(maxsize=4)
def _opened(folder: Path, settings: str, through: int | None, *of_log: int) -> History:
    """A log as it is now."""
    return History(folder, json.loads(settings), through)


def start_of(folder: Path, settings: Mapping[str, Any]) -> Path:
    """The folder of the words that a stream starts with; `settings` as `run.json` has them."""
    copy, named = folder / VOCABULARY, settings["vocabulary"]
    return copy if (copy / "manifest.json").exists() else Path(named or folder / EMPTY_START)
