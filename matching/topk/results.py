"""Result buffers: for each subscription the k-skyband of the messages that reach its threshold, as flat arrays.

A message is dominated by another that ranks above it (higher score; of equal scores the higher seq) and lives at
least as long. A message that k others dominate can never be among the k best again, so it is dropped; the rest is
the k-skyband (Wang et al., Skype, section 6). Two facts make it exact:

- while a buffer has at least k messages, or no threshold, its first k are the k best of the window;
- it has fewer than k exactly when fewer than k messages of the window reach the threshold. Then the
  threshold must fall, which needs the window: a refill (`matching.refill`).

Entries of a slot lie in one block of a pool in rank order: its result is the front of the block, and all entries that a
new one dominates come after it. Kernels: `matching.topk.results_kernels`.
"""

from copy import copy
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from matching.errors import EngineError
from matching.model import Float64, Int32, Int64
from matching.result_rows import ResultRows
from matching.storage.block_pool import NO_BLOCK
from matching.storage.slots import resized
from matching.topk.results_kernels import (
    SPARE,
    clear_all,
    close_all,
    copy_results,
    drop_ended,
    expire_all,
    find_due,
    offer_all,
    order_by_slot,
    pack,
    raise_all,
    shift_all,
)

#: A full pool is packed, not extended, if at least this fraction of it is free blocks.
_FREE_FRACTION = 0.125
_HALF = 2**30
#: Block sizes by class: each about a third larger, which bounds the unused part of a block.
_SIZES = np.array([4, 8, 12, 16, 20, 24, 28, 32, 40, 48, 64, 96, 128] + [192 << i for i in range(24)], np.int64)


class Buffers(NamedTuple):
    """Kernel view of the buffers; n slots.

    start : int64[n]        place of the slot's block in the pool, -1 if it has none
    size_class : int8[n]    its size, as position in the table of sizes
    count : int32[n]        entries in use, in rank order: score descending, then seq descending
    oldest : int64[n]       a lower bound of the lives in the block (nothing to expire while it is above the floor)
    score : float64[pool]
    seq : int32[pool]       less `base`; int64 of a stream of objects, some of which never change
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


class ClosedBuffers(NamedTuple):
    """Effect of a batch on the buffers (`ResultBuffers.close`).

    touched : int32[t], count : int32[t]    slots that gained or lost entries, ascending; entries left
    slot : int32[u], seq : int64[u], score : float64[u], enters : bool[u]    differences of results, by slot
    short : int32[s], before : ResultRows    slots that fell below k under a threshold, which have no differences, and
                                             their results before
    """

    touched: Int32
    count: Int32
    slot: Int32
    seq: Int64
    score: Float64
    enters: np.ndarray
    short: Int32
    before: ResultRows


class ResultBuffers:
    """The buffers of all slots of an engine.

    Parameters
    ----------
    seq_is_life : bool
        True for count windows, where a message's life is its seq and is stored once; False of objects.
    objects : bool
        Whether entries may end before they expire, by `drop`. Entries may then be far older than the newest.
    """

    def __init__(self, seq_is_life: bool, objects: bool = False):
        self.seq_is_life = seq_is_life
        seq: Any = np.zeros(0, np.int64 if objects else np.int32)
        self.view = Buffers(
            np.zeros(0, np.int64),
            np.zeros(0, np.int8),
            np.zeros(0, np.int32),
            np.zeros(0, np.int64),
            np.zeros(0, np.float64),
            seq,
            seq if seq_is_life else np.zeros(0, np.int64),
            np.zeros(0, np.int16),
            np.full(_SIZES.shape[0], NO_BLOCK, np.int64),
            np.zeros(2, np.int64),
        )

    def ensure_slots(self, capacity: int) -> None:
        """Extend the columns to `capacity` slots, new ones empty."""
        v = self.view
        if v.start.shape[0] < capacity:
            self.view = v._replace(
                start=resized(v.start, capacity, NO_BLOCK),
                size_class=resized(v.size_class, capacity),
                count=resized(v.count, capacity),
                oldest=resized(v.oldest, capacity, np.iinfo(np.int64).max),
            )

    def offer(self, slots: Int32, seqs: Int64, lives: Int64, scores: Float64, k: Int32) -> None:
        """Offer message i to the buffer of `slots[i]`; every score reaches the slot's threshold already.

        O(entries of a block) an offer, and a pass over the slots between the first and the last. Order does not matter;
        offering a message twice is the caller's fault.
        """
        if not slots.shape[0]:
            return
        done = least = int(slots.min())
        last = int(slots.max())
        begin, own_seqs, own_lives, own_scores = self._by_slot(slots, seqs, lives, scores, least, last)
        while done <= last:
            done = offer_all(self.view, begin, own_seqs, own_lives, own_scores, k, least, done, last, _SIZES)
            if done <= last:
                self._ensure_pool()

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
    ) -> ClosedBuffers:
        """Offer the hits of a batch, drop entries with life <= floor from all slots, and compare the results.

        The same as `results`, `offer`, `expire` and `result_updates` in turn, but slot by slot, so that each buffer is
        fetched from memory once, and in ascending order.

        Parameters
        ----------
        slots, seqs, lives, scores
            As for `offer`; every message is newer than all entries.
        floor : int
        k, dominators, threshold, passed_over
            By slot: wanted results; how many dominators drop an entry; threshold (float64, minus infinity for none);
            bool, slots to skip (no hit may be theirs).

        Notes
        -----
        O(slots) for one pass over two columns, and O(entries) a slot that is due or hit.
        """
        v = self.view
        begin, own_seqs, own_lives, own_scores = self._by_slot(slots, seqs, lives, scores, 0, v.start.shape[0] - 1)
        size = max(1 << 16, 4 * slots.shape[0])
        touched, count = np.empty(v.start.shape[0], np.int32), np.empty(v.start.shape[0], np.int32)
        parts: list[tuple[np.ndarray, ...]] = []
        done = np.zeros(5, np.int64)  # next slot; touched; updates; short slots; entries of their results
        while not parts or done[0] < v.start.shape[0]:
            slot, seq, score = np.empty(size, np.int32), np.empty(size, np.int64), np.empty(size)
            enters, short, ends = np.empty(size, np.bool_), np.empty(size, np.int32), np.empty(size, np.int64)
            before_seq, before_score = np.empty(size, np.int64), np.empty(size)
            was_seq, was_life, was_score = np.empty(size, np.int32), np.empty(size, np.int64), np.empty(size)
            done[2:] = 0
            first = int(done[0])
            full = close_all(
                self.view, begin, own_seqs, own_lives, own_scores, self._shifted(floor), k, dominators, threshold,
                passed_over, was_seq, was_life, was_score, touched, count, slot, seq, score, enters, short, ends,
                before_seq, before_score, done, _SIZES,
            )  # fmt: skip
            _, _, updates, shorts, entries = done.tolist()
            parts.append(
                (slot[:updates], seq[:updates], score[:updates], enters[:updates], short[:shorts], ends[:shorts],
                 before_seq[:entries], before_score[:entries])
            )  # fmt: skip
            if full:
                self._ensure_pool()
            elif done[0] == first:
                size *= 4  # the results of one slot did not fit
        columns = [np.concatenate(column) if len(parts) > 1 else column[0] for column in zip(*parts, strict=True)]
        lengths = np.concatenate([np.diff(part[5], prepend=0) for part in parts])
        offsets = np.zeros(lengths.shape[0] + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        before = ResultRows(offsets, columns[6], columns[7])
        slot, seq, score, enters, short = columns[:5]
        return ClosedBuffers(touched[: done[1]], count[: done[1]], slot, seq, score, enters, short, before)

    def _by_slot(
        self, slots: Int32, seqs: Int64, lives: Int64, scores: Float64, least: int, most: int
    ) -> tuple[Int64, Int32, Int32 | Int64, Float64]:
        """Hits ordered by slot, for sequential reads: where those of each slot begin
        (`order_by_slot`), and seqs, lives as they are stored, scores."""
        v = self.view
        if slots.shape[0] and v.seq.itemsize < 8 and (latest := int(seqs.max())) - v.used[1] >= _HALF:
            self._rebase(latest)
        begin, order = order_by_slot(slots, least, most)
        stored = (seqs[order] - v.used[1]).astype(v.seq.dtype)
        return begin, stored, stored if self.seq_is_life else lives[order], scores[order]

    def expire(self, slots: Int32, floor: int) -> None:
        """Drop entries with life <= floor from these slots. O(entries)."""
        expire_all(self.view, slots, self._shifted(floor))

    def drop(self, slots: Int32, seqs: Int64) -> NDArray[np.bool_]:
        """Drop entries that have ended (seqs ascending) from these slots: bool[slots], which had any. O(entries)."""
        lost = np.zeros(slots.shape[0], np.bool_)
        drop_ended(self.view, slots, seqs, lost)
        return lost

    def due(self, floor: int) -> Int32:
        """Slots that may have an entry with life <= floor (int32, ascending). O(slots), one pass over one array."""
        return find_due(self.view.oldest, self._shifted(floor))

    def raise_threshold(self, slots: Int32, ranks: Int32, thresholds: Float64) -> None:
        """Set thresholds[slot] to the score at rank ranks[i] of the buffer of slots[i] and drop entries below.

        O(entries). Each slot must have at least that many; entries equal to the new threshold stay.
        """
        raise_all(self.view, slots, ranks, thresholds, _SIZES)

    def clear(self, slots: Int32) -> None:
        """Empty the buffers of these slots and free their blocks. O(slots)."""
        clear_all(self.view, slots)

    def results(self, slots: Int32, k: Int32) -> ResultRows:
        """The results of these slots: the first min(k, count) entries of each. O(result)."""
        offsets = np.zeros(slots.shape[0] + 1, np.int64)
        np.cumsum(np.minimum(self.view.count[slots], k[slots]), out=offsets[1:])
        rows = ResultRows(offsets, np.empty(offsets[-1], np.int64), np.empty(offsets[-1], np.float64))
        copy_results(self.view, slots, rows)
        return rows

    def entries(self, slots: Int32) -> tuple[Int64, Int64, Int64, Float64]:
        """All entries of these slots, best first: offsets, seq, life, score. O(entries)."""
        v = self.view
        offsets = np.zeros(slots.shape[0] + 1, np.int64)
        np.cumsum(v.count[slots], out=offsets[1:])
        picked = np.arange(offsets[-1]) + np.repeat(v.start[slots] - offsets[:-1], v.count[slots])
        seq = v.seq[picked] + v.used[1]
        return offsets, seq, seq if self.seq_is_life else v.life[picked], v.score[picked]

    def snapshot(self) -> "ResultBuffers":
        """A frozen copy for `entries`, which later calls do not change. O(slots + entries)."""
        now, v, used = copy(self), self.view, int(self.view.used[0])
        seq = v.seq[:used].copy()
        life = seq if self.seq_is_life else v.life[:used].copy()
        now.view = v._replace(
            start=v.start.copy(), count=v.count.copy(), seq=seq, life=life, score=v.score[:used].copy(),
            used=v.used.copy(),
        )  # fmt: skip
        return now

    def describe(self) -> dict[str, int]:
        """Number of buffers that are not empty, and of all entries. O(slots)."""
        return {"buffers": int(np.count_nonzero(self.view.count)), "entries": int(self.view.count.sum())}

    def arrays(self) -> dict[str, np.ndarray]:
        """All arrays, for figures of size, the pool trimmed to its used part."""
        used = int(self.view.used[0])
        pools = ("score", "seq", "life", "dominators")
        arrays = {name: value[:used] if name in pools else value for name, value in self.view._asdict().items()}
        if self.seq_is_life:
            del arrays["life"]
        return arrays

    def _shifted(self, floor: int) -> int:
        """A floor in the unit of stored lives."""
        return floor - int(self.view.used[1]) if self.seq_is_life else floor

    def _rebase(self, latest: int) -> None:
        """Make `latest` the base of stored seqs. O(entries), once in 2**30 messages."""
        v = self.view
        shift = latest - int(v.used[1])
        if not shift_all(v.start, v.count, v.seq, shift):
            raise EngineError("top-k buffers: a message is 2**31 behind the newest; the window is too long for one run")
        if self.seq_is_life:
            occupied = v.count > 0
            v.oldest[occupied] -= shift
        v.used[1] = latest

    def _ensure_pool(self) -> None:
        """Pack the pool if enough of it is free, else extend it by a quarter."""
        v = self.view
        order = np.flatnonzero(v.start >= 0)
        fitting = np.searchsorted(_SIZES, v.count[order] + SPARE)
        live = int(_SIZES[np.minimum(fitting, v.size_class[order])].sum())
        if int(v.used[0]) - live > max(_FREE_FRACTION * live, 4096):
            pack(v, order[np.argsort(v.start[order], kind="stable")], _SIZES)
            return
        if not order.size:
            pack(v, order, _SIZES)  # no block is in use: all is free; and it is compiled before any batch needs it
        size = max(4096, v.score.shape[0] + v.score.shape[0] // 4)
        seq = resized(v.seq, size)
        self.view = v._replace(
            score=resized(v.score, size),
            seq=seq,
            life=seq if self.seq_is_life else resized(v.life, size),
            dominators=resized(v.dominators, size),
        )
