"""Engine `eager_star`: `eager` with update events, for objects that move, change their words or are deleted.

After Deng et al., "Spatial-keyword skyline publish/subscribe query processing over distributed sliding window streaming
data" (2022), whose algorithm changes the skyline at once but loses the messages that the ended one kept out. Here a
subscription that loses a buffered message is refilled, but only when that can matter: while another entry dominates the
ended message, it dominates all that the ended one kept out. Until then the subscription is `stale`: its buffer lacks
entries, but its skyline is right. Often it ends, or is refilled for another reason, before that.

Newcomers that cannot change a skyline are deferred without being compared with the buffer.
"""

from collections.abc import Callable

import numpy as np

from compiling.njit import njit, njit_inner
from matching.model import Int32, Int64
from matching.skyline.engine import Buffers, SkylineOffers
from matching.skyline.engines.eager import Eager
from matching.skyline.engines.tails import clear, defer, forget_ended, new_tails, note_members, settle_all, with_slots
from matching.skyline.results import UNDOMINATED, WAITS, dominates, drop, place_of, set_due
from matching.skyline.window import Candidates
from matching.space import Space
from matching.storage.state import State


class EagerStar(Eager):
    """Influence times and update events; see the module.

    Parameters
    ----------
    space : Space
    patient : bool    delay refills until they can matter; False, for comparison, refills at once
    """

    name = "eager_star"

    def __init__(self, space: Space, patient: bool = True):
        super().__init__(space)
        self.patient = patient
        self.stale = np.zeros(0, np.int64)
        self._lacks = np.zeros(0, np.bool_)  # by slot: needs a refill; set and read within one `apply`
        self._tails = new_tails()
        self._full = np.zeros(32, np.int32)

    def entries(self) -> int:
        self._settle(self.subscriptions.slots.live_slots())
        return super().entries()

    def bytes(self) -> int:
        return super().bytes() + self._tails.words.nbytes

    def defer(self, offers: SkylineOffers, slots: Int32, seqs: Int64) -> tuple[SkylineOffers, Int32, Int64]:
        left, done = np.empty(offers.slot.shape[0], np.int32), np.zeros(3, np.int64)
        while done[0] < offers.slot.shape[0]:
            defer(self.candidates.view, self._tails, offers, done, self._full, left)
            if done[0] < offers.slot.shape[0]:
                self.candidates.grow()
        left = left[: done[2]]
        rest = SkylineOffers(
            offers.slot[left], offers.seq[left], offers.life[left], offers.spatial[left], offers.text[left]
        )
        kept = np.empty(slots.shape[0], np.int32)
        kept = kept[: forget_ended(self.candidates.view, self._tails, slots, seqs, kept)]
        return rest, slots[kept], seqs[kept]

    def apply(self, offers: SkylineOffers, slots: Int32, seqs: Int64, floor: int) -> Int32:
        due = self.candidates.due(floor)
        touched = self.each_once(due, offers.slot, slots)
        self._settle(touched)
        run_out = due[self.stale[due] <= floor]
        self._lacks[run_out] = True
        # by slot, so that all losses of one subscription are handled together
        order = np.argsort(slots, kind="stable")
        slots, seqs = slots[order], seqs[order]
        _end(self.candidates.view, slots, seqs, floor, self.stale, self._lacks, self.patient)
        self._expire(floor)
        self.candidates.view.due[due] = np.minimum(self.candidates.view.due[due], self.stale[due])
        self._offer(offers)
        note_members(self.candidates.view, self._tails, touched, floor)
        ran = self.each_once(run_out, slots)
        refill_needed = ran[self._lacks[ran]]
        self._lacks[refill_needed] = False
        return refill_needed

    def refill(self, slots: Int32, candidates: Candidates, floor: int) -> None:
        clear(self._tails, slots)
        self.stale[slots] = WAITS
        super().refill(slots, candidates, floor)
        note_members(self.candidates.view, self._tails, slots, floor)

    def forget(self, slots: Int32) -> None:
        super().forget(slots)
        clear(self._tails, slots)
        self.stale[slots] = WAITS

    def snapshot(self, slots: Int32) -> Callable[[], Buffers]:
        self._settle(slots)
        buffers, stale = super().snapshot(slots), self.stale[slots]

        def made() -> Buffers:
            rows, entries = buffers()
            return rows | {"stale": stale}, entries

        return made

    def restore(self, slots: Int32, state: State, floor: int) -> None:
        super().restore(slots, state, floor)
        self.stale[slots] = state.rows["stale"]
        note_members(self.candidates.view, self._tails, slots, floor)

    def arrays(self) -> dict[str, np.ndarray]:
        self._settle(self.subscriptions.slots.live_slots())
        return super().arrays() | {"stale": self.stale}

    def _ensure_slots(self) -> None:
        super()._ensure_slots()
        capacity, had = self.candidates.view.start.shape[0], self.stale.shape[0]
        if had < capacity:
            stale, lacks = np.full(capacity, WAITS, np.int64), np.zeros(capacity, np.bool_)
            stale[:had], lacks[:had] = self.stale, self._lacks
            self.stale, self._lacks = stale, lacks
        self._tails = with_slots(self._tails, capacity)

    def _settle(self, slots: Int32) -> None:
        """Empty the tails of these slots into their blocks."""
        done = 0
        while done < slots.shape[0]:
            done = settle_all(self.candidates.view, self._tails, slots, done)
            if done < slots.shape[0]:
                self.candidates.grow()


@njit(cache=True, nogil=True)
def _end(v, slots, seqs, floor, stale, lacks, patient):
    """Remove ended messages from the blocks; sets when their slots need a refill.

    Parameters
    ----------
    slots, seqs      ended pairs, sorted by slot
    stale, lacks     by slot, updated
    """
    most = slots.shape[0]
    life, spatial, text = np.empty(most, np.int64), np.empty(most), np.empty(most)
    i = 0
    while i < most:
        slot, count = slots[i], 0
        while i < most and slots[i] == slot:
            # All ended ones are removed first, so that none covers another. One that is not kept any more (its tail has
            # just been settled) does not matter: its dominator covers all it kept out.
            at = place_of(v, slot, seqs[i])
            if at >= 0:
                life[count], spatial[count], text[count] = v.life[at], v.spatial[at], v.text[at]
                count += 1
                drop(v, slot, at)
            i += 1
        # `lacks`: it is refilled anyway, since the cover of an earlier end is gone
        if count == 0 or lacks[slot]:
            continue
        # How long each is covered by an entry that stays: before that, nothing it kept out can join the skyline.
        covered = np.int64(WAITS)
        for r in range(count):
            cover = _cover(v, slot, spatial[r], text[r])
            # it kept out only messages that live no longer: nothing is lost if they are covered as long, or expired
            if cover < life[r] and life[r] > floor:
                covered = min(covered, cover)
        # no cover, or one that dies now: messages kept out may be in the skyline of this very boundary
        if covered <= floor or not patient:
            lacks[slot] = True
            continue
        stale[slot] = min(stale[slot], covered)
        # others may wait for the end of a life that was cut short
        _find_until(v, slot)
        set_due(v, slot, floor)
        v.due[slot] = min(v.due[slot], stale[slot])


@njit_inner
def _cover(v, slot, spatial, text):
    """The longest life of an entry at least as good in both relevances."""
    cover = np.int64(UNDOMINATED)
    for at in range(v.start[slot], v.start[slot] + v.count[slot]):
        # equality suffices: a coincident entry dominates all that the ended one dominated
        if v.spatial[at] >= spatial and v.text[at] >= text:
            cover = max(cover, v.life[at])
    return cover


@njit_inner
def _find_until(v, slot):
    """Recompute the influence times of a block. O(entries squared)."""
    start = v.start[slot]
    end = start + v.count[slot]
    for at in range(start, end):
        until = np.int64(UNDOMINATED)
        for other in range(start, end):
            # buffered entries suffice: each dropped message has a dominator here that lives as long
            if dominates(v.spatial[other], v.text[other], v.spatial[at], v.text[at]):
                until = max(until, v.life[other])
        v.until[at] = until
