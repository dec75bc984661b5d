"""Batches of a live stream that are logged and above the watermark: their limit and their latency.

The limit is the topology's credits. When it is reached, the pipe fills its open batch and then reads no more lines, so
the producer waits and memory stays flat.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from topology.core.metrics import LatencyHistogram


class InFlight:
    """The batches in flight.

    Parameters
    ----------
    most : int
        Their limit.

    Attributes
    ----------
    latency : LatencyHistogram
        From line in to line out.
    through : int
        The watermark, as the seq of a message.
    has_room : callable
        Whether their updates have room in memory; beyond it no more batches are taken either.
    on_idle : callable
        Called, in the thread that advances the watermark, when no batch is in flight any more.
    """

    def __init__(self, most: int):
        self.latency = LatencyHistogram()
        self.through = -1
        self.has_room: Callable[[], bool] = lambda: True
        self.on_idle: Callable[[], None] = lambda: None
        self._most = most
        self._batches: deque[tuple[int, np.ndarray]] = deque()
        self._changed = threading.Condition()

    def add(self, last_seq: int, came_s: Sequence[float]) -> None:
        """A batch that ends with this message is about to be logged; its lines came then, by `time.monotonic`."""
        with self._changed:
            self._batches.append((last_seq, np.array(came_s)))

    def advance(self, through: int) -> None:
        """Advance the watermark to this message."""
        now_s = time.monotonic()
        with self._changed:
            self.through = max(self.through, through)
            while self._batches and self._batches[0][0] <= self.through:
                self.latency.record(now_s - self._batches.popleft()[1])
            self._changed.notify_all()
            idle = not self._batches
        if idle:
            self.on_idle()

    @property
    def idle(self) -> bool:
        """Whether no batch is in flight."""
        return not self._batches

    def await_capacity(self, timeout_s: float) -> bool:
        """Wait until one more batch may be in flight; False after the timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self._batches) < self._most and self.has_room(), timeout_s)
