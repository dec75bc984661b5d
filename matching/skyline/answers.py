"""Window queries, answers of the tuple tasks, and how partial answers are merged.

A task sends only candidates that no other one of its candidates dominates and outlives. A candidate left out cannot be
in the skyline while its dominator lives; if the dominator is ended, the subscription is refilled, since the dominator
is in the buffer. "Dominates and lives at least as long" is transitive, so pruning by parts and then the whole gives the
same as pruning at once: `merge_answers`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from compiling.njit import njit
from matching.model import NO_WORDS, Float64, Int32, Int64
from matching.skyline.results import dominates
from matching.storage.sorting import ascending


class SkylineQueries(NamedTuple):
    """region : float64[q, 4]         west, south, east, north in degrees, closed
    term_offsets : int64[q + 1]
    terms : int32[nnz]             ascending within a query, without repeats
    filter_offsets, filter_words   as in `SubscriptionTable`
    """

    region: Float64
    term_offsets: Int64
    terms: Int32
    filter_offsets: Int64 = NO_WORDS
    filter_words: Int64 = NO_WORDS


class Candidates(NamedTuple):
    """Candidates of the queries, query after query (`offsets` int64[q + 1]), in ascending seq.

    seq, life : int64[n]
    spatial, text : float64[n]     relevances, as `matching.naive.skyline_scores` has them, bit for bit
    """

    offsets: Int64
    seq: Int64
    life: Int64
    spatial: Float64
    text: Float64


def merge_answers(parts: Sequence[Candidates]) -> Candidates:
    """Merge the tasks' answers to one window query. O(n log n)."""
    if len(parts) == 1:
        return parts[0]
    rows = np.arange(parts[0].offsets.shape[0] - 1)
    # the rows of each part ascend, so that little is left to sort; few of all candidates are, so these come by seq
    order = np.argsort(np.concatenate([np.repeat(rows, np.diff(part.offsets)) for part in parts]), kind="stable")
    columns = (np.concatenate(column)[order] for column in zip(*(part[1:] for part in parts), strict=True))
    found = useful(Candidates._make([np.sum([part.offsets for part in parts], axis=0), *columns]))
    order = np.empty(found.seq.shape[0], np.int64)
    sort_rows(found.seq, found.offsets, order)
    return Candidates._make([found.offsets, *(column[order] for column in found[1:])])


def useful(found: Candidates) -> Candidates:
    """Without candidates that another one of the row dominates and outlives (or equals); O(n log n + n * kept)."""
    useful = np.zeros(found.seq.shape[0], np.bool_)
    _mark_useful(found.offsets, found.life, found.spatial, found.text, useful)
    before = np.zeros(useful.shape[0] + 1, np.int64)
    np.cumsum(useful, out=before[1:])
    return Candidates(
        before[found.offsets], found.seq[useful], found.life[useful], found.spatial[useful], found.text[useful]
    )


@njit(cache=True, nogil=True)
def _mark_useful(offsets, life, spatial, text, useful):
    longest = 0
    for row in range(offsets.shape[0] - 1):
        longest = max(longest, offsets[row + 1] - offsets[row])
    kept = np.empty(longest, np.int64)
    for row in range(offsets.shape[0] - 1):
        begin, end = offsets[row], offsets[row + 1]
        # The longest-living first, so that nothing kept is beaten later but by its like. Messages mostly die in the
        # order they came in.
        order = np.arange(begin, end)
        for i in range(begin + 1, end):
            if life[i] < life[i - 1]:
                order = begin + ascending(life[begin:end])
                break
        count = 0
        for at in order[::-1]:
            beaten = False
            # Pruned candidates need no comparison: what dominates one of them dominates all below it.
            for k in range(count):
                if dominates(spatial[kept[k]], text[kept[k]], spatial[at], text[at]):
                    beaten = True
                    break
            if beaten:
                continue
            # those of the same life stand last
            first = count
            while first > 0 and life[kept[first - 1]] == life[at]:
                first -= 1
            left = first
            for k in range(first, count):
                if not dominates(spatial[at], text[at], spatial[kept[k]], text[kept[k]]):
                    kept[left] = kept[k]
                    left += 1
            kept[left] = at
            count = left + 1
        for k in range(count):
            useful[kept[k]] = True


@njit(cache=True, nogil=True)
def sort_rows(values, ends, order):
    """Into order (int64[n]): positions such that values ascend between each end and the next. O(n log of a row)."""
    for row in range(ends.shape[0] - 1):
        begin, end = ends[row], ends[row + 1]
        order[begin:end] = begin + ascending(values[begin:end])
