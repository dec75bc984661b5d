"""The newest messages of a live stream in memory; older ones are read from its log."""

import threading
from bisect import bisect_right

from spouts.messages import MessageBlock

#: Bytes of the last texts that are kept in memory; older ones are read from the log.
RECENT_BYTES = 32 * 2**20


class RecentBlocks:
    """The newest messages, as many as have `RECENT_BYTES`; for any thread."""

    def __init__(self) -> None:
        self._firsts: list[int] = []  # seqs
        self._blocks: list[tuple[MessageBlock, int]] = []  # and their bytes
        self._bytes = 0
        self._lock = threading.Lock()

    def put(self, first: int, block: MessageBlock) -> None:
        """Take the next messages, and drop the oldest that are too many then."""
        size_bytes = block.size_bytes
        with self._lock:
            self._firsts.append(first)
            self._blocks.append((block, size_bytes))
            self._bytes += size_bytes
            drop = 0
            while self._bytes > RECENT_BYTES and drop < len(self._blocks) - 1:
                self._bytes -= self._blocks[drop][1]
                drop += 1
            del self._firsts[:drop], self._blocks[:drop]

    def has(self, seq: int) -> bool:
        """Whether this message is here, and all that came later."""
        with self._lock:
            return bool(self._firsts) and seq >= self._firsts[0]

    def get(self, seq: int) -> tuple[int, MessageBlock] | None:
        """The first seq and the messages of the batch of this one; None if it is not here."""
        with self._lock:
            place = bisect_right(self._firsts, seq) - 1
            return None if place < 0 else (self._firsts[place], self._blocks[place][0])
