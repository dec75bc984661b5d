"""Updatable inverted lists: one hash table from (term, place in a tree) to a short list of slots.

The texts of the trees that the memo tree is compared with. A place is a node of an R-tree or KD-tree or a cell of a
quadtree. A list of one slot needs no memory but its entry; longer ones lie in blocks of the next power of two. An entry
may also be a count (`COUNT`): the number of messages below an inner node that have the term.

Kernels cannot grow arrays, so callers check the capacity before they start (`has_capacity`) and return to Python, which
calls `grown`, if there is none.
"""

from typing import NamedTuple

import numpy as np

from compiling.njit import njit, njit_inner, njit_inner_no_refcount, njit_no_refcount
from matching.model import UNKNOWN_TERM, Int32, Int64
from matching.storage.prefetch import prefetch

#: Stands in `value` for an entry without a list.
COUNT = -2
_EMPTY = -1
_FULLEST = 0.75
#: Positions in `meta`.
_KEYS, _POOL_END, LONGEST, _FREE = 0, 1, 2, 4
_CLASSES = 31


class PlaceLists(NamedTuple):
    """key : int64[c]             term << 32 | place, -1 for an empty entry; c is a power of two
    value : int32[c]           the slot of a list of one, where a longer one starts in `pool`, or `COUNT`
    length : int32[c]
    pool : int32[p]            blocks of a power of two; a free block starts with the start of the next free one
    meta : int64[4 + 31]       keys, end of the used pool, longest list ever, -, first free block by size
    """

    key: Int64
    value: Int32
    length: Int32
    pool: Int32
    meta: Int64


def new_lists() -> PlaceLists:
    """No lists."""
    meta = np.zeros(_FREE + _CLASSES, np.int64)
    meta[_FREE:] = _EMPTY
    entries = 64
    return PlaceLists(
        np.full(entries, _EMPTY, np.int64), np.zeros(entries, np.int32), np.zeros(entries, np.int32),
        np.zeros(64, np.int32), meta,
    )  # fmt: skip


def grown(lists: PlaceLists, keys: int, words: int) -> PlaceLists:
    """Lists with capacity for more keys and words, and half as many again as there are. O(all)."""
    wanted = int(lists.meta[_POOL_END]) + words
    pool = lists.pool
    if wanted > pool.shape[0]:
        if wanted + wanted // 2 > 2**31 - 1:
            wanted = min(wanted, 2**31 - 1)
        pool = np.zeros(wanted + wanted // 2, np.int32)
        pool[: lists.pool.shape[0]] = lists.pool
    entries = lists.key.shape[0]
    while int(lists.meta[_KEYS]) + keys > _FULLEST * entries:
        entries *= 2
    if entries == lists.key.shape[0]:
        return lists._replace(pool=pool)
    larger = PlaceLists(
        np.full(entries, _EMPTY, np.int64), np.zeros(entries, np.int32), np.zeros(entries, np.int32), pool, lists.meta
    )  # fmt: skip
    _rehash(lists, larger)
    return larger


def used_bytes(lists: PlaceLists) -> int:
    """Memory of the table and of the pool as far as it has been used."""
    table = lists.key.nbytes + lists.value.nbytes + lists.length.nbytes
    return table + 4 * int(lists.meta[_POOL_END]) + lists.meta.nbytes


@njit(cache=True, nogil=True)
def key_of(term, place):
    """Key of a term (int32) at a place (below 2**32)."""
    return (np.int64(term) << 32) | np.int64(place)


@njit(cache=True, nogil=True)
def has_capacity(lists, keys, words):
    """Whether `keys` keys, and lists of `words` words in all, can be added without growing."""
    if lists.meta[_POOL_END] + words > lists.pool.shape[0]:
        return False
    return lists.meta[_KEYS] + keys <= _FULLEST * lists.key.shape[0]


@njit(cache=True, nogil=True)
def _home(key, entries):
    """Where a key belongs; within 63 bits, so that it means the same with the compiler switched off."""
    folded = ((key >> 32) * 0x2545F491 & 0x7FFFFFFF) ^ ((key & 0xFFFFFFFF) * 0x1B873593 & 0x7FFFFFFF)
    folded = (folded ^ (folded >> 15)) * 0x2C1B3C6D & 0x7FFFFFFF
    # only the low bits choose, so the high ones are folded into them
    return (folded ^ (folded >> 13)) & (entries - 1)


@njit_inner
def ask_for(lists, key):
    """Have what `find` will read come from memory."""
    entry = _home(key, lists.key.shape[0])
    prefetch(lists.key, entry)
    prefetch(lists.value, entry)
    prefetch(lists.length, entry)


@njit(cache=True, nogil=True)
def find(lists, key):
    """Entry of a key, -1 if there is none. O(1) expected."""
    last = lists.key.shape[0] - 1
    entry = _home(key, last + 1)
    # ends, since `has_capacity` keeps a quarter of the table empty
    while lists.key[entry] != key:
        if lists.key[entry] == _EMPTY:
            return -1
        entry = (entry + 1) & last
    return entry


@njit(cache=True, nogil=True)
def _enter(lists, key):
    """Entry of a key, made if need be: then with length 0."""
    last = lists.key.shape[0] - 1
    entry = _home(key, last + 1)
    while lists.key[entry] != key:
        if lists.key[entry] == _EMPTY:
            lists.key[entry] = key
            # a count until `append` makes a list of it
            lists.value[entry] = COUNT
            lists.length[entry] = 0
            lists.meta[_KEYS] += 1
            return entry
        entry = (entry + 1) & last
    return entry


@njit(cache=True, nogil=True)
def _forget(lists, hole):
    """Remove an entry, and move later entries of its run back: a tombstone would lengthen searches until a rehash."""
    last = lists.key.shape[0] - 1
    entry = (hole + 1) & last
    while lists.key[entry] != _EMPTY:
        home = _home(lists.key[entry], last + 1)
        # An entry may fill the hole unless its home lies behind the hole, counted in the direction of probing.
        if ((entry - home) & last) >= ((entry - hole) & last):
            lists.key[hole] = lists.key[entry]
            lists.value[hole] = lists.value[entry]
            lists.length[hole] = lists.length[entry]
            hole = entry
        entry = (entry + 1) & last
    lists.key[hole] = _EMPTY
    lists.meta[_KEYS] -= 1


@njit_inner
def _size_class(length):
    """Exponent of the block of a list of `length` > 1."""
    size = 1
    while (1 << size) < length:
        size += 1
    return size


@njit_inner
def _allocate_block(lists, size):
    start = lists.meta[_FREE + size]
    # nothing is checked here: insertions have called `has_capacity`, and `_halve` checks itself
    if start >= 0:
        lists.meta[_FREE + size] = lists.pool[start]
    else:
        start = lists.meta[_POOL_END]
        lists.meta[_POOL_END] += 1 << size
    return start


@njit_inner
def _free_block(lists, start, size):
    lists.pool[start] = lists.meta[_FREE + size]
    lists.meta[_FREE + size] = start


@njit_no_refcount
def append(lists, key, slot):
    """Add a slot to the list of a key; returns its new length. O(1) amortised."""
    entry = _enter(lists, key)
    length = lists.length[entry]
    if length == 0:
        lists.value[entry] = slot
    # its first block: until now the slot stood in the entry itself
    elif length == 1:
        start = _allocate_block(lists, 1)
        lists.pool[start], lists.pool[start + 1] = lists.value[entry], slot
        lists.value[entry] = start
    else:
        size, start = _size_class(length), lists.value[entry]
        # a list always lies in the smallest block that it fits, so its length says where the block ends
        if length == 1 << size:
            larger = _allocate_block(lists, size + 1)
            for i in range(length):
                lists.pool[larger + i] = lists.pool[start + i]
            # after the copy: its first word becomes a link of the free list
            _free_block(lists, start, size)
            start = larger
            lists.value[entry] = start
        lists.pool[start + length] = slot
    lists.length[entry] = length + 1
    # by this callers reckon how much the next one may need
    lists.meta[LONGEST] = max(lists.meta[LONGEST], length + 1)
    return length + 1


@njit_inner_no_refcount
def slot_at(lists, entry, i):
    """The i-th slot of an entry's list."""
    if lists.length[entry] == 1:
        return lists.value[entry]
    return lists.pool[lists.value[entry] + i]


@njit_inner_no_refcount
def pick_from(lists, places, keywords, entries, seen, slots, picked, visits):
    """Pick the messages that any place lists by a keyword; returns the new end of `slots`.

    places : int32[p]                       what keys are made of (`key_of`): leaves, say
    keywords : int32[k]                     of the query
    entries : int64[p * k]                  scratch
    seen : int16[log], slots : int32[log + 1]    see `baselines.skyline.cells.pick`
    picked : int                            where the free part of `slots` begins
    visits : int64[2]                       grows by places and lists looked up, and by messages listed

    O(p * k + messages listed). Source: our own way of reading, the same for all indexes with lists.
    """
    # keys, entries and lists are anywhere: each is prefetched for all places before any is read
    for place in places:
        for keyword in keywords:
            ask_for(lists, key_of(keyword, place))
    there = 0
    for place in places:
        for keyword in keywords:
            # no message has a keyword that is unknown, and an index may keep a list of its own under its number
            entry = find(lists, key_of(keyword, place)) if keyword != UNKNOWN_TERM else np.int64(_EMPTY)
            entries[there] = entry
            there += entry >= 0
    visits[0] += places.shape[0] * (1 + keywords.shape[0])
    for entry in entries[:there]:
        # in vain for a list of one posting, whose value is the slot itself
        prefetch(lists.pool, np.int64(lists.value[entry]))
    for entry in entries[:there]:
        length = np.int64(lists.length[entry])
        visits[1] += length
        for i in range(length):
            slot = slot_at(lists, entry, i)
            slots[picked] = slot
            picked += seen[slot] == 0
            # once by each keyword it has: so texts are never read
            seen[slot] += 1
    return picked


@njit_no_refcount
def remove_entry(lists, key, slot):
    """Remove a slot from the list of a key; returns what is left, -1 if it was not there. O(length)."""
    entry = find(lists, key)
    if entry < 0 or lists.value[entry] == COUNT:
        return -1
    length = lists.length[entry]
    if length == 1:
        if lists.value[entry] != slot:
            return -1
        _forget(lists, entry)
        return 0
    start, at = lists.value[entry], 0
    while at < length and lists.pool[start + at] != slot:
        at += 1
    if at == length:
        return -1
    length -= 1
    # the order within a list is of no account: candidates are sorted at the end
    lists.pool[start + at] = lists.pool[start + length]
    lists.length[entry] = length
    # the block is that of the length it had
    size = _size_class(length + 1)
    if length == 1:
        lists.value[entry] = lists.pool[start]
        _free_block(lists, start, size)
    elif length <= 1 << (size - 1):
        _halve(lists, entry, size)
    return length


@njit_inner
def _halve(lists, entry, size):
    """Move a list into a block of half the size.

    Keeping the first half in place would save the copy, but large blocks would fall apart for good; it is done only
    where the pool is exhausted, since deletions do not check the capacity.
    """
    start = lists.value[entry]
    # the list lies in the first half already, since it fits
    if lists.meta[_FREE + size - 1] < 0 and lists.meta[_POOL_END] + (1 << (size - 1)) > lists.pool.shape[0]:
        _free_block(lists, start + (1 << (size - 1)), size - 1)
        return
    smaller = _allocate_block(lists, size - 1)
    for i in range(lists.length[entry]):
        lists.pool[smaller + i] = lists.pool[start + i]
    _free_block(lists, start, size)
    lists.value[entry] = smaller


@njit_inner_no_refcount
def add_to_count(lists, key, amount):
    """Add to the count of a key, which is made or dropped as needed; returns the new count."""
    entry = _enter(lists, key)
    lists.length[entry] += amount
    # read before anything is forgotten: that moves other entries to this place
    count = lists.length[entry]
    if count == 0:
        _forget(lists, entry)
    return count


@njit(cache=True, nogil=True)
def drop(lists, entry):
    """Forget an entry with its list."""
    if lists.value[entry] != COUNT and lists.length[entry] > 1:
        _free_block(lists, lists.value[entry], _size_class(lists.length[entry]))
    _forget(lists, entry)


@njit(cache=True, nogil=True)
def _rehash(old, new):
    last = new.key.shape[0] - 1
    for entry in range(old.key.shape[0]):
        key = old.key[entry]
        # entries alone move: lists stay where they are in the pool
        if key != _EMPTY:
            place = _home(key, last + 1)
            while new.key[place] != _EMPTY:
                place = (place + 1) & last
            new.key[place], new.value[place], new.length[place] = key, old.value[entry], old.length[entry]
