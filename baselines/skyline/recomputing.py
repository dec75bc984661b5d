"""Base of `baselines.skyline.bnl` and `baselines.skyline.sweep`: stores only the skyline and recomputes it."""

from abc import abstractmethod

import numpy as np

from compiling.njit import njit_no_refcount
from matching.model import Int32, Int64
from matching.skyline.engine import SkylineEngine, SkylineOffers
from matching.skyline.results import UNDOMINATED, has_capacity, put
from matching.skyline.window import Candidates


class Recomputing(SkylineEngine):
    """Stores only the skyline; any arrival, end or expiry makes a refill recompute it from all candidates.

    A boundary refills only subscriptions that had one of these, since the others' skylines cannot have changed.
    """

    def apply(self, offers: SkylineOffers, slots: Int32, seqs: Int64, floor: int) -> Int32:
        return np.unique(np.concatenate([offers.slot, slots, self.candidates.due(floor)])).astype(np.int32)

    def refill(self, slots: Int32, candidates: Candidates, floor: int) -> None:
        self.candidates.clear(slots)
        best = self._best(candidates)
        done = 0
        while done < slots.shape[0]:
            done = _keep_best(self.candidates.view, slots, candidates, best, done)
            if done < slots.shape[0]:
                self.candidates.grow()

    @abstractmethod
    def _best(self, candidates: Candidates) -> np.ndarray:
        """bool[n]: which candidates no other one of the same query dominates."""


@njit_no_refcount
def _keep_best(v, slots, candidates, best, first):
    """Fill empty blocks from row `first` on; returns the row that exhausted the pool (its block is empty), else n."""
    for row in range(first, slots.shape[0]):
        for i in range(candidates.offsets[row], candidates.offsets[row + 1]):
            if best[i]:
                if not has_capacity(v, slots[row]):
                    v.count[slots[row]] = 0  # the caller repeats this row from its first candidate
                    return row
                put(
                    v, slots[row], candidates.seq[i], candidates.life[i], candidates.spatial[i], candidates.text[i],
                    UNDOMINATED,
                )  # fmt: skip
    return slots.shape[0]
