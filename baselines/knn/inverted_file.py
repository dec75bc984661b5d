"""Engine `inverted_file`: the plain inverted file, the baseline with which other indexes of the kind are compared.

For each term of the message all its subscriptions: point and radius lie in the list, column by column, so that eight
balls and more are tested at a time and a subscription is touched only where the message may lie in its ball. Radii are
followed at once.
"""

import math

import numpy as np

from compiling.njit import njit, njit_inner, njit_no_refcount
from matching.cumulative.engine import CumulativeEngine
from matching.cumulative.results import A_RESULT, POOL_FULL, RESULT_WORDS, offer
from matching.filters import message_passes
from matching.knn.engines.balls import limit_of
from matching.knn.engines.terms import ANY_NUMBER, TermLists, is_first_common, post_terms, unpost_terms
from matching.space import Space
from matching.storage.point_subscriptions import ROW_WORDS
from matching.storage.prefetch import prefetch

#: Postings whose tests lie in the nearest cache.
_BLOCK = 1024


class KnnInvertedFile(CumulativeEngine):
    """Posting lists by term. A message costs O(postings of its terms)."""

    name = "inverted_file"

    def __init__(self, space: Space):
        super().__init__(space)
        self.terms = TermLists()

    def _post(self, slots):
        c = self.subscriptions.columns
        self.terms.ensure_terms(c, slots)
        done = 0
        while (done := _post(c, self.terms.view, slots, done)) < slots.shape[0]:
            self.terms.grow(c, int(c.term_count[slots[done]]))

    def _unpost(self, slots):
        _unpost(self.subscriptions.columns, self.terms.view, slots)

    def _scan(self, batch, first_row):
        return _scan(
            self.subscriptions.columns,
            self.best.view,
            self.filters,
            self.terms.view,
            batch,
            first_row,
            self.counters,
        )

    def arrays(self):
        return super().arrays() | {f"terms_{name}": value for name, value in self.terms.arrays().items()}


@njit_no_refcount
def _post(c, v, slots, first):
    """Post slots from `first` on; returns the number of those that are all in."""
    for i in range(first, slots.shape[0]):
        if not post_terms(c, v, slots[i], ANY_NUMBER):
            return i
    return slots.shape[0]


@njit_no_refcount
def _unpost(c, v, slots):
    for slot in slots:
        unpost_terms(c, v, slot)


@njit_inner
def _test_block(x, y, limit, message_x, message_y, passed):
    """Set passed[p] to 1 where the message may lie in ball p. All float32; the loop vectorises."""
    for p in range(x.shape[0]):
        dx = x[p] - message_x
        dy = y[p] - message_y
        passed[p] = dx * dx + dy * dy <= limit[p]


@njit(cache=True, nogil=True)
def _scan(c, best, filters, v, batch, first_row, counters):
    """Match rows from `first_row` on; returns the row that exhausted the capacity, or their number."""
    passed = np.zeros(_BLOCK, np.uint8)
    words = passed.view(np.uint64)
    found = np.empty(_BLOCK, np.int32)
    for r in range(first_row, batch.seq.shape[0]):
        first, last = batch.term_offsets[r], batch.term_offsets[r + 1]
        x, y, seq = batch.x[r], batch.y[r], batch.seq[r]
        scanned = verified = matched = 0
        for i in range(last - first):
            term = batch.terms[first + i]
            # a term above all that were ever posted has no list
            if term >= v.start.shape[0]:
                continue
            start, count = v.start[term], v.count[term]
            scanned += count
            for block in range(start, start + count, _BLOCK):
                size = min(_BLOCK, start + count - block)
                end = block + size
                # zero the last word beyond the block, so that words can be tested whole
                words[(size - 1) >> 3] = 0
                _test_block(v.x[block:end], v.y[block:end], v.limit[block:end], np.float32(x), np.float32(y), passed)
                hits = 0
                for word in range((size + 7) >> 3):
                    # eight at once, as most do not pass
                    if words[word] == 0:
                        continue
                    for p in range(word << 3, min(size, (word + 1) << 3)):
                        if passed[p] != 0:
                            found[hits] = v.slot[block + p]
                            # prefetched together, so that cache misses overlap
                            prefetch(c.x, np.int64(found[hits]) * ROW_WORDS)
                            hits += 1
                for h in range(hits):
                    prefetch(c.terms, 3 * c.term_start[found[h]])
                    prefetch(best.start, np.int64(found[h]) * RESULT_WORDS)
                for h in range(hits):
                    slot = found[h]
                    if not is_first_common(c.terms, c.term_start[slot], batch.terms, first, i):
                        continue
                    verified += 1
                    dx, dy = c.x[slot] - x, c.y[slot] - y
                    key = -math.sqrt(dx * dx + dy * dy)
                    # strictly nearer: of equal distances the older stays
                    if key <= c.threshold[slot]:
                        continue
                    if filters.span.shape[0] and not message_passes(filters, slot, batch, r):
                        continue
                    said = offer(c.threshold, c.k, best, slot, seq, key)
                    if said == POOL_FULL:
                        return r
                    if said == A_RESULT:
                        matched += 1
                        _shrink(c, v, slot)
        # whole rows only: a repeated row is counted once
        counters[0] += scanned
        counters[1] += verified
        counters[2] += matched
    return batch.seq.shape[0]


@njit_inner
def _shrink(c, v, slot):
    """Tell the postings of a subscription its radius."""
    if c.threshold[slot] == -np.inf:
        return
    limit = limit_of(c.threshold[slot], False)
    for at in range(c.term_start[slot], c.term_start[slot] + c.term_count[slot]):
        v.limit[c.position[at]] = limit
