"""Engine `block_inverted_file`: posting lists cut into blocks that are skipped whole, CIQ's rule without its fading.

The baseline of the Skype paper: CIQ's block index (its BIF, since a plain block knows nothing of places) for scores
that do not fade. A block of `BLOCK` consecutive postings keeps the least threshold on text that any subscription in it
can have at distance 0, so that a message whose text cannot reach it skips the block; other blocks are prefetched whole
and verified pair by pair, with a column by term for the weights of the message. A list is in the order of registration,
as in the paper. Read on in `matching.topk.engines.skype`, which does better.
"""

import math

import numpy as np

from baselines.topk.posted import PostedEngine
from matching.geo.sphere import point_of
from matching.index import Hits
from matching.model import Int32, MessageBatch
from matching.njit import njit, njit_no_refcount
from matching.space import Space
from matching.storage.point_subscriptions import ROW_WORDS, TERM_HALVES
from matching.storage.prefetch import prefetch
from matching.topk.scores import slot_score

#: Postings of a block; the paper finds 128 to 1,024 best, by data set.
BLOCK = 128


class BlockInvertedFile(PostedEngine):
    """Posting lists with one bound a block. A message costs O(blocks of its terms + postings of those not skipped)."""

    name = "block_inverted_file"
    bounded = True

    def __init__(self, space: Space):
        super().__init__(space)
        self._block_start = np.zeros(0, np.int64)
        self._bounds = np.zeros((0, 2), np.float32)
        self._stale = True
        self._given = np.zeros(0)  # weight of a term in the message that is matched, -1 of one that it lacks

    def _post(self, slots: Int32) -> None:
        self._stale = True
        super()._post(slots)

    def _unpost(self, slots: Int32) -> None:
        self._stale = True  # the last posting of a list fills the gap, in another block
        super()._unpost(slots)

    def _apply_thresholds(self, slots: Int32) -> None:
        super()._apply_thresholds(slots)
        self._stale = True

    def match(self, batch: MessageBatch, first_row: int = 0, most_hits: int = 1 << 21) -> Hits:
        """Match rows from `first_row` on; O(postings) more when something has changed since the last time."""
        if self._stale:
            view = self.postings.view
            blocks = (view.count + BLOCK - 1) // BLOCK
            self._block_start = np.zeros(blocks.shape[0] + 1, np.int64)
            np.cumsum(blocks, out=self._block_start[1:])
            self._bounds = np.empty((int(self._block_start[-1]), 2), np.float32)
            _summarise(view, self._block_start, self._bounds)
            if self._given.shape[0] < view.start.shape[0]:
                self._given = np.full(view.start.shape[0], -1.0)
            self._stale = False
        return super().match(batch, first_row, most_hits)

    def _scan(self, batch, first_row, most_hits, slot, row, score):
        return _scan(
            self.subscriptions.columns, self.postings.view, self._block_start, self._bounds, self._given, batch,
            first_row, most_hits, slot, row, score,
        )  # fmt: skip


@njit(cache=True, nogil=True)
def _summarise(v, block_start, bounds):
    """Into bounds[block]: the largest `base`, and the largest norm of the weights from the term on, of its postings."""
    for term in range(v.start.shape[0]):
        for p in range(v.count[term]):
            place = v.start[term] + p
            block = block_start[term] + p // BLOCK
            # own and rest include 1 - alpha, base is alpha: the whole spatial part, as at distance 0
            norm = np.float32(math.sqrt(v.own[place] * v.own[place] + v.rest[place] * v.rest[place]))
            if p % BLOCK == 0:
                bounds[block, 0], bounds[block, 1] = v.base[place], norm
            else:
                # both extremes over one block, be they of different postings; without a threshold a base is infinite,
                # and its block never skipped (spec 6)
                bounds[block, 0] = max(bounds[block, 0], v.base[place])
                bounds[block, 1] = max(bounds[block, 1], norm)


# inlined: a call takes the arrays one by one, which costs more than the score
@njit_no_refcount
def _score(c, slot, term, given, place):
    """Score of a pair if `term` is its first common term, else NaN; `given` is as of the message."""
    text, earlier = 0.0, False
    for at in range(c.term_start[slot], c.term_start[slot] + c.term_count[slot]):
        weight = given[c.terms[at]]
        # no branch to be guessed wrong: what the message lacks adds nothing, to the last bit
        text += np.float64(c.weights[at]) * max(weight, 0.0)
        earlier |= (weight >= 0.0) & (c.terms[at] < term)
    score = slot_score(c, slot, place, text)
    # decided at an earlier term, so that a pair is one hit
    return np.nan if earlier else score


@njit_no_refcount
def _scan(c, v, block_start, bounds, given, batch, first_row, most_hits, slots, rows, scores):
    """`given` (float64[terms]) is found and left -1 everywhere."""
    found = 0
    scanned = 0
    verified = 0
    for r in range(first_row, batch.seq.shape[0]):
        if found >= most_hits:
            return found, r, scanned, verified
        before, full = found, False
        first, last = batch.term_offsets[r], batch.term_offsets[r + 1]
        terms, weights = batch.terms[first:last], batch.weights[first:last]
        for i in range(terms.shape[0]):
            # a term above all that were ever posted has no list
            if terms[i] < given.shape[0]:
                given[terms[i]] = weights[i]
        # from the last term back: the norm includes this term, as that of a block does
        square = 0.0
        for i in range(terms.shape[0] - 1, -1, -1):
            weight = np.float64(weights[i])
            square += weight * weight
            norm = math.sqrt(square)
            term = terms[i]
            if term >= v.start.shape[0] or full:
                continue
            start, end = v.start[term], v.start[term] + v.count[term]
            for block in range(block_start[term], block_start[term + 1]):
                # strictly below, and the base has slack: ties are never skipped (spec R4)
                if bounds[block, 0] + bounds[block, 1] * norm < 0.0:
                    continue
                a = start + (block - block_start[term]) * BLOCK
                b = min(a + BLOCK, end)
                if found + b - a > slots.shape[0]:
                    full = True
                    break
                for p in range(a, b):
                    prefetch(c.x, np.int64(v.slot[p]) * ROW_WORDS)
                for p in range(a, b):
                    prefetch(c.terms, c.term_start[v.slot[p]] * TERM_HALVES)
                scanned += b - a
                verified += b - a
                for p in range(a, b):
                    slot = v.slot[p]
                    score = _score(c, slot, term, given, point_of(batch, r))
                    # written before it is known; False for NaN: not the first common term
                    slots[found], rows[found], scores[found] = slot, r, score
                    found += score >= c.threshold[slot]
        for term in terms:
            if term < given.shape[0]:
                given[term] = -1.0
        if full:
            return before, r, scanned, verified
    return found, batch.seq.shape[0], scanned, verified
