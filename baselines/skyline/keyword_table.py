"""A hash table from keyword (term id) to an int64 whose meaning the index defines; open addressing, linear probing.

Kernels cannot grow arrays, so callers call `with_capacity` before a kernel adds a keyword.
"""

from typing import NamedTuple

import numpy as np

from compiling.njit import njit, njit_inner
from matching.model import Int32, Int64
from matching.storage.prefetch import prefetch
from matching.storage.slots import home_of

_EMPTY = -1
#: Largest load factor.
_FULLEST = 0.7


class KeywordEntries(NamedTuple):
    """Arrays of the table; an *entry* is an index into them.

    term : int32[c]     term id; -1 for an empty entry; c is a power of two
    value : int64[c]
    count : int64[1]    number of keywords
    """

    term: Int32
    value: Int64
    count: Int64


def new_table(entries: int = 64) -> KeywordEntries:
    """An empty table."""
    return KeywordEntries(np.full(entries, _EMPTY, np.int32), np.zeros(entries, np.int64), np.zeros(1, np.int64))


def with_capacity(table: KeywordEntries) -> KeywordEntries:
    """The table, or one twice as large if no keyword can be added. O(1) amortised."""
    if has_capacity(table):
        return table
    larger = new_table(2 * table.term.shape[0])
    _copy(table, larger)
    return larger


@njit(cache=True, nogil=True)
def has_capacity(table):
    """Whether one keyword can be added."""
    return table.count[0] + 1 <= _FULLEST * table.term.shape[0]


@njit_inner
def ask_for_keyword(table, term):
    """Prefetch the cache lines that `find_keyword` reads first; the caller looks up other keywords meanwhile."""
    entry = home_of(np.int64(term), table.term.shape[0])
    prefetch(table.term, entry)
    prefetch(table.value, entry)


@njit_inner
def find_keyword(table, term):
    """Entry of a keyword; -1 if the table does not have it. O(1) expected."""
    last = table.term.shape[0] - 1
    entry = home_of(np.int64(term), last + 1)
    # terminates: `_FULLEST` leaves some entries empty
    while table.term[entry] != term:
        if table.term[entry] == _EMPTY:
            return -1
        entry = (entry + 1) & last
    return entry


@njit_inner
def enter_keyword(table, term, value):
    """Add a keyword that the table does not have; the caller has made sure of capacity. O(1) expected."""
    last = table.term.shape[0] - 1
    entry = home_of(np.int64(term), last + 1)
    while table.term[entry] != _EMPTY:
        entry = (entry + 1) & last
    table.term[entry], table.value[entry] = term, value
    table.count[0] += 1


@njit_inner
def forget_keyword(table, hole):
    """Remove the entry `hole`, and move later entries of its run back. O(1) expected.

    A tombstone instead would lengthen searches until the next rehash, which may never come.
    """
    last = table.term.shape[0] - 1
    entry = (hole + 1) & last
    while table.term[entry] != _EMPTY:
        home = home_of(np.int64(table.term[entry]), last + 1)
        # An entry may fill the hole unless its home lies behind the hole, counted in the direction of probing.
        if ((entry - home) & last) >= ((entry - hole) & last):
            table.term[hole], table.value[hole] = table.term[entry], table.value[entry]
            hole = entry
        entry = (entry + 1) & last
    table.term[hole] = _EMPTY
    table.count[0] -= 1


@njit(cache=True, nogil=True)
def _copy(old, new):
    for entry in range(old.term.shape[0]):
        if old.term[entry] != _EMPTY:
            enter_keyword(new, old.term[entry], old.value[entry])
