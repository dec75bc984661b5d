"""Engine `cell_term`: the cell-term index over the subscriptions, our own and the default of `boolean`.

With the first subscription that has a filter, postings get marks: most messages that a condition turns away fall at the
posting (`matching.storage.marks`). An engine without filters has none, and pays nothing. Subscriptions without keywords
stand under what they require of an attribute, where that selects (`matching.boolean.selection`).
"""

import numpy as np

from matching.boolean.engine import BooleanEngine
from matching.boolean.selection import Selection
from matching.index import Hits
from matching.model import Int32, MessageBatch, SubscriptionTable
from matching.space import Space
from matching.storage.cell_match import STAGE_NAMES
from matching.storage.cell_term import CellTermIndex
from matching.storage.marks import NO_MARKS, Marker
from matching.storage.region_messages import Messages
from matching.storage.slots import grown


class CellTerm(BooleanEngine):
    """Boolean subscriptions by (level, cell, rarest keyword)."""

    name = "cell_term"

    def __init__(self, space: Space):
        super().__init__(space)
        self._marker = Marker(self.filters)
        self.index = CellTermIndex(space, self.subscriptions, f"engine {self.name}")
        self._message_marks = NO_MARKS
        self._selection = Selection(space)
        self._selected = np.zeros(0, np.bool_)  # by slot: stands under terms of an attribute

    def insert(self, table: SubscriptionTable) -> Int32:
        chosen = self._selection.of_subscriptions(table)
        slots = super().insert(chosen)
        if chosen is not table or self._selected.shape[0]:
            self._selected = grown(self._selected, int(slots.max(initial=-1)) + 1)
            self._selected[slots] = self._selection.is_own(chosen)
        return slots

    def rarest(self, slots: Int32) -> Int32:
        found = super().rarest(slots)
        known = np.flatnonzero(slots < self._selected.shape[0])
        found[known[self._selected[slots[known]]]] = self._selection.reserved
        return found

    def match(self, batch: MessageBatch) -> Hits:
        return super().match(self._selection.of_messages(batch))

    def table(self) -> SubscriptionTable:
        return self._selection.undone(super().table())

    def survivors(self) -> dict[str, int]:
        """Pairs that survived each stage of all matches with marks so far; the next stage is the filter."""
        return dict(zip(STAGE_NAMES, self.index.stages.tolist(), strict=True)) if self.index.marked else {}

    def _post(self, slots: Int32) -> None:
        if self._marker.learn():
            self.index.mark_by(self._marker)
        self.index.insert(slots)

    def _unpost(self, slots: Int32) -> None:
        self.index.withdraw(slots)

    def _candidates(self, messages: Messages, batch: MessageBatch) -> Hits:
        self._message_marks = self._marker.of_messages(batch.keys, len(batch)) if self.index.marked else NO_MARKS
        return super()._candidates(messages, batch)

    def _scan(self, messages: Messages, first_row: int, slots: Int32, rows: Int32) -> tuple[int, int, int, int]:
        return self.index.scan(messages, first_row, slots, rows, self._message_marks)

    def _index_arrays(self) -> dict[str, np.ndarray]:
        return self.index.arrays() | ({"selected": self._selected} if self._selected.shape[0] else {})

    def _index_bytes(self) -> int:
        return self.index.allocated_bytes() + self._marker.allocated_bytes() + self._selected.nbytes
