"""Files of subscriptions that a stream starts with."""

from collections.abc import Callable, Iterable
from pathlib import Path

from gateway.live.batching import Batching
from gateway.shell.terminal import cell
from matching.kinds import KINDS
from matching.reasons import explain
from spouts.lines import read_rows


def subscribe_all(batching: Batching, files: Iterable[Path], say: Callable[[str], None]) -> dict[str, int]:
    """Log the subscriptions of files; returns the numbers accepted and refused.

    `say` takes a line about each refused row. Raises InputError.
    """
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
                say(f"{cell(path)}, line {number} refused, {reason}: {cell(what)}")
    batching.close()
    return counts
