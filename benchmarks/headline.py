"""The whole engine in one figure: the workload `alerts` at its peak, at four fifths of it, and through a kill.

    python -m benchmarks.headline [--subscriptions 1000000] [--executor local|ray] [--messages-from ETL_FOLDER]

The peak is found by the ramp of `skyray loadtest --hold`, 80 % of it is kept for `--hold` seconds with a checkpoint
every 10 seconds, and the updates of a sample are compared with the oracle. Then the same rate runs once more; an actor
(Ray) or the process (local) is killed in mid-stream, and what was delivered before and after is compared, all batches
of it. Latency is that of the hold, from due to delivered; the stall of the kill is reported beside it. What is timed is
the topology of `skyray run` (`benchmarks.workloads.folder`), each test in a process of its own
(`benchmarks.workloads.trial`). The last line is one JSON object.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import psutil

from benchmarks import command
from benchmarks.command import ROOT, Tell, provenance
from benchmarks.workloads import alerts
from benchmarks.workloads.folder import Workload
from gateway.load.loadtest import render
from matching.errors import ConfigError, TopologyError

#: Messages of the hold that are checked, at least.
_CHECKED = 20_000
CHECKPOINT_EVERY_S = 10.0
#: The run that is killed: how long it publishes, and how long after a checkpoint it is killed.
_KILLED_S, _AFTER_CHECKPOINT_S = 30.0, 4.0
_JUDGED = ("exact", "compared", "compared_subscriptions")


class Trials:
    """Load tests of a workload, each in a process of its own. `folder` gets their files; `common` are settings."""

    def __init__(self, folder: Path, common: dict[str, Any]):
        self._folder, self._common = folder, common

    def start(self, name: str, **settings: Any) -> "Trial":
        """Start one; `settings` as of `benchmarks.workloads.trial`."""
        report = self._folder / f"{name}.json"
        given = self._folder / f"{name}.settings"
        given.write_text(json.dumps({**self._common, **settings, "report": str(report)}))
        words = [sys.executable, "-m", "benchmarks.workloads.trial", str(given)]
        return Trial(subprocess.Popen(words, cwd=ROOT, env=os.environ | {"RAY_USAGE_STATS_ENABLED": "0"}), report)


class Trial:
    """A load test that runs."""

    def __init__(self, process: "subprocess.Popen[bytes]", report: Path):
        self.process, self._report = process, report

    def finish(self) -> dict[str, Any]:
        """Its report, once it has ended. Raises TopologyError if it has failed."""
        if self.process.wait():
            raise TopologyError(f"a load test of the headline ended with exit code {self.process.returncode}")
        return json.loads(self._report.read_bytes())

    def flows(self) -> bool:
        """Whether batches have been acknowledged."""
        progress = self._report.with_suffix(".progress")
        return progress.exists() and json.loads(progress.read_bytes())["flowing_at"] is not None

    def await_(self, what: Callable[[], bool]) -> None:
        """Wait until this is so. Raises TopologyError if the test ends before."""
        while not what():
            if self.process.poll() is not None:
                raise TopologyError("the load test ended before it could be killed; take fewer --subscriptions")
            time.sleep(0.05)


def headline(
    subscriptions: Annotated[int, "of all kinds"] = 1_000_000,
    executor: Annotated[str, "local or ray"] = "local",
    workload: Annotated[str, "folder of the workload; made if it is not there (build/alerts-N by default)"] = "",
    messages_from: Annotated[str, "folder of `skyray etl` whose messages are drawn again; made-up ones without"] = "",
    messages: Annotated[int, "messages behind the history"] = 1_000_000,
    hold: Annotated[float, "seconds at 80 % of the peak"] = 60.0,
    rate: Annotated[float, "messages a second of the ramp's first step"] = 2_000.0,
    step_seconds: Annotated[float, "of a step of the ramp; each has a checkpoint"] = 12.0,
    limit_p99_ms: Annotated[float, "a step breaks if its p99 is over it"] = 500.0,
    linger_ms: Annotated[float, "how long a message waits for others of its batch"] = 25.0,
    killed_seconds: Annotated[float, "how long the run that is killed publishes"] = _KILLED_S,
    query_bolts: Annotated[int, "tasks that match subscriptions"] = 1,
    seed: Annotated[int, "of a workload that is made"] = 0,
    tell: Tell = command.say,
) -> dict[str, Any]:
    """Measure; see above. Returns the last line's fields and all else."""
    if executor not in ("local", "ray"):
        raise ConfigError(f"executor {executor!r}: choose local or ray")
    folder = Path(workload or ROOT / "build" / f"alerts-{subscriptions}").absolute()
    if not folder.exists():
        folder.parent.mkdir(exist_ok=True)
        alerts.make(folder, subscriptions, seed, messages_from, messages, tell)
    loaded = Workload(folder)
    tell(alerts.table(json.loads((folder / "workload.json").read_text())))
    loaded.fill(tell)
    common = {
        "workload": str(folder), "executor": executor, "query_bolts": query_bolts, "check": True, "warm_up": 2.0,
        "checkpoint_every": CHECKPOINT_EVERY_S, "linger_ms": linger_ms,
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="skyray-headline-") as work:
        trials = Trials(Path(work), common)
        limits = {"limit_p99_ms": limit_p99_ms, "first_rate": rate, "step_seconds": step_seconds}
        held = trials.start("hold", hold=f"{hold}s", checked=_CHECKED, **limits).finish()
        tell(render(held))
        killed, stall_s = _killed(trials, Path(work) / "killed", held["rate"], killed_seconds, executor, tell)
        tell(render(killed))
    return _summary(held, killed, stall_s) | {"executor": executor, "query_bolts": query_bolts}


def _killed(
    trials: Trials, folder: Path, rate: float, seconds: float, executor: str, tell: Tell
) -> tuple[dict[str, Any], float]:
    """The report of a run that is killed in mid-stream and recovers, and seconds from the kill to the next batch."""
    folder.mkdir()
    settings = {"rate": rate, "seconds": seconds, "folder": str(folder), "checked": round(rate * (seconds + 1))}
    first = trials.start("killed", **settings)
    try:
        first.await_(first.flows)
        began = _epochs(folder)
        first.await_(lambda: _epochs(folder) > began)
        time.sleep(min(_AFTER_CHECKPOINT_S, seconds / 8))
        victim = first.process.pid if executor == "local" else _largest_actor(first.process.pid)
        tell(f"killed process {victim}")
        at_s = time.time()
        os.kill(victim, signal.SIGKILL)
        if executor == "ray":
            report = first.finish()
            (recovery, *_) = report["topology"]["recoveries"]
            return report, recovery["seconds"]
        first.process.wait()
    finally:
        if first.process.poll() is None:
            first.process.terminate()
            first.process.wait()
    report = trials.start("recovered", **settings).finish()
    return report, report["seen"]["flowing_at"] - at_s


def _epochs(folder: Path) -> int:
    """The newest checkpoint of a run."""
    names = [path.stem for path in (folder / "checkpoints").glob("epoch-*.json")]
    return max((int(name.partition("-")[2]) for name in names), default=-1)


def _largest_actor(driver: int) -> int:
    """The process of the actor with the most memory: it has the query task."""
    actors = [each for each in psutil.Process(driver).children(True) if _title(each).startswith("ray::WorkerActor")]
    return max(actors, key=lambda each: each.memory_info().rss).pid


def _title(process: psutil.Process) -> str:
    """What a process calls itself; nothing if it is over. A worker of Ray without an actor has another title."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def _summary(held: dict[str, Any], killed: dict[str, Any], stall_s: float) -> dict[str, Any]:
    """The last line, and what is behind it."""
    latency, checks = held["latency"], (held["check"], killed["check"])
    exact = all(command.verdict(*(check[name] for name in _JUDGED))["exact"] for check in checks)
    milliseconds = {f"{name}_ms": 1e3 * latency[f"{name}_s"] for name in ("p50", "p99", "p999")}
    return {
        "messages_per_s": held["rate"],
        "peak_per_s": held["peak_per_s"],
        **milliseconds,
        "memory_bytes": killed["seen"]["memory_bytes"],
        "exact": exact,
        "kept_up": held["kept_up"],
        "recovered": _recovered(killed, stall_s),
        "updates_per_message": held["updates"] / held["messages"],
        "memory": memory_of(held["topology"]),
        "checks": dict(zip(("held", "killed"), checks, strict=True)),
        "busy_us": busy_of(held["topology"], held["messages"]),
        "held": {name: held[name] for name in ("ramp", "timeline", "checkpoints", "settings", "furthest_behind_s")},
    }


def _recovered(killed: dict[str, Any], stall_s: float) -> dict[str, Any]:
    """Of the run that was killed: the stall, and the latency of what was delivered after it."""
    latency = killed["latency"]
    return {"stall_s": stall_s, "p99_ms_after": 1e3 * latency["p99_s"], "exact": killed["check"]["exact"]}


def memory_of(topology: dict[str, Any]) -> dict[str, int]:
    """Bytes of arrays by kind (subscriptions and results of query tasks, window indexes of tuple tasks), of the log of
    messages that kinds share, and of ids."""
    tasks = {name: [task["figures"] for task in part["tasks"]] for name, part in topology["components"].items()}
    found: dict[str, int] = {}
    for figures in tasks["query"]:
        for kind, size in figures["operator_bytes"].items():
            found[kind] = found.get(kind, 0) + size
    for figures in tasks["tuples"]:
        for kind, size in figures["window_bytes"].items():
            found[f"{kind} window"] = found.get(f"{kind} window", 0) + size
    found["log"] = sum(figures["log_bytes"] for figures in tasks["tuples"])
    found["ids"] = sum(figures["id_bytes"] for figures in tasks["delivery"])
    return found


def busy_of(topology: dict[str, Any], messages: int) -> dict[str, float]:
    """Microseconds for each message by component and stream, without what belongs to no message."""
    apart = ("finish", "results")
    return {
        f"{name}:{stream}": 1e6 * seconds / messages
        for name, part in topology["components"].items()
        for task in part["tasks"]
        for stream, seconds in task["busy_s"].items()
        if stream not in apart and seconds > 0
    }


def main() -> int:
    """As the command line says; the report, then one line of JSON. 1 if it is not exact or the rate was not kept."""
    found: dict[str, Any] = {}

    def measure(*args: Any, **options: Any) -> dict[str, Any]:
        found.update(headline(*args, **options))
        return found

    measure.__doc__, measure.__module__ = headline.__doc__, headline.__module__
    measure.__wrapped__ = headline  # its options
    code = command.main(measure)
    names = ("messages_per_s", "p50_ms", "p99_ms", "p999_ms", "memory_bytes", "exact")
    print(json.dumps({name: found[name] for name in names} | {"commit": provenance()["commit"]}))
    return code if found["kept_up"] else 1


if __name__ == "__main__":
    sys.exit(main())
