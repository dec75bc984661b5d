"""Engine `cell_term`: the cell-term index over the subscriptions, our own and the default of `boolean`.

Read on in `matching.storage.cell_term`, the index; `matching.naive` says what must come out.
"""

import numpy as np

from matching.boolean.engine import BooleanEngine
from matching.model import Int32
from matching.space import Space
from matching.storage.cell_term import CellTermIndex
from matching.storage.region_messages import Messages


class CellTerm(BooleanEngine):
    """Boolean subscriptions by (level, cell, rarest keyword)."""

    name = "cell_term"

    def __init__(self, space: Space):
        super().__init__(space)
        self.index = CellTermIndex(space, self.subscriptions, f"engine {self.name}")

    def _post(self, slots: Int32) -> None:
        self.index.insert(slots)

    def _unpost(self, slots: Int32) -> None:
        self.index.withdraw(slots)

    def _scan(self, messages: Messages, first_row: int, slots: Int32, rows: Int32) -> tuple[int, int, int, int]:
        return self.index.scan(messages, first_row, slots, rows)

    def _index_arrays(self) -> dict[str, np.ndarray]:
        return self.index.arrays()

    def _index_bytes(self) -> int:
        return self.index.allocated_bytes()
