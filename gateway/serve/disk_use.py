"""How much of its disk a stream's folder takes, and when that disk is full at the pace of the last day."""

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from spouts.history import LOG
from spouts.log import BASE
from spouts.message_index import FOLDER as INDEX
from topology.folder import CHECKPOINTS

#: Seconds between two measurements, and for which they are kept: the pace is that between the oldest and the newest.
EVERY_S, KEPT_S = 60.0, 86_400.0
#: What grows with each message; checkpoints are replaced.
_GROWING = ("log", "updates", "index")
#: A day that is farther away is not told.
_FARTHEST_S = 10 * 365 * 86_400.0


class DiskFigures(NamedTuple):
    """A measurement.

    size_bytes : dict of str to int    of `log` and its base, `updates`, `index` and `checkpoints`, as the disk has them
    free_bytes : int                   of the disk, for the user of the process
    grows_bytes_per_s : float          of the log, updates and index; None within the first minute
    full_s : float                     when no byte is free, in seconds since 1970; None where it is not in sight
    """

    size_bytes: dict[str, int]
    free_bytes: int
    grows_bytes_per_s: float | None
    full_s: float | None

    def as_json(self) -> dict[str, object]:
        """As `/v1/stream` has them."""
        full_at = None if self.full_s is None else datetime.fromtimestamp(int(self.full_s), UTC)
        return {
            "size_bytes": self.size_bytes,
            "free_bytes": self.free_bytes,
            "grows_bytes_per_s": self.grows_bytes_per_s,
            "full_at": None if full_at is None else full_at.isoformat().replace("+00:00", "Z"),
        }


class DiskUse:
    """The folder of one stream; for any thread.

    Parameters
    ----------
    now : callable
        Returns seconds since 1970.
    """

    def __init__(self, folder: Path, now: Callable[[], float] = time.time):
        self._folder, self._now = folder, now
        self._places = {"log": folder / LOG, "base": (folder / LOG).with_name(BASE), "updates": folder / "updates"}
        self._places |= {"index": folder / LOG.parent / INDEX, "checkpoints": folder / CHECKPOINTS}
        self._before: deque[tuple[float, int]] = deque()
        self._last: DiskFigures | None = None
        self._lock = threading.Lock()

    def figures(self) -> DiskFigures:
        """The last measurement; a new one where it is older than a minute. O(files of the folder), 2 us each."""
        with self._lock:
            now_s = self._now()
            if self._last is None or not 0.0 <= now_s - self._before[-1][0] < EVERY_S:
                self._last = self._measured(now_s)
            return self._last

    def _measured(self, now_s: float) -> DiskFigures:
        sizes = {name: sum(_sizes(place)) for name, place in self._places.items()}
        sizes["log"] += sizes.pop("base")
        disk = os.statvfs(self._folder)
        free, grown = disk.f_bavail * disk.f_frsize, sum(sizes[name] for name in _GROWING)
        self._before.append((now_s, grown))
        while now_s - self._before[0][0] > KEPT_S or self._before[0][0] > now_s:  # the clock was set back
            self._before.popleft()
        first_s, first = self._before[0]
        pace = (grown - first) / (now_s - first_s) if now_s - first_s >= EVERY_S else None
        left_s = free / pace if pace is not None and pace > 0.0 else _FARTHEST_S
        return DiskFigures(sizes, free, pace, now_s + left_s if left_s < _FARTHEST_S else None)


def _sizes(place: Path) -> Iterator[int]:
    """Bytes that the disk has of a file, or of each file of a folder; some may be removed meanwhile."""
    try:
        with os.scandir(place) as entries:
            for entry in entries:
                try:
                    yield entry.stat(follow_symlinks=False).st_blocks * 512
                except FileNotFoundError:
                    continue
    except NotADirectoryError:
        yield place.stat().st_blocks * 512
    except FileNotFoundError:
        return
