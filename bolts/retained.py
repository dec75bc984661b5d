"""Which messages may still be named by updates and results, after they have left the window.

Updates name messages of the window; but a result of a kind without window holds a message until a better one comes, and
names it when it lets it go. Read on in `bolts.delivery`, which gives up the names of all others.
"""

from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np

from matching.model import ENTER, LEAVE, Int8, Int64, UpdateBatch

#: Rows noted that are worth settling.
_FEW = 262_144


class RetainedMessages:
    """Which messages outlive the window because a lasting result holds them, and when the others die.

    Parameters
    ----------
    kinds : sequence of int
        Codes of the kinds whose results may hold messages that have left the window (`Kind.lasting`).
    """

    def __init__(self, kinds: Sequence[int]):
        self._kinds = np.array(kinds, np.int8)
        self.expiries: deque[tuple[int, int]] = deque()  # (last seq, no life up to it is greater), of told boundaries
        self._dead = 0
        self._lasting = np.zeros(0, bool)  # by subscription number
        self._log: list[tuple[Int64, Int64, Int8]] = []
        self._any_lasting = False
        self._logged = self._settled = 0  # rows noted, and how many of them are left of what was settled
        self._changed = False  # whether somebody has gone since

    def change(self, kinds: Int8, removed: Int64) -> None:
        """Subscriptions come, with the next numbers, and go."""
        lasting = np.isin(kinds, self._kinds)
        if lasting.shape[0]:
            self._lasting = np.concatenate([self._lasting, lasting])
            self._any_lasting |= bool(lasting.any())
        self._lasting[removed] = False
        self._changed |= removed.shape[0] > 0

    def note(self, updates: UpdateBatch) -> None:
        """Remember what lasting results gain and lose."""
        if self._any_lasting:
            rows = np.flatnonzero(self._lasting[updates.number])
            if rows.shape[0]:
                sign = np.where(updates.change[rows] == ENTER, 1, np.where(updates.change[rows] == LEAVE, -1, 0))
                self._log.append((updates.number[rows], updates.seq[rows], sign.astype(np.int8)))
                self._logged += rows.shape[0]
                if self._logged > max(_FEW, 2 * self._settled):
                    self._settle()

    def messages(self) -> Int64:
        """Seqs that lasting results hold, ascending. O(n log n) in what was noted since the last call."""
        self._settle()
        if not self._log:
            return np.zeros(0, np.int64)
        _, seq, balance = self._log[0]
        return np.unique(seq[balance > 0])

    def _settle(self) -> None:
        """Forget whatever came and went. O(n log n) in what was noted since the last time, and in what is held."""
        if self._log and (len(self._log) > 1 or self._changed):
            number, seq, sign = (np.concatenate(column) for column in zip(*self._log, strict=True))
            alive = self._lasting[number]
            number, seq, sign = number[alive], seq[alive], sign[alive]
            order = np.lexsort((number, seq))
            number, seq, sign = number[order], seq[order], sign[order]
            starts = np.flatnonzero(np.r_[True, (number[1:] != number[:-1]) | (seq[1:] != seq[:-1])][: seq.shape[0]])
            balance = np.add.reduceat(sign.astype(np.int64), starts) if starts.shape[0] else starts
            # Late updates may tell of a leave before its enter, so a negative balance waits for the other half.
            rows = starts[balance != 0]
            self._log = [(number[rows], seq[rows], balance[balance != 0].astype(np.int8))] if rows.shape[0] else []
        self._changed = False
        self._settled = self._logged = self._log[0][0].shape[0] if self._log else 0

    def dead_before(self, floor: int) -> int:
        """First seq that may be alive at a boundary with this floor; floors never fall from call to call."""
        while self.expiries and self.expiries[0][1] <= floor:
            self._dead = self.expiries.popleft()[0] + 1
        return self._dead

    def state(self) -> dict[str, np.ndarray]:
        """What is held by whom, and when the other messages die, at a boundary behind which all is told."""
        self._settle()
        log = [np.concatenate([np.zeros(0, np.int64), *column]) for column in zip(*self._log, strict=True)]
        number, seq, balance = log or [np.zeros(0, np.int64)] * 3
        return {
            "subscriptions": np.flatnonzero(self._lasting),
            "number": number,
            "seq": seq,
            "balance": balance,
            "expiries": np.array(list(self.expiries), np.int64).reshape(-1, 2),
        }

    def restore(self, state: Mapping[str, np.ndarray], subscriptions: int) -> None:
        """Go on with what `state` said, `subscriptions` of all kinds having been added so far."""
        self._lasting = np.zeros(subscriptions, bool)
        self._lasting[state["subscriptions"]] = True
        self._any_lasting = bool(self._lasting.any())
        columns = state["number"].copy(), state["seq"].copy(), state["balance"].astype(np.int8)
        self._log = [columns] if state["seq"].size else []
        self._settled = self._logged = state["seq"].shape[0]
        self.expiries = deque((last_seq, life) for last_seq, life in state["expiries"].tolist())
