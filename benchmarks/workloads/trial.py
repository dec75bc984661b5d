"""One load test over a workload in a process of its own, which `benchmarks.headline` may kill and start again.

    python -m benchmarks.workloads.trial SETTINGS.json

The settings are `hold` for a ramp (`gateway.load.ramp`) and else those of `gateway.load.loadtest.load_test`; beside
them `report` names a JSON file to write. Progress goes to a file beside that: when batches began to be acknowledged,
and the memory of all processes of the test meanwhile.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from benchmarks.workloads.folder import Workload
from gateway.load.loadtest import Executor, load_test
from gateway.load.ramp import Step, ramp_test

#: Seconds between two looks at the memory.
_EVERY_S = 2.0


class Watch:
    """Notes progress and memory of a test; called with snapshots. `path` is a JSON file, replaced at each look."""

    def __init__(self, path: Path):
        self._path, self._looked_s = path, 0.0
        self.seen: dict[str, Any] = {"flowing_at": None, "memory_bytes": 0, "checkpoints": 0}

    def __call__(self, now: Any) -> None:
        if self.seen["flowing_at"] is None and now.acknowledged > 0:
            self.seen["flowing_at"] = time.time()
        if time.monotonic() - self._looked_s < _EVERY_S:
            return
        self._looked_s = time.monotonic()
        self.seen["memory_bytes"] = max(self.seen["memory_bytes"], resident_bytes())
        hidden = self._path.with_name(f".{self._path.name}")
        hidden.write_text(json.dumps(self.seen))
        hidden.replace(self._path)


def resident_bytes() -> int:
    """Memory of this process and of all that it has started, what several share counted once, in bytes."""
    return sum(map(_proportional_bytes, [os.getpid(), *(each.pid for each in psutil.Process().children(True))]))


def _proportional_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:  # it has ended
        return 0
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def run(settings: dict[str, Any]) -> dict[str, Any]:
    """The report of the load test, and `seen` as `Watch` has it."""
    path = Path(settings.pop("report"))
    watch = Watch(path.with_suffix(".progress"))
    workload = Workload(settings["workload"])
    workload.fill()
    options = {**settings, "executor": Executor(settings["executor"]), "workload": workload}
    options["on_progress"] = watch
    if hold := options.pop("hold", None):
        report = ramp_test(hold, on_step=_say, **options)
    else:
        report = load_test(**options)
    report["seen"] = watch.seen
    hidden = path.with_name(f".{path.name}")
    hidden.write_text(json.dumps(report))
    hidden.replace(path)
    return report


def _say(step: Step) -> None:
    p99_ms = "none" if step.p99_s is None else f"{1e3 * step.p99_s:,.0f} ms"
    print(f"{step.rate:>9,.0f}/s  p99 {p99_ms}  {step.why or 'kept'}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    run(json.loads(Path(sys.argv[1]).read_text()))
