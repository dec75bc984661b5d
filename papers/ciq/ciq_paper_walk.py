"""Match a message as the CIQ paper prints it: algorithm 1, lemma 3 and FindNext, with a text relevance a posting.

In each bucket of each cell around the message the lists of its terms are walked side by side in order of number. When
the cursor that is behind all others stands at the first posting of a block, lemma 3 is tested: no text that a
subscription of the block may share with the message is worth what the easiest of them needs. Otherwise each of its
postings costs a text relevance, and is scored if that is more than its minimum conditional text score (lemma 1).
Definition 7 counts the latter alone as evaluations; the figures of the paper have the time of both. The inverted file
of section VII-A is walked likewise, without either test: each posting is scored.

What is printed has three faults, and is mended here as little as possible (spec 6): the maximum of lemma 3 is that of
the terms whose cursors may still meet a subscription of the block, since their product is no bound; a block that is not
skipped is read, where the printed cursor stays; and all cursors on one subscription advance, or it would be evaluated
and get the message twice.
"""

import math

import numpy as np

from compiling.njit import njit, njit_inner_no_refcount
from matching.cumulative.results import A_RESULT, POOL_FULL, offer
from matching.decay.scores import background_of, key_of, length_of, lift, probability, relevance, text_relevance
from matching.filters import message_passes
from matching.geo.sphere import point_of
from papers.ciq.cell_walk import make_cursors, needed_text, take_out, widest_of
from papers.ciq.celled_lists import NONE, find_lists, key_of_list
from papers.ciq.ciq_bounds import factor_of, scaled_of
from papers.ciq.ciq_history import remember
from papers.ciq.quadtree import path_to

_END = 2**31 - 1
#: Bounds are above by this share: a product is rounded, and what is read of a block is in float32.
_WIDER = 1.0 + 1e-6


@njit(cache=True, nogil=True)
def scan(c, best, filters, v, h, batch, first_row, fading, reference, bounded, depth, buckets, found, counters, walked):
    """Match rows from `first_row` on; parameters and return as of `papers.ciq.ciq_scan.scan`, and others.

    bounded : bool      whether lemmas 1 and 3 are tested
    found               takes the slots, associations and text relevances of a message that pass lemma 1
    counters            postings that are read, text relevances, pairs among the k best
    walked : int64[3]   pairs that pass lemma 1, blocks skipped, blocks read; added to
    """
    widest = widest_of(batch, first_row)
    path, worth = np.empty(depth + 1, np.int64), np.empty(widest)
    cursors, in_bucket = make_cursors(buckets, widest), np.zeros(buckets, np.int64)
    for row in range(first_row, batch.seq.shape[0]):
        first, last = batch.term_offsets[row], batch.term_offsets[row + 1]
        terms, counts = batch.terms[first:last], batch.counts[first:last]
        length = length_of(batch.counts, first, last)
        lifted = lift(batch.event_time_us[row], fading)
        for i in range(terms.shape[0]):
            worth[i] = probability(counts[i], length, background_of(fading, terms[i]), fading.smoothing) * _WIDER
        path_to(batch.x[row], batch.y[row], depth, path)
        factor, place = factor_of(reference, lifted), point_of(batch, row)
        text_of = (terms, counts, length, fading)
        passed = _evaluated(
            c, v, path, worth, factor, bounded, buckets, cursors, in_bucket, text_of, found, counters, walked
        )  # fmt: skip
        walked[0] += passed
        for nth in range(passed):
            slot = found.slot[nth]
            key = key_of(relevance(c, slot, place, found.text[nth]), lifted)
            if filters.span.shape[0] and not message_passes(filters, slot, batch, row):
                continue
            said = offer(c.threshold, c.k, best, slot, batch.seq[row], key)
            if said == POOL_FULL:
                return row
            if said == A_RESULT:
                counters[2] += 1
                v.scaled[found.association[nth]] = scaled_of(c.threshold[slot], c.alpha[slot], reference)
        remember(h, path, terms, counts, length, lifted)
    return batch.seq.shape[0]


@njit_inner_no_refcount
def _evaluated(c, v, path, worth, factor, bounded, buckets, cursors, in_bucket, text_of, found, counters, walked):
    """Find the subscriptions that lemmas 3 and 1 cannot skip for a message; returns their number."""
    terms = text_of[0]
    widest = cursors.term.shape[0] // buckets
    count = 0
    for cell in path:
        if not v.occupied[cell]:
            continue
        for i in range(terms.shape[0]):
            at = find_lists(v, key_of_list(cell, terms[i]))
            while at >= 0:
                bucket = v.bucket[at]
                place = bucket * widest + in_bucket[bucket]
                cursors.at_list[place], cursors.term[place] = at, i
                in_bucket[bucket] += 1
                at = v.next_list[at]
        for bucket in range(buckets):
            first, last = bucket * widest, bucket * widest + in_bucket[bucket]
            in_bucket[bucket] = 0
            # of those whose text counts not, the place alone is in the bound
            text = 0.0 if bucket == buckets - 2 else 1.0
            if last > first:
                count = _walk(
                    c, v, worth, text, factor, bounded, cursors, first, last, text_of, found, count, counters, walked
                )  # fmt: skip
    return count


@njit_inner_no_refcount
def _walk(c, v, worth, text, factor, bounded, cursors, first, last, text_of, found, count, counters, walked):
    """Walk the lists of one bucket side by side."""
    terms, counts, length, fading = text_of
    standing, at, stop, keep = cursors.standing, cursors.at, cursors.stop, cursors.keep
    for i in range(first, last):
        cursors.before[i] = NONE
        _enter_block(v, cursors, i, v.first[cursors.at_list[i]])
    while True:
        least = _END
        for i in range(first, last):
            least = min(least, standing[i])
        if least == _END:
            return count
        stays = False
        for i in range(first, last):
            if standing[i] != least:
                continue
            # at the first posting of a block, before which nothing of it has been read
            at_block = at[i] == v.start[cursors.block[i]]
            if at_block and bounded and _is_skipped(v, worth, text, factor, cursors, first, last, i):
                cursors.before[i] = cursors.block[i]
                _enter_block(v, cursors, i, v.after[cursors.block[i]])
                walked[1] += 1
            else:
                stays = True
                walked[2] += at_block
        if not stays:
            continue
        slot = v.slot[least]
        if slot >= 0:
            counters[1] += 1
            relevant = text_relevance(c, slot, terms, counts, length, fading)
            if not bounded or needed_text(v.scaled[least], v.reach[least], factor) < text * relevant * _WIDER:
                found.slot[count], found.association[count], found.text[count] = slot, least, relevant
                count += 1
        for i in range(first, last):
            if standing[i] != least:
                continue
            counters[0] += 1
            if slot >= 0:
                cursors.low[i] = min(cursors.low[i], v.scaled[least])
                cursors.high[i] = max(cursors.high[i], v.reach[least])
                v.seq[keep[i]] = least
                keep[i] += 1
            at[i] += 1
            if at[i] < stop[i]:
                standing[i] = v.seq[at[i]]
            else:
                _leave_block(v, cursors, i)


@njit_inner_no_refcount
def _is_skipped(v, worth, text, factor, cursors, first, last, i):
    """Lemma 3: whether no subscription in the block of cursor `i`, at its first posting, can take the message."""
    block = cursors.block[i]
    largest_number, most = v.seq[cursors.stop[i] - 1], 0.0
    for other in range(first, last):
        if cursors.standing[other] <= largest_number:
            most = max(most, worth[cursors.term[other]])
    return needed_text(v.low[block], v.high[block], factor) >= text * most


@njit_inner_no_refcount
def _enter_block(v, cursors, i, block):
    """Put a cursor on the first posting of a block, or at the end of its list."""
    cursors.block[i] = block
    if block < 0:
        cursors.standing[i] = _END
        return
    cursors.at[i] = cursors.keep[i] = v.start[block]
    cursors.stop[i] = v.start[block] + v.count[block]
    cursors.standing[i] = v.seq[cursors.at[i]]
    cursors.low[i], cursors.high[i] = math.inf, -math.inf


@njit_inner_no_refcount
def _leave_block(v, cursors, i):
    """Advance to the next block; the one that was read loses dropped postings and gets its current extremes."""
    block = cursors.block[i]
    follows = v.after[block]
    v.count[block] = cursors.keep[i] - v.start[block]
    v.low[block], v.high[block] = cursors.low[i], cursors.high[i]
    if v.count[block] == 0:
        take_out(v, cursors.at_list[i], cursors.before[i], block)
    else:
        cursors.before[i] = block
    _enter_block(v, cursors, i, follows)
