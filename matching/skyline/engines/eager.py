"""Engine `eager`: keep just the messages that can still enter a skyline, and when they will.

A message that another one dominates and outlives (or equals in life) can never be in the skyline again: it is dropped.
The other candidates are the result buffer (DB in Tao and Papadias, "Maintaining sliding window skylines on data
streams", TKDE 2006). Each entry has the life of its *critical dominator*, the longest-living message that dominates it:
when that life is over, the entry joins the skyline, unless an arrival prevents it. An arrival is compared with the
buffer only.

That is right while messages leave in the order of their lives. If a buffered message is ended early, messages dropped
for it may be skyline members again, so the engine requests a refill. An ended message that was dropped needs none: its
dominator lives as long, and covers all it covered.

`matching.skyline.engines.eager_star` delays these refills until they can matter.
"""

import numpy as np

from compiling.njit import njit, njit_inner, njit_inner_no_refcount, njit_no_refcount
from matching.model import Int32, Int64
from matching.skyline.engine import SkylineEngine, SkylineOffers
from matching.skyline.results import (
    UNDOMINATED,
    copy_entry,
    dominates,
    drop_dead,
    has_capacity,
    put,
    remove_members,
    set_due,
)
from matching.skyline.window import Candidates
from matching.storage.sorting import ascending

#: Offers that are read ahead, and entries in a line of the cache.
_AHEAD, _LINE = 48, 8


class Eager(SkylineEngine):
    """Influence times; a refill wherever a buffered message is ended."""

    name = "eager"

    def apply(self, offers: SkylineOffers, slots: Int32, seqs: Int64, floor: int) -> Int32:
        lost = np.empty(slots.shape[0], np.int32)
        count = remove_members(self.candidates.view, slots, seqs, lost)
        self._expire(floor)
        self._offer(offers)
        return np.unique(lost[:count])

    def refill(self, slots: Int32, candidates: Candidates, floor: int) -> None:
        self.candidates.clear(slots)
        done = 0
        while done < slots.shape[0]:
            done = load(self.candidates.view, slots, candidates, done)
            if done < slots.shape[0]:
                self.candidates.grow()

    def _expire(self, floor: int) -> None:
        expire(self.candidates.view, self.candidates.due(floor), floor)

    def _offer(self, offers: SkylineOffers) -> None:
        done, count = 0, offers.slot.shape[0]
        order, seen = np.empty(count, np.int32), np.zeros(1)
        sort_by_slot(offers.slot, self.candidates.view.start.shape[0], order)
        while done < count:
            done = offer(self.candidates.view, offers, order, done, seen)
            if done < count:
                self.candidates.grow()


@njit_no_refcount
def expire(v, slots, floor):
    """Drop expired entries of slots that are due. Entries join the skyline by `until`, without work here."""
    for slot in slots:
        # if a member died, `until` of those that only it kept out is its life, which the floor has reached
        drop_dead(v, slot, floor)
        set_due(v, slot, floor)


@njit(cache=True, nogil=True)
def sort_by_slot(slots, capacity, order):
    """Into order (int32[n]): positions by slot, those of the same slot as they were. O(n + capacity).

    So each block of the pool is read once for all its offers, and few pages are touched.
    """
    ends = np.zeros(capacity + 1, np.int32)
    for slot in slots:
        # one place up: after the sums `ends[slot]` is the begin of the slot, after the last loop its end
        ends[slot + 1] += 1
    for slot in range(capacity):
        ends[slot + 1] += ends[slot]
    for i in range(slots.shape[0]):
        # stable, hence nearly always by seq, for which `put` has nothing to move
        order[ends[slots[i]]] = i
        ends[slots[i]] += 1


@njit_no_refcount
def offer(v, offers, order, first, seen):
    """Offer messages in this order from `first` on; returns the position that exhausted the pool, or the end.

    Blocks are read ahead, a few dozen at a time in a loop without branches, so that cache misses overlap.

    seen : float64[1]    scratch: sum of the values read ahead, so that the reads are not optimised away
    """
    count = order.shape[0]
    for begin in range(first, count, _AHEAD):
        some = order[begin : begin + _AHEAD]
        # an arrival may move a block after it was read ahead: wasted, never wrong
        seen[0] = _read_ahead(v, offers, some)
        for k in range(some.shape[0]):
            i = some[k]
            if not arrive(v, offers.slot[i], offers.seq[i], offers.life[i], offers.spatial[i], offers.text[i]):
                return begin + k  # all before it are done: after `grow` the caller continues here
    return count


@njit_no_refcount
def _read_ahead(v, offers, some):
    """Touch every cache line of the offers and of the blocks of their slots."""
    seen, last = 0.0, v.seq.shape[0] - 1
    for i in some:
        seen += v.start[offers.slot[i]] + v.count[offers.slot[i]] + v.due[offers.slot[i]]
        seen += offers.seq[i] + offers.life[i] + offers.spatial[i] + offers.text[i]
    # no block is allocated yet: there is no place to read
    if last < 0:
        return seen
    for i in some:
        # a slot without a block has -1; any place will do
        at = max(v.start[offers.slot[i]], 0)
        middle, far = min(at + _LINE, last), min(at + 2 * _LINE, last)
        seen += v.spatial[at] + v.text[at] + v.life[at] + v.spatial[middle] + v.text[middle] + v.life[middle]
        seen += v.spatial[far] + v.text[far]
    return seen


@njit_inner_no_refcount
def arrive(v, slot, seq, life, spatial, text):
    """Compare a message with a slot's buffer, and keep it if it can enter the skyline; False if the pool is exhausted.

    O(entries). Afterwards the buffer again has all live messages that no other one dominates and outlives (or equals).
    If the pool is exhausted nothing is changed: the same call can be repeated.
    """
    # first, though the newcomer may be dropped or free capacity itself: nothing can fail half way after this
    if not has_capacity(v, slot):
        return False
    start, kept = v.start[slot], 0
    until = np.int64(UNDOMINATED)
    # The whole buffer, not only the skyline as in Algorithm 1 of Deng et al. (2022): entries that wait below the
    # newcomer would join later. Coincident messages dominate neither way, so all of them stay.
    for at in range(start, start + v.count[slot]):
        if dominates(v.spatial[at], v.text[at], spatial, text):
            if v.life[at] >= life:
                return True  # the newcomer has dropped nothing so far: this entry would have done so before
            until = max(until, v.life[at])
        elif dominates(spatial, text, v.spatial[at], v.text[at]):
            # equal lives end at the same boundary: it is covered for as long as it lives
            if life >= v.life[at]:
                continue
            v.until[at] = max(v.until[at], life)  # a late message dies before the entry that it dominates
        if at > start + kept:
            copy_entry(v, at, start + kept)
        kept += 1
    v.count[slot] = kept
    put(v, slot, seq, life, spatial, text, until)
    return True


@njit(cache=True, nogil=True)
def load(v, slots, candidates, first):
    """Fill empty blocks with candidates, from row `first` on; returns the row that exhausted the pool, or all."""
    for row in range(first, slots.shape[0]):
        if not load_row(v, slots[row], candidates, row):
            return row
    return slots.shape[0]


@njit_inner
def load_row(v, slot, candidates, row):
    """Fill an empty block with the candidates of a row; False, with the block empty, if the pool is exhausted.

    O(candidates * kept): in descending order of life no entry is dropped again.
    """
    begin, end = candidates.offsets[row], candidates.offsets[row + 1]
    # among equal lives any order will do: `arrive` drops the dominated one, whichever comes first
    order = ascending(candidates.life[begin:end])
    for i in order[::-1]:
        at = begin + i
        if not arrive(v, slot, candidates.seq[at], candidates.life[at], candidates.spatial[at], candidates.text[at]):
            v.count[slot] = 0  # or the next try would insert the first ones twice
            return False
    return True
