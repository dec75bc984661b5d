"""Columns of the top-k subscriptions, one dense slot each, shared by every top-k index.

A slot is reused after its subscription has gone. Terms of a slot lie together in a pool that is compacted when a
quarter of it is dead. Beside each term stands the place of its posting, so that a change of threshold reaches the
postings of a subscription without a search (`matching.topk.postings`).
"""

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from matching.errors import EngineError
from matching.model import TOPK, Float32, Float64, Int32, Int64, SubscriptionTable
from matching.slots import SlotMap, part, resized

#: A pool is compacted when it is full and this share of it is dead.
_DEAD_SHARE = 0.25
_FEWEST = 16


class Subscriptions(NamedTuple):
    """Kernel view of the store; n slots, of which only live ones mean anything.

    number : int64[n]      negative for a free slot; the column of the store's `SlotMap`
    x, y, alpha, threshold : float64[n]
    k : int32[n]
    term_start : int64[n]  term_start[s] : term_start[s] + term_count[s] are the terms of slot s
    term_count : int32[n]
    terms : int32[pool]    ascending within a slot
    weights : float32[pool]
    position : int32[pool] place of the term's posting; -1 if this engine has none for it (`TopkIndex.insert`)
    """

    number: Int64
    x: Float64
    y: Float64
    alpha: Float64
    threshold: Float64
    k: Int32
    term_start: Int64
    term_count: Int32
    terms: Int32
    weights: Float32
    position: Int32


class SubscriptionStore:
    """Top-k subscriptions by slot, with insertion, removal and round trip through arrays."""

    def __init__(self):
        self._slots = SlotMap()
        self._columns = Subscriptions(
            number=self._slots.number,
            x=np.zeros(0),
            y=np.zeros(0),
            alpha=np.zeros(0),
            threshold=np.zeros(0),
            k=np.zeros(0, np.int32),
            term_start=np.zeros(0, np.int64),
            term_count=np.zeros(0, np.int32),
            terms=np.zeros(0, np.int32),
            weights=np.zeros(0, np.float32),
            position=np.zeros(0, np.int32),
        )
        self._pool_used = 0
        self._pool_dead = 0

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def columns(self) -> Subscriptions:
        """The arrays as they are now; grown arrays are new arrays, so fetch this again after `insert`."""
        return self._columns

    @property
    def capacity(self) -> int:
        """How many slots the columns have, free ones included."""
        return self._columns.threshold.shape[0]

    def live_slots(self) -> Int32:
        """Slots in use, ascending. O(capacity)."""
        return np.flatnonzero(self._columns.number >= 0).astype(np.int32)

    def find(self, numbers: Int64) -> Int32:
        """Slots of these subscriptions, -1 where there is none. O(n)."""
        return self._slots.find(np.ascontiguousarray(numbers, np.int64))

    def insert(self, table: SubscriptionTable, posted: NDArray[np.bool_] | None = None) -> Int32:
        """Add rows with threshold minus infinity; returns their slots (int32[n]). O(n + terms), amortised.

        Terms that are not `posted` (bool, as long as `table.terms`) get position -1.

        Raises
        ------
        EngineError
            If a number is already here.
        """
        slots = self._slots.insert(np.ascontiguousarray(table.number, np.int64))
        self._grow_slots(self._slots.capacity)
        lengths = np.diff(table.term_offsets).astype(np.int32)
        needed = int(lengths.sum())
        if self._pool_used + needed > self._columns.terms.shape[0]:
            self._make_room(needed)
        c = self._columns
        c.x[slots], c.y[slots], c.alpha[slots] = table.x, table.y, table.alpha
        c.threshold[slots] = -np.inf
        c.k[slots] = table.k
        c.term_count[slots] = lengths
        starts = np.zeros(len(table), np.int64)
        np.cumsum(lengths[:-1], out=starts[1:])
        c.term_start[slots] = starts + self._pool_used
        first, last = table.term_offsets[0], table.term_offsets[-1]
        self._columns.terms[self._pool_used : self._pool_used + needed] = table.terms[first:last]
        self._columns.weights[self._pool_used : self._pool_used + needed] = table.weights[first:last]
        position = self._columns.position[self._pool_used : self._pool_used + needed]
        position[:] = 0 if posted is None else posted[first:last].astype(np.int32) - 1
        self._pool_used += needed
        return slots

    def rows(self, slots: Int32) -> SubscriptionTable:
        """What was inserted, but for `at`. O(n + terms)."""
        c = self._columns
        offsets, picked = take_ragged_at(c.term_start[slots], c.term_count[slots])
        n = slots.shape[0]
        return SubscriptionTable(
            c.number[slots], np.full(n, TOPK, np.int8), np.zeros(n, np.int64), c.x[slots], c.y[slots],
            np.full((n, 4), np.nan), c.k[slots], c.alpha[slots], offsets, c.terms[picked], c.weights[picked],
        )  # fmt: skip

    def remove(self, slots: Int32) -> None:
        """Free live slots. O(n)."""
        c = self._columns
        if np.any(c.number[slots] < 0):
            raise EngineError("top-k store: a slot to be removed is not in use; this is a fault of the caller")
        self._pool_dead += int(c.term_count[slots].sum())
        self._slots.remove(c.number[slots])
        c.term_count[slots] = 0
        c.threshold[slots] = np.inf

    def arrays(self) -> dict[str, np.ndarray]:
        """Every array needed to continue, trimmed to what is in use."""
        used = self._pool_used
        pools = ("terms", "weights", "position")
        columns = {name: value[:used] if name in pools else value for name, value in self._columns._asdict().items()}
        del columns["number"]
        pool = np.array([used, self._pool_dead], np.int64)
        return {**columns, **{f"slots_{name}": value for name, value in self._slots.arrays().items()}, "pool": pool}

    @classmethod
    def from_arrays(cls, arrays: dict[str, np.ndarray]) -> "SubscriptionStore":
        """Continue from `arrays`; everything is copied, since the store writes."""
        store = cls()
        store._slots = SlotMap.from_arrays(part(arrays, "slots_"))
        rest = {name: arrays[name].copy() for name in Subscriptions._fields if name != "number"}
        store._columns = Subscriptions(number=store._slots.number, **rest)
        store._grow_slots(store._slots.capacity)
        store._pool_used, store._pool_dead = (int(value) for value in arrays["pool"])
        return store

    def _grow_slots(self, needed: int) -> None:
        """Lengthen the columns by slot to `needed`, and take over the number column of the slot map."""
        pools = {"terms", "weights", "position"}
        columns = self._columns._asdict()
        for name in Subscriptions._fields:
            if name == "number":
                columns[name] = self._slots.number
            elif name not in pools and columns[name].shape[0] < needed:
                columns[name] = resized(columns[name], needed, np.inf if name == "threshold" else 0)
        self._columns = Subscriptions(**columns)

    def _make_room(self, needed: int) -> None:
        """Compact the pool of terms if that pays, else grow it."""
        c = self._columns
        if self._pool_dead > _DEAD_SHARE * max(1, self._pool_used):
            slots = self.live_slots()
            order = slots[np.argsort(c.term_start[slots], kind="stable")]
            self._pool_used = int(_compact_pool(order, c))
            self._pool_dead = 0
        size = c.terms.shape[0]
        if self._pool_used + needed > size:
            size = max(_FEWEST, self._pool_used + needed, size + size // 2)
            self._columns = c._replace(
                terms=resized(c.terms, size), weights=resized(c.weights, size), position=resized(c.position, size)
            )


def take_ragged_at(starts: Int64, counts: Int32) -> tuple[Int64, Int64]:
    """Offsets and places of rows that lie at `starts` of a pool. O(entries)."""
    offsets = np.zeros(starts.shape[0] + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets, np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], counts)


@njit(cache=True, nogil=True)
def _compact_pool(order, c):
    """Move the terms of the slots in `order` (ascending by place) to the front of the pool; returns its new end."""
    end = 0
    for slot in order:
        start, count = c.term_start[slot], c.term_count[slot]
        for j in range(count):
            c.terms[end + j] = c.terms[start + j]
            c.weights[end + j] = c.weights[start + j]
            c.position[end + j] = c.position[start + j]
        c.term_start[slot] = end
        end += count
    return end
