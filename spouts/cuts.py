"""Where batches end: after so many messages, or where the time of the stream reaches a multiple of so many seconds.

Both are the stream's own: a replay cuts where the first run did. Read on in `spouts.cutting`.
"""

from collections import deque
from typing import NamedTuple

import numpy as np

from matching.errors import ConfigError
from matching.model import Int64
from matching.window import NO_FLOOR, Window

#: Messages of a batch, unless the settings say otherwise.
MESSAGES = 5_000
#: With a time window a batch spans at most this part of it by default: what came and went in between is never told.
PART_OF_WINDOW = 10
_MOST = 1 << 62


class Cuts(NamedTuple):
    """How a stream is cut.

    messages : int    a batch has at most so many; 0: any number
    step_us : int    a batch ends before the first message of a later multiple of this stream time; 0: never
    """

    messages: int = MESSAGES
    step_us: int = 0

    @classmethod
    def parse(cls, text: str, window: Window) -> "Cuts":
        """`N`, `time:SECONDS`, or `auto`.

        Raises
        ------
        ConfigError
            For anything else.
        """
        if text == "auto":
            return cls(MESSAGES, max(1, window.length // PART_OF_WINDOW) if window.kind == "time" else 0)
        kind, colon, amount = text.partition(":")
        try:
            if kind == "time" and colon:
                seconds = float(amount)
                if 1e-6 <= seconds <= 1e10:
                    return cls(0, int(seconds * 1e6))
            elif not colon and 1 <= int(text) <= 1_000_000:
                return cls(int(text))
        except ValueError:
            pass
        raise ConfigError(f"batch {text!r}: give N messages (1 to 1,000,000), time:SECONDS of stream time, or auto")

    def as_json(self) -> dict[str, int]:
        """For `run.json`."""
        return {"batch": self.messages} | ({"time_us": self.step_us} if self.step_us else {})


class Steps:
    """The messages before which the time of a stream makes a cut, as they are fed.

    Parameters
    ----------
    step_us : int
    """

    def __init__(self, step_us: int):
        self._step_us = step_us
        self._time_us = NO_FLOOR
        self._first: deque[int] = deque()

    def feed(self, first_seq: int, event_time_us: Int64) -> None:
        """The event times of the next messages, from `first_seq` on."""
        if not self._step_us or not event_time_us.shape[0]:
            return
        reached = np.maximum.accumulate(np.concatenate([[self._time_us], event_time_us]))
        known = reached > NO_FLOOR
        period = np.where(known, reached, 0) // self._step_us
        later = np.flatnonzero(known[:-1] & (period[1:] > period[:-1]))
        self._first.extend((first_seq + later).tolist())
        self._time_us = int(reached[-1])

    def before(self, next_seq: int) -> int:
        """How many messages from `next_seq` on there are before the next cut, as far as is known."""
        while self._first and self._first[0] <= next_seq:
            self._first.popleft()
        return self._first[0] - next_seq if self._first else _MOST

    def go_on_behind(self, stream_time_us: int) -> None:
        """The time of the stream up to the first message that will be fed."""
        self._time_us = stream_time_us
        self._first.clear()
