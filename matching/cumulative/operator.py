"""The operator of cumulative kinds: the best messages since registration, homed on the task that matches them.

There are no window queries and no refills: a batch is matched message by message, and the updates of its boundary are
emitted. A subscription added inside the batch sees the messages from its own seq on. One removed inside it is matched
no more, and its last reported result leaves. Base of `matching.decay.operator` and `matching.knn.operator`.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from matching.cumulative.engine import CumulativeEngine
from matching.cumulative.results import CumulativeRows
from matching.errors import EngineError
from matching.model import LEAVE, NO_UPDATES, Int32, Int64, ResultBatch, UpdateBatch, concatenate
from matching.operator import (
    Bools,
    Matched,
    OperatorContext,
    OperatorInput,
    OperatorOutput,
    OperatorSnapshot,
    ResultOperator,
    Work,
)
from matching.result_rows import ranks
from matching.storage.state import RaggedColumns, State
from matching.window import Boundary


class CumulativeOperator(ResultOperator):
    """Subscriptions of one kind at one query task; see `matching.operator.KindOperator`.

    Parameters
    ----------
    engine : callable    makes a `CumulativeEngine`
    context : OperatorContext
    """

    #: Factor from key to reported score: -1 for kinds of which less is better.
    sign: ClassVar[float] = 1.0

    def __init__(self, engine: Callable[..., CumulativeEngine], context: OperatorContext):
        self.engine = self.make_engine(engine, context)
        self._task = context.task
        self._closed = -1

    def make_engine(self, engine: Callable[..., CumulativeEngine], context: OperatorContext, /) -> CumulativeEngine:
        """The engine for a context."""
        return engine(context.space)

    def __len__(self) -> int:
        return len(self.engine)

    @property
    def watermark(self) -> int:
        return self._closed

    def contains(self, numbers: Int64) -> Bools:
        return self.engine.subscriptions.find(numbers) >= 0

    def match(self, batch_input: OperatorInput, /) -> Matched:
        """Match a batch with the changes that take effect inside it.

        Raises
        ------
        EngineError
            If the batch is not the next one, or a number is added twice.
        """
        boundary, messages, added = batch_input.boundary, batch_input.messages, batch_input.added
        if boundary.number != self._closed + 1:
            raise EngineError(f"{type(self).__name__}: batch {boundary.number} cannot follow batch {self._closed}")
        if np.any(batch_input.home != self._task):
            raise EngineError(f"{type(self).__name__}: a subscription must be assigned to its home task")
        engine, best = self.engine, self.engine.best
        # most small batches change nothing, and each call on nothing costs microseconds
        changes = len(added) > 0 or batch_input.removed.number.shape[0] > 0
        leaves = self._change(batch_input) if changes else NO_UPDATES
        best.begin_batch(boundary.number, boundary.first_seq)
        work = engine.match(messages) if len(engine) and len(messages) else Work()
        updates = best.end_batch(engine.subscriptions.columns, boundary.last_seq)
        updates = concatenate([leaves, updates]) if len(leaves) else updates
        self._closed = boundary.number
        return Matched(OperatorOutput(self._signed(updates), work=work))

    def close(self, mine: OperatorOutput, found: list[Any]) -> OperatorOutput:
        return mine

    def pass_over(self, boundary: Boundary) -> None:
        self._closed = boundary.number

    def results(self) -> ResultBatch:
        slots = self.engine.subscriptions.live_slots()
        rows = self.engine.best.rows(slots)
        numbers = np.repeat(self.engine.numbers(slots), np.diff(rows.offsets))
        return ResultBatch(numbers, ranks(rows.offsets), rows.seq, self.sign * rows.key)

    def report(self) -> dict[str, Any]:
        c = self.engine.subscriptions.columns
        slots = self.engine.subscriptions.live_slots()
        full = int(np.count_nonzero(self.engine.best.view.count[slots] == c.k[slots]))
        return {"homed": len(self), "full": full}

    def arrays(self) -> dict[str, np.ndarray]:
        return self.engine.arrays()

    def snapshot(self, stored: int | None = None) -> OperatorSnapshot:
        subscriptions, best = self.engine.subscriptions, self.engine.best.snapshot()
        version, slots = subscriptions.slots.changes, subscriptions.live_slots()
        if version != stored:
            subscriptions = subscriptions.snapshot()

        def rows() -> State:
            state = State.of(subscriptions.rows(slots))
            del state.rows["at"]
            return state

        def results() -> State:
            offsets, seq, key = best.rows(slots)
            lists = {"best": RaggedColumns(offsets, {"seq": seq, "key": key})}
            return State({"at": best.view.after[slots] + 1}, lists, {})

        return OperatorSnapshot(version, rows, results)

    def restore(self, boundary: Boundary, state: State, home: Int64, assigned: Bools) -> None:
        mine = state.take(np.flatnonzero(assigned))
        best = mine.lists["best"]
        self.engine.insert(mine.table, CumulativeRows(best.offsets, **best.columns))
        self._closed = boundary.number

    def _change(self, batch_input: OperatorInput) -> UpdateBatch:
        """Remove and insert what a batch changes; returns the leave updates of those that are gone."""
        engine, added, removed = self.engine, batch_input.added, batch_input.removed.number
        gone = engine.subscriptions.find(removed)
        gone = gone[gone >= 0]
        leaves = self._leaves(batch_input.boundary, gone)
        engine.remove(gone)
        staying = np.flatnonzero(~np.isin(added.number, removed))
        engine.insert(added if staying.shape[0] == len(added) else added.take(staying))
        return leaves

    def _leaves(self, boundary: Boundary, slots: Int32) -> UpdateBatch:
        """Leave updates for the whole results of slots."""
        rows = self.engine.best.rows(slots)
        number = np.repeat(self.engine.numbers(slots), np.diff(rows.offsets))
        as_of = np.full(number.shape[0], boundary.last_seq, np.int64)
        return UpdateBatch(as_of, number, rows.seq, np.full(number.shape[0], LEAVE, np.int8), rows.key)

    def _signed(self, updates: UpdateBatch) -> UpdateBatch:
        if self.sign == 1.0:
            return updates
        return UpdateBatch(updates.as_of, updates.number, updates.seq, updates.change, self.sign * updates.score)
