"""What a top-k stream is given and gives back, batch by batch: hits, requests for the window, and what came of both.

Read on in `matching.topk.stream`.
"""

from typing import NamedTuple

from matching.model import Float64, Int64, UpdateBatch
from matching.topk.window_index import WindowQueries


class Refill(NamedTuple):
    """A request for the window as of a boundary, for rows of subscriptions.

    `relax` says that routers may still hold a threshold for them: they must be relaxed first, and the answer
    must reach up to the last batch that was routed before they were (`up_to` of the query).
    """

    query: WindowQueries
    versions: Int64
    relax: bool


class Found(NamedTuple):
    """Hits by subscription number: number int64[h], seq int64[h], life int64[h], score float64[h]."""

    number: Int64
    seq: Int64
    life: Int64
    score: Float64

    def take(self, hits: Int64) -> "Found":
        """Some of the hits. O(n)."""
        return Found(self.number[hits], self.seq[hits], self.life[hits], self.score[hits])


class Step(NamedTuple):
    """What came of a batch or of an answer.

    updates : UpdateBatch
    refills : requests to be answered through `install`
    raised : subscriptions whose threshold rose: (number int64[n], version int64[n], threshold float64[n])
    scanned, verified, matched : work done by the index; offers to the buffers
    """

    updates: UpdateBatch
    refills: list[Refill]
    raised: tuple[Int64, Int64, Float64]
    scanned: int
    verified: int
    matched: int
