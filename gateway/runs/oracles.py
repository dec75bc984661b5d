"""The two oracles over a finished run: the bulk oracle in NumPy, and the plain one.

Both take the batches of the run in order and give the same updates. `BulkRun` gathers batches, since the bulk oracle is
fast only over many messages; `PlainRun` feeds `matching.naive` batch by batch.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matching.bulk_oracle import BulkOracle
from matching.model import (
    Int64,
    MessageBatch,
    Removals,
    ResultBatch,
    SubscriptionTable,
    UpdateBatch,
    concatenate,
    empty,
)
from matching.naive import Oracle
from matching.naive_rows import DecayModel, Extras
from matching.window import Boundary, Window

#: Messages that the bulk oracle takes at a time, at least; and boundaries, at most.
GATHERED, MOST_BOUNDARIES = 131_072, 65_536

#: Called as `on_progress(messages done, updates so far)`.
PublishedUpdates = Callable[[int, int], Any]


class PlainRun:
    """The plain oracle. Parameters as of `BulkRun`; `window` checks every boundary."""

    name = "plain oracle"

    def __init__(
        self, table: SubscriptionTable, end: Int64, window: Window, max_distance: float, decay: DecayModel | None,
        extras_of: Callable[[MessageBatch], Extras], objects: bool = False,
    ):  # fmt: skip
        self._table, self._end, self._extras_of = table, end, extras_of
        self._order = np.argsort(end, kind="stable")
        self._oracle = Oracle(window, max_distance, decay, objects=objects)
        self._added = self._removed = self._updates = 0

    def advance(self, boundary: Boundary, messages: MessageBatch, on_progress: PublishedUpdates) -> UpdateBatch:
        """Feed the next batch: messages with a keyword, and those that end others."""
        added = slice(self._added, int(np.searchsorted(self._table.at, boundary.last_seq, "right")))
        removed_to = int(np.searchsorted(self._end[self._order], boundary.last_seq, "right"))
        removed = self._order[self._removed : removed_to]
        self._added, self._removed = added.stop, removed_to
        updates = self._oracle.advance(
            boundary,
            messages,
            self._table.take(np.arange(added.start, added.stop)),
            Removals(self._table.number[removed], self._table.kind[removed], self._end[removed]),
            self._extras_of(messages),
        )
        self._updates += len(updates)
        on_progress(boundary.last_seq + 1, self._updates)
        return _columns(UpdateBatch, updates)

    def finish(self, on_progress: PublishedUpdates) -> UpdateBatch:
        """The remaining updates: none."""
        return empty(UpdateBatch)

    def results(self) -> ResultBatch:
        return _columns(ResultBatch, self._oracle.results())


class BulkRun:
    """The bulk oracle.

    Parameters
    ----------
    table : SubscriptionTable
        In the order of `at`.
    end : int64[n]
        The seq before which each one ends; `NEVER` if it does not.
    alive_to : int64[m], optional
        By seq, the message that ends each one of the stream; `NEVER` for none.
    """

    name = "bulk oracle"

    def __init__(
        self, table: SubscriptionTable, end: Int64, max_distance: float, decay: DecayModel | None,
        alive_to: NDArray[np.int64] | None,
    ):  # fmt: skip
        self._oracle = BulkOracle(table, end, max_distance, decay)
        self._alive_to = alive_to
        self._boundaries: list[Boundary] = []
        self._batches: list[MessageBatch] = []
        self._gathered = self._updates = 0

    def advance(self, boundary: Boundary, messages: MessageBatch, on_progress: PublishedUpdates) -> UpdateBatch:
        """Take the next batch: messages with a keyword; updates come when enough have been gathered.

        Each call scans the window, so a long window gathers more messages.
        """
        self._boundaries.append(boundary)
        self._batches.append(messages)
        self._gathered += len(messages)
        if self._gathered < max(GATHERED, self._oracle.kept) and len(self._boundaries) < MOST_BOUNDARIES:
            return empty(UpdateBatch)
        return self.finish(on_progress)

    def finish(self, on_progress: PublishedUpdates) -> UpdateBatch:
        """The updates of what has been gathered."""
        if not self._boundaries:
            return empty(UpdateBatch)
        first, span = self._boundaries[0].first_seq, self._boundaries[-1].last_seq + 1 - self._boundaries[0].first_seq
        updates_before = self._updates
        updates = self._oracle.advance(
            self._boundaries,
            concatenate(self._batches),
            self._alive_to,
            lambda fraction, count: on_progress(first + int(fraction * span), updates_before + count),
        )
        self._updates += len(updates)
        on_progress(first + span, self._updates)
        self._boundaries, self._batches, self._gathered = [], [], 0
        return updates

    def results(self) -> ResultBatch:
        return self._oracle.results()


def _columns(table_type: Any, rows: list[Any]) -> Any:
    """Rows of Python values as columns."""
    like = empty(table_type)
    columns = zip(*rows, strict=True) if rows else ((),) * len(table_type._fields)
    dtypes = [np.float64 if column is None else column.dtype for column in like]
    return table_type(*(np.array(values, dtype) for values, dtype in zip(columns, dtypes, strict=True)))
