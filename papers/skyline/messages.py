"""Message store of the `skyline` trees: columns by slot, and kernels that the trees have in common.

Trees contain slots; place, life, terms and object of a message are here, by slot. A slot is reused when its message has
been removed from the tree. Terms lie in one heap that is rewritten when half of it is dead. Kernels: whether a message
was alive at a boundary, its relevance to a query, exactly as in `matching.naive.skyline_scores`, and a heap of slots by
life, from which trees take expired messages.
"""

import math
from typing import NamedTuple

import numpy as np

from compiling.njit import njit, njit_inner, njit_inner_no_refcount, njit_no_refcount
from matching.model import Float64, Int32, Int64, MessageBatch, centres
from matching.storage.slots import SlotMap, grown

#: Below this many terms the heap is never rewritten.
_SMALL_HEAP = 1024
#: `ended` of a message that no later version or deletion has ended.
NEVER = 2**63 - 1


class Log(NamedTuple):
    """Columns by slot, as kernels take them.

    seq : int64[n]           negative for a free slot
    life : int64[n]
    object : int64[n or 0]   empty while every message is an object of its own, whose number is its seq
    ended : int64[n or 0]    number of the batch that ended it, `NEVER` if none did; empty if no past boundary is
                             retained: then every message in a tree is alive, unless the tree has it as obsolete
    lon, lat : float64[n]    degrees; of a range message the centre
    term_start : int64[n], term_count : int32[n]   where in `terms`
    terms : int32[]          the heap
    """

    seq: Int64
    life: Int64
    object: Int64
    ended: Int64
    lon: Float64
    lat: Float64
    term_start: Int64
    term_count: Int32
    terms: Int32


#: Columns by slot beside `seq`.
_COLUMNS = ("life", "object", "ended", "lon", "lat", "term_start", "term_count")


class MessageLog:
    """Messages by slot; slots come and go in bulk.

    Parameters
    ----------
    remembers : bool    whether to keep `ended`, for queries as of past boundaries
    """

    def __init__(self, remembers: bool = False):
        self.remembers = remembers
        self.slots = SlotMap()
        self.life = np.zeros(0, np.int64)
        self.object, self.ended = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self.lon, self.lat = np.zeros(0), np.zeros(0)
        self.term_start, self.term_count = np.zeros(0, np.int64), np.zeros(0, np.int32)
        self.terms = np.zeros(0, np.int32)
        self.heap_used = self.heap_dead = 0

    def __len__(self) -> int:
        return len(self.slots)

    @property
    def view(self) -> Log:
        """The columns for a kernel; good until the next change."""
        return Log(
            self.slots.number, self.life, self.object, self.ended, self.lon, self.lat, self.term_start, self.term_count,
            self.terms,
        )  # fmt: skip

    def insert(self, messages: MessageBatch, objects: Int64 | None) -> Int32:
        """Take messages; returns their slots. O(terms), amortised."""
        slots = self.slots.insert(messages.seq)
        capacity = self.slots.capacity
        for name in ("life", "lon", "lat", "term_start", "term_count"):
            setattr(self, name, grown(getattr(self, name), capacity))
        if objects is not None:
            self.object = grown(self.object, capacity)
            self.object[slots] = objects
        if self.remembers:
            self.ended = grown(self.ended, capacity)
            self.ended[slots] = NEVER
        self.life[slots] = messages.life
        self.lon[slots], self.lat[slots] = centres(messages)
        counts = np.diff(messages.term_offsets)
        end = self.heap_used + messages.terms.shape[0]
        self.terms = grown(self.terms, end)
        self.terms[self.heap_used : end] = messages.terms
        self.term_start[slots] = self.heap_used + messages.term_offsets[:-1]
        self.term_count[slots] = counts
        self.heap_used = end
        return slots

    def remove(self, slots: Int32) -> None:
        """Remove messages. O(n), and the heap of terms when it is rewritten."""
        if not slots.shape[0]:
            return
        self.heap_dead += int(self.term_count[slots].sum())
        self.slots.remove(self.slots.number[slots])
        if self.heap_dead * 2 > self.heap_used and self.heap_used > _SMALL_HEAP:
            live = np.flatnonzero(self.slots.number[: self.slots.high_water] >= 0)
            terms = np.empty(self.heap_used - self.heap_dead, np.int32)
            _compact(self.view, live, terms)
            self.terms, self.heap_used, self.heap_dead = terms, terms.shape[0], 0

    def used_bytes(self) -> int:
        """Memory of rows and heap up to the highest that is or was in use, and of the map from seq to slot."""
        high = self.slots.high_water
        columns = (self.slots.number, *(getattr(self, name) for name in _COLUMNS))
        return sum(c[:high].nbytes for c in columns) + 4 * self.heap_used + self.slots.index.nbytes

    def size_bytes(self) -> int:
        """Memory of all arrays in bytes, spare capacity included."""
        return sum(getattr(self, name).nbytes for name in (*_COLUMNS, "terms")) + self.slots.allocated_bytes()


@njit(cache=True, nogil=True)
def _compact(log, live, terms):
    """Copy the terms of live slots to `terms`, one after the other."""
    end = 0
    # slots ascend, their places in the heap do not: so it needs another heap, and could not be done in place
    for slot in live:
        first = log.term_start[slot]
        log.term_start[slot] = end
        for p in range(first, first + log.term_count[slot]):
            terms[end] = log.terms[p]
            end += 1


@njit_inner
def object_of(log, slot):
    """Number of the object of a message."""
    if log.object.shape[0] == 0:
        return log.seq[slot]
    return log.object[slot]


@njit_inner_no_refcount
def lived_at(log, slot, as_of):
    """Whether a message in the tree was alive at a boundary; always True if the log keeps no ends."""
    if log.ended.shape[0] == 0:
        return True
    # the window is ahead of the query: arrivals and ends of later batches do not count yet
    return log.seq[slot] <= as_of.last_seq and log.life[slot] > as_of.floor and log.ended[slot] > as_of.number


@njit_inner
def spatial_relevance(lon, lat, region):
    """1 in the middle of a rectangle (float64[4], degrees), 0 at its corners; bit for bit the oracle's expressions."""
    west, south, east, north = region[0], region[1], region[2], region[3]
    dx, dy = lon - (west + east) / 2.0, lat - (south + north) / 2.0
    width, height = east - west, north - south
    # not `hypot`, which may round otherwise than the oracle does
    half_diagonal = math.sqrt(width * width + height * height) / 2.0
    # the rectangle is a point: a message in it lies at its centre
    if half_diagonal == 0.0:
        return 1.0
    # rounding may take a corner slightly beyond the half diagonal
    return max(0.0, 1.0 - math.sqrt(dx * dx + dy * dy) / half_diagonal)


@njit(cache=True, nogil=True)
def text_relevance(keywords, terms, common):
    """Jaccard similarity from the numbers of keywords, terms and common ones, as in the oracle."""
    return common / (keywords + terms - common)


# ----------------------------------------------------------------------------------------------- slots by life


@njit_no_refcount
def heap_push(heap, place, size, life, slots):
    """Push slots on the heap of `size` entries; returns the new size. heap, place : int32[slots of the log]."""
    for slot in slots:
        heap[size], place[slot] = slot, size
        _rise(heap, place, life, size)
        size += 1
    return size


@njit_no_refcount
def heap_remove(heap, place, size, life, slots):
    """Remove slots from the heap, which makes their place -1; returns the new size."""
    for slot in slots:
        at = place[slot]
        place[slot] = -1
        size -= 1
        last = heap[size]
        if last != slot:
            heap[at], place[last] = last, at
            # the one from the end comes from another branch, so it may belong above or below
            _rise(heap, place, life, at)
            _sink(heap, place, life, place[last], size)
    return size


@njit_no_refcount
def heap_expired(heap, place, size, life, floor, out):
    """Pop every slot with life <= floor into `out`; returns how many."""
    count = 0
    # a life equal to the floor is over
    while size and life[heap[0]] <= floor:
        out[count] = heap[0]
        place[heap[0]] = -1
        count += 1
        size -= 1
        if size:
            heap[0] = heap[size]
            place[heap[0]] = 0
            _sink(heap, place, life, 0, size)
    return count


@njit_inner_no_refcount
def _rise(heap, place, life, at):
    slot = heap[at]
    while at > 0:
        above = (at - 1) >> 1
        if life[heap[above]] <= life[slot]:
            break
        heap[at] = heap[above]
        place[heap[at]] = at
        at = above
    heap[at], place[slot] = slot, at


@njit_no_refcount
def _sink(heap, place, life, at, size):
    slot = heap[at]
    while 2 * at + 1 < size:
        below = 2 * at + 1
        if below + 1 < size and life[heap[below + 1]] < life[heap[below]]:
            below += 1
        if life[heap[below]] >= life[slot]:
            break
        heap[at] = heap[below]
        place[heap[at]] = at
        at = below
    heap[at], place[slot] = slot, at
