"""Engine `lazy`: delay every comparison that the present skyline does not need.

After the lazy method of Tao and Papadias (see `matching.skyline.engines.eager`). The engine compares an arrival with
the skyline only. An arrival that a member dominates becomes a *waiting entry*. When a member expires, the engine
compares all waiting entries of that subscription with each other and with the skyline. `lazy` makes fewer comparisons
an arrival than `eager`, stores more entries, and sorts them at every expiry of a member.

When a message ends early (deleted or replaced), every subscription that has it as an entry is refilled. That includes
waiting entries: one may have been a member before, and may have caused others to be dropped.
"""

import numpy as np

from baselines.skyline.sweep import mark_undominated
from compiling.njit import njit, njit_inner, njit_inner_no_refcount, njit_no_refcount
from matching.model import Int32, Int64
from matching.skyline.engine import SkylineOffers
from matching.skyline.engines.eager import Eager
from matching.skyline.results import (
    UNDOMINATED,
    WAITS,
    block_size,
    copy_entry,
    dominates,
    drop_dead,
    has_capacity,
    put,
    remove_members,
    set_due,
)
from matching.skyline.window import Candidates


class Lazy(Eager):
    """Members of the skyline and waiting entries, in the blocks of `Eager`; see the module and `SkylineEngine`."""

    name = "lazy"

    def apply(self, offers: SkylineOffers, slots: Int32, seqs: Int64, floor: int) -> Int32:
        lost = np.empty(slots.shape[0], np.int32)
        count = remove_members(self.candidates.view, slots, seqs, lost)
        _expire(self.candidates.view, self.candidates.due(floor), floor)
        done = 0
        while done < offers.slot.shape[0]:
            done = _offer(self.candidates.view, offers, floor, done)
            if done < offers.slot.shape[0]:
                self.candidates.grow()
        return np.unique(lost[:count])

    def refill(self, slots: Int32, candidates: Candidates, floor: int) -> None:
        self.candidates.clear(slots)
        done = 0
        while done < slots.shape[0]:
            done = _load(self.candidates.view, slots, candidates, floor, done)
            if done < slots.shape[0]:
                self.candidates.grow()


@njit(cache=True, nogil=True)
def _expire(v, slots, floor):
    """Drop expired entries, and find the new members of each skyline that lost one."""
    for slot in slots:
        # an expired waiting entry needs no check: what it dominates, a member dominates too
        if drop_dead(v, slot, floor):
            start, count = v.start[slot], v.count[slot]
            best = np.zeros(count, np.bool_)
            mark_undominated(v.spatial[start : start + count], v.text[start : start + count], best)
            for i in range(count):
                v.until[start + i] = UNDOMINATED if best[i] else WAITS
            _drop_useless(v, slot)
        set_due(v, slot, floor)


@njit_inner
def _drop_useless(v, slot):
    """Drop waiting entries that a member dominates for all their life: they can never become members."""
    start, kept = v.start[slot], 0
    end = start + v.count[slot]
    for at in range(start, end):
        useless = False
        if v.until[at] == WAITS:
            # entries are in the order of seq, and a later member is likelier to outlive this entry
            # an earlier one may outlive it too (if it came late): not checked, since a spare entry does no harm
            for other in range(end - 1, at, -1):
                if (
                    v.until[other] == UNDOMINATED
                    and v.life[other] >= v.life[at]
                    and dominates(v.spatial[other], v.text[other], v.spatial[at], v.text[at])
                ):
                    useless = True
                    break
        if useless:
            continue
        # copies go to places before `at` only, so later iterations still read entries at their old places
        copy_entry(v, at, start + kept)
        kept += 1
    v.count[slot] = kept


@njit_no_refcount
def _offer(v, offers, floor, first):
    """Offer messages from index `first` on; returns the index of the one that exhausted the pool, else their count."""
    for i in range(first, offers.slot.shape[0]):
        slot = offers.slot[i]
        if not _arrive(v, slot, offers.seq[i], offers.life[i], offers.spatial[i], offers.text[i], floor):
            return i
    return offers.slot.shape[0]


@njit_inner_no_refcount
def _arrive(v, slot, seq, life, spatial, text, floor):
    """Compare a message with the skyline of a slot; False if the pool is exhausted."""
    if v.start[slot] >= 0 and v.count[slot] == block_size(v.size_class[slot]):
        drop_dead(v, slot, floor)  # `_expire` has dropped dead members, so that only waiting entries can be dead
        _drop_useless(v, slot)
    if not has_capacity(v, slot):
        return False
    start, kept = v.start[slot], 0
    until = np.int64(UNDOMINATED)
    # waiting entries are not compared: if the arrival dominates one, the next expiry of a member drops it
    for at in range(start, start + v.count[slot]):
        if v.until[at] == UNDOMINATED:
            if dominates(v.spatial[at], v.text[at], spatial, text):
                # the member outlives the arrival, which can never become a member
                if v.life[at] >= life:
                    return True
                until = WAITS
            elif dominates(spatial, text, v.spatial[at], v.text[at]):
                if life >= v.life[at]:
                    continue
                # a late message expires before the member that it dominates, which becomes a member again then
                v.until[at] = WAITS
        if at > start + kept:
            copy_entry(v, at, start + kept)
        kept += 1
    v.count[slot] = kept
    put(v, slot, seq, life, spatial, text, until)
    return True


@njit(cache=True, nogil=True)
def _load(v, slots, candidates, floor, first):
    """Fill empty blocks with candidates, from row `first` on; returns the row that exhausted the pool, else n."""
    for row in range(first, slots.shape[0]):
        slot, begin, end = slots[row], candidates.offsets[row], candidates.offsets[row + 1]
        best = np.zeros(end - begin, np.bool_)
        mark_undominated(candidates.spatial[begin:end], candidates.text[begin:end], best)
        # members first, else a dominated candidate would enter as a member until its dominator comes
        for members in (True, False):
            for at in range(begin, end):
                if best[at - begin] == members and not _arrive(
                    v, slot, candidates.seq[at], candidates.life[at], candidates.spatial[at], candidates.text[at], floor
                ):
                    v.count[slot] = 0  # the caller repeats this row from its first candidate
                    return row
    return slots.shape[0]
