"""Errors of a run: which task failed and why, which workers are lost, or which tasks wait for each other.

A failure is text, so that it can cross processes.
"""

from collections.abc import Sequence
from typing import NamedTuple

from matching.errors import TopologyError
from topology.core.api.plan import Plan
from topology.core.metrics import TaskStatus


class TaskFailure(NamedTuple):
    """Why a task has failed.

    `summary` is one line: task, method, cause; `trace` the traceback as text; `consequence` says that the cause is most
    likely another task's failure.
    """

    address: int
    summary: str
    trace: str
    exit_code: int
    consequence: bool = False

    def error(self) -> "ComponentFailed":
        """As an exception; its exit code is the cause's own if that is one of this project's errors."""
        error = ComponentFailed(f"{self.summary}\n{self.trace.rstrip()}" if self.trace else self.summary)
        error.exit_code = self.exit_code
        return error


class ComponentFailed(TopologyError):
    """A component has raised. `last_batch`: the last one that had been published by then, -1 if that is not known."""

    last_batch = -1


class TaskFailed(Exception):
    """Raised by a host's methods; `failure` says what happened, `__cause__` is the component's exception."""

    def __init__(self, failure: TaskFailure):
        super().__init__(failure.summary)
        self.failure = failure


class WorkersLost(TopologyError):
    """Workers have died, or miss heartbeats. `cause` is the same text each time the same thing happens.

    `hopeless`: they could not even be created, so replacing them is of no use.
    """

    def __init__(self, workers: set[int], cause: str, message: str, hopeless: bool = False):
        super().__init__(message)
        self.workers = workers
        self.cause = cause
        self.hopeless = hopeless


def never_acknowledged(plan: Plan, clock: TaskStatus) -> TopologyError:
    """The error for a run that has ended while batches still lack an acknowledgement."""
    return TopologyError(
        f"topology {plan.name!r} has ended, but no task acknowledged {clock.waits_for}: "
        "call Context.acknowledge once for each batch, the last ones included"
    )


def deadlocked(plan: Plan, statuses: Sequence[TaskStatus]) -> TopologyError:
    """The error for a topology in which nothing is in flight and not every task has ended."""
    lines = [f"- {plan.tasks[status.address]} {status.waits_for}" for status in statuses if not status.ended]
    return TopologyError(
        f"topology {plan.name!r} is deadlocked: nothing is in flight, and these tasks have not ended "
        "(acknowledge every batch; let idle() say True once nothing is awaited):\n" + "\n".join(lines)
    )


def not_quiet(plan: Plan, number: int, statuses: Sequence[TaskStatus]) -> TopologyError:
    """The error for a pause at which nothing is in flight, but tasks await something."""
    lines = [f"- {plan.tasks[status.address]} {status.waits_for}" for status in statuses if status.waits_for]
    return TopologyError(
        f"topology {plan.name!r} cannot be paused behind batch {number}: nothing is in flight, but "
        "(acknowledge every batch; let quiet() say True once nothing is awaited):\n" + "\n".join(lines)
    )
