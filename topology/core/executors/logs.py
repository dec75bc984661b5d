"""Log events of tasks: from their worker processes to the log of the driver.

The task's logger keeps events; the driver fetches them with each status and writes them to its own log, where
they say which task they come from. Read on in `topology.core.executors.ray`.
"""

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import structlog

from topology.core.failures import TaskFailure

#: Events a task keeps between two status calls of the driver; more are counted, not kept.
_LIMIT = 1000
_LEVELS = ("debug", "info", "warning", "error", "critical")


class LogEvent(NamedTuple):
    """One line of a task's log for the driver."""

    level: str
    event: str
    values: dict[str, Any]


class LogBuffer:
    """Keeps what a task logs until the driver fetches it; `logger` is the task's structlog logger."""

    def __init__(self):
        self._events: list[LogEvent] = []
        self._dropped = 0
        steps = [structlog.processors.add_log_level, structlog.processors.format_exc_info, self._keep]
        self.logger = structlog.wrap_logger(None, processors=steps, wrapper_class=structlog.stdlib.BoundLogger)

    def fetch(self) -> list[LogEvent]:
        """What was logged since the last call."""
        events, self._events = self._events, []
        if self._dropped:
            events.append(LogEvent("warning", "log_events_dropped", {"count": self._dropped}))
            self._dropped = 0
        return events

    def _keep(self, logger: Any, method: str, values: Any) -> Any:
        if len(self._events) < _LIMIT:
            plain = {
                name: value if isinstance(value, (str, int, float, bool, type(None))) else repr(value)
                for name, value in values.items()
            }
            self._events.append(LogEvent(str(plain.pop("level", method)), str(plain.pop("event", "")), plain))
        else:
            self._dropped += 1
        raise structlog.DropEvent


class DirectLog(LogBuffer):
    """Writes what a task logs to the log of this process at once."""

    def __init__(self, task: str):
        super().__init__()
        self.logger = driver_log().bind(task=task)


def driver_log() -> Any:
    """The process's log if the program has set one up; else lines on standard error."""
    if structlog.is_configured():
        return structlog.get_logger("topology")
    return structlog.wrap_logger(structlog.PrintLogger(sys.stderr))


def show_closed(log: Any, task: str, failure: TaskFailure | None, events: Sequence[LogEvent]) -> None:
    """Write what a task has logged, and why it could not close, where the run has failed already."""
    show(log, task, events)
    if failure is not None and " failed in close: " in failure.summary:
        log.warning("close_failed", task=task, why=failure.summary)


def show(log: Any, task: str, events: Sequence[LogEvent]) -> None:
    """Write what a task has logged to a log of this process, naming the task."""
    for event in events:
        level = event.level if event.level in _LEVELS else "info"
        getattr(log, level)(event.event, **{**event.values, "task": task})
