"""How far the log of a stream was acknowledged: no record before that is taken for one that was torn.

`journal/durable` has lines with the bytes of the log that were forced to disk; the last whole one counts. One is added
behind each fsync of the log, without an fsync of its own: so it is never ahead of the log, no producer waits for it,
and it survives the death of the process. It is forced to disk while the stream is idle, at most once a second, and at
the end; a record behind which another stands needs no proof. Checkpoints have the number too. After a power cut it may
lack what was acknowledged in the last second.
"""

import os
from pathlib import Path
from typing import Any

import xxhash

from bolts.sinks import last_of_parts
from matching.errors import CheckpointError
from topology.core.checkpoint.storage import LocalDisk, list_path, written
from topology.core.checkpoint.store import CheckpointStore
from topology.folder import CHECKPOINTS
from topology.live import LOG_BYTES

#: Where it is in the folder of a stream.
DURABLE = Path("journal", "durable")
#: Seconds between two times that it is forced to disk, and lines after which it begins anew.
_FORCE_S, _LINES = 1.0, 2_000


class DurableMark:
    """The open file of a stream's folder; for one thread. Raises OSError."""

    def __init__(self, folder: Path, size_bytes: int):
        self.path = folder / DURABLE
        self._folder = LocalDisk(self.path.parent)
        self._file: Any = None
        self._begin(size_bytes)

    def note(self, size_bytes: int) -> None:
        """The log is on disk up to here. One write of 38 bytes into the page cache."""
        if self._lines >= _LINES:
            self._begin(size_bytes)
            return
        self._file.write(_encode(size_bytes))
        self._file.flush()
        self._lines, self._waits = self._lines + 1, True

    def waits(self, now_s: float) -> bool:
        """Whether it is to be forced to disk, which was not done within the last second of `time.monotonic`."""
        return self._waits and now_s >= self._forced_s + _FORCE_S

    def force(self, now_s: float) -> None:
        """Force it to disk if it `waits`."""
        if self.waits(now_s):
            os.fsync(self._file.fileno())
            self._waits, self._forced_s = False, now_s

    def close(self) -> None:
        """Force it to disk, and close it."""
        try:
            self.force(float("inf"))
        finally:
            self._file.close()

    def _begin(self, size_bytes: int) -> None:
        """Replace the file by one with a single line."""
        with written(self._folder, DURABLE.name, f".{DURABLE.name}.tmp") as file:
            file.write(_encode(size_bytes))
        if self._file is not None:
            self._file.close()
        self._file = open(self._folder.folder / DURABLE.name, "ab")  # noqa: SIM115 - closed by `close`
        self._lines, self._waits, self._forced_s = 1, False, 0.0


def _encode(size_bytes: int) -> bytes:
    number = b"%020d" % size_bytes
    return b"%s %s\n" % (number, xxhash.xxh3_64_hexdigest(number).encode())


def acknowledged_bytes(folder: Path) -> int:
    """Bytes of the log that were acknowledged, as far as the folder says; -1 if it does not.

    A damaged line says nothing. O(bytes of a manifest).
    """
    lines = (folder / DURABLE).read_bytes().splitlines(keepends=True) if (folder / DURABLE).exists() else []
    marked = [int(line[:20]) for line in lines if line[:20].isdigit() and line == _encode(int(line[:20]))]
    facts = [one.facts.get(LOG_BYTES) for one in CheckpointStore(str(folder / CHECKPOINTS)).kept(1)]
    return max([-1, *marked[-1:], *(one for one in facts if isinstance(one, int))])


def refuse_lost(folder: Path, log: Path, size_bytes: int, last_seq: int) -> None:
    """Check that a log, which can be read up to these bytes and this message, has all that was acknowledged.

    Raises
    ------
    CheckpointError
        If it has not. Its tail is damaged or gone, and is not one that was torn.
    """
    known_bytes = acknowledged_bytes(folder)
    updates = folder / "updates"
    known_seq = last_of_parts(updates)
    if size_bytes >= known_bytes and last_seq >= known_seq:
        return
    known = f"{known_bytes:,} bytes" if size_bytes < known_bytes else f"message {known_seq:,}"
    raise CheckpointError(
        f"{log}: can be read up to byte {size_bytes:,}, and {known} were acknowledged: the rest is damaged or gone. "
        f"Bring back the file, or restore a backup of the folder. To go on without what is lost, cut the file "
        f"(truncate -s {size_bytes} {log}), and remove {folder / DURABLE}, {folder / CHECKPOINTS}, {updates} and "
        f"{list_path(updates)}: what is left is matched anew"
    )
