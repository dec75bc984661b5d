"""Replacement order: delays the updates of a subscription until those of the one it replaced are complete.

A subscription and its successor are two numbers under one external id. They may be on different query tasks, and the
predecessor may wait for a refill when it is removed, so that its last updates arrive after the first ones of the
successor. A reader of the id would see a leave without an enter. So `ReplacementOrder` delays the updates of a
successor until the watermark of all query tasks reaches the batch in which its predecessor was removed.
`ChangeList.follows` names predecessors.
"""

from collections import deque

import numpy as np

from matching.errors import TopologyError
from matching.model import ChangeList, Int64, UpdateBatch, concatenate, take_rows


class ReplacementOrder:
    """Delays updates of successors.

    Attributes
    ----------
    held_back : int    updates delayed so far

    Notes
    -----
    State is limited to removals after the watermark and to the successors of these. O(1) a batch while none waits.
    """

    def __init__(self) -> None:
        self.held_back = 0
        self._removals: deque[tuple[int, Int64]] = deque()  # (batch, numbers), after the watermark
        self._waiting = np.zeros(0, np.int64)  # delayed successors, ascending
        self._until = np.zeros(0, np.int64)  # batch that the watermark must reach to release each
        self._delayed: list[UpdateBatch] = []  # in order of arrival

    def __len__(self) -> int:
        """Updates delayed now."""
        return sum(map(len, self._delayed))

    def change(self, changes: ChangeList, watermark: int) -> None:
        """Take the next change list; `watermark` is the last batch up to which all updates are out.

        Raises
        ------
        TopologyError
            If `follows` does not belong to the subscriptions added, or names a later subscription.
        """
        while self._removals and self._removals[0][0] <= watermark:
            self._removals.popleft()
        if changes.removed.number.shape[0]:
            self._removals.append((changes.batch, changes.removed.number))
        number, follows = changes.added.number, changes.follows
        if follows is None:
            return
        if follows.shape != number.shape or np.any(follows >= number) or np.any(follows < -1):
            raise TopologyError(
                f"change list {changes.batch}: `follows` must have, for each subscription added, one with a smaller "
                "number or -1"
            )
        rows = np.flatnonzero(follows >= 0)
        if rows.shape[0] and self._removals:
            until = self._removed_in(follows[rows])
            waits = until > watermark
            self._waiting = np.concatenate([self._waiting, number[rows[waits]]])
            self._until = np.concatenate([self._until, until[waits]])

    def admit(self, updates: UpdateBatch) -> UpdateBatch:
        """The updates that may be written now; the others are delayed. O(n) if any subscription waits."""
        if not self._waiting.shape[0]:
            return updates
        waits = np.isin(updates.number, self._waiting)
        if not waits.any():
            return updates
        self._delayed.append(take_rows(updates, waits))
        self.held_back += len(self._delayed[-1])
        return take_rows(updates, ~waits)

    def release(self, watermark: int) -> UpdateBatch | None:
        """Updates released by this watermark, by number and then in order of arrival; None if there are none."""
        if not self._until.shape[0]:
            return None
        free = self._until <= watermark
        if not free.any():
            return None
        numbers = self._waiting[free]
        self._waiting, self._until = self._waiting[~free], self._until[~free]
        if not self._delayed:
            return None
        delayed = concatenate(self._delayed)
        goes = np.isin(delayed.number, numbers)
        rest = take_rows(delayed, ~goes)
        self._delayed = [rest] if len(rest) else []
        rows = np.flatnonzero(goes)
        # numbers follow the order of registration, so predecessors are written first
        return take_rows(delayed, rows[np.argsort(delayed.number[rows], kind="stable")]) if rows.shape[0] else None

    def _removed_in(self, numbers: Int64) -> Int64:
        """Batch in which each subscription was removed (int64[n]); -1 if not after the watermark."""
        batch = np.repeat(
            np.array([batch for batch, _ in self._removals]), [removed.shape[0] for _, removed in self._removals]
        )
        removed = np.concatenate([removed for _, removed in self._removals])
        order = np.argsort(removed)
        place = order[np.minimum(np.searchsorted(removed, numbers, sorter=order), removed.shape[0] - 1)]
        return np.where(removed[place] == numbers, batch[place], -1)
