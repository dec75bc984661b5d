"""Asking a window that several tasks hold: the question, an answer, and how answers become one.

Of a task's candidates only those are sent that no other one of it dominates which lives at least as long. What is left
out can never be in the skyline while the other lives, and should the other be ended, it is one that is kept, and the
subscription is looked up again. "Dominates and lives at least as long" is transitive, so leaving out by parts and then
from the whole leaves what leaving out at once would: `merge_answers`. Read on in `matching.skyline.room`, which asks.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numba import njit

from matching.model import Float64, Int32, Int64
from matching.skyline.results import dominates


class SkylineQueries(NamedTuple):
    """region : float64[q, 4]         west, south, east, north in degrees, closed
    term_offsets : int64[q + 1]
    terms : int32[nnz]             ascending within a query, without repeats
    """

    region: Float64
    term_offsets: Int64
    terms: Int32


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
    """One answer of the tasks' answers to one question. O(n log n)."""
    first = parts[0]
    if len(parts) == 1:
        return first
    rows = first.offsets.shape[0] - 1
    row = np.concatenate([np.repeat(np.arange(rows), np.diff(part.offsets)) for part in parts])
    seq = np.concatenate([part.seq for part in parts])
    order = np.lexsort((seq, row))
    offsets = np.zeros(rows + 1, np.int64)
    np.cumsum(np.bincount(row, minlength=rows), out=offsets[1:])
    life, spatial, text = (
        np.concatenate([getattr(part, name) for part in parts])[order] for name in ("life", "spatial", "text")
    )
    return useful(Candidates(offsets, seq[order], life, spatial, text))


def joined(parts: list[Candidates]) -> Candidates:
    """The rows of all parts, one behind the other."""
    ends = np.cumsum([0, *(part.offsets[-1] for part in parts)])
    offsets = [np.zeros(1, np.int64), *(part.offsets[1:] + end for part, end in zip(parts, ends, strict=False))]
    whole, real = [np.zeros(0, np.int64)], [np.zeros(0)]
    return Candidates(
        np.concatenate(offsets),
        np.concatenate(whole + [part.seq for part in parts]),
        np.concatenate(whole + [part.life for part in parts]),
        np.concatenate(real + [part.spatial for part in parts]),
        np.concatenate(real + [part.text for part in parts]),
    )


def useful(found: Candidates) -> Candidates:
    """Without candidates that another one of the row dominates which lives at least as long; O(n log n + n * kept)."""
    rows = found.offsets.shape[0] - 1
    row = np.repeat(np.arange(rows), np.diff(found.offsets))
    # whoever may leave another out stands before it
    order = np.lexsort((-found.text, -found.spatial, -found.life, row))
    useful = np.zeros(row.shape[0], np.bool_)
    _markuseful(found.offsets, order, found.spatial, found.text, useful)
    offsets = np.zeros(rows + 1, np.int64)
    np.cumsum(np.bincount(row[useful], minlength=rows), out=offsets[1:])
    return Candidates(offsets, found.seq[useful], found.life[useful], found.spatial[useful], found.text[useful])


@njit(cache=True, nogil=True)
def _markuseful(offsets, order, spatial, text, useful):
    kept = np.empty(order.shape[0], np.int64)
    for row in range(offsets.shape[0] - 1):
        count = 0
        for i in range(offsets[row], offsets[row + 1]):
            at = order[i]
            beaten = False
            # Lives are not compared: whoever stands before lives as long. Nor are those left out: what beat one of them
            # beats whatever it would have beaten.
            for k in range(count):
                if dominates(spatial[kept[k]], text[kept[k]], spatial[at], text[at]):
                    beaten = True
                    break
            if not beaten:
                kept[count] = at
                count += 1
                useful[at] = True
