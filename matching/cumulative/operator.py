"""The room of kinds with lasting results: the best since registration, at home where they are matched.

Nothing is asked and nothing pends: a batch is matched, message by message, and its boundary told. Whoever is added
inside the batch sees the messages from its own seq on; whoever is removed inside it ends with nothing, so it is not
matched any more, and what it was last told leaves. Read on in `matching.cumulative.engine`.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from matching.cumulative.engine import LastingEngine
from matching.cumulative.results import ResultRows
from matching.errors import EngineError
from matching.model import LEAVE, Int32, Int64, ResultBatch, UpdateBatch, concatenate
from matching.operator import Bools, KindOperator, Matched, OperatorContext, OperatorInput, OperatorOutput, Work
from matching.storage.state import Lists, State
from matching.window import Boundary


class CumulativeOperator(KindOperator):
    """Subscriptions of one kind at one query task; see `matching.operator.KindOperator`.

    Parameters
    ----------
    engine : callable    makes a `LastingEngine`
    site : Site
    """

    #: What is told of a key: the key itself, or for kinds of which less is better its opposite.
    sign: ClassVar[float] = 1.0

    def __init__(self, engine: Callable[..., LastingEngine], site: OperatorContext):
        self.engine = self.make_engine(engine, site)
        self._task = site.task
        self._closed = -1

    def make_engine(self, engine: Callable[..., LastingEngine], site: OperatorContext) -> LastingEngine:
        """The engine for a site."""
        return engine(site.space)

    def __len__(self) -> int:
        return len(self.engine)

    @property
    def watermark(self) -> int:
        return self._closed

    def holds(self, numbers: Int64) -> Bools:
        return self.engine.subscriptions.find(numbers) >= 0

    def match(self, turn: OperatorInput) -> Matched:
        """Match a batch with the changes that take effect inside it.

        Raises
        ------
        EngineError
            If the batch is not the next one, or a number is added that is here.
        """
        boundary, messages = turn.boundary, turn.messages
        if boundary.number != self._closed + 1:
            raise EngineError(f"{type(self).__name__}: batch {boundary.number} cannot follow batch {self._closed}")
        if np.any(turn.home != self._task):
            raise EngineError(f"{type(self).__name__}: a subscription whose home is another task cannot be held here")
        engine, best = self.engine, self.engine.best
        gone = engine.subscriptions.find(turn.removed.number)
        gone = gone[gone >= 0]
        leaves = self._leaves(boundary, gone)
        engine.remove(gone)
        staying = np.flatnonzero(~np.isin(turn.added.number, turn.removed.number))
        engine.insert(turn.added if staying.shape[0] == len(turn.added) else turn.added.take(staying))
        best.begin_batch(boundary.number, boundary.first_seq)
        work = engine.match(messages) if len(engine) and len(messages) else Work()
        told = best.end_batch(engine.subscriptions.columns, boundary.last_seq)
        updates = concatenate([leaves, told]) if len(leaves) else told
        self._closed = boundary.number
        return Matched(OperatorOutput(self._signed(updates), work=work))

    def close(self, mine: OperatorOutput, found: list[Any]) -> OperatorOutput:
        return mine

    def pass_over(self, boundary: Boundary) -> None:
        self._closed = boundary.number

    def results(self) -> ResultBatch:
        slots = self.engine.subscriptions.live_slots()
        held = self.engine.best.held(slots)
        lengths = np.diff(held.offsets)
        rank = np.arange(held.seq.shape[0]) - np.repeat(held.offsets[:-1], lengths) + 1
        numbers = np.repeat(self.engine.numbers(slots), lengths)
        return ResultBatch(numbers, rank.astype(np.int32), held.seq, self.sign * held.key)

    def report(self) -> dict[str, Any]:
        c = self.engine.subscriptions.columns
        slots = self.engine.subscriptions.live_slots()
        full = int(np.count_nonzero(self.engine.best.view.count[slots] == c.k[slots]))
        return {"at_home": len(self), "full": full}

    def arrays(self) -> dict[str, np.ndarray]:
        return self.engine.arrays()

    def state(self) -> State:
        slots = self.engine.subscriptions.live_slots()
        state = State.of(self.engine.subscriptions.rows(slots))
        state.rows["at"] = self.engine.best.view.after[slots] + 1
        offsets, seq, key = self.engine.best.held(slots)
        state.lists["best"] = Lists(offsets, {"seq": seq, "key": key})
        return state

    def restore(self, boundary: Boundary, state: State, home: Int64, held: Bools) -> None:
        mine = state.take(np.flatnonzero(held))
        best = mine.lists["best"]
        self.engine.insert(mine.table, ResultRows(best.offsets, **best.columns))
        self._closed = boundary.number

    def _leaves(self, boundary: Boundary, slots: Int32) -> UpdateBatch:
        """All that these hold leaves."""
        held = self.engine.best.held(slots)
        rows = held.seq.shape[0]
        number = np.repeat(self.engine.numbers(slots), np.diff(held.offsets))
        as_of, change = np.full(rows, boundary.last_seq, np.int64), np.full(rows, LEAVE, np.int8)
        return UpdateBatch(as_of, number, held.seq, change, held.key)

    def _signed(self, updates: UpdateBatch) -> UpdateBatch:
        if self.sign == 1.0:
            return updates
        return UpdateBatch(updates.as_of, updates.number, updates.seq, updates.change, self.sign * updates.score)
