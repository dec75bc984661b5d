"""Log events of tasks: from their worker processes to the log of the driver, and to a file of the node.

The task's logger buffers events; the driver fetches them with each status and writes them to its own log with the name
of the task. With Ray each event is also a line of JSON in the node's log folder, where Ray's dashboard and `ray logs`
find it, also after the driver has died.
"""

import json
import os
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, NamedTuple

import structlog

from topology.core.failures import TaskFailure

#: Events that a task buffers between two status calls of the driver; it counts and drops further ones.
_LIMIT = 1000
#: Bytes at which a worker's file is rotated; one older file remains.
_FILE_BYTES = 8_000_000
_LEVELS = ("debug", "info", "warning", "error", "critical")


class LogEvent(NamedTuple):
    """One line of a task's log for the driver."""

    level: str
    event: str
    values: dict[str, Any]


class LogBuffer:
    """Buffers the log events of a task until the driver fetches them; `logger` is the task's structlog logger.

    Parameters
    ----------
    also : callable, optional
        Called with each event at once.
    """

    def __init__(self, also: Callable[[LogEvent], None] | None = None):
        self._also = also
        self._events: list[LogEvent] = []
        self._dropped = 0
        steps = [structlog.processors.add_log_level, structlog.processors.format_exc_info, self._keep]
        self.logger = structlog.wrap_logger(None, processors=steps, wrapper_class=structlog.stdlib.BoundLogger)

    def fetch(self) -> list[LogEvent]:
        """The events since the last call; clears the buffer."""
        events, self._events = self._events, []
        if self._dropped:
            events.append(LogEvent("warning", "log_events_dropped", {"count": self._dropped}))
            self._dropped = 0
        return events

    def _keep(self, logger: Any, method: str, values: Any) -> Any:
        plain = {
            name: value if isinstance(value, (str, int, float, bool, type(None))) else repr(value)
            for name, value in values.items()
        }
        event = LogEvent(str(plain.pop("level", method)), str(plain.pop("event", "")), plain)
        if self._also is not None:
            self._also(event)
        if len(self._events) < _LIMIT:
            self._events.append(event)
        else:
            self._dropped += 1
        raise structlog.DropEvent


class NodeLog:
    """A file of a worker in the log folder of its node: a line of JSON for each event, with the time and the task.

    A full file is renamed to `.1`, which replaces the older one. A line that cannot be written is dropped: a full disk
    must not end a run.

    Parameters
    ----------
    label : str
        Names of the worker's tasks.
    now : callable
        Returns seconds since the epoch.
    """

    def __init__(self, folder: Path, label: str, now: Callable[[], float]):
        self._now = now
        name = "".join(letter if letter.isalnum() else "_" for letter in label)[:80]
        self.path = folder / f"skyray-{name}-{os.getpid()}.log"
        self._file: IO[str] | None = None

    def write(self, task: str, event: LogEvent) -> None:
        """Append a line."""
        time = datetime.fromtimestamp(self._now(), UTC).isoformat()
        row = {"time": time, "level": event.level, "event": event.event, "task": task}
        try:
            if self._file is None:
                self._file = self.path.open("a", encoding="utf-8", errors="replace")
            self._file.write(json.dumps(row | event.values) + "\n")
            self._file.flush()
            if self._file.tell() > _FILE_BYTES:
                self._file.close()
                self._file = None
                os.replace(self.path, f"{self.path}.1")
        except (OSError, ValueError):
            self._file = None


class DirectLog(LogBuffer):
    """Writes the log events of a task to the log of this process at once; for tasks in the driver's process."""

    def __init__(self, task: str):
        super().__init__()
        self.logger = driver_log().bind(task=task)


def driver_log() -> Any:
    """The structlog logger of this process if the program has configured structlog; else lines on standard error."""
    if structlog.is_configured():
        return structlog.get_logger("topology")
    return structlog.wrap_logger(structlog.PrintLogger(sys.stderr))


def show_closed(log: Any, task: str, failure: TaskFailure | None, events: Sequence[LogEvent]) -> None:
    """Write the last log events of a task of a failed run, and the error of its `close`, if any."""
    show(log, task, events)
    if failure is not None and " failed in close: " in failure.summary:
        log.warning("close_failed", task=task, why=failure.summary)


def show(log: Any, task: str, events: Sequence[LogEvent]) -> None:
    """Write the log events of a task to a log of this process, each with the name of the task."""
    for event in events:
        level = event.level if event.level in _LEVELS else "info"
        getattr(log, level)(event.event, **{**event.values, "task": task})
