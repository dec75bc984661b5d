"""Kernels of the result buffers; `v` is `matching.topk.results.Buffers`.

What is done once a slot or a hit is inlined: a call would hand over ten arrays, which takes longer than the work. Used
by `matching.topk.results`.
"""

import numpy as np

from compiling.njit import njit, njit_inner, njit_inner_no_refcount, njit_no_refcount
from matching.storage.block_pool import allocate_block, forget_free, free_block
from matching.storage.prefetch import prefetch

#: Free places left in a block when the pool is packed.
SPARE = 2
#: Slots by which a block is prefetched ahead of its use, and entries prefetched at most.
_AHEAD, _ENTRIES_AHEAD = 24, 32
#: Up to this many entries are moved in one loop.
_FEW = 24
#: Up to this many, a block is read and written in one pass.
_SMALL = 48
#: A floor under which nothing has expired.
_NEVER = np.iinfo(np.int64).min
#: Bytes of a life in count windows, where seq and life are one array.
_SHARED = 4
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


@njit_inner
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


@njit_no_refcount
def close_all(
    v, begin, seqs, lives, scores, floor, k, dominators, threshold, passed_over, was_seq, was_life, was_score,
    touched, count, out_slot, out_seq, out_score, out_enters, short, short_end, before_seq, before_score, done, sizes,
):  # fmt: skip
    """Close slots from done[0] on; stops before a slot that may overflow the pool (returns True) or the output (False).

    Hits are in the order of slots, `begin` as in `order_by_slot`. `done` as in `ResultBuffers.close`; `short_end` has
    the end of each result before. `was_seq`, `was_life`, `was_score` are scratch, as long as the output.
    """
    # every message of the batch is newer than what the buffers have
    newest = np.int64(np.iinfo(np.int64).max)
    for seq in seqs:
        newest = min(newest, np.int64(seq) - 1)
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
        # the result at the last boundary: all of it where some may expire or a refill may be needed; else no more leave
        # it than come, and those are its last
        due, before = v.oldest[slot] <= floor, min(v.count[slot], wanted)
        first = 0 if due or v.count[slot] < wanted else max(0, before - hits)
        alive = _copy_front(v, slot, first, before, floor if due else _NEVER, was_seq, was_life, was_score)
        if hits > 0 and v.count[slot] <= _SMALL:
            # newest first, as in `_offer_some`
            for hit in range(begin[slot + 1] - 1, begin[slot] - 1, -1):
                _ensure_place(v, slot, sizes)
                _merge_one(v, slot, seqs[hit], lives[hit], scores[hit], dominators[slot], floor)
        else:
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
                before_seq[done[4] + i] = base + was_seq[i]
                before_score[done[4] + i] = was_score[i]
            done[4] += before
            short[done[3]] = slot
            short_end[done[3]] = done[4]
            done[3] += 1
            continue
        # Ranks of old entries never change places. So what is left of the old result is a front of those alive, and no
        # other old entry is in the new one before all of them are.
        now = min(v.count[slot], wanted)
        kept = min(alive, _count_old(v, slot, now, newest))
        at = _note_leaves(
            slot, first, before, floor if due else _NEVER, kept, was_seq, was_life, was_score, base,
            done[2], out_slot, out_seq, out_score, out_enters,
        )  # fmt: skip
        done[2] = _note_enters(v, slot, now, newest, kept, base, at, out_slot, out_seq, out_score, out_enters)
    done[0] = v.start.shape[0]
    return False


@njit(cache=True, nogil=True, inline="always")
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
    if v.life.itemsize > _SHARED:  # in count windows they are one array
        for at in range(start, end, _SCORES):
            prefetch(v.life, at)
    prefetch(v.dominators, start)


@njit(cache=True, nogil=True, inline="always")
def _copy_front(v, slot, first, last, floor, was_seq, was_life, was_score):
    """Copy entries `first` to `last` of a slot; returns how many before `last` are alive."""
    start = v.start[slot]
    seqs, lives, scores = v.seq[start : start + last], v.life[start : start + last], v.score[start : start + last]
    alive = first
    for i in range(first, last):
        at = np.uint64(i)
        was_seq[at], was_score[at], was_life[at] = seqs[at], scores[at], lives[at]
        alive += lives[at] > floor
    return alive


@njit(cache=True, nogil=True, inline="always")
def _count_old(v, slot, now, newest):
    """How many of the first entries of a slot have a seq up to `newest`."""
    seqs = v.seq[v.start[slot] : v.start[slot] + now]
    old = 0
    for i in range(seqs.shape[0]):
        old += seqs[i] <= newest
    return old


@njit(cache=True, nogil=True, inline="always")
def _note_leaves(
    slot, first, last, floor, kept, was_seq, was_life, was_score, base, at, out_slot, out_seq, out_score, out_enters
):  # fmt: skip
    """Note what has left a result, in rank order: expired entries, and those alive behind the first `kept`."""
    seen = first
    for i in range(first, last):
        own, to = np.uint64(i), np.uint64(at)
        alive = was_life[own] > floor
        seen += alive
        # write all, and keep those that left: a branch here would be unpredictable
        out_slot[to], out_seq[to], out_score[to] = slot, base + was_seq[own], was_score[own]
        out_enters[to] = False
        at += (not alive) | (seen > kept)
    return at


@njit(cache=True, nogil=True, inline="always")
def _note_enters(v, slot, now, newest, kept, base, at, out_slot, out_seq, out_score, out_enters):
    """Note what has come into a result, in rank order: new entries, and old ones behind the first `kept`."""
    start = v.start[slot]
    seqs, scores = v.seq[start : start + now], v.score[start : start + now]
    old = 0
    for i in range(seqs.shape[0]):
        to, is_old = np.uint64(at), seqs[i] <= newest
        old += is_old
        out_slot[to], out_seq[to], out_score[to] = slot, base + seqs[i], scores[i]
        out_enters[to] = True
        at += (not is_old) | (old > kept)
    return at


@njit(cache=True, nogil=True, inline="always")
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


@njit(cache=True, nogil=True, inline="always")
def _offer_some(v, slot, low, high, seqs, lives, scores, k, sizes):
    """Offer hits [low, high) to a slot; the pool has capacity (`_has_capacity`)."""
    # newest first, which mostly outlives the rest; any order is right, since `_offer` counts dominators both ways
    for hit in range(high - 1, low - 1, -1):
        _ensure_place(v, slot, sizes)
        _offer(v, slot, seqs[hit], lives[hit], scores[hit], k)


@njit(cache=True, nogil=True, inline="always")
def _ensure_place(v, slot, sizes):
    """Move a block that is full to a larger one."""
    if v.start[slot] < 0 or v.count[slot] == sizes[v.size_class[slot]]:
        _move_block(v, slot, 0 if v.start[slot] < 0 else v.size_class[slot] + 1, sizes)


@njit(cache=True, nogil=True, inline="always")
def _merge_one(v, slot, seq, life, score, k, floor):
    """As `_offer` and `_expire` of a block that is not full, in one pass: for small blocks, whose loops are short.

    Places are unsigned, or every access would look for a negative one.
    """
    start, count = v.start[slot], v.count[slot]
    apart = v.life.itemsize > _SHARED  # in count windows seq and life are one array
    scores, seqs, lives, dominators = v.score[start:], v.seq[start:], v.life[start:], v.dominators[start:]
    # of equal scores the newer ranks first (spec R4); those above that live as long dominate the new one
    above = held = 0
    for i in range(count):
        at = np.uint64(i)
        is_above = (scores[at] > score) | ((scores[at] == score) & (seqs[at] > seq))
        above += is_above
        held += is_above & (lives[at] >= life)
    to, oldest = above, min(v.oldest[slot], np.int64(life))
    if oldest <= floor:
        to, oldest = 0, np.int64(np.iinfo(np.int64).max)
        for i in range(above):
            at, place = np.uint64(i), np.uint64(to)
            its_life = np.int64(lives[at])
            scores[place], seqs[place], dominators[place] = scores[at], seqs[at], dominators[at]
            if apart:
                lives[place] = its_life
            to += its_life > floor
            oldest = min(oldest, its_life if its_life > floor else oldest)
    # from here on each entry waits for the next one to be read, which makes room for it
    held_score, held_seq, held_life = score, seq, np.int64(life)
    oldest = min(oldest, held_life if held_life > floor else oldest)
    for i in range(above, count):
        at, place = np.uint64(i), np.uint64(to)
        its_score, its_seq, its_life = scores[at], seqs[at], np.int64(lives[at])
        its = dominators[at] + (its_life <= life)
        scores[place], seqs[place], dominators[place] = held_score, held_seq, held
        if apart:
            lives[place] = held_life
        to += (held_life > floor) & (held < k)
        oldest = min(oldest, its_life if its_life > floor else oldest)
        held_score, held_seq, held_life, held = its_score, its_seq, its_life, its
    place = np.uint64(to)
    scores[place], seqs[place], dominators[place] = held_score, held_seq, held
    if apart:
        lives[place] = held_life
    to += (held_life > floor) & (held < k)
    v.count[slot], v.oldest[slot] = to, oldest


@njit(cache=True, nogil=True, inline="always")
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
        if v.life.itemsize > _SHARED:  # in count windows they are one array
            _shift_up(v.life, place, end)
        _shift_up(v.dominators, place, end)
    else:
        for at in range(end, place, -1):
            v.score[at] = v.score[at - 1]
            v.seq[at] = v.seq[at - 1]
            its_life = v.life[at - 1]
            if v.life.itemsize > _SHARED:
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


@njit_inner
def _drop_dominated(v, first, end, k):
    """Drop entries from `first` on that k others dominate, which outlive them (spec 2.1); returns the end."""
    kept = first
    for at in range(first, end):
        if v.dominators[at] < k:
            if kept < at:
                _copy_entry(v, at, kept)
            kept += 1
    return kept


@njit_inner
def _shift_up(column, first, end):
    """Move entries [first, end) one place up."""
    part = column[first : end + 1]
    for i in range(part.shape[0] - 1):
        at = np.uint64(part.shape[0] - 1 - i)
        part[at] = part[at - np.uint64(1)]


@njit_inner_no_refcount
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


@njit(cache=True, nogil=True, inline="always")
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


@njit_no_refcount
def drop_ended(v, slots, seqs, lost):
    """Drop the entries with these seqs (ascending) from slots; `lost` (bool[slots]) says which had any.

    What one of them dominated counts it no more: of entries that end early it may be among the first again.
    """
    for i in range(slots.shape[0]):
        start = v.start[slots[i]]
        end = start + v.count[slots[i]]
        at = start
        while at < end:
            seq, low, high = v.used[1] + np.int64(v.seq[at]), 0, seqs.shape[0]
            while low < high:
                middle = (low + high) >> 1
                if seqs[middle] < seq:
                    low = middle + 1
                else:
                    high = middle
            if low == seqs.shape[0] or seqs[low] != seq:
                at += 1
                continue
            life, lost[i] = v.life[at], True
            for below in range(at + 1, end):
                dominated = v.life[below] <= life
                _copy_entry(v, below, below - 1)
                v.dominators[below - 1] -= np.int16(dominated)
            end -= 1
        v.count[slots[i]] = end - start


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
