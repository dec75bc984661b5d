"""Match a message by engine `ciq`: candidates from the cells around it, bounds, and exact scores.

Blocks and associations are skipped by their bounds (`papers.ciq.cell_walk`). The rest is bounded once more, at the very
place of the message and by the threshold of now: the circle of its conditional influence region. Then the message is
scored exactly and offered. Bounds are of pairs whose first common term is that of the list: subscriptions skipped there
cannot be reached, so one found first in the list of a later term may be bounded by that term.
"""

import math

import numpy as np

from compiling.njit import njit
from matching.cumulative.results import A_RESULT, POOL_FULL, offer
from matching.decay.scores import key_of, length_of, lift, relevance, text_relevance
from matching.filters import message_passes
from matching.geo.sphere import point_of
from matching.storage.point_subscriptions import ROW_WORDS, TERM_HALVES
from matching.storage.prefetch import prefetch
from papers.ciq.cell_walk import candidates_of, make_cursors, make_terms, widest_of
from papers.ciq.ciq_bounds import bound_terms, factor_of, scaled_of
from papers.ciq.ciq_history import remember
from papers.ciq.quadtree import path_to

#: Keys are logs, whose rounding grows with the age of the stream.
_SLACK, _DIGITS = 1e-9, 1e-15
_AHEAD = 8


@njit(cache=True, nogil=True)
def scan(
    c, best, filters, v, h, batch, first_row, fading, reference, most_common, depth, buckets, found,
    counters,
):  # fmt: skip
    """Match rows from `first_row` on; returns the row that overflowed the results, or the number of rows.

    Parameters
    ----------
    c, best, filters, v, h     views: subscriptions, results, filters, lists, history
    batch : MessageBatch
    reference : float        lift at which `Celled.scaled` is what is left of thresholds
    most_common : float      the largest probability of a keyword that a message lacks
    depth, buckets : int     of cells, and of each cell, with those without text and for unfilled results
    found : Candidates       scratch
    counters : int64[3]      postings read, pairs scored, pairs among the k best; added to
    """
    widest = widest_of(batch, first_row)
    path = np.empty(depth + 1, np.int64)
    cursors, in_bucket, worth = make_cursors(buckets, widest), np.zeros(buckets, np.int64), make_terms(widest)
    for row in range(first_row, batch.seq.shape[0]):
        first, last = batch.term_offsets[row], batch.term_offsets[row + 1]
        terms, counts = batch.terms[first:last], batch.counts[first:last]
        length = length_of(batch.counts, first, last)
        lifted = lift(batch.event_time_us[row], fading)
        x, y, place = batch.x[row], batch.y[row], point_of(batch, row)
        bound_terms(terms, counts, length, fading, most_common, worth)
        path_to(x, y, depth, path)
        factor = factor_of(reference, lifted)
        candidates = candidates_of(v, path, terms, worth, factor, buckets, cursors, in_bucket, found, counters)
        near = 0
        # by stages, so that what the next one reads is on its way
        for nth in range(candidates):
            if nth + _AHEAD < candidates:
                prefetch(c.x, found.slot[nth + _AHEAD] * ROW_WORDS)
            slot = found.slot[nth]
            most = relevance(c, slot, place, found.text[nth]) + _SLACK
            # without a threshold even what is worth nothing is a result
            is_near = key_of(most, lifted) + _DIGITS * abs(lifted) > c.threshold[slot]
            if is_near or c.threshold[slot] == -math.inf:
                prefetch(c.terms, c.term_start[slot] * TERM_HALVES)
                found.slot[near], found.association[near] = slot, found.association[nth]
                near += 1
        for nth in range(near):
            slot = found.slot[nth]
            counters[1] += 1
            relevant = text_relevance(c, slot, terms, counts, length, fading)
            key = key_of(relevance(c, slot, place, relevant), lifted)
            if filters.span.shape[0] and not message_passes(filters, slot, batch, row):
                continue
            said = offer(c.threshold, c.k, best, slot, batch.seq[row], key)
            if said == POOL_FULL:
                return row
            if said == A_RESULT:
                counters[2] += 1
                # what blocks go by, once they are walked again; in its other cells it stays lower than that until the
                # subscription is associated anew
                v.scaled[found.association[nth]] = scaled_of(c.threshold[slot], c.alpha[slot], reference)
        remember(h, path, terms, counts, length, lifted)
    return batch.seq.shape[0]
