"""How CIQ finds whom a message may reach: from the root cell to the smallest that holds it, bucket by bucket.

In each bucket the lists of the message's terms are walked side by side in ascending number of association
(document-at-a-time; Chen et al., CIQ, algorithm 1), so that a subscription with several of the terms is met once. A
block is skipped whole unless a text could be relevant enough for the easiest of its subscriptions (lemma 3). What is
not skipped is looked at one by one: by its own bound in the cell, then by its place, then exactly.

The most that a text can be relevant to a subscription of a list is the probability of the list's keyword, a factor of
its product; the paper's maximum over all keywords whose lists may still hold the subscription is not less than that
(spec 6). When a cursor comes to a block that is not skipped it stands at its first posting, to be evaluated like any
other: the printed FindNext does nothing there, and goes on doing so.
"""

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from matching.decay.engines.ciq_bounds import least_text, scaled_of
from matching.decay.engines.ciq_history import remember
from matching.decay.scores import key_of, length_of, lift, probability, relevance, share_of, text_relevance
from matching.lasting.results import A_RESULT, NO_RESULT, NO_ROOM, offer
from matching.storage.celled_lists import find_lists, key_of_list
from matching.storage.quadtree import path_to

#: Above every association: where a cursor stands that has come to the end of its list.
_END = 2**31 - 1


class Cursors(NamedTuple):
    """Where the lists of one bucket are read; n cursors.

    text : float64[n]      most that a text can be relevant to whom the list holds
    block : int32[n]       -1 at the end
    at, stop : int32[n]    place of the posting, and behind the last of its block
    standing : int32[n]    the association there
    keep : int32[n]        behind the last posting of the block, of those read, that is not dropped
    low : float64[n], high : float32[n]    extremes of what has been read of the block
    """

    text: np.ndarray
    block: np.ndarray
    at: np.ndarray
    stop: np.ndarray
    standing: np.ndarray
    keep: np.ndarray
    low: np.ndarray
    high: np.ndarray


class Message(NamedTuple):
    """What of a message decides its keys; terms int32[n], counts int32[n]."""

    seq: int
    x: float
    y: float
    lifted: float
    length: int
    terms: np.ndarray
    counts: np.ndarray


@njit(cache=True, nogil=True)
def scan(c, best, v, h, batch, first_row, fading, max_distance, depth, buckets, counters):
    """Match rows from `first_row` on; the row for which results had no room, or the number of rows.

    Parameters
    ----------
    c, best, v, h     views: subscriptions, results, lists, history
    batch : MessageBatch
    depth, buckets : int     of cells, and of each cell, those for whom text counts not and for the unfilled included
    counters : int64[3]      postings looked at, pairs scored, pairs among the k best; added to

    Notes
    -----
    Blocks that are walked to their end learn their extremes anew.
    """
    widest = 1
    for row in range(first_row, batch.seq.shape[0]):
        widest = max(widest, batch.term_offsets[row + 1] - batch.term_offsets[row])
    path = np.empty(depth + 1, np.int64)
    lists, texts = np.empty((buckets, widest), np.int32), np.empty((buckets, widest))
    in_bucket = np.zeros(buckets, np.int32)
    probabilities = np.empty(widest)
    cursors = Cursors(
        np.empty(widest), np.empty(widest, np.int32), np.empty(widest, np.int32), np.empty(widest, np.int32),
        np.empty(widest, np.int32), np.empty(widest, np.int32), np.empty(widest), np.empty(widest, np.float32),
    )  # fmt: skip
    for row in range(first_row, batch.seq.shape[0]):
        first, last = batch.term_offsets[row], batch.term_offsets[row + 1]
        length = length_of(batch.counts, first, last)
        message = Message(
            batch.seq[row], batch.x[row], batch.y[row], lift(batch.event_time_us[row], fading), length,
            batch.terms[first:last], batch.counts[first:last],
        )  # fmt: skip
        for i in range(last - first):
            share = share_of(fading, message.terms[i])
            probabilities[i] = probability(message.counts[i], length, share, fading.smoothing)
        path_to(message.x, message.y, depth, path)
        for cell in path:
            if not v.stands[cell]:
                continue
            for i in range(last - first):
                found = find_lists(v, key_of_list(cell, message.terms[i]))
                while found >= 0:
                    bucket = v.bucket[found]
                    lists[bucket, in_bucket[bucket]], texts[bucket, in_bucket[bucket]] = found, probabilities[i]
                    in_bucket[bucket] += 1
                    found = v.next_list[found]
            for bucket in range(buckets):
                n = in_bucket[bucket]
                in_bucket[bucket] = 0
                if n == 0:
                    continue
                said = _walk(
                    c, best, v, cursors, lists[bucket], texts[bucket], n, bucket == buckets - 2,
                    message, fading, max_distance, counters,
                )  # fmt: skip
                if said == NO_ROOM:
                    return row
        remember(h, path, message.terms, message.counts, length, message.lifted)
    return batch.seq.shape[0]


@njit(cache=True, nogil=True)
def is_skipped(low, high, text, lifted):
    """Whether no text of at most this relevance is enough for any subscription of a block (lemma 3)."""
    return least_text(low, high, lifted) >= text


@njit(cache=True, nogil=True)
def _walk(c, best, v, cursors, lists, texts, n, spatial, message, fading, max_distance, counters):
    """Walk the lists of one bucket side by side; `NO_ROOM` if results had none."""
    for i in range(n):
        # place alone decides: text is in the reach already
        cursors.text[i] = 0.0 if spatial else texts[i]
        _find_block(v, cursors, i, v.first[lists[i]], message.lifted)
    while True:
        least = _END
        follows = _END
        lowest = 0
        for i in range(n):
            if cursors.standing[i] < least:
                least, follows, lowest = cursors.standing[i], least, i
            elif cursors.standing[i] < follows:
                follows = cursors.standing[i]
        if least == _END:
            return NO_RESULT
        if follows == least:
            # several lists have it: it is evaluated once, and all of them go on (else it would enter a result twice)
            text = cursors.text[lowest]
            for i in range(n):
                if cursors.standing[i] == least:
                    text = min(text, cursors.text[i])
            if _evaluate(c, best, v, least, text, spatial, message, fading, max_distance, counters) == NO_ROOM:
                return NO_ROOM
            for i in range(n):
                if cursors.standing[i] == least:
                    _go_on(v, cursors, i, message.lifted, counters)
            continue
        text = cursors.text[lowest]
        while cursors.standing[lowest] < follows:
            association = cursors.standing[lowest]
            if _evaluate(c, best, v, association, text, spatial, message, fading, max_distance, counters) == NO_ROOM:
                return NO_ROOM
            _go_on(v, cursors, lowest, message.lifted, counters)


@njit(cache=True, nogil=True)
def _find_block(v, cursors, i, block, lifted):
    """Put a cursor on the first posting of the first block, from this one on, that is not skipped."""
    while block >= 0 and is_skipped(v.low[block], v.high[block], cursors.text[i], lifted):
        block = v.after[block]
    cursors.block[i] = block
    if block < 0:
        cursors.standing[i] = _END
        return
    cursors.at[i] = cursors.keep[i] = v.start[block]
    cursors.stop[i] = v.start[block] + v.count[block]
    cursors.standing[i] = v.seq[cursors.at[i]]
    cursors.low[i], cursors.high[i] = math.inf, -math.inf


@njit(cache=True, nogil=True)
def _go_on(v, cursors, i, lifted, counters):
    """Leave a posting; a block read to its end has lost what was dropped, and its extremes are those of now."""
    counters[0] += 1
    association = cursors.standing[i]
    if v.slot[association] >= 0:
        cursors.low[i] = min(cursors.low[i], v.scaled[association])
        cursors.high[i] = max(cursors.high[i], v.reach[association])
        v.seq[cursors.keep[i]] = association
        cursors.keep[i] += 1
    cursors.at[i] += 1
    if cursors.at[i] < cursors.stop[i]:
        cursors.standing[i] = v.seq[cursors.at[i]]
        return
    block = cursors.block[i]
    v.count[block] = cursors.keep[i] - v.start[block]
    v.low[block], v.high[block] = cursors.low[i], cursors.high[i]
    _find_block(v, cursors, i, v.after[block], lifted)


@njit(cache=True, nogil=True)
def _evaluate(c, best, v, association, text, spatial, message, fading, max_distance, counters):
    """Offer the message to one subscription, unless a bound says no; what `offer` says.

    `text` is a relevance that its text cannot exceed, or 0 where place alone is bounded.
    """
    if least_text(v.scaled[association], v.reach[association], message.lifted) >= text:
        return NO_RESULT
    slot = v.slot[association]
    # at this very place, and by the threshold of now, which may have risen through messages in other cells: the circle
    # of its conditional influence region
    most = relevance(c, slot, message.x, message.y, 1.0 if spatial else text, max_distance)
    if least_text(c.threshold[slot], 0.0, message.lifted) >= most:
        return NO_RESULT
    counters[1] += 1
    relevant = text_relevance(c, slot, message.terms, message.counts, message.length, fading)
    key = key_of(relevance(c, slot, message.x, message.y, relevant, max_distance), message.lifted)
    said = offer(c, best, slot, message.seq, key)
    if said == A_RESULT:
        counters[2] += 1
        # what blocks go by; in its other cells it stays lower than that until the subscription is associated anew
        v.scaled[association] = scaled_of(c.threshold[slot], c.alpha[slot])
    return said
