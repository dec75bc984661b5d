"""Measures the costs of a load for `skyray plan`: the microseconds that a message takes the task of each component.

A topology with one query task runs in this process, and processor time counts; unpacking is booked to the tasks that
would do it between processes (`Weighed`). It runs with M and with 5M messages, and the difference is
taken, so that subscribing and filling the window do not count. `topology.sizing` sizes a topology by the outcome.
"""

import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from time import thread_time_ns
from typing import Any, NamedTuple

from gateway.load.loadtest import load_plan
from gateway.load.pace import Pace
from matching.errors import ConfigError
from topology.core.executors.local import run_local
from topology.core.payload import pack, unpack
from topology.core.tasks.links import Parcel

#: Most subscriptions of a measurement: each takes some 20 us to make, three times, and some 100 bytes to 1 KB.
MOST_SUBSCRIPTIONS = 4_000_000
#: Times the messages of the window that are timed once it is full.
_TIMED = 4
_BATCH = 500
#: Streams without a share in a message: subscribing, and the end.
_APART = ("changes", "finish", "results")
_ALL_AT_ONCE = 1e9
#: Components with a share in a message.
_COMPONENTS = ("messages", "distribution", "query", "tuples", "aggregation", "delivery")


class Weighed(NamedTuple):
    """Packs and unpacks each payload that would go to another task, discards the copy, and books the time to the task
    that would do the work, as in one process no parcel is packed; the `watch` of `run_local`.

    book : Counter    (what, task address) -> sum. `packing`: nanoseconds of the sender; `unpacking`: nanoseconds of the
                      receiver; `bytes`: of the receiver; `lent`: nanoseconds of unpacking that ran in the sender's
                      thread, and which a caller subtracts from the sender's busy time
    """

    book: Counter[tuple[str, int]]

    def __call__(self, parcels: Sequence[Parcel]) -> None:
        carried = [parcel for parcel in parcels if parcel.edge >= 0 and parcel.address != parcel.sender]
        if not carried:
            return
        sender, begun = carried[0].sender, thread_time_ns()
        pieces = pack(carried[0].payload, 1 << 62)
        packed = thread_time_ns()
        unpack(pieces)
        unpacking = thread_time_ns() - packed
        self.book["packing", sender] += packed - begun
        # unpacking ran in the sender's thread here, though it is the receivers' work
        self.book["lent", sender] += unpacking
        for parcel in carried:
            self.book["unpacking", parcel.address] += unpacking
            self.book["bytes", parcel.address] += sum(map(len, pieces))


def measure(
    kind: str, subscriptions: int, window: int = 5_000, on_progress: Callable[[str], None] = lambda what: None
) -> dict[str, Any]:
    """Measure the costs of generated subscriptions of one kind on this machine, as `topology.sizing` takes them.

    Parameters
    ----------
    window : int
        M: messages of the window.

    Returns
    -------
    dict
        `us_per_message` by component, beside `query` the `unpacking` that each query task does; `memory_bytes` (this
        process, its subscriptions and its window); `subscriptions`; `load_average` of the machine before.

    Raises
    ------
    ConfigError
        For numbers that are not positive, more than `MOST_SUBSCRIPTIONS`, and a kind that does not exist.
    """
    if not (0 < subscriptions <= MOST_SUBSCRIPTIONS and window > 0):
        raise ConfigError(
            f"--subscriptions, --window: give positive numbers, and at most {MOST_SUBSCRIPTIONS:,} subscriptions, "
            "which are all made here"
        )
    load_average, resident_bytes = os.getloadavg()[0], _resident_bytes()
    runs = []
    # the first run of a process is slower, and does not count; of the next two each part counts at its fastest
    for messages in (window, window, window, (1 + _TIMED) * window):
        on_progress(f"{subscriptions:,} subscriptions of {kind}, {messages:,} messages")
        runs.append(_run({kind: subscriptions}, window, messages))
    _, (one, _), (other, _), (long, state_bytes) = runs
    short = {part: min(one[part], other[part]) for part in long}
    return {
        "us_per_message": {part: max(0.0, 1e6 * (long[part] - short[part]) / (_TIMED * window)) for part in long},
        "memory_bytes": resident_bytes + state_bytes,
        "subscriptions": {kind: subscriptions},
        "load_average": load_average,
    }


def _run(counts: dict[str, int], window: int, messages: int) -> tuple[dict[str, float], int]:
    """One run from the first subscription to the end: seconds by component, and bytes of state."""
    book: Counter[tuple[str, int]] = Counter()
    plan = load_plan(Pace(_ALL_AT_ONCE, messages, _BATCH), counts, f"count:{window}", 1, "hashing")
    report = run_local(plan, watch=Weighed(book), work_ns=thread_time_ns)
    spent_s: dict[str, float] = {}
    for name, part in report.components.items():
        if name not in _COMPONENTS:
            continue
        (at,) = plan.addresses_of(name)
        busy_s = sum(seconds for stream, seconds in part.busy_s.items() if stream not in _APART)
        unpacking_s = 1e-9 * book["unpacking", at]
        spent_s[name] = busy_s - 1e-9 * book["lent", at] + (0.0 if name == "query" else unpacking_s)
        if name == "query":
            spent_s["unpacking"] = unpacking_s
    (query,), tuples = report.components["query"].tasks, report.components["tuples"].tasks[0].figures
    window_bytes = tuples["log_bytes"] + sum(tuples["window_bytes"].values())
    return spent_s, sum(query.figures["operator_bytes"].values()) + window_bytes


def _resident_bytes() -> int:
    """Memory of this process, in bytes, as Linux reports it."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
