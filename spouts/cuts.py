"""Where batches end: after N messages, where stream time reaches a multiple of S seconds, or where a live stream logged
an end.

All three depend on the stream alone: a replay cuts where the first run did.
"""

import os
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from matching.errors import ConfigError, InputError
from matching.model import Int64
from matching.window import NO_FLOOR, Window, duration_s
from spouts.history import history_of

#: Messages of a batch, unless the settings say otherwise.
MESSAGES = 5_000
#: With a time window a batch spans at most this part of it by default: what enters and leaves within is no update.
PART_OF_WINDOW = 10
_MOST = 1 << 62


class Cuts(NamedTuple):
    """How a stream is cut.

    messages : int    most messages of a batch; 0: any number
    step_us : int    a batch ends before the first message of a later multiple of this stream time; 0: never
    log : str    folder of a live stream, whose batches override the other two; empty: none
    """

    messages: int = MESSAGES
    step_us: int = 0
    log: str = ""

    @classmethod
    def parse(cls, text: str, window: Window) -> "Cuts":
        """`N`, `time:DURATION` (`matching.window.duration_s`), `log:PATH`, or `auto`.

        Raises
        ------
        ConfigError
            For anything else.
        """
        if text == "auto":
            return cls(MESSAGES, max(1, window.length // PART_OF_WINDOW) if window.kind == "time" else 0)
        kind, colon, amount = text.partition(":")
        if kind == "log" and amount:
            return cls(0, 0, os.path.abspath(amount))
        try:
            if kind == "time" and colon:
                seconds = duration_s(amount)
                if 1e-6 <= seconds <= 1e10:
                    return cls(0, int(seconds * 1e6))
            elif not colon and 1 <= int(text) <= 1_000_000:
                return cls(int(text))
        except ValueError:
            pass
        raise ConfigError(
            f"batch {text!r}: give N messages (1 to 1,000,000), time:SECONDS (or 90s, 5m, 1h) of stream time, "
            "log:PATH, or auto"
        )

    def as_json(self) -> Mapping[str, int | str]:
        if self.log:
            return {"logged": self.log}
        return {"batch": self.messages} | ({"time_us": self.step_us} if self.step_us else {})


class Steps:
    """The messages before which stream time makes a cut, as they are fed."""

    def __init__(self, step_us: int):
        self._step_us = step_us
        self._time_us = NO_FLOOR
        self._first: deque[int] = deque()

    def feed(self, first_seq: int, event_time_us: Int64) -> None:
        """Take the event times of the next messages, from `first_seq` on."""
        if not self._step_us or not event_time_us.shape[0]:
            return
        reached = np.maximum.accumulate(np.concatenate([[self._time_us], event_time_us]))
        known = reached > NO_FLOOR
        period = np.where(known, reached, 0) // self._step_us
        later = np.flatnonzero(known[:-1] & (period[1:] > period[:-1]))
        self._first.extend((first_seq + later).tolist())
        self._time_us = int(reached[-1])

    def before(self, next_seq: int) -> int:
        """Number of messages from `next_seq` to the next known cut."""
        while self._first and self._first[0] <= next_seq:
            self._first.popleft()
        return self._first[0] - next_seq if self._first else _MOST

    def resume_after(self, stream_time_us: int) -> None:
        """Set the stream time before the next message."""
        self._time_us = stream_time_us
        self._first.clear()


class Logged:
    """The messages before which a log of boundaries makes a cut; same interface as `Steps`.

    Parameters
    ----------
    ends : int64[n]    the last seq of each batch
    """

    def __init__(self, ends: Int64):
        self._ends = ends

    def feed(self, first_seq: int, event_time_us: Int64) -> None:
        """Ignore times."""

    def before(self, next_seq: int) -> int:
        """Number of messages from `next_seq` to the next cut; 0 after the last one."""
        place = int(np.searchsorted(self._ends, next_seq))
        return int(self._ends[place]) + 1 - next_seq if place < self._ends.shape[0] else 0

    def resume_after(self, stream_time_us: int) -> None:
        """Ignore stream time."""


def read_ends(path: str | os.PathLike[str]) -> Int64:
    """The last seq of each batch of the live stream of a folder.

    Raises
    ------
    InputError, CheckpointError
        If the folder is of no stream, or its log is damaged.
    """
    history = history_of(path)
    if history is None:
        raise InputError("missing_file", f"{path}: has no log of boundaries; name the folder of a live stream")
    return history.ends
