"""Window indexes of cumulative kinds, in a stream of objects: the best of the living versions, as of a boundary.

Versions lie in runs in the order of the stream, each twice as long as the next, with the rows of each term. A query is
answered as its operator would have: the living versions that have a term of it are fed to an engine of the kind in
their order. So ties, filters and distances need no second account; it costs the postings of the terms, wherever the
versions are.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from matching.cumulative.engine import CumulativeEngine
from matching.errors import EngineError
from matching.half_life import DecayParameters
from matching.model import NO_MESSAGES, Float64, Int32, Int64, MessageBatch, join_messages
from matching.operator import NO_SEQS, WindowIndex, WindowQuery
from matching.result_rows import split_results
from matching.space import Space
from matching.window import Boundary

#: Number of the batch that ends a version which none has ended.
_NEVER = 2**62


class LivingEntries(NamedTuple):
    """As `CumulativeRows`, with the `life` (int64) of each version."""

    offsets: Int64
    seq: Int64
    key: Float64
    life: Int64


class LivingAnswers(NamedTuple):
    """The best versions for the rows of a query, as `LivingEntries`; `k` int32[rows] is how many were wanted."""

    k: Int32
    offsets: Int64
    seq: Int64
    key: Float64
    life: Int64


class _Run:
    """Versions in ascending seq, the number of the batch that ended each (int64[n]), and their rows by term."""

    def __init__(self, messages: MessageBatch, ended: Int64):
        self.messages, self.ended = messages, ended
        self._terms: Int32 | None = None
        self._rows = NO_SEQS

    def __len__(self) -> int:
        return len(self.messages)

    def having(self, terms: Int32) -> Int64:
        """Rows with any of these terms, ascending. O(postings of them), and once O(postings log postings)."""
        first, last = self.messages.term_offsets[[0, -1]]
        if self._terms is None:
            own = self.messages.terms[first:last]
            order = np.argsort(own, kind="stable")
            rows = np.repeat(np.arange(len(self)), np.diff(self.messages.term_offsets))
            self._terms, self._rows = own[order], rows[order]
        begin, end = (np.searchsorted(self._terms, terms, side=side) for side in ("left", "right"))
        found = [self._rows[a:b] for a, b in zip(begin.tolist(), end.tolist(), strict=True)]
        return np.unique(np.concatenate([NO_SEQS, *found]))

    @property
    def nbytes(self) -> int:
        """Memory of all columns."""
        columns = {id(column): column.nbytes for column in (*self.messages, self.ended, self._rows)}
        return sum(columns.values()) + (0 if self._terms is None else self._terms.nbytes)


class LivingWindow(WindowIndex):
    """One task's part of the living versions; an implementation has the engine of its kind.

    Parameters
    ----------
    space, kept_boundaries : as of `matching.operator.WindowIndex`
    fading : DecayParameters, optional    for kinds whose scores decay
    """

    name = "runs"
    serves_filters = True

    def __init__(self, space: Space, kept_boundaries: int = 0, fading: DecayParameters | None = None):
        self.space = space
        self.fading = fading
        self.kept_boundaries = kept_boundaries
        self._known: list[Boundary] = []
        self._runs: list[_Run] = []

    @abstractmethod
    def make_engine(self) -> CumulativeEngine:
        """An empty engine."""

    @property
    def stored_through(self) -> int:
        return self._known[-1].number if self._known else -1

    def store(self, boundary: Boundary, messages: MessageBatch, ended: Int64) -> None:
        """See `WindowIndex`. O(log versions) copies of each, amortised."""
        if self._known and boundary.number != self.stored_through + 1:
            raise EngineError(f"window: batch {boundary.number} cannot follow batch {self.stored_through}")
        self._known = [*self._known, boundary][-1 - self.kept_boundaries :]
        if len(messages):
            self._append(_Run(messages, np.full(len(messages), _NEVER)))
        for run in self._runs if ended.shape[0] else ():
            at = np.minimum(np.searchsorted(run.messages.seq, ended), len(run) - 1)
            rows = at[run.messages.seq[at] == ended]
            run.ended[rows] = np.minimum(run.ended[rows], boundary.number)

    def load(self, boundary: Boundary, messages: MessageBatch, ended: Int64 = NO_SEQS) -> None:
        self._known = [boundary]
        living = messages.take(np.flatnonzero(~np.isin(messages.seq, ended)))
        if len(living):
            self._runs = [_Run(living, np.full(len(living), _NEVER))]

    def answer(self, query: WindowQuery) -> LivingAnswers:
        """See `WindowIndex`. O(postings of the terms of the query)."""
        as_of, rows = query.as_of, query.rows
        if as_of.number not in [boundary.number for boundary in self._known]:
            raise EngineError(f"window: a query is as of batch {as_of.number}, which is no longer or not yet stored")
        terms, parts = np.unique(rows.terms), [NO_MESSAGES]
        for run in self._runs:
            found = run.having(terms)
            found = found[self._alive(run, as_of)[found] & (run.messages.seq[found] <= as_of.last_seq)]
            parts.append(run.messages.take(found))
        engine = self.make_engine()
        slots = engine.insert(rows)
        engine.best.begin_batch(0, 0)
        messages = self.seen(join_messages([part for part in parts if len(part)] or parts[:1]))
        engine.match(messages)
        best = engine.best.rows(slots)
        return LivingAnswers(rows.k, *best, messages.life[np.searchsorted(messages.seq, best.seq)])

    def seen(self, messages: MessageBatch) -> MessageBatch:
        """As `matching.cumulative.living.LivingOperator.seen`."""
        return messages

    @classmethod
    def merge(cls, parts: list[Any]) -> LivingAnswers:
        """The best of all parts. O(entries log entries)."""
        k = parts[0].k
        row = np.concatenate([np.repeat(np.arange(k.shape[0]), np.diff(part.offsets)) for part in parts])
        seq, key, life = (np.concatenate([part[column] for part in parts]) for column in (2, 3, 4))
        order = np.lexsort((seq, -key, row))
        row = row[order]
        order = order[np.arange(row.shape[0]) - np.searchsorted(row, row) < k[row]]
        offsets = np.zeros(k.shape[0] + 1, np.int64)
        most = np.bincount(row, minlength=k.shape[0])
        np.cumsum(np.minimum(most, k), out=offsets[1:])
        return LivingAnswers(k, offsets, seq[order], key[order], life[order])

    @classmethod
    def split(cls, answer: LivingAnswers, rows: Sequence[int]) -> list[LivingAnswers]:
        parts = split_results(LivingEntries(*answer[1:]), rows)
        return [
            LivingAnswers(k, *part) for k, part in zip(np.split(answer.k, np.cumsum(rows)[:-1]), parts, strict=True)
        ]

    def size_bytes(self) -> int:
        return sum(run.nbytes for run in self._runs)

    def _alive(self, run: _Run, boundary: Boundary) -> np.ndarray:
        """bool[n]: which live at a boundary that is not before them."""
        return (run.ended > boundary.number) & (run.messages.life > boundary.floor)

    def _append(self, run: _Run) -> None:
        """Add a run, and merge those that are not twice as long as the next, without what no query may name."""
        while self._runs and len(self._runs[-1]) < 2 * len(run):
            both = [self._runs.pop(), run]
            rows = [np.flatnonzero(self._alive(each, self._known[0])) for each in both]
            taken = [each.messages.take(own) for each, own in zip(both, rows, strict=True)]
            run = _Run(join_messages(taken), np.concatenate([both[0].ended[rows[0]], both[1].ended[rows[1]]]))
        if len(run):
            self._runs.append(run)
