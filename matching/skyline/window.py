"""Interface of the `skyline` window indexes: they store messages and find the candidates of window queries.

A candidate of a query lies in its closed rectangle and shares at least one keyword with it. Query tasks lag behind
tuple tasks, so queries are as of a boundary: messages that died since the oldest boundary kept are retained. The
indexes give the same answers; arrivals, ends and queries differ in cost. Base of the window indexes of `skyline`; used
by `matching.skyline.operator` and the engines.
"""

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np

from matching.errors import EngineError
from matching.model import Float64, Int64, MessageBatch, take_optional, take_ragged
from matching.operator import WindowIndex, WindowQuery
from matching.result_rows import join_results, split_results
from matching.skyline.answers import Candidates, SkylineQueries, merge_answers, useful
from matching.space import Space
from matching.window import NO_FLOOR, Boundary

#: Subscriptions answered at once; their candidates are in memory together.
_CHUNK = 1_024
#: Width of the stripes in which they are answered from south to north.
_STRIPE_DEG = 3.0
_NO_SEQS = np.zeros(0, np.int64)


class SkylineWindow(WindowIndex):
    """One task's messages of the window, as of the last boundary stored and some before it.

    Parameters
    ----------
    space : Space
    kept_boundaries : int    how many boundaries back `candidates` can answer
    """

    def __init__(self, space: Space, kept_boundaries: int = 0):
        self.space = space
        self.kept_boundaries = kept_boundaries
        self.known = [Boundary(-1, 0, -1, NO_FLOOR)]

    @property
    def boundary(self) -> Boundary:
        """The last boundary stored."""
        return self.known[-1]

    @property
    def stored_through(self) -> int:
        return self.boundary.number

    @abstractmethod
    def store(self, boundary: Boundary, messages: MessageBatch, ended: Int64) -> None: ...

    def load(self, boundary: Boundary, messages: MessageBatch, ended: Int64 = _NO_SEQS) -> None:
        self.known = [Boundary(boundary.number - 1, boundary.first_seq, -1, NO_FLOOR)]
        self.store(boundary, messages, ended)
        self.known = [boundary]

    @abstractmethod
    def candidates(self, queries: SkylineQueries, as_of: Boundary | None = None) -> Candidates:
        """All candidates of each query that live at `as_of`, by default the last boundary; in ascending seq.

        Raises
        ------
        EngineError
            If that boundary is not retained.
        """

    def near(self, region: Float64) -> Int64:
        """Rows of the rectangles (float64[q, 4]), ascending, that may have candidates here. O(q)."""
        return np.arange(region.shape[0])

    def useful(self, queries: SkylineQueries, as_of: Boundary) -> Candidates:
        """The candidates that no other one of the query dominates and outlives (`matching.skyline.answers.useful`)."""
        return useful(self.candidates(queries, as_of))

    def answer(self, query: WindowQuery) -> Candidates:
        """Useful candidates as of a boundary; in chunks, so that memory stays bounded."""
        rows: SkylineQueries = query.rows
        self.check_filters(rows.filter_words)
        parts, count = [], rows.region.shape[0]
        # on one of several tasks most rectangles lie in the part of another
        near = self.near(rows.region)
        # neighbours behind each other find the same messages in the cache
        order = near[np.lexsort((rows.region[near, 1], rows.region[near, 0] // _STRIPE_DEG))]
        for first in range(0, max(1, order.shape[0]), _CHUNK):
            chosen = order[first : first + _CHUNK]
            offsets, picked = take_ragged(rows.term_offsets, chosen)
            filters = take_optional(rows.filter_offsets, rows.filter_words, chosen)
            queries = SkylineQueries(rows.region[chosen], offsets, rows.terms[picked], *filters)
            parts.append(self.useful(queries, query.as_of))
        found = join_results(parts)
        starts, ends = np.zeros(count, np.int64), np.zeros(count + 1, np.int64)
        starts[order], ends[order + 1] = found.offsets[:-1], np.diff(found.offsets)
        lengths = ends[1:].copy()
        np.cumsum(ends, out=ends)
        picked = np.arange(ends[-1]) + np.repeat(starts - ends[:-1], lengths)
        return Candidates(ends, *(column[picked] for column in found[1:]))

    @classmethod
    def merge(cls, parts: list[Candidates]) -> Candidates:
        return merge_answers(parts)

    @classmethod
    def split(cls, answer: Candidates, rows: Sequence[int]) -> list[Candidates]:
        return split_results(answer, rows)

    def _known_boundary(self, as_of: Boundary | None) -> Boundary:
        """`as_of`, or the last boundary; raises `EngineError` if it is not retained."""
        if as_of is None:
            return self.boundary
        if as_of not in self.known:
            raise EngineError(
                f"window: a query is as of batch {as_of.number}, but batches {self.known[0].number} to "
                f"{self.boundary.number} are retained"
            )
        return as_of
