"""Engine `skyline_only`: store the skyline alone, test arrivals against it, refill when a member leaves.

The fair opponent of engines that store more (`matching.skyline.engines.eager_star`). An arrival needs no candidates: a
message that a member dominates cannot enter the skyline while that member lives. When a member expires or ends,
messages that it dominated may become members, and the engine has not stored them; so it refills the subscription. It
does not refill if an arrival of the same boundary dominates that member, or if another member has the same relevances:
either dominates all that the member dominated.

So it queries the window far less often than `baselines.skyline.bnl`, which recomputes at every arrival, and more often
than engines that store the next candidates.
"""

import numpy as np

from baselines.skyline.sweep import Sweep
from compiling.njit import njit, njit_inner_no_refcount, njit_no_refcount
from matching.model import Int32, Int64
from matching.skyline.engine import SkylineOffers
from matching.skyline.engines.eager import sort_by_slot
from matching.skyline.engines.tails import prefetch_blocks
from matching.skyline.results import (
    UNDOMINATED,
    copy_entry,
    dominates,
    drop,
    has_capacity,
    place_of,
    put,
    set_due,
)

#: Offers whose blocks are prefetched together.
_AHEAD = 48


class SkylineOnly(Sweep):
    """The skyline and nothing else; see the module. A refill sorts its candidates, O(n log n)."""

    name = "skyline_only"

    def apply(self, offers: SkylineOffers, slots: Int32, seqs: Int64, floor: int) -> Int32:
        self._offer(offers)
        order = np.argsort(slots, kind="stable")
        slots, seqs = slots[order], seqs[order]
        touched = np.union1d(slots, self.candidates.due(floor)).astype(np.int32)
        ends = np.searchsorted(slots, touched, side="right")
        lost = np.zeros(touched.shape[0], np.bool_)
        _leave(self.candidates.view, touched, ends, seqs, floor, lost)
        return touched[lost]

    def _offer(self, offers: SkylineOffers) -> None:
        done, count = 0, offers.slot.shape[0]
        order = np.empty(count, np.int32)
        sort_by_slot(offers.slot, self.candidates.view.start.shape[0], order)
        sorted_slots = offers.slot[order]
        while done < count:
            done = _offer(self.candidates.view, offers, order, sorted_slots, done)
            if done < count:
                self.candidates.grow()


@njit_no_refcount
def _offer(v, offers, order, slots, first):
    """Test messages in this order, of these slots; returns the position that exhausted the pool, or the end."""
    count = order.shape[0]
    for begin in range(first, count, _AHEAD):
        end = min(begin + _AHEAD, count)
        prefetch_blocks(v, slots[begin:end])
        for k in range(begin, end):
            i = order[k]
            if not _arrive(v, slots[k], offers.seq[i], offers.life[i], offers.spatial[i], offers.text[i]):
                return k
    return count


@njit_inner_no_refcount
def _arrive(v, slot, seq, life, spatial, text):
    """Take a message into a slot's skyline unless a member dominates it; False if the pool is exhausted.

    O(members). Lives do not count: what is dropped for a member comes back by the refill when that member leaves.
    """
    if not has_capacity(v, slot):
        return False
    start, kept = v.start[slot], 0
    for at in range(start, start + v.count[slot]):
        # no member has been dropped so far: this one would have been dominated before
        if dominates(v.spatial[at], v.text[at], spatial, text):
            return True
        if dominates(spatial, text, v.spatial[at], v.text[at]):
            continue
        if at > start + kept:
            copy_entry(v, at, start + kept)
        kept += 1
    v.count[slot] = kept
    put(v, slot, seq, life, spatial, text, UNDOMINATED)
    return True


@njit(cache=True, nogil=True)
def _leave(v, slots, ends, seqs, floor, lost):
    """Remove ended and expired members; sets which skylines may lack members then.

    Parameters
    ----------
    slots, ends : int32[n], int64[n]    slots, ascending; those ended in slot i are seqs[ends[i - 1]:ends[i]]
    lost : bool[n]                      False before
    """
    done = 0
    for row in range(slots.shape[0]):
        slot, count = slots[row], 0
        most = v.count[slot]
        spatial, text = np.empty(most), np.empty(most)
        while done < ends[row]:
            # an ended message that is no member has no effect: its dominator dominates all that it did
            at = place_of(v, slot, seqs[done])
            if at >= 0:
                spatial[count], text[count] = v.spatial[at], v.text[at]
                count += 1
                drop(v, slot, at)
            done += 1
        for at in range(v.start[slot] + v.count[slot] - 1, v.start[slot] - 1, -1):
            if v.life[at] <= floor:
                spatial[count], text[count] = v.spatial[at], v.text[at]
                count += 1
                drop(v, slot, at)
        for i in range(count):
            covered = False
            # members do not dominate each other, so only a coincident one can stand in
            for at in range(v.start[slot], v.start[slot] + v.count[slot]):
                covered |= v.spatial[at] == spatial[i] and v.text[at] == text[i]
            lost[row] |= not covered
        set_due(v, slot, floor)
