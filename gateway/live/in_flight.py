"""Batches of a live stream that are logged and not yet told to their end: how many may be, and how long they take.

As many may be as the topology has credits for; while there are, who reads lines keeps them in the batch at hand, and
once that is full reads no more. So whoever writes lines waits, and memory stays flat. Used by `gateway.live.pipe`,
which closes batches, and `gateway.live.update_listener`, which hears how far the topology has come.
"""

import threading
import time
from collections import deque
from collections.abc import Sequence

import numpy as np

from topology.core.metrics import LatencyHistogram


class InFlight:
    """Which batches are.

    Parameters
    ----------
    most : int
        How many may be.

    Attributes
    ----------
    latency : LatencyHistogram
        From line in to line out.
    through : int
        Everything is told up to this message.
    """

    def __init__(self, most: int):
        self.latency = LatencyHistogram()
        self.through = -1
        self._most = most
        self._batches: deque[tuple[int, np.ndarray]] = deque()
        self._changed = threading.Condition()

    def add(self, last_seq: int, came_s: Sequence[float]) -> None:
        """A batch that ends with this message is about to be logged; its lines came then, by `time.monotonic`."""
        with self._changed:
            self._batches.append((last_seq, np.array(came_s)))

    def advance(self, through: int) -> None:
        """Everything has been told up to this message."""
        now_s = time.monotonic()
        with self._changed:
            self.through = max(self.through, through)
            while self._batches and self._batches[0][0] <= self.through:
                self.latency.record(now_s - self._batches.popleft()[1])
            self._changed.notify_all()

    def await_room(self, timeout_s: float) -> bool:
        """Wait until there is room, or so long; whether there is."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self._batches) < self._most, timeout_s)
