"""Engine `lazy`: delay every comparison that the present skyline does not need.

After the lazy method of Tao and Papadias (see `matching.skyline.engines.eager`). An arrival is compared with the
skyline only. If a member dominates it, it waits until a member of the skyline expires; then all waiting entries are
compared with each other and with the skyline. Fewer comparisons an arrival than `eager`, more entries, and every expiry
of a member costs a sort.

If a member is ended early, its subscription is refilled. So it is for a waiting entry, which may have been a member and
had others dropped.
"""

import numpy as np

from baselines.skyline.sweep import mark_undominated
from matching.model import Int32, Int64
from matching.njit import njit, njit_no_refcount
from matching.skyline.engine import Offers
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
    """The skyline, and what waits; see the module."""

    name = "lazy"

    def apply(self, offers: Offers, slots: Int32, seqs: Int64, floor: int) -> Int32:
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
        # a waiting entry kept nothing out: a member dominates all that it dominates
        if drop_dead(v, slot, floor):
            start, count = v.start[slot], v.count[slot]
            best = np.zeros(count, np.bool_)
            mark_undominated(v.spatial[start : start + count], v.text[start : start + count], best)
            for i in range(count):
                v.until[start + i] = UNDOMINATED if best[i] else WAITS
            _drop_useless(v, slot)
        set_due(v, slot, floor)


@njit(cache=True, nogil=True)
def _drop_useless(v, slot):
    """Drop what waits for a member of the skyline that lives as long."""
    start, kept = v.start[slot], 0
    end = start + v.count[slot]
    for at in range(start, end):
        useless = False
        if v.until[at] == WAITS:
            # in the order of seq, the skyline's later members are the likelier ones to live as long
            # an earlier one may live as long (if it came late); not checked, since spare entries do no harm
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
        # entries behind `at` are read at their old places, and copies only go to places before it
        copy_entry(v, at, start + kept)
        kept += 1
    v.count[slot] = kept


@njit_no_refcount
def _offer(v, offers, floor, first):
    """Offer messages from `first` on; returns the one that exhausted the pool, or their number."""
    for i in range(first, offers.slot.shape[0]):
        slot = offers.slot[i]
        if not _arrive(v, slot, offers.seq[i], offers.life[i], offers.spatial[i], offers.text[i], floor):
            return i
    return offers.slot.shape[0]


@njit_no_refcount
def _arrive(v, slot, seq, life, spatial, text, floor):
    """Compare a message with the skyline of a slot; False if the pool is exhausted."""
    if v.start[slot] >= 0 and v.count[slot] == block_size(v.size_class[slot]):
        drop_dead(v, slot, floor)  # only waiting entries can be dead, and were not checked yet
        _drop_useless(v, slot)
    if not has_capacity(v, slot):
        return False
    start, kept = v.start[slot], 0
    until = np.int64(UNDOMINATED)
    # what waits is not compared: the newcomer may have made it useless, which is found out when a member expires
    for at in range(start, start + v.count[slot]):
        if v.until[at] == UNDOMINATED:
            if dominates(v.spatial[at], v.text[at], spatial, text):
                # covered for all its life: it can never be a member
                if v.life[at] >= life:
                    return True
                until = WAITS
            elif dominates(spatial, text, v.spatial[at], v.text[at]):
                if life >= v.life[at]:
                    continue
                # a late message: it dies before what it dominates, which comes back then
                v.until[at] = WAITS
        if at > start + kept:
            copy_entry(v, at, start + kept)
        kept += 1
    v.count[slot] = kept
    put(v, slot, seq, life, spatial, text, until)
    return True


@njit(cache=True, nogil=True)
def _load(v, slots, candidates, floor, first):
    """Fill empty blocks with candidates, from row `first` on; returns the row that exhausted the pool, or all."""
    for row in range(first, slots.shape[0]):
        slot, begin, end = slots[row], candidates.offsets[row], candidates.offsets[row + 1]
        best = np.zeros(end - begin, np.bool_)
        mark_undominated(candidates.spatial[begin:end], candidates.text[begin:end], best)
        # the skyline first, so that nothing is taken for a member that is none
        for members in (True, False):
            for at in range(begin, end):
                if best[at - begin] == members and not _arrive(
                    v, slot, candidates.seq[at], candidates.life[at], candidates.spatial[at], candidates.text[at], floor
                ):
                    v.count[slot] = 0  # or the next try would enter the first ones twice
                    return row
    return slots.shape[0]
