"""Inverted lists by cell, keyword and bucket, cut into blocks of which each knows its extremes; flat arrays.

A subscription stands in some cells of a quadtree that cover the whole space without overlap (Chen et al., CIQ, section
IV-B). Each of these is an *association*: a row with what bounds the subscription there (the local query table of the
paper), numbered in the order in which they came. A posting is such a number and nothing else, so that whatever is added
is appended to its lists, also when a subscription moves to other cells, and the lists of a bucket can be walked side by
side in ascending order.

What bounds a subscription consists of two parts: `scaled`, that comes with its threshold, and `reach`, that comes with
cell and place; a block keeps the least `scaled` and the largest `reach` of its postings (Lemma 2), which need not be of
one subscription. What they mean is up to the engine, and only that a lower `scaled` and a higher `reach` let more
through is taken for granted here. Beside them stands what bounds texts: 32 bits for the keywords, what one keyword
alone can be worth, and in a block the largest norm of the weights from its keyword on. A term of position -1
(`PointSubscriptions.insert`) is not posted.

Of an association that is dropped the postings stay, and never pass again: its `scaled` is plus infinity. The lists are
made anew when half of them is dropped. A list of one posting takes 60 bytes.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compiling.njit import njit, njit_inner, njit_no_refcount
from matching.errors import ConfigError
from matching.model import Float32, Float64, Int32, Int64, UInt8
from matching.storage.block_pool import allocate_block, free_block
from matching.storage.point_subscriptions import PointSubscriptions
from matching.storage.slots import grown
from matching.storage.term_lists import bit_of
from papers.ciq.quadtree import cells_down_to

#: Buckets of a cell at most; with it in seven bits, cell and bucket take one int32 down to a depth of 11. Two of them
#: are special: for those whose text counts not, and, at the root, for those without a threshold.
MOST_BUCKETS = 128
_SPECIAL_BUCKETS = 2
NONE = -1
#: A table is never fuller than this: longer runs cost more than the places do.
_FULLEST = 0.6
_MOST_DROPPED = 0.5
#: Places in `Celled.used`.
_POOL_END, _LISTS, _BLOCKS, ASSOCIATIONS, DROPPED = range(5)
#: Rows, in words of 8 bytes.
_LIST_WORDS, _BLOCK_WORDS, _ASSOCIATION_WORDS = 3, 4, 4
#: Least capacity: with a row or none, NumPy and so Numba would take a view for contiguous.
_FEWEST = 16
#: A norm is rounded to float32 upwards.
_UPWARDS = 1.0 + 1.2e-7


class Celled(NamedTuple):
    """Kernel view; l lists, b blocks, p places of postings, a associations. What has one length is one array of rows.

    index : int32[places]      open addressing over the first list of each pair of cell and term
    key : int64[l]             cell << 31 | term
    bucket, next_list, first, last : int32[l]   `next_list` is of the same cell and term, first and last are blocks
    low : float64[b]           least `scaled` of a block, or less
    high : float32[b]          its largest `reach`, or more
    most : float32[b]          largest norm of the weights from the keyword on, or more; 1 where norms are not kept
    count, start, after, size_class : int32[b]  `after` is the next block of the list, -1 at its end
    seq : int32[p]             associations, ascending in a list
    free : int64[classes]      see `matching.storage.block_pool`
    scaled : float64[a], reach : float32[a]     what bounds the subscription in the cell; `scaled` may be less
    slot : int32[a]            -1: dropped
    next : int32[a]            the next association of the slot
    where : int32[a]           cell * 128 + bucket
    alone : float32[a]         what one of its keywords can be worth, if no other is shared
    signature : uint32[a]      `bit_of` all its keywords
    head : int32[slots]        the first association of a slot
    used : int64[5]            ends of what is used: postings, lists, blocks, associations; associations dropped
    occupied : uint8[cells]      1: the cell has lists
    """

    index: Int32
    key: Int64
    bucket: Int32
    next_list: Int32
    first: Int32
    last: Int32
    low: Float64
    high: Float32
    most: Float32
    count: Int32
    start: Int32
    after: Int32
    size_class: Int32
    seq: Int32
    free: Int64
    scaled: Float64
    reach: Float32
    slot: Int32
    next: Int32
    where: Int32
    alone: Float32
    signature: NDArray[np.uint32]
    head: Int32
    used: Int64
    occupied: UInt8


class CelledLists:
    """The lists of the subscriptions of a store.

    Parameters
    ----------
    depth : int     levels of cells below the root
    buckets : int   of a cell, without the two special ones: 1 to 126
    block : int     postings of a block at most, a power of two
    norms : bool    whether blocks keep the largest norm of weights

    Raises
    ------
    ConfigError
        For more buckets than fit beside the cell's number.
    """

    def __init__(self, depth: int, buckets: int, block: int, norms: bool = False):
        if not 1 <= buckets <= MOST_BUCKETS - _SPECIAL_BUCKETS:
            raise ConfigError(f"buckets {buckets}: give 1 to {MOST_BUCKETS - _SPECIAL_BUCKETS} for a cell")
        self.depth, self.block, self.norms = depth, block, norms
        self._rows = np.zeros((_FEWEST, _LIST_WORDS), np.int64), np.zeros((_FEWEST, _BLOCK_WORDS), np.int64)
        self._associations = np.zeros((_FEWEST, _ASSOCIATION_WORDS), np.int64)
        self._index = np.full(2 * _FEWEST, NONE, np.int32)
        self._seq = np.zeros(0, np.int32)
        self._head = np.zeros(0, np.int32)
        self._free = np.full(block.bit_length(), NONE, np.int64)
        self._used = np.zeros(5, np.int64)
        self._occupied = np.zeros(cells_down_to(depth), np.uint8)
        self._in_order = 0  # associations, when they were put in order last
        self._refresh()

    def add(
        self, subscriptions: PointSubscriptions, slots: Int32, where: Int32, scaled: Float64, reach: Float32,
        alike: Int32 | None = None, alone: Float32 | None = None,
    ) -> None:  # fmt: skip
        """Associate slots[i] with cell where[i] // 128, bucket where[i] % 128. O(n log n + their terms), amortised.

        Of those that come together, or are put in order by `renew`, those next to each other in `alike` (int32[n]) come
        into one block, by default in order of slot. `alone` (float32[n]) is 1 by default.
        """
        # cell by cell, so that what is read together lies together
        order = np.lexsort((slots if alike is None else alike, where))
        slots, where, scaled, reach = slots[order], where[order], scaled[order], reach[order]
        alone = np.ones(slots.shape[0], np.float32) if alone is None else alone[order]
        self._head = grown(self._head, subscriptions.capacity, NONE)
        used = int(self._used[ASSOCIATIONS])
        self._in_order = max(self._in_order, slots.shape[0])
        self._associations = grown(self._associations, used + slots.shape[0])
        self._refresh()
        done = 0
        while True:
            done = _add(
                self.view, subscriptions.columns, slots, where, scaled, reach, alone, done, self.block, self.norms
            )  # fmt: skip
            if done == slots.shape[0]:
                return
            self._grow(int(subscriptions.columns.term_count[slots[done]]))

    def drop(self, slots: Int32) -> None:
        """Drop all associations of these slots. O(associations)."""
        _drop(self.view, slots)

    def renew(
        self, subscriptions: PointSubscriptions, alike: Callable[[Float64, Float32], Int32] | None = None
    ) -> None:
        """Make the lists anew if half of them is dropped or out of order; call while no kernel walks them.

        `alike` makes that argument of `add` of `scaled` and `reach`. O(postings), but seldom.
        """
        used, dropped = int(self._used[ASSOCIATIONS]), int(self._used[DROPPED])
        in_order = self._in_order if alike is not None else used
        if dropped <= max(_MOST_DROPPED * used, 1 << 10) and used <= max(2 * in_order, 1 << 14):
            return
        v = self.view
        live = np.flatnonzero(v.slot[:used] >= 0)
        slots, where, scaled, reach, alone = v.slot[live], v.where[live], v.scaled[live], v.reach[live], v.alone[live]
        self._used[:], self._free[:], self._index[:], self._head[:], self._occupied[:] = 0, NONE, NONE, NONE, 0
        self.add(subscriptions, slots, where, scaled, reach, None if alike is None else alike(scaled, reach), alone)
        self._in_order = slots.shape[0]

    @property
    def associations(self) -> int:
        """How many there are."""
        return int(self._used[ASSOCIATIONS] - self._used[DROPPED])

    def arrays(self) -> dict[str, np.ndarray]:
        """All memory, trimmed to the used part."""
        pool, lists, blocks, associations, _ = self._used.tolist()
        return {
            "index": self._index, "lists": self._rows[0][:lists], "blocks": self._rows[1][:blocks],
            "associations": self._associations[:associations], "seq": self._seq[:pool], "free": self._free,
            "head": self._head, "used": self._used, "occupied": self._occupied,
        }  # fmt: skip

    def _grow(self, terms: int) -> None:
        """Grow what is too short for the postings of one more association, by half."""
        lists, blocks = int(self._used[_LISTS]) + terms, int(self._used[_BLOCKS]) + terms
        self._rows = grown(self._rows[0], lists), grown(self._rows[1], blocks)
        self._seq = grown(self._seq, int(self._used[_POOL_END]) + terms * self.block)
        places = self._index.shape[0]
        while lists > _FULLEST * places:
            places *= 2
        grows = places > self._index.shape[0]
        if grows:
            self._index = np.full(places, NONE, np.int32)
        self._refresh()
        if grows:
            _index_all(self.view)

    def _refresh(self) -> None:
        """The view, of the arrays as they are now."""
        lists, blocks = self._rows
        short, in_blocks = lists.view(np.int32), blocks.view(np.int32)
        own = self._associations.view(np.int32)
        self.view = Celled(
            index=self._index, key=lists[:, 0], bucket=short[:, 2], next_list=short[:, 3], first=short[:, 4],
            last=short[:, 5], low=blocks.view(np.float64)[:, 0], high=blocks.view(np.float32)[:, 2],
            most=blocks.view(np.float32)[:, 7], count=in_blocks[:, 3], start=in_blocks[:, 4], after=in_blocks[:, 5],
            size_class=in_blocks[:, 6], seq=self._seq, free=self._free,
            scaled=self._associations.view(np.float64)[:, 0], reach=self._associations.view(np.float32)[:, 2],
            slot=own[:, 3], next=own[:, 4], where=own[:, 5], alone=self._associations.view(np.float32)[:, 6],
            signature=self._associations.view(np.uint32)[:, 7], head=self._head, used=self._used,
            occupied=self._occupied,
        )  # fmt: skip


@njit_inner
def key_of_list(cell, term):
    """Cell and term in one number."""
    return (np.int64(cell) << 31) | np.int64(term)


@njit(cache=True, nogil=True)
def _home(key, places):
    """Where a key belongs in a table of `places` (a power of two); stays within 63 bits."""
    # both halves are dense: unless each is scattered by itself, pairs with one sum or difference collide
    mixed = ((key >> 31) * 0x85EBCA6B ^ (key & 0x7FFFFFFF) * 0x9E3779B1) & 0x7FFFFFFF
    mixed ^= mixed >> 15
    return ((mixed * 0xC2B2AE35 & 0xFFFFFFFF) * places) >> 32


@njit_inner
def find_lists(v, key):
    """The first list of a cell and term, -1 if there is none; the others follow through `next_list`."""
    place = _home(key, v.index.shape[0])
    while True:
        found = v.index[place]
        if found < 0 or v.key[found] == key:
            return found
        place = (place + 1) & (v.index.shape[0] - 1)


@njit(cache=True, nogil=True)
def _enter(v, new):
    place = _home(v.key[new], v.index.shape[0])
    while v.index[place] >= 0:
        place = (place + 1) & (v.index.shape[0] - 1)
    v.index[place] = new


@njit(cache=True, nogil=True)
def _index_all(v):
    """Fill an empty index; of the lists of a cell and term the one that was there first stands for all."""
    for each in range(v.used[_LISTS]):
        found = find_lists(v, v.key[each])
        if found < 0:
            _enter(v, each)


@njit_inner
def _list_of(v, cell, term, bucket):
    """The list of a cell, term and bucket; added if missing, for which the caller has reserved capacity."""
    key = key_of_list(cell, term)
    first = found = find_lists(v, key)
    while found >= 0:
        if v.bucket[found] == bucket:
            return found
        found = v.next_list[found]
    new = v.used[_LISTS]
    v.used[_LISTS] += 1
    v.key[new], v.bucket[new] = key, bucket
    v.first[new] = v.last[new] = NONE
    v.next_list[new] = NONE
    if first < 0:
        _enter(v, new)
    else:
        # after the first, which is in the index
        v.next_list[new] = v.next_list[first]
        v.next_list[first] = new
    v.occupied[cell] = 1
    return new


@njit_no_refcount
def _append(v, at, association, norm, most):
    """Append an association to a list, and widen what its last block bounds."""
    block = v.last[at]
    if block < 0 or v.count[block] == most:
        new = v.used[_BLOCKS]
        v.used[_BLOCKS] += 1
        v.start[new], v.size_class[new] = allocate_block(v, 0, 1), 0
        v.count[new], v.after[new] = 0, NONE
        v.low[new], v.high[new], v.most[new] = math.inf, -math.inf, 0.0
        if block < 0:
            v.first[at] = new
        else:
            v.after[block] = new
        v.last[at] = block = new
    elif v.count[block] == 1 << v.size_class[block]:
        size_class, old = v.size_class[block] + 1, v.start[block]
        start = allocate_block(v, size_class, 1 << size_class)
        for i in range(v.count[block]):
            v.seq[start + i] = v.seq[old + i]
        free_block(v, block)
        v.start[block], v.size_class[block] = start, size_class
    v.seq[v.start[block] + v.count[block]] = association
    v.count[block] += 1
    # at once: a block with stale extremes would hide the new one (spec 6)
    v.low[block] = min(v.low[block], v.scaled[association])
    v.high[block] = max(v.high[block], v.reach[association])
    v.most[block] = max(v.most[block], norm)


@njit_no_refcount
def _add(v, c, slots, where, scaled, reach, alone, first, most, norms):
    """Add associations from `first` on; returns the first one beyond the capacity, not added, or their number."""
    for i in range(first, slots.shape[0]):
        slot = slots[i]
        terms = c.term_count[slot]
        if (
            v.used[_LISTS] + terms > min(v.key.shape[0], _FULLEST * v.index.shape[0])
            or v.used[_BLOCKS] + terms > v.count.shape[0]
            or v.used[_POOL_END] + terms * most > v.seq.shape[0]
        ):
            return i
        association = v.used[ASSOCIATIONS]
        v.used[ASSOCIATIONS] += 1
        v.scaled[association], v.reach[association] = scaled[i], reach[i]
        v.slot[association], v.where[association] = slot, where[i]
        v.next[association] = v.head[slot]
        v.head[slot] = association
        cell, bucket = where[i] // MOST_BUCKETS, where[i] % MOST_BUCKETS
        v.alone[association], signature, square = alone[i], np.uint32(0), 0.0
        # from the last keyword back, to accumulate the norm of the later ones
        for at in range(c.term_start[slot] + terms - 1, c.term_start[slot] - 1, -1):
            weight = np.float64(c.weights[at])
            square += weight * weight
            # the signature includes keywords without a posting: they may follow one with a posting
            signature |= bit_of(c.terms[at])
            if c.position[at] >= 0:
                norm = np.float32(math.sqrt(square) * _UPWARDS) if norms else np.float32(1.0)
                _append(v, _list_of(v, cell, c.terms[at], bucket), association, norm, most)
        v.signature[association] = signature
    return slots.shape[0]


@njit(cache=True, nogil=True)
def _drop(v, slots):
    for slot in slots:
        association = v.head[slot]
        while association >= 0:
            # no bound lets it pass any more, and a block with only such is skipped whole
            v.scaled[association], v.reach[association] = math.inf, -math.inf
            v.slot[association] = NONE
            v.used[DROPPED] += 1
            association = v.next[association]
        v.head[slot] = NONE
