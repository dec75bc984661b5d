"""Engine `inverted_file`: the plain inverted file without bounds, the baseline every other index is held against.

Term at a time: each posting of each of the message's terms adds its product to an accumulator, then every
subscription touched is scored. All that share a term with the message are verified.
"""

import math

import numpy as np
from numba import njit

from matching.space import Space
from matching.topk.engine import TopkEngine


class InvertedFile(TopkEngine):
    """Posting lists, accumulators, no pruning. A message costs O(postings of its terms)."""

    name = "inverted_file"

    def __init__(self, space: Space):
        super().__init__(space)
        self._text = np.zeros(0)
        self._touched = np.zeros(0, np.int32)

    def _scan(self, batch, first_row, most_hits, slot, row, score):
        if self._text.shape[0] < self.subscriptions.capacity:
            self._text = np.full(self.subscriptions.capacity, -1.0)
            self._touched = np.empty(self.subscriptions.capacity, np.int32)
        return _scan(
            self.subscriptions.columns,
            self.postings.view,
            batch,
            self.max_distance,
            first_row,
            most_hits,
            self._text,
            self._touched,
            slot,
            row,
            score,
        )


@njit(cache=True, nogil=True)
def _scan(c, v, batch, max_distance, first_row, most_hits, text, touched, out_slot, out_row, out_score):
    """`text` is -1 everywhere on entry and on return; `touched` is scratch of the same length."""
    found = 0
    scanned = 0
    verified = 0
    for r in range(first_row, batch.seq.shape[0]):
        if found >= most_hits:
            return found, r, scanned, verified
        found_before = found
        touches = 0
        for i in range(batch.term_offsets[r], batch.term_offsets[r + 1]):
            term = batch.terms[i]
            # a term above all that were ever posted has no list
            if term >= v.start.shape[0]:
                continue
            weight = np.float64(batch.weights[i])
            start, count = v.start[term], v.count[term]
            scanned += count
            for p in range(start, start + count):
                slot = v.slot[p]
                # products add up in ascending term id, as in the definition of the score
                product = np.float64(c.weights[c.term_start[slot] + v.ordinal[p]]) * weight
                # below zero is untouched; a product may be 0 and still makes the message eligible
                if text[slot] < 0.0:
                    text[slot] = 0.0 + product
                    touched[touches] = slot
                    touches += 1
                else:
                    text[slot] += product
        full = False
        for t in range(touches):
            slot = touched[t]
            dx = c.x[slot] - batch.x[r]
            dy = c.y[slot] - batch.y[r]
            alpha = c.alpha[slot]
            spatial = 1.0 - math.sqrt(dx * dx + dy * dy) / max_distance
            score = alpha * spatial + (1.0 - alpha) * _whole_text(c, slot, text[slot], batch, r)
            # reset here, while its cache line is at hand
            text[slot] = -1.0
            verified += 1
            # False for NaN: the first common term is not posted here
            if score >= c.threshold[slot] and not full:
                if found == out_slot.shape[0]:
                    full = True  # go on only to reset the accumulators
                    continue
                out_slot[found] = slot
                out_row[found] = r
                out_score[found] = score
                found += 1
        if full:
            return (found_before if r > first_row else -1), r, scanned, verified
    return found, batch.seq.shape[0], scanned, verified


@njit(cache=True, nogil=True)
def _whole_text(c, slot, text, batch, r):
    """Textual similarity of a touched pair, NaN if its first common term is not posted here.

    `text` is what the posted terms gave: all of it, unless some terms of the subscription are not posted.
    """
    first, last = c.term_start[slot], c.term_start[slot] + c.term_count[slot]
    whole = True
    for at in range(first, last):
        # -1: not posted here, so that `text` lacks its products
        whole = whole and c.position[at] >= 0
    if whole:
        return text
    total = 0.0
    common = 0
    i, end = batch.term_offsets[r], batch.term_offsets[r + 1]
    at = first
    while at < last and i < end:
        if c.terms[at] < batch.terms[i]:
            at += 1
        elif c.terms[at] > batch.terms[i]:
            i += 1
        else:
            # only who has the first common term posted reports the pair, or it would be offered twice (spec 3.4)
            if common == 0 and c.position[at] < 0:
                return np.nan
            common += 1
            total += np.float64(c.weights[at]) * np.float64(batch.weights[i])
            at += 1
            i += 1
    return total
