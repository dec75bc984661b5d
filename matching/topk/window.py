"""Base of the window indexes of `topk`, which find the best messages of the window for a refill.

A window query wants the best messages "as of" a boundary, and the later ones. The index answers as of any of the last
few boundaries, and keeps messages that have expired since. Each tuple task (`bolts.tuples`) has a part of the messages.
Base of `matching.topk.windows.generations`.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from compiling.njit import njit
from matching.errors import EngineError
from matching.filters import filters_of
from matching.model import NO_VECTORS, NO_WORDS, Float32, Float64, Int8, Int32, Int64, MessageBatch
from matching.operator import WindowIndex, WindowQuery
from matching.space import Space
from matching.storage.slots import as_input
from matching.topk.windows.search import (
    QueryRows,
    Span,
    WindowHits,
    WindowRows,
    drop_older_ties,
    place_on_curve,
    scan,
)
from matching.window import Boundary

#: From this number of rows on, neighbours are searched in a row: they find the same messages in the cache.
_SORTED_FROM = 32
_NO_OBJECTS = np.zeros(0, np.int64)


class WindowQueries(NamedTuple):
    """Window queries, one row a subscription: number, x, y, alpha, max_distance, rank, terms, weights, threshold.

    `x`, `y` are in the unit square; on the sphere distances are those of `vector` (float64[rows, 3], else empty).
    `max_distance` (float64[rows]) is the subscription's own radius, or that of the world.

    `rank` is the number of messages wanted of each task. Of those that tie at the cut the `rank` newest are included:
    the others rank below all that are.
    `threshold` (float64[rows]) is that of an earlier answer, in a query for later messages alone (`WindowQuery.more`):
    then every later message that reaches it is wanted, and `rank` is ignored. Otherwise it is empty.
    `filter_offsets`, `filter_words` are as in `SubscriptionTable`.
    """

    number: Int64
    x: Float64
    y: Float64
    alpha: Float64
    max_distance: Float64
    rank: Int32
    term_offsets: Int64
    terms: Int32
    weights: Float32
    threshold: Float64 = np.zeros(0)
    filter_offsets: Int64 = NO_WORDS
    filter_words: Int64 = NO_WORDS
    vector: Float64 = NO_VECTORS


class WindowAnswers(NamedTuple):
    """Messages for the rows of a `WindowQueries`, row after row (`offsets` int64[rows + 1]).

    `after` is 0 for messages alive at the boundary of the query, 1 for those of later batches (except those already
    expired at it). `threshold` (float64[rows]) is the score of the rank-th best alive, minus infinity if there are
    fewer; messages below it are left out. Of several tasks it is the highest: each has all messages that reach it, and
    one of them has `rank`. `rank` (int32[rows]) is that of the queries. `read` (int64[rows]) is the work: postings,
    messages and bounds examined. `up_to` is the number of the last batch covered, `last_seq` its last message.
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
    """The part of the window on one task.

    An implementation stores messages (`_add`, `_load`), drops old ones (`_drop`) and finds those that reach the bars of
    queries (`_search`). Of a stream of objects it also ends some before they expire (`_end`).
    """

    def __init__(self, space: Space, kept_boundaries: int = 0):
        self.space = space
        self.kept_boundaries = kept_boundaries
        self.boundaries: list[Boundary] = []
        self._ended: list[tuple[int, WindowRows]] = []  # by batch, after the first boundary that queries may name

    @property
    def stored_through(self) -> int:
        """Number of the last batch stored, -1 if none."""
        return self.boundaries[-1].number if self.boundaries else -1

    @abstractmethod
    def __len__(self) -> int:
        """Messages stored, with expired ones that are still kept."""

    @abstractmethod
    def size_bytes(self) -> int:
        """Bytes of all arrays, spare capacity included. O(1) or O(segments)."""

    def store(self, boundary: Boundary, messages: MessageBatch, ended: Int64 = _NO_OBJECTS) -> None:
        """Store this task's part of the next batch. Amortised cost by implementation."""
        if self.boundaries and boundary.number != self.boundaries[-1].number + 1:
            raise EngineError(f"window: batch {boundary.number} cannot follow batch {self.boundaries[-1].number}")
        self.boundaries = [*self.boundaries, boundary][-1 - self.kept_boundaries :]
        self._drop(self.boundaries[0].floor)
        living = messages.alive(boundary.floor)
        if ended.shape[0]:
            # in the results of no boundary; `matching.refill` drops it from what came later
            living = living.take(np.flatnonzero(~np.isin(living.seq, ended)))
            self._ended += [(boundary.number, rows) for rows in self._end(ended)]
        self._ended = [each for each in self._ended if each[0] > self.boundaries[0].number]
        if len(living):
            self._add(living)

    def load(self, boundary: Boundary, messages: MessageBatch, ended: Int64 = _NO_OBJECTS) -> None:
        """Store a whole window as of a boundary, before any batch. At most O(postings * log postings)."""
        self.boundaries = [boundary]
        living = messages.take(np.flatnonzero(~np.isin(messages.seq, ended))) if ended.shape[0] else messages
        if len(living):
            self._load(living)

    def answer(self, query: WindowQuery) -> WindowAnswers:
        as_of, up_to, queries, onward, more = query
        known = {boundary.number: boundary for boundary in self.boundaries}
        if as_of.number not in known or up_to > self.stored_through:
            raise EngineError(
                f"window: query as of batch {as_of.number} up to batch {up_to}, "
                f"but batches {min(known, default=-1)} to {self.stored_through} are stored"
            )
        self.check_filters(queries.filter_words)
        filters = filters_of(queries.filter_offsets, queries.filter_words)
        # a min-heap of the best scores so far for each row, one after the other
        bars = np.zeros(queries.number.shape[0] + 1, np.int64)
        np.cumsum(np.ones_like(queries.rank) if more else queries.rank, out=bars[1:])
        best = np.array(queries.threshold) if more else np.full(bars[-1], -np.inf)
        rows = queries.x.shape[0]
        order = np.argsort(place_on_curve(queries.x, queries.y)) if rows >= _SORTED_FROM else np.arange(rows)
        point = queries.vector.T if queries.vector.shape[0] else (queries.x, queries.y, np.zeros(rows))
        columns = (
            *point, queries.alpha, queries.max_distance, queries.term_offsets, queries.terms, queries.weights
        )  # fmt: skip
        # copied, since every kernel would be compiled again for the read-only arrays of another process
        x, y, z, alpha, far, offsets, terms, weights = (as_input(column, column.dtype.type) for column in columns)
        read = np.zeros(rows, np.int64)
        query_rows = QueryRows(
            order, x, y, z, alpha, far, offsets, terms, weights, bars, best, self.space.on_sphere, read, filters
        )
        since = as_of.last_seq
        gone = [rows for number, rows in self._ended if number > as_of.number]
        alive, span = [], Span(-1, since, as_of.floor, True)
        if not more:
            alive = self._search(query_rows, span) + [scan(rows, query_rows, span) for rows in gone]
        later = []
        last = known[max(self.stored_through if onward else up_to, as_of.number)]
        if last.last_seq > since:
            span = Span(since, last.last_seq, as_of.floor, False)
            later = self._search(query_rows, span) + [scan(rows, query_rows, span) for rows in gone]
        found = _assemble(queries, best[bars[:-1]], alive, later)
        return found._replace(read=read, up_to=last.number, last_seq=last.last_seq)

    @classmethod
    def merge(cls, parts: list[WindowAnswers]) -> WindowAnswers:
        return merge_answers(parts)

    @classmethod
    def split(cls, answer: WindowAnswers, rows: Sequence[int]) -> list[WindowAnswers]:
        cuts = np.cumsum([0, *rows])
        return [
            answer._replace(
                rank=answer.rank[first:last],
                offsets=answer.offsets[first : last + 1] - begin,
                **{name: getattr(answer, name)[begin:end] for name in ("seq", "life", "score", "after")},
                threshold=answer.threshold[first:last],
                read=answer.read[first:last],
            )
            for first, last, begin, end in zip(
                cuts, cuts[1:], answer.offsets[cuts], answer.offsets[cuts[1:]], strict=False
            )
        ]

    @abstractmethod
    def _add(self, messages: MessageBatch) -> None:
        """Store the messages of a batch, at least one, newer than all before."""

    @abstractmethod
    def _load(self, messages: MessageBatch) -> None:
        """Store the messages of a whole window, at least one, in an empty index."""

    @abstractmethod
    def _end(self, seqs: Int64) -> list[WindowRows]:
        """Take the messages that are here out (seqs ascending), and return them."""

    @abstractmethod
    def _drop(self, floor: int) -> None:
        """Drop as many messages with life <= floor as is cheap: no later query wants them."""

    @abstractmethod
    def _search(self, queries: QueryRows, span: Span) -> list[WindowHits]:
        """All messages of the span that reach the final bar of their row, and perhaps others.

        With `span.push` the heaps in `queries.best` are filled, so that bars rise as messages are found.
        """


def merge_answers(parts: list[WindowAnswers]) -> WindowAnswers:
    """Merge the answers of all tasks to one request, in an aggregation bolt.

    Parameters
    ----------
    parts : list of WindowAnswers
        One from each task, of one request.

    Notes
    -----
    O(m log m) for m messages. Every part sent its newest ties, so the union has every message above the merged
    threshold, and every one at it that may matter. It covers the batches that all parts cover.
    """
    if len(parts) == 1:
        return parts[0]
    ranks, threshold = parts[0].rank, np.max([part.threshold for part in parts], axis=0)
    row = np.concatenate([np.repeat(np.arange(ranks.shape[0]), np.diff(part.offsets)) for part in parts])
    seq, life, score, after = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("seq", "life", "score", "after")
    )
    up_to, last_seq = min((part.up_to, part.last_seq) for part in parts)
    keep = np.flatnonzero((score >= threshold[row]) & ((after == 0) | (seq <= last_seq)))
    keep = keep[np.argsort(row[keep], kind="stable")]
    laid_out = _laid_out(ranks, threshold, row[keep], seq[keep], life[keep], score[keep], after[keep])
    return laid_out._replace(read=np.sum([part.read for part in parts], axis=0), up_to=up_to, last_seq=last_seq)


def _assemble(
    queries: WindowQueries, threshold: Float64, alive: list[WindowHits], later: list[WindowHits]
) -> WindowAnswers:
    """Order hits by row, dropping those below the final threshold of the row."""
    found = [*alive, *later]
    counts = [part.score.shape[0] for part in found]
    row, seq, life = np.concatenate([np.zeros((0, 3), np.int64), *(part.message for part in found)]).T
    score = np.concatenate([np.zeros(0), *(part.score for part in found)])
    after = np.repeat(np.array([0] * len(alive) + [1] * len(later), np.int8), counts)
    keep = np.flatnonzero(score >= threshold[row])
    keep = keep[np.argsort(row[keep], kind="stable")]
    return _laid_out(
        queries.rank, threshold, row[keep], seq[keep], life[keep], score[keep], after[keep]
    )  # fmt: skip


def _laid_out(rank, threshold, row, seq, life, score, after) -> WindowAnswers:
    """An answer from columns ordered by row, of ties with the newest alone."""
    # a copy: ranks that have travelled are read-only, and a kernel of their own would be compiled while batches wait
    keep = _without_older_ties(row, seq, score, after, threshold, np.array(rank, np.int32))
    if not keep.all():
        row, seq, life, score, after = row[keep], seq[keep], life[keep], score[keep], after[keep]
    offsets = np.zeros(threshold.shape[0] + 1, np.int64)
    np.cumsum(np.bincount(row, minlength=threshold.shape[0]), out=offsets[1:])
    return WindowAnswers(rank, offsets, seq, life, score, after, threshold, np.zeros(threshold.shape[0], np.int64))


@njit(cache=True, nogil=True)
def _without_older_ties(row, seq, score, after, threshold, rank):
    """bool[n]: all but those at the threshold of their row that `drop_older_ties` leaves out. Rows ascend."""
    keep, begin = np.ones(row.shape[0], np.bool_), 0
    while begin < row.shape[0]:
        r, end = row[begin], begin
        while end < row.shape[0] and row[end] == r:
            end += 1
        # later messages are all wanted; slices are views, so `keep` itself is written
        is_tie = (score[begin:end] == threshold[r]) & (after[begin:end] == 0)
        drop_older_ties(is_tie, seq[begin:end], rank[r], keep[begin:end])
        begin = end
    return keep
