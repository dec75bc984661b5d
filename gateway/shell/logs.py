"""The log of a command that runs for long: a line an event on standard error, with time, level, name and values.

Whoever has something to say calls `topology.core.executors.logs.driver_log`. An event with the value `sampled` is one
of many of its sort: of these one passes a minute, which says in `left_out` how many did not since the one before.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import structlog

from gateway.shell.terminal import as_json, shown
from topology.core.executors.logs import driver_log
from topology.core.metrics import RunSnapshot

LogFormat = Literal["text", "json"]
#: Seconds in which one event of a sort passes.
SAMPLED_S = 60.0
#: Seconds between two looks at figures.
_LOOK_S = 1.0
#: Sorts that are told apart; of further ones all pass.
_MOST_SORTS = 1_000
_FIRST = ("time", "level", "event")


@contextmanager
def logging_as(form: LogFormat) -> Iterator[None]:
    """Write the log in a form while the block lasts: `text` has values as NAME=VALUE (logfmt), `json` an object."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            Sampling(),
            structlog.processors.TimeStamper("iso", key="time"),
            structlog.processors.format_exc_info,
            _as_text if form == "text" else _as_object,
        ],
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),  # the one of now: tests have another each
    )
    try:
        yield
    finally:
        structlog.reset_defaults()


class Sampling:
    """Processor that drops most events of those that are `sampled`; for any thread.

    Parameters
    ----------
    now : callable
        Seconds of a clock that is never set.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic):
        self._now = now
        self._lock = threading.Lock()
        self._sorts: dict[tuple[str, Any], tuple[float, int]] = {}  # when the last one passed, and how many have not

    def __call__(self, logger: Any, method: str, values: Any) -> Any:
        """Drop the event, or say how many were dropped before it."""
        if (sort := values.pop("sampled", None)) is None:
            return values
        key, now_s = (values["event"], sort), self._now()
        with self._lock:
            passed_s, left_out = self._sorts.get(key, (now_s - SAMPLED_S, 0))
            if now_s < passed_s + SAMPLED_S:
                self._sorts[key] = passed_s, left_out + 1
                raise structlog.DropEvent
            if key in self._sorts or len(self._sorts) < _MOST_SORTS:
                self._sorts[key] = now_s, 0
        return values | ({"left_out": left_out} if left_out else {})


class Noted:
    """Logs what the snapshots and figures of a stream show: checkpoints, refused rows, slow clients.

    Parameters
    ----------
    figures : callable, optional
        Name of an event -> how many there were so far, by sort, and what to say of each sort.
    """

    def __init__(self, figures: Callable[[], dict[str, dict[str, tuple[int, str]]]] = dict):
        self._figures = figures
        self._before: dict[tuple[str, str], tuple[int, float]] = {}  # the count that was logged last, and when
        self._committed = 0
        self._looked_s = 0.0

    def note(self, snapshot: RunSnapshot) -> None:
        """Log the checkpoints since the last call."""
        saved = snapshot.checkpoints
        if saved is not None and saved.committed > self._committed:
            self._committed = saved.committed
            figures = {"number": saved.committed, "size_bytes": saved.size_bytes, "write_s": round(saved.write_s, 3)}
            driver_log().info("checkpoint", **figures, batches=snapshot.acknowledged)

    def look(self, now_s: float) -> None:
        """Log what was counted since the last line of its sort, which is a minute ago at least; looks once a second.

        `now_s` is of a monotonic clock.
        """
        if now_s < self._looked_s + _LOOK_S:
            return
        self._looked_s = now_s
        for event, sorts in self._figures().items():
            for sort, (count, what) in sorts.items():
                before, logged_s = self._before.get((event, sort), (0, now_s - SAMPLED_S))
                if count > before and now_s >= logged_s + SAMPLED_S:
                    self._before[event, sort] = count, now_s
                    last = {"last": what} if what else {}
                    driver_log().warning(event, reason=sort, count=count - before, in_all=count, **last)


def log_kind(name: str, is_ready: bool) -> None:
    """Log that a kind is ready, or begins to be prepared: its first subscriptions are answered after it."""
    driver_log().info("prepared" if is_ready else "preparing", kernels=name)


def _as_text(logger: Any, method: str, values: Any) -> str:
    plain = {
        name: as_json(value) if isinstance(value, dict | list | tuple) else value for name, value in values.items()
    }
    return shown(_LOGFMT(logger, method, plain))


def _as_object(logger: Any, method: str, values: Any) -> str:
    return as_json({**{name: values[name] for name in _FIRST if name in values}, **values})


_LOGFMT = structlog.processors.LogfmtRenderer(key_order=_FIRST, bool_as_flag=False)
