"""Kernels of engine `skype`: the exact scores of candidates.

`verify` takes the candidates of many messages that `matching.topk.engines.skype_scan` has found, message by message,
and `verify_by_slot` slot by slot, where there are many; `scan_row` a message of which nearly all subscriptions are
candidates.
"""

import math

import numpy as np

from compiling.njit import njit, njit_inner, njit_inner_no_refcount
from matching.geo.sphere import distance_to, point_of
from matching.storage.point_subscriptions import ROW_WORDS, TERM_HALVES
from matching.storage.prefetch import prefetch
from matching.topk.engines.skype_bounds import (
    FIRST_COMMON,
    HITS,
    POSTINGS,
    SCANNED,
    UNSEEN,
    VERIFIED,
    bound_l2,
    bound_l2_sphere,
    may_reach,
)
from matching.topk.scores import exact_score, whole_score

_BLOCK = 1024
#: Candidates are sorted by slot if they are at least one in this many slots.
_SPARSE = 8
#: An empty place of the hash table of a message's terms.
_EMPTY, _NO_PLACE = -1, 2**31 - 1
#: Columns of what is gathered of a candidate: slot, term_start, term_count, and where what is only read ahead goes; and
#: text part, x, y, z, alpha, threshold, max_distance.
_SEEN, _SEEN_SCORE = 4, 7
#: Bits of a slot by which one pass of `by_slot` sorts.
_DIGIT_BITS = 11
#: Terms of a message that are compared with one of a subscription at once: a cache line.
_TOGETHER = 16
#: Candidates by which the row of a slot, and its terms, are prefetched ahead of their use.
_ROWS_AHEAD, _TERMS_AHEAD = 24, 12


@njit_inner
def _find_term(keys, term):
    """Place of a term in the small hash table of a message's terms, or of the empty place where it is not."""
    mask = keys.shape[0] - 1
    at = (np.int64(term) * 0x9E3779B1 >> 15) & mask
    # ends soon: at most a sixteenth of the table is taken (`verify`)
    while keys[at] != term and keys[at] != _EMPTY:
        at = (at + 1) & mask
    return at


@njit_inner
def _text_score(terms, weights, start, count, first, keys, place_of, weight_of):
    """Text part of a pair if its first common term is the message's term number `first`, else -1.

    terms, weights : of all subscriptions; this one's are `count` from `start` on
    keys, place_of, weight_of : hash table of the message's terms (`_find_term`): which of them, and its weight; a
        large number and zero where empty

    The sum is that of a merge of both in ascending order, to the bit: zeros change nothing. Hardly a branch depends on
    the data, where a merge would mispredict one in most of its steps.
    """
    text = 0.0
    lowest = np.int32(_NO_PLACE)
    for at in range(start, start + count):
        place = _find_term(keys, terms[at])
        # terms ascend in the message, so its first common one has the least position
        lowest = min(lowest, place_of[place])
        text += np.float64(weights[at]) * weight_of[place]
    # another term comes first and decides the pair, since bounds are valid for the first one only (spec 1.7)
    return text if lowest == first else -1.0


@njit(cache=True, nogil=True)
def in_order(keys, places):
    """Places in ascending order of their keys (not negative); those of equal keys stay in the order they had.

    keys : int[n];  places : int[m], not changed. A pass a byte of the largest key, each O(places): for thousands of
    them a sort by comparison takes several times as long.
    """
    highest = np.int64(0)
    for place in places:
        highest = max(highest, np.int64(keys[place]))
    shift = 0
    while highest >> shift:
        ends = np.zeros(257, np.int64)
        for place in places:
            ends[(keys[place] >> shift & 255) + 1] += 1
        for digit in range(256):
            ends[digit + 1] += ends[digit]
        ordered = np.empty_like(places)
        for place in places:
            digit = keys[place] >> shift & 255
            ordered[ends[digit]] = place
            ends[digit] += 1
        places = ordered
        shift += 8
    return places


@njit(cache=True, nogil=True)
def _ascend(slots, capacity):
    """Sort slots, no two equal and all below `capacity`. O(capacity), by a byte each: for when most of them are there.

    Later reads by slot, here and in the result buffers, are in order of memory.
    """
    there = np.zeros(capacity, np.uint8)
    for slot in slots:
        there[slot] = 1
    found = slot = 0
    while found < slots.shape[0]:
        slots[found] = slot
        found += there[slot]
        slot += 1


@njit_inner
def scan_row(c, v, batch, r, counters, found, slots, rows, scores):
    """Match a message by a full scan of its lists; returns hits so far, -1 if they exceed the output.

    Used if nearly all subscriptions are candidates, where trees, signatures and sorting by slot cost more than they
    save: each is verified on the spot. slots, rows : int32[n]; scores : float64[n],
    filled from `found` on. O(postings of its terms), as the scan of L2AP with Skype's Theorem 5.1.
    """
    passed = np.zeros(_BLOCK, np.uint8)
    before, first, last = found, batch.term_offsets[r], batch.term_offsets[r + 1]
    terms, weights = batch.terms[first:last], batch.weights[first:last]
    place = point_of(batch, r)
    x, y, z = np.float32(place[0]), np.float32(place[1]), np.float32(place[2])
    square = 0.0
    # from the last term back, to accumulate the norm of the later terms
    for i in range(terms.shape[0] - 1, -1, -1):
        rest = np.float32(math.sqrt(square))
        square += np.float64(weights[i]) ** 2
        term = terms[i]
        # a term above all that were ever posted has no list
        if term >= v.start.shape[0]:
            continue
        start, count = v.start[term], v.count[term]
        counters[POSTINGS] += count
        counters[SCANNED] += count
        passing = 0
        near = np.empty(count, np.int32)
        for block in range(start, start + count, _BLOCK):
            end = min(block + _BLOCK, start + count)
            if place[3]:
                bound_l2_sphere(
                    v.x, v.y, v.z, v.slope, v.base, v.own, v.rest, block, end, x, y, z, weights[i], rest, passed
                )  # fmt: skip
            else:
                bound_l2(v.x, v.y, v.slope, v.base, v.own, v.rest, block, end, x, y, weights[i], rest, passed)
            for p in range(block, end):
                # all are written down and those that may stay; a tombstone fails all bounds, but for what is no number
                near[passing] = v.slot[p]
                passing += passed[p - block] & (v.slot[p] >= 0)
        if passing * _SPARSE >= c.threshold.shape[0]:
            _ascend(near[:passing], c.threshold.shape[0])
        counters[VERIFIED] += passing
        for slot in near[:passing]:
            score = exact_score(c, slot, term, place, terms, weights)
            if math.isnan(score):
                counters[FIRST_COMMON] += 1
            elif score >= c.threshold[slot]:
                if found == slots.shape[0]:
                    return np.int64(-1)
                slots[found], rows[found], scores[found] = slot, r, score
                found += 1
    counters[HITS] += found - before
    return found


@njit(cache=True, nogil=True)
def verify(
    c, batch, rules, counters, first_row, last_row, most_hits, stats, offsets, ints, floats, found,
    slots, rows, scores,
):  # fmt: skip
    """Verify the candidates of a chunk, message by message; returns (hits so far, next row), as `scan` does.

    All candidates of a message go together and column by column: the loads of a loop without branches overlap, where
    one candidate after the other would wait for each of its cache misses.
    """
    longest = most = 0
    for r in range(first_row, last_row):
        longest = max(longest, batch.term_offsets[r + 1] - batch.term_offsets[r])
        most = max(most, offsets[r - first_row + 1] - offsets[r - first_row])
    # at most a sixteenth is taken, so that a lookup mostly ends where it begins
    size = 64
    while size < 16 * longest:
        size *= 2
    keys, places = np.full(size, _EMPTY, np.int32), np.full(size, _NO_PLACE, np.int32)
    exact_weights, taken = np.zeros(size, np.float64), np.empty(longest, np.int64)
    seen, seen_score = np.empty((most, _SEEN), np.int64), np.empty((most, _SEEN_SCORE), np.float64)
    chunk_first = batch.term_offsets[first_row]
    rest, total, peak = stats[:, 0], stats[:, 1], stats[:, 2]
    for r in range(first_row, last_row):
        if found >= most_hits:
            return found, r
        candidates = offsets[r - first_row + 1] - offsets[r - first_row]
        if candidates == 0:
            continue
        before = found
        first, last = batch.term_offsets[r], batch.term_offsets[r + 1]
        terms, weights = batch.terms[first:last], batch.weights[first:last]
        count = last - first
        of_row = first - chunk_first + (r - first_row)
        for i in range(count):
            place = _find_term(keys, terms[i])
            taken[i] = place
            keys[place], places[place], exact_weights[place] = terms[i], i, np.float64(weights[i])
        here = point_of(batch, r)
        mine, mine_floats = ints[offsets[r - first_row] :], floats[offsets[r - first_row] :]
        for k in range(candidates):
            slot = mine[k, 0]
            seen[k, 0], seen[k, 1], seen[k, 2] = slot, c.term_start[slot], c.term_count[slot]
        for k in range(candidates):
            # touch both ends of its terms; the sums are stored, or the compiler would drop the loads
            first_place, last_place = seen[k, 1], seen[k, 1] + seen[k, 2] - 1
            seen[k, 3] = c.terms[first_place] + c.terms[last_place]
            seen_score[k, 0] = c.weights[first_place] + c.weights[last_place]
        close = 0
        for k in range(candidates):
            slot, i = seen[k, 0], mine[k, 1] + chunk_first - first
            if rules.unseen:
                may = may_reach(
                    c, slot, terms[i], here, terms, weights, rest[of_row:], total[of_row:], peak[of_row:]
                )  # fmt: skip
                if may <= 0:
                    counters[UNSEEN if may == 0 else FIRST_COMMON] += 1
                    continue
            text_score = _text_score(c.terms, c.weights, seen[k, 1], seen[k, 2], i, keys, places, exact_weights)
            counters[VERIFIED] += 1
            if text_score < 0.0:
                counters[FIRST_COMMON] += 1
                continue
            # the posting had the rest of the score nearly exact; this spares a cache miss a pair
            if np.float32((1.0 - mine_floats[k, 1]) * text_score) < mine_floats[k, 0]:
                continue
            # in place: close <= k, so nothing unread is lost
            seen[close, 0], seen_score[close, 0] = slot, text_score
            close += 1
        for k in range(close):
            slot = seen[k, 0]
            seen_score[k, 1], seen_score[k, 2], seen_score[k, 3] = c.x[slot], c.y[slot], c.z[slot]
            seen_score[k, 4], seen_score[k, 5] = c.alpha[slot], c.threshold[slot]
            seen_score[k, 6] = c.max_distance[slot]
        for k in range(close):
            text_score, s_x, s_y, s_z, alpha, threshold, max_distance = seen_score[k]
            score = whole_score(distance_to(here, s_x, s_y, s_z), max_distance, alpha, text_score)
            # >=, as a buffer takes in (spec R4); all tests before this one may let too much through, none too little
            if score >= threshold:
                if found == slots.shape[0]:
                    # the row does not fit: return the rows before it, or -1 for larger arrays
                    return before, r
                slots[found] = seen[k, 0]
                rows[found] = r
                scores[found] = score
                found += 1
        for place in taken[:count]:
            keys[place], places[place], exact_weights[place] = _EMPTY, _NO_PLACE, 0.0
        counters[HITS] += found - before
    return found, last_row


@njit(cache=True, nogil=True)
def by_slot(candidates, ints, capacity):
    """Candidates in ascending order of slots: int64[candidates], the slot above 32 bits of the place of the term.

    ints : int32[n, 2]    slot, below `capacity`, and place of the term within the chunk. O(n) a pass of 11 bits.
    """
    keys, ordered = np.empty(candidates, np.int64), np.empty(candidates, np.int64)
    for k in range(candidates):
        keys[k] = np.int64(ints[k, 0]) << 32 | ints[k, 1]
    begin, shift = np.empty(1 << _DIGIT_BITS, np.int64), 32
    mask = np.int64((1 << _DIGIT_BITS) - 1)
    while shift == 32 or (capacity - 1) >> (shift - 32):
        begin[:] = 0
        for key in keys:
            begin[key >> shift & mask] += 1
        before = np.int64(0)
        for digit in range(begin.shape[0]):
            count = begin[digit]
            begin[digit] = before
            before += count
        for key in keys:
            digit = key >> shift & mask
            ordered[begin[digit]] = key
            begin[digit] += 1
        keys, ordered = ordered, keys
        shift += _DIGIT_BITS
    return keys


@njit_inner
def message_rows(batch, first_row, last_row):
    """Dense rows of messages: terms (int32[rows, w], -1 after the last), weights (float32[rows, w + 1], column 0 is 0),
    and places (float64[rows, 3], `point_of`)."""
    longest = 1
    for r in range(first_row, last_row):
        longest = max(longest, batch.term_offsets[r + 1] - batch.term_offsets[r])
    width = (longest + _TOGETHER - 1) // _TOGETHER * _TOGETHER
    terms = np.full((last_row - first_row, width), -1, np.int32)
    weights = np.zeros((last_row - first_row, width + 1), np.float32)
    places = np.empty((last_row - first_row, 3))
    for r in range(first_row, last_row):
        first = batch.term_offsets[r]
        places[r - first_row, 0], places[r - first_row, 1], places[r - first_row, 2], _ = point_of(batch, r)
        for i in range(batch.term_offsets[r + 1] - first):
            terms[r - first_row, i], weights[r - first_row, i + 1] = batch.terms[first + i], batch.weights[first + i]
    return terms, weights, places


@njit(cache=True, nogil=True, inline="always")
def _place_among(terms, first, term):
    """1 + the index of a term among the `_TOGETHER` terms of a message from `first` on; 0 if it is not among them."""
    place = np.int32(0)
    # a fixed number of terms, and unsigned indexes: else LLVM does not vectorise the comparison
    for i in range(_TOGETHER):
        place = max(place, np.int32(i + 1) if terms[np.uint64(first + i)] == term else np.int32(0))
    return place


@njit_inner_no_refcount
def verify_by_slot(c, batch, counters, first_row, last_row, row_of, keys, message, found, slots, rows, scores):
    """Verify the candidates of a chunk (`by_slot`); returns hits so far, -1 if they exceed the output.

    message : `message_rows` of the chunk

    As `verify`, but hits come in order of slots: subscriptions are read in order of memory, and the messages of a chunk
    stay in the cache. Each term of a subscription is compared with all of the message, without branches.
    """
    terms, weights, places = message
    on_sphere = point_of(batch, first_row)[3]
    chunk_first, before = batch.term_offsets[first_row], found
    first_common = 0
    for k in range(keys.shape[0]):
        if k + _ROWS_AHEAD < keys.shape[0]:
            prefetch(c.x, ROW_WORDS * (keys[k + _ROWS_AHEAD] >> 32))
            prefetch(c.terms, TERM_HALVES * c.term_start[keys[k + _TERMS_AHEAD] >> 32])
        slot, j = keys[k] >> 32, keys[k] & 0xFFFFFFFF
        r = np.int64(row_of[j])
        text, lowest, start = 0.0, np.int32(_NO_PLACE), c.term_start[slot]
        mine, its_weights = terms[r], weights[r]
        for at in range(start, start + c.term_count[slot]):
            term, place = c.terms[at], np.int32(0)
            for block in range(0, mine.shape[0], _TOGETHER):
                here_at = _place_among(mine, block, term)
                place = max(place, here_at + np.int32(block) if here_at > 0 else np.int32(0))
            # zeros change nothing, so the sum is that of a merge to the bit
            text += np.float64(c.weights[at]) * np.float64(its_weights[place])
            lowest = min(lowest, place if place > 0 else np.int32(_NO_PLACE))
        # another term comes first and decides the pair (spec 1.7)
        if lowest - 1 != j + chunk_first - batch.term_offsets[first_row + r]:
            first_common += 1
            continue
        here = (places[r, 0], places[r, 1], places[r, 2], on_sphere)
        distance = distance_to(here, c.x[slot], c.y[slot], c.z[slot])
        score = whole_score(distance, c.max_distance[slot], c.alpha[slot], text)
        if score >= c.threshold[slot]:
            if found == slots.shape[0]:
                return np.int64(-1)
            slots[found], rows[found], scores[found] = slot, first_row + r, score
            found += 1
    counters[VERIFIED] += keys.shape[0]
    counters[FIRST_COMMON] += first_common
    counters[HITS] += found - before
    return found
