"""Messages that are offered to results, pair by pair.

Used by `matching.topk.operator`; read on in `matching.topk.results`, which takes them.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from matching.model import Float64, Int32, Int64, concatenate

NOBODY = np.zeros(0, np.int32)


class Offers(NamedTuple):
    """Messages that reach thresholds, pair by pair: slot int32[n], seq, life int64[n], score float64[n]."""

    slot: Int32
    seq: Int64
    life: Int64
    score: Float64


def join_offers(parts: list[Offers]) -> Offers:
    """All offers of all parts, of which there may be none. O(offers)."""
    return concatenate(parts or [Offers(NOBODY, np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))])


@njit(cache=True, nogil=True)
def distinct(slots, stamp, first_stamp, this_stamp):
    """Slots once each, in order of first occurrence: those with no stamp from `first_stamp` on, and the others.

    Every slot gets `this_stamp`, so that the next call of the same batch knows it. O(n).
    """
    new, again = np.empty(slots.shape[0], np.int32), np.empty(slots.shape[0], np.int32)
    news = agains = 0
    for slot in slots:
        if stamp[slot] == this_stamp:
            continue
        # new to this batch: its result is still the one last told, and is kept for comparison
        if stamp[slot] < first_stamp:
            new[news] = slot
            news += 1
        else:
            again[agains] = slot
            agains += 1
        stamp[slot] = this_stamp
    return new[:news].copy(), again[:agains].copy()
