"""What every window index of `skyline` subscriptions is: all live messages, and the candidates of any query.

A candidate of a query stands in its closed rectangle and shares at least one keyword with it. Those who ask are behind
those who store, so they ask as of a boundary: what died since the oldest that may be named is kept until nobody can ask
for it. The indexes differ in what an arrival, an end and a query cost; their answers are the same. Read on in
`matching.skyline.windows.inverted`, which runs unless another is asked for, then in
`matching.skyline.windows.mf_rtree`.
"""

from abc import abstractmethod
from typing import NamedTuple

import numpy as np

from matching.errors import EngineError
from matching.model import Float64, Int32, Int64, MessageBatch, take_ragged
from matching.operator import WindowIndex, WindowQuery
from matching.skyline.answers import Candidates, SkylineQueries, joined, merge_answers, useful
from matching.space import Space
from matching.window import NO_FLOOR, Boundary

#: Subscriptions that are looked up at once; their candidates are held in memory together.
_CHUNK = 1_024
_NOBODY = np.zeros(0, np.int64)


class Contents(NamedTuple):
    """Where messages stand and what they say.

    seq : int64[n]
    lon, lat : float64[n]    degrees; of a range message the centre
    term_offsets : int64[n + 1]
    terms : int32[nnz]
    """

    seq: Int64
    lon: Float64
    lat: Float64
    term_offsets: Int64
    terms: Int32


class SkylineWindow(WindowIndex):
    """One task's messages of the window, as of the last boundary stored and of some before it.

    Parameters
    ----------
    space : Space
    kept_boundaries : int    how many boundaries back `candidates` may ask
    """

    def __init__(self, space: Space, kept_boundaries: int = 0):
        self.space = space
        self.kept_boundaries = kept_boundaries
        self.known = [Boundary(-1, 0, -1, NO_FLOOR)]

    @property
    def boundary(self) -> Boundary:
        """The last one stored."""
        return self.known[-1]

    @property
    def stored_through(self) -> int:
        return self.boundary.number

    @abstractmethod
    def store(self, boundary: Boundary, messages: MessageBatch, ended: Int64) -> None: ...

    def load(self, boundary: Boundary, messages: MessageBatch, ended: Int64 = _NOBODY) -> None:
        self.known = [Boundary(boundary.number - 1, boundary.first_seq, -1, NO_FLOOR)]
        self.store(boundary, messages, ended)
        self.known = [boundary]

    @abstractmethod
    def candidates(self, queries: SkylineQueries, as_of: Boundary | None = None) -> Candidates:
        """All candidates of each query that live at the last boundary, or at another that is asked for; ascending seq.

        Raises
        ------
        EngineError
            If that boundary is not among the last ones kept.
        """

    def answer(self, question: WindowQuery) -> Candidates:
        """Candidates as of a boundary, without those that are of no use; in chunks, so that memory stays bounded."""
        asked: SkylineQueries = question.rows
        parts, rows = [], asked.region.shape[0]
        for first in range(0, rows, _CHUNK):
            chosen = np.arange(first, min(rows, first + _CHUNK))
            offsets, picked = take_ragged(asked.term_offsets, chosen)
            queries = SkylineQueries(asked.region[chosen], offsets, asked.terms[picked])
            parts.append(useful(self.candidates(queries, question.as_of)))
        return joined(parts)

    @classmethod
    def merge(cls, parts: list[Candidates]) -> Candidates:
        return merge_answers(parts)

    def _known_boundary(self, as_of: Boundary | None) -> Boundary:
        """The boundary asked about."""
        if as_of is None:
            return self.boundary
        if as_of not in self.known:
            raise EngineError(
                f"window: asked as of batch {as_of.number}, but batches {self.known[0].number} to "
                f"{self.boundary.number} are known"
            )
        return as_of
