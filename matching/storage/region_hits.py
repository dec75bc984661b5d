"""Input and output of an index over regions: the columns of a batch that it reads, and the pairs that it finds.

Used by `matching.boolean.engine` and `matching.skyline.subscriptions`. Read on in `matching.storage.cell_term`, an
index.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numba import njit

from matching.model import Int32, Int64, MessageBatch
from matching.storage.slots import as_input, resized

_FEWEST_HITS = 1 << 12


class Messages(NamedTuple):
    """Kernel view of a batch: the columns of a `MessageBatch` that an index over regions reads, read-only."""

    west: np.ndarray
    south: np.ndarray
    east: np.ndarray
    north: np.ndarray
    term_offsets: np.ndarray
    terms: np.ndarray

    @property
    def are_points(self) -> bool:
        """Whether no message is a range message. O(n)."""
        return np.array_equal(self.west, self.east) and np.array_equal(self.south, self.north)

    @classmethod
    def of(cls, batch: MessageBatch) -> "Messages":
        """View the columns of a batch. O(1) unless a dtype or layout is foreign."""
        west, south = as_input(batch.west, np.float64), as_input(batch.south, np.float64)
        east, north = as_input(batch.east, np.float64), as_input(batch.north, np.float64)
        return cls(west, south, east, north, as_input(batch.term_offsets, np.int64), as_input(batch.terms, np.int32))


class HitBuffer:
    """Output buffer of a batch, reused from batch to batch: fresh pages took a third of the time of a match.

    Attributes
    ----------
    slot, row : int32[n]    of each pair: the subscription, and the message as row of the batch
    """

    def __init__(self):
        self.slot, self.row = np.empty(_FEWEST_HITS, np.int32), np.empty(_FEWEST_HITS, np.int32)

    def fill(self, rows: int, scan: Callable[[int, Int32, Int32], tuple[int, int, int, int]]) -> tuple[int, int, int]:
        """Match a batch of `rows` messages; returns (pairs, scanned, verified).

        Parameters
        ----------
        rows : int
        scan : callable
            Matches rows from the given one on into the two arrays until they are full. Returns (pairs, first row not
            matched, scanned, verified); a row whose pairs do not all fit is not matched.
        """
        found, row, scanned, verified = 0, 0, 0, 0
        while row < rows:
            more, next_row, looked, tested = scan(row, self.slot[found:], self.row[found:])
            found, scanned, verified = found + more, scanned + looked, verified + tested
            stuck, row = next_row == row, next_row
            if stuck:  # not one row fitted; an index may also stop because it takes a batch in turns
                capacity = 2 * self.slot.shape[0]
                self.slot, self.row = resized(self.slot, capacity), resized(self.row, capacity)
        return found, scanned, verified

    def numbers(self, found: int, number: Int64) -> Int64:
        """Numbers (int64[found]) of the subscriptions of the first `found` pairs, by the column of all slots."""
        numbers = np.empty(found, np.int64)
        _gather(number, self.slot, numbers)
        return numbers

    def allocated_bytes(self) -> int:
        """Memory of the buffer."""
        return self.slot.nbytes + self.row.nbytes


@njit(cache=True, nogil=True)
def _gather(column, slots, out):
    """out[i] = column[slots[i]]: reads that do not wait for one another, so their cache misses overlap."""
    for i in range(out.shape[0]):
        out[i] = column[slots[i]]
