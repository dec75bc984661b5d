"""Measures the constants of `skyray plan`: what a message costs each task, by subscriptions and query tasks.

Topologies run in one process, and what counts is processor time; packing is booked to the tasks that would do it
(`gateway.load.booking`). Each load runs with M and with 5M messages, and the difference is taken, so that subscribing
and filling the window do not count. The model they go into is `gateway.load.planning`, the file to read next.
"""

import os
import platform
import time
from collections import Counter
from collections.abc import Callable
from datetime import date
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from gateway.load.booking import Weighed
from gateway.load.loadtest import load_plan
from gateway.load.pace import Pace
from gateway.load.planning import BASES, COMPONENTS, Constants, Work
from matching.kinds import KINDS
from topology.core.executors.local import run_local

#: Most subscriptions measured of a kind that the demo has no fewer of; and the other size, as a share of it.
_SUBSCRIPTIONS, _SMALLER = 40_000, 4
#: Query tasks of the two measured topologies: far enough apart that what grows with them is seen.
TASKS = (1, 16)
#: Times the messages of the window that are timed once it is full.
_TIMED = 4
_BATCH = 500
#: Streams of which a message has no part: subscribing, and the end.
_APART = ("changes", "finish", "results")
_ALL_AT_ONCE = 1e9


def sizes_of(kind: str, most: int = _SUBSCRIPTIONS) -> tuple[int, int]:
    """Two numbers of subscriptions of a kind to measure with: fewer of those kinds that are expensive."""
    large = max(_SMALLER, most // KINDS.named(kind).recipe.share)
    return large // _SMALLER, large


def measure(
    kinds: tuple[str, ...],
    messages: int = 5_000,
    most: int = _SUBSCRIPTIONS,
    rounds: int = 2,
    on_progress: Callable[[str], None] = lambda what: None,
) -> dict[str, Any]:
    """Constants of some kinds on this machine, JSON-ready: `machine`, `date`, and `kinds` as `Constants` has them.

    Parameters
    ----------
    kinds : tuple of str
    messages : int
        M: the window has as many.
    most : int
        As in `sizes_of`.
    rounds : int
        Of each run; the least time counts.
    """
    measured = {}
    worker_bytes = _resident_bytes()  # before anything is loaded
    for kind in kinds:
        points = []
        for subscriptions, tasks in product(sizes_of(kind, most), TASKS):
            on_progress(f"{kind}: {subscriptions:,} subscriptions, {tasks} query tasks")
            points.append(steady_work(kind, subscriptions, tasks, messages, rounds))
        measured[kind] = fitted(points, worker_bytes)._asdict()
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "date": date.today().isoformat(),
        "load_average": os.getloadavg()[0],
        "messages": messages,
        "batch": _BATCH,
        "rounds": rounds,
        "kinds": measured,
    }


def steady_work(kind: str, subscriptions: int, tasks: int, messages: int, rounds: int = 1) -> Work:
    """Work for a message with `subscriptions` subscriptions and `tasks` query tasks, once the window is full."""
    _run(kind, subscriptions, tasks, messages, messages)  # what is first of its size is slower
    short = [_run(kind, subscriptions, tasks, messages, messages) for _ in range(rounds)]
    long = [_run(kind, subscriptions, tasks, messages, (1 + _TIMED) * messages) for _ in range(rounds)]
    busy_s = {}
    for name in COMPONENTS:
        least = [min(run.busy_s[name] for run in runs) for runs in (short, long)]
        busy_s[name] = max(0.0, least[1] - least[0]) / (_TIMED * messages)
    bytes_moved = (long[0].bytes_moved - short[0].bytes_moved) / (_TIMED * messages)
    return long[0]._replace(busy_s=busy_s, bytes_moved=bytes_moved)


def _run(kind: str, subscriptions: int, tasks: int, window: int, messages: int) -> Work:
    """One run from the first subscription to the end: totals, not per message; the busiest task of each component."""
    book: Counter[tuple[str, int]] = Counter()
    plan = load_plan(Pace(_ALL_AT_ONCE, messages, _BATCH), {kind: subscriptions}, f"count:{window}", tasks, "hashing")
    report = run_local(plan, through=partial(Weighed, book), work_ns=time.thread_time_ns)
    busy_s = {}
    for name in COMPONENTS:
        addresses = plan.addresses_of(name)
        each = [
            sum(seconds for stream, seconds in task.busy_s.items() if stream not in _APART)
            + 1e-9 * (book["unpacking", at] - book["lent", at])
            for task, at in zip(report.components[name].tasks, addresses, strict=True)
        ]
        # the mean: with few subscriptions a task may be the busiest by chance
        busy_s[name] = sum(each) / len(each)
    query, tuples, delivery = (
        [task.figures for task in report.components[name].tasks] for name in ("query", "tuples", "delivery")
    )
    window_bytes = sum(task["log_bytes"] + sum(task["window_bytes"].values()) for task in tuples)
    return Work(
        subscriptions,
        tasks,
        busy_s,
        float(sum(count for (what, _), count in book.items() if what == "bytes")),
        sum(task["operator_bytes"][kind] for task in query) / subscriptions,
        window_bytes / sum(task["messages_held"] for task in tuples),
        delivery[0]["digest"],
    )


def fitted(points: list[Work], worker_bytes: int) -> Constants:
    """The constants by which the model comes nearest to measured points: non-negative least squares."""
    busy_us = {}
    for name, base in BASES.items():
        values = np.array([1e6 * point.busy_s[name] for point in points])
        busy_us[name] = _non_negative([base(point.subscriptions, point.query_tasks) for point in points], values)
    moved = np.array([point.bytes_moved for point in points])
    base = [(1.0, float(point.query_tasks), float(point.subscriptions)) for point in points]
    largest = max(points, key=lambda point: point.subscriptions)
    return Constants(
        busy_us, _non_negative(base, moved), largest.bytes_each, largest.window_bytes_each, float(worker_bytes),
        largest.subscriptions,
    )  # fmt: skip


def _non_negative(base: list[tuple[float, ...]], values: np.ndarray) -> list[float]:
    """Non-negative least squares: the best of all subsets of columns whose solution has no negative factor."""
    matrix = np.array(base, np.float64)
    scale = np.maximum(np.abs(matrix).max(axis=0), 1e-300)
    columns, best, least = matrix.shape[1], np.zeros(matrix.shape[1]), float(values @ values)
    for chosen in range(1, 1 << columns):
        mine = [column for column in range(columns) if chosen >> column & 1]
        factors = np.linalg.lstsq(matrix[:, mine] / scale[mine], values, rcond=None)[0]
        error = float(np.square(matrix[:, mine] / scale[mine] @ factors - values).sum())
        if factors.min() >= 0 and error < least * (1 - 1e-12):
            best, least = np.zeros(columns), error
            best[mine] = factors / scale[mine]
    return best.tolist()


def _resident_bytes() -> int:
    """Memory of this process, in bytes, as Linux reports it."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
