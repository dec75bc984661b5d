"""Engine `sweep`: the skyline from all candidates by one sort, whenever anything may have changed.

With two relevances a skyline needs no comparison of pairs: in descending spatial relevance, a message belongs to it
exactly if its text relevance is above all that came before, and the greatest among its equals in space. The simplest
baseline: no state but the result, no assumption about lives. See `baselines.skyline.bnl`.
"""

import numpy as np

from baselines.skyline.recomputing import Recomputing
from compiling.njit import njit
from matching.skyline.window import Candidates
from matching.storage.sorting import ascending


class Sweep(Recomputing):
    """Sort and sweep; O(n log n) for n candidates."""

    name = "sweep"

    def _best(self, candidates: Candidates) -> np.ndarray:
        best = np.zeros(candidates.seq.shape[0], np.bool_)
        _sweep_rows(candidates, best)
        return best


@njit(cache=True, nogil=True)
def _sweep_rows(candidates, best):
    for row in range(candidates.offsets.shape[0] - 1):
        begin, end = candidates.offsets[row], candidates.offsets[row + 1]
        mark_undominated(candidates.spatial[begin:end], candidates.text[begin:end], best[begin:end])


@njit(cache=True, nogil=True)
def mark_undominated(spatial, text, best):
    """Set best[i] for every i that no other one dominates; it is False before. Equal pairs stay together."""
    order = ascending(-spatial)
    highest = -1.0
    i = 0
    while i < order.shape[0]:
        level, end, top = spatial[order[i]], i, -1.0
        # equals in space are taken together: of those only the highest text counts, and coincident ones all stay
        while end < order.shape[0] and spatial[order[end]] == level:
            top = max(top, text[order[end]])
            end += 1
        # strictly: with the same text something nearer came before, and dominates
        if top > highest:
            highest = top
            for j in range(i, end):
                best[order[j]] = text[order[j]] == top
        i = end
