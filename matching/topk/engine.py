"""Contract of the engines of `topk`: subscriptions in, messages in, hits out.

A hit is a pair whose exact score reaches the subscription's threshold. Thresholds are constant while a batch is
matched; they change only through `set_thresholds`. `matching.topk.operator` offers the hits to result buffers.
Read on in `matching.topk.engines.skype`, the default.
"""

from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from matching.model import Float64, Int32, MessageBatch, SubscriptionTable
from matching.space import Space
from matching.storage.point_subscriptions import PointSubscriptions
from matching.storage.slots import as_input


class Hits(NamedTuple):
    """Pairs that reach the threshold, in ascending row.

    slot : int32[h]      subscription
    row : int32[h]       message, as row of the batch
    score : float64[h]   exact
    next_row : int       first row not matched yet (the number of rows when all are)
    scanned, verified : int    postings examined; pairs whose score was computed
    """

    slot: Int32
    row: Int32
    score: Float64
    next_row: int
    scanned: int
    verified: int


class TopkEngine(ABC):
    """An engine over top-k subscriptions: their columns, an index of its own, and a way to scan it."""

    #: Name in `matching.kinds`.
    name: str

    def __init__(self, space: Space):
        self.max_distance = space.max_distance
        self.subscriptions = PointSubscriptions()
        self._hit_capacity = 1 << 17

    def __len__(self) -> int:
        return len(self.subscriptions)

    @abstractmethod
    def insert(self, table: SubscriptionTable, posted: NDArray[np.bool_] | None = None) -> Int32:
        """Add subscriptions with threshold minus infinity; returns their slots. O(n + terms), amortised.

        Parameters
        ----------
        table : SubscriptionTable
        posted : bool[len(table.terms)], optional
            Only these terms are indexed, and a pair is a hit only if its first common term (the lowest id) is one of
            them: so several engines that divide the terms of a subscription find each pair once (spec 3.4).
        """

    def remove(self, slots: Int32) -> None:
        """Remove live slots. O(n + terms)."""
        self.withdraw(slots)
        self.subscriptions.remove(slots)

    @abstractmethod
    def withdraw(self, slots: Int32) -> None:
        """Stop matching these slots but keep their columns until `subscriptions.remove`; they get no new threshold."""

    @abstractmethod
    def set_thresholds(self, slots: Int32, thresholds: Float64 | float) -> None:
        """Set thresholds (float64[n] or one for all), up or down. O(n + terms)."""

    def match(self, batch: MessageBatch, first_row: int = 0, most_hits: int = 1 << 21) -> Hits:
        """Match rows from `first_row` on, stopping after the row that brings the hits to `most_hits`."""
        batch = MessageBatch(*(as_input(column, column.dtype.type) for column in batch))
        while True:
            slot = np.empty(self._hit_capacity, np.int32)
            row = np.empty(self._hit_capacity, np.int32)
            score = np.empty(self._hit_capacity, np.float64)
            found, next_row, scanned, verified = self._scan(batch, first_row, most_hits, slot, row, score)
            if found >= 0:
                if next_row < len(batch) and found < most_hits:  # else too many calls
                    self._hit_capacity = min(2 * self._hit_capacity, max(self._hit_capacity, 2 * most_hits))
                return Hits(slot[:found], row[:found], score[:found], next_row, scanned, verified)
            self._hit_capacity *= 2  # the hits of one row did not fit: it is matched again

    @abstractmethod
    def _scan(self, batch, first_row, most_hits, slot, row, score) -> tuple[int, int, int, int]:
        """Fill the hit arrays; returns (hits, next row, scanned, verified), hits = -1 if no row fitted."""

    def arrays(self) -> dict[str, np.ndarray]:
        """All arrays, for figures of size; the columns have names prefixed `subscriptions_`."""
        return {f"subscriptions_{name}": value for name, value in self.subscriptions.arrays().items()}
