"""What a topology is made of: spouts bring batches in, bolts work on them, a context connects them to the rest.

Spouts and bolts are plain classes that know nothing of Ray. A component is built unprepared, pickled once per task, and
prepared where it runs; the same object runs in one process (`topology.core.executors.local`) or in a Ray actor
(`topology.core.executors.ray`). Clock, random numbers, logger and counters come from the context only.

What the executors promise, and all a component may rely on:

- What one task emits to another task arrives in the order of emission. Nothing is promised between two senders.
- `execute` is never entered twice at once for one task.
- Every task of a component gets the same options and knows its own `task` number and every component's size.
- When all forward inputs of a task have ended, its `finish` is called once, and its own end is passed downstream as
  soon as `idle` is true; feedback edges may still deliver until then, and after it.
- A run may stop behind a batch where nothing is in flight (a quiet boundary) and resume there in another process, with
  other numbers of tasks: `restore` of the new tasks gets what `snapshot` of the old ones had, and nothing else.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import xxhash

from matching.errors import CheckpointError, TopologyError
from topology.core.api.plan import Plan, TaskId
from topology.core.checkpoint.storage import Output
from topology.core.wakeup import Wakeup


class Delivery(NamedTuple):
    """One payload that arrived: on which stream, from which component and task of it."""

    stream: str
    source: str
    task: int
    payload: Any


class Saved(NamedTuple):
    """Snapshots of all tasks of a run at a quiet boundary.

    number : int    the last batch done, -1 before the first
    parts : mapping of component to named arrays of each of its tasks, in order of task
        What the fragments of `snapshot` of each had. There may have been more tasks of a component than now, or fewer.
    work : mapping of component to the busy time of each of its tasks since the last checkpoint, in ns
        Given where subscriptions are to be rebalanced by it; else empty.
    """

    number: int
    parts: Mapping[str, Sequence[Mapping[str, np.ndarray]]]
    work: Mapping[str, Sequence[int]] = {}

    def tasks(self, component: str) -> Sequence[Mapping[str, np.ndarray]]:
        """Named arrays of each task of a component.

        Raises
        ------
        CheckpointError
            If there was no such component.
        """
        if component not in self.parts:
            raise CheckpointError(
                f"nothing was saved of {component!r}, only of {', '.join(self.parts) or 'no component'}: "
                "resume with the topology of the checkpoint, or start without it"
            )
        return self.parts[component]

    def single(self, component: str) -> Mapping[str, np.ndarray]:
        """Named arrays of a component's only task.

        Raises
        ------
        CheckpointError
            If there was no such component, or it had several tasks.
        """
        tasks = self.tasks(component)
        if len(tasks) != 1:
            raise CheckpointError(f"{component!r} was saved by {len(tasks)} tasks, and is known as one: give it 1")
        return tasks[0]


class Fragment(NamedTuple):
    """Some of the arrays of a snapshot.

    arrays : callable
        Returns named arrays as they were at the barrier, whatever has been done since: another thread calls it while
        the stream continues.
    version : int, optional
        Fragments of one task and name with the same version have the same arrays, which are then not written again.
        None: written at each checkpoint.
    """

    arrays: Callable[[], Mapping[str, np.ndarray]]
    version: int | None = None


class Context:
    """A task's only door to the outside; made by the executor, handed over in `open` / `prepare`.

    Attributes
    ----------
    component, task, tasks
        Name of the task's component, number of the task, and how many the component has.
    log : structlog logger
    rng : numpy.random.Generator
    incarnation : int
        Number of this start of the tasks: a part of every temporary file name, so that none is used twice.
    resumes : bool
        Whether `restore` follows `open` or `prepare`: what the snapshot has need not be made of input.
    """

    def __init__(self, host: Any, plan: Plan, task: TaskId, log: Any, clock: Callable[[], float], seed: int):
        self.component = task.component
        self.task = task.task
        self.tasks = plan.component(task.component).tasks
        self.log = log
        self.incarnation: int = host.incarnation
        self.resumes = False
        self.rng = np.random.default_rng((seed, xxhash.xxh32_intdigest(task.component.encode()), task.task))
        self._clock = clock
        self._host = host  # a `topology.core.tasks.task.TaskHost`
        self._sizes = {part.name: part.tasks for part in plan.components}

    def rebind(self, host: Any, fresh: "Context") -> None:
        """Forward to the host of a later incarnation, which took the component over; its own context is `fresh`."""
        self._host = host
        self.incarnation, self.log, self.rng = fresh.incarnation, fresh.log, fresh.rng

    def size_of(self, component: str) -> int:
        """How many tasks a component of the topology has; TopologyError if it has no such component."""
        if component not in self._sizes:
            raise TopologyError(f"no component is called {component!r}; there is {', '.join(self._sizes)}")
        return self._sizes[component]

    def emit(self, stream: str, payload: Any, *, to: int | None = None, key: int | None = None) -> None:
        """Send a payload along every edge of `stream` that leaves this component.

        `to` names the receiving task on direct edges, `key` the value that a fields grouping hashes. A payload is a
        NamedTuple of arrays and scalars (or of such); the receiver sees read-only views, perhaps of the same memory,
        so do not write to an array after emitting it. A stream without edges is counted and dropped. Not before the
        run has begun (so not in `open`, `prepare` or `restore`), and on forward edges not after this task's end.
        """
        self._host.emit(stream, payload, to, key)

    def acknowledge(self, batch: int) -> None:
        """Report batch `batch` of the clock spout as done.

        Only for tasks of the plan's acknowledging components; once each of them has acknowledged, exactly once, the
        credit returns to the spout. A run in which a batch stays unacknowledged fails.
        """
        self._host.acknowledge(batch)

    def count(self, name: str, amount: int = 1) -> None:
        """Add to a counter of this task (in, out and busy time are counted by the executor itself)."""
        self._host.counters[name] += int(amount)

    def record_latency(self, seconds: np.ndarray | float, counts: np.ndarray | int = 1) -> None:
        """Add to this task's latency histogram: each of `seconds`, `counts` times."""
        self._host.latency.record(seconds, counts)

    def now(self) -> float:
        """Seconds since the epoch by the topology's clock (a fake one in tests)."""
        return self._clock()

    def wait(self, seconds: float, came: Wakeup | None = None) -> None:
        """Wait for input, so long, or until `came` is set; it does not count as time spent working."""
        self._host.wait(seconds, came)


class Tick(NamedTuple):
    """What the clock spout has just emitted, for the spouts that follow it.

    `number` of the batch, and the first and last seq in it (`last_seq < first_seq` if it is empty). Where `has_changes`
    is False, the following spouts have nothing for the batch and emit nothing: receivers learn that from the clock.
    """

    number: int
    first_seq: int
    last_seq: int
    has_changes: bool = True


class Component:
    """What spouts and bolts have in common: figures, snapshots, and closing."""

    def report(self) -> dict[str, Any]:
        """Figures for the end of the run, JSON-ready."""
        return {}

    def state(self) -> dict[str, np.ndarray]:
        """Snapshot of what cannot be derived, at a quiet boundary: all batches are taken and their updates emitted.

        Arrays that `topology.core.frames` can encode, under any names. They must be copies of arrays that this task
        keeps writing to. A component whose snapshot is large overrides `snapshot` instead.
        """
        return {}

    def snapshot(self, stored: Mapping[str, int]) -> Mapping[str, Fragment]:
        """Copy, while the stream stops, what later batches write to: fragments by name, by default `state` as one. The
        arrays are made of that later, on another thread.

        Parameters
        ----------
        stored : mapping of str to int
            Versions of fragments that files have already: for those `arrays` is not called.
        """
        state = self.state()
        return {"": Fragment(lambda: state)}

    def restore(self, saved: Saved) -> None:
        """Load the state as of batch `saved.number`.

        Called at most once, after `open` or `prepare` and before any batch, with the snapshots of all tasks of all
        components: subscriptions may be placed anew. The arrays are read-only. Nothing can be emitted yet.

        Raises
        ------
        CheckpointError
            If this component cannot resume from there: says why.
        """

    def rewind(self, saved: Saved) -> bool:
        """Go back to a boundary in place, as `restore` would in a new component; False if a new one is needed.

        For components that are expensive to rebuild. What was emitted since is discarded.
        """
        return False

    def cut(self) -> Sequence[Callable[[], Output]]:
        """Close the open files before a checkpoint copies `state`: one callable for each file that it is to cover.

        Another thread calls them while the stream continues, and what they raise ends the run. From now on `state` must
        contain all updates that are in no such file.
        """
        return ()

    def outputs(self) -> Sequence[Output]:
        """Files completed since the last call, forced to disk under temporary names: the driver renames them."""
        return ()

    def close(self) -> None:
        """Release resources; called once, also after a failure."""


class Spout(Component, ABC):
    """A source. One spout of a topology is its clock: it cuts the stream into numbered batches.

    Every other spout follows the clock: it gets the tick of each batch and emits what belongs to the same span (an
    empty payload where there is nothing, for receivers that align on batch numbers, unless `Tick.has_changes` is
    False).
    """

    #: Whether `next_batch` waits for future input: where tasks share a process, all others run first.
    patient = False

    @abstractmethod
    def open(self, context: Context) -> None:
        """Acquire resources; called once, where the task runs."""

    @abstractmethod
    def next_batch(self, number: int, tick: Tick | None) -> Tick | None:
        """Emit batch `number` (0, 1, 2, ...) and return its tick.

        The clock spout gets `tick=None` and returns None when the stream has ended, without emitting. A following
        spout gets the clock's tick and returns it. A live source without input returns an empty batch within
        seconds: a task that does not return for long counts as stalled.
        """

    def ready(self) -> bool:
        """Whether the clock's next batch is available at once, so that parcels of the last one may be sent with it.

        False is always safe: parcels are then sent without waiting. Called before each batch, so it must be cheap.
        """
        return not self.patient


class Bolt(Component, ABC):
    """A worker on streams."""

    @abstractmethod
    def prepare(self, context: Context) -> None:
        """Acquire resources; called once, where the task runs, before any delivery."""

    @abstractmethod
    def execute(self, delivery: Delivery) -> None:
        """Work on one payload, emitting any number of others through the context. Must not block on other tasks."""

    def finish(self) -> None:
        """All forward inputs have ended. Emit what is left; more may follow from `execute` while not `idle`.

        A bolt with feedback inputs only is finished when all others have ended and nothing is in flight.
        """

    def idle(self) -> bool:
        """Whether nothing is awaited over feedback edges; the task's end is passed on once this is true."""
        return True

    def quiet(self) -> bool:
        """Whether nothing is awaited, before `finish` was called: all updates of what was taken are emitted.

        Called at a boundary behind which nothing was published, once nothing is in flight.
        """
        return True
