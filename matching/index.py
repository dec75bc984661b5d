"""Contract of an index of subscriptions: rows in, rows out, and the pairs of a batch that match.

Every engine is one. A subscription is a slot, its row in the columns of the index. `insert` writes columns and
postings, `withdraw` takes the postings out, `release` frees the slot; `remove` does both. What `match` finds are
`Hits`; kernels write them into a `HitBuffer`, which grows until a batch fits. Two differ: engines of cumulative kinds
have the results inside and apply a hit at once, so they return the work alone; a skyline engine is a set of result
buffers beside an index (`matching.skyline.subscriptions`), not an index. Base of the engines of all kinds.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import numpy as np

from compiling.njit import njit
from matching.errors import EngineError
from matching.filters import FilterStore
from matching.model import Float64, Int32, Int64, MessageBatch, SubscriptionTable
from matching.storage.slots import SlotMap, resized

#: More hits than any batch has.
NO_LIMIT = 1 << 62


class Hits(NamedTuple):
    """Pairs of subscription and message, each once, in ascending row and no order within a row; of `topk` in any order.

    slot : int32[h]      subscription
    row : int32[h]       message, as row of the batch
    scores : tuple of float64[h]    `boolean`: none; `topk`: the exact score; `skyline`: spatial and text relevance
    next_row : int       first row not matched yet; the number of rows when all are
    scanned : int        postings read
    verified : int       pairs that the index could not decide by itself
    """

    slot: Int32
    row: Int32
    scores: tuple[Float64, ...]
    next_row: int
    scanned: int
    verified: int

    @property
    def matched(self) -> int:
        """Number of pairs."""
        return self.slot.shape[0]

    def passing(self, filters: FilterStore, batch: MessageBatch) -> "Hits":
        """The hits that satisfy the filters of their slots. O(hits with a filter)."""
        passes = filters.passing(self.slot, self.row, batch)
        if passes is None:
            return self
        scores = tuple(score[passes] for score in self.scores)
        return self._replace(slot=self.slot[passes], row=self.row[passes], scores=scores)


class HitBuffer:
    """Output columns of a match, reused from batch to batch: fresh pages took a third of the time of a match.

    Parameters
    ----------
    scores : int      columns of scores
    capacity : int    hits that fit at first

    Attributes
    ----------
    columns : list of int32[n], int32[n], float64[n]...    as `Hits`
    """

    def __init__(self, scores: int = 0, capacity: int = 1 << 12):
        dtypes = (np.int32, np.int32, *(np.float64,) * scores)
        self.columns: list[np.ndarray] = [np.empty(capacity, dtype) for dtype in dtypes]

    def fill(
        self, rows: int, scan: Callable[..., tuple[int, int, int, int]], first_row: int = 0, most_hits: int = NO_LIMIT
    ) -> Hits:
        """Match the rows of a batch from `first_row` on, up to the row that brings the hits to `most_hits`.

        Parameters
        ----------
        rows, first_row, most_hits : int
        scan : callable
            Takes the first row, the most hits and the free part of the columns, and matches rows until these are full.
            Returns (hits, first row not matched, scanned, verified); a row whose hits do not all fit is not matched.

        Returns
        -------
        Hits
            Copies: the columns are written over by the next batch.

        Notes
        -----
        O(hits) beside the scans. Where one row has more hits than fit, the columns double and it is matched again.
        """
        found, row, scanned, verified = 0, first_row, 0, 0
        while row < rows and found < most_hits:
            more, next_row, looked, tested = scan(row, most_hits - found, *(column[found:] for column in self.columns))
            found, scanned, verified = found + more, scanned + looked, verified + tested
            stuck, row = next_row == row, next_row
            if stuck:  # not one row fitted; an index may also stop because it takes a batch in turns
                self.columns = [resized(column, 2 * column.shape[0]) for column in self.columns]
        slot, its_row, *scores = (column[:found].copy() for column in self.columns)
        return Hits(slot, its_row, tuple(scores), row, scanned, verified)

    def allocated_bytes(self) -> int:
        """Memory of the columns."""
        return sum(column.nbytes for column in self.columns)


class SubscriptionIndex(ABC):
    """An index of the subscriptions of one kind.

    Parameters
    ----------
    slots : SlotMap    of the columns; changed by `insert` and `release` alone
    """

    #: Name in `matching.kinds`.
    name: str
    #: Whether distances may be great-circle metres; without meaning for kinds that have none.
    serves_sphere: ClassVar[bool] = False

    def __init__(self, slots: SlotMap):
        self.slots = slots

    def __len__(self) -> int:
        return len(self.slots)

    def find(self, numbers: Int64) -> Int32:
        """Slots of these subscriptions, -1 where there is none. O(n)."""
        return self.slots.find(numbers)

    def contains(self, numbers: Int64) -> np.ndarray:
        """bool[n]: which of these subscriptions are here. O(n)."""
        return self.find(numbers) >= 0

    def numbers(self, slots: Int32) -> Int64:
        """Numbers of the subscriptions of these slots. O(n)."""
        return gather(self.slots.number, slots)

    @abstractmethod
    def insert(self, table: SubscriptionTable) -> Int32:
        """Add subscriptions; returns their slots (int32[n]). Amortised O(n + terms).

        Raises
        ------
        EngineError
            If a number is here already, or a row is of another kind; nothing is changed then.
        """

    def withdraw(self, slots: Int32) -> None:
        """Stop matching these slots (int32[n]); their columns stay until `release`. Amortised O(n + terms).

        Raises
        ------
        EngineError
            If a slot is not in use, or named twice; nothing is changed then.
        """
        if slots.shape[0] == 0:
            return
        if slots.min() < 0 or slots.max() >= self.slots.capacity or np.any(self.slots.number[slots] < 0):
            raise EngineError(f"engine {self.name}: a subscription to remove is not here; add it first")
        if np.unique(slots).shape[0] < slots.shape[0]:
            raise EngineError(f"engine {self.name}: a subscription is to be removed twice at once; name each once")
        self._unpost(slots)

    @abstractmethod
    def release(self, slots: Int32) -> None:
        """Free withdrawn slots (int32[n]). O(n)."""

    def remove(self, slots: Int32) -> None:
        """Withdraw and release slots (int32[n]). Amortised O(n + terms). Raises as `withdraw`."""
        self.withdraw(slots)
        self.release(slots)

    @abstractmethod
    def match(self, batch: MessageBatch) -> tuple:
        """All pairs of a batch, as `Hits`."""

    @abstractmethod
    def arrays(self) -> dict[str, np.ndarray]:
        """All arrays, for figures of size. Views, no copies."""

    @abstractmethod
    def _post(self, slots: Int32) -> None:
        """Add slots whose columns have just been written to the postings."""

    @abstractmethod
    def _unpost(self, slots: Int32) -> None:
        """Take slots out of the postings; their columns are still there."""


@njit(cache=True, nogil=True)
def gather(column: Int64, slots: Int32) -> Int64:
    """column[slots]: reads that do not wait for one another, so their cache misses overlap."""
    out = np.empty(slots.shape[0], np.int64)
    for i in range(out.shape[0]):
        out[i] = column[slots[i]]
    return out
