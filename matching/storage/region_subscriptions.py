"""Columns of regions with keywords, one dense slot each, shared by engines of kinds with a region and by signatures.

These columns verify a pair exactly; an index finds the candidate slots. Engines of the other kinds keep their columns
the same way.
"""

from copy import copy
from typing import NamedTuple

import numpy as np

from compiling.njit import njit, njit_inner, njit_inner_no_refcount, njit_no_refcount
from matching.errors import EngineError
from matching.model import UNKNOWN_TERM, Float64, Int32, Int64, SubscriptionTable
from matching.storage.slots import SlotMap, as_input, grown

_MOST_DEAD = 0.25
#: `start` of a subscription that can never match: an unknown keyword, no keyword, or no region.
NEVER = -1


class RegionColumns(NamedTuple):
    """Kernel view of the rows; n slots, of which only live ones mean anything.

    number : int64[n]      of the subscription; negative for a free slot
    region : float64[n, 4] west, south, east, north in degrees, closed; west > east crosses the antimeridian
    start : int32[n]       keywords of slot s: terms[start[s]] on, the last one stored as its complement (~term);
                           -1 for one that can never match (it has none here)
    terms : int32[pool]    ascending within a slot
    """

    number: Int64
    region: Float64
    start: Int32
    terms: Int32


class Regions(NamedTuple):
    """Rows to insert, as far as they are read: these columns of a `SubscriptionTable`."""

    number: Int64
    region: Float64
    term_offsets: Int64
    terms: Int32


class RegionSubscriptions:
    """Regions with keywords by slot, with insertion and removal."""

    def __init__(self):
        self.slots = SlotMap()
        self._region = np.zeros((0, 4), np.float64)
        self._start = np.zeros(0, np.int32)
        self._terms = np.zeros(0, np.int32)
        self._pool = np.zeros(2, np.int64)  # end of the used part of `terms`, dead entries in it

    def __len__(self) -> int:
        return len(self.slots)

    @property
    def columns(self) -> RegionColumns:
        """The arrays as they are now; grown arrays are new arrays, so fetch this again after `insert`."""
        return RegionColumns(self.slots.number, self._region, self._start, self._terms)

    def insert(self, table: SubscriptionTable | Regions) -> Int32:
        """Add rows; returns their slots (int32[n]). O(n + terms), amortised.

        Raises
        ------
        EngineError
            If a number is here already, or the keywords of one engine would exceed 2**31; nothing is changed then.
        """
        needed = table.terms.shape[0]
        if self._pool[0] + needed > self._terms.shape[0]:
            self._reserve(needed)
        slots = self.slots.insert(table.number)
        self._region = grown(self._region, self.slots.capacity)
        self._start = grown(self._start, self.slots.capacity, NEVER)
        _write(
            as_input(slots, np.int32),
            as_input(table.region, np.float64),
            as_input(table.term_offsets, np.int64),
            as_input(table.terms, np.int32),
            self.columns,
            self._pool,
        )
        return slots

    def remove(self, slots: Int32) -> None:
        """Free live slots. O(n)."""
        _count_dead(slots, self.columns, self._pool)
        self.slots.remove(self.slots.number[slots])

    def keywords(self, slots: Int32) -> tuple[Int64, Int32]:
        """Keywords of these slots, of which some have none: position of the owner in `slots`, and term. O(pool)."""
        start = self._start[slots]
        able = np.flatnonzero(start >= 0)
        start = start[able].astype(np.int64)
        is_last = self._terms < 0  # the last keyword of each is stored as its complement
        before = np.cumsum(is_last) - is_last
        length = np.flatnonzero(is_last)[before[start]] - start + 1
        picked = np.arange(int(length.sum())) + np.repeat(start - np.cumsum(length) + length, length)
        terms = self._terms[picked]
        return np.repeat(able, length), np.where(terms < 0, ~terms, terms).astype(np.int32)

    def snapshot(self) -> "RegionSubscriptions":
        """A frozen copy, which later calls do not change. O(slots + terms)."""
        now, used = copy(self), self.slots.high_water
        now.slots, now._pool = self.slots.snapshot(), self._pool.copy()
        now._region, now._start = self._region[:used].copy(), self._start[:used].copy()
        now._terms = self._terms[: self._pool[0]].copy()
        return now

    def arrays(self) -> dict[str, np.ndarray]:
        """All memory, trimmed to the used part."""
        used = self.slots.high_water
        columns = {"region": self._region[:used], "start": self._start[:used], "terms": self._terms[: self._pool[0]]}
        return columns | {"pool": self._pool} | {f"slots_{name}": value for name, value in self.slots.arrays().items()}

    def allocated_bytes(self) -> int:
        """Memory, unused rows included."""
        return self.slots.allocated_bytes() + self._region.nbytes + self._start.nbytes + self._terms.nbytes

    def _reserve(self, needed: int) -> None:
        """Compact the pool of terms if that pays, and grow it."""
        if self._pool[1] > _MOST_DEAD * self._pool[0]:
            live = np.flatnonzero(
                (self.slots.number[: self.slots.high_water] >= 0) & (self._start[: self.slots.high_water] >= 0)
            )
            order = live[np.argsort(self._start[live], kind="stable")].astype(np.int32)
            _compact(order, self.columns, self._pool)
        wanted = int(self._pool[0]) + needed
        if wanted > 2**31 - 1:
            raise EngineError(f"{wanted} keywords do not fit one engine: use more query bolts (at most 2**31 - 1 each)")
        self._terms = grown(self._terms, wanted)


@njit_inner_no_refcount
def box_meets(region, slot, second, west, south, east, north):
    """Whether the slot's first (or second) box shares a point with a rectangle, exactly.

    A region with west > east is two boxes, [west, 180] and [-180, east]; any other has only a first one.
    """
    from_lon, to_lon = region[slot, 0], region[slot, 2]
    if from_lon > to_lon:
        if second:
            from_lon = -180.0
        else:
            to_lon = 180.0
    # Closed on all sides: touching is meeting. False for a NaN, so a message without a place meets nothing.
    return from_lon <= east and west <= to_lon and region[slot, 1] <= north and south <= region[slot, 3]


@njit_inner_no_refcount
def region_meets(region, slot, west, south, east, north):
    """Whether the slot's region, in one box or two, shares a point with a rectangle, exactly."""
    # Few regions cross the antimeridian: only those have a second box to test.
    return box_meets(region, slot, False, west, south, east, north) or (
        region[slot, 0] > region[slot, 2] and box_meets(region, slot, True, west, south, east, north)
    )


@njit_inner
def term_in(terms, first, last, term):
    """Whether terms[first:last] has the term. Linear: messages are short, and most calls come after a filter."""
    for i in range(first, last):  # noqa: SIM110 - numba knows no any() over a generator
        if terms[i] == term:
            return True
    return False


@njit_inner
def all_terms_in(pool, position, terms, first, last):
    """Whether terms[first:last] has every keyword from pool[position] to the end of its subscription."""
    while True:
        term = pool[position]
        if not term_in(terms, first, last, ~term if term < 0 else term):
            return False
        if term < 0:
            return True
        position += 1


@njit_no_refcount
def _write(slots, region, term_offsets, terms, columns, pool):
    """Fill the columns of freshly given slots; one that can never match gets no terms."""
    end = pool[0]
    for i in range(slots.shape[0]):
        slot = slots[i]
        nowhere = False
        for side in range(4):
            columns.region[slot, side] = region[i, side]
            # Without a region it is NaN, which on a lattice would pass for a place.
            nowhere = nowhere or np.isnan(region[i, side])
        first, last = term_offsets[i], term_offsets[i + 1]
        # Terms ascend and the unknown one has the highest id, so one look finds it. What can never match costs no terms
        # and no posting.
        if nowhere or last == first or terms[last - 1] == UNKNOWN_TERM:
            columns.start[slot] = NEVER
            continue
        columns.start[slot] = end
        for j in range(first, last):
            columns.terms[end] = terms[j]
            end += 1
        # The last one marks the end, which saves a column of lengths; the complement of term 0 is negative too.
        columns.terms[end - 1] = ~terms[last - 1]
    pool[0] = end


@njit(cache=True, nogil=True)
def _count_dead(slots, columns, pool):
    """Count the pool entries that die with these slots."""
    for slot in slots:
        position = columns.start[slot]
        if position >= 0:
            # One for the last keyword, at which the loop stops.
            pool[1] += 1
            while columns.terms[position] >= 0:
                pool[1] += 1
                position += 1


@njit(cache=True, nogil=True)
def _compact(order, columns, pool):
    """Move the terms of the slots in `order` (ascending by start) to the front of the pool."""
    end = 0
    for slot in order:
        # In place: the front never overtakes a slot that is still to be moved.
        position = columns.start[slot]
        columns.start[slot] = end
        while True:
            term = columns.terms[position]
            columns.terms[end] = term
            end += 1
            position += 1
            if term < 0:
                break
    pool[0] = end
    pool[1] = 0
