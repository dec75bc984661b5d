"""Where `Context.now` gets its time from: the machine, or a test.

Read on in `topology.core.executors.local`, which takes either.
"""

import time
from typing import Protocol


class Clock(Protocol):
    """A source of time."""

    def now(self) -> float:
        """Seconds since the epoch."""
        ...


class SystemClock:
    """The machine's own time."""

    def now(self) -> float:
        """Seconds since the epoch."""
        return time.time()
