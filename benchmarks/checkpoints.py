"""What checkpoints cost: how long each task stops, bytes written, and messages a second with and without them.

    python -m benchmarks.checkpoints FOLDER [--messages N] [--checkpoint-every S] [--rounds N]

The folder is a workload (`benchmarks.workloads.alerts`). Runs begin behind its history, over full results and a full
window, on `local`, and publish all messages at once. Those with checkpoints and those without take turns in one
process, and must have the same digest; updates of a sample of one with checkpoints are compared with the oracle.
`stop_ms` are medians and maxima over all checkpoints; of a run's first ones, which copy subscriptions, apart.
"""

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Annotated, Any

from benchmarks import command
from benchmarks.command import Tell, verdict
from benchmarks.stopwatch import in_turns
from benchmarks.workloads.folder import Workload
from gateway.load.check import check
from gateway.load.pace import Pace
from topology.core.checkpoint.barriers import Cadence
from topology.core.checkpoint.coordinator import Checkpoints
from topology.core.checkpoint.fence import KEPT
from topology.core.executors.local import run_local
from topology.core.metrics import RunReport
from topology.settings import LIVE_CREDITS

_ALL_AT_ONCE = 1e9
_WITH, _WITHOUT = "with", "without"


def measure(
    folder: Annotated[str, "of the workload"],
    messages: Annotated[int, "of a run"] = 100_000,
    batch: Annotated[int, "messages of a batch"] = 250,
    checkpoint_every: Annotated[float, "seconds between checkpoints"] = 10.0,
    rounds: Annotated[int, "turns of each"] = 3,
    query_bolts: Annotated[int, "tasks that match subscriptions"] = 1,
    *,
    tell: Tell,
) -> dict[str, Any]:
    """Stops, bytes, and messages a second of each way."""
    workload = Workload(folder)
    workload.fill(tell)
    pace = Pace(_ALL_AT_ONCE, workload.history + messages, batch, warming=workload.history)
    digests: set[str] = set()
    judged: dict[str, Any] = {}
    saved: list[list[dict[str, Any]]] = []

    def once(way: str, turn: int) -> float:
        with tempfile.TemporaryDirectory(prefix="skyray-checkpoints-") as out:
            store, manifest = workload.resume(out)
            plan = workload.plan(pace, query_bolts, credits=LIVE_CREDITS, out=out)
            saving = Checkpoints(store, Cadence(checkpoint_every), out, incarnation=1) if way == _WITH else None
            report = run_local(plan, resume=store.load(manifest), checkpoints=saving)
            digests.add(digest_of(report))
            if way == _WITH:
                saved.append([each for each in report.checkpoints if "failed" not in each])
                if turn == rounds - 1:
                    tell("compares with the oracle")
                    ends = report.components["messages"].tasks[0].figures["ends"]
                    judged.update(check(*workload.parts(pace), ends, Path(out)))
        tell(f"{way} checkpoints: {messages / report.elapsed_s:,.0f} messages a second")
        return report.elapsed_s

    once(_WITHOUT, -1)  # kernels are loaded
    seconds = in_turns((_WITH, _WITHOUT), rounds, once)
    rates = {way: messages / median(mine) for way, mine in seconds.items()}
    first, later = ([each for run in saved for each in part(run)] for part in (_first, _later))
    return {
        **verdict(judged["exact"] and len(digests) == 1, judged["compared"], judged["compared_subscriptions"]),
        "workload": Path(folder).name,
        "subscriptions": workload.counts,
        "messages": messages,
        "checkpoint_every_s": checkpoint_every,
        "checkpoints": len(first) + len(later),
        "stop_ms": stops_of(later),
        "stop_ms_of_first": stops_of(first),
        "written_bytes": _median(each["written_bytes"] for each in later),
        "written_bytes_of_first": _median(each["written_bytes"] for each in first),
        "size_bytes": _median(each["size_bytes"] for each in later),
        "longest_write_s": _median(each["longest_write_s"] for each in later),
        "messages_per_s": rates,
        "seconds": seconds,
        "ratio": rates[_WITH] / rates[_WITHOUT],
    }


def _first(checkpoints: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    """Those that may write every fragment, or compare each with its files."""
    return checkpoints[:KEPT]


def _later(checkpoints: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    return checkpoints[KEPT:]


def stops_of(checkpoints: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """How long each task stops at a checkpoint, by its name, in milliseconds."""
    tasks = dict.fromkeys(task for each in checkpoints for task in each["copies_s"])
    stops = {task: [1e3 * each["copies_s"][task] for each in checkpoints] for task in tasks}
    return {task: {"median": median(times), "max": max(times)} for task, times in stops.items()}


def digest_of(report: RunReport) -> str:
    """Of all updates of a run."""
    (delivery,) = report.components["delivery"].tasks
    return delivery.figures["digest"]


def _median(values: Any) -> float | None:
    values = list(values)
    return median(values) if values else None


if __name__ == "__main__":
    sys.exit(command.main(measure))
