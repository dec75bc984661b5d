"""What every window index of `skyline` subscriptions is: all live messages, and the candidates of any query.

A candidate of a query stands in its closed rectangle and shares at least one keyword with it. The indexes differ in
what an arrival, an end and a query cost; their answers are the same. Read on in `matching.skyline.mf_rtree`.
"""

from abc import ABC, abstractmethod
from typing import NamedTuple, Self

import numpy as np

from matching.model import Float64, Int32, Int64, MessageBatch
from matching.window import Boundary


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


class SkylineWindow(ABC):
    """The messages of the window, as of the last boundary stored."""

    @abstractmethod
    def store(self, boundary: Boundary, messages: MessageBatch, ended: Int64) -> None:
        """Take the next batch.

        ended : int64[m]    seqs of messages, of this batch or earlier ones, that a later version or a deletion has
                            ended; those unknown or expired are passed over
        """

    @abstractmethod
    def candidates(self, queries: SkylineQueries) -> Candidates:
        """All live candidates of each query."""

    @abstractmethod
    def contents(self, seqs: Int64) -> Contents:
        """Those of these messages that are live, in the order asked. O(n + terms)."""

    @abstractmethod
    def arrays(self) -> dict[str, np.ndarray]:
        """Every array needed to continue."""

    @classmethod
    @abstractmethod
    def from_arrays(cls, arrays: dict[str, np.ndarray]) -> Self:
        """Continue from `arrays`; everything is copied."""
