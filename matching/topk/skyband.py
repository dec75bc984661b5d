"""Result buffers: for each subscription the k-skyband of the messages that reach its threshold, as flat arrays.

A message is dominated by another that ranks above it (higher score; of equal scores the higher seq) and lives at
least as long. Whatever is dominated by k others can never be among the k best again, so it is dropped; the rest is
the k-skyband (Wang et al., Skype, section 6). Two facts make it exact:

- while a buffer holds at least k messages, or has no threshold, its k first are the k best of the window;
- it holds fewer than k exactly when fewer than k messages of the window reach the threshold. Then the
  threshold must fall, which needs the window: a refill (`matching.topk.stream`).

Entries of a slot lie in one block of a pool in rank order, so its result is the front of the block, and what
a newcomer dominates is a part of what stands behind it.
"""

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from matching.errors import EngineError
from matching.model import Float64, Int32, Int64, take_ragged
from matching.slots import resized

#: What the pool has lost to free blocks when it is full is won back by packing if it is at least this share.
_FREE_SHARE = 0.125
_HALF = 2**30
#: Places a block keeps free when the pool is packed.
_SPARE = 2
#: Block sizes by class: steps of about a third keep the waste of a block below that share.
_SIZES = np.array([4, 8, 12, 16, 20, 24, 28, 32, 40, 48, 64, 96, 128] + [192 << i for i in range(24)], np.int64)
_NO_BLOCK = -1


class Buffers(NamedTuple):
    """Kernel view of the buffers; n slots.

    start : int64[n]        place of the slot's block in the pool, -1 if it has none
    size_class : int8[n]    its size, as position in the table of sizes
    count : int32[n]        entries in use, in rank order: score descending, then seq descending
    oldest : int64[n]       a lower bound of the lives in the block (nothing to expire while it is above the floor)
    score : float64[pool]
    seq : int32[pool]       less `base`
    life : int64[pool]      for count windows the same array as `seq`
    dominators : int16[pool] how many entries dominate this one, always below k
    free : int64[classes]   first block of a list of free ones by size, chained through `seq`; -1 ends it
    used : int64[2]         end of the used part of the pool; `base`, from which seqs (and lives that are seqs) count
    """

    start: Int64
    size_class: np.ndarray
    count: Int32
    oldest: Int64
    score: Float64
    seq: Int32
    life: np.ndarray
    dominators: np.ndarray
    free: Int64
    used: Int64


class Held(NamedTuple):
    """Results of some slots, row after row: `offsets` int64[rows + 1], `seq` int64, `score` float64."""

    offsets: Int64
    seq: Int64
    score: Float64

    def take(self, rows: Int64) -> "Held":
        """Some rows. O(rows + entries)."""
        offsets, picked = take_ragged(self.offsets, rows)
        return Held(offsets, self.seq[picked], self.score[picked])


class Closed(NamedTuple):
    """What a batch did to the buffers (`SkybandBuffers.close`).

    touched : int32[t], count : int32[t]    slots that took something in or lost something, ascending; entries left
    slot : int32[u], seq : int64[u], score : float64[u], enters : bool[u]    how results changed, slot by slot
    short : int32[s], before : Held         slots that fell below k under a threshold: not in the former, but with the
                                            result they had
    """

    touched: Int32
    count: Int32
    slot: Int32
    seq: Int64
    score: Float64
    enters: np.ndarray
    short: Int32
    before: Held


class SkybandBuffers:
    """The buffers of all slots of a store.

    Parameters
    ----------
    seq_is_life : bool
        True for count windows, where a message's life is its seq and need not be kept twice.
    """

    def __init__(self, seq_is_life: bool):
        self.seq_is_life = seq_is_life
        seq = np.zeros(0, np.int32)
        self.view = Buffers(
            np.zeros(0, np.int64),
            np.zeros(0, np.int8),
            np.zeros(0, np.int32),
            np.zeros(0, np.int64),
            np.zeros(0, np.float64),
            seq,
            seq if seq_is_life else np.zeros(0, np.int64),
            np.zeros(0, np.int16),
            np.full(_SIZES.shape[0], _NO_BLOCK, np.int64),
            np.zeros(2, np.int64),
        )
        self._head = np.zeros(0, np.int32)

    def ensure_slots(self, capacity: int) -> None:
        """Have room for slots 0 to `capacity` - 1, new ones empty."""
        v = self.view
        if v.start.shape[0] < capacity:
            self.view = v._replace(
                start=resized(v.start, capacity, _NO_BLOCK),
                size_class=resized(v.size_class, capacity),
                count=resized(v.count, capacity),
                oldest=resized(v.oldest, capacity, np.iinfo(np.int64).max),
            )

    def offer(self, slots: Int32, seqs: Int64, lives: Int64, scores: Float64, k: Int32) -> None:
        """Offer message i to the buffer of `slots[i]`; every score reaches the slot's threshold already.

        O(entries of a block) an offer. Order does not matter; offering a message twice is the caller's fault.
        """
        if not slots.shape[0]:
            return
        latest = int(seqs.max())
        if latest - self.view.used[1] >= _HALF:
            self._rebase(latest)
        base = self.view.used[1]
        seqs = (seqs - base).astype(np.int32)
        lives = seqs if self.seq_is_life else lives
        done = 0
        while done < slots.shape[0]:
            done = _offer_all(self.view, slots, seqs, lives, scores, k, done, _SIZES)
            if done < slots.shape[0]:
                self._make_room()

    def close(
        self,
        slots: Int32,
        seqs: Int64,
        lives: Int64,
        scores: Float64,
        floor: int,
        k: Int32,
        dominators: Int32,
        threshold: Float64,
        passed_over: NDArray[np.bool_],
    ) -> Closed:
        """Offer the hits of a batch, drop what has life <= floor from all slots, and tell how results changed.

        The same as `held`, `offer`, `expire` and `difference` one after the other, but slot by slot, so that each
        buffer is fetched from memory once, and in ascending order.

        Parameters
        ----------
        slots, seqs, lives, scores
            As for `offer`.
        floor : int
        k, dominators, threshold, passed_over
            By slot: wanted results; how many dominators drop an entry; threshold (float64, minus infinity for none);
            bool, slots to be left alone (no hit may be theirs).

        Notes
        -----
        O(slots) for one pass over two columns, and O(entries) a slot that is due or hit.
        """
        v = self.view
        if slots.shape[0]:
            latest = int(seqs.max())
            if latest - v.used[1] >= _HALF:
                self._rebase(latest)
        seqs = (seqs - v.used[1]).astype(np.int32)
        lives = seqs if self.seq_is_life else lives
        if self._head.shape[0] < v.start.shape[0]:
            self._head = np.full(v.start.shape[0], -1, np.int32)
        following = np.empty(slots.shape[0], np.int32)
        _chain(slots, self._head, following)
        room = max(1 << 16, 4 * slots.shape[0])
        touched, count = np.empty(v.start.shape[0], np.int32), np.empty(v.start.shape[0], np.int32)
        parts: list[tuple[np.ndarray, ...]] = []
        done = np.zeros(5, np.int64)  # next slot; touched; updates; short slots; entries of their results
        while not parts or done[0] < v.start.shape[0]:
            slot, seq, score = np.empty(room, np.int32), np.empty(room, np.int64), np.empty(room)
            enters, short, ends = np.empty(room, np.bool_), np.empty(room, np.int32), np.empty(room, np.int64)
            before_seq, before_score = np.empty(room, np.int64), np.empty(room)
            done[2:] = 0
            first = int(done[0])
            full = _close_all(
                self.view, self._head, following, seqs, lives, scores, self._shifted(floor), k, dominators, threshold,
                passed_over, touched, count, slot, seq, score, enters, short, ends, before_seq, before_score, done,
                _SIZES,
            )  # fmt: skip
            _, _, updates, shorts, entries = done.tolist()
            parts.append(
                (slot[:updates], seq[:updates], score[:updates], enters[:updates], short[:shorts], ends[:shorts],
                 before_seq[:entries], before_score[:entries])
            )  # fmt: skip
            if full:
                self._make_room()
            elif done[0] == first:
                room *= 4  # not even one slot's results fitted
        columns = [np.concatenate(column) if len(parts) > 1 else column[0] for column in zip(*parts, strict=True)]
        lengths = np.concatenate([np.diff(part[5], prepend=0) for part in parts])
        offsets = np.zeros(lengths.shape[0] + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        before = Held(offsets, columns[6], columns[7])
        slot, seq, score, enters, short = columns[:5]
        return Closed(touched[: done[1]], count[: done[1]], slot, seq, score, enters, short, before)

    def expire(self, slots: Int32, floor: int) -> None:
        """Drop from these slots whatever has life <= floor. O(entries)."""
        _expire_all(self.view, slots, self._shifted(floor))

    def due(self, floor: int) -> Int32:
        """Slots that may hold something with life <= floor (int32, ascending). O(slots), one pass over one array."""
        return _due(self.view.oldest, self._shifted(floor))

    def raise_threshold(self, slots: Int32, ranks: Int32, thresholds: Float64) -> None:
        """Set thresholds[slot] to the score at rank ranks[i] of the buffer of slots[i] and drop what lies below.

        O(entries). Each slot must hold at least that many; entries equal to the new threshold stay.
        """
        _raise_all(self.view, slots, ranks, thresholds, _SIZES)

    def clear(self, slots: Int32) -> None:
        """Empty the buffers of these slots and free their blocks. O(slots)."""
        _clear_all(self.view, slots)

    def held(self, slots: Int32, k: Int32) -> Held:
        """The results of these slots: the first min(k, count) entries of each. O(result)."""
        offsets = np.zeros(slots.shape[0] + 1, np.int64)
        np.cumsum(np.minimum(self.view.count[slots], k[slots]), out=offsets[1:])
        held = Held(offsets, np.empty(offsets[-1], np.int64), np.empty(offsets[-1], np.float64))
        _copy_held(self.view, slots, held)
        return held

    def describe(self) -> dict[str, int]:
        """How many buffers hold something, and how many entries all of them hold. O(slots)."""
        return {"buffers": int(np.count_nonzero(self.view.count)), "entries": int(self.view.count.sum())}

    def arrays(self) -> dict[str, np.ndarray]:
        """Every array needed to continue, the pool trimmed to what is in use."""
        used = int(self.view.used[0])
        pools = ("score", "seq", "life", "dominators")
        arrays = {name: value[:used] if name in pools else value for name, value in self.view._asdict().items()}
        if self.seq_is_life:
            del arrays["life"]
        return arrays

    @classmethod
    def from_arrays(cls, arrays: dict[str, np.ndarray]) -> "SkybandBuffers":
        """Continue from `arrays`; everything is copied."""
        buffers = cls(seq_is_life="life" not in arrays)
        copied: dict[str, np.ndarray] = {name: arrays[name].copy() for name in Buffers._fields if name in arrays}
        copied.setdefault("life", copied["seq"])
        buffers.view = Buffers(**copied)
        return buffers

    def _shifted(self, floor: int) -> int:
        """A floor as lives are stored."""
        return floor - int(self.view.used[1]) if self.seq_is_life else floor

    def _rebase(self, latest: int) -> None:
        """Count seqs from `latest` from now on. O(entries), once in 2**30 messages."""
        v = self.view
        shift = latest - int(v.used[1])
        if not _shift_all(v.start, v.count, v.seq, shift):
            raise EngineError("top-k buffers: a message is 2**31 behind the newest; the window is too long for one run")
        if self.seq_is_life:
            held = v.count > 0
            v.oldest[held] -= shift
        v.used[1] = latest

    def _make_room(self) -> None:
        """Pack the pool if enough of it is free, else let it grow by a quarter."""
        v = self.view
        order = np.flatnonzero(v.start >= 0)
        fitting = np.searchsorted(_SIZES, v.count[order] + _SPARE)
        live = int(_SIZES[np.minimum(fitting, v.size_class[order])].sum())
        if int(v.used[0]) - live > max(_FREE_SHARE * live, 4096):
            _pack(v, order[np.argsort(v.start[order], kind="stable")], _SIZES)
            return
        size = max(4096, v.score.shape[0] + v.score.shape[0] // 4)
        seq = resized(v.seq, size)
        self.view = v._replace(
            score=resized(v.score, size),
            seq=seq,
            life=seq if self.seq_is_life else resized(v.life, size),
            dominators=resized(v.dominators, size),
        )


@njit(cache=True, nogil=True)
def _shift_all(start, count, seq, shift):
    """Take `shift` off every stored seq; False if one does not fit any more."""
    fits = True
    for slot in range(start.shape[0]):
        for at in range(start[slot], start[slot] + count[slot]):
            moved = np.int64(seq[at]) - shift
            fits = fits and moved >= -(2**31)
            seq[at] = np.int32(moved)
    return fits


@njit(cache=True, nogil=True)
def _pack(v, order, sizes):
    """Move the blocks of the slots in `order` (ascending by place) together, no larger than they need to be.

    Nothing is free afterwards.
    """
    end = 0
    for slot in order:
        start = v.start[slot]
        if end < start:
            for i in range(v.count[slot]):
                v.score[end + i] = v.score[start + i]
                v.seq[end + i] = v.seq[start + i]
                v.life[end + i] = v.life[start + i]
                v.dominators[end + i] = v.dominators[start + i]
            v.start[slot] = end
        fitting = 0
        while sizes[fitting] < v.count[slot] + _SPARE:
            fitting += 1
        v.size_class[slot] = min(v.size_class[slot], fitting)
        end += sizes[v.size_class[slot]]
    v.used[0] = end
    for size_class in range(v.free.shape[0]):
        v.free[size_class] = _NO_BLOCK


@njit(cache=True, nogil=True)
def _chain(slots, head, following):
    """Chain the hits of each slot: head[slot] is its last, following[hit] the one before, -1 ends it."""
    for hit in range(slots.shape[0]):
        following[hit] = head[slots[hit]]
        head[slots[hit]] = hit


@njit(cache=True, nogil=True)
def _close_all(
    v, head, following, seqs, lives, scores, floor, k, dominators, threshold, passed_over, touched, count, out_slot,
    out_seq, out_score, out_enters, short, short_end, before_seq, before_score, done, sizes,
):  # fmt: skip
    """Close slots from done[0] on; stops where the pool (returns True) or the output (False) has no room for the next.

    Unchains the hits it takes. `done` as in `SkybandBuffers.close`; `short_end` has the end of each result before.
    """
    was_seq, was_score = np.empty(64, np.int64), np.empty(64, np.float64)
    base = v.used[1]
    for slot in range(done[0], v.start.shape[0]):
        hit = head[slot]
        if hit < 0 and (v.oldest[slot] > floor or passed_over[slot]):
            continue
        wanted = k[slot]
        if done[2] + 2 * wanted > out_slot.shape[0] or done[4] + wanted > before_seq.shape[0]:
            done[0] = slot
            return False
        if hit >= 0 and not _has_room(v, slot, hit, following, sizes):
            done[0] = slot
            return True
        held = min(v.count[slot], wanted)
        if held > was_seq.shape[0]:
            was_seq, was_score = np.empty(2 * held, np.int64), np.empty(2 * held, np.float64)
        start = v.start[slot]
        for i in range(held):
            was_seq[i] = base + v.seq[start + i]
            was_score[i] = v.score[start + i]
        while hit >= 0:
            if v.start[slot] < 0 or v.count[slot] == sizes[v.size_class[slot]]:
                _move_block(v, slot, 0 if v.start[slot] < 0 else v.size_class[slot] + 1, sizes)
            _offer(v, slot, seqs[hit], lives[hit], scores[hit], dominators[slot])
            hit = following[hit]
        head[slot] = -1
        _expire(v, slot, floor)
        touched[done[1]] = slot
        count[done[1]] = v.count[slot]
        done[1] += 1
        if v.count[slot] < wanted and threshold[slot] > -np.inf:
            for i in range(held):
                before_seq[done[4] + i] = was_seq[i]
                before_score[done[4] + i] = was_score[i]
            done[4] += held
            short[done[3]] = slot
            short_end[done[3]] = done[4]
            done[3] += 1
            continue
        # both results in rank order; what left is told before what entered
        start, now = v.start[slot], min(v.count[slot], wanted)
        j = 0
        for i in range(held):
            while j < now and _above(v.score[start + j], base + v.seq[start + j], was_score[i], was_seq[i]):
                j += 1
            if j == now or base + v.seq[start + j] != was_seq[i]:
                _note(out_slot, out_seq, out_score, out_enters, done, slot, was_seq[i], was_score[i], False)
        i = 0
        for j in range(now):
            seq, score = base + v.seq[start + j], v.score[start + j]
            while i < held and _above(was_score[i], was_seq[i], score, seq):
                i += 1
            if i == held or was_seq[i] != seq:
                _note(out_slot, out_seq, out_score, out_enters, done, slot, seq, score, True)
    done[0] = v.start.shape[0]
    return False


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
def _has_room(v, slot, hit, following, sizes):
    """Whether the pool has room for every move that the chained hits of a slot may ask for."""
    needed = 0 if v.start[slot] < 0 else v.count[slot]
    while hit >= 0:
        needed += 1
        hit = following[hit]
    its_class = -1 if v.start[slot] < 0 else v.size_class[slot]
    end = v.used[0]
    while its_class < 0 or sizes[its_class] < needed:
        its_class += 1
        end += sizes[its_class]
    return end <= v.score.shape[0]


@njit(cache=True, nogil=True)
def _offer_all(v, slots, seqs, lives, scores, k, first, sizes):
    """Offer from hit `first` on; returns the hit that found no room in the pool, or the number of hits."""
    for hit in range(first, slots.shape[0]):
        slot = slots[hit]
        if v.start[slot] < 0 or v.count[slot] == sizes[v.size_class[slot]]:
            if not _move_block(v, slot, 0 if v.start[slot] < 0 else v.size_class[slot] + 1, sizes):
                return hit
        _offer(v, slot, seqs[hit], lives[hit], scores[hit], k[slot])
    return slots.shape[0]


@njit(cache=True, nogil=True)
def _offer(v, slot, seq, life, score, k):
    """Insert one message into a block that has room, counting whom it dominates and who dominates it."""
    start, count = v.start[slot], v.count[slot]
    # Entries that rank above the newcomer come first; of them, those that live as long dominate it.
    above = 0
    dominators = 0
    while above < count:
        at = start + above
        if v.score[at] < score or (v.score[at] == score and v.seq[at] < seq):
            break
        if v.life[at] >= life:
            dominators += 1
        above += 1
    if dominators >= k:
        return
    kept = above
    for at in range(start + above, start + count):
        now = v.dominators[at] + (1 if v.life[at] <= life else 0)
        if now < k:
            v.dominators[start + kept] = now
            v.score[start + kept] = v.score[at]
            v.seq[start + kept] = v.seq[at]
            v.life[start + kept] = v.life[at]
            kept += 1
    for at in range(start + kept, start + above, -1):
        v.score[at] = v.score[at - 1]
        v.seq[at] = v.seq[at - 1]
        v.life[at] = v.life[at - 1]
        v.dominators[at] = v.dominators[at - 1]
    at = start + above
    v.score[at] = score
    v.seq[at] = seq
    v.life[at] = life
    v.dominators[at] = dominators
    v.count[slot] = kept + 1
    v.oldest[slot] = min(v.oldest[slot], life)


@njit(cache=True, nogil=True)
def _move_block(v, slot, new_class, sizes):
    """Move a slot's entries to a block of another size; False if the pool has no such block left."""
    size = sizes[new_class]
    new_start = v.free[new_class]
    if new_start >= 0:
        v.free[new_class] = v.seq[new_start]
    else:
        new_start = v.used[0]
        if new_start + size > v.score.shape[0]:
            return False
        v.used[0] = new_start + size
    old_start = v.start[slot]
    if old_start >= 0:
        for i in range(v.count[slot]):
            v.score[new_start + i] = v.score[old_start + i]
            v.seq[new_start + i] = v.seq[old_start + i]
            v.life[new_start + i] = v.life[old_start + i]
            v.dominators[new_start + i] = v.dominators[old_start + i]
        _free_block(v, slot)
    v.start[slot] = new_start
    v.size_class[slot] = new_class
    return True


@njit(cache=True, nogil=True)
def _free_block(v, slot):
    """Chain the slot's block into the list of free ones of its size."""
    block, its_class = v.start[slot], v.size_class[slot]
    v.seq[block] = v.free[its_class]
    v.free[its_class] = block
    v.start[slot] = -1


@njit(cache=True, nogil=True)
def _clear_all(v, slots):
    for slot in slots:
        if v.start[slot] >= 0:
            _free_block(v, slot)
        v.count[slot] = 0
        v.oldest[slot] = np.iinfo(np.int64).max


@njit(cache=True, nogil=True)
def _expire_all(v, slots, floor):
    for slot in slots:
        _expire(v, slot, floor)


@njit(cache=True, nogil=True)
def _expire(v, slot, floor):
    """Drop dead entries. No counter changes: what dies dominates only what dies with it or before it."""
    if v.oldest[slot] > floor:
        return
    start = v.start[slot]
    kept = 0
    oldest = np.iinfo(np.int64).max
    for at in range(start, start + v.count[slot]):
        if v.life[at] > floor:
            to = start + kept
            v.score[to] = v.score[at]
            v.seq[to] = v.seq[at]
            v.life[to] = v.life[at]
            v.dominators[to] = v.dominators[at]
            oldest = min(oldest, v.life[to])
            kept += 1
    v.count[slot] = kept
    v.oldest[slot] = oldest


@njit(cache=True, nogil=True)
def _due(oldest, floor):
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


@njit(cache=True, nogil=True)
def _raise_all(v, slots, ranks, thresholds, sizes):
    """Cut the blocks off at their new thresholds, moving what is left into a smaller block where half is unused."""
    for i in range(slots.shape[0]):
        slot = slots[i]
        start = v.start[slot]
        threshold = v.score[start + ranks[i] - 1]
        count = ranks[i]
        while count < v.count[slot] and v.score[start + count] >= threshold:
            count += 1
        v.count[slot] = count
        thresholds[slot] = threshold
        if 2 * count < sizes[v.size_class[slot]]:
            new_class = 0
            while sizes[new_class] < count + count // 4 + 1:
                new_class += 1
            _move_block(v, slot, new_class, sizes)  # no room is no harm: the block stays as large as it was


@njit(cache=True, nogil=True)
def _copy_held(v, slots, held):
    for row in range(slots.shape[0]):
        start, first = v.start[slots[row]], held.offsets[row]
        for i in range(held.offsets[row + 1] - first):
            held.seq[first + i] = v.used[1] + v.seq[start + i]
            held.score[first + i] = v.score[start + i]


@njit(cache=True, nogil=True)
def difference(before, after, out_row, out_seq, out_score, out_enters):
    """Write the set difference of two results of the same rows; returns how many were written.

    Parameters
    ----------
    before, after : Held
        Results in rank order, row for row; a message keeps its score.
    out_row : int32[m], out_seq : int64[m], out_score : float64[m], out_enters : bool[m]
        m at least the entries of both together; what left a row stands before what entered it.

    Notes
    -----
    One pass over both in rank order. Reference: set difference in `matching.naive`.
    """
    written = 0
    for row in range(before.offsets.shape[0] - 1):
        for enters in (False, True):
            old = after if enters else before
            new = before if enters else after
            i, last_i = old.offsets[row], old.offsets[row + 1]
            j, last_j = new.offsets[row], new.offsets[row + 1]
            while i < last_i:
                # skip what ranks above old[i]; scores and seqs are exact copies, so equality is exact
                while j < last_j and (
                    new.score[j] > old.score[i] or (new.score[j] == old.score[i] and new.seq[j] > old.seq[i])
                ):
                    j += 1
                if j == last_j or new.seq[j] != old.seq[i]:
                    out_row[written] = row
                    out_seq[written] = old.seq[i]
                    out_score[written] = old.score[i]
                    out_enters[written] = enters
                    written += 1
                i += 1
    return written
