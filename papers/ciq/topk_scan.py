"""Matching of a message by engine `ciq` of `topk`: bounds of its text by keyword, candidates, exact scores.

A bound in the list of a term holds for pairs whose first common term is that term (spec 1.3 and 1.4): all further
common terms come after it in both texts, so the product of the norms after it bounds the rest of the score. If the
signatures share no later term, the product of this one term is the whole text score. A pair that a bound rules out at
its first common term is no hit; `exact_score` rejects the same pair in the list of a later term.
"""

import math

import numpy as np

from compiling.njit import njit, njit_inner
from matching.geo.sphere import point_of
from matching.storage.point_subscriptions import ROW_WORDS, TERM_HALVES
from matching.storage.prefetch import prefetch
from matching.storage.term_lists import bit_of
from matching.topk.scores import exact_score, slot_score
from papers.ciq.cell_bounds import is_spatial
from papers.ciq.cell_walk import candidates_of, make_cursors, make_terms, widest_of
from papers.ciq.quadtree import path_to
from papers.ciq.topk_history import remember

#: A bound is above by this much and this fraction: `Celled` has its norms in float32.
_WIDER, _SLACK = 1.0 + 1e-6, 1e-6
_AHEAD = 8


@njit(cache=True, nogil=True)
def describe(c, slots):
    """Thresholds of slots as `papers.ciq.cell_bounds` counts them, float64[n], and `Celled.alone`, float32[n]."""
    scaled, alone = np.empty(slots.shape[0]), np.zeros(slots.shape[0], np.float32)
    for i in range(slots.shape[0]):
        slot = slots[i]
        alpha = c.alpha[slot]
        scaled[i] = c.threshold[slot] if is_spatial(alpha) else c.threshold[slot] / (1.0 - alpha)
        for at in range(c.term_start[slot], c.term_start[slot] + c.term_count[slot]):
            alone[i] = max(alone[i], c.weights[at])
    return scaled, alone


@njit(cache=True, nogil=True)
def raise_thresholds(v, slots, scaled):
    """Let thresholds that have risen be known to all associations; blocks learn it as they are walked."""
    for i in range(slots.shape[0]):
        association = v.head[slots[i]]
        while association >= 0:
            v.scaled[association] = scaled[i]
            association = v.next[association]


@njit_inner
def _bound_terms(terms, weights, worth):
    """What the terms of a message are worth, if they are the first that are shared."""
    square = 0.0
    behind = np.uint32(0)
    for i in range(terms.shape[0] - 1, -1, -1):
        weight = np.float64(weights[i])
        square += weight * weight
        worth.own[i] = weight * _WIDER + _SLACK
        worth.text[i] = worth.whole[i] = math.sqrt(square) * _WIDER + _SLACK
        worth.others[i] = behind
        behind = np.uint32(behind | bit_of(terms[i]))


@njit(cache=True, nogil=True)
def scan(
    c, v, h, batch, depth, buckets, found, first_row, most_hits, slots, rows, scores
):  # fmt: skip
    """Match rows from `first_row` on; (hits, next row, postings read, pairs scored).

    Parameters
    ----------
    c, v, h : views           subscriptions, lists, history
    depth, buckets : int      of cells; of a cell, including those without text weight and of unfilled results
    found : Candidates        scratch
    slots, rows, scores       written, as `matching.topk.engine.Hits`
    """
    widest = widest_of(batch, first_row)
    path = np.empty(depth + 1, np.int64)
    cursors, in_bucket = make_cursors(buckets, widest), np.zeros(buckets, np.int64)
    worth = make_terms(widest)
    scanned = np.zeros(1, np.int64)
    hits = 0
    verified = 0
    for row in range(first_row, batch.seq.shape[0]):
        if hits >= most_hits:
            return hits, row, scanned[0], verified
        before = hits
        first, last = batch.term_offsets[row], batch.term_offsets[row + 1]
        terms, weights = batch.terms[first:last], batch.weights[first:last]
        x, y, place = batch.x[row], batch.y[row], point_of(batch, row)
        _bound_terms(terms, weights, worth)
        path_to(x, y, depth, path)
        candidates = candidates_of(v, path, terms, worth, 1.0, buckets, cursors, in_bucket, found, scanned)
        near = 0
        # by stages, so that what the next one reads is on its way
        for nth in range(candidates):
            if nth + _AHEAD < candidates:
                prefetch(c.x, found.slot[nth + _AHEAD] * ROW_WORDS)
            slot = found.slot[nth]
            # at this very place: the circle of its conditional influence region
            most = slot_score(c, slot, place, found.text[nth])
            if most + 1e-9 >= c.threshold[slot]:
                prefetch(c.terms, c.term_start[slot] * TERM_HALVES)
                found.slot[near], found.term[near] = slot, found.term[nth]
                near += 1
        verified += near
        for nth in range(near):
            slot = found.slot[nth]
            score = exact_score(c, slot, terms[found.term[nth]], place, terms, weights)
            if score >= c.threshold[slot]:  # False for NaN: not the first common term
                if hits == slots.shape[0]:
                    return before, row, scanned[0], verified
                slots[hits], rows[hits], scores[hits] = slot, row, score
                hits += 1
        remember(h, path, terms, weights)
    return hits, batch.seq.shape[0], scanned[0], verified
