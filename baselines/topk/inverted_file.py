"""Engine `inverted_file`: the plain inverted file without bounds on texts, the baseline for all others.

Term at a time: each posting of each of the message's terms adds its product to an accumulator, then every subscription
touched is scored. It is a strong baseline: the weight is in the posting, accumulators and the other inputs of a score
are float32 columns of 4 and 16 bytes a subscription, and both loops prefetch. Scores in float32, with a margin for
rounding, only rule out; the remaining pairs are scored exactly.
"""

import math

import numpy as np

from baselines.topk.posted import PostedEngine
from compiling.njit import njit, njit_inner, njit_no_refcount
from matching.geo.sphere import point_of
from matching.space import Space
from matching.storage.prefetch import prefetch
from matching.storage.slots import resized
from matching.topk.scores import SLACK, slot_score

#: Postings that are prefetched ahead. To deal products out to parts of the slots first, so that both columns
#: are read from the nearest caches, took as long at a million subscriptions and half as long again at 200,000.
_AHEAD = 24
#: What float32 may lose for each product that is added.
_ROUNDING = 1.2e-7
_X, _Y, _ALPHA, _BASE = range(4)


class TopkInvertedFile(PostedEngine):
    """Posting lists, accumulators, no pruning. A message costs O(postings of its terms)."""

    name = "inverted_file"

    def __init__(self, space: Space):
        super().__init__(space)
        self._text = np.zeros(0, np.float32)
        self._row = np.zeros((0, 4), np.float32)
        self._touched = np.zeros(0, np.int32)

    def _post(self, slots):
        super()._post(slots)
        capacity = self.subscriptions.capacity
        if self._text.shape[0] < capacity:
            self._text = np.full(capacity, -1.0, np.float32)
            # one more: a slot is written before it is known to be new
            self._touched = np.empty(capacity + 1, np.int32)
            self._row = resized(self._row, capacity)
        _describe(self.subscriptions.columns, slots, self._row)

    def _apply_thresholds(self, slots):
        super()._apply_thresholds(slots)
        _describe(self.subscriptions.columns, slots, self._row)

    def _scan(self, batch, first_row, most_hits, slot, row, score):
        return _scan(
            self.subscriptions.columns, self.postings.view, self._row, batch, self.max_distance, first_row, most_hits,
            self._text, self._touched, slot, row, score,
        )  # fmt: skip

    def arrays(self):
        """As `PostedEngine.arrays`, with accumulators."""
        return super().arrays() | {"text": self._text, "row": self._row, "touched": self._touched}


@njit(cache=True, nogil=True)
def _describe(c, slots, row):
    """Write the inputs of a score besides the text: point, alpha, and alpha less the threshold, with a margin."""
    for slot in slots:
        missing = 0.0
        for at in range(c.term_start[slot], c.term_start[slot] + c.term_count[slot]):
            if c.position[at] < 0:
                missing += np.float64(c.weights[at]) * np.float64(c.weights[at])
        # keywords that are not posted here may add this much (Cauchy-Schwarz; the text of a message is a unit vector)
        more = (1.0 - c.alpha[slot]) * math.sqrt(missing) + SLACK + _ROUNDING * c.term_count[slot]
        row[slot, _X], row[slot, _Y], row[slot, _ALPHA] = c.x[slot], c.y[slot], c.alpha[slot]
        # infinite without a threshold: everybody passes (spec R2)
        row[slot, _BASE] = c.alpha[slot] - c.threshold[slot] + more


@njit_inner
def _add_up(v, start, count, weight, text, touched, touches):
    """Add the products of a list to the accumulators; returns how many subscriptions are touched now."""
    for p in range(start, start + count):
        # beyond the end of the list lies another one, or nothing: asking does no harm, reading would
        prefetch(text, v.slot[min(p + _AHEAD, start + count - 1)])
        slot = v.slot[p]
        before = text[slot]
        # below zero is untouched; written before it is known, so that there is no branch to be guessed wrong
        touched[touches] = slot
        touches += before < np.float32(0.0)
        text[slot] = max(before, np.float32(0.0)) + v.own[p] * weight
    return touches


@njit_inner
def _rule_out(row, touched, touches, x, y, per_distance, text):
    """Leave of the touched those whose score may reach their threshold, in front; returns how many.

    Accumulators are given back as they were found.
    """
    kept = 0
    for t in range(touches):
        ahead = touched[min(t + _AHEAD, touches - 1)]
        prefetch(row, 4 * np.int64(ahead))
        slot = touched[t]
        alpha = row[slot, _ALPHA]
        slack = row[slot, _BASE] + (np.float32(1.0) - alpha) * text[slot]
        text[slot] = np.float32(-1.0)
        dx, dy, steepness = row[slot, _X] - x, row[slot, _Y] - y, alpha * per_distance
        touched[kept] = slot
        # slack >= alpha / MaxDist * distance, without the root; the sign by itself, since squaring loses it
        kept += (slack >= np.float32(0.0)) & (slack * slack >= steepness * steepness * (dx * dx + dy * dy))
    return kept


@njit_no_refcount
def _scan(c, v, row, batch, max_distance, first_row, most_hits, text, touched, out_slot, out_row, out_score):
    """`text` is -1 everywhere on entry and on return; `touched` is scratch, longer by one."""
    found = 0
    scanned = 0
    verified = 0
    per_distance = np.float32(1.0 / max_distance)
    for r in range(first_row, batch.seq.shape[0]):
        if found >= most_hits:
            return found, r, scanned, verified
        found_before, place = found, point_of(batch, r)
        touches = 0
        for i in range(batch.term_offsets[r], batch.term_offsets[r + 1]):
            term = batch.terms[i]
            # a term above all that were ever posted has no list
            if term < v.start.shape[0]:
                scanned += v.count[term]
                touches = _add_up(v, v.start[term], v.count[term], batch.weights[i], text, touched, touches)
        verified += touches
        touches = _rule_out(row, touched, touches, np.float32(batch.x[r]), np.float32(batch.y[r]), per_distance, text)
        for t in range(touches):
            slot = touched[t]
            whole = slot_score(c, slot, place, _whole_text(c, slot, batch, r))
            # False for NaN: the first common term is not posted here
            if whole >= c.threshold[slot]:
                if found == out_slot.shape[0]:
                    return found_before, r, scanned, verified
                out_slot[found] = slot
                out_row[found] = r
                out_score[found] = whole
                found += 1
    return found, batch.seq.shape[0], scanned, verified


@njit_inner
def _whole_text(c, slot, batch, r):
    """Textual similarity of a touched pair, NaN if its first common term is not posted here."""
    at, last = c.term_start[slot], c.term_start[slot] + c.term_count[slot]
    i, end = batch.term_offsets[r], batch.term_offsets[r + 1]
    total = 0.0
    common = 0
    while at < last and i < end:
        if c.terms[at] < batch.terms[i]:
            at += 1
        elif c.terms[at] > batch.terms[i]:
            i += 1
        else:
            # only the posting of the first common term reports the pair, or it would be offered twice (spec 3.4)
            if common == 0 and c.position[at] < 0:
                return np.nan
            common += 1
            # products add up in ascending term id, as in the definition of the score
            total += np.float64(c.weights[at]) * np.float64(batch.weights[i])
            at += 1
            i += 1
    return total
