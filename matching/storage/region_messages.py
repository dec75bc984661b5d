"""Kernel input of an index over regions: the columns of a message batch that such an index reads."""

from typing import NamedTuple

import numpy as np

from matching.model import MessageBatch
from matching.storage.slots import as_input


class Messages(NamedTuple):
    """Kernel view of a batch of n messages, read-only.

    west, south, east, north : float64[n]    degrees; a point has west = east and south = north
    term_offsets, terms                      int64[n + 1], int32[nnz]
    """

    west: np.ndarray
    south: np.ndarray
    east: np.ndarray
    north: np.ndarray
    term_offsets: np.ndarray
    terms: np.ndarray

    @property
    def are_points(self) -> bool:
        """Whether no message is a range message. O(n), O(1) for a batch of points."""
        if self.west is self.east and self.south is self.north:
            return True
        return np.array_equal(self.west, self.east) and np.array_equal(self.south, self.north)

    @classmethod
    def of(cls, batch: MessageBatch) -> "Messages":
        """View the columns of a batch. O(1) unless a dtype or layout is foreign."""
        west, south = as_input(batch.west, np.float64), as_input(batch.south, np.float64)
        east, north = as_input(batch.east, np.float64), as_input(batch.north, np.float64)
        return cls(west, south, east, north, as_input(batch.term_offsets, np.int64), as_input(batch.terms, np.int32))
