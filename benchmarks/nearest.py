"""The k nearest of many messages for many subscriptions at once: what the results are of a stream that has run.

So that nobody has to stream a million messages into every engine before it is timed. It shares nothing with the
engines: the messages of each term lie in order of x, and a subscription looks left and right of its own x in the lists
of its terms, until what is left is further away in x alone than its k-th. Read on in `benchmarks.lasting`.
"""

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numba import njit

from matching.lasting.results import ResultRows
from matching.model import Int64, MessageBatch, SubscriptionTable
from matching.storage.slots import as_input

_CHUNKS_A_CORE = 8


def nearest_messages(table: SubscriptionTable, messages: MessageBatch) -> ResultRows:
    """Results of kind `knn` at the end of these messages, of subscriptions that were there before all of them.

    Keys are distances with their sign turned; nearest first, of equal distances the older first.
    """
    row = np.repeat(np.arange(len(messages)), np.diff(messages.term_offsets))
    order = np.lexsort((messages.x[row], messages.terms))
    row, terms = row[order], messages.terms[order]
    largest = max(int(terms.max(initial=-1)), int(table.terms.max(initial=-1)))
    starts = np.searchsorted(terms, np.arange(largest + 2))
    xs, ys = as_input(messages.x[row], np.float64), as_input(messages.y[row], np.float64)
    seqs = as_input(messages.seq[row], np.int64)
    counts = np.zeros(len(table), np.int64)
    offsets = np.zeros(len(table) + 1, np.int64)
    np.cumsum(table.k, out=offsets[1:])
    far, seq = np.full(offsets[-1], np.inf), np.full(offsets[-1], -1, np.int64)

    def some(rows: Int64) -> None:
        _nearest(table.x, table.y, table.k, table.term_offsets, table.terms, rows, starts, xs, ys, seqs,
                 offsets, counts, far, seq)  # fmt: skip

    cores = os.cpu_count() or 1
    # the kernel lets go of the interpreter, and nothing is timed here
    with ThreadPoolExecutor(cores) as pool:
        list(pool.map(some, np.array_split(np.arange(len(table)), cores * _CHUNKS_A_CORE)))
    there = seq >= 0
    ends = np.zeros(len(table) + 1, np.int64)
    np.cumsum(counts, out=ends[1:])
    return ResultRows(ends, seq[there], -far[there])


@njit(cache=True, nogil=True)
def _nearest(x, y, k, term_offsets, terms, rows, starts, xs, ys, seqs, offsets, counts, far, seq):
    """Fill far and seq from offsets[s] on for the subscriptions of `rows`, ascending, and their counts."""
    for s in rows:
        mine = far[offsets[s] : offsets[s + 1]]
        whose = seq[offsets[s] : offsets[s + 1]]
        for at in range(term_offsets[s], term_offsets[s + 1]):
            first, end = starts[terms[at]], starts[terms[at] + 1]
            right = first + np.searchsorted(xs[first:end], x[s])
            left = right - 1
            while left >= first or right < end:
                # the nearer of the two sides, in x
                go_left = right == end or (left >= first and x[s] - xs[left] <= xs[right] - x[s])
                place = left if go_left else right
                # further away in x alone than the k-th: so is all that is left on either side
                if abs(xs[place] - x[s]) > mine[k[s] - 1]:
                    break
                if go_left:
                    left -= 1
                else:
                    right += 1
                dx, dy = x[s] - xs[place], y[s] - ys[place]
                _enter(mine, whose, np.sqrt(dx * dx + dy * dy), seqs[place])
        count = 0
        while count < k[s] and whose[count] >= 0:
            count += 1
        counts[s] = count


@njit(cache=True, nogil=True)
def _enter(mine, whose, distance, seq):
    """Insert into the ascending (distance, seq); what is there already, or too far, is not."""
    last = mine.shape[0] - 1
    if distance > mine[last] or (distance == mine[last] and whose[last] >= 0 and seq > whose[last]):
        return
    at = last
    for i in range(mine.shape[0]):
        if whose[i] < 0 or distance < mine[i] or (distance == mine[i] and seq <= whose[i]):
            at = i
            break
    if whose[at] == seq:
        return
    for i in range(last, at, -1):
        mine[i], whose[i] = mine[i - 1], whose[i - 1]
    mine[at], whose[at] = distance, seq
