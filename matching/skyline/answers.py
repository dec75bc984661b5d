"""Window queries, answers of the tuple tasks, and how partial answers are merged.

A task sends only candidates that no other one of its candidates dominates and outlives. A candidate left out cannot be
in the skyline while its dominator lives; if the dominator is ended, the subscription is refilled, since the dominator
is in the buffer. "Dominates and lives at least as long" is transitive, so pruning by parts and then the whole gives the
same as pruning at once: `merge_answers`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compiling.njit import njit
from matching.model import NO_WORDS, Float64, Int32, Int64
from matching.skyline.results import dominates
from matching.storage.slots import put
from matching.storage.sorting import ascending

#: Candidates of a row up to which they are sorted by insertion.
_FEW = 48


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
    """Merge the tasks' answers to one window query. O(n log n + rows * parts)."""
    if len(parts) == 1:
        return parts[0]
    columns = [np.concatenate(column) for column in zip(*(part[1:] for part in parts), strict=True)]
    begins = np.cumsum([0, *(part.seq.shape[0] for part in parts[:-1])])
    starts = np.stack([part.offsets for part in parts]) + begins[:, None]
    ends, settled = np.zeros(starts.shape[1], np.int64), np.zeros(starts.shape[1] - 1, np.bool_)
    order = np.empty(columns[0].shape[0], np.int64)
    _by_row(starts, columns[0], ends, order, settled)
    return useful(Candidates(ends, *(column[order] for column in columns)), settled)


def useful(found: Candidates, settled: NDArray[np.bool_] | None = None) -> Candidates:
    """Without candidates that another one of the row dominates and outlives (or equals); O(n log n + n * kept).

    settled : bool[rows], optional    rows in which this is so already
    """
    useful = np.zeros(found.seq.shape[0], np.bool_)
    if settled is None:
        settled = np.zeros(found.offsets.shape[0] - 1, np.bool_)
    _mark_useful(found.offsets, found.life, found.spatial, found.text, settled, useful)
    if useful.all():
        return found
    before = np.zeros(useful.shape[0] + 1, np.int64)
    np.cumsum(useful, out=before[1:])
    kept = np.flatnonzero(useful)
    return Candidates._make([before[found.offsets], *(column.take(kept) for column in found[1:])])


@njit(cache=True, nogil=True)
def _by_row(starts, seq, ends, order, settled):
    """Into order: the candidates of all parts row by row, in ascending seq. Most rows are of one part: `settled`.

    starts : int64[parts, rows + 1]       where each part's candidates of a row begin
    seq : int64[n], order : int64[n]
    ends : int64[rows + 1]                written to: offsets of the rows
    """
    end = 0
    for row in range(settled.shape[0]):
        begin, some = end, 0
        for part in range(starts.shape[0]):
            some += starts[part, row] < starts[part, row + 1]
            for at in range(starts[part, row], starts[part, row + 1]):
                order[end] = at
                end += 1
        settled[row] = some < 2
        if some > 1 and end - begin > _FEW:
            mine = order[begin:end].copy()
            put(order, begin, mine[ascending(seq[mine])])
        elif some > 1:  # nothing is allocated for a few
            for i in range(begin + 1, end):
                at, k = order[i], i
                while k > begin and seq[order[k - 1]] > seq[at]:
                    order[k] = order[k - 1]
                    k -= 1
                order[k] = at
        ends[row + 1] = end


@njit(cache=True, nogil=True)
def _mark_useful(offsets, life, spatial, text, settled, useful):
    longest = 0
    for row in range(offsets.shape[0] - 1):
        longest = max(longest, offsets[row + 1] - offsets[row])
    kept = np.empty(longest, np.int64)
    for row in range(offsets.shape[0] - 1):
        begin, end = offsets[row], offsets[row + 1]
        if settled[row]:
            useful[begin:end] = True
            continue
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
        put(order, begin, begin + ascending(values[begin:end]))
