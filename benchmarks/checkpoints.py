"""What saving a run as it goes costs: `python -m benchmarks.checkpoints --messages ETL --subscriptions FILE...`.

The product itself, with and without checkpoints, turn about in one process; every turn must tell the same, and the
first is verified. Beside the throughput of both stand what a checkpoint is: its bytes, the longest copy of a query
task, for which the stream stands still, the time from there to the manifest, and how long a plain write of as many
bytes takes, forced to disk.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.provenance import provenance
from benchmarks.verified import verdict_of_run
from topology.running import run
from topology.settings import RunConfig

#: Subscriptions of each kind that are verified.
_CHECKED = 1_000


def main() -> int:
    """Print one JSON object; `--out` keeps it. Returns 1 if the figure does not count."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.checkpoints", description=__doc__)
    parser.add_argument("--messages", type=Path, required=True)
    parser.add_argument("--subscriptions", type=Path, nargs="+", required=True)
    parser.add_argument("--every", type=float, default=10.0, help="seconds between two checkpoints")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--batch", default="5000")
    parser.add_argument("--window", default="count:20000")
    parser.add_argument("--executor", default="ray")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    turns: dict[str, list[dict[str, Any]]] = {"with": [], "without": []}
    digests = set()
    with tempfile.TemporaryDirectory(prefix="skyray-bench-") as folder:
        for turn in range(options.turns):
            for name in ("with", "without") if turn % 2 else ("without", "with"):
                config = RunConfig(
                    messages=options.messages,
                    subscriptions=tuple(options.subscriptions),
                    out=Path(folder) / f"{name}-{turn}",
                    window=options.window,
                    batch=options.batch,
                    limit=options.limit,
                    executor=options.executor,
                    checkpoint_every=options.every if name == "with" else 0.0,
                )
                report = run(config)
                digests.add(report["digest"])
                turns[name].append(report)
        assert len(digests) == 1, "the turns have told different things"
        saved = [epoch for report in turns["with"] for epoch in report["topology"]["checkpoints"]]
        assert saved and not [epoch for epoch in saved if "failed" in epoch], "no checkpoint, or one that failed"
        checked = verdict_of_run(Path(folder) / "without-0", _CHECKED)
        largest = max(epoch["size_bytes"] for epoch in saved)
        plain_s = statistics.median(_plain_write(Path(folder) / "plain", largest) for _ in range(3))
    rate = {name: [_rate(report) for report in reports] for name, reports in turns.items()}
    told = {
        "subscriptions": turns["with"][0]["spouts"]["subscriptions"]["accepted"],
        "messages": turns["with"][0]["spouts"]["messages"]["messages"],
        "updates": sum(turns["with"][0]["delivery"]["updates"].values()),
        "every_s": options.every,
        "messages_per_s": rate,
        "median_ratio": statistics.median(rate["with"]) / statistics.median(rate["without"]),
        "checkpoints": len(saved),
        "size_bytes": largest,
        "longest_copy_s": max(epoch["longest_copy_s"] for epoch in saved),
        "median_copy_s": statistics.median(epoch["longest_copy_s"] for epoch in saved),
        "query_copy_s": [epoch["copies_s"].get("query:0") for epoch in saved],
        "longest_write_s": [epoch["longest_write_s"] for epoch in saved],
        "plain_write_s": plain_s,
        **checked,
        "made_by": provenance(),
        "epochs": saved,
    }
    text = json.dumps(told, indent=1)
    print(text)
    if options.out is not None:
        options.out.write_text(text + "\n")
    return 0 if checked["exact"] else 1


def _rate(report: dict[str, Any]) -> float:
    return report["spouts"]["messages"]["messages"] / report["topology"]["elapsed_s"]


def _plain_write(path: Path, size_bytes: int) -> float:
    """Seconds to write so many bytes and to force them to disk."""
    data = os.urandom(1 << 22)
    began = time.perf_counter()
    with open(path, "wb") as file:
        for first in range(0, size_bytes, len(data)):
            file.write(data[: size_bytes - first])
        file.flush()
        os.fsync(file.fileno())
    took_s = time.perf_counter() - began
    path.unlink()
    return took_s


if __name__ == "__main__":
    sys.exit(main())
