"""Engine `keyword_blocks` of `knn`: for each keyword blocks of subscriptions alike in place and radius.

A message matters to those of its keywords' lists in whose circle it lies: the reach of a posting is the distance of the
k-th nearest message so far, without bound while there are fewer (`matching.lasting.block_lists`).
"""

import math

import numpy as np
from numba import njit

from matching.lasting.block_lists import BLOCK, NO_LEVEL, BlockLists, Described, raise_level
from matching.lasting.block_search import candidates_of
from matching.lasting.engine import LastingEngine
from matching.lasting.results import A_RESULT, NO_ROOM, offer
from matching.model import Int32, MessageBatch
from matching.space import Space
from matching.storage.point_subscriptions import ROW_WORDS
from matching.storage.prefetch import prefetch

_AHEAD = 8
_NOTHING = np.zeros(0, np.float32)


class KeywordBlocks(LastingEngine):
    """Lists in blocks of circles. A message costs what the lists of its terms hold near it."""

    name = "keyword_blocks"

    def __init__(self, space: Space):
        super().__init__(space)
        self.lists = BlockLists(texts=False)
        self._passed, self._found = np.empty(BLOCK, np.uint8), np.empty(0, np.int32)

    def match(self, batch: MessageBatch):
        """Offer every message to whom it may reach, in order; `best.begin_batch` comes first."""
        self.lists.settle(self.subscriptions, 0.0, 1.0)
        return super().match(batch)

    def _post(self, slots: Int32) -> None:
        level = np.empty(slots.shape[0], np.float32)
        _levels(self.subscriptions.columns, slots, level)
        described = Described(level, _NOTHING, _NOTHING, np.zeros(0, np.uint32))
        self.lists.insert(self.subscriptions, slots, described)

    def _unpost(self, slots: Int32) -> None:
        self.lists.remove(self.subscriptions, slots)

    def _scan(self, batch: MessageBatch, first_row: int) -> int:
        if self._found.shape[0] < self.lists.longest:
            self._found = np.empty(self.lists.longest * 5 // 4, np.int32)
        return _scan(
            self.subscriptions.columns, self.lists.view, self.best.view, batch, first_row, self._passed, self._found,
            self.counters,
        )  # fmt: skip

    def arrays(self) -> dict[str, np.ndarray]:
        return super().arrays() | {f"lists_{name}": value for name, value in self.lists.arrays().items()}


@njit(cache=True, nogil=True)
def _level(c, slot):
    """The k-th key, which is the distance with its sign turned; rounding is covered by the slack of reaches."""
    return NO_LEVEL if c.threshold[slot] == -math.inf else np.float32(c.threshold[slot])


@njit(cache=True, nogil=True)
def _levels(c, slots, level):
    for i in range(slots.shape[0]):
        level[i] = _level(c, slots[i])


@njit(cache=True, nogil=True)
def _scan(c, v, best, batch, first_row, passed, found, counters):
    none, one = np.float32(0.0), np.float32(1.0)
    for r in range(first_row, batch.seq.shape[0]):
        x, y = batch.x[r], batch.y[r]
        for at in range(batch.term_offsets[r], batch.term_offsets[r + 1]):
            term = batch.terms[at]
            if term >= v.start.shape[0] or v.count[term] == 0:
                continue
            candidates, scanned = candidates_of(
                v, term, np.float32(x), np.float32(y), none, one, none, none, np.uint32(0), False, passed, found
            )
            counters[0] += scanned
            counters[1] += candidates
            for nth in range(candidates):
                if nth + _AHEAD < candidates:
                    prefetch(c.x, found[nth + _AHEAD] * ROW_WORDS)
                slot = found[nth]
                dx, dy = c.x[slot] - x, c.y[slot] - y
                before = c.threshold[slot]
                # who shares several keywords is offered the pair again, which changes nothing
                outcome = offer(c, best, slot, batch.seq[r], -math.sqrt(dx * dx + dy * dy))
                if outcome == NO_ROOM:
                    return r
                if outcome == A_RESULT:
                    counters[2] += 1
                    if c.threshold[slot] > before:
                        raise_level(c, v, slot, _level(c, slot))
    return batch.seq.shape[0]
