"""Results of a history and of what came after it, joined: the k best of both, without going over the history again.

A result that only gets better is at any time the k best of what it was and of what has come since. So what engines are
held against after the messages that are checked costs no second look at the history. Read on in `benchmarks.lasting`.
"""

import numpy as np
from numba import njit

from matching.lasting.results import ResultRows
from matching.model import Int32


def join_results(before: ResultRows, later: ResultRows, k: Int32) -> ResultRows:
    """The k best of each subscription, of results at one time and of those of later messages alone. O(all).

    Best first, of equal keys the older first, as both are.
    """
    both = np.diff(before.offsets) + np.diff(later.offsets)
    offsets = np.zeros(k.shape[0] + 1, np.int64)
    np.cumsum(np.minimum(both, k), out=offsets[1:])
    seq, key = np.empty(offsets[-1], np.int64), np.empty(offsets[-1])
    _join(before.offsets, before.seq, before.key, later.offsets, later.seq, later.key, offsets, seq, key)
    return ResultRows(offsets, seq, key)


@njit(cache=True, nogil=True)
def _join(old_offsets, old_seq, old_key, new_offsets, new_seq, new_key, offsets, seq, key):
    """Fill seq and key; of equal keys the old one comes first."""
    for s in range(offsets.shape[0] - 1):
        old, new = old_offsets[s], new_offsets[s]
        for at in range(offsets[s], offsets[s + 1]):
            if new == new_offsets[s + 1] or (old < old_offsets[s + 1] and old_key[old] >= new_key[new]):
                seq[at], key[at] = old_seq[old], old_key[old]
                old += 1
            else:
                seq[at], key[at] = new_seq[new], new_key[new]
                new += 1
