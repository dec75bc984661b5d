"""Advances the time of an idle stream, so that messages leave a `time:` window although none arrives.

Stream time is the largest event time so far. While no message arrives, a clock advances it from there, and clock marks
are logged now and then: messages without text whose event time is the advanced stream time. A mark moves stream time by
the same rule as any message, ends a batch, and is in the log for replay. A later message with an older event time does
not move stream time. A mark also closes the batch with which changes of subscriptions take effect that came after the
last message, so that their results do not wait for the next one.

Only the length of the idle time is measured, by a monotonic clock: a stream of 2018 stays in 2018.
"""

from collections.abc import Sequence

import numpy as np

from matching.fields import LAST_US
from matching.model import Int64
from matching.window import NO_FLOOR, Window

#: A stream is idle when no message has come for this part of its window, bounded by these seconds.
PART_OF_WINDOW, LEAST_S, MOST_S = 100, 0.25, 10.0
#: While changes of subscriptions wait, a stream is idle after this many seconds without a message or a change.
CHANGED_S = 0.2


class StreamClock:
    """When a clock mark is due, and its stream time.

    Attributes
    ----------
    time_us : int
        Stream time in us; `NO_FLOOR` while it has none, and always with a window by count.
    step_s : float
        Idle seconds before a mark, and between two.
    """

    def __init__(self, window: Window):
        self.time_us = NO_FLOOR
        self._length_us = window.length if window.kind == "time" else 0
        self.step_s = min(max(LEAST_S, self._length_us / 1e6 / PART_OF_WINDOW), MOST_S)
        self._newest_us = NO_FLOOR  # of messages: once it has left the window, the window is empty
        self._from = (NO_FLOOR, 0.0)  # stream time, and the clock when it was reached
        self._last_s = 0.0
        self._changed_s: float | None = None  # when the last change came that waits for a batch

    def resume(self, newest_us: int, time_us: int, now_s: float, changes_wait: bool = False) -> None:
        """Resume a stream at this time; the time while it was stopped does not count.

        Parameters
        ----------
        newest_us : int
            No message is newer.
        now_s : float
            By a monotonic clock, as in all methods.
        changes_wait : bool
            Whether changes of subscriptions came after the last message.
        """
        self.note_changes(changes_wait, now_s)
        self._newest_us, self.time_us = newest_us, time_us
        self._from, self._last_s = (time_us, now_s), now_s

    def take(self, event_time_us: int | None, came_s: float) -> None:
        """Note a message that arrived."""
        if not self._length_us:
            return
        self._last_s = came_s
        if event_time_us is not None:
            self._newest_us = max(self._newest_us, event_time_us)
            if event_time_us > self.time_us:
                self.time_us, self._from = event_time_us, (event_time_us, came_s)

    def take_all(self, time_us: Int64, ahead: np.ndarray | None, came_s: Sequence[float]) -> None:
        """Note messages that arrived, without those dated too far ahead.

        Parameters
        ----------
        time_us : int64[n]      `NO_FLOOR` where a message has no time
        ahead : bool[n] or None
        """
        rows = np.arange(time_us.shape[0]) if ahead is None else np.flatnonzero(~ahead)
        if not self._length_us or not rows.shape[0]:
            return
        newest = rows[np.argmax(time_us[rows])]
        if time_us[newest] != NO_FLOOR:
            self.take(int(time_us[newest]), came_s[newest])
        self._last_s = came_s[rows[-1]]

    def note_changes(self, wait: bool, came_s: float) -> None:
        """Note whether changes of subscriptions wait for a batch, once lines have come."""
        self._changed_s = came_s if wait else None

    def mark(self, time_us: int, now_s: float) -> None:
        """Note a mark that was logged."""
        self._changed_s = None
        self.time_us, self._last_s = max(self.time_us, time_us), now_s

    def due(self, now_s: float) -> int | None:
        """Stream time of the mark that is due; None if none is, or the window is empty."""
        empty = self._newest_us == NO_FLOOR or self.time_us - self._length_us >= self._newest_us
        if empty or not (now_s - self._last_s >= self.step_s or self._changes_are_due(now_s)):
            return None
        since_us, since_s = self._from
        time_us = since_us + round((now_s - since_s) * 1e6)
        return time_us if self.time_us < time_us <= LAST_US else None

    def _changes_are_due(self, now_s: float) -> bool:
        return self._changed_s is not None and now_s - max(self._changed_s, self._last_s) >= CHANGED_S
