"""The messages of the window in order of arrival: the snapshot of a tuple task, and the source of its window indexes.

A `matching.operator.WindowIndex` can be rebuilt from this log at any boundary. Batches are kept without a copy, and
joined when they are small; expired messages are freed with their chunk.
"""

from collections.abc import Callable

import numpy as np

from matching.model import NO_MESSAGES, Int64, MessageBatch, join_messages
from matching.window import NO_FLOOR, Boundary

#: Chunks of fewer messages are joined, so that small batches cost neither memory nor time each.
_FEWEST = 4096


class WindowLog:
    """Messages in ascending seq, from the oldest chunk on in which one is alive.

    Parameters
    ----------
    drops_ended : bool    messages that have ended are dropped, once they are half: all kinds are to lack them

    Attributes
    ----------
    boundary : Boundary    the last one stored
    """

    def __init__(self, drops_ended: bool = False):
        self.drops_ended = drops_ended
        self.boundary = Boundary(-1, 0, -1, NO_FLOOR)
        self._chunks: list[tuple[int, MessageBatch]] = []  # with the longest life in it
        self._tail: list[MessageBatch] = []
        self._waiting = 0
        self._ended: list[Int64] = []
        self._ended_count = 0

    def __len__(self) -> int:
        """Messages kept, expired ones included."""
        return self._waiting + sum(len(chunk) for _, chunk in self._chunks)

    def store(self, boundary: Boundary, messages: MessageBatch, ended: Int64) -> None:
        """Store the next batch; `ended` (int64[m]) are seqs of messages whose object has ended. O(1) amortised, and
        O(messages) where batches are small."""
        self.boundary = boundary
        if len(messages):
            self._tail.append(messages)
            self._waiting += len(messages)
            if self._waiting >= _FEWEST:
                chunk = join_messages(self._tail)
                self._chunks.append((int(chunk.life.max()), chunk))
                self._tail, self._waiting = [], 0
        if ended.shape[0]:
            self._ended.append(ended)
            self._ended_count += ended.shape[0]
            if self.drops_ended and 2 * self._ended_count > len(self):
                self._drop_ended()
        first = len(self._chunks)
        self._chunks = [entry for entry in self._chunks if entry[0] > boundary.floor]
        if self._ended and len(self._chunks) < first:
            oldest = min((int(part.seq[0]) for part in self._parts()), default=boundary.first_seq)
            together = _together(self._ended)
            self._ended = [together[together >= oldest]]

    def _drop_ended(self) -> None:
        """Drop what has ended. O(messages), amortised O(1) for each that ends."""
        everything = join_messages([NO_MESSAGES, *self._parts()])
        living = everything.take(np.flatnonzero(~np.isin(everything.seq, _together(self._ended))))
        self._chunks = [(int(living.life.max()), living)] if len(living) else []
        self._tail, self._waiting, self._ended, self._ended_count = [], 0, [], 0

    def alive(self) -> tuple[MessageBatch, Int64]:
        """The messages that have not expired at the last boundary, and the seqs of those that have been ended.

        Kinds without ends take all versions as messages. O(messages).
        """
        return self.snapshot()()

    def snapshot(self) -> Callable[[], tuple[MessageBatch, Int64]]:
        """What `alive` returns now, made when it is called: batches are never written to. O(batches)."""
        everything, floor = self._parts(), self.boundary.floor
        parts = list(self._ended)

        def alive() -> tuple[MessageBatch, Int64]:
            if not everything:
                return NO_MESSAGES, np.zeros(0, np.int64)
            messages = join_messages(everything)
            messages = messages.take(np.flatnonzero(messages.life > floor))
            return messages, np.intersect1d(_together(parts), messages.seq)

        return alive

    def size_bytes(self) -> int:
        """Memory of all columns."""
        columns = (column for part in self._parts() for column in {id(each): each for each in part}.values())
        return sum(column.nbytes for column in columns)

    def order_bytes(self) -> int:
        """Of these the words in order of appearance."""
        return sum(part.order_offsets.nbytes + part.order.nbytes for part in self._parts())

    def _parts(self) -> list[MessageBatch]:
        return [chunk for _, chunk in self._chunks] + self._tail


def _together(parts: list[Int64]) -> Int64:
    """All seqs, ascending, each once. O(n log n)."""
    return np.unique(np.concatenate([np.zeros(0, np.int64), *parts]))
