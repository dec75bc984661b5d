"""Messages that are offered to results, pair by pair, and those put by for results that wait for the window.

Used by `matching.topk.room`; read on in `matching.topk.results`, which takes them.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from matching.model import Float64, Int32, Int64, concatenate
from matching.topk.engine import TopkEngine
from matching.topk.results import ResultBuffers, ResultRows
from matching.topk.thresholds_base import ThresholdRule

NOBODY = np.zeros(0, np.int32)


class Offers(NamedTuple):
    """Messages that reach thresholds, pair by pair: slot int32[n], seq, life int64[n], score float64[n]."""

    slot: Int32
    seq: Int64
    life: Int64
    score: Float64


def no_results(rows: int) -> ResultRows:
    """So many empty results."""
    return ResultRows(np.zeros(rows + 1, np.int64), np.zeros(0, np.int64), np.zeros(0))


def join_offers(parts: list[Offers]) -> Offers:
    """All offers of all parts, of which there may be none. O(offers)."""
    return concatenate(parts or [Offers(NOBODY, np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))])


class PutBy:
    """What a large batch has for subscriptions that wait: no more of it than can be among their best behind it.

    Whoever waits has no threshold, so every message with a word of it is a hit: with many who wait, more than memory
    holds. Of the messages of one batch those do that few of the same batch dominate, as in the buffers; and once a
    subscription has enough of them, the worst of the best `rank` is a threshold for the rest of the batch and for the
    batches to come (`News.floors`): so many of the window score as high, and should they ever be too few, it asks again
    like any other that runs short. Dominance is that of the k-skyband (Wang et al., Skype, section 6); that thresholds
    hold while they wait is our own.

    Parameters
    ----------
    seq_is_life : bool      as of `ResultBuffers`
    capacity : int          slots are below it
    """

    def __init__(self, seq_is_life: bool, capacity: int):
        self._buffers = ResultBuffers(seq_is_life)
        self._buffers.ensure_slots(capacity)

    def take(self, hits: Offers, engine: TopkEngine, rule: ThresholdRule) -> None:
        """Put hits by, and raise the thresholds of whom they are enough for, in the engine.

        Hits must live at the end of the batch and be of slots that wait. O(entries of a buffer) a hit, and a pass over
        the slots.
        """
        columns = engine.subscriptions.columns
        self._buffers.offer(*hits, rule.dominators(columns.k))
        count = self._buffers.view.count
        slots = np.flatnonzero(count).astype(np.int32)
        ranks = rule.ranks(columns.k[slots])
        long = count[slots] > ranks + ranks // 2  # half as many again: a cut passes over the entries
        slots, before = slots[long], columns.threshold[slots[long]]
        self._buffers.raise_threshold(slots, ranks[long], columns.threshold)
        slots = slots[columns.threshold[slots] > before]
        engine.set_thresholds(slots, columns.threshold[slots])

    def offers(self) -> Offers:
        """All that is put by, slot by slot. O(slots + entries)."""
        slots = np.flatnonzero(self._buffers.view.count).astype(np.int32)
        offsets, seq, life, score = self._buffers.entries(slots)
        return Offers(np.repeat(slots, np.diff(offsets)), seq, life, score)


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
