"""The window of messages, indexed so that a refill finds the best without reading all: what all indexes share.

A refill asks, for some subscriptions, which messages were the best "as of" a boundary, and which have come since. The
window answers as of any of the last few boundaries, not only of the newest: it keeps what expired since. How it finds
them is the business of the implementations, which `matching.kinds` names; read on in the default one,
`matching.topk.windows.segments`. Used by the tuple bolts (`bolts.tuples`), each of which holds a part of the messages.
"""

from abc import abstractmethod
from typing import NamedTuple

import numpy as np
from numba import njit

from matching.errors import EngineError
from matching.model import Float32, Float64, Int8, Int32, Int64, MessageBatch
from matching.operator import WindowIndex, WindowQuery
from matching.space import Space
from matching.topk.windows.search import Asked, Span, WindowHits, drop_outlived, place_on_curve
from matching.window import Boundary

#: From so many rows on, neighbours are asked for one after another: they find the same messages in the cache.
_SORTED_FROM = 32
_NOBODY = np.zeros(0, np.int64)


class WindowQueries(NamedTuple):
    """What subscriptions ask of the window, one row each: number, x, y, alpha, rank, terms, weights, threshold.

    `rank` is how many of the best are wanted. Ties at the cut are included, but for those that `rank` others with the
    same score outlive, being newer and alive as long or longer: whatever ends, they are never among the best.
    `threshold` (float64[rows]) is that of an earlier answer, where it is asked what came since (`WindowQuery.more`):
    then every message from there on is wanted, and `rank` has no part in it. Otherwise it is empty.
    """

    number: Int64
    x: Float64
    y: Float64
    alpha: Float64
    rank: Int32
    term_offsets: Int64
    terms: Int32
    weights: Float32
    threshold: Float64 = np.zeros(0)


class WindowAnswers(NamedTuple):
    """Messages for the rows of a `WindowQueries`, row after row (`offsets` int64[rows + 1]).

    `after` is 1 for messages of the batches after the boundary asked about (but for those that came too late to live
    even then), 0 for those alive at it. `threshold` (float64[rows]) is the score of the rank-th best alive, minus
    infinity if there are fewer; messages below it are left out. `rank` (int32[rows]) is that of the queries. `read`
    (int64[rows]) is what it took: postings, messages and bounds looked at. `up_to` is the number of the last batch it
    speaks of, with the message `last_seq`.
    """

    rank: Int32
    offsets: Int64
    seq: Int64
    life: Int64
    score: Float64
    after: Int8
    threshold: Float64
    read: Int64
    up_to: int = -1
    last_seq: int = -1


class TopkWindowIndex(WindowIndex):
    """The messages one task holds of the window.

    An implementation takes messages (`_add`), gives up what is too old (`_drop`), hands out what it holds (`_held`)
    and finds what reaches the bars of a question (`_search`); batches, boundaries and answers are seen to here.

    """

    def __init__(self, space: Space, kept_boundaries: int = 0):
        self.space = space
        self.max_distance = space.max_distance
        self.kept_boundaries = kept_boundaries
        self.boundaries: list[Boundary] = []

    @property
    def stored_through(self) -> int:
        """Number of the last batch stored, -1 if none."""
        return self.boundaries[-1].number if self.boundaries else -1

    @abstractmethod
    def __len__(self) -> int:
        """Messages held, expired ones that are still kept included."""

    @abstractmethod
    def size_bytes(self) -> int:
        """Bytes of all arrays, spare room included. O(1) or O(segments)."""

    def store(self, boundary: Boundary, messages: MessageBatch, ended: Int64 = _NOBODY) -> None:
        """Take this task's part of the next batch; no object ends here. Amortised cost by implementation."""
        if self.boundaries and boundary.number != self.boundaries[-1].number + 1:
            raise EngineError(f"window: batch {boundary.number} cannot follow batch {self.boundaries[-1].number}")
        self.boundaries = [*self.boundaries, boundary][-1 - self.kept_boundaries :]
        self._drop(self.boundaries[0].floor)
        living = messages.alive(boundary.floor)
        if len(living):
            self._add(living)

    def load(self, boundary: Boundary, messages: MessageBatch, ended: Int64 = _NOBODY) -> None:
        """Take a whole window at once, as of a boundary; before any batch. At most O(postings * log postings)."""
        self.boundaries = [boundary]
        if len(messages):
            self._load(messages)

    def answer(self, question: WindowQuery) -> WindowAnswers:
        as_of, up_to, asked, onward, more = question
        known = {boundary.number: boundary for boundary in self.boundaries}
        if as_of.number not in known or up_to > self.stored_through:
            raise EngineError(
                f"window: asked as of batch {as_of.number} up to batch {up_to}, "
                f"but batches {min(known, default=-1)} to {self.stored_through} are known"
            )
        # a min-heap of the best scores so far for each row, one behind the other
        bars = np.zeros(asked.number.shape[0] + 1, np.int64)
        np.cumsum(np.ones_like(asked.rank) if more else asked.rank, out=bars[1:])
        best = np.array(asked.threshold) if more else np.full(bars[-1], -np.inf)
        rows = asked.x.shape[0]
        order = np.argsort(place_on_curve(asked.x, asked.y)) if rows >= _SORTED_FROM else np.arange(rows)
        columns = (asked.x, asked.y, asked.alpha, asked.term_offsets, asked.terms, asked.weights)
        # what comes from another process may be read-only, for which every kernel would be compiled once more
        x, y, alpha, offsets, terms, weights = (
            column if column.flags.writeable else column.copy() for column in columns
        )
        read = np.zeros(rows, np.int64)
        rows_asked = Asked(order, x, y, alpha, offsets, terms, weights, bars, best, self.max_distance, read)
        since = as_of.last_seq
        alive = [] if more else self._search(rows_asked, Span(-1, since, as_of.floor, True))
        later = []
        last = known[max(self.stored_through if onward else up_to, as_of.number)]
        if last.last_seq > since:
            later = self._search(rows_asked, Span(since, last.last_seq, as_of.floor, False))
        found = _assemble(asked, best[bars[:-1]], alive, later)
        return found._replace(read=read, up_to=last.number, last_seq=last.last_seq)

    @classmethod
    def merge(cls, parts: list[WindowAnswers]) -> WindowAnswers:
        return merge_answers(parts)

    @abstractmethod
    def _add(self, messages: MessageBatch) -> None:
        """Take the messages of a batch, at least one, newer than all before."""

    @abstractmethod
    def _load(self, messages: MessageBatch) -> None:
        """Take the messages of a whole window, at least one, in place of none."""

    @abstractmethod
    def _drop(self, floor: int) -> None:
        """Nobody will ask again for messages with life <= floor: give up as many of them as is cheap."""

    @abstractmethod
    def _search(self, asked: Asked, span: Span) -> list[WindowHits]:
        """All messages of the span that reach their row's final bar, and perhaps some that do not.

        With `span.push` the heaps in `asked.best` are filled, so that the bars rise as messages are found.
        """


def merge_answers(parts: list[WindowAnswers]) -> WindowAnswers:
    """Merge the answers of all tasks to one request; what an aggregation bolt does.

    Parameters
    ----------
    parts : list of WindowAnswers
        One from each task, of one request.

    Notes
    -----
    O(m log m) for m messages. The rank-th best of the union is among the rank best of the parts, and every part
    sent its ties but for those outlived, so the union holds every message above the merged threshold, and of those at
    it every one that may matter. It speaks of the batches that all parts speak of.
    """
    asked_rank = parts[0].rank
    rows = asked_rank.shape[0]
    row = np.concatenate([np.repeat(np.arange(rows), np.diff(part.offsets)) for part in parts])
    seq, life, score, after = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("seq", "life", "score", "after")
    )
    order = np.lexsort((-score, after, row))
    row, seq, life, score, after = row[order], seq[order], life[order], score[order], after[order]
    threshold = np.full(rows, -np.inf)
    alive = np.bincount(row[after == 0], minlength=rows)
    starts = np.searchsorted(row, np.arange(rows))
    full = np.flatnonzero(alive >= asked_rank)
    threshold[full] = score[starts[full] + asked_rank[full] - 1]
    up_to, last_seq = min((part.up_to, part.last_seq) for part in parts)
    keep = (score >= threshold[row]) & ((after == 0) | (seq <= last_seq))
    laid_out = _laid_out(asked_rank, threshold, row[keep], seq[keep], life[keep], score[keep], after[keep])
    return laid_out._replace(read=np.sum([part.read for part in parts], axis=0), up_to=up_to, last_seq=last_seq)


def _assemble(
    asked: WindowQueries, threshold: Float64, alive: list[WindowHits], later: list[WindowHits]
) -> WindowAnswers:
    """Lay out what was found row after row, dropping what fell below the row's final threshold."""
    found = [*alive, *later]
    counts = [part.score.shape[0] for part in found]
    row, seq, life = np.concatenate([np.zeros((0, 3), np.int64), *(part.message for part in found)]).T
    score = np.concatenate([np.zeros(0), *(part.score for part in found)])
    after = np.repeat(np.array([0] * len(alive) + [1] * len(later), np.int8), counts)
    keep = np.flatnonzero(score >= threshold[row])
    keep = keep[np.argsort(row[keep], kind="stable")]
    return _laid_out(
        asked.rank, threshold, row[keep], seq[keep], life[keep], score[keep], after[keep]
    )  # fmt: skip


def _laid_out(rank, threshold, row, seq, life, score, after) -> WindowAnswers:
    """An answer from columns that are in the order of rows, without the ties that are outlived."""
    keep = _without_outlived(row, seq, life, score, after, threshold, rank)
    if not keep.all():
        row, seq, life, score, after = row[keep], seq[keep], life[keep], score[keep], after[keep]
    offsets = np.zeros(threshold.shape[0] + 1, np.int64)
    np.cumsum(np.bincount(row, minlength=threshold.shape[0]), out=offsets[1:])
    return WindowAnswers(rank, offsets, seq, life, score, after, threshold, np.zeros(threshold.shape[0], np.int64))


@njit(cache=True, nogil=True)
def _without_outlived(row, seq, life, score, after, threshold, rank):
    """bool[n]: all but those at the threshold of their row that `drop_outlived` leaves out. Rows ascend."""
    keep, begin = np.ones(row.shape[0], np.bool_), 0
    while begin < row.shape[0]:
        r, end = row[begin], begin
        while end < row.shape[0] and row[end] == r:
            end += 1
        # what came after the boundary is all wanted; slices are views, so `keep` itself is written
        is_tie = (score[begin:end] == threshold[r]) & (after[begin:end] == 0)
        drop_outlived(is_tie, seq[begin:end], life[begin:end], rank[r], keep[begin:end])
        begin = end
    return keep
