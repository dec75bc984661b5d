"""Kernels of the result buffers; `v` is `matching.topk.results.Buffers`."""

import numpy as np

from matching.njit import njit, njit_no_refcount
from matching.storage.block_pool import allocate_block, forget_free, free_block
from matching.storage.prefetch import prefetch

#: Free places left in a block when the pool is packed.
SPARE = 2
#: Slots by which a block is prefetched ahead of its use, and entries prefetched at most.
_AHEAD, _ENTRIES_AHEAD = 24, 32
#: Up to this many entries are moved in one loop.
_FEW = 24
#: Entries in a cache line.
_SCORES, _SEQS = 8, 16


@njit(cache=True, nogil=True)
def shift_all(start, count, seq, shift):
    """Subtract `shift` from every stored seq; False if one leaves the range of int32."""
    fits = True
    for slot in range(start.shape[0]):
        for at in range(start[slot], start[slot] + count[slot]):
            moved = np.int64(seq[at]) - shift
            # the caller raises if one does not fit, so a wrapped value is never read
            fits = fits and moved >= -(2**31)
            seq[at] = np.int32(moved)
    return fits


@njit(cache=True, nogil=True)
def pack(v, order, sizes):
    """Move the blocks of the slots in `order` (ascending by place) together, no larger than they need to be.

    Nothing is free afterwards.
    """
    end = 0
    for slot in order:
        start = v.start[slot]
        # ascending places and no block larger than before: `end` never passes a block that is still to move
        if end < start:
            for i in range(v.count[slot]):
                _copy_entry(v, start + i, end + i)
            v.start[slot] = end
        fitting = 0
        while sizes[fitting] < v.count[slot] + SPARE:
            fitting += 1
        # spare places would put a full block one class up, over its neighbour
        v.size_class[slot] = min(v.size_class[slot], fitting)
        end += sizes[v.size_class[slot]]
    forget_free(v, end)


@njit(cache=True, nogil=True)
def _copy_entry(v, source, target):
    """Copy an entry from one place of the pool to another; in count windows seq and life are the same array."""
    v.score[target] = v.score[source]
    v.seq[target] = v.seq[source]
    v.life[target] = v.life[source]
    v.dominators[target] = v.dominators[source]


@njit(cache=True, nogil=True)
def order_by_slot(slots, least, most):
    """Hits by slot: (begin int64[most - least + 2], order int32[n]).

    Those of a slot are order[begin[slot - least] : begin[slot - least + 1]], as they come. `slots` are from
    `least` to `most`, so they are counted and not compared: O(n + most - least).
    """
    begin = np.zeros(most - least + 2, np.int64)
    for slot in slots:
        begin[slot - least + 1] += 1
    for slot in range(most - least + 1):
        begin[slot + 1] += begin[slot]
    free, order = begin[:-1].copy(), np.empty(slots.shape[0], np.int32)
    for hit in range(slots.shape[0]):
        place = slots[hit] - least
        order[free[place]] = hit
        free[place] += 1
    return begin, order


@njit(cache=True, nogil=True)
def close_all(
    v, begin, seqs, lives, scores, floor, k, dominators, threshold, passed_over, touched, count, out_slot, out_seq,
    out_score, out_enters, short, short_end, before_seq, before_score, done, sizes,
):  # fmt: skip
    """Close slots from done[0] on; stops before a slot that may overflow the pool (returns True) or the output (False).

    Hits are in the order of slots, `begin` as in `order_by_slot`. `done` as in `ResultBuffers.close`; `short_end` has
    the end of each result before.
    """
    was_seq, was_score, new = np.empty(64, np.int64), np.empty(64, np.float64), np.empty(64, np.int64)
    base = v.used[1]
    for slot in range(done[0], v.start.shape[0]):
        later = slot + _AHEAD
        if later < v.start.shape[0] and (begin[later] < begin[later + 1] or v.oldest[later] <= floor):
            _prefetch_block(v, later)
        hits = begin[slot + 1] - begin[slot]
        # cheap first: most slots are neither hit nor due, and cost two columns
        if hits == 0 and (v.oldest[slot] > floor or passed_over[slot]):
            continue
        wanted = k[slot]
        # capacity is checked first, since a slot is closed whole or not at all: k may leave and k enter
        if done[2] + 2 * wanted > out_slot.shape[0] or done[4] + wanted > before_seq.shape[0]:
            done[0] = slot
            return False
        if hits > 0 and not _has_capacity(v, slot, hits, sizes):
            done[0] = slot
            return True
        # the result at the last boundary; seqs are compared whole, not less the base
        before = min(v.count[slot], wanted)
        if before > was_seq.shape[0]:
            was_seq, was_score = np.empty(2 * before, np.int64), np.empty(2 * before, np.float64)
        if wanted > new.shape[0]:
            new = np.empty(2 * wanted, np.int64)
        start = v.start[slot]
        for i in range(before):
            was_seq[i] = base + v.seq[start + i]
            was_score[i] = v.score[start + i]
        _offer_some(v, slot, begin[slot], begin[slot + 1], seqs, lives, scores, dominators[slot], sizes)
        # after the offers: expired entries dominate only expired ones, and new ones may have expired already
        _expire(v, slot, floor)
        touched[done[1]] = slot
        count[done[1]] = v.count[slot]
        done[1] += 1
        # without a threshold it has all eligible messages, and fewer than k is the result: a refill would find no more
        # (spec 1.1)
        if v.count[slot] < wanted and threshold[slot] > -np.inf:
            for i in range(before):
                before_seq[done[4] + i] = was_seq[i]
                before_score[done[4] + i] = was_score[i]
            done[4] += before
            short[done[3]] = slot
            short_end[done[3]] = done[4]
            done[3] += 1
            continue
        # Merge both results in rank order; leaves are written before enters, which are collected in `new`.
        start, now = v.start[slot], min(v.count[slot], wanted)
        i = j = entered = 0
        while i < before and j < now:
            if was_seq[i] == base + v.seq[start + j]:
                i += 1
                j += 1
            elif _above(was_score[i], was_seq[i], v.score[start + j], base + v.seq[start + j]):
                _note(out_slot, out_seq, out_score, out_enters, done, slot, was_seq[i], was_score[i], False)
                i += 1
            else:
                new[entered] = start + j
                entered += 1
                j += 1
        for left in range(i, before):
            _note(out_slot, out_seq, out_score, out_enters, done, slot, was_seq[left], was_score[left], False)
        for at in new[:entered]:
            _note(out_slot, out_seq, out_score, out_enters, done, slot, base + v.seq[at], v.score[at], True)
        for at in range(start + j, start + now):
            _note(out_slot, out_seq, out_score, out_enters, done, slot, base + v.seq[at], v.score[at], True)
    done[0] = v.start.shape[0]
    return False


@njit_no_refcount
def _prefetch_block(v, slot):
    """Prefetch the block of a slot: blocks lie anywhere in the pool."""
    start = v.start[slot]
    if start < 0:
        return
    end = start + min(v.count[slot], _ENTRIES_AHEAD)
    for at in range(start, end, _SCORES):
        prefetch(v.score, at)
    for at in range(start, end, _SEQS):
        prefetch(v.seq, at)
    if v.life.itemsize != v.seq.itemsize:  # in count windows they are one array
        for at in range(start, end, _SCORES):
            prefetch(v.life, at)
    prefetch(v.dominators, start)


@njit(cache=True, nogil=True)
def _above(score, seq, than_score, than_seq):
    """Whether one entry ranks above another; scores are exact copies."""
    return score > than_score or (score == than_score and seq > than_seq)


@njit(cache=True, nogil=True)
def _note(out_slot, out_seq, out_score, out_enters, done, slot, seq, score, enters):
    at = done[2]
    out_slot[at], out_seq[at], out_score[at], out_enters[at] = slot, seq, score, enters
    done[2] = at + 1


@njit(cache=True, nogil=True)
def _has_capacity(v, slot, hits, sizes):
    """Whether the pool has capacity for all moves of a block that `hits` hits of a slot may cause."""
    its_class = -1 if v.start[slot] < 0 else v.size_class[slot]
    needed = hits if its_class < 0 else v.count[slot] + hits
    end = v.used[0]
    # an upper limit, as if nothing were dropped and no block free, so that no move fails half-way
    while its_class < 0 or sizes[its_class] < needed:
        its_class += 1
        end += sizes[its_class]
    return end <= v.score.shape[0]


@njit_no_refcount
def offer_all(v, begin, seqs, lives, scores, k, least, first, last, sizes):
    """Offer the hits of slots `first` to `last`; returns the first slot that may overflow the pool, or `last` + 1.

    Slot by slot, so that each buffer is fetched from memory once. `begin` counts from slot `least`
    on, as in `order_by_slot`.
    """
    for slot in range(first, last + 1):
        later = slot + _AHEAD
        if later <= last and begin[later - least] < begin[later - least + 1]:
            _prefetch_block(v, later)
        low, high = begin[slot - least], begin[slot - least + 1]
        if low == high:
            continue
        if not _has_capacity(v, slot, high - low, sizes):
            return slot
        _offer_some(v, slot, low, high, seqs, lives, scores, k[slot], sizes)
    return last + 1


@njit_no_refcount
def _offer_some(v, slot, low, high, seqs, lives, scores, k, sizes):
    """Offer hits [low, high) to a slot; the pool has capacity (`_has_capacity`)."""
    # newest first, which mostly outlives the rest; any order is right, since `_offer` counts dominators both ways
    for hit in range(high - 1, low - 1, -1):
        if v.start[slot] < 0 or v.count[slot] == sizes[v.size_class[slot]]:
            _move_block(v, slot, 0 if v.start[slot] < 0 else v.size_class[slot] + 1, sizes)
        _offer(v, slot, seqs[hit], lives[hit], scores[hit], k)


@njit_no_refcount
def _offer(v, slot, seq, life, score, k):
    """Insert one message into a block that is not full, and count dominators both ways.

    Loops over a column have no early exit, so that they vectorise.
    """
    start, end = v.start[slot], v.start[slot] + v.count[slot]
    # Entries that rank above the new one come first; of equal scores the newer does (spec R4), since Theorem 6.1
    # needs a total order. Counted: a binary search mispredicts most of its branches.
    above = 0
    all_scores, all_seqs = v.score[start:end], v.seq[start:end]
    for i in range(all_scores.shape[0]):
        above += (all_scores[i] > score) | ((all_scores[i] == score) & (all_seqs[i] > seq))
    place = start + above
    # those above that live as long dominate it
    dominators = 0
    lives = v.life[start:place]
    for i in range(lives.shape[0]):
        dominators += 1 if lives[i] >= life else 0
    # k rank above it for as long as it lives: never in a result
    if dominators >= k:
        return
    # all below move one place and gain a dominator if they live no longer
    most = np.int16(0)
    if end - place > _FEW:
        # many: column by column, since such loops vectorise
        below, lives = v.dominators[place:end], v.life[place:end]
        for i in range(below.shape[0]):
            now = np.int16(below[i] + np.int16(lives[i] <= life))
            below[i] = now
            most = max(most, now)
        _shift_up(v.score, place, end)
        _shift_up(v.seq, place, end)
        if v.life.itemsize != v.seq.itemsize:  # in count windows they are one array
            _shift_up(v.life, place, end)
        _shift_up(v.dominators, place, end)
    else:
        for at in range(end, place, -1):
            v.score[at] = v.score[at - 1]
            v.seq[at] = v.seq[at - 1]
            its_life = v.life[at - 1]
            if v.life.itemsize != v.seq.itemsize:
                v.life[at] = its_life
            now = np.int16(v.dominators[at - 1] + np.int16(its_life <= life))
            v.dominators[at] = now
            most = max(most, now)
    v.score[place] = score
    v.seq[place] = seq
    v.life[place] = life
    v.dominators[place] = dominators
    end += 1
    if most >= k:
        end = _drop_dominated(v, place + 1, end, k)
    v.count[slot] = end - start
    # a lower bound suffices: dropping the oldest need not raise it
    v.oldest[slot] = min(v.oldest[slot], life)


@njit(cache=True, nogil=True)
def _drop_dominated(v, first, end, k):
    """Drop entries from `first` on that k others dominate, which outlive them (spec 2.1); returns the end."""
    kept = first
    for at in range(first, end):
        if v.dominators[at] < k:
            if kept < at:
                _copy_entry(v, at, kept)
            kept += 1
    return kept


@njit(cache=True, nogil=True)
def _shift_up(column, first, end):
    """Move entries [first, end) one place up."""
    part = column[first : end + 1]
    for i in range(part.shape[0] - 1):
        at = np.uint64(part.shape[0] - 1 - i)
        part[at] = part[at - np.uint64(1)]


@njit_no_refcount
def _move_block(v, slot, new_class, sizes):
    """Move a slot's entries to a block of another size; False if the pool has no such block left."""
    # allocated first: if it fails, nothing has changed
    new_start = allocate_block(v, new_class, sizes[new_class])
    if new_start < 0:
        return False
    old_start = v.start[slot]
    if old_start >= 0:
        for i in range(v.count[slot]):
            _copy_entry(v, old_start + i, new_start + i)
        # last, since it writes the chain of free blocks over the first entry
        free_block(v, slot)
    v.start[slot] = new_start
    v.size_class[slot] = new_class
    return True


@njit(cache=True, nogil=True)
def clear_all(v, slots):
    for slot in slots:
        if v.start[slot] >= 0:
            free_block(v, slot)
        v.count[slot] = 0
        v.oldest[slot] = np.iinfo(np.int64).max


@njit(cache=True, nogil=True)
def expire_all(v, slots, floor):
    for slot in slots:
        _expire(v, slot, floor)


@njit(cache=True, nogil=True)
def _expire(v, slot, floor):
    """Drop expired entries. No counter changes: they dominate only entries that expire no later."""
    # cheap first: one column shows that none can have expired
    if v.oldest[slot] > floor:
        return
    start, end = v.start[slot], v.start[slot] + v.count[slot]
    kept, oldest = start, np.iinfo(np.int64).max
    # compacted in place, without a branch, in order
    for at in range(start, end):
        life = np.int64(v.life[at])
        _copy_entry(v, at, kept)
        lives = life > floor
        kept += lives
        oldest = min(oldest, life if lives else oldest)
    v.count[slot] = kept - start
    v.oldest[slot] = oldest


@njit(cache=True, nogil=True)
def find_due(oldest, floor):
    # counted first, since as a rule few of many are due
    found = 0
    for slot in range(oldest.shape[0]):
        if oldest[slot] <= floor:
            found += 1
    due = np.empty(found, np.int32)
    found = 0
    for slot in range(oldest.shape[0]):
        if oldest[slot] <= floor:
            due[found] = slot
            found += 1
    return due


@njit_no_refcount
def raise_all(v, slots, ranks, thresholds, sizes):
    """Cut the blocks off at their new thresholds, moving what is left into a smaller block where half is unused."""
    for i in range(slots.shape[0]):
        slot = slots[i]
        start = v.start[slot]
        threshold = v.score[start + ranks[i] - 1]
        count = ranks[i]
        # equal scores stay: messages that reach the threshold belong in, and the engine finds them (spec 2.3)
        while count < v.count[slot] and v.score[start + count] >= threshold:
            count += 1
        # dropped entries rank below all others and dominate none of them: no counter changes (spec 2.1)
        v.count[slot] = count
        thresholds[slot] = threshold
        if 2 * count < sizes[v.size_class[slot]]:
            new_class = 0
            while sizes[new_class] < count + count // 4 + 1:
                new_class += 1
            _move_block(v, slot, new_class, sizes)  # if the pool is full, the block stays as large as it was


@njit(cache=True, nogil=True)
def copy_results(v, slots, out):
    for row in range(slots.shape[0]):
        start, first = v.start[slots[row]], out.offsets[row]
        for i in range(out.offsets[row + 1] - first):
            out.seq[first + i] = v.used[1] + v.seq[start + i]
            out.score[first + i] = v.score[start + i]
