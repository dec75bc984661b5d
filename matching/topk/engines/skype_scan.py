"""Kernels of engine `skype`: from a batch of messages to the pairs that reach their thresholds.

Messages are taken together, many at a time. First every pair of message and term, term by term: the walk down the
term's tree, then the bounds of the postings in the groups that are left, then what else the posting knows
(`_find_candidates`). Then message by message, with the candidates of all its terms: the text part, the exact score
(`matching.topk.engines.skype_verify`). What a switch means stands in `matching.topk.engines.skype.Pruning`, columns in
`matching.topk.engines.skype_lists`.
"""

import math

import numpy as np

from compiling.njit import njit, njit_inner, njit_inner_no_refcount
from matching.geo.sphere import least_angle_squared, point_of
from matching.storage.slots import longer, put
from matching.topk.engines.skype_bounds import (
    CELLS,
    EARLY_STOP,
    GROUPS,
    NODES,
    POSTINGS,
    SCANNED,
    SIGNATURE,
    VERIFIED,
    bound_any,
    bound_l2,
    bound_l2_sphere,
    stop_at,
    within,
)
from matching.topk.engines.skype_lists import ANY_TERM, signature_byte
from matching.topk.engines.skype_verify import by_slot, in_order, message_rows, scan_row, verify, verify_by_slot

_BLOCK = 1024
#: Postings at the front of a run that are touched ahead of their use, and how many of them share a cache line.
_AHEAD = 256
_LINE = 16
#: A message with at least this many candidates, and one in at least this many postings, is scanned by itself.
_DENSE, _DENSE_FRACTION = 1024, 4
#: Terms of a message up to which each term of a candidate is compared with all of them: beyond, looking it up in a hash
#: table is faster, by more the more terms there are.
_FEW_TERMS = 64
#: Pairs of message and term that are led at once.
_PAIRS = 64


@njit_inner_no_refcount
def _find_runs(
    floats, ints, stop_base, stop_text, stored_at, start, x, y, z, on_sphere, weight, rest, total, peak, norm, here,
    max_distance, rules, merge, counters, runs, run_away,
):  # fmt: skip
    """Walk the tree of a term; writes first and last posting of what is left, and its distance; returns how many.

    With `merge`, neighbouring groups become one run; then the distance means nothing.
    """
    found = 0
    node = 0
    while node < ints.shape[0]:
        size = ints[node, 2]
        # a group needs its distance for what follows, even if no cell is tested
        if size == 1 or rules.cells:
            counters[NODES] += 1
            dx = max(np.float32(0.0), floats[node, 0] - x, x - floats[node, 2])
            dy = max(np.float32(0.0), floats[node, 1] - y, y - floats[node, 3])
            squared = dx * dx + dy * dy
            # slope * MaxDist is alpha, unless subscriptions may have a radius of their own
            least_alpha = floats[node, 4] * max_distance
            if on_sphere:
                dz = max(np.float32(0.0), floats[node, 12] - z, z - floats[node, 13])
                squared = least_angle_squared(squared + dz * dz)
                least_alpha = floats[node, 14]
            away = np.float32(math.sqrt(squared))
            if (rules.groups or size > 1) and not within(
                floats, node, away, weight, rest, total, peak, norm, least_alpha, stored_at, rules.prefix, rules.l2,
                rules.envelope,
            ):  # fmt: skip
                counters[GROUPS if size == 1 else CELLS] += ints[node, 1] - ints[node, 0]
                node += size  # in preorder all that is below it comes next
                continue
            if size == 1:
                first, last = start + ints[node, 0], start + ints[node, 1]
                if rules.early_stop:
                    earlier = stop_at(stop_base, stop_text, first, last, floats[node, 4], away, here)
                    counters[EARLY_STOP] += last - earlier
                    last = earlier
                # one call of the bound for a long run costs less than many for short ones
                if merge and found and runs[found - 1, 1] == first:
                    runs[found - 1, 1] = last
                elif first < last:
                    runs[found, 0], runs[found, 1], run_away[found] = first, last, away
                    found += 1
        node += 1
    return found


@njit_inner
def _morton(x, y):
    """Place in the unit square on a curve through a grid of 64 cells a side, 0 to 4,095; neighbours are mostly near."""
    column, row = np.int64(min(63.0, max(0.0, x * 64.0))), np.int64(min(63.0, max(0.0, y * 64.0)))
    code = np.int64(0)
    for bit in range(6):
        code |= (column >> bit & 1) << (2 * bit) | (row >> bit & 1) << (2 * bit + 1)
    return code


@njit_inner
def _rounded_places(batch, first_row, last_row):
    """Where messages are, as postings have it: float32[messages, 3]."""
    places = np.empty((last_row - first_row, 3), np.float32)
    for r in range(first_row, last_row):
        x, y, z, _ = point_of(batch, r)
        places[r - first_row, 0], places[r - first_row, 1], places[r - first_row, 2] = x, y, z
    return places


@njit(cache=True, nogil=True)
def _suffixes(batch, first_row, last_row, stats, squares):
    """For each message and each of its terms: norm, sum and maximum of the weights from the term on; signature bits.

    A message has one row more than terms, for the empty rest after its last term. Its rows begin at the index of its
    first term within the chunk plus its own number within the chunk. `squares` (uint8[messages, 256], zeros) gets the
    squared weights of each message's terms by their signature bytes, in 255ths and rounded up; it has one byte a value
    since the scan reads it at random.
    """
    first = batch.term_offsets[first_row]
    for r in range(first_row, last_row):
        end = batch.term_offsets[r + 1] - first + (r - first_row)
        # from the last term back and in float64, so that each row is rounded once
        square = sum_ = 0.0
        stats[end] = 0.0
        mine = squares[r - first_row]
        mine[ANY_TERM] = 255  # a unit vector has no more
        for at in range(end - 1, batch.term_offsets[r] - first + (r - first_row) - 1, -1):
            j = at - (r - first_row) + first
            own = np.float64(batch.weights[j])
            square += own * own
            sum_ += own
            byte = signature_byte(batch.terms[j])
            mine[byte] = min(255, np.int64(mine[byte]) + np.int64(math.ceil(255.0 * own * own)))
            stats[at, 0], stats[at, 1] = math.sqrt(square), sum_
            stats[at, 2] = max(stats[at + 1, 2], batch.weights[j])


@njit(cache=True, nogil=True, inline="always")
def _norm_at(squares, r, signature):
    """At least the norm (float32) of a message's weights at a signature's terms; equal terms have equal bytes. O(1).

    squares : uint8[messages, 256]    as `_suffixes` leaves them;  r : the message
    """
    square = (
        np.int32(squares[r, signature & 255]) + np.int32(squares[r, signature >> 8 & 255])
        + np.int32(squares[r, signature >> 16 & 255]) + np.int32(squares[r, signature >> 24 & 255])
    )  # fmt: skip
    return np.float32(math.sqrt(np.float32(square) * np.float32(1.0 / 255.0)))


@njit(cache=True, nogil=True)
def _by_term(v, batch, first_row, last_row, row_of):
    """Pairs of a message and a term with a list, as places of the term, by term and then along the curve;
    fills `row_of` a place."""
    first = batch.term_offsets[first_row]
    code = np.empty(last_row - first_row, np.int64)
    for r in range(first_row, last_row):
        code[r - first_row] = _morton(batch.x[r], batch.y[r])
    places = np.empty(batch.term_offsets[last_row] - first, np.int32)
    count = 0
    for row in in_order(code, np.arange(code.shape[0])):
        for j in range(batch.term_offsets[first_row + row] - first, batch.term_offsets[first_row + row + 1] - first):
            row_of[j] = row
            term = batch.terms[first + j]
            # a term above all that were ever posted has no list; the next pair overwrites it
            places[count] = j
            count += term < v.start.shape[0] and v.count[term] > 0
    return in_order(batch.terms[first:], places[:count])


@njit(cache=True, nogil=True)
def _is_plain(rules):
    """Whether postings are cut by just the rules that `bound_l2` applies."""
    return rules.l2 and rules.exact_distance and not rules.prefix and not rules.inner_outer


@njit_inner
def _dense(postings, candidates, rows):
    """Whether so large a part of the postings are candidates that pruning costs more than it saves."""
    return candidates > _DENSE * rows and candidates * _DENSE_FRACTION > postings


@njit_inner
def _find_candidates(
    v, batch, first_row, places, stats, squares, row_of, order, max_distance, rules, counters, limit, ints, floats
):  # fmt: skip
    """Pairs that may reach their thresholds, as rows of `ints` (slot, place of the term within the chunk) and of
    `floats` (what the text part must reach, alpha of the posting).

    Returns how many, -1 for more than `limit`, and the two arrays, grown. Messages are taken together, term by term:
    those that share a term find its tree and its postings in the cache, and a few pairs are led at once so that their
    cache misses overlap: first all their runs, asking for the postings on the way, then the bounds, then the rest of
    the postings that passed.
    """
    passed = np.zeros(_BLOCK, np.uint8)
    words = passed.view(np.uint64)
    runs, run_away = np.empty((1024, 2), np.int64), np.empty(1024, np.float32)
    run_end = np.empty(_PAIRS, np.int64)  # where the runs of each pair end
    plain = _is_plain(rules)
    merge = plain and not rules.early_stop
    diagonal = np.float32(max_distance)
    p_x, p_y, p_slope, p_base, p_own, p_rest = v.x, v.y, v.slope, v.base, v.own, v.rest
    p_slot, p_signature, p_z, p_alpha = v.slot, v.signature, v.z, v.alpha
    on_sphere = p_z.shape[0] > 0
    at_place, at_pair = np.empty(1024, np.int64), np.empty(1024, np.int64)
    fresh = np.empty((1024, 2), np.int32)
    first = batch.term_offsets[first_row]
    candidates = 0
    for first_pair in range(0, order.shape[0], _PAIRS):
        pairs = order[first_pair : first_pair + _PAIRS]
        run_count = 0
        for n in range(pairs.shape[0]):
            j = pairs[n]
            run_end[n] = run_count
            term = batch.terms[first + j]
            r = row_of[j]
            start, built = v.start[term], v.built[term]
            counters[POSTINGS] += v.count[term]
            # a run a group at most, and one for the tail
            needed = run_count + v.node_count[term] + 1
            if needed > run_away.shape[0]:  # a call costs more than the test, here and below
                runs, run_away = longer(runs, needed), longer(run_away, needed)
            before_term = run_count
            if built:
                at = j + r  # of the statistics from this term on
                # slightly more than the rounding error of float32
                norm = stats[batch.term_offsets[first_row + r] - first + r, 0] * np.float32(1.000001)
                root, end = v.node_start[term], v.node_start[term] + v.node_count[term]
                run_count += _find_runs(
                    v.node_floats[root:end], v.node_ints[root:end], v.stop_base, v.stop_text, v.stored_at, start,
                    places[r, 0], places[r, 1], places[r, 2], on_sphere,
                    batch.weights[first + j], stats[at + 1, 0], stats[at, 1], stats[at, 2], norm,
                    stats[at, 0] if rules.l2 else stats[at, 1], diagonal, rules, merge, counters, runs[run_count:],
                    run_away[run_count:],
                )  # fmt: skip
            # the tail has no cell; distance 0 prunes nothing
            if built < v.count[term]:
                runs[run_count, 0], runs[run_count, 1] = start + built, start + v.count[term]
                run_away[run_count] = 0.0
                run_count += 1
            run_end[n] = run_count
            if plain:
                for run in range(before_term, run_count):
                    # read ahead; the sum is kept where plain scans look for nothing, or the compiler drops the loads
                    touched = np.float32(0.0)
                    for p in range(runs[run, 0], min(runs[run, 1], runs[run, 0] + _AHEAD), _LINE):
                        touched += p_x[p] + p_y[p] + p_slope[p] + p_base[p] + p_own[p] + p_rest[p]
                        if on_sphere:
                            touched += p_z[p]
                    run_away[run] = touched
        run = passing = 0
        for n in range(pairs.shape[0]):
            j = pairs[n]
            r = row_of[j]
            at = j + r
            x, y, z = places[r, 0], places[r, 1], places[r, 2]
            weight, rest = batch.weights[first + j], stats[at + 1, 0]
            while run < run_end[n]:
                run_first, run_last = runs[run, 0], runs[run, 1]
                counters[SCANNED] += run_last - run_first
                for block in range(run_first, run_last, _BLOCK):
                    end = min(block + _BLOCK, run_last)
                    size = end - block
                    # clear the last word beyond the block, so that words can be tested whole
                    words[(size - 1) >> 3] = 0
                    if plain and on_sphere:
                        bound_l2_sphere(
                            p_x, p_y, p_z, p_slope, p_base, p_own, p_rest, block, end, x, y, z, weight, rest, passed
                        )  # fmt: skip
                    elif plain:
                        bound_l2(p_x, p_y, p_slope, p_base, p_own, p_rest, block, end, x, y, weight, rest, passed)
                    else:
                        norm = stats[batch.term_offsets[first_row + r] - first + r, 0] * np.float32(1.000001)
                        bound_any(
                            v, block, end, x, y, z, run_away[run], weight, rest, stats[at, 1], stats[at, 2], norm,
                            diagonal, rules, counters, passed,
                        )  # fmt: skip
                    if passing + size + 8 > at_place.shape[0]:
                        at_place, at_pair = longer(at_place, passing + size + 8), longer(at_pair, passing + size + 8)
                    before_block = passing
                    for word in range((size + 7) >> 3):
                        # eight at once, as most do not pass
                        if words[word] == 0:
                            continue
                        # all are written down and those that passed stay: which ones do cannot be foreseen, and a
                        # wrong guess costs more than a store. Bits beyond the block are clear.
                        for p in range(word << 3, (word + 1) << 3):
                            at_place[passing] = block + p
                            passing += passed[p]
                    at_pair[before_block:passing] = j
                run += 1
        if passing > fresh.shape[0]:
            fresh = np.empty((2 * passing, 2), np.int32)
        for k in range(passing):
            # nothing but loads here, so that their cache misses overlap
            fresh[k, 0] = p_slot[at_place[k]]
            fresh[k, 1] = p_signature[at_place[k]] if rules.signature else np.int32(-1)
        if candidates + passing > ints.shape[0]:
            # tombstones and what signatures cut are still counted: `limit` bounds memory, not answers
            if candidates + passing > limit:
                return -1, ints, floats
            ints, floats = longer(ints, candidates + passing), longer(floats, candidates + passing)
        before = candidates
        dead = 0
        for k in range(passing):
            p, j = at_place[k], at_pair[k]
            r = row_of[j]
            dx, dy = p_x[p] - places[r, 0], p_y[p] - places[r, 1]
            squared, alpha = dx * dx + dy * dy, p_slope[p] * diagonal
            if on_sphere:
                dz = p_z[p] - places[r, 2]
                squared, alpha = least_angle_squared(squared + dz * dz), p_alpha[p]
            # threshold - alpha * spatial, less slack: what the text part must come to
            needed = p_slope[p] * np.float32(math.sqrt(squared)) - p_base[p]
            # a tombstone: its base fails all bounds, but all may be switched off
            may = fresh[k, 0] >= 0
            dead += not may
            if rules.signature:
                text = p_own[p] * batch.weights[first + j] + p_rest[p] * _norm_at(squares, r, fresh[k, 1])
                may &= text >= needed
            # all are written down and those that may stay, as above
            ints[candidates, 0], ints[candidates, 1] = fresh[k, 0], j
            floats[candidates, 0], floats[candidates, 1] = needed, alpha
            candidates += may
        counters[SIGNATURE] += passing - dead - (candidates - before)
    return candidates, ints, floats


@njit(cache=True, nogil=True)
def _longest(batch, first_row, last_row):
    """Terms of the message that has the most."""
    longest = 0
    for r in range(first_row, last_row):
        longest = max(longest, batch.term_offsets[r + 1] - batch.term_offsets[r])
    return longest


@njit(cache=True, nogil=True)
def _by_row(candidates, ints, floats, row_of, rows):
    """Candidates message by message: (offsets, ints, floats), each message's in the order of its terms."""
    offsets = np.zeros(rows + 1, np.int64)
    for k in range(candidates):
        offsets[row_of[ints[k, 1]] + 1] += 1
    for r in range(rows):
        offsets[r + 1] += offsets[r]
    ordered, ordered_floats = np.empty((candidates, 2), np.int32), np.empty((candidates, 2), np.float32)
    # counting sort is stable, so the order by term stays
    free = offsets[:-1].copy()
    for k in range(candidates):
        r = row_of[ints[k, 1]]
        at = free[r]
        ordered[at, 0], ordered[at, 1] = ints[k, 0], ints[k, 1]
        ordered_floats[at, 0], ordered_floats[at, 1] = floats[k, 0], floats[k, 1]
        free[r] += 1
    return offsets, ordered, ordered_floats


@njit(cache=True, nogil=True)
def scan(
    c, v, batch, max_distance, rules, counters, together, chunk, most_candidates, dense_slots, first_row, most_hits,
    slots, rows, scores,
):  # fmt: skip
    """Match rows from `first_row` on; returns (hits, next row).

    `together` messages are taken as a chunk, fewer where they have more than `most_candidates` candidates or more
    hits than fit the output. The number matched is left in `chunk` (int64[1]), where the next call begins: the hits of
    a chunk that was too large are found again. Its hits come in order of slots where there is a candidate in every
    `dense_slots` slots. 0 stands for messages of which nearly all are candidates.
    """
    found = np.int64(0)  # a literal would have `verify` compiled twice
    r = first_row
    size = min(1 << 14, most_candidates)
    ints, floats = np.empty((size, 2), np.int32), np.empty((size, 2), np.float32)
    while r < batch.seq.shape[0]:
        if found >= most_hits:
            return found, r
        postings, verified = counters[POSTINGS], counters[VERIFIED]
        if chunk[0] == 0:
            now_found = scan_row(c, v, batch, r, counters, found, slots, rows, scores)
            if now_found < 0:
                return found, r
            found, r = now_found, r + 1
            if not _dense(counters[POSTINGS] - postings, counters[VERIFIED] - verified, 1):
                chunk[0] = 1
            continue
        last_row = min(r + min(chunk[0], together), batch.seq.shape[0])
        first = batch.term_offsets[r]
        pairs = batch.term_offsets[last_row] - first
        stats, squares = np.empty((pairs + last_row - r, 3), np.float32), np.zeros((last_row - r, 256), np.uint8)
        row_of = np.empty(pairs, np.int32)
        places = _rounded_places(batch, r, last_row)
        _suffixes(batch, r, last_row, stats, squares)
        order = _by_term(v, batch, r, last_row, row_of)
        before = counters.copy()
        # a message alone cannot be taken in parts: it gets the memory it needs
        limit = most_candidates if last_row - r > 1 else 1 << 31
        candidates, ints, floats = _find_candidates(
            v, batch, r, places, stats, squares, row_of, order, max_distance, rules, counters, limit, ints, floats
        )  # fmt: skip
        if candidates < 0:  # thresholds are low: take fewer messages together
            put(counters, 0, before)  # the same messages count when they are taken again
            chunk[0] = max(1, (last_row - r) // 4)
            continue
        next_row, few_terms = r, _longest(batch, r, last_row) <= _FEW_TERMS
        dense = few_terms and candidates * dense_slots >= c.threshold.shape[0]
        # hits are no more than candidates, so that none beyond `most_hits` are found
        if dense and found + candidates < most_hits and not rules.unseen:
            keys = by_slot(candidates, ints, c.threshold.shape[0])
            texts = message_rows(batch, r, last_row)
            now_found = verify_by_slot(
                c, batch, counters, r, last_row, row_of, keys, texts, found, slots, rows, scores
            )  # fmt: skip
            if now_found >= 0:
                found, next_row = now_found, last_row
        if next_row == r:
            offsets, ordered, ordered_floats = _by_row(candidates, ints, floats, row_of, last_row - r)
            found, next_row = verify(
                c, batch, rules, counters, r, last_row, most_hits, stats, offsets, ordered, ordered_floats,
                found, slots, rows, scores,
            )  # fmt: skip
        # the hits did not fit, or there are enough: the next call finds the candidates of the other rows anew
        if next_row < last_row:
            chunk[0] = max(1, next_row - r)
            return found, next_row
        if few_terms and _is_plain(rules) and _dense(counters[POSTINGS] - postings, candidates, last_row - r):
            # sharing lists or storing candidates would save nothing
            chunk[0] = 0
        elif candidates < most_candidates >> 2:
            chunk[0] = min(together, 2 * chunk[0])
        r = next_row
    return found, batch.seq.shape[0]
