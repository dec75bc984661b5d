"""Cumulative results: for each subscription the k best messages since its registration, as flat arrays.

A message leaves only for a better one, so such a result needs no window and no buffer beyond its k entries. Entries of
a slot lie in one block of a pool, best first, of equal keys the older first. A larger key is better; kinds of which
less is better turn the sign.

An engine offers pair by pair, message by message, and the k-th key rises at once. Entries are logged as they enter and
as they are pushed out, so that the updates of a boundary need neither a copy of the former results nor a second look at
each, which costs a cache miss or two. Access is random, so what is read together lies together: the columns of a slot
are views of one array of rows, seq and key of an entry of another.
"""

from copy import copy
from typing import NamedTuple

import numpy as np

from compiling.njit import njit, njit_no_refcount
from matching.model import ENTER, LEAVE, NO_UPDATES, Float64, Int32, Int64, UpdateBatch
from matching.storage.block_pool import NO_BLOCK, allocate_block, free_block
from matching.storage.point_subscriptions import Subscriptions, take_ragged_at
from matching.storage.slots import cache_aligned, resized

#: Least capacity: with a row or none, NumPy and so Numba would take a view for contiguous. A slot: start, after, stamp
#: in 8 bytes each; count and size_class in 4.
_FEWEST, RESULT_WORDS = 16, 4
#: Words of an entry, seq and key; entries of a cache line, at which every block begins.
_ENTRY_WORDS, LINE_ENTRIES = 2, 4
#: Block sizes by class: a result grows through them while it fills, so that one which never does costs little.
_SIZES = np.array([4, 8, 12, 16, 20, 24, 28, 32, 40, 48, 64, 96, 128] + [192 << i for i in range(24)], np.int64)
#: Places in `Best.used`.
_POOL_END, _TOUCHED, _LOGGED, _STAMP, _FIRST_SEQ, _PASSING = range(6)
#: Rows that one offer logs at most: what enters, and what is pushed out.
_LOGS = 2
#: What `offer` returns: capacity exceeded (nothing has changed: grow, and offer again), not a result, a result.
POOL_FULL, NO_RESULT, A_RESULT = -1, 0, 1


class Best(NamedTuple):
    """Kernel view of the results; n slots.

    start : int64[n]        place of the slot's block in the pool, -1 if it has none
    after : int64[n]        the last message it took; messages up to this one are ignored
    stamp : int64[n]        the last batch in which it changed
    count : int32[n]        entries in use
    size_class : int32[n]   size of the block, as position in `sizes`
    seq : int64[pool], key : float64[pool]
                            (those by slot and by entry are strided)
    free : int64[classes]   see `matching.storage.block_pool`
    sizes : int64[classes]
    touched : int32[p]      slots that have changed in this batch
    log_slot : int32[p], log_seq : int64[p], log_key : float64[p]
                            what entered a result in this batch, and what was pushed out: there the slot is inverted (~)
    used : int64[6]         end of the used part of the pool; entries of `touched`, of `log_*`; number and first seq of
                            the batch; entries that entered and were pushed out in this batch
    """

    start: Int64
    after: Int64
    stamp: Int64
    count: Int32
    size_class: Int32
    seq: Int64
    key: Float64
    free: Int64
    sizes: Int64
    touched: Int32
    log_slot: Int32
    log_seq: Int64
    log_key: Float64
    used: Int64


class CumulativeRows(NamedTuple):
    """Results of some slots, row after row: `offsets` int64[rows + 1], `seq` int64, `key` float64; best first."""

    offsets: Int64
    seq: Int64
    key: Float64


class BestResults:
    """The results of all slots of an engine."""

    def __init__(self):
        capacity = 1 << 12
        self._rows, self._pool = _new_rows(_FEWEST), cache_aligned(_FEWEST, _ENTRY_WORDS)
        self.view = Best(
            *_columns(self._rows, self._pool), free=np.full(_SIZES.shape[0], NO_BLOCK, np.int64), sizes=_SIZES,
            touched=np.zeros(capacity, np.int32), log_slot=np.zeros(capacity, np.int32),
            log_seq=np.zeros(capacity, np.int64), log_key=np.zeros(capacity), used=np.zeros(6, np.int64),
        )  # fmt: skip
        self._nth = np.zeros(0, np.int32)  # by slot, scratch: which of those that have changed

    def begin(self, slots: Int32, since: Int64, capacity: int) -> None:
        """Add slots without results, which see messages from `since` (int64[n]) on. O(n), amortised."""
        have = self._rows.shape[0]
        if have < capacity:
            rows = _new_rows(capacity)
            rows[:have] = self._rows
            self._rows = rows
            self._renew()
        v = self.view
        v.count[slots], v.after[slots], v.stamp[slots] = 0, since - 1, -1

    def _renew(self) -> None:
        """Renew the view of arrays that have grown."""
        columns = dict(zip(Best._fields, _columns(self._rows, self._pool), strict=False))
        self.view = self.view._replace(**columns)

    def _grow_pool(self, length: int) -> None:
        pool = cache_aligned(length, _ENTRY_WORDS)
        pool[: self._pool.shape[0]] = self._pool
        self._pool = pool
        self._renew()

    def begin_batch(self, number: int, first_seq: int) -> None:
        """Start to collect the updates of a batch."""
        self.view.used[_TOUCHED:] = 0, 0, number, first_seq, 0

    def end_batch(self, c: Subscriptions, as_of: int) -> UpdateBatch:
        """Updates from the last boundary to this one: leaves, then enters. O(changes)."""
        v = self.view
        logged = int(v.used[_LOGGED])
        if not logged:
            return NO_UPDATES
        slot, seq, key = v.log_slot[:logged], v.log_seq[:logged], v.log_key[:logged]
        if v.used[_PASSING]:
            kept = self._lasting(slot, seq)
            slot, seq, key = slot[kept], seq[kept], key[kept]
        leaves = slot < 0
        order = np.concatenate([np.flatnonzero(leaves), np.flatnonzero(~leaves)])
        slot = slot[order]
        left = int(np.count_nonzero(leaves))
        slot[:left] = ~slot[:left]
        change = np.full(slot.shape[0], ENTER, np.int8)
        change[:left] = LEAVE
        return UpdateBatch(np.full(slot.shape[0], as_of, np.int64), c.number[slot], seq[order], change, key[order])

    def logged(self) -> tuple[tuple[Int32, Int64, Float64], tuple[Int32, Int64, Float64]]:
        """What entered results in this batch, and what was pushed out: slot, seq, key of each. O(changes)."""
        v = self.view
        logged = int(v.used[_LOGGED])
        slot, seq, key = v.log_slot[:logged].copy(), v.log_seq[:logged].copy(), v.log_key[:logged].copy()
        out = slot < 0
        return (slot[~out], seq[~out], key[~out]), (~slot[out], seq[out], key[out])

    def drop(self, slots: Int32, seqs: Int64) -> tuple[Int32, Int64, Float64]:
        """Drop these entries (seqs ascending) from slots: slot, seq, key of each that was there. Thresholds stay.

        O(entries).
        """
        most = int(self.view.count[slots].sum())
        slot, seq, key = np.empty(most, np.int32), np.empty(most, np.int64), np.empty(most)
        lost = _drop_all(self.view, slots, seqs, slot, seq, key)
        return slot[:lost], seq[:lost], key[:lost]

    def _lasting(self, slot: Int32, seq: Int64) -> Int64:
        """Rows of the log without what both entered and was pushed out in this batch. O(log * log2(changes a slot))."""
        if self._nth.shape[0] < self._rows.shape[0]:
            self._nth = np.zeros(self._rows.shape[0], np.int32)
        return np.flatnonzero(_lasts(slot, seq, self.view.used[_FIRST_SEQ], self.touched, self._nth))

    @property
    def touched(self) -> Int32:
        """Slots whose result has changed in this batch."""
        return self.view.touched[: self.view.used[_TOUCHED]]

    def grow(self) -> None:
        """Grow the pool and the log, where full."""
        v = self.view
        pool, capacity = v.seq.shape[0], v.log_slot.shape[0]
        if int(v.used[_LOGGED]) * 2 > capacity:
            logs = ("touched", "log_slot", "log_seq", "log_key")
            self.view = v._replace(**{name: resized(getattr(v, name), 2 * capacity) for name in logs})
        # one block may be larger than the whole pool
        if int(v.used[_POOL_END]) + int(v.sizes[v.size_class.max(initial=0) + 1]) > pool:
            self._grow_pool(pool + max(1 << 10, pool // 2, 2 * int(v.sizes[v.size_class.max(initial=0) + 1])))

    def load(self, c: Subscriptions, slots: Int32, rows: CumulativeRows) -> None:
        """Set the results of new slots, and their thresholds. O(entries)."""
        counts = np.diff(rows.offsets).astype(np.int32)
        classes = np.searchsorted(_SIZES, counts)
        needed = int(_SIZES[classes[counts > 0]].sum())
        end = int(self.view.used[_POOL_END])
        if end + needed > self._pool.shape[0]:
            self._grow_pool(end + needed)
        v = self.view
        sizes = np.where(counts > 0, _SIZES[classes], 0)
        starts = end + np.cumsum(sizes) - sizes
        v.used[_POOL_END] = end + needed
        v.start[slots] = np.where(counts > 0, starts, NO_BLOCK)
        v.size_class[slots], v.count[slots] = classes, counts
        places = np.arange(rows.seq.shape[0]) + np.repeat(starts - rows.offsets[:-1], counts)
        v.seq[places], v.key[places] = rows.seq, rows.key
        full = np.flatnonzero((counts > 0) & (counts == c.k[slots]))
        c.threshold[slots[full]] = rows.key[rows.offsets[full + 1] - 1]

    def rows(self, slots: Int32) -> CumulativeRows:
        """Results of these slots. O(entries)."""
        v = self.view
        offsets, places = take_ragged_at(v.start[slots], v.count[slots])
        return CumulativeRows(offsets, v.seq[places], v.key[places])

    def snapshot(self) -> "BestResults":
        """A frozen copy for `rows` and `after`, which later calls do not change. O(slots + entries)."""
        now = copy(self)
        now._rows, now._pool = self._rows.copy(), self._pool[: int(self.view.used[_POOL_END])].copy()
        now._renew()
        return now

    def clear(self, slots: Int32) -> None:
        """Free the results of removed slots. O(n)."""
        _clear(self.view, slots)

    def arrays(self) -> dict[str, np.ndarray]:
        """All memory, trimmed to the used part."""
        v = self.view._asdict()
        others = {name: v[name] for name in Best._fields[Best._fields.index("free") :]}
        return others | {"rows": self._rows, "pool": self._pool[: int(self.view.used[_POOL_END])]}


def _new_rows(count: int) -> Int64:
    """Rows of slots without blocks."""
    rows = cache_aligned(count, RESULT_WORDS)
    rows[:, 0] = NO_BLOCK
    rows[:, 2] = -1
    return rows


def _columns(rows: Int64, pool: Int64) -> tuple[np.ndarray, ...]:
    """The first columns of `Best`, as views of the rows of slots and of the pool of entries."""
    halves = rows.view(np.int32)
    by_slot = rows[:, 0], rows[:, 1], rows[:, 2], halves[:, 6], halves[:, 7]
    return *by_slot, pool[:, 0], pool.view(np.float64)[:, 1]


@njit(cache=True, nogil=True)
def _lasts(slot, seq, first_seq, touched, nth):
    """Whether a row of the log is of a message that was there before the batch or still is, bool[rows].

    Rows are taken slot by slot. What entered a slot ascends in seq, as messages come, so that what is pushed out again
    is found by bisection.
    """
    rows = slot.shape[0]
    begin = np.zeros(touched.shape[0] + 1, np.int64)
    for i in range(touched.shape[0]):
        nth[touched[i]] = i
    for row in range(rows):
        begin[nth[slot[row] if slot[row] >= 0 else ~slot[row]] + 1] += 1
    for i in range(touched.shape[0]):
        begin[i + 1] += begin[i]
    # those that enter from the begin of their slot on, those that leave from its end back
    enters, leaves, order = begin[:-1].copy(), begin[1:].copy(), np.empty(rows, np.int64)
    for row in range(rows):
        if slot[row] >= 0:
            i = nth[slot[row]]
            order[enters[i]] = row
            enters[i] += 1
        else:
            i = nth[~slot[row]]
            leaves[i] -= 1
            order[leaves[i]] = row
    lasts = np.ones(rows, np.bool_)
    for i in range(touched.shape[0]):
        for at in range(leaves[i], begin[i + 1]):
            gone = order[at]
            if seq[gone] < first_seq:
                continue
            low, high = begin[i], enters[i]
            while low < high:
                middle = (low + high) >> 1
                if seq[order[middle]] < seq[gone]:
                    low = middle + 1
                else:
                    high = middle
            lasts[gone] = lasts[order[low]] = False
    return lasts


@njit_no_refcount
def offer(threshold, k, v, slot, seq, key):
    """Offer a message to a result: `POOL_FULL`, `NO_RESULT` or `A_RESULT`.

    One that the filter of the slot excludes must not be offered (`matching.filters.message_passes`). Messages come in
    order of seq. The threshold of the slot becomes the k-th key once there are k. To offer a pair again changes
    nothing, so a message may be repeated after `POOL_FULL`. O(k).

    threshold : float64[slots], k : int32[slots]    columns of `Subscriptions`, which is passed by value and has many
    """
    # strictly better: of equal keys the older stays. A threshold of minus infinity does not imply fewer than k entries
    if (key <= threshold[slot] and key != -np.inf) or seq <= v.after[slot]:
        return NO_RESULT
    start, count = v.start[slot], v.count[slot]
    full = count == k[slot]
    if full and key <= v.key[start + count - 1]:
        return NO_RESULT
    at = count
    while at > 0 and v.key[start + at - 1] < key:
        at -= 1
    last = start + count - 1
    logged = v.used[_LOGGED]
    # refuse before the first change
    if logged + _LOGS > v.log_slot.shape[0]:
        return POOL_FULL
    if not full and (start < 0 or count == v.sizes[v.size_class[slot]]):
        size_class = 0 if start < 0 else v.size_class[slot] + 1
        block = allocate_block(v, size_class, v.sizes[size_class])
        if block < 0:
            return POOL_FULL
        for i in range(count):
            v.seq[block + i], v.key[block + i] = v.seq[start + i], v.key[start + i]
        if start >= 0:
            free_block(v, slot)
        v.start[slot], v.size_class[slot] = block, size_class
        start = block
    v.after[slot] = seq
    if v.stamp[slot] != v.used[_STAMP]:
        v.stamp[slot] = v.used[_STAMP]
        v.touched[v.used[_TOUCHED]] = slot
        v.used[_TOUCHED] += 1
    if full:
        v.log_slot[logged], v.log_seq[logged], v.log_key[logged] = ~slot, v.seq[last], v.key[last]
        v.used[_PASSING] += v.seq[last] >= v.used[_FIRST_SEQ]
        logged += 1
    else:
        v.count[slot] = count = count + 1
    v.log_slot[logged], v.log_seq[logged], v.log_key[logged] = slot, seq, key
    v.used[_LOGGED] = logged + 1
    for i in range(start + count - 1, start + at, -1):
        v.seq[i], v.key[i] = v.seq[i - 1], v.key[i - 1]
    v.seq[start + at], v.key[start + at] = seq, key
    if count == k[slot]:
        threshold[slot] = v.key[start + count - 1]
    return A_RESULT


@njit_no_refcount
def _drop_all(v, slots, seqs, out_slot, out_seq, out_key):
    """Drop entries with these seqs (ascending) from slots, and write them; returns how many."""
    lost = 0
    for slot in slots:
        start, kept = v.start[slot], 0
        for at in range(start, start + v.count[slot]):
            low, high = 0, seqs.shape[0]
            while low < high:
                middle = (low + high) >> 1
                if seqs[middle] < v.seq[at]:
                    low = middle + 1
                else:
                    high = middle
            if low < seqs.shape[0] and seqs[low] == v.seq[at]:
                out_slot[lost], out_seq[lost], out_key[lost] = slot, v.seq[at], v.key[at]
                lost += 1
            else:
                v.seq[start + kept], v.key[start + kept] = v.seq[at], v.key[at]
                kept += 1
        v.count[slot] = kept
    return lost


@njit(cache=True, nogil=True)
def _clear(v, slots):
    for slot in slots:
        if v.start[slot] >= 0:
            free_block(v, slot)
        v.count[slot] = 0
