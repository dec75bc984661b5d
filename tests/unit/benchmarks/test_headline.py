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
    assert report["recovered"]["stall_s"] > 0 and min(report["compared"]) >= 1_000
    assert "killed process" in ended.stderr
