"""The context of a task: forwards what its component calls to the task's host (`topology.core.tasks.task.TaskHost`),
which makes it. `topology.core.api.component.Context` has the contract.
"""

import threading
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import xxhash

from matching.errors import TopologyError
from topology.core.api.plan import Plan, TaskId
from topology.core.metrics import LatencyHistogram


class Host(Protocol):
    """The part of a `TaskHost` that a context uses."""

    incarnation: int
    counters: dict[str, int]
    latency: LatencyHistogram

    def emit(self, stream: str, payload: Any, to: int | None, key: int | None) -> None: ...

    def acknowledge(self, batch: int) -> None: ...

    def wait(self, seconds: float, came: threading.Event | None) -> None: ...


class TaskContext:
    """The `topology.core.api.component.Context` of one task."""

    def __init__(self, host: Host, plan: Plan, task: TaskId, log: Any, clock: Callable[[], float], seed: int):
        self.component = task.component
        self.task = task.task
        self.tasks = plan.component(task.component).tasks
        self.log = log
        self.incarnation = host.incarnation
        self.resumes = False
        self.rng = np.random.default_rng((seed, xxhash.xxh32_intdigest(task.component.encode()), task.task))
        self._clock = clock
        self._host = host
        self._sizes = {part.name: part.tasks for part in plan.components}

    def rebind(self, host: Host, fresh: "TaskContext") -> None:
        """Forward to the host of a later incarnation, which took the component over; its own context is `fresh`."""
        self._host = host
        self.incarnation, self.log, self.rng = fresh.incarnation, fresh.log, fresh.rng

    def size_of(self, component: str) -> int:
        """How many tasks a component of the topology has; TopologyError if it has no such component."""
        if component not in self._sizes:
            raise TopologyError(f"no component is called {component!r}; there is {', '.join(self._sizes)}")
        return self._sizes[component]

    def emit(self, stream: str, payload: Any, *, to: int | None = None, key: int | None = None) -> None:
        """See `topology.core.api.component.Context.emit`."""
        self._host.emit(stream, payload, to, key)

    def acknowledge(self, batch: int) -> None:
        """See `topology.core.api.component.Context.acknowledge`."""
        self._host.acknowledge(batch)

    def count(self, name: str, amount: int = 1) -> None:
        """See `topology.core.api.component.Context.count`."""
        counters = self._host.counters
        counters[name] = counters.get(name, 0) + int(amount)

    def record_latency(self, seconds: np.ndarray | float, counts: np.ndarray | int = 1) -> None:
        """See `topology.core.api.component.Context.record_latency`."""
        self._host.latency.record(seconds, counts)

    def now(self) -> float:
        """See `topology.core.api.component.Context.now`."""
        return self._clock()

    def wait(self, seconds: float, came: threading.Event | None = None) -> None:
        """See `topology.core.api.component.Context.wait`."""
        self._host.wait(seconds, came)
