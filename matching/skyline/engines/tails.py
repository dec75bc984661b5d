"""Newcomers put by: what came for a subscription and cannot change its skyline is not compared with what is kept yet.

In a window by count every newcomer outlives all that is kept, so every one of them has to be kept, and each would cost
the comparison with a whole block of the pool. Yet of a hundred hardly one enters a skyline: most are dominated by one
of its best members. A record beside each slot, a few lines of the cache, has those members and room for some
newcomers, its tail. A newcomer that one of the members dominates goes into the tail, and nothing else is touched.

That is exact as long as the members stay: while one lives, nothing it dominates is in the skyline, nor can the newcomer
have dominated a member. Before a slot loses a member, or something else happens to its skyline, and when its tail is
full, the tail is settled: each newcomer meets the block as if it came just then (`matching.skyline.engines.eager`). One
that is ended while it is in the tail has kept nothing out, and is just forgotten.

Used by `matching.skyline.engines.eager_star`.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from matching.model import Float64, Int64
from matching.njit import njit_no_refcount
from matching.skyline.results import UNDOMINATED, copy_entry, dominates, has_room_for, place_of, put
from matching.storage.prefetch import prefetch
from matching.storage.slots import resized

#: Members in a record, newcomers in its tail.
_MEMBERS, _TAIL = 3, 14
#: Words of a record: how many are in the tail; from `_BEST` on the members, two relevances each; from `_NEW` on the
#: tail, four words each: seq, life, two relevances.
_COUNT, _BEST, _NEW = 0, 2, 8
_WORDS = _NEW + 4 * _TAIL
_LINE = 8
#: Hits for which memory is asked ahead, full tails that are settled together.
_AHEAD, _FULL = 24, 32


class Tails(NamedTuple):
    """Kernel view of the records of n slots: `words` int64[n, 64], and the same memory as `reals` float64[n, 64]."""

    words: Int64
    reals: Float64


def new_tails() -> Tails:
    """No slots."""
    words = np.zeros((0, _WORDS), np.int64)
    return Tails(words, words.view(np.float64))


def with_slots(tails: Tails, capacity: int) -> Tails:
    """The same with room for slots below `capacity`; new ones have no members, so that nothing is put by."""
    had = tails.words.shape[0]
    if had >= capacity:
        return tails
    words = resized(tails.words, capacity)
    larger = Tails(words, words.view(np.float64))
    clear(larger, np.arange(had, capacity, dtype=np.int32))
    return larger


@njit(cache=True, nogil=True)
def clear(tails, slots):
    """Forget members and tails of these slots."""
    for slot in slots:
        tails.words[slot, _COUNT] = 0
        for i in range(_BEST, _NEW):
            tails.reals[slot, i] = -1.0  # below every relevance, so that such a member dominates nothing


@njit_no_refcount
def note_members(v, tails, slots, floor):
    """Write those members of the skylines at this floor into the records that dominate most; O(entries)."""
    for slot in slots:
        for i in range(_BEST, _NEW):
            tails.reals[slot, i] = -1.0
        # which three are taken decides how much is put by, never what comes out
        for at in range(v.start[slot], v.start[slot] + v.count[slot]):
            if v.until[at] <= floor:
                # the larger this product, the more there is below
                spatial, text, place = v.spatial[at], v.text[at], _BEST
                while place < _NEW:
                    was_spatial, was_text = tails.reals[slot, place], tails.reals[slot, place + 1]
                    if was_spatial < 0.0 or spatial * text > was_spatial * was_text:
                        tails.reals[slot, place], tails.reals[slot, place + 1] = spatial, text
                        spatial, text = was_spatial, was_text
                        # what was pushed down was an empty place: none follows that is not
                        if spatial < 0.0:
                            break
                    place += 2


@njit(cache=True, nogil=True)
def _scratch():
    """Columns for one tail: seqs, lives, influence times, two relevances."""
    seq, life, until = np.empty(_TAIL, np.int64), np.empty(_TAIL, np.int64), np.empty(_TAIL, np.int64)
    return seq, life, until, np.empty(_TAIL), np.empty(_TAIL)


@njit_no_refcount
def settle(v, tails, slot, scratch):
    """Let the newcomers in a tail meet the block, all at once; False if the pool has no room, to be called again.

    The longest life of those that dominate a message decides: it is dropped if that is no less than its own. Whether
    what dominates it is dropped itself does not matter, for then another one dominates both and lives as long. The
    tail is gone through from its end: what a younger one dominates, and that is most of it, never meets the block.
    """
    words, reals = tails.words, tails.reals
    seq, life, until, spatial, text = scratch
    none, few = np.int64(UNDOMINATED), 0
    for k in range(words[slot, _COUNT] - 1, -1, -1):
        at = _NEW + 4 * k
        its_life, its_spatial, its_text = words[slot, at + 1], reals[slot, at + 2], reals[slot, at + 3]
        most = none
        for j in range(few):
            if dominates(spatial[j], text[j], its_spatial, its_text):
                most = max(most, life[j])
                # it is dropped already: one that lives longer still would change nothing
                if most >= its_life:
                    break
        if most >= its_life:
            continue
        for j in range(few):
            if dominates(its_spatial, its_text, spatial[j], text[j]):
                # a late message may be outlived by an older one: it is left out at the end, but still drops others
                until[j] = max(until[j], its_life)
        seq[few], life[few], until[few] = words[slot, at], its_life, most
        spatial[few], text[few] = its_spatial, its_text
        few += 1
    start, kept = v.start[slot], 0
    for at in range(start, start + v.count[slot]):
        its_spatial, its_text, its_life, most = v.spatial[at], v.text[at], v.life[at], none
        for k in range(few):
            # both: coincident; neither: not comparable; in both cases nothing happens
            best = (spatial[k] >= its_spatial) & (text[k] >= its_text)
            worst = (spatial[k] <= its_spatial) & (text[k] <= its_text)
            if best != worst:
                if best:
                    most = max(most, life[k])
                    # no need to tell the others: what this entry dominates, the one above it covers as long
                    if most >= its_life:
                        break
                else:
                    until[k] = max(until[k], its_life)
        if most >= its_life:
            continue
        v.until[at] = max(v.until[at], most)
        if at > start + kept:
            copy_entry(v, at, start + kept)
        kept += 1
    v.count[slot] = kept
    for k in range(few):
        # exactly those that are entered below, so that one look for room does for all
        kept += until[k] < life[k]
    # all so far can be done again: the tail is as it was, and lives have only gone into maxima
    if not has_room_for(v, slot, kept):
        return False
    # collected from the end of the tail: backwards they ascend by seq, and `put` moves little
    for k in range(few - 1, -1, -1):
        if until[k] < life[k]:
            put(v, slot, seq[k], life[k], spatial[k], text[k], until[k])
    words[slot, _COUNT] = 0
    return True


@njit(cache=True, nogil=True)
def settle_all(v, tails, slots, first):
    """Settle slots from position `first` on; returns the position that found no room in the pool, or all."""
    scratch = _scratch()
    for begin in range(first, slots.shape[0], _FULL):
        end = min(begin + _FULL, slots.shape[0])
        ask_for_blocks(v, slots[begin:end])
        for i in range(begin, end):
            if not settle(v, tails, slots[i], scratch):
                return i
    return slots.shape[0]


@njit_no_refcount
def ask_for_blocks(v, slots):
    """Have the blocks of some slots come from memory together."""
    for slot in slots:
        # first where the blocks are: without that the second loop cannot ask for their lines
        prefetch(v.start, slot)
        prefetch(v.count, slot)
        prefetch(v.due, slot)
        prefetch(v.size_class, slot)
    for slot in slots:
        start = v.start[slot]
        if start >= 0:
            # with the place behind the last entry, where `put` writes
            for at in range(start, start + v.count[slot] + 1, _LINE):
                prefetch(v.spatial, at)
                prefetch(v.text, at)
                prefetch(v.life, at)
                prefetch(v.seq, at)
                prefetch(v.until, at)


@njit(cache=True, nogil=True)
def defer(v, tails, offers, done, full, left):
    """Put by what changes no skyline; stops early where the pool has no room, to be called again after it has grown.

    Parameters
    ----------
    done : int64[3]       offers seen, slots in `full`, offers in `left`
    full : int32[_FULL]   slots whose tail is full
    left : int32[n]       positions of offers that must be looked at
    """
    words, reals, scratch = tails.words, tails.reals, _scratch()
    count = offers.slot.shape[0]
    for i in range(done[0], count):
        if i + 2 * _AHEAD < count:
            # count and members first; once they are here, the place in the tail that will be written. In int64, since
            # with the compiler switched off a slot times a literal stays int32, and can overflow.
            prefetch(words, np.int64(offers.slot[i + 2 * _AHEAD]) * _WORDS)
        if i + _AHEAD < count:
            soon = offers.slot[i + _AHEAD]
            prefetch(words, np.int64(soon) * _WORDS + _NEW + 4 * words[soon, _COUNT])
        slot, spatial, text = offers.slot[i], offers.spatial[i], offers.text[i]
        covered = False
        for best in range(_BEST, _NEW, 2):
            its_spatial, its_text = reals[slot, best], reals[slot, best + 1]
            # strictly in one: a coincident newcomer belongs to the skyline as well
            better = (its_spatial > spatial) | (its_text > text)
            covered |= (its_spatial >= spatial) & (its_text >= text) & better
        # no member above it that we know of: it may enter the skyline, so the engine has to look
        if not covered:
            left[done[2]] = i
            done[2] += 1
            continue
        # full tails wait for each other, so that their blocks come from memory together
        if words[slot, _COUNT] == _TAIL or done[1] == full.shape[0]:
            if not _settle_full(v, tails, full, done, scratch):
                done[0] = i
                return
        # filled in an earlier batch, whose list of full tails is gone
        if words[slot, _COUNT] == _TAIL and not settle(v, tails, slot, scratch):
            done[0] = i
            return
        at = _NEW + 4 * words[slot, _COUNT]
        words[slot, at] = offers.seq[i]
        words[slot, at + 1] = offers.life[i]
        reals[slot, at + 2] = spatial
        reals[slot, at + 3] = text
        words[slot, _COUNT] += 1
        if words[slot, _COUNT] == _TAIL:
            full[done[1]] = slot
            done[1] += 1
    done[0] = count


@njit_no_refcount
def _settle_full(v, tails, full, done, scratch):
    """Settle the slots in `full`; False if the pool has no room."""
    ask_for_blocks(v, full[: done[1]])
    while done[1] > 0:
        if not settle(v, tails, full[done[1] - 1], scratch):
            return False
        # from the end, so that what is left is still in front when the caller comes again
        done[1] -= 1
    return True


@njit_no_refcount
def forget_ended(v, tails, slots, seqs, left):
    """Take ended messages out of the tails; into `left` (int32[n]) go positions of those kept in blocks, how many."""
    count, words = 0, tails.words
    for begin in range(0, slots.shape[0], _FULL):
        end = min(begin + _FULL, slots.shape[0])
        for i in range(begin, end):
            record = np.int64(slots[i]) * _WORDS
            for line in range(0, _WORDS, _LINE):
                # three rounds, for each needs what the one before has brought: records and blocks, seqs, the search
                prefetch(words, record + line)
            prefetch(v.start, slots[i])
            prefetch(v.count, slots[i])
        for i in range(begin, end):
            start = v.start[slots[i]]
            if start >= 0:
                for at in range(start, start + v.count[slots[i]], _LINE):
                    prefetch(v.seq, at)
        for i in range(begin, end):
            # in a tail it was never compared, so it has kept nothing out
            if _forget_one(tails, slots[i], seqs[i]):
                continue
            # nowhere: it was dropped, and what dominates it covers all it kept out
            if place_of(v, slots[i], seqs[i]) >= 0:
                left[count] = i
                count += 1
    return count


@njit(cache=True, nogil=True)
def _forget_one(tails, slot, seq):
    """Take a message out of a tail; False if it is not there."""
    words, last = tails.words, tails.words[slot, _COUNT] - 1
    for i in range(last + 1):
        if words[slot, _NEW + 4 * i] == seq:
            # in order, not the last into the gap: settling is quick because the youngest stand last
            for word in range(_NEW + 4 * i, _NEW + 4 * last):
                words[slot, word] = words[slot, word + 4]
            words[slot, _COUNT] = last
            return True
    return False
