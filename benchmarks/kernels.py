"""How long the compiler takes from nothing, by kind and by kernel.

Of each kind a process of its own, with an empty folder of compiled kernels, does what the first subscription of that
kind waits for (`matching.warmup`). A kernel's seconds are those of the processor without what it calls: a kernel that
is compiled since another calls it counts for itself. What several kinds have is compiled once by a run, and counts here
for each of them. Read on in `matching.warmup`.
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
from benchmarks.command import ROOT
from matching.errors import TopologyError
from matching.kinds import KINDS
from matching.warmup import parts


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
    """Seconds of the processor and of the clock, and kernels with their signatures, by kind."""
    measured = {}
    for kind in kinds:
        KINDS.named(kind)
        with tempfile.TemporaryDirectory(prefix="skyray-kernels-") as cache:
            measured[kind] = _in_a_process(kind, cache)
        found = measured[kind]
        tell(
            f"{kind}: {found['cpu_s']:.1f} s of the processor, {found['wall_s']:.1f} s in all, "
            f"{len(found['kernels'])} kernels, {found['signatures']} signatures"
        )
    return {"measured": measured, "cpu_s": round(sum(each["cpu_s"] for each in measured.values()), 1), "exact": True}


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
    return {
        "cpu_s": round(process_time() - busy, 2),
        "wall_s": round(perf_counter() - began, 2),
        "signatures": sum(signatures for _, signatures in kernels.values()),
        "kernels": kernels,
    }


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(_one(sys.argv[2])))
    elif sys.argv[1:2] == ["--table"]:
        print(table(json.loads(Path(sys.argv[2]).read_text())))
    else:
        sys.exit(command.main(bench))
