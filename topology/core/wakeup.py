"""A wake-up for one thread that waits for input."""

from queue import Empty, SimpleQueue


class Wakeup:
    """Ends the wait of one thread, or its next one: a `threading.Event` that a wait clears.

    An event takes some twelve calls of Python to set and thirty to wait for and clear, this three: a message that comes
    alone wakes two threads. The waiting thread looks for its input after each wait, which may end for nothing.
    """

    def __init__(self) -> None:
        self._tokens: SimpleQueue[None] = SimpleQueue()

    def set(self) -> None:
        """Wake the thread; call it when the input is there."""
        if self._tokens.empty():  # the token that is there ends the next wait
            self._tokens.put(None)

    def wait(self, seconds: float) -> None:
        """Wait until `set` was called since the last wait, or so long."""
        try:
            self._tokens.get(timeout=seconds)
        except Empty:
            return
