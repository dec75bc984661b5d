"""Sliding windows, and the boundaries at which results are compared.

A window is `count:N` (the last N messages) or `time:DURATION` (by stream time, the running maximum of event time
by seq). Both come down to one rule: a message is alive at a boundary while its `life` is greater than the
boundary's `floor`. For a count window life is the seq and floor = last seq - N; for a time window life is the
event time and floor = stream time - S, both in microseconds. The floor never falls. In a stream of objects a window
may be `living`: nothing expires, and a version is alive until it is replaced or deleted; and a deletion takes no place
in a count window (`Floors`).

A message of a time window may come late, so a higher seq does not mean a longer life: compare lives, not seqs.
"""

import math
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from matching.errors import ConfigError
from matching.model import Int64

#: What ends a duration -> seconds in one of them.
UNITS_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
#: Below every life: the floor while nothing can have expired yet.
NO_FLOOR = -(2**62)


def duration_s(text: str) -> float:
    """Seconds of a duration: `90`, `90s`, `1.5m`, `1h`, `2d`.

    Raises
    ------
    ValueError
        For any other text. What is not finite is let through.
    """
    unit = UNITS_S.get(text[-1:])
    return float(text) if unit is None else float(text[:-1]) * unit


class Boundary(NamedTuple):
    """The end of batch `number`: messages up to `last_seq` have been published, those with life > `floor` live.

    An empty batch has `first_seq = last_seq + 1`.
    """

    number: int
    first_seq: int
    last_seq: int
    floor: int


class Window(NamedTuple):
    """`kind` is "count" (length in messages), "time" (length in microseconds) or "living" (length 0)."""

    kind: str
    length: int

    @classmethod
    def parse(cls, text: str) -> "Window":
        """Read `count:N`, `time:DURATION` (`duration_s`; fractions allowed) or `living`.

        Raises
        ------
        ConfigError
            For any other text, a length that is not positive, or one beyond 2**53.
        """
        if text == LIVING.kind:
            return LIVING
        kind, _, amount = text.partition(":")
        try:
            length = int(amount) if kind == "count" else duration_s(amount)
        except ValueError:
            length = 0
        if kind not in ("count", "time") or not math.isfinite(length) or not 0 < length < 2**33:
            raise ConfigError(
                f"window {text!r}: write count:N (messages) or time:SECONDS, e.g. count:20000, time:3600 or time:1h"
            )
        return cls(kind, int(length) if kind == "count" else max(1, round(length * 1_000_000)))

    def __str__(self) -> str:
        if self == LIVING:
            return self.kind
        return f"count:{self.length}" if self.kind == "count" else f"time:{self.length / 1_000_000:g}"

    def lives(self, seq: Int64, event_time_us: Int64) -> Int64:
        """The `life` column of messages: their seq, or their event time. O(n), no copy."""
        return event_time_us if self.kind == "time" else seq

    def floor(self, last_seq: int, stream_time_us: int) -> int:
        """The floor at a boundary; `stream_time_us` is the running maximum of event time (for time windows alone)."""
        if self == LIVING:
            return NO_FLOOR
        newest = last_seq if self.kind == "count" else stream_time_us
        return max(NO_FLOOR, newest - self.length)


#: Of a stream of objects: every living version, however old.
LIVING = Window("living", 0)


def stream_time(event_time_us: Int64, before_us: int = NO_FLOOR) -> int:
    """Running maximum of event time after these messages; NO_FLOOR while there were none. O(n)."""
    return int(max(before_us, np.max(event_time_us, initial=NO_FLOOR)))


_NONE = np.zeros(0, np.int64)


class Floors:
    """The floors of the boundaries of a stream, one after the other.

    Of a stream of objects with a count window a floor is the seq of the newest row behind which the window is full, -1
    while there is none; deletions take no place. Else it is that of `Window.floor`.

    Parameters
    ----------
    window : Window
    objects : bool    the stream is one of objects

    Notes
    -----
    O(1) a boundary and a run of consecutive deletions, amortised. Memory: some 100 bytes for each such run in the
    window, of which there are at most one more than other rows.
    """

    def __init__(self, window: Window, objects: bool = False):
        self._window = window
        self.skips = objects and window.kind == "count"  # whether deletions matter
        self._floor = self._through = -1
        self._places = 0  # rows above the floor that are no deletions
        self._runs: deque[tuple[int, int]] = deque()  # the deletions above it: first seq, and the one after the last

    def at(self, last_seq: int, stream_time_us: int, deletions: Int64 = _NONE) -> int:
        """The floor at the next boundary; `deletions`: ascending seqs of those since the last one."""
        if not self.skips:
            return self._window.floor(last_seq, stream_time_us)
        cuts = np.flatnonzero(np.diff(deletions) != 1) + 1
        self._runs += [(int(run[0]), int(run[-1]) + 1) for run in np.split(deletions, cuts) if run.shape[0]]
        self._places += last_seq - self._through - deletions.shape[0]
        self._through = last_seq
        while self._places > self._window.length:
            begin, after = self._runs[0] if self._runs else (last_seq + 1, 0)
            step = min(self._places - self._window.length, begin - 1 - self._floor)
            self._floor += step
            self._places -= step
            if self._places > self._window.length:  # and so the deletions come next
                self._floor = after - 1
                self._runs.popleft()
        return self._floor

    def state(self) -> dict[str, np.ndarray]:
        """What `restore` takes; {} where a floor follows from its boundary."""
        if not self.skips:
            return {}
        runs = np.array(self._runs, np.int64).reshape(-1, 2)
        return {"floor": np.array([self._floor, self._places], np.int64), "floor_deletions": runs}

    def restore(self, last_seq: int, state: Mapping[str, np.ndarray]) -> None:
        """Go on behind the boundary of this last seq; a state of earlier releases had no deletions."""
        self._through = last_seq
        self._floor = max(-1, last_seq - self._window.length)
        self._places = last_seq - self._floor
        self._runs.clear()
        if "floor" in state:
            self._floor, self._places = state["floor"].tolist()
            self._runs += map(tuple, state["floor_deletions"].tolist())
