"""Messages that are offered to results, pair by pair."""

from typing import NamedTuple

import numpy as np

from compiling.njit import njit
from matching.model import Float64, Int32, Int64, concatenate

NO_SLOTS = np.zeros(0, np.int32)


class Offers(NamedTuple):
    """Messages that reach thresholds, pair by pair: slot int32[n], seq, life int64[n], score float64[n]."""

    slot: Int32
    seq: Int64
    life: Int64
    score: Float64


def join_offers(parts: list[Offers]) -> Offers:
    """All offers of the parts; there may be no part. O(offers)."""
    return concatenate(parts or [Offers(NO_SLOTS, np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))])


@njit(cache=True, nogil=True)
def distinct(slots, stamp, first_stamp, this_stamp):
    """Distinct slots in order of first occurrence: those with a stamp before `first_stamp`, and the others.

    Every slot gets `this_stamp`, for the next call of the same batch. O(n).
    """
    new, again = np.empty(slots.shape[0], np.int32), np.empty(slots.shape[0], np.int32)
    news = agains = 0
    for slot in slots:
        if stamp[slot] == this_stamp:
            continue
        # first hit in this batch: its result is still that of the last boundary
        if stamp[slot] < first_stamp:
            new[news] = slot
            news += 1
        else:
            again[agains] = slot
            agains += 1
        stamp[slot] = this_stamp
    return new[:news].copy(), again[:agains].copy()
