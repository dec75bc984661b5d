"""How long the compiler takes from nothing, by kind and by kernel.

Of each kind a process of its own, with an empty folder of compiled kernels, does what the first subscription of that
kind waits for (`topology.warmup`), and then matches a small workload, whose updates are compared with the oracle: the
seconds are of kernels that are right. A kernel's seconds are those of the processor without what it calls: a kernel
that is compiled since another calls it counts for itself. What several kinds have is compiled once by a run, and counts
here for each of them.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter, process_time
from typing import Annotated, Any

from numba.core.event import Event, Listener, install_listener

from benchmarks import command
from benchmarks.cases import make_case
from benchmarks.command import ROOT, verdict
from benchmarks.lasting import bench_of
from matching.errors import TopologyError
from matching.kind_table import Kind
from matching.kinds import KINDS
from topology.warmup import parts

#: The workload that is compared: subscriptions of a kind, messages, and those before them, in its window if it has one.
_SUBSCRIPTIONS, _MESSAGES, _WINDOW = 20_000, 4_000, 10_000
_JUDGED = ("exact", "compared", "compared_subscriptions")


class _Compiled(Listener):
    """Processor seconds and signatures of each kernel that is compiled."""

    def __init__(self):
        self.kernels: dict[str, list[float]] = {}
        self._open: list[list[float]] = []  # of each compilation under way: when it began, seconds of those within

    def on_start(self, event: Event) -> None:
        self._open.append([process_time(), 0.0])

    def on_end(self, event: Event) -> None:
        began, within = self._open.pop()
        seconds = process_time() - began
        if self._open:
            self._open[-1][1] += seconds
        assert event.data is not None, "Numba says what it compiled"
        function = event.data["dispatcher"].py_func
        one = self.kernels.setdefault(f"{function.__module__}.{function.__qualname__}", [0.0, 0.0])
        one[0] += seconds - within
        one[1] += 1


def bench(
    kinds: Annotated[tuple[str, ...], "each by itself"] = KINDS.names,
    tell: command.Tell = print,
) -> dict[str, Any]:
    """Seconds of the processor and of the clock, and kernels with their signatures, by kind, and how many updates were
    compared."""
    measured: dict[str, dict[str, Any]] = {}
    for kind in kinds:
        KINDS.named(kind)
        with tempfile.TemporaryDirectory(prefix="skyray-kernels-") as cache:
            measured[kind] = _in_a_process(kind, cache)
        found = measured[kind]
        tell(
            f"{kind}: {found['cpu_s']:.1f} s of the processor, {found['wall_s']:.1f} s in all, "
            f"{len(found['kernels'])} kernels, {found['signatures']} signatures; {found['compared']:,} updates of "
            f"{found['compared_subscriptions']:,} subscriptions: {'exact' if found['exact'] else 'NOT EXACT'}"
        )
    exact, *fewest = (min((found[each] for found in measured.values()), default=0) for each in _JUDGED)
    cpu_s = round(sum(each["cpu_s"] for each in measured.values()), 1)
    return {"measured": measured, "cpu_s": cpu_s, **verdict(bool(exact), *fewest)}


def table(report: dict[str, Any], most: int = 25) -> str:
    """A report as tables of text: by kind, then the kernels that take longest, over all kinds."""
    lines = ["| kind | processor s | kernels | signatures |", "| --- | --- | --- | --- |"]
    every: dict[str, list[float]] = {}
    for kind, found in report["measured"].items():
        lines.append(f"| {kind} | {found['cpu_s']:.1f} | {len(found['kernels'])} | {found['signatures']} |")
        for name, (seconds, signatures) in found["kernels"].items():
            before = every.setdefault(name, [0.0, 0.0])
            before[0] += seconds
            before[1] += signatures
    lines += ["", "| kernel | processor s | signatures |", "| --- | --- | --- |"]
    longest = sorted(every.items(), key=lambda entry: -entry[1][0])[:most]
    lines += [f"| {name} | {seconds:.2f} | {signatures:.0f} |" for name, (seconds, signatures) in longest]
    return "\n".join(lines)


def _in_a_process(kind: str, cache: str) -> dict[str, Any]:
    """What a process reports that compiles a kind into an empty folder. Raises TopologyError."""
    asked = [sys.executable, "-m", "benchmarks.kernels", "--one", kind]
    done = subprocess.run(
        asked, cwd=ROOT, env={**os.environ, "SKYRAY_KERNEL_CACHE": cache}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise TopologyError(f"compiling {kind} ended with {done.returncode}: {done.stderr[-2000:]}")
    return json.loads(done.stdout)


def _one(kind: str) -> dict[str, Any]:
    """Compile a kind in this process."""
    began, busy, compiled = perf_counter(), process_time(), _Compiled()
    with install_listener("numba:compile", compiled):
        for _, warm in parts(KINDS, {}, {}, used=[kind]):
            warm()
    kernels = {
        name: [round(seconds, 3), int(signatures)]
        for name, (seconds, signatures) in sorted(compiled.kernels.items(), key=lambda entry: -entry[1][0])
    }
    figures = {
        "cpu_s": round(process_time() - busy, 2),
        "wall_s": round(perf_counter() - began, 2),
        "signatures": sum(signatures for _, signatures in kernels.values()),
        "kernels": kernels,
    }
    return figures | compared(KINDS.named(kind))


def compared(kind: Kind) -> dict[str, Any]:
    """Whether the updates of a kind's default engine over a small workload are the oracle's (`exact`), how many were
    `compared`, and of how many subscriptions; with a `warning` where these are too few."""
    made = bench_of(make_case(kind, _SUBSCRIPTIONS, _MESSAGES, _WINDOW), 1)
    (found,) = made.check([made.build()])
    return {each: found[each] for each in (*_JUDGED, "warning") if each in found}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(_one(sys.argv[2])))
    elif sys.argv[1:2] == ["--table"]:
        print(table(json.loads(Path(sys.argv[2]).read_text())))
    else:
        sys.exit(command.main(bench))
