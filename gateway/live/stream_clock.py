"""The time of a quiet stream: a clock moves it on, so that messages leave a `time:` window though none comes.

Stream time is the largest event time so far. While no message comes it goes on from there as a clock does, and now and
then a mark is logged that says how far: a message without text, whose event time is that time. So the mark moves stream
time by the same rule as any message, ends a batch, and is there for whoever reads the stream again. No clock decides
anything else: a message that comes later and is older changes nothing in stream time.

Event times need not be near the clock's (a stream of 2018 goes on in 2018): only how long it was quiet is measured, by
a clock that never jumps. Used by `gateway.live.write_ahead_log`, which logs marks, and by `gateway.live.pipe`, which
asks for them.
"""

from matching.fields import LAST_US
from matching.window import NO_FLOOR, Window

#: A stream is quiet when nothing has come for this part of its window, but for at least and at most so many seconds.
PART_OF_WINDOW, LEAST_S, MOST_S = 100, 0.25, 10.0


class StreamClock:
    """Says when a mark is due, and of what time.

    Parameters
    ----------
    window : Window

    Attributes
    ----------
    time_us : int
        The time of the stream; `NO_FLOOR` while it has none, as where the window goes by count.
    step_s : float
        How long it must be quiet before a mark, and between two.
    """

    def __init__(self, window: Window):
        self.time_us = NO_FLOOR
        self._length_us = window.length if window.kind == "time" else 0
        self.step_s = min(max(LEAST_S, self._length_us / 1e6 / PART_OF_WINDOW), MOST_S)
        self._newest_us = NO_FLOOR  # of messages: once it has left the window, the window is empty
        self._from = (NO_FLOOR, 0.0)  # from this stream time on it goes on as the clock did from there on
        self._last_s = 0.0

    def resume(self, newest_us: int, time_us: int, now_s: float) -> None:
        """Go on with a stream of this time; how long nobody has listened to it does not count.

        Parameters
        ----------
        newest_us : int
            No message is newer.
        time_us : int
        now_s : float
            By a clock that never jumps, here and below.
        """
        self._newest_us, self.time_us = newest_us, time_us
        self._from, self._last_s = (time_us, now_s), now_s

    def take(self, event_time_us: int | None, came_s: float) -> None:
        """A message has come."""
        if not self._length_us:
            return
        self._last_s = came_s
        if event_time_us is not None:
            self._newest_us = max(self._newest_us, event_time_us)
            if event_time_us > self.time_us:
                self.time_us, self._from = event_time_us, (event_time_us, came_s)

    def mark(self, time_us: int, now_s: float) -> None:
        """A mark of this time has been logged."""
        self.time_us, self._last_s = max(self.time_us, time_us), now_s

    def due(self, now_s: float) -> int | None:
        """The time of the mark that is due; None if none is, or the window is empty, so that none can be."""
        empty = self._newest_us == NO_FLOOR or self.time_us - self._length_us >= self._newest_us
        if empty or now_s - self._last_s < self.step_s:
            return None
        since_us, since_s = self._from
        time_us = since_us + round((now_s - since_s) * 1e6)
        return time_us if self.time_us < time_us <= LAST_US else None
