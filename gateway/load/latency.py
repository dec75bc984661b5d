"""Latencies of a load test of a server, from when what caused an update was due until it was read here."""

from typing import Any, NamedTuple

import numpy as np

from gateway.load.follower import Received
from matching.model import Float64, Int64

#: Rows of the timeline at most, a second each at least.
_TIMELINE_ROWS = 300


class Due(NamedTuple):
    """Seconds from the first message until what caused an update was due, and from then until it was read."""

    due_s: Float64
    late_s: Float64


def latencies(received: Received, number: Int64, seq: Int64, first: int, begin_s: float, rate: float) -> Due:
    """Latency of each update that these messages caused.

    It counts from the due time of the message for a match, and from that of the last message of its boundary for a
    change of a result.
    """
    order = np.argsort(seq)
    if not order.shape[0]:
        return Due(np.zeros(0), np.zeros(0))
    cause = np.where(received.change == 0, received.seq, received.as_of)
    at = np.searchsorted(seq[order], cause, "right") - 1
    ours = at >= 0
    due_s = (number[order][at[ours]] - first) / rate
    return Due(due_s, received.at_s[ours] - (begin_s + due_s))


def summary(late_s: Float64) -> dict[str, Any]:
    """`count`, and where there are any `p50_s`, `p99_s`, `max_s`."""
    if not late_s.shape[0]:
        return {"count": 0}
    p50, p99 = np.percentile(late_s, [50, 99]).tolist()
    return {"count": int(late_s.shape[0]), "p50_s": p50, "p99_s": p99, "max_s": float(late_s.max())}


def timeline(due: Due, seconds: float) -> list[dict[str, Any]]:
    """Rows of a second each, or `_TIMELINE_ROWS` of a longer test, by due time."""
    interval_s = max(1.0, seconds / _TIMELINE_ROWS)
    place = (due.due_s // interval_s).astype(np.int64)
    rows = []
    for at in np.unique(place).tolist():
        mine = due.late_s[place == at]
        p50, p99, p999 = np.percentile(mine, [50, 99, 99.9]).tolist()
        row = {"at_s": at * interval_s, "count": int(mine.shape[0]), "p50_s": p50, "p99_s": p99, "p999_s": p999}
        rows.append(row | {"max_s": float(mine.max())})
    return rows
