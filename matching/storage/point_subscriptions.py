"""Columns of subscriptions with a point, one dense slot each, shared by every top-k index and by routers.

A slot is reused after its subscription has gone. Terms of a slot lie together in a pool that is compacted when a
quarter of it is dead. Beside each term stands the place of its posting, so that a change of threshold reaches the
postings of a subscription without a search.

Access is random, so what is read together lies together: the columns of a slot are views of one array of rows, those of
a term of another. A pair costs two or three cache misses, not nine.
"""

import math
from copy import copy
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compiling.njit import njit
from matching.errors import EngineError
from matching.filters import FilterStore
from matching.model import (
    KEYWORDS_BY_KIND,
    NO_RADII,
    NO_VECTORS,
    Float32,
    Float64,
    Int32,
    Int64,
    SubscriptionTable,
)
from matching.storage.slots import SlotMap, cache_aligned, grown, resized

#: A pool is compacted when it is full and this fraction of it is dead.
_MOST_DEAD = 0.25
#: Least capacity: with a row or none, NumPy and so Numba would take a view for contiguous.
_FEWEST = 16
#: A slot, one cache line: x, y, z, alpha, threshold, max_distance, term_start in 8 bytes each; term_count and k in 4.
ROW_WORDS, _ROW_HALVES = 8, 16
_THRESHOLD = 4
#: A term: itself, its weight, its position.
TERM_HALVES = 3
_BY_TERM = ("terms", "weights", "position")
_BY_SLOT = ("x", "y", "z", "alpha", "threshold", "max_distance", "term_start", "term_count", "k")


class Subscriptions(NamedTuple):
    """Kernel view of the store; n slots, of which only live ones mean anything. All but `number` are strided.

    number : int64[n]      negative for a free slot; the column of the store's `SlotMap`
    x, y, z : float64[n]   where the subscription is, as distances are measured: a unit vector on the sphere, in the
                           plane a point of the unit square and 0
    alpha, threshold : float64[n]
    max_distance : float64[n]    where its proximity is 0: its own radius if it names one, else that of the world
    k : int32[n]
    term_start : int64[n]  term_start[s] : term_start[s] + term_count[s] are the terms of slot s
    term_count : int32[n]
    terms : int32[pool]    ascending within a slot
    weights : float32[pool]
    position : int32[pool] place of the term's posting; -1 if this engine has none for it (`TopkEngine.insert`)
    """

    number: Int64
    x: Float64
    y: Float64
    z: Float64
    alpha: Float64
    threshold: Float64
    max_distance: Float64
    k: Int32
    term_start: Int64
    term_count: Int32
    terms: Int32
    weights: Float32
    position: Int32


class PointSubscriptions:
    """Subscriptions by slot, with insertion, removal and round trip through arrays.

    Parameters
    ----------
    max_distance : float    of subscriptions that name no radius
    """

    def __init__(self, max_distance: float = math.nan):
        self.max_distance = max_distance
        self.slots = SlotMap()
        self._rows, self._pool = _new_rows(_FEWEST), np.zeros((_FEWEST, TERM_HALVES), np.int32)
        self._columns = _columns(self.slots.number, self._rows, self._pool)
        self._kind = np.zeros(_FEWEST, np.int8)
        #: By slot, apart from what is matched: on the sphere the point in the unit square, and radii that were named.
        self._place, self._radius_m = np.zeros((0, 2)), NO_RADII
        self._pool_used = 0
        self._pool_dead = 0
        self.filters = FilterStore()

    def __len__(self) -> int:
        return len(self.slots)

    @property
    def columns(self) -> Subscriptions:
        """The arrays as they are now; grown arrays are new arrays, so fetch this again after `insert`."""
        return self._columns

    @property
    def capacity(self) -> int:
        """How many slots the columns have, free ones included."""
        return self.slots.capacity

    def live_slots(self) -> Int32:
        """Slots in use, ascending. O(capacity)."""
        return self.slots.live_slots()

    def find(self, numbers: Int64) -> Int32:
        """Slots of these subscriptions, -1 where there is none. O(n)."""
        return self.slots.find(numbers)

    def insert(self, table: SubscriptionTable, posted: NDArray[np.bool_] | None = None) -> Int32:
        """Add rows with threshold minus infinity; returns their slots (int32[n]). O(n + terms), amortised.

        Terms that are not `posted` (bool, as long as `table.terms`) get position -1.

        Raises
        ------
        EngineError
            If a number is already here.
        """
        slots = self.slots.insert(table.number)
        self._grow_slots(self.slots.capacity)
        lengths = np.diff(table.term_offsets).astype(np.int32)
        needed = int(lengths.sum())
        if self._pool_used + needed > self._pool.shape[0]:
            self._reserve(needed)
        c = self._columns
        self._insert_points(table, slots)
        c.alpha[slots] = table.alpha
        c.threshold[slots] = -np.inf
        c.k[slots], self._kind[slots] = table.k, table.kind
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
        self.filters.insert(table, slots)
        return slots

    def _insert_points(self, table: SubscriptionTable, slots: Int32) -> None:
        """Points and radii of new slots."""
        c = self._columns
        c.max_distance[slots] = self.max_distance
        if table.radius_m.shape[0] or self._radius_m.shape[0]:
            self._radius_m = _longer(self._radius_m, self.capacity)
            self._radius_m[slots] = table.radius_m if table.radius_m.shape[0] else np.nan
            own = ~np.isnan(self._radius_m[slots])
            c.max_distance[slots[own]] = self._radius_m[slots[own]]
        if not table.vector.shape[0]:
            c.x[slots], c.y[slots], c.z[slots] = table.x, table.y, 0.0
            return
        # at least two rows: a column of a single one would be contiguous, which Numba compiles for anew
        self._place = grown(self._place, max(_FEWEST, self.capacity))
        self._place[slots, 0], self._place[slots, 1] = table.x, table.y
        c.x[slots], c.y[slots], c.z[slots] = table.vector.T

    def places(self, slots: Int32) -> tuple[Float64, Float64]:
        """Points of slots in the unit square: x, y. O(n)."""
        if self._place.shape[0]:
            return self._place[slots, 0], self._place[slots, 1]
        return self._columns.x[slots], self._columns.y[slots]

    def vectors(self, slots: Int32) -> Float64:
        """Unit vectors of slots: float64[n, 3]; float64[0, 3] in the plane. O(n)."""
        c = self._columns
        return np.stack([c.x[slots], c.y[slots], c.z[slots]], axis=1) if self._place.shape[0] else NO_VECTORS

    @property
    def unit_square(self) -> tuple[Float64, Float64]:
        """The columns that `places` reads: x, y of all slots."""
        if self._place.shape[0]:
            return self._place[:, 0], self._place[:, 1]
        return self._columns.x, self._columns.y

    def rows(self, slots: Int32) -> SubscriptionTable:
        """What was inserted, but for `at`. O(n + terms)."""
        c = self._columns
        radius_m = self._radius_m[slots] if self._radius_m.shape[0] else NO_RADII
        offsets, picked = take_ragged_at(c.term_start[slots], c.term_count[slots])
        n = slots.shape[0]
        return SubscriptionTable(
            c.number[slots], self._kind[slots], np.zeros(n, np.int64), *self.places(slots),
            np.full((n, 4), np.nan), np.full(n, KEYWORDS_BY_KIND, np.int8), c.k[slots], c.alpha[slots], offsets,
            c.terms[picked], c.weights[picked], *self.filters.columns(slots), self.vectors(slots), radius_m,
        )  # fmt: skip

    def snapshot(self) -> "PointSubscriptions":
        """A frozen copy for `rows`, which later calls do not change. O(slots + terms)."""
        now, used = copy(self), self.slots.high_water
        now.slots, now.filters = self.slots.snapshot(), self.filters.snapshot()
        now._rows, now._pool = self._rows[:used].copy(), self._pool[: self._pool_used].copy()
        now._columns = _columns(now.slots.number, now._rows, now._pool)
        now._kind, now._place, now._radius_m = self._kind[:used].copy(), self._place.copy(), self._radius_m.copy()
        return now

    def remove(self, slots: Int32) -> None:
        """Free live slots. O(n)."""
        c = self._columns
        if np.any(c.number[slots] < 0):
            raise EngineError("store: a slot to be removed is not in use; this is a fault of the caller")
        self._pool_dead += int(c.term_count[slots].sum())
        self.slots.remove(c.number[slots])
        self.filters.remove(slots)
        c.term_count[slots] = 0
        c.threshold[slots] = np.inf

    def arrays(self) -> dict[str, np.ndarray]:
        """All memory, trimmed to the used part."""
        used, c = self._pool_used, self._columns._asdict()
        columns = {name: np.ascontiguousarray(c[name][:used]) for name in _BY_TERM}
        columns |= {name: np.ascontiguousarray(c[name][: self.capacity]) for name in _BY_SLOT}
        pool = np.array([used, self._pool_dead], np.int64)
        columns["kind"] = self._kind[: self.capacity]
        columns |= {f"slots_{name}": value for name, value in self.slots.arrays().items()}
        columns |= {f"filters_{name}": value for name, value in self.filters.arrays().items()}
        return columns | {"pool": pool, "place": self._place, "radius_m": self._radius_m}

    def _grow_slots(self, needed: int) -> None:
        """Lengthen the rows to `needed`, and take over the number column of the slot map."""
        have = self._rows.shape[0]
        if have < needed:
            rows = _new_rows(needed)
            rows[:have] = self._rows
            self._rows, self._kind = rows, resized(self._kind, needed)
        self._columns = _columns(self.slots.number, self._rows, self._pool)

    def _reserve(self, needed: int) -> None:
        """Compact the pool of terms if that pays, else grow it."""
        c = self._columns
        if self._pool_dead > _MOST_DEAD * max(1, self._pool_used):
            slots = self.live_slots()
            order = slots[np.argsort(c.term_start[slots], kind="stable")]
            self._pool_used = int(_compact_pool(order, c))
            self._pool_dead = 0
        self._pool = grown(self._pool, self._pool_used + needed)
        self._columns = _columns(self.slots.number, self._rows, self._pool)


def _new_rows(count: int) -> Int64:
    """Rows of slots, free ones: their threshold is infinite. Each lies in one cache line."""
    rows = cache_aligned(count, ROW_WORDS)
    rows.view(np.float64)[:, _THRESHOLD] = np.inf
    return rows


def _longer(radii: Float64, length: int) -> Float64:
    """At least this many radii; new ones are no number."""
    if radii.shape[0] >= length:
        return radii
    return np.concatenate([radii, np.full(length - radii.shape[0], np.nan)])


def _columns(number: Int64, rows: Int64, pool: Int32) -> Subscriptions:
    """The columns as views of the rows of slots and of the pool of terms."""
    doubles, halves = rows.view(np.float64), rows.view(np.int32)
    return Subscriptions(
        number=number,
        x=doubles[:, 0],
        y=doubles[:, 1],
        z=doubles[:, 2],
        alpha=doubles[:, 3],
        threshold=doubles[:, _THRESHOLD],
        max_distance=doubles[:, 5],
        k=halves[:, _ROW_HALVES - 1],
        term_start=rows[:, 6],
        term_count=halves[:, _ROW_HALVES - 2],
        terms=pool[:, 0],
        weights=pool.view(np.float32)[:, 1],
        position=pool[:, 2],
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
        # In place: the front never overtakes a slot that is still to be moved.
        for j in range(count):
            c.terms[end + j] = c.terms[start + j]
            c.weights[end + j] = c.weights[start + j]
            # Goes with its term: postings are found by it.
            c.position[end + j] = c.position[start + j]
        c.term_start[slot] = end
        end += count
    return end
