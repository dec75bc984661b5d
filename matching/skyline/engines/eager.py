"""Engine `eager`: keep just what can still enter a skyline, and know when it will.

A message that another one dominates which lives at least as long can never be in the skyline again, so it is dropped.
What is left of a subscription's candidates, DB in Tao and Papadias, "Maintaining sliding window skylines on data
streams" (TKDE 2006), is kept. Each entry knows the life of its *critical dominator*, the longest-living one of those
that dominate it: when that is over, it joins the skyline, whatever else happens but an arrival. An arrival
is compared with what is kept and with nothing else.

That reasoning holds while messages leave in the order of their lives. One that is ended before its time may have had
others dropped that come back now; this engine then works the subscription out anew from the window. Only what is kept
matters here: a message that was dropped has another above it that lives as long, and covers all it covered.

`matching.skyline.engines.eager_star` puts that off until it can matter.
"""

import numpy as np
from numba import njit

from matching.model import Int32, Int64
from matching.njit import njit_no_refcount
from matching.skyline.engine import Offers, SkylineEngine
from matching.skyline.results import (
    UNDOMINATED,
    copy_entry,
    dominates,
    drop_dead,
    has_room,
    put,
    remove_members,
    set_due,
)
from matching.skyline.window import Candidates

#: Offers that are read ahead, and entries in a line of the cache.
_AHEAD, _LINE = 48, 8


class Eager(SkylineEngine):
    """Influence times; anew from the window where a kept message is ended."""

    name = "eager"

    def apply(self, offers: Offers, slots: Int32, seqs: Int64, floor: int) -> Int32:
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
                self.candidates.make_room()

    def _expire(self, floor: int) -> None:
        expire(self.candidates.view, self.candidates.due(floor), floor)

    def _offer(self, offers: Offers) -> None:
        done, count = 0, offers.slot.shape[0]
        order, seen = np.empty(count, np.int32), np.zeros(1)
        sort_by_slot(offers.slot, self.candidates.view.start.shape[0], order)
        while done < count:
            done = offer(self.candidates.view, offers, order, done, seen)
            if done < count:
                self.candidates.make_room()


@njit_no_refcount
def expire(v, slots, floor):
    """Drop the dead of slots that are due. Those that join the skyline say so themselves, by `until`."""
    for slot in slots:
        # if a member died, `until` of those that it alone still kept out is its life, which the floor has reached
        drop_dead(v, slot, floor)
        set_due(v, slot, floor)


@njit(cache=True, nogil=True)
def sort_by_slot(slots, capacity, order):
    """Into order (int32[n]): positions by slot, those of the same slot as they were. O(n + capacity).

    A batch brings a busy subscription several messages, and blocks of neighbours are neighbours: so each block comes
    from memory once, and few pages are asked for.
    """
    ends = np.zeros(capacity + 1, np.int32)
    for slot in slots:
        # one place up: after the sums `ends[slot]` is where the slot begins, and after the last loop where it ends
        ends[slot + 1] += 1
    for slot in range(capacity):
        ends[slot + 1] += ends[slot]
    for i in range(slots.shape[0]):
        # those of one slot stay in order, nearly always that of seq, for which `put` has nothing to move
        order[ends[slots[i]]] = i
        ends[slots[i]] += 1


@njit_no_refcount
def offer(v, offers, order, first, seen):
    """Offer messages in this order from the `first` on; returns the one that found no room in the pool, or the end.

    Read ahead, a few dozen at a time in a loop that decides nothing, blocks come from memory together instead of one
    after the other.

    seen : float64[1]    scratch: what was read ahead has to go somewhere
    """
    count = order.shape[0]
    for begin in range(first, count, _AHEAD):
        some = order[begin : begin + _AHEAD]
        # an arrival may move a block after it was read ahead: then that was for nothing, never wrong
        seen[0] = _read_ahead(v, offers, some)
        for k in range(some.shape[0]):
            i = some[k]
            if not arrive(v, offers.slot[i], offers.seq[i], offers.life[i], offers.spatial[i], offers.text[i]):
                return begin + k  # all before it have been taken: after `make_room` the caller goes on here
    return count


@njit_no_refcount
def _read_ahead(v, offers, some):
    """Read something of every line that the offers and the blocks of their slots lie in."""
    seen, last = 0.0, v.seq.shape[0] - 1
    for i in some:
        seen += v.start[offers.slot[i]] + v.count[offers.slot[i]] + v.due[offers.slot[i]]
        seen += offers.seq[i] + offers.life[i] + offers.spatial[i] + offers.text[i]
    # no block has been given out yet: there is no place to read
    if last < 0:
        return seen
    for i in some:
        # a slot without a block has -1; any place will do, since nothing is decided here
        at = max(v.start[offers.slot[i]], 0)
        middle, far = min(at + _LINE, last), min(at + 2 * _LINE, last)
        seen += v.spatial[at] + v.text[at] + v.life[at] + v.spatial[middle] + v.text[middle] + v.life[middle]
        seen += v.spatial[far] + v.text[far]
    return seen


@njit_no_refcount
def arrive(v, slot, seq, life, spatial, text):
    """Compare a message with what a slot keeps, and keep it if it is of use; False if the pool has no room for it.

    O(entries). Afterwards the entries are again all messages seen and alive that no other one dominates which lives
    at least as long. Nothing is changed for the worse when there is no room: the same call can be repeated.
    """
    # asked first, though the newcomer may be dropped or make room itself: from here on nothing can fail half way
    if not has_room(v, slot):
        return False
    start, kept = v.start[slot], 0
    until = np.int64(UNDOMINATED)
    # All that is kept, not the skyline alone as in Algorithm 1 of Deng et al. (2022): what waits below the newcomer
    # would rise later. Coincident messages dominate neither way, so all of them stay.
    for at in range(start, start + v.count[slot]):
        if dominates(v.spatial[at], v.text[at], spatial, text):
            if v.life[at] >= life:
                return True  # then the newcomer had nothing dropped so far, or this one would have done so before
            until = max(until, v.life[at])
        elif dominates(spatial, text, v.spatial[at], v.text[at]):
            # equal lives end at the same boundary: so it is covered for as long as it lives
            if life >= v.life[at]:
                continue
            v.until[at] = max(v.until[at], life)  # a late message: it lives shorter than what it dominates
        if at > start + kept:
            copy_entry(v, at, start + kept)
        kept += 1
    v.count[slot] = kept
    put(v, slot, seq, life, spatial, text, until)
    return True


@njit(cache=True, nogil=True)
def load(v, slots, candidates, first):
    """Fill empty blocks with the candidates of rows from `first` on; returns the row that found no room, or all."""
    for row in range(first, slots.shape[0]):
        if not load_row(v, slots[row], candidates, row):
            return row
    return slots.shape[0]


@njit(cache=True, nogil=True)
def load_row(v, slot, candidates, row):
    """Fill an empty block with the candidates of a row; False if there was no room, the block is then empty again.

    O(candidates * kept): in descending life nothing that is kept is dropped again.
    """
    begin, end = candidates.offsets[row], candidates.offsets[row + 1]
    # among equal lives any order will do: `arrive` drops the dominated one, whichever comes first
    order = np.argsort(candidates.life[begin:end])
    for i in order[::-1]:
        at = begin + i
        if not arrive(v, slot, candidates.seq[at], candidates.life[at], candidates.spatial[at], candidates.text[at]):
            v.count[slot] = 0  # or the next try would enter the first ones twice
            return False
    return True
