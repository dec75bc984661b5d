"""The k best of many messages for many subscriptions at once: what the results are of a stream that has run.

So that nobody has to stream a million messages into every engine before it is timed. It shares nothing with the
engines. Where scores fade, the messages of each term lie in order of time, and a subscription takes those of its terms
from the newest back, until all that is left is so old that even a message at its place, with its words as often as any
message has them, would be worth less than its k-th. Where only distance counts they lie in order of x, and it looks
left and right of its own x, until what is left is further away in x alone than its k-th. Read on in
`benchmarks.lasting`.
"""

import math
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numba import njit

from matching.fading import Fading
from matching.lasting.results import ResultRows
from matching.model import Int64, MessageBatch, SubscriptionTable
from matching.storage.slots import as_input

_CHUNKS_A_CORE = 8
#: By how much a logarithm may be off.
_SLACK = 1e-9


def best_messages(
    table: SubscriptionTable,
    messages: MessageBatch,
    max_distance: float,
    fading: Fading | None = None,
    before: ResultRows | None = None,
) -> ResultRows:
    """Results at the end of these messages, of subscriptions that were there before all of them; by fading or distance.

    Parameters
    ----------
    messages : MessageBatch     in order of time
    before : ResultRows         of messages before these: a result that only gets better is the k best of both

    Returns
    -------
    ResultRows    best first, of equal keys the older first; without fading keys are distances with their sign turned
    """
    row = np.repeat(np.arange(len(messages)), np.diff(messages.term_offsets))
    order = np.lexsort((row if fading else messages.x[row], messages.terms))
    posted, terms = row[order], messages.terms[order]
    largest = max(int(terms.max(initial=-1)), int(table.terms.max(initial=-1)))
    starts = np.searchsorted(terms, np.arange(largest + 2))
    offsets = np.zeros(len(table) + 1, np.int64)
    np.cumsum(table.k, out=offsets[1:])
    key, seq = np.full(offsets[-1], -np.inf), np.full(offsets[-1], -1, np.int64)
    if before is not None:
        lengths = np.diff(before.offsets)
        at = np.arange(before.seq.shape[0]) + np.repeat(offsets[:-1] - before.offsets[:-1], lengths)
        key[at], seq[at] = before.key, before.seq
    if fading is None:
        kernel, given = _nearest, (as_input(messages.x[posted], np.float64), as_input(messages.y[posted], np.float64),
                                   as_input(messages.seq[posted], np.int64))  # fmt: skip
    else:
        kernel, given = _faded, (posted, *_of_time(messages, largest, fading), max_distance)

    def some(rows: Int64) -> None:
        kernel(table.x, table.y, table.alpha, table.term_offsets, table.terms, rows, starts, offsets, key, seq, *given)

    cores = os.cpu_count() or 1
    # the kernels let go of the interpreter, and nothing is timed here
    with ThreadPoolExecutor(cores) as pool:
        list(pool.map(some, np.array_split(np.arange(len(table)), cores * _CHUNKS_A_CORE)))
    there = seq >= 0
    held = np.zeros(there.shape[0] + 1, np.int64)
    np.cumsum(there, out=held[1:])
    return ResultRows(held[offsets], seq[there], key[there])


def _of_time(messages: MessageBatch, largest: int, fading: Fading) -> tuple[Any, ...]:
    """What the kernel for fading scores wants to know of messages."""
    count_of = np.diff(messages.term_offsets)
    lengths = np.add.reduceat(messages.counts, messages.term_offsets[:-1]) if len(messages) else np.zeros(0, np.int64)
    lifted = np.array([(time - fading.epoch_us) / 1e6 for time in messages.event_time_us.tolist()])
    lifted *= fading.log_base_per_s
    most_often = np.zeros(largest + 1)  # of each term, the largest share of a message's words
    np.maximum.at(most_often, messages.terms, messages.counts / np.repeat(lengths, count_of))
    return (messages.x, messages.y, messages.seq, messages.term_offsets, messages.terms, messages.counts,
            lengths.astype(np.int64), lifted, fading.collection_share, fading.smoothing, most_often)  # fmt: skip


@njit(cache=True, nogil=True)
def _faded(
    x, y, alpha, term_offsets, terms, rows, starts, offsets, key, seq, posted, xs, ys, seqs, message_offsets,
    message_terms, counts, lengths, lifted, share, smoothing, most_often, max_distance,
):  # fmt: skip
    """Better key and seq from offsets[s] on for the subscriptions of `rows`, best first; seq is -1 where none is."""
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
def _nearest(x, y, alpha, term_offsets, terms, rows, starts, offsets, key, seq, xs, ys, seqs):
    """Likewise by distance; all of a posting's columns lie in the order of the postings."""
    for s in rows:
        mine, whose = key[offsets[s] : offsets[s + 1]], seq[offsets[s] : offsets[s + 1]]
        for at in range(term_offsets[s], term_offsets[s + 1]):
            first, end = starts[terms[at]], starts[terms[at] + 1]
            right = first + np.searchsorted(xs[first:end], x[s])
            left = right - 1
            while left >= first or right < end:
                # the nearer of the two sides, in x
                go_left = right == end or (left >= first and x[s] - xs[left] <= xs[right] - x[s])
                place = left if go_left else right
                # further away in x alone than the k-th: so is all that is left on either side
                if abs(xs[place] - x[s]) > -mine[-1]:
                    break
                if go_left:
                    left -= 1
                else:
                    right += 1
                dx, dy = x[s] - xs[place], y[s] - ys[place]
                _enter(mine, whose, -np.sqrt(dx * dx + dy * dy), seqs[place])


@njit(cache=True, nogil=True)
def _enter(mine, whose, value, seq):
    """Insert by descending value, of equal ones ascending seq; what is there already, or not among the best, is not."""
    place = mine.shape[0]
    while place > 0 and (
        whose[place - 1] < 0 or value > mine[place - 1] or (value == mine[place - 1] and seq < whose[place - 1])
    ):
        place -= 1
    if place == mine.shape[0] or (place > 0 and whose[place - 1] == seq):
        return
    for i in range(mine.shape[0] - 1, place, -1):
        mine[i], whose[i] = mine[i - 1], whose[i - 1]
    mine[place], whose[place] = value, seq
