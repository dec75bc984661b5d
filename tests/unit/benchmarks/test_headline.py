"""The headline: every figure of its last line, through a kill, on both executors."""

import json
import os
import subprocess
import sys

import pytest

from benchmarks.command import ROOT

SMALL = ("--subscriptions", "2000", "--messages", "60000", "--hold", "3", "--step-seconds", "1", "--rate", "1000",
         "--killed-seconds", "25", "--limit-p99-ms", "5000")  # fmt: skip


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("executor", ["local", pytest.param("ray", marks=pytest.mark.ray)])
def test_headline_is_exact_through_a_kill(executor, tmp_path):
    words = [sys.executable, "-m", "benchmarks.headline", *SMALL, "--executor", executor]
    words += ["--workload", str(tmp_path / "alerts")]
    ended = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=800, env=os.environ)
    last = json.loads(ended.stdout.splitlines()[-1])
    assert last["exact"], ended.stderr
    assert 0 < last["p50_ms"] <= last["p99_ms"] <= last["p999_ms"] and last["messages_per_s"] > 0
    assert last["memory_bytes"] > 10_000_000
    report = json.loads(ended.stdout[: ended.stdout.rindex("\n{")])
    assert report["recovered"]["stall_s"] > 0 and min(check["compared"] for check in report["checks"].values()) > 1_000
    assert "killed process" in ended.stderr


_LATE = """
import sys
from pathlib import Path
from benchmarks.workloads import alerts, stream
from gateway.load.pace import Pace
from benchmarks.workloads.folder import Workload
from tests.unit.topology.test_warmup import kernels
from topology.core.executors.local import run_local

stream.MADE_UP = 10_000
folder = Path(sys.argv[1])
alerts.make(folder, 1_000, messages=4_000, tell=lambda line: None)
workload = Workload(folder)
"""
_FILL = "workload.fill()"
_RUN = """
before = {}
store, manifest = workload.resume(sys.argv[2])
plan = workload.plan(Pace(1e9, workload.history + 3_000, 100), out=sys.argv[2])
count = lambda: {name: len(kernel.signatures) for name, kernel in kernels().items()}
run_local(plan, resume=store.load(manifest), on_opened=lambda: before.update(count()))
print([name for name, signatures in count().items() if signatures > before[name]])
"""


@pytest.mark.long
def test_workload_no_kernel_is_compiled_while_the_stream_runs(tmp_path):
    """In a process of its own: one that has filled the results has more kernels than the warm-up gives."""
    where = [str(tmp_path / "alerts"), str(tmp_path / "run")]
    again = _LATE.replace("alerts.make(", "0 and alerts.make(")
    for script in (_LATE + _FILL, again + _RUN):
        words = [sys.executable, "-c", script, *where]
        ended = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
        assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip() == "[]"
