"""Base of the `topk` baselines that scan plain posting lists: keeps the lists in line with the subscriptions.

Used by `baselines.topk.l2_scan`, `baselines.topk.inverted_file` and `baselines.topk.block_inverted_file`, which differ
in how they scan.
"""

from abc import ABC

import numpy as np
from numpy.typing import NDArray

from baselines.postings import Postings
from matching.model import Float64, Int32, SubscriptionTable
from matching.space import Space
from matching.topk.engine import TopkEngine


class PostedEngine(TopkEngine, ABC):
    """An engine whose index is a posting list for each term."""

    #: Whether the posting lists carry the columns of the L2 suffix bound.
    bounded = False

    def __init__(self, space: Space):
        super().__init__(space)
        self.postings = Postings(self.bounded)

    def insert(self, table: SubscriptionTable, posted: NDArray[np.bool_] | None = None) -> Int32:
        """As `TopkEngine.insert`. O(n + terms), amortised."""
        slots = self.subscriptions.insert(table, posted)
        self.postings.insert(self.subscriptions, slots, self.max_distance)
        return slots

    def withdraw(self, slots: Int32) -> None:
        """As `TopkEngine.withdraw`. O(terms)."""
        self.postings.remove(self.subscriptions, slots)

    def set_thresholds(self, slots: Int32, thresholds: Float64 | float) -> None:
        """As `TopkEngine.set_thresholds`. O(n + terms)."""
        self.subscriptions.columns.threshold[slots] = thresholds
        self.postings.set_thresholds(self.subscriptions, slots)

    def arrays(self) -> dict[str, np.ndarray]:
        """All arrays, to measure memory: names prefixed `subscriptions_` and `postings_`."""
        return super().arrays() | {f"postings_{name}": value for name, value in self.postings.arrays().items()}
