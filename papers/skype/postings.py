"""Posting lists over top-k subscriptions: for each term the subscriptions that carry it, as flat arrays.

A list lies contiguous in one pool and is moved to its end when it outgrows its capacity; removal fills the gap with the
last posting. A list carries its term's weight beside each slot, so that a scan reads both in a row and need not follow
the slot to the subscription's terms. A bounded list carries what the L2 suffix bound needs as well, in float32 and in
its own arrays, so that a scan reads them many at a time, and touches a subscription only where the bound lets it
(`baselines.topk.l2_scan`).

The bound of posting (s, j) for a message m whose i-th term it is, if that is their first common term: score <= alpha *
(1 - distance / MaxDist) + (1 - alpha) * (s_j * m_i + |s after j| * |m after i|) (all further common terms lie after
both; Cauchy-Schwarz over them; spec 1.3 and 1.4). It is tighter than the product of the norms from j and i on, and
exact where either has no term left.
"""

import math
from typing import NamedTuple

import numpy as np

from compiling.njit import njit, njit_inner, njit_inner_no_refcount, njit_no_refcount
from matching.model import Float32, Int32, Int64
from matching.storage.point_subscriptions import PointSubscriptions
from matching.storage.slots import resized
from matching.storage.term_lists import capacity_for, count_added, largest_term
from matching.topk.scores import SLACK

_DEAD_FRACTION = 0.25
#: A list that moves gets spare capacity of 1 / `_SPARE` of its postings.
_SPARE = 2


class BoundedLists(NamedTuple):
    """Kernel view of the posting lists; t terms, p places.

    start : int64[t], count : int32[t], capacity : int32[t]
    slot : int32[p]         the subscription
    ordinal : int16[p]      which of its terms this is
    x, y : float32[p]       its point                                      (bounded lists only, else empty)
    steepness : float32[p]  (alpha / MaxDist) squared
    base : float32[p]       alpha - threshold + slack; plus infinity without a threshold
    own : float32[p]        its weight of this term; in a bounded list times 1 - alpha
    rest : float32[p]       (1 - alpha) * norm of its weights after this term
    used : int64[2]         end of the used part of the pool, dead places in it
    """

    start: Int64
    count: Int32
    capacity: Int32
    slot: Int32
    ordinal: np.ndarray
    x: Float32
    y: Float32
    steepness: Float32
    base: Float32
    own: Float32
    rest: Float32
    used: Int64


class PointPostings:
    """Posting lists of a `PointSubscriptions`; `bounded` keeps the columns of the L2 suffix bound."""

    def __init__(self, bounded: bool):
        self.bounded = bounded
        self.view = BoundedLists(
            np.zeros(0, np.int64),
            np.zeros(0, np.int32),
            np.zeros(0, np.int32),
            np.zeros(0, np.int32),
            np.zeros(0, np.int16),
            x=np.zeros(0, np.float32),
            y=np.zeros(0, np.float32),
            steepness=np.zeros(0, np.float32),
            base=np.zeros(0, np.float32),
            own=np.zeros(0, np.float32),
            rest=np.zeros(0, np.float32),
            used=np.zeros(2, np.int64),
        )
        self._added = np.zeros(0, np.int32)  # zeroed counters, one a term; `_append` leaves them zeroed

    def insert(self, subscriptions: PointSubscriptions, slots: Int32, max_distance: float) -> None:
        """Add the postings of slots that `subscriptions` has just been given. O(their terms), amortised."""
        c = subscriptions.columns
        self._ensure_terms(int(largest_term(c, slots)) + 1)
        if self._added.shape[0] < self.view.start.shape[0]:
            self._added = np.zeros(self.view.start.shape[0], np.int32)
        v = self.view
        needed, _ = count_added(c, slots, v.count, v.capacity, self._added, _SPARE)
        if v.used[0] + needed > v.slot.shape[0]:
            self._reserve(subscriptions, needed)
        _append(c, slots, self.view, self._added, max_distance, self.bounded)

    def remove(self, subscriptions: PointSubscriptions, slots: Int32) -> None:
        """Take the postings of these slots out; call before `subscriptions` forgets the slots. O(their terms)."""
        _remove(subscriptions.columns, slots, self.view, self.bounded)

    def set_thresholds(self, subscriptions: PointSubscriptions, slots: Int32) -> None:
        """Bring the bounds of these slots in line with their thresholds. O(their terms)."""
        if self.bounded:
            _set_base(subscriptions.columns, slots, self.view)

    def arrays(self) -> dict[str, np.ndarray]:
        """All arrays, by name, to measure memory; the pool without its unused end."""
        used = int(self.view.used[0])
        per_term = ("start", "count", "capacity", "used")
        return {name: value if name in per_term else value[:used] for name, value in self.view._asdict().items()}

    def _ensure_terms(self, needed: int) -> None:
        v = self.view
        if v.start.shape[0] < needed:
            terms = max(needed, v.start.shape[0] + v.start.shape[0] // 4)
            self.view = v._replace(
                start=resized(v.start, terms), count=resized(v.count, terms), capacity=resized(v.capacity, terms)
            )

    def _reserve(self, subscriptions: PointSubscriptions, needed: int) -> None:
        """Compact the pool if that pays, and grow it by `needed` places."""
        v = self.view
        used, dead = int(v.used[0]), int(v.used[1])
        if dead > _DEAD_FRACTION * used:
            order = np.argsort(v.start, kind="stable")
            _compact(order, v, subscriptions.columns, self.bounded)
            used = int(v.used[0])
        size = v.slot.shape[0]
        if used + needed > size:
            size = max(used + needed, size + size // 4)
            wide = {name: resized(getattr(v, name), size) for name in ("slot", "ordinal", "own")}
            if self.bounded:
                wide |= {name: resized(getattr(v, name), size) for name in ("x", "y", "steepness", "base", "rest")}
            self.view = v._replace(**wide)


@njit_no_refcount
def _append(c, slots, v, added, max_distance, bounded):
    """Append the postings of the slots, moving each list that is too small once; zeroes `added` again."""
    for slot in slots:
        start, count = c.term_start[slot], c.term_count[slot]
        square = 0.0
        for j in range(count - 1, -1, -1):
            term = c.terms[start + j]
            weight = np.float64(c.weights[start + j])
            rest = math.sqrt(square)
            # before the test: a term that is not posted still counts in the norms of those in front of it
            square += weight * weight
            if c.position[start + j] < 0:
                continue
            # the first posting of this call moves the list once, with capacity for all; the caller has seen to the pool
            if added[term] > 0:
                if v.count[term] + added[term] > v.capacity[term]:
                    _move_list(v, c, term, added[term], bounded)
                added[term] = 0
            place = v.start[term] + v.count[term]
            v.count[term] += 1
            v.slot[place] = slot
            v.ordinal[place] = j
            v.own[place] = weight
            c.position[start + j] = place
            if bounded:
                v.x[place] = c.x[slot]
                v.y[place] = c.y[slot]
                ratio = c.alpha[slot] / max_distance
                v.steepness[place] = ratio * ratio
                # infinite without a threshold: no finite bound takes it below zero (spec R2)
                v.base[place] = c.alpha[slot] - c.threshold[slot] + SLACK
                v.own[place] = (1.0 - c.alpha[slot]) * weight
                v.rest[place] = (1.0 - c.alpha[slot]) * rest


@njit_inner
def _move_list(v, c, term, added, bounded):
    """Move a list to the end of the pool, with capacity for `added` more."""
    old, count = v.start[term], v.count[term]
    capacity = capacity_for(count, added, _SPARE)
    new = v.used[0]
    v.used[0] = new + capacity
    # the old capacity is dead until the pool is compacted
    v.used[1] += v.capacity[term]
    for i in range(count):
        _copy_place(v, c, old + i, new + i, bounded)
    v.start[term] = new
    v.capacity[term] = capacity


@njit_inner_no_refcount
def _copy_place(v, c, source, target, bounded):
    """Copy a posting and update its position in the columns of its subscription."""
    slot = v.slot[source]
    v.slot[target] = slot
    v.ordinal[target] = v.ordinal[source]
    v.own[target] = v.own[source]
    # else a change of threshold would write into the posting of another subscription
    c.position[c.term_start[slot] + v.ordinal[source]] = target
    if bounded:
        v.x[target] = v.x[source]
        v.y[target] = v.y[source]
        v.steepness[target] = v.steepness[source]
        v.base[target] = v.base[source]
        v.rest[target] = v.rest[source]


@njit_no_refcount
def _remove(c, slots, v, bounded):
    for slot in slots:
        start = c.term_start[slot]
        for j in range(c.term_count[slot]):
            term, place = c.terms[start + j], c.position[start + j]
            if place < 0:
                continue
            last = v.start[term] + v.count[term] - 1
            # no tombstone: every scan would have to test for it
            if place != last:
                _copy_place(v, c, last, place, bounded)
            # its own position may dangle: the slot gets no new threshold and is forgotten next (`withdraw`)
            v.count[term] -= 1


@njit(cache=True, nogil=True)
def _set_base(c, slots, v):
    for slot in slots:
        base = np.float32(c.alpha[slot] - c.threshold[slot] + SLACK)
        for at in range(c.term_start[slot], c.term_start[slot] + c.term_count[slot]):
            if c.position[at] >= 0:
                # at once, up or down: one left too low would lose results (spec 1.6)
                v.base[c.position[at]] = base


@njit(cache=True, nogil=True)
def _compact(order, v, c, bounded):
    """Close the gaps of the pool, list by list in `order` of their places; spare capacity stays."""
    end = 0
    for term in order:
        if v.capacity[term] == 0:
            continue
        old = v.start[term]
        # ascending places: a list moves down or stays, never onto one that is still to move
        for i in range(v.count[term]):
            _copy_place(v, c, old + i, end + i, bounded)
        v.start[term] = end
        end += v.capacity[term]
    v.used[0] = end
    v.used[1] = 0
