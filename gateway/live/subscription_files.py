"""Files of subscriptions that a stream starts with."""

from collections.abc import Iterable
from pathlib import Path

from gateway.live.batching import Batching
from matching.kinds import KINDS
from matching.reasons import explain
from spouts.lines import read_rows
from topology.core.executors.logs import driver_log


def subscribe_all(batching: Batching, files: Iterable[Path]) -> dict[str, int]:
    """Log the subscriptions of files; returns the numbers accepted and refused. Raises InputError."""
    counts = {"subscriptions": 0, "rejected": 0}
    for path in files:
        for number, row in read_rows(path):
            if isinstance(row, str):
                reason, what = row, explain(row, KINDS)
            else:
                columns = {name: value for name, value in row.items() if name not in ("at", "until")}
                refused = batching.subscribe(columns)
                reason, what = (refused.reason, refused.what) if refused else (None, "")
            counts["subscriptions" if reason is None else "rejected"] += 1
            if reason is not None:
                driver_log().warning("row_refused", file=str(path), line=number, reason=reason, what=what)
    batching.close()
    return counts
