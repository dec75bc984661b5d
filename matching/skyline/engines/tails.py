"""Deferred newcomers: a message that cannot change a skyline is compared with the result buffer later, in bulk.

In a window by count every newcomer outlives the whole buffer, so it has to be kept, at the cost of a comparison with a
whole block of the pool. Yet hardly one in a hundred enters a skyline: most are dominated by one of its best members. A
record for each slot, a few cache lines long, has those members and a tail of newcomers. A newcomer that one of these
members dominates is appended to the tail, and no other memory is touched.

That is exact as long as the members stay: while one lives, no message that it dominates is in the skyline, nor can the
newcomer have dominated a member. Before the skyline of a slot changes, and when its tail is full, the tail is settled:
each newcomer is compared with the block as if it came then (`matching.skyline.engines.eager`). A message that is ended
while in the tail has kept nothing out, and is just removed.
"""

from typing import NamedTuple

import numpy as np

from compiling.njit import njit, njit_inner, njit_inner_no_refcount, njit_no_refcount
from matching.model import Float64, Int64
from matching.skyline.results import UNDOMINATED, copy_entry, dominates, has_capacity_for, place_of, put
from matching.storage.prefetch import prefetch
from matching.storage.slots import resized

#: Members in a record, newcomers in its tail.
_MEMBERS, _TAIL = 3, 14
#: Words of a record: how many are in the tail; from `_BEST` on the members, two relevances each; from `_NEW` on the
#: tail, four words each: seq, life, two relevances.
_COUNT, _BEST, _NEW = 0, 2, 8
_WORDS = _NEW + 4 * _TAIL
_LINE = 8
#: Hits that are prefetched ahead, full tails that are settled together.
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
    """The same with slots up to `capacity`, exclusive; new ones have no members, so that nothing is deferred."""
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
            tails.reals[slot, i] = -1.0  # below every relevance: dominates nothing


@njit_no_refcount
def note_members(v, tails, slots, floor):
    """Write the members that dominate most, of the skylines at this floor, into the records; O(entries)."""
    for slot in slots:
        for i in range(_BEST, _NEW):
            tails.reals[slot, i] = -1.0
        # the choice of members affects how much is deferred, never the results
        for at in range(v.start[slot], v.start[slot] + v.count[slot]):
            if v.until[at] <= floor:
                # the larger this product, the more it dominates
                spatial, text, place = v.spatial[at], v.text[at], _BEST
                while place < _NEW:
                    was_spatial, was_text = tails.reals[slot, place], tails.reals[slot, place + 1]
                    if was_spatial < 0.0 or spatial * text > was_spatial * was_text:
                        tails.reals[slot, place], tails.reals[slot, place + 1] = spatial, text
                        spatial, text = was_spatial, was_text
                        # an empty place was displaced: only empty ones follow
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
    """Compare the newcomers in a tail with the block, all at once; False, to be repeated, if the pool is exhausted.

    A message is dropped if the longest life of those that dominate it is no less than its own. A dominator that is
    dropped itself still counts, for another one dominates both and lives as long. The tail is read from its end: those
    that a younger one dominates, most of it, are never compared with the block.
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
                # dropped already: a longer life would change nothing
                if most >= its_life:
                    break
        if most >= its_life:
            continue
        for j in range(few):
            if dominates(its_spatial, its_text, spatial[j], text[j]):
                # an older message may outlive a late one, which is then left out at the end, but still drops others
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
                    # the others need no comparison: its dominator covers all that this entry dominates, as long
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
        # exactly those that are inserted below, so that one check of the capacity suffices
        kept += until[k] < life[k]
    # all so far is idempotent: the tail is unchanged, and lives have only raised maxima
    if not has_capacity_for(v, slot, kept):
        return False
    # collected from the end of the tail: backwards they ascend by seq, and `put` moves little
    for k in range(few - 1, -1, -1):
        if until[k] < life[k]:
            put(v, slot, seq[k], life[k], spatial[k], text[k], until[k])
    words[slot, _COUNT] = 0
    return True


@njit(cache=True, nogil=True)
def settle_all(v, tails, slots, first):
    """Settle slots from position `first` on; returns the position that exhausted the pool, or all."""
    scratch = _scratch()
    for begin in range(first, slots.shape[0], _FULL):
        end = min(begin + _FULL, slots.shape[0])
        prefetch_blocks(v, slots[begin:end])
        for i in range(begin, end):
            if not settle(v, tails, slots[i], scratch):
                return i
    return slots.shape[0]


@njit_inner_no_refcount
def prefetch_blocks(v, slots):
    """Prefetch the blocks of some slots."""
    for slot in slots:
        # places of the blocks first: the second loop needs them
        prefetch(v.start, slot)
        prefetch(v.count, slot)
        prefetch(v.due, slot)
        prefetch(v.size_class, slot)
    for slot in slots:
        start = v.start[slot]
        if start >= 0:
            # and the place behind the last entry, where `put` writes
            for at in range(start, start + v.count[slot] + 1, _LINE):
                prefetch(v.spatial, at)
                prefetch(v.text, at)
                prefetch(v.life, at)
                prefetch(v.seq, at)
                prefetch(v.until, at)


@njit(cache=True, nogil=True)
def defer(v, tails, offers, done, full, left):
    """Append newcomers that change no skyline to tails; stops where the pool is exhausted, to be repeated once it grew.

    Parameters
    ----------
    done : int64[3]       offers seen, slots in `full`, offers in `left`
    full : int32[_FULL]   slots whose tail is full
    left : int32[n]       positions of offers that the engine must take
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
        # no member in the record dominates it: it may enter the skyline, so the engine must take it
        if not covered:
            left[done[2]] = i
            done[2] += 1
            continue
        # full tails are settled together, so that their blocks are prefetched together
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


@njit_inner_no_refcount
def _settle_full(v, tails, full, done, scratch):
    """Settle the slots in `full`; False if the pool is exhausted."""
    prefetch_blocks(v, full[: done[1]])
    while done[1] > 0:
        if not settle(v, tails, full[done[1] - 1], scratch):
            return False
        # from the end, so that the rest is in front when the caller repeats
        done[1] -= 1
    return True


@njit_no_refcount
def forget_ended(v, tails, slots, seqs, left):
    """Remove ended messages from tails; writes positions of those in blocks to `left` (int32[n]), returns how many."""
    count, words = 0, tails.words
    for begin in range(0, slots.shape[0], _FULL):
        end = min(begin + _FULL, slots.shape[0])
        for i in range(begin, end):
            record = np.int64(slots[i]) * _WORDS
            for line in range(0, _WORDS, _LINE):
                # three passes, each on what the one before has prefetched: records and blocks, seqs, the search
                prefetch(words, record + line)
            prefetch(v.start, slots[i])
            prefetch(v.count, slots[i])
        for i in range(begin, end):
            start = v.start[slots[i]]
            if start >= 0:
                for at in range(start, start + v.count[slots[i]], _LINE):
                    prefetch(v.seq, at)
        for i in range(begin, end):
            # in a tail it has kept nothing out
            if _forget_one(tails, slots[i], seqs[i]):
                continue
            # found nowhere: it was dropped, and its dominator covers all it kept out
            if place_of(v, slots[i], seqs[i]) >= 0:
                left[count] = i
                count += 1
    return count


@njit_inner
def _forget_one(tails, slot, seq):
    """Remove a message from a tail; False if it is not there."""
    words, last = tails.words, tails.words[slot, _COUNT] - 1
    for i in range(last + 1):
        if words[slot, _NEW + 4 * i] == seq:
            # in order, not the last into the gap: settling is quick because the youngest are last
            for word in range(_NEW + 4 * i, _NEW + 4 * last):
                words[slot, word] = words[slot, word + 4]
            words[slot, _COUNT] = last
            return True
    return False
