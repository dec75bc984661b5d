"""A multiset that reports items when the first copy is added and when the last is removed.

It feeds a filter that takes every item once and deletes only what was inserted (`distribution.signatures.cuckoo`): the
same cell or keyword belongs to many subscriptions. Exact, and so larger than the filter: it stays on the query task.
"""

import numpy as np
from numpy.typing import NDArray

from matching.errors import EngineError
from matching.model import Int64
from matching.storage.slots import SlotMap, resized


class CountedSet:
    """Items (int64, 0 to 2**62) with a count each.

    An item whose last copy was removed keeps its row until `pop_changes`.
    """

    def __init__(self):
        self.slots = SlotMap()
        self._count = np.zeros(0, np.int32)
        self._reported = np.zeros(0, np.bool_)  # whether it was a member at the last `pop_changes`
        self._touched: list[Int64] = []
        self._live = 0

    def __len__(self) -> int:
        """Items with a count."""
        return self._live

    def add(self, items: Int64) -> None:
        """Count each of `items` (int64[n], repeats allowed) once more. O(n log n)."""
        distinct, times = np.unique(items, return_counts=True)
        slots = self.slots.find(distinct)
        new = slots < 0
        slots[new] = self.slots.insert(distinct[new])
        if self.slots.capacity > self._count.shape[0]:
            self._count = resized(self._count, self.slots.capacity)
            self._reported = resized(self._reported, self.slots.capacity)
        self._count[slots[new]] = 0
        self._reported[slots[new]] = False
        before = self._count[slots]
        self._count[slots] = before + times
        self._note(distinct[before == 0], 1)

    def subtract(self, items: Int64) -> None:
        """Count each of `items` once less. O(n log n).

        Raises
        ------
        EngineError
            If an item would be counted less than no times; nothing is changed then.
        """
        distinct, times = np.unique(items, return_counts=True)
        slots = self.slots.find(distinct)
        here = slots >= 0
        after = np.full(distinct.shape[0], -1, np.int64)
        after[here] = self._count[slots[here]] - times[here]
        if np.any(after < 0):
            raise EngineError(
                f"item {distinct[after < 0][0]} cannot be taken out: it was not added as often; "
                "take out only what was added"
            )
        self._count[slots] = after
        self._note(distinct[after == 0], -1)

    def contains(self, items: Int64) -> NDArray[np.bool_]:
        """bool[n]: which items have a count. O(n)."""
        slots = self.slots.find(items)
        found = slots >= 0
        found[found] = self._count[slots[found]] > 0
        return found

    def items(self) -> Int64:
        """All items with a count, in no particular order. O(rows)."""
        number = self.slots.number
        return number[(number >= 0) & (self._count[: number.shape[0]] > 0)]

    def changed(self) -> bool:
        """Whether any item was added or removed, maybe reverted, since the last `pop_changes`."""
        return bool(self._touched)

    def pop_changes(self) -> tuple[Int64, Int64]:
        """Items added and items removed since the last call, each ascending."""
        if not self._touched:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        touched = np.unique(np.concatenate(self._touched))
        self._touched = []
        slots = self.slots.find(touched)
        there, was = self._count[slots] > 0, self._reported[slots]
        self._reported[slots] = there
        self.slots.remove(touched[~there])
        return touched[there & ~was], touched[was & ~there]

    @property
    def nbytes(self) -> int:
        """Memory in bytes."""
        return self.slots.allocated_bytes() + self._count.nbytes + self._reported.nbytes

    def _note(self, items: Int64, step: int) -> None:
        if items.size:
            self._live += step * items.size
            self._touched.append(items)
