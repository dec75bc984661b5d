"""Base of the engines of cumulative kinds: an index of subscriptions, and their results.

Messages are matched one by one, in order. A message among the k best of a subscription enters its result at once, and
the k-th key, the threshold, rises. Thresholds only rise, so a stale bound has more candidates, never fewer. Engines
differ in how they find candidates (`_scan`); a candidate is scored by the kind's one expression and offered to the
result (`matching.cumulative.results`). Base of all engines of `decay` and `knn`.
"""

from abc import abstractmethod

import numpy as np

from matching.cumulative.results import BestResults, CumulativeRows
from matching.filters import Filters
from matching.index import SubscriptionIndex
from matching.model import Float64, Int32, MessageBatch, SubscriptionTable
from matching.operator import Work
from matching.space import Space
from matching.storage.point_subscriptions import PointSubscriptions
from matching.storage.slots import as_input


class CumulativeEngine(SubscriptionIndex):
    """Subscriptions with a point, their results, and an index over them.

    Attributes
    ----------
    subscriptions : PointSubscriptions    the column `threshold` is the k-th key, minus infinity while there are fewer
    best : BestResults
    counters : int64[3]                   postings scanned; pairs scored; pairs that were among the k best
    """

    def __init__(self, space: Space):
        self.max_distance = space.max_distance
        self.subscriptions = PointSubscriptions(space.max_distance)
        super().__init__(self.subscriptions.slots)
        self.best = BestResults()
        self.counters = np.zeros(3, np.int64)

    @property
    def filters(self) -> Filters:
        """Those of the subscriptions, as kernels take them."""
        return self.subscriptions.filters.view

    def insert(
        self, table: SubscriptionTable, results: CumulativeRows | None = None, thresholds: Float64 | None = None
    ) -> Int32:
        """As `SubscriptionIndex.insert`, with results if they have any. They see messages from their `at` on.

        thresholds : float64[n], optional    those of results that may be short of k; else they follow from the results
        """
        slots = self.subscriptions.insert(table)
        self.best.begin(slots, np.ascontiguousarray(table.at, np.int64), self.subscriptions.capacity)
        if results is not None:
            self.best.load(self.subscriptions.columns, slots, results)
        if thresholds is not None:
            self.subscriptions.columns.threshold[slots] = thresholds
        self._post(slots)
        return slots

    def release(self, slots: Int32) -> None:
        self.best.clear(slots)
        self.subscriptions.remove(slots)

    def match(self, batch: MessageBatch) -> Work:
        """Offer every message to its candidates, in order; after `best.begin_batch`."""
        batch = MessageBatch(*(as_input(column, column.dtype.type) for column in batch))
        before = self.counters.copy()
        row = 0
        while (row := self._scan(batch, row)) < len(batch):
            self.best.grow()
        self._settle()
        return Work(*(self.counters - before).tolist())

    @abstractmethod
    def _scan(self, batch: MessageBatch, first_row: int) -> int:
        """Match rows from `first_row` on; returns the row to repeat after `best.grow`, or the number of rows."""

    def _settle(self) -> None:  # noqa: B027 - most engines do so in `_scan`
        """Apply the thresholds that have risen in a batch (`best.touched`) to the index, unless `_scan` does."""

    def arrays(self) -> dict[str, np.ndarray]:
        """All memory."""
        arrays = {f"subscriptions_{name}": value for name, value in self.subscriptions.arrays().items()}
        return arrays | {f"best_{name}": value for name, value in self.best.arrays().items()}
