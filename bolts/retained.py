"""Retained messages: those that updates and results may name after they have left the window.

A cumulative result keeps a message until a better one replaces it, and then names it in a leave. `bolts.delivery` drops
the names of all other messages that have left the window.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from copy import copy

import numpy as np

from bolts.living_runs import LivingRuns
from matching.model import ENTER, LEAVE, Int8, Int64, UpdateBatch
from matching.window import Boundary

#: Logged rows below which the log is not compacted.
_FEW = 262_144
#: Batches whose dead versions are noted together.
_FEW_BATCHES = 16
#: Bits of a sorting key for a balance from -2 to 1, and of a key in all.
_BALANCE_BITS, _KEY_BITS = 2, 63


class RetainedMessages:
    """Messages in cumulative results, and the lives of the others.

    Parameters
    ----------
    kinds : sequence of int
        Codes of the cumulative kinds (`Kind.cumulative`).
    """

    def __init__(self, kinds: Sequence[int]):
        self._kinds = np.array(kinds, np.int8)
        self.expiries: deque[tuple[int, int]] = deque()  # (last seq, greatest life up to it), by boundary
        self._dead = 0
        self._cumulative = np.zeros(0, bool)  # by subscription number
        self._log: list[tuple[Int64, Int64, Int8]] = []
        self._any_cumulative = False
        self._logged = self._compacted = 0  # rows logged, and rows left by the last compaction
        self._changed = False  # whether a subscription was removed since
        self._compactions = 0
        #: The last snapshot, batches of its log, and `_compactions` when it was taken.
        self._taken: tuple[RetainedMessages, int, int] | None = None

    def change(self, kinds: Int8, removed: Int64) -> None:
        """Add subscriptions of these kinds (int8[n]) under the next numbers; remove others."""
        if kinds.shape[0]:
            cumulative = np.isin(kinds, self._kinds)
            self._cumulative = np.concatenate([self._cumulative, cumulative])
            self._any_cumulative |= bool(cumulative.any())
        if removed.shape[0]:
            self._cumulative[removed] = False
            self._changed = True

    def note(self, updates: UpdateBatch) -> None:
        """Log the enters and leaves of cumulative results."""
        if self._any_cumulative:
            rows = np.flatnonzero(self._cumulative[updates.number])
            if rows.shape[0]:
                sign = np.where(updates.change[rows] == ENTER, 1, np.where(updates.change[rows] == LEAVE, -1, 0))
                self._log.append((updates.number[rows], updates.seq[rows], sign.astype(np.int8)))
                self._logged += rows.shape[0]
                self._adopt()
                if self._logged > max(_FEW, 2 * self._compacted):
                    self._compact()

    def messages(self) -> Int64:
        """Seqs in cumulative results, ascending. O(n log n) in the rows logged since the last call."""
        self._compact()
        if not self._log:
            return np.zeros(0, np.int64)
        _, seq, balance = self._log[0]
        kept = seq[balance > 0]
        if not np.all(kept[1:] >= kept[:-1]):  # as several tasks have saved it, one behind the other
            return np.unique(kept)
        return kept[np.diff(kept, prepend=-1) > 0]

    def _compact(self) -> None:
        """Compact the log: sum enters and leaves. O(n log n) in its rows."""
        if self._log and (len(self._log) > 1 or self._changed):
            number, seq, sign = (np.concatenate(column) for column in zip(*self._log, strict=True))
            alive = self._cumulative[number]
            if not alive.all():
                number, seq, sign = number[alive], seq[alive], sign[alive]
            # A late enter may arrive after its leave, so a negative balance is kept.
            summed = _summed(number, seq, sign, int(self._cumulative.shape[0]))
            self._log = [summed] if summed[0].shape[0] else []
        self._changed = False
        self._compacted = self._logged = self._log[0][0].shape[0] if self._log else 0
        self._compactions += 1

    def _adopt(self) -> None:
        """Take the log that the last snapshot has compacted, on another thread, for the batches that it is made of."""
        if self._taken is None:
            return
        snapshot, batches, compactions = self._taken
        if compactions == self._compactions == snapshot._compactions:
            return  # it has not been made yet
        self._taken = None
        if compactions == self._compactions:
            self._log = snapshot._log + self._log[batches:]
            self._compacted, self._logged = snapshot._compacted, sum(each[0].shape[0] for each in self._log)

    def dead_before(self, floor: int) -> int:
        """First seq that may be alive at a boundary with this floor; floors never fall from call to call."""
        while self.expiries and self.expiries[0][1] <= floor:
            self._dead = self.expiries.popleft()[0] + 1
        return self._dead

    def snapshot(self) -> "RetainedMessages":
        """A read-only view of the log's present state; later calls do not change it.

        O(batches logged), and a copy of a byte for each subscription: the rows of a batch are never written to.
        """
        self._adopt()
        now = copy(self)
        now._log, now.expiries, now._cumulative = list(self._log), self.expiries.copy(), self._cumulative.copy()
        self._taken = now, len(self._log), self._compactions
        return now

    def state(self) -> dict[str, np.ndarray]:
        """The compacted log and the expiries, at a boundary at the watermark."""
        self._compact()
        log = [np.concatenate([np.zeros(0, np.int64), *column]) for column in zip(*self._log, strict=True)]
        number, seq, balance = log or [np.zeros(0, np.int64)] * 3
        return {
            "subscriptions": np.flatnonzero(self._cumulative),
            "number": number,
            "seq": seq,
            "balance": balance,
            "expiries": np.array(list(self.expiries), np.int64).reshape(-1, 2),
        }

    def restore(self, state: Mapping[str, np.ndarray], subscriptions: int) -> None:
        """Resume from `state`; `subscriptions` is the number of subscriptions of all kinds added so far."""
        self._cumulative = np.zeros(subscriptions, bool)
        self._cumulative[state["subscriptions"]] = True
        self._any_cumulative = bool(self._cumulative.any())
        columns = state["number"].copy(), state["seq"].copy(), state["balance"].astype(np.int8)
        self._log = [columns] if state["seq"].size else []
        self._compacted = self._logged = state["seq"].shape[0]
        self.expiries = deque((last_seq, life) for last_seq, life in state["expiries"].tolist())


class LivingMessages:
    """The living versions of a stream of objects, which updates and results may name whatever the window is.

    Versions that live no more are named until those behind them are as many (`bolts.living_runs`).
    """

    def __init__(self) -> None:
        self._table: LivingRuns[Int64] = LivingRuns(np.ndarray.take, np.concatenate)
        self._dying: deque[tuple[int, Int64]] = deque()  # number of a batch, and what lives no more after it
        self._dead: list[Int64] = []

    def __len__(self) -> int:
        return sum(map(len, self._table.runs))

    def note(self, boundary: Boundary, dead: Int64) -> None:
        """Add the messages of a batch; those that are `dead` after it, or never lived, are named by its updates yet."""
        seqs = np.arange(boundary.first_seq, boundary.last_seq + 1)
        self._table.append(seqs, seqs)
        self._dying.append((boundary.number, dead))

    def settle(self, watermark: int) -> None:
        """Remove what lives no more after the batches up to the watermark, which have no more updates."""
        while self._dying and self._dying[0][0] <= watermark:
            self._dead.append(self._dying.popleft()[1])
        if len(self._dead) > _FEW_BATCHES:
            self._bury()

    def seqs(self) -> Int64:
        """Those that live, and some that lived, ascending. O(n)."""
        self._bury()
        return np.concatenate([np.zeros(0, np.int64), *(run.seq for run in self._table.runs)])

    def state(self, next_seq: int) -> dict[str, np.ndarray]:
        """Which versions of each run live, at a boundary at the watermark. O(n)."""
        self._bury()
        return self._table.state(next_seq)

    def runs(self) -> dict[int, Int64]:
        """The seqs of each run, by its number; they never change."""
        return {run.number: run.seq for run in self._table.runs}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Resume from `state`, which has the seqs of each run as `NUMBER:seq`, too."""
        paths = (path.partition(":") for path in state)
        numbers = [int(number) for number, _, name in paths if name == "seq"]
        seqs = [state[f"{number}:seq"] for number in numbers]
        self._table.restore(state, zip(numbers, seqs, seqs, strict=True))
        self._dying.clear()
        self._dead.clear()

    def _bury(self) -> None:
        """Apply what has died. O(n log n) in it."""
        if self._dead:
            dead, self._dead = np.sort(np.concatenate(self._dead)), []
            self._table.end(dead)


def _summed(number: Int64, seq: Int64, balance: Int8, numbers: int) -> tuple[Int64, Int64, Int8]:
    """Sum the balances of each subscription and message.

    Parameters
    ----------
    number : int64[n]      below `numbers`
    seq : int64[n]
    balance : int8[n]
    numbers : int          subscriptions there ever were

    Returns
    -------
    int64[m], int64[m], int8[m]
        Number, seq and sum, ascending by seq, then number; sums of 0 are left out.

    Notes
    -----
    O(n log n): one sort of integers that have all three, since a sort by two columns takes five times as long. Where
    they do not fit 63 bits, the columns are sorted.
    """
    if not number.shape[0]:
        return number, seq, balance
    bits, least = max(numbers - 1, 1).bit_length() + _BALANCE_BITS, int(seq.min())
    if (int(seq.max()) - least).bit_length() + bits >= _KEY_BITS or int(balance.min()) < -2 or int(balance.max()) > 1:
        order = np.lexsort((number, seq))
        number, seq, balance = number[order], seq[order], balance[order]
        differs = (number[1:] != number[:-1]) | (seq[1:] != seq[:-1])
    else:
        key = (seq - least) << bits
        key |= number << _BALANCE_BITS
        key |= balance.astype(np.int64) + 2
        key.sort()
        balance = ((key & 3) - 2).astype(np.int8)
        key >>= _BALANCE_BITS
        differs = key[1:] != key[:-1]
        number = key & ((1 << (bits - _BALANCE_BITS)) - 1)
        seq = (key >> (bits - _BALANCE_BITS)) + least
    starts = np.flatnonzero(np.concatenate([[True], differs]))
    total = np.add.reduceat(balance, starts, dtype=np.int64)
    kept = total != 0
    rows = starts[kept]
    return number[rows], seq[rows], total[kept].astype(np.int8)
