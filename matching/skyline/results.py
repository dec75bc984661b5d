"""What the `skyline` engines keep for each subscription: blocks of messages with their relevances, as flat arrays.

Entries of a subscription lie in one block of a pool in ascending seq. Beside seq, life and the two relevances stands
`until`, the entry's skyline influence time: it belongs to the skyline as soon as the floor has reached it. That, and
the life, are the whole event list of Tao and Papadias ("Maintaining sliding window skylines on data streams"): a
subscription only needs to be looked at when the floor reaches the least of its lives and influence times, which the
column `due` bounds from below.

What is kept, and how `until` is used, is up to the engine: read on in `matching.skyline.engines.eager_star`.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from matching.model import Float64, Int8, Int32, Int64
from matching.njit import njit_no_refcount
from matching.storage.block_pool import NO_BLOCK, allocate_block, forget_free, free_block
from matching.storage.slots import resized
from matching.storage.state import Lists

#: `until` of an entry that nothing kept dominates; at or below every floor.
UNDOMINATED = -(2**63)
#: `until` of an entry that waits for somebody to look again; above every floor. Also `due` of an empty block.
WAITS = 2**63 - 1
_CLASSES = 56
#: What the pool has lost to free blocks when it is full is won back by packing if it is at least this share.
_FREE_SHARE = 0.125
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
        """Have room for slots 0 to `capacity` - 1, new ones empty."""
        v = self.view
        if v.start.shape[0] < capacity:
            self.view = v._replace(
                start=resized(v.start, capacity, NO_BLOCK),
                size_class=resized(v.size_class, capacity),
                count=resized(v.count, capacity),
                due=resized(v.due, capacity, WAITS),
            )

    def due(self, floor: int) -> Int32:
        """Slots in which something may happen when the floor rises to this (int32, ascending). O(slots)."""
        return np.flatnonzero(self.view.due <= floor).astype(np.int32)

    def held(self, slots: Int32, floor: int) -> SkylineRows:
        """The skylines of these slots at a floor whose dead have been dropped. O(entries)."""
        v = self.view
        offsets = np.zeros(slots.shape[0] + 1, np.int64)
        _count_held(v, slots, floor, offsets)
        total = int(offsets[-1])
        held = SkylineRows(offsets, np.empty(total, np.int64), np.empty(total), np.empty(total))
        _copy_held(v, slots, floor, held)
        return held

    def clear(self, slots: Int32) -> None:
        """Empty these slots and free their blocks. O(slots)."""
        _clear_all(self.view, slots)

    def entries(self) -> int:
        """How many entries all slots keep together. O(slots)."""
        return int(self.view.count.sum())

    def make_room(self) -> None:
        """Pack the pool if enough of it is free, else let it grow by a half."""
        v = self.view
        order = np.flatnonzero(v.start >= 0)
        sizes = np.array([block_size(size_class) for size_class in range(_CLASSES)], np.int64)
        live = int(sizes[v.size_class[order]].sum())
        if int(v.used[0]) - live > max(_FREE_SHARE * live, _FEWEST):
            self.pack()
            return
        size = max(_FEWEST, v.seq.shape[0] + v.seq.shape[0] // 2)
        self.view = v._replace(**{name: resized(getattr(v, name), size) for name in _POOLS})

    def pack(self) -> None:
        """Move all blocks together, so that nothing between them is free. O(entries)."""
        order = np.flatnonzero(self.view.start >= 0)
        _pack(self.view, order[np.argsort(self.view.start[order], kind="stable")])

    def lists(self, slots: Int32) -> Lists:
        """What these slots keep, by column. O(entries)."""
        v = self.view
        offsets = np.zeros(slots.shape[0] + 1, np.int64)
        np.cumsum(v.count[slots], out=offsets[1:])
        picked = np.arange(offsets[-1]) + np.repeat(v.start[slots] - offsets[:-1], v.count[slots])
        return Lists(offsets, {name: getattr(v, name)[picked] for name in _POOLS})

    def fill(self, slots: Int32, entries: Lists) -> None:
        """Put what `lists` gave into slots that keep nothing. O(entries)."""
        columns = tuple(np.ascontiguousarray(entries.columns[name]) for name in _POOLS)
        done = 0
        while done < slots.shape[0]:
            done = _fill(self.view, slots, entries.offsets, columns, done)
            if done < slots.shape[0]:
                self.make_room()

    def arrays(self) -> dict[str, np.ndarray]:
        """Every array held, for figures of size, the pool trimmed to what is in use."""
        used = int(self.view.used[0])
        return {name: value[:used] if name in _POOLS else value for name, value in self.view._asdict().items()}


@njit(cache=True, nogil=True)
def dominates(spatial_a, text_a, spatial_b, text_b):
    """Whether a is at least as good as b in both relevances and better in one."""
    # nobody can foretell how these turn out, so no branch is taken on any of them
    return (spatial_a >= spatial_b) & (text_a >= text_b) & ((spatial_a > spatial_b) | (text_a > text_b))


@njit(cache=True, nogil=True)
def block_size(size_class):
    """Entries a block of a class has room for: 4, 6, 8, 12, 16, 24, ..."""
    # steps of a half and a third in turn: a block that has just grown is never less than two thirds full. In int64,
    # since with the compiler switched off an int8 would stay one.
    half = np.int64(2) << (np.int64(size_class) >> 1)
    return 3 * half if size_class & 1 else 2 * half


@njit_no_refcount
def has_room(v, slot):
    """See to it that one more entry fits the slot's block; False if the pool is exhausted (nothing has changed)."""
    return has_room_for(v, slot, v.count[slot] + 1)


@njit_no_refcount
def has_room_for(v, slot, entries):
    """The same for so many entries in all."""
    start = v.start[slot]
    if start >= 0 and entries <= block_size(v.size_class[slot]):
        return True
    new_class = 0 if start < 0 else v.size_class[slot] + 1
    while block_size(new_class) < entries:
        new_class += 1
    # the old block stays until the new one is there: without room nothing has changed
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


@njit(cache=True, nogil=True)
def copy_entry(v, source, target):
    """Copy an entry from one place of the pool to another."""
    v.spatial[target] = v.spatial[source]
    v.text[target] = v.text[source]
    v.seq[target] = v.seq[source]
    v.life[target] = v.life[source]
    v.until[target] = v.until[source]


@njit(cache=True, nogil=True)
def put(v, slot, seq, life, spatial, text, until):
    """Enter a message into a block that has room, in the order of seq."""
    at = v.start[slot] + v.count[slot]
    # mostly no step, since what arrives is the newest; not so what comes late, finds of other tasks, and refills
    while at > v.start[slot] and v.seq[at - 1] > seq:
        copy_entry(v, at - 1, at)
        at -= 1
    v.spatial[at] = spatial
    v.text[at] = text
    v.seq[at] = seq
    v.life[at] = life
    v.until[at] = until
    v.count[slot] += 1
    # of one that waits not its life but when it joins: that comes first, or it would not be kept; and who waits for
    # somebody to look again dies unseen
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
    """Take the entry at a place out of the slot's block; `due` may stay too low, which only costs a look."""
    last = v.start[slot] + v.count[slot] - 1
    for place in range(at, last):
        copy_entry(v, place + 1, place)
    v.count[slot] -= 1


@njit(cache=True, nogil=True)
def drop_dead(v, slot, floor):
    """Drop entries whose life is over; returns whether one of the skyline was among them."""
    start, kept, lost = v.start[slot], 0, False
    for at in range(start, start + v.count[slot]):
        if v.life[at] > floor:
            if at > start + kept:
                copy_entry(v, at, start + kept)
            kept += 1
        # knows all members only where they are marked so (`WAITS`); to others the floor itself says who joins
        elif v.until[at] == UNDOMINATED:
            lost = True
    v.count[slot] = kept
    return lost


@njit_no_refcount
def set_due(v, slot, floor):
    """Work `due` out anew: the least life of the skyline and influence time of the others."""
    due = np.int64(WAITS)
    for at in range(v.start[slot], v.start[slot] + v.count[slot]):
        # a member matters again when it dies, another one when it joins
        due = min(due, v.life[at] if v.until[at] <= floor else v.until[at])
    v.due[slot] = due


@njit_no_refcount
def remove_members(v, slots, seqs, out):
    """Take message `seqs[i]` out of the block of `slots[i]` if it is there; returns how many were.

    out : int32[n]    overwritten: the slots that lost one, as often as they did
    """
    lost = 0
    for i in range(slots.shape[0]):
        # one that is not kept was dropped for another that covers all it kept out: nothing is lost
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
        v.due[slot] = WAITS  # above every floor: nobody looks at an empty slot


@njit_no_refcount
def _fill(v, slots, offsets, columns, first):
    """Fill empty blocks from row `first` on; returns the row that found no room (its block is empty), or all."""
    spatial, text, seq, life, until = columns
    for row in range(first, slots.shape[0]):
        # for the whole row at once, so that nothing has to be undone
        if not has_room_for(v, slots[row], offsets[row + 1] - offsets[row]):
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
        # by ascending place: what is written over has been moved, or was free
        if end < start:
            for i in range(v.count[slot]):
                copy_entry(v, start + i, end + i)
            v.start[slot] = end
        # the whole block, not its entries: each keeps its room to grow
        end += block_size(v.size_class[slot])
    forget_free(v, end)


@njit(cache=True, nogil=True)
def _count_held(v, slots, floor, offsets):
    for row in range(slots.shape[0]):
        slot, count = slots[row], 0
        for at in range(v.start[slot], v.start[slot] + v.count[slot]):
            # lives are not looked at: members that died were due, and dropped; what waits is above every floor
            count += v.until[at] <= floor
        offsets[row + 1] = offsets[row] + count


@njit(cache=True, nogil=True)
def _copy_held(v, slots, floor, held):
    end = 0
    for slot in slots:
        for at in range(v.start[slot], v.start[slot] + v.count[slot]):
            if v.until[at] <= floor:
                held.seq[end] = v.seq[at]
                held.spatial[end] = v.spatial[at]
                held.text[end] = v.text[at]
                end += 1


@njit(cache=True, nogil=True)
def difference(before, after, out_row, out_seq, out_score, out_enters):
    """Write the set difference of two lots of skylines, row for row; returns how many were written.

    Parameters
    ----------
    before, after : SkylineRows
    out_row : int32[m], out_seq : int64[m], out_score : float64[m], out_enters : bool[m]
        m at least the entries of both together; what left a row stands before what entered it.
    """
    written = 0
    for row in range(before.offsets.shape[0] - 1):
        for enters in (False, True):
            # the same walk twice, the sides changed over: what the other side lacks has left or entered
            old = after if enters else before
            new = before if enters else after
            j, last = new.offsets[row], new.offsets[row + 1]
            for i in range(old.offsets[row], old.offsets[row + 1]):
                # both ascend by seq, so this never goes back
                while j < last and new.seq[j] < old.seq[i]:
                    j += 1
                if j == last or new.seq[j] != old.seq[i]:
                    out_row[written] = row
                    out_seq[written] = old.seq[i]
                    out_score[written] = old.spatial[i]
                    out_enters[written] = enters
                    written += 1
    return written
