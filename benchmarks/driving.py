"""Drives engines in one process, step by step: for benches, for the bare engine beside a topology, and for tests.

What runs is `matching.local_engine.LocalEngine`: a kind's operator over its real window index. `take` processes a batch
and times it; `benchmarks.harness` and `benchmarks.topology_cost` take all their batches by it.

Tests run kinds at several tasks, too. Each of `Tasks` has operators of its own, for the subscriptions whose number
leaves its remainder, and sees the whole stream. `Tasks.go_on` writes their snapshots to frames, reads them back, joins
them and restores them at any number of tasks: a run that is resumed with other numbers of tasks, without a topology.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from matching.half_life import DecayParameters
from matching.kind_table import Kind
from matching.kinds import KINDS
from matching.local_engine import LocalEngine
from matching.model import (
    NO_MESSAGES,
    Int64,
    MessageBatch,
    Removals,
    ResultBatch,
    SubscriptionTable,
    UpdateBatch,
    concatenate,
    empty,
)
from matching.naive_rows import Result
from matching.operator import OperatorOutput
from matching.space import Space
from matching.storage.message_log import WindowLog
from matching.storage.state import State, join_states
from matching.window import Boundary, Window
from topology.core.frames import decode, encode

#: How scores fade, of kinds whose do and where nothing else is said: half in 20 s; seven words, all as common.
FADING = DecayParameters.of(20.0, 0.2, np.full(7, 3), 21, 0)
#: No subscription is added, none removed.
NO_CHANGES: tuple[SubscriptionTable, Removals] = empty(SubscriptionTable), empty(Removals)
NO_SUBSCRIPTIONS, NO_REMOVALS = NO_CHANGES
#: Every engine there is: (kind, engine).
ENGINES = [(kind.name, engine) for kind in KINDS.run for engine in kind.engines]


def kind_of(
    name: str, engine: str | Callable[[Space], Any] | None = None, window: Any = None, operator: Any = None
) -> Kind:
    """The row of a kind with one engine, one window index and one operator: by name, or callables (a broken one, say).

    What is left out is the default.
    """
    kind = KINDS.named(name)
    made = kind.engine(engine) if engine is None or isinstance(engine, str) else engine
    engines = {engine if isinstance(engine, str) else getattr(made, "name", "given"): made}
    windows = kind.windows
    if window is not None:
        index = kind.window(window) if isinstance(window, str) else window
        windows = {index.name: index}
    return replace(kind, engines=engines, windows=windows, operator=operator or kind.operator)


class Batch(NamedTuple):
    """What `LocalEngine.process` takes at a boundary, in its order."""

    boundary: Boundary
    messages: MessageBatch = NO_MESSAGES
    added: SubscriptionTable = NO_SUBSCRIPTIONS
    removed: Removals = NO_REMOVALS
    ended: MessageBatch = NO_MESSAGES


class Step(NamedTuple):
    """The output of a batch, and how long it took."""

    output: OperatorOutput
    seconds: float


def take(engine: LocalEngine, batch: Batch) -> Step:
    """Process the next batch."""
    begun = perf_counter()
    output = engine.process(*batch)
    return Step(output, perf_counter() - begun)


class Tasks:
    """Kinds at several tasks.

    Parameters
    ----------
    kinds : Kind, or several of them
    space, window
    count : int       how many tasks
    window_tasks : int    as of `matching.local_engine.LocalEngine`, of each task
    options, fading, objects : as of `matching.operator.OperatorContext`
    """

    def __init__(
        self,
        kinds: Kind | Sequence[Kind],
        space: Space,
        window: Window,
        count: int = 1,
        window_tasks: int = 1,
        options: Mapping[str, str] | None = None,
        fading: DecayParameters | None = None,
        objects: bool = False,
    ):
        self.objects = objects
        self.kinds = (kinds,) if isinstance(kinds, Kind) else tuple(kinds)
        self.space, self.window = space, window
        self._window_tasks, self._options, self._fading = window_tasks, options, fading or FADING
        self.log = WindowLog()
        self.tasks = [self._alone() for _ in range(count)]
        self._asked = 0

    @property
    def operator(self) -> Any:
        """The operator of the first task and kind."""
        return self.tasks[0].operator

    def process(
        self,
        boundary: Boundary,
        messages: MessageBatch,
        added: SubscriptionTable,
        removed: Removals,
        ended: MessageBatch = NO_MESSAGES,
    ) -> OperatorOutput:
        """As `LocalEngine.process`; every task gets all removals."""
        self.log.store(boundary, messages, ended.seq)
        steps = []
        for task, alone in enumerate(self.tasks):
            mine = added.take(rows_at(added.number, task, len(self.tasks)))
            steps.append(take(alone, Batch(boundary, messages, mine, removed, ended)).output)
        work = steps[0].work
        for step in steps[1:]:
            work = work.plus(step.work)
        return OperatorOutput(concatenate([step.updates for step in steps]), work=work)

    def go_on(self, count: int = 1) -> None:
        """Save all after the last batch, and resume as so many tasks."""
        self._asked = self.refills
        states = {kind.code: self._saved(kind) for kind in self.kinds}
        messages, ended = self.log.alive()
        self.tasks = [self._alone() for _ in range(count)]
        for task, alone in enumerate(self.tasks):
            mine = {code: state.take(rows_at(state.rows["number"], task, count)) for code, state in states.items()}
            alone.restore(self.log.boundary, messages, mine, ended)

    @property
    def refills(self) -> int:
        """Subscriptions whose results were refilled from the window, since the beginning."""
        operators = [task.operators[kind.code] for task in self.tasks for kind in self.kinds if kind.windowed]
        return self._asked + sum(operator.report()["refills"] for operator in operators)

    def results(self) -> list[Result]:
        """Standing results by number and rank."""
        parts = [task.results() for task in self.tasks]
        return sorted(Result(*row) for part in parts for row in rows_of(part))

    def _alone(self) -> LocalEngine:
        options: dict[str, Any] = {"options": self._options, "fading": self._fading}
        options |= {"window_tasks": self._window_tasks, "objects": self.objects}
        return LocalEngine(self.kinds, self.space, self.window, **options)

    def _saved(self, kind: Kind) -> State:
        """The snapshots of a kind of all tasks, written, read and joined."""
        states = [task.states()[kind.code] for task in self.tasks]
        written = [decode(encode({"state": kind.name}, state.arrays()))[1] for state in states]
        return join_states([State.from_arrays(arrays) for arrays in written])


def rows_at(number: Int64, task: int, tasks: int) -> Int64:
    """Rows of the subscriptions that belong to a task."""
    return np.flatnonzero(number % tasks == task)


def rows_of(results: ResultBatch | UpdateBatch) -> Iterator[tuple]:
    """Row by row, in plain Python."""
    return zip(*(column.tolist() for column in results if column is not None), strict=True)
