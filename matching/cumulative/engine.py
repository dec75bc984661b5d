"""What every index over subscriptions with lasting results offers: subscriptions in, messages in, results kept.

Messages are taken one by one, in order: whoever has one among its k best takes it at once, and its k-th key, the
threshold of what comes next, rises. So thresholds only rise, and a bound that has not heard of it yet lets too much
through, never too little. Indexes differ in how they find whom a message may reach (`_scan`), which is all there is to
them: whom they find is scored exactly, by the one expression of the kind, and offered (`matching.cumulative.results`).
Read on in an engine: `matching.decay.engines`, `matching.knn.engines`.
"""

from abc import ABC, abstractmethod

import numpy as np

from matching.cumulative.results import BestResults, ResultRows
from matching.model import Int32, Int64, MessageBatch, SubscriptionTable
from matching.operator import Work
from matching.space import Space
from matching.storage.point_subscriptions import PointSubscriptions
from matching.storage.slots import as_input


class LastingEngine(ABC):
    """Subscriptions with a point, their results, and an index over them.

    Attributes
    ----------
    subscriptions : PointSubscriptions    the column `threshold` is the k-th key, minus infinity while there are fewer
    best : BestResults
    counters : int64[3]                   postings looked at; pairs scored; pairs that were among the k best
    """

    #: Name in `matching.kinds`.
    name: str

    def __init__(self, space: Space):
        self.max_distance = space.max_distance
        self.subscriptions = PointSubscriptions()
        self.best = BestResults()
        self.counters = np.zeros(3, np.int64)

    def __len__(self) -> int:
        return len(self.subscriptions)

    def insert(self, table: SubscriptionTable, results: ResultRows | None = None) -> Int32:
        """Add subscriptions, with results if they have any; returns their slots. Amortised O(n + terms) and indexing.

        They see messages from their `at` on.

        Raises
        ------
        EngineError
            If a number is already here.
        """
        slots = self.subscriptions.insert(table)
        self.best.begin(slots, np.ascontiguousarray(table.at, np.int64), self.subscriptions.capacity)
        if results is not None:
            self.best.load(self.subscriptions.columns, slots, results)
        self._post(slots)
        return slots

    def remove(self, slots: Int32) -> None:
        """Forget live slots and their results."""
        self._unpost(slots)
        self.best.clear(slots)
        self.subscriptions.remove(slots)

    def match(self, batch: MessageBatch) -> Work:
        """Offer every message to whom it may reach, in order; `best.begin_batch` comes first."""
        batch = MessageBatch(*(as_input(column, column.dtype.type) for column in batch))
        before = self.counters.copy()
        row = 0
        while True:
            row = self._scan(batch, row)
            if row == len(batch):
                self._settle()
                return Work(*(self.counters - before).tolist())
            self.best.grow()

    @abstractmethod
    def _post(self, slots: Int32) -> None:
        """Index new slots; what is known of them stands in the columns, the threshold too."""

    @abstractmethod
    def _unpost(self, slots: Int32) -> None:
        """Index these slots no more; their columns are still there."""

    @abstractmethod
    def _scan(self, batch: MessageBatch, first_row: int) -> int:
        """Match rows from `first_row` on; the row for which there was no room, which is begun anew, or their number."""

    def _settle(self) -> None:  # noqa: B027 - most indexes follow at once
        """Follow thresholds that have risen in a batch (`best.touched`), if they are not followed at once."""

    def arrays(self) -> dict[str, np.ndarray]:
        """Every array held, for figures of size."""
        arrays = {f"subscriptions_{name}": value for name, value in self.subscriptions.arrays().items()}
        return arrays | {f"best_{name}": value for name, value in self.best.arrays().items()}

    def numbers(self, slots: Int32) -> Int64:
        """Subscription numbers of slots."""
        return self.subscriptions.columns.number[slots]
