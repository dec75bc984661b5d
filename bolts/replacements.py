"""Subscriptions that take over an external id, and what they are told, which has to wait for its turn.

A replaced subscription and its successor are two numbers under one external id. They may live at different query tasks,
and the first may wait for a refill when it ends, so that its last updates come after the first ones of its successor.
Whoever follows the id would then leave what was never entered. So updates of a successor are held back until all query
tasks have told everything up to the batch in which its predecessor was removed.

`bolts.delivery`, where updates of all tasks meet, is the user; what says who follows whom is `ChangeList.follows`.
"""

from collections import deque

import numpy as np

from matching.errors import TopologyError
from matching.model import ChangeList, Int64, UpdateBatch, concatenate, take_rows


class ReplacementOrder:
    """Holds back updates of successors.

    Attributes
    ----------
    held_back : int    how many updates have had to wait so far

    Notes
    -----
    Nothing is kept of subscriptions whose predecessor has been told to its end, nor where no id ever comes back, except
    for the removals of batches that are not told to their end. O(1) a batch while nobody waits.
    """

    def __init__(self) -> None:
        self.held_back = 0
        self._removals: deque[tuple[int, Int64]] = deque()  # batch, numbers: of batches not yet told to their end
        self._waiting = np.zeros(0, np.int64)  # successors that wait, ascending
        self._until = np.zeros(0, np.int64)  # the batch up to which all must be told before each of them may be
        self._held: list[UpdateBatch] = []  # in the order in which they came

    def __len__(self) -> int:
        """Updates that wait now."""
        return sum(map(len, self._held))

    def change(self, changes: ChangeList, told: int) -> None:
        """Take the next change list; `told` is the batch up to which every query task has told everything.

        Raises
        ------
        TopologyError
            If `follows` does not belong to the subscriptions added, or somebody follows a later one.
        """
        while self._removals and self._removals[0][0] <= told:
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
            waits = until > told
            self._waiting = np.concatenate([self._waiting, number[rows[waits]]])
            self._until = np.concatenate([self._until, until[waits]])

    def admit(self, updates: UpdateBatch) -> UpdateBatch:
        """The updates that may be written now; the others are kept. O(n) if anybody waits."""
        if not self._waiting.shape[0]:
            return updates
        waits = np.isin(updates.number, self._waiting)
        if not waits.any():
            return updates
        self._held.append(take_rows(updates, waits))
        self.held_back += len(self._held[-1])
        return take_rows(updates, ~waits)

    def release(self, told: int) -> UpdateBatch | None:
        """What may be written now that everything up to batch `told` is, by number and then as it came; maybe None.

        From now on those subscriptions wait no more.
        """
        free = self._until <= told
        if not free.any():
            return None
        numbers = self._waiting[free]
        self._waiting, self._until = self._waiting[~free], self._until[~free]
        if not self._held:
            return None
        held = concatenate(self._held)
        goes = np.isin(held.number, numbers)
        rest = take_rows(held, ~goes)
        self._held = [rest] if len(rest) else []
        rows = np.flatnonzero(goes)
        # numbers are in the order of registration: of one id, whoever came first is written first
        return take_rows(held, rows[np.argsort(held.number[rows], kind="stable")]) if rows.shape[0] else None

    def _removed_in(self, numbers: Int64) -> Int64:
        """The batch in which each was removed, -1 for those whose batch has been told to its end."""
        batch = np.repeat(
            np.array([batch for batch, _ in self._removals]), [removed.shape[0] for _, removed in self._removals]
        )
        removed = np.concatenate([removed for _, removed in self._removals])
        order = np.argsort(removed)
        place = order[np.minimum(np.searchsorted(removed, numbers, sorter=order), removed.shape[0] - 1)]
        return np.where(removed[place] == numbers, batch[place], -1)
