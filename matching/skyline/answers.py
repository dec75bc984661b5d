"""Asking a window that several tasks hold: the question, a task's answer, and how answers become one.

Of a task's candidates only those are sent that no other one of it dominates which lives at least as long. What is left
out can never be in the skyline while the other lives, and should the other be ended, it is one that is kept, and the
subscription is looked up again. "Dominates and lives at least as long" is transitive, so leaving out by parts and then
from the whole leaves what leaving out at once would: `merge_answers`. Read on in `matching.skyline.home`, which asks.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numba import njit

from matching.model import Float64, Int32, Int64, take_ragged
from matching.skyline.kept import dominates
from matching.skyline.window import Candidates, SkylineQueries
from matching.skyline.window_plain import InvertedWindow
from matching.window import Boundary

#: Subscriptions that are looked up at once; their candidates are held in memory together.
_CHUNK = 1_024


class SkylineAsk(NamedTuple):
    """Which candidates live as of a boundary? `request` and `home` (the task that asks) are echoed in the answer.

    One row a subscription, as in `SkylineQueries`.
    """

    request: int
    home: int
    as_of: Boundary
    region: Float64
    term_offsets: Int64
    terms: Int32


class SkylineAnswers(NamedTuple):
    """Candidates of the rows of a `SkylineAsk`, as in `Candidates`, without those that are of no use."""

    request: int
    home: int
    offsets: Int64
    seq: Int64
    life: Int64
    spatial: Float64
    text: Float64

    def candidates(self) -> Candidates:
        """Without the address."""
        return Candidates(self.offsets, self.seq, self.life, self.spatial, self.text)


def answer(window: InvertedWindow, ask: SkylineAsk) -> SkylineAnswers:
    """Answer from this task's part of the window.

    Raises
    ------
    EngineError
        If the boundary is not among those that the window knows.
    """
    parts = []
    rows = ask.region.shape[0]
    for first in range(0, rows, _CHUNK):
        chosen = np.arange(first, min(rows, first + _CHUNK))
        offsets, picked = take_ragged(ask.term_offsets, chosen)
        queries = SkylineQueries(ask.region[chosen], offsets, ask.terms[picked])
        parts.append(_useful(window.candidates(queries, ask.as_of)))
    return SkylineAnswers(ask.request, ask.home, *_joined(parts))


def merge_answers(parts: Sequence[SkylineAnswers]) -> SkylineAnswers:
    """One answer of the tasks' answers to one request. O(n log n)."""
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
    return SkylineAnswers(first.request, first.home, *_useful(Candidates(offsets, seq[order], life, spatial, text)))


def _joined(parts: list[Candidates]) -> Candidates:
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


def _useful(found: Candidates) -> Candidates:
    """Without candidates that another one of the row dominates which lives at least as long; O(n log n + n * kept)."""
    rows = found.offsets.shape[0] - 1
    row = np.repeat(np.arange(rows), np.diff(found.offsets))
    # whoever may leave another out stands before it
    order = np.lexsort((-found.text, -found.spatial, -found.life, row))
    useful = np.zeros(row.shape[0], np.bool_)
    _mark_useful(found.offsets, order, found.spatial, found.text, useful)
    offsets = np.zeros(rows + 1, np.int64)
    np.cumsum(np.bincount(row[useful], minlength=rows), out=offsets[1:])
    return Candidates(offsets, found.seq[useful], found.life[useful], found.spatial[useful], found.text[useful])


@njit(cache=True, nogil=True)
def _mark_useful(offsets, order, spatial, text, useful):
    kept = np.empty(order.shape[0], np.int64)
    for row in range(offsets.shape[0] - 1):
        count = 0
        for i in range(offsets[row], offsets[row + 1]):
            at = order[i]
            beaten = False
            for k in range(count):
                if dominates(spatial[kept[k]], text[kept[k]], spatial[at], text[at]):
                    beaten = True
                    break
            if not beaten:
                kept[count] = at
                count += 1
                useful[at] = True
