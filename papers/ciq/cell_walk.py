"""Candidates of a message in CIQ: a walk from the root cell to the smallest cell of the message, bucket by bucket.

In each bucket the lists of the message's terms are walked side by side in ascending number of association
(document-at-a-time; Chen et al., CIQ, algorithm 1), so that a subscription with several of the terms is met once. A
block is skipped whole unless a text could be worth enough for the easiest of its subscriptions (lemma 3); in other
blocks each association is bounded by itself. Those that pass are candidates, for the caller to verify.

The caller bounds what a text can be worth to a subscription of a list, keyword by keyword (`Terms`); the paper's
maximum over all keywords whose lists may still have the subscription is not less than that (spec 6). A cursor that
reaches a block that is not skipped stops at its first posting, which is tested like any other: the printed FindNext
never leaves such a block.
"""

import math
from typing import NamedTuple

import numpy as np

from compiling.njit import njit, njit_inner, njit_inner_no_refcount, njit_no_refcount
from papers.ciq.celled_lists import NONE, find_lists, key_of_list

#: Above every association: the position of a cursor at the end of its list.
_END = 2**31 - 1
#: Rounding of sums, and of what they are made of.
_ROUNDING, _SLACK = 1e-12, 1e-9
#: Nothing is worth more, so that a difference of two bounds is always a number.
_LARGEST = 1e300


class Terms(NamedTuple):
    """What the n terms of a message are worth at most to a subscription.

    own : float64[n]       with only this one of them, times `Celled.alone`
    text : float64[n]      with others of them as well
    whole : float64[n]     with this one, times `Celled.most`
    others : uint32[n]     `bit_of` the terms of the message that may be common as well
    """

    own: np.ndarray
    text: np.ndarray
    whole: np.ndarray
    others: np.ndarray


class Cursors(NamedTuple):
    """Where the lists of one bucket are read; n cursors.

    at_list : int32[n]     the list
    term : int32[n]        place in `Terms`
    block, before : int32[n]    -1 at the end; the block in front of it, -1 at the start
    at, stop : int32[n]    place of the posting, and end of its block
    standing : int32[n]    the association there
    keep : int32[n]        end of the postings of the block, of those read, that are not dropped
    low : float64[n], high : float32[n]    extremes of what has been read of the block
    """

    at_list: np.ndarray
    term: np.ndarray
    block: np.ndarray
    before: np.ndarray
    at: np.ndarray
    stop: np.ndarray
    standing: np.ndarray
    keep: np.ndarray
    low: np.ndarray
    high: np.ndarray


class WalkCandidates(NamedTuple):
    """Candidates of a message; n slots.

    slot, association : int32[n]
    term : int32[n]        the first of the terms whose lists it was met in, as place in the message
    text : float64[n]      what the text can be worth at most
    """

    slot: np.ndarray
    association: np.ndarray
    term: np.ndarray
    text: np.ndarray


def no_candidates(slots: int) -> WalkCandidates:
    """Buffer for the candidates among this many slots."""
    return WalkCandidates(
        np.empty(slots, np.int32), np.empty(slots, np.int32), np.empty(slots, np.int32), np.empty(slots, np.float64)
    )


@njit_inner
def widest_of(batch, first_row):
    """Terms of the widest message from a row on, at least one."""
    widest = 1
    for row in range(first_row, batch.seq.shape[0]):
        widest = max(widest, batch.term_offsets[row + 1] - batch.term_offsets[row])
    return widest


@njit_inner
def make_terms(widest):
    """Buffer for the terms of a message."""
    return Terms(np.empty(widest), np.empty(widest), np.empty(widest), np.empty(widest, np.uint32))


@njit_inner
def make_cursors(buckets, widest):
    """Cursors for the lists of each bucket, `buckets * widest` of them in all."""
    n = buckets * widest
    return Cursors(
        np.empty(n, np.int32), np.empty(n, np.int32), np.empty(n, np.int32), np.empty(n, np.int32),
        np.empty(n, np.int32), np.empty(n, np.int32), np.empty(n, np.int32), np.empty(n, np.int32),
        np.empty(n, np.float64), np.empty(n, np.float32),
    )  # fmt: skip


@njit(cache=True, nogil=True)
def needed_text(scaled, reach, factor):
    """What a text must be worth, or less: the minimum conditional text score of a subscription or of a block.

    Parameters
    ----------
    scaled, reach : float     of a block its least `scaled` and its largest `reach`
    factor : float            what is left of `scaled` now
    """
    if abs(scaled) == math.inf:
        return scaled  # dropped, or without a threshold
    worth = max(-_LARGEST, min(scaled * factor, _LARGEST))
    reach = np.float64(reach)
    return worth - reach - _SLACK - _ROUNDING * (abs(worth) + abs(reach))


@njit_no_refcount
def candidates_of(v, path, terms, worth, factor, buckets, cursors, in_bucket, found, counters):
    """Find the candidates of a message, each once; returns their number.

    Parameters
    ----------
    v : Celled
    path : int64[levels]      cells that contain the message, the root first
    terms : int32[n]          ascending
    worth : Terms
    factor : float            see `needed_text`
    buckets : int             of a cell; the last two are for subscriptions without text and for the unfilled
    cursors : Cursors         scratch
    in_bucket : int64[buckets]    zeros, on entry and on return
    found : WalkCandidates        written
    counters : int64[...]     the first counts postings scanned

    Notes
    -----
    Blocks that are walked to their end lose dropped postings and get new extremes; empty ones are removed.
    """
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
            n = in_bucket[bucket]
            in_bucket[bucket] = 0
            if n:
                first = bucket * widest
                # without text only the place decides: it is in the reach already
                text = 0.0 if bucket == buckets - 2 else 1.0
                count = _walk(v, worth, text, factor, cursors, first, first + n, found, count, counters)
    return count


@njit_inner_no_refcount
def _walk(v, worth, text, factor, cursors, first, last, found, count, counters):
    """Walk the lists of one bucket side by side; `text` is 0 where only the place is bounded."""
    for i in range(first, last):
        cursors.before[i] = NONE
        _find_block(v, cursors, i, v.first[cursors.at_list[i]], worth, text, factor)
    # by name, since a call that passes all arrays of a view costs more than a posting
    standing, at, stop, keep = cursors.standing, cursors.at, cursors.stop, cursors.keep
    low, high = cursors.low, cursors.high
    slot, scaled, reach, seq = v.slot, v.scaled, v.reach, v.seq
    alone, signature = v.alone, v.signature
    while True:
        least, lowest = _END, first
        for i in range(first, last):
            if standing[i] < least:
                least, lowest = standing[i], i
        if least == _END:
            return count
        # several lists may have it: it is met once, at the first of its terms
        term = cursors.term[lowest]
        most = worth.own[term] * alone[least]
        if signature[least] & worth.others[term]:
            # keywords, also of one subscription, may have the same bit, so that this may be the only one after all
            most = max(most, worth.text[term])
        if needed_text(scaled[least], reach[least], factor) < text * most:
            found.slot[count], found.association[count] = slot[least], least
            found.term[count], found.text[count] = term, most
            count += 1
        is_live = slot[least] >= 0
        for i in range(lowest, last):
            # all its cursors advance, else it would be a candidate twice
            if standing[i] != least:
                continue
            counters[0] += 1
            if is_live:
                low[i], high[i] = min(low[i], scaled[least]), max(high[i], reach[least])
                seq[keep[i]] = least
                keep[i] += 1
            at[i] += 1
            if at[i] < stop[i]:
                standing[i] = seq[at[i]]
            else:
                _leave_block(v, cursors, i, worth, text, factor)


@njit_inner_no_refcount
def _find_block(v, cursors, i, block, worth, text, factor):
    """Put a cursor on the first posting of the first block, from this one on, that is not skipped."""
    most = text * worth.whole[cursors.term[i]]
    while block >= 0 and needed_text(v.low[block], v.high[block], factor) >= most * v.most[block]:
        cursors.before[i] = block
        block = v.after[block]
    cursors.block[i] = block
    if block < 0:
        cursors.standing[i] = _END
        return
    cursors.at[i] = cursors.keep[i] = v.start[block]
    cursors.stop[i] = v.start[block] + v.count[block]
    cursors.standing[i] = v.seq[cursors.at[i]]
    cursors.low[i], cursors.high[i] = math.inf, -math.inf


@njit_inner_no_refcount
def _leave_block(v, cursors, i, worth, text, factor):
    """Advance to the next block; the one read to its end has lost dropped postings, and gets its current extremes."""
    block = cursors.block[i]
    follows = v.after[block]
    v.count[block] = cursors.keep[i] - v.start[block]
    v.low[block], v.high[block] = cursors.low[i], cursors.high[i]
    if v.count[block] == 0:
        take_out(v, cursors.at_list[i], cursors.before[i], block)
    else:
        cursors.before[i] = block
    _find_block(v, cursors, i, follows, worth, text, factor)


@njit_no_refcount
def take_out(v, at_list, before, block):
    """Unlink an empty block, or every message would visit it until the lists are rebuilt."""
    if before < 0:
        v.first[at_list] = v.after[block]
    else:
        v.after[before] = v.after[block]
    if v.last[at_list] == block:
        v.last[at_list] = before
