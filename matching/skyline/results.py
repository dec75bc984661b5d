"""Result buffers of the `skyline` engines: a block of messages with relevances for each subscription, as flat arrays.

A block of the pool has the entries of one subscription, in ascending seq: seq, life, two relevances, and `until`, the
skyline influence time: the entry is in the skyline once the floor has reached it. With `life` that is the event list of
Tao and Papadias ("Maintaining sliding window skylines on data streams"): a subscription needs work only when the floor
reaches the least of its lives and influence times, of which `due` is a lower bound.

Engines choose what to keep and how to use `until`.
"""

from copy import copy
from typing import NamedTuple

import numpy as np

from compiling.njit import njit, njit_inner, njit_inner_no_refcount, njit_no_refcount
from matching.model import Float64, Int8, Int32, Int64
from matching.storage.block_pool import NO_BLOCK, allocate_block, forget_free, free_block
from matching.storage.slots import resized
from matching.storage.state import RaggedColumns

#: `until` of an entry that no other entry dominates; at or below every floor.
UNDOMINATED = -(2**63)
#: `until` of an entry that waits for the next check; above every floor. Also `due` of an empty block.
WAITS = 2**63 - 1
_CLASSES = 56
#: A full pool is packed, not grown, if at least this fraction of it is free blocks.
_FREE_FRACTION = 0.125
_FEWEST = 4096


class Kept(NamedTuple):
    """Kernel view; n slots, p places.

    start : int64[n]        place of the slot's block, -1 if it has none
    size_class : int8[n]    see `block_size`
    count : int32[n]        entries, in ascending seq
    due : int64[n]          while the floor is below, no entry expires and none joins the skyline by itself
    spatial, text : float64[p]
    seq, life, until : int64[p]
    free : int64[classes]   first block of a list of free ones by size, chained through `seq`; -1 ends it
    used : int64[1]         end of the used part of the pool
    """

    start: Int64
    size_class: Int8
    count: Int32
    due: Int64
    spatial: Float64
    text: Float64
    seq: Int64
    life: Int64
    until: Int64
    free: Int64
    used: Int64


_POOLS = ("spatial", "text", "seq", "life", "until")


class SkylineRows(NamedTuple):
    """Skylines of some slots, row after row in ascending seq: `offsets` int64[rows + 1], seq int64, two relevances."""

    offsets: Int64
    seq: Int64
    spatial: Float64
    text: Float64


class CandidatePool:
    """The blocks of all slots of an engine."""

    def __init__(self):
        self.view = Kept(
            np.zeros(0, np.int64),
            np.zeros(0, np.int8),
            np.zeros(0, np.int32),
            np.zeros(0, np.int64),
            np.zeros(0),
            np.zeros(0),
            np.zeros(0, np.int64),
            np.zeros(0, np.int64),
            np.zeros(0, np.int64),
            np.full(_CLASSES, NO_BLOCK, np.int64),
            np.zeros(1, np.int64),
        )

    def ensure_slots(self, capacity: int) -> None:
        """Provide capacity for slots 0 to `capacity` - 1, new ones empty."""
        v = self.view
        if v.start.shape[0] < capacity:
            self.view = v._replace(
                start=resized(v.start, capacity, NO_BLOCK),
                size_class=resized(v.size_class, capacity),
                count=resized(v.count, capacity),
                due=resized(v.due, capacity, WAITS),
            )

    def due(self, floor: int) -> Int32:
        """Slots whose skyline may change when the floor rises to this (int32, ascending). O(slots)."""
        return np.flatnonzero(self.view.due <= floor).astype(np.int32)

    def skylines(self, slots: Int32, floor: int) -> SkylineRows:
        """The skylines of these slots at a floor, after `drop_dead` at it. O(entries)."""
        v = self.view
        offsets = np.zeros(slots.shape[0] + 1, np.int64)
        _count_skylines(v, slots, floor, offsets)
        total = int(offsets[-1])
        rows = SkylineRows(offsets, np.empty(total, np.int64), np.empty(total), np.empty(total))
        _copy_skylines(v, slots, floor, rows)
        return rows

    def clear(self, slots: Int32) -> None:
        """Empty these slots and free their blocks. O(slots)."""
        _clear_all(self.view, slots)

    def entries(self) -> int:
        """Entries of all slots together. O(slots)."""
        return int(self.view.count.sum())

    def grow(self) -> None:
        """Pack the pool if enough of it is free, else grow it by a half."""
        v = self.view
        order = np.flatnonzero(v.start >= 0)
        sizes = np.array([block_size(size_class) for size_class in range(_CLASSES)], np.int64)
        live = int(sizes[v.size_class[order]].sum())
        if int(v.used[0]) - live > max(_FREE_FRACTION * live, _FEWEST):
            self.pack()
            return
        size = max(_FEWEST, v.seq.shape[0] + v.seq.shape[0] // 2)
        self.view = v._replace(**{name: resized(getattr(v, name), size) for name in _POOLS})

    def pack(self) -> None:
        """Move all blocks together, without gaps. O(entries)."""
        order = np.flatnonzero(self.view.start >= 0)
        _pack(self.view, order[np.argsort(self.view.start[order], kind="stable")])

    def snapshot(self) -> "CandidatePool":
        """A frozen copy for `due` and `lists`, which later calls do not change. O(slots + entries)."""
        now, v, used = copy(self), self.view, int(self.view.used[0])
        pools = {name: getattr(v, name)[:used].copy() for name in _POOLS}
        now.view = v._replace(start=v.start.copy(), count=v.count.copy(), due=v.due.copy(), **pools)
        return now

    def lists(self, slots: Int32) -> RaggedColumns:
        """Entries of these slots, by column. O(entries)."""
        v = self.view
        offsets = np.zeros(slots.shape[0] + 1, np.int64)
        np.cumsum(v.count[slots], out=offsets[1:])
        picked = np.arange(offsets[-1]) + np.repeat(v.start[slots] - offsets[:-1], v.count[slots])
        return RaggedColumns(offsets, {name: getattr(v, name)[picked] for name in _POOLS})

    def fill(self, slots: Int32, entries: RaggedColumns) -> None:
        """Restore the entries that `lists` returned into empty slots. O(entries)."""
        columns = tuple(np.ascontiguousarray(entries.columns[name]) for name in _POOLS)
        done = 0
        while done < slots.shape[0]:
            done = _fill(self.view, slots, entries.offsets, columns, done)
            if done < slots.shape[0]:
                self.grow()

    def arrays(self) -> dict[str, np.ndarray]:
        """All arrays, by name, to measure memory; the pool without its unused end."""
        used = int(self.view.used[0])
        return {name: value[:used] if name in _POOLS else value for name, value in self.view._asdict().items()}


@njit(cache=True, nogil=True)
def dominates(spatial_a, text_a, spatial_b, text_b):
    """Whether a is at least as good as b in both relevances and better in one."""
    # unpredictable comparisons, hence no branches
    return (spatial_a >= spatial_b) & (text_a >= text_b) & ((spatial_a > spatial_b) | (text_a > text_b))


@njit(cache=True, nogil=True)
def block_size(size_class):
    """Capacity of a block of a class, in entries: 4, 6, 8, 12, 16, 24, ..."""
    # growth by a half and a third alternately: a block that has just grown is at least two thirds full. In int64, since
    # with the compiler switched off an int8 would stay one.
    half = np.int64(2) << (np.int64(size_class) >> 1)
    return 3 * half if size_class & 1 else 2 * half


@njit_no_refcount
def has_capacity(v, slot):
    """Make one more entry fit the slot's block; False if the pool is exhausted (nothing has changed)."""
    return has_capacity_for(v, slot, v.count[slot] + 1)


@njit_inner_no_refcount
def has_capacity_for(v, slot, entries):
    """Make `entries` in all fit the slot's block; False if the pool is exhausted (nothing has changed)."""
    start = v.start[slot]
    if start >= 0 and entries <= block_size(v.size_class[slot]):
        return True
    new_class = 0 if start < 0 else v.size_class[slot] + 1
    while block_size(new_class) < entries:
        new_class += 1
    # the old block stays until the new one is allocated: if that fails, nothing has changed
    new_start = allocate_block(v, new_class, block_size(new_class))
    if new_start < 0:
        return False
    if start >= 0:
        for i in range(v.count[slot]):
            copy_entry(v, start + i, new_start + i)
        free_block(v, slot)  # after the copy: its first seq becomes a link of the free list
    v.start[slot] = new_start
    v.size_class[slot] = new_class
    return True


@njit_inner
def copy_entry(v, source, target):
    """Copy an entry from one place of the pool to another."""
    v.spatial[target] = v.spatial[source]
    v.text[target] = v.text[source]
    v.seq[target] = v.seq[source]
    v.life[target] = v.life[source]
    v.until[target] = v.until[source]


@njit(cache=True, nogil=True)
def put(v, slot, seq, life, spatial, text, until):
    """Insert a message into a block with capacity, in the order of seq."""
    at = v.start[slot] + v.count[slot]
    # mostly no iteration, since arrivals are the newest; except late messages, hits of other tasks, and refills
    while at > v.start[slot] and v.seq[at - 1] > seq:
        copy_entry(v, at - 1, at)
        at -= 1
    v.spatial[at] = spatial
    v.text[at] = text
    v.seq[at] = seq
    v.life[at] = life
    v.until[at] = until
    v.count[slot] += 1
    # a waiting entry joins the skyline before it dies, or it would not be kept; one that waits for the next check
    # expires there
    v.due[slot] = min(v.due[slot], life if until == UNDOMINATED else until)


@njit_no_refcount
def place_of(v, slot, seq):
    """Place of a message in the slot's block, -1 if it is not kept. Binary search."""
    low, high = v.start[slot], v.start[slot] + v.count[slot]
    end = high
    while low < high:
        middle = (low + high) >> 1
        if v.seq[middle] < seq:
            low = middle + 1
        else:
            high = middle
    if v.count[slot] and low < end and v.seq[low] == seq:
        return low
    return -1


@njit(cache=True, nogil=True)
def drop(v, slot, at):
    """Remove the entry at a place of the slot's block; `due` may stay too low, which only costs a check."""
    last = v.start[slot] + v.count[slot] - 1
    for place in range(at, last):
        copy_entry(v, place + 1, place)
    v.count[slot] -= 1


@njit_inner
def drop_dead(v, slot, floor):
    """Drop expired entries; returns whether one of the skyline was among them."""
    start, kept, lost = v.start[slot], 0, False
    for at in range(start, start + v.count[slot]):
        if v.life[at] > floor:
            if at > start + kept:
                copy_entry(v, at, start + kept)
            kept += 1
        # all members are known only in engines that use `WAITS`; in others entries join as the floor rises
        elif v.until[at] == UNDOMINATED:
            lost = True
    v.count[slot] = kept
    return lost


@njit_inner_no_refcount
def set_due(v, slot, floor):
    """Recompute `due`: the least life of the skyline and influence time of the others."""
    due = np.int64(WAITS)
    for at in range(v.start[slot], v.start[slot] + v.count[slot]):
        # a member matters again when it dies, another one when it joins
        due = min(due, v.life[at] if v.until[at] <= floor else v.until[at])
    v.due[slot] = due


@njit_no_refcount
def remove_members(v, slots, seqs, out):
    """Remove message `seqs[i]` from the block of `slots[i]` if it is there; returns the number removed.

    out : int32[n]    output: the slot of each message removed
    """
    lost = 0
    for i in range(slots.shape[0]):
        # a message without an entry was dropped because another dominates all that it dominated: nothing is lost
        at = place_of(v, slots[i], seqs[i])
        if at >= 0:
            drop(v, slots[i], at)
            out[lost] = slots[i]
            lost += 1
    return lost


@njit(cache=True, nogil=True)
def _clear_all(v, slots):
    for slot in slots:
        if v.start[slot] >= 0:
            free_block(v, slot)
        v.count[slot] = 0
        v.due[slot] = WAITS  # above every floor: an empty slot is never due


@njit_no_refcount
def _fill(v, slots, offsets, columns, first):
    """Fill empty blocks from row `first` on; returns the row that exhausted the pool (its block is empty), or all."""
    spatial, text, seq, life, until = columns
    for row in range(first, slots.shape[0]):
        # for the whole row at once, so that nothing needs undoing
        if not has_capacity_for(v, slots[row], offsets[row + 1] - offsets[row]):
            return row
        for i in range(offsets[row], offsets[row + 1]):
            put(v, slots[row], seq[i], life[i], spatial[i], text[i], until[i])
    return slots.shape[0]


@njit(cache=True, nogil=True)
def _pack(v, order):
    """Move the blocks of the slots in `order` (ascending by place) together; nothing is free afterwards."""
    end = 0
    for slot in order:
        start = v.start[slot]
        # by ascending place: overwritten entries have been moved, or were free
        if end < start:
            for i in range(v.count[slot]):
                copy_entry(v, start + i, end + i)
            v.start[slot] = end
        # the whole block, not its entries: each keeps its spare capacity
        end += block_size(v.size_class[slot])
    forget_free(v, end)


@njit(cache=True, nogil=True)
def _count_skylines(v, slots, floor, offsets):
    for row in range(slots.shape[0]):
        slot, count = slots[row], 0
        for at in range(v.start[slot], v.start[slot] + v.count[slot]):
            # lives need no check: expired members were due, and dropped; waiting ones are above every floor
            count += v.until[at] <= floor
        offsets[row + 1] = offsets[row] + count


@njit(cache=True, nogil=True)
def _copy_skylines(v, slots, floor, rows):
    end = 0
    for slot in slots:
        for at in range(v.start[slot], v.start[slot] + v.count[slot]):
            if v.until[at] <= floor:
                rows.seq[end] = v.seq[at]
                rows.spatial[end] = v.spatial[at]
                rows.text[end] = v.text[at]
                end += 1
