"""The update memo: objects with obsolete entries in the tree, and the stamp below which their entries are obsolete.

An entry of the tree is obsolete if the memo has its object with a later stamp. Stamps are seqs of messages; the memo
has the stamp after that of the object's last ended message. The paper has the stamp of the newest version, which is
equivalent, since a new version ends the one before, but here an end may be noted late. The memo also counts obsolete
entries by object, and drops the object with the last of them.
"""

from typing import NamedTuple

import numpy as np

from compiling.njit import njit, njit_inner, njit_inner_no_refcount
from matching.model import Int32, Int64
from matching.storage.slots import home_of

_EMPTY = -(2**62)
_FULLEST = 0.7


class Memo(NamedTuple):
    """object : int64[c]     -2**62 for an empty entry; c is a power of two
    latest : int64[c]     entries with a stamp below are obsolete
    obsolete : int32[c]   how many of those are still in the tree, at least 1
    meta : int64[1]       objects
    """

    object: Int64
    latest: Int64
    obsolete: Int32
    meta: Int64


def new_memo(entries: int = 16) -> Memo:
    """An empty memo."""
    return Memo(
        np.full(entries, _EMPTY, np.int64), np.zeros(entries, np.int64), np.zeros(entries, np.int32),
        np.zeros(1, np.int64),
    )  # fmt: skip


def with_capacity(memo: Memo, more: int) -> Memo:
    """The memo, or a copy with capacity for `more` objects; a smaller one if it has become very empty."""
    entries, needed = memo.object.shape[0], int(memo.meta[0]) + more
    if entries > 64 and needed * 16 < entries:
        entries //= 8
    while needed > _FULLEST * entries:
        entries *= 2
    if entries == memo.object.shape[0]:
        return memo
    other = new_memo(entries)
    _copy(memo, other)
    return other


@njit(cache=True, nogil=True)
def find(memo, number):
    """Entry of an object, -1 if the memo does not have it."""
    last = memo.object.shape[0] - 1
    entry = home_of(number, last + 1)
    # ends, since `with_capacity` keeps some of the table empty
    while memo.object[entry] != number:
        if memo.object[entry] == _EMPTY:
            return -1
        entry = (entry + 1) & last
    return entry


@njit_inner
def note_ended(memo, number, stamp):
    """One more entry of an object is obsolete: the one with this stamp."""
    # the tree is not searched for that entry, which is the point: it may be in any leaf
    last = memo.object.shape[0] - 1
    entry = home_of(number, last + 1)
    while memo.object[entry] != number:
        if memo.object[entry] == _EMPTY:
            memo.object[entry], memo.latest[entry], memo.obsolete[entry] = number, stamp + 1, 0
            memo.meta[0] += 1
            break
        entry = (entry + 1) & last
    # within one boundary ends come in any order: first explicit ends, then expired messages
    memo.latest[entry] = max(memo.latest[entry], stamp + 1)
    memo.obsolete[entry] += 1


@njit_inner_no_refcount
def is_superseded(memo, number, stamp):
    """Whether an entry of an object with this stamp is obsolete."""
    # nothing has ended that is still in the tree: no search
    if memo.meta[0] == 0:
        return False
    entry = find(memo, number)
    return entry >= 0 and stamp < memo.latest[entry]


@njit_inner
def note_cleaned(memo, number):
    """An obsolete entry of an object was removed from the tree; the object is dropped with the last one."""
    entry = find(memo, number)
    if entry < 0:  # a version that was never ended; the caller checks that
        return
    if memo.obsolete[entry] > 1:
        memo.obsolete[entry] -= 1
        return
    # the last one: dropped, or the memo would grow with every object
    last = memo.object.shape[0] - 1
    hole, entry = entry, (entry + 1) & last
    while memo.object[entry] != _EMPTY:
        home = home_of(memo.object[entry], last + 1)
        # An entry may fill the hole unless its home lies behind the hole, counted in the direction of probing.
        if ((entry - home) & last) >= ((entry - hole) & last):
            memo.object[hole], memo.latest[hole] = memo.object[entry], memo.latest[entry]
            memo.obsolete[hole] = memo.obsolete[entry]
            hole = entry
        entry = (entry + 1) & last
    memo.object[hole] = _EMPTY
    memo.meta[0] -= 1


@njit(cache=True, nogil=True)
def _copy(old, new):
    last = new.object.shape[0] - 1
    for entry in range(old.object.shape[0]):
        if old.object[entry] != _EMPTY:
            place = home_of(old.object[entry], last + 1)
            while new.object[place] != _EMPTY:
                place = (place + 1) & last
            new.object[place], new.latest[place] = old.object[entry], old.latest[entry]
            new.obsolete[place] = old.obsolete[entry]
    new.meta[0] = old.meta[0]
