"""The k best of many messages by fading score, for many subscriptions at once: what the results are of a stream that
has run.

So that nobody has to stream a hundred thousand messages into every engine before it is timed. It shares nothing with
the engines: the messages of each term lie in order of time, and a subscription takes those of its terms from the newest
back, until all that is left is so old that even a message at its place, with its words as often as any message has
them, would be worth less than its k-th. Read on in `benchmarks.lasting`.
"""

import math
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numba import njit

from matching.fading import Fading
from matching.lasting.results import ResultRows
from matching.model import Int64, MessageBatch, SubscriptionTable

_CHUNKS_A_CORE = 8
#: By how much a logarithm may be off.
_SLACK = 1e-9


def best_messages(table: SubscriptionTable, messages: MessageBatch, fading: Fading, max_distance: float) -> ResultRows:
    """Results of kind `decay` at the end of these messages, of subscriptions that were there before all of them.

    Messages are in order of time. Best first, of equal keys the older first.
    """
    row = np.repeat(np.arange(len(messages)), np.diff(messages.term_offsets))
    order = np.argsort(messages.terms, kind="stable")  # of each term the oldest first
    posted, terms = row[order], messages.terms[order]
    largest = max(int(terms.max(initial=-1)), int(table.terms.max(initial=-1)))
    starts = np.searchsorted(terms, np.arange(largest + 2))
    lengths = np.add.reduceat(messages.counts, messages.term_offsets[:-1]) if len(messages) else np.zeros(0, np.int64)
    lifted = np.array([(time - fading.epoch_us) / 1e6 for time in messages.event_time_us.tolist()])
    lifted *= fading.log_base_per_s
    most_often = np.zeros(largest + 1)  # of each term, the largest share of a message's words
    np.maximum.at(most_often, messages.terms, messages.counts / np.repeat(lengths, np.diff(messages.term_offsets)))
    offsets = np.zeros(len(table) + 1, np.int64)
    np.cumsum(table.k, out=offsets[1:])
    key, seq = np.full(offsets[-1], -np.inf), np.full(offsets[-1], -1, np.int64)

    def some(rows: Int64) -> None:
        _best(table.x, table.y, table.alpha, table.term_offsets, table.terms, rows, starts, posted,
              messages.x, messages.y, messages.seq, messages.term_offsets, messages.terms, messages.counts,
              lengths.astype(np.int64), lifted, fading.collection_share, fading.smoothing, most_often, max_distance,
              offsets, key, seq)  # fmt: skip

    cores = os.cpu_count() or 1
    # the kernel lets go of the interpreter, and nothing is timed here
    with ThreadPoolExecutor(cores) as pool:
        list(pool.map(some, np.array_split(np.arange(len(table)), cores * _CHUNKS_A_CORE)))
    there = seq >= 0
    before = np.zeros(there.shape[0] + 1, np.int64)
    np.cumsum(there, out=before[1:])
    ends = before[offsets]
    return ResultRows(ends, seq[there], key[there])


@njit(cache=True, nogil=True)
def _best(
    x, y, alpha, term_offsets, terms, rows, starts, posted, xs, ys, seqs, message_offsets, message_terms, counts,
    lengths, lifted, share, smoothing, most_often, max_distance, offsets, key, seq,
):  # fmt: skip
    """Fill key and seq from offsets[s] on for the subscriptions of `rows`, best first; seq stays -1 where none is."""
    at = np.empty(64, np.int64)
    for s in rows:
        mine, whose = key[offsets[s] : offsets[s + 1]], seq[offsets[s] : offsets[s + 1]]
        first, last = term_offsets[s], term_offsets[s + 1]
        for j in range(first, last):
            at[j - first] = starts[terms[j] + 1] - 1
        text = 1.0
        for j in range(first, last):
            text *= (1.0 - smoothing) * most_often[terms[j]] + smoothing * share[terms[j]]
        # a relevance of 1 would be a bound as well, but texts of several words are worth next to nothing
        relevance = alpha[s] + (1.0 - alpha[s]) * text
        most = math.log(relevance) + _SLACK if relevance > 0.0 else 0.0
        while True:
            newest = -1
            for j in range(first, last):
                if at[j - first] >= starts[terms[j]]:
                    newest = max(newest, posted[at[j - first]])
            if newest < 0 or (whose[-1] >= 0 and lifted[newest] + most < mine[-1]):
                break
            text = 1.0
            for j in range(first, last):
                count = 0
                if at[j - first] >= starts[terms[j]] and posted[at[j - first]] == newest:
                    at[j - first] -= 1
                    for i in range(message_offsets[newest], message_offsets[newest + 1]):
                        if message_terms[i] == terms[j]:
                            count = counts[i]
                text *= (1.0 - smoothing) * (count / lengths[newest]) + smoothing * share[terms[j]]
            dx, dy = x[s] - xs[newest], y[s] - ys[newest]
            spatial = 1.0 - math.sqrt(dx * dx + dy * dy) / max_distance
            relevance = alpha[s] * spatial + (1.0 - alpha[s]) * text
            value = math.log(relevance) + lifted[newest] if relevance > 0.0 else -math.inf
            _enter(mine, whose, value, seqs[newest])


@njit(cache=True, nogil=True)
def _enter(mine, whose, value, seq):
    """Insert an older message than all that are there: of equal keys it comes first."""
    last = mine.shape[0] - 1
    if whose[last] >= 0 and value < mine[last]:
        return
    place = last
    while place > 0 and (whose[place - 1] < 0 or mine[place - 1] <= value):
        mine[place], whose[place] = mine[place - 1], whose[place - 1]
        place -= 1
    mine[place], whose[place] = value, seq
