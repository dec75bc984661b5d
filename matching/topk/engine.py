"""Contract of the engines of `topk`: subscriptions in, messages in, hits out.

A hit is a pair whose exact score reaches the subscription's threshold. Thresholds are constant while a batch is
matched; they change only through `set_thresholds`. `matching.topk.operator` offers the hits to result buffers. Base of
all engines of `topk`.
"""

from abc import abstractmethod
from functools import partial

import numpy as np
from numpy.typing import NDArray

from matching.index import HitBuffer, Hits, SubscriptionIndex
from matching.model import Float64, Int32, MessageBatch, SubscriptionTable
from matching.space import Space
from matching.storage.point_subscriptions import PointSubscriptions
from matching.storage.slots import as_input


class TopkEngine(SubscriptionIndex):
    """An index of top-k subscriptions; `matching.index.SubscriptionIndex` has the methods that all kinds share."""

    def __init__(self, space: Space):
        self.max_distance = space.max_distance
        self.subscriptions = PointSubscriptions(space.max_distance)
        super().__init__(self.subscriptions.slots)
        self._hits = HitBuffer(scores=1, capacity=1 << 17)

    def insert(self, table: SubscriptionTable, posted: NDArray[np.bool_] | None = None) -> Int32:
        """Add subscriptions with threshold minus infinity; returns their slots. O(n + terms), amortised.

        Parameters
        ----------
        table : SubscriptionTable
        posted : bool[len(table.terms)], optional
            The engine indexes only these terms, and a pair is a hit only if its first common term (the lowest id) is
            one of them: so several engines that divide the terms of a subscription find each pair once (spec 3.4).
        """
        slots = self.subscriptions.insert(table, posted)
        self._post(slots)
        return slots

    def release(self, slots: Int32) -> None:
        self.subscriptions.remove(slots)

    def set_thresholds(self, slots: Int32, thresholds: Float64 | float) -> None:
        """Set thresholds (float64[n] or one for all), up or down, of slots that are not withdrawn. O(n + terms)."""
        self.subscriptions.columns.threshold[slots] = thresholds
        self._apply_thresholds(slots)

    def match(self, batch: MessageBatch, first_row: int = 0, most_hits: int = 1 << 21) -> Hits:
        """Match the rows of a batch from `first_row` on; stop after the row that brings the hits to `most_hits`.

        Hits come in the order of rows, but an engine that processes several messages at once may mix theirs.
        """
        batch = MessageBatch(*(as_input(column, column.dtype.type) for column in batch))
        hits = self._hits.fill(len(batch), partial(self._scan, batch), first_row, most_hits)
        return hits.passing(self.subscriptions.filters, batch)

    @abstractmethod
    def _apply_thresholds(self, slots: Int32) -> None:
        """Update the postings of slots (int32[n]) after a change of their thresholds."""

    @abstractmethod
    def _scan(self, batch, first_row, most_hits, slot, row, score) -> tuple[int, int, int, int]:
        """The parameter `scan` of `HitBuffer.fill`, for a batch."""

    def arrays(self) -> dict[str, np.ndarray]:
        """All arrays, for the report of memory; names of the subscriptions' columns begin with `subscriptions_`."""
        return {f"subscriptions_{name}": value for name, value in self.subscriptions.arrays().items()}
