"""Growth and search of posting lists by term, for postings of any columns.

Used where the lists of all terms grow in one pool (`matching.decay.engines.block_lists`), and where a few bits decide
whether two texts may share a keyword.
"""

import numpy as np

from compiling.njit import njit, njit_inner


@njit(cache=True, nogil=True)
def largest_term(c, slots):
    """The largest term of any of these slots (int32[n]), -1 if they have none; `c` has terms as subscriptions do. O(n).

    Columns are those of `matching.storage.point_subscriptions.Subscriptions`.
    """
    largest = -1
    for slot in slots:
        if c.term_count[slot] > 0:
            # terms ascend: the last is the largest
            largest = max(largest, c.terms[c.term_start[slot] + c.term_count[slot] - 1])
    return largest


@njit_inner
def capacity_for(count, added, spare):
    """Places a list of `count` that must take `added` more is given: exact at first, then one in `spare` more."""
    return added if count == 0 else count + added + (count + added) // spare + 2


@njit(cache=True, nogil=True)
def count_added(c, slots, count, capacity, added, spare):
    """Count the new postings of each term into `added`; returns the places that moved lists will need, and how many.

    count, capacity : int32[terms]    of the lists; arrays, since a type of `baselines` would be loaded with the cache
    added : int32[terms]              zero before

    A term of position -1 has no posting.
    """
    needed = posted = 0
    for slot in slots:
        for at in range(c.term_start[slot], c.term_start[slot] + c.term_count[slot]):
            if c.position[at] < 0:
                continue
            posted += 1
            term = c.terms[at]
            before = count[term] + added[term]
            added[term] += 1
            # a list moves once, with capacity for all: the last estimate replaces earlier ones
            if before + 1 > capacity[term]:
                needed += capacity_for(count[term], added[term], spare)
                if added[term] > 1 and before > capacity[term]:
                    needed -= capacity_for(count[term], added[term] - 1, spare)
    return needed, posted


@njit_inner
def bit_of(term):
    """The bit of a keyword in a signature, uint32; other keywords may have the same."""
    return np.uint32(1) << np.uint32((np.int64(term) * 0x9E3779B1 & 0xFFFFFFFF) >> 27)
