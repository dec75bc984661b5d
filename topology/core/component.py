"""What a topology is made of: spouts bring batches in, bolts work on them, a context connects them to the rest.

Spouts and bolts are plain classes that know nothing of Ray. A component is built unprepared, pickled once per task, and
prepared where it runs; the same object runs in one process (`topology.core.local`) or in a Ray actor
(`topology.core.runner`). Clock, random numbers, logger and counters come from the context: nothing else may be asked
for the time.

What the executors promise, and all a component may rely on:

- What one task emits to another task arrives in the order of emission. Nothing is promised between two senders.
- `execute` is never entered twice at once for one task.
- Every task of a component gets the same options and knows its own `task` number and every component's size.
- When all forward inputs of a task have ended, its `finish` is called once, and its own end is told downstream as
  soon as `idle` says so; feedback edges may still deliver until then, and after it.

Read on in `topology.core.builder` (how components are wired) and `topology.wiring` (the topology of this product).
"""

from abc import ABC, abstractmethod
from typing import Any, NamedTuple, Protocol

import numpy as np


class Delivery(NamedTuple):
    """One payload that arrived: on which stream, from which component and task of it."""

    stream: str
    source: str
    task: int
    payload: Any


class Context(Protocol):
    """A task's only door to the outside; made by the executor, handed over in `open` / `prepare`."""

    component: str
    task: int
    tasks: int
    log: Any
    rng: np.random.Generator

    def size_of(self, component: str) -> int:
        """How many tasks a component of the topology has."""
        ...

    def emit(self, stream: str, payload: Any, *, to: int | None = None, key: int | None = None) -> None:
        """Send a payload along every edge of `stream` that leaves this component.

        `to` names the receiving task on direct edges, `key` the value that a fields grouping hashes. A payload is a
        NamedTuple of arrays and scalars (or of such); the receiver sees read-only views, perhaps of the same memory,
        so do not write to an array after emitting it. A stream without edges is counted and dropped. Not before the
        run has begun (so not in `open` or `prepare`), and on forward edges not after this task's end.
        """
        ...

    def acknowledge(self, batch: int) -> None:
        """Say that batch `batch` of the clock spout is wholly done.

        Only for tasks of the plan's acknowledging component; once each of them has said so, exactly once, the credit
        goes back to the spout. A run in which a batch stays unacknowledged fails.
        """
        ...

    def count(self, name: str, amount: int = 1) -> None:
        """Add to a counter of this task (in, out and busy time are counted by the executor itself)."""
        ...

    def record_latency(self, seconds: np.ndarray | float, counts: np.ndarray | int = 1) -> None:
        """Add to this task's latency histogram: each of `seconds`, `counts` times."""
        ...

    def now(self) -> float:
        """Seconds since the epoch by the topology's clock (a fake one in tests)."""
        ...


class Tick(NamedTuple):
    """What the clock spout has just emitted, for the spouts that follow it.

    `number` of the batch, and the first and last seq in it (`last_seq < first_seq` if it is empty).
    """

    number: int
    first_seq: int
    last_seq: int


class Spout(ABC):
    """A source. One spout of a topology is its clock: it cuts the stream into numbered batches.

    Every other spout follows the clock: after each batch of the clock it is told the tick and emits what belongs
    to the same span (perhaps nothing, but receivers that align on batch numbers want a marker).
    """

    @abstractmethod
    def open(self, context: Context) -> None:
        """Acquire resources; called once, where the task runs."""

    @abstractmethod
    def next_batch(self, number: int, tick: Tick | None) -> Tick | None:
        """Emit batch `number` (0, 1, 2, ...) and return its tick.

        The clock spout gets `tick=None` and returns None when the stream has ended, without emitting. A following
        spout gets the clock's tick and returns it. A live source with nothing to tell returns an empty batch within
        seconds: a task that does not come back for long is taken for stalled.
        """

    def report(self) -> dict[str, Any]:
        """Figures for the end of the run, JSON-ready."""
        return {}

    def close(self) -> None:  # noqa: B027 - optional
        """Release resources; called once, also after a failure."""


class Bolt(ABC):
    """A worker on streams."""

    @abstractmethod
    def prepare(self, context: Context) -> None:
        """Acquire resources; called once, where the task runs, before any delivery."""

    @abstractmethod
    def execute(self, delivery: Delivery) -> None:
        """Work on one payload, emitting any number of others through the context. Must not block on other tasks."""

    def finish(self) -> None:  # noqa: B027 - optional
        """All forward inputs have ended. Emit what is left; more may follow from `execute` while not `idle`.

        A bolt with feedback inputs only is finished when all others have ended and nothing is on its way.
        """

    def idle(self) -> bool:
        """Whether nothing is awaited over feedback edges; the task's end is passed on once this is true."""
        return True

    def report(self) -> dict[str, Any]:
        """Figures for the end of the run, JSON-ready."""
        return {}

    def snapshot(self) -> dict[str, np.ndarray]:
        """State as named arrays; nothing else needs to be saved to continue from here."""
        return {}

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        """Take over the state that `snapshot` of an equal task returned; called after `prepare`."""
        if arrays:
            raise NotImplementedError(f"{type(self).__name__} has no state to restore, but was given {sorted(arrays)}")

    def close(self) -> None:  # noqa: B027 - optional
        """Release resources; called once, also after a failure."""
