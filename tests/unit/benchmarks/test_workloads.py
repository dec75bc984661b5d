"""Load tests over a workload in files: exact, also behind a crash, and one wrong update is noticed."""

import json
from pathlib import Path

import pytest

from benchmarks.workloads import alerts, stream
from benchmarks.workloads.folder import Workload
from gateway.load.loadtest import Executor, load_test
from matching.errors import ConfigError, InputError
from matching.kinds import KINDS
from tests.support.losing import spoil_one

RATE = 4_000.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The workload with 1,000 subscriptions, of made-up messages, with the state to begin with."""
    folder = tmp_path_factory.mktemp("workloads") / "alerts"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "MADE_UP", 10_000)
        alerts.make(folder, 1_000, seed=1, messages=8_000, tell=lambda line: None)
    Workload(folder).fill()
    return folder


def run(workload: Path, **how):
    """Of a load test that is over soon."""
    settings = {"rate": RATE, "seconds": 1.0, "warm_up": 0.2, "batch": 100} | how
    return load_test(executor=Executor.local, check=True, workload=Workload(workload), **settings)


def test_load_test_of_a_workload_is_exact_and_begins_with_full_results(folder):
    counts = Workload(folder).counts
    assert sum(counts.values()) == 1_000 and set(counts) == set(KINDS.names)
    table = alerts.table(json.loads((folder / "workload.json").read_text()))
    assert all(f"{count:,}" in table and kind in table for kind, count in counts.items())
    report = run(folder)
    assert report["messages"] == RATE * 1.2
    check = report["check"]
    assert check["exact"] and not check["misnamed"] and check["compared"] > 1_000
    assert all(one["compared"] > 0 for one in check["by_kind"].values()), check
    operators = report["topology"]["components"]["query"]["tasks"][0]["figures"]["operators"]
    for kind in ("decay", "knn"):
        assert operators[kind]["full"] > 0.5 * counts[kind], "as after a long stream"


def test_load_test_of_a_workload_one_update_that_is_lost_is_noticed(folder, monkeypatch):
    spoil_one(monkeypatch, range(1_000), Workload(folder).history + 2_000)
    check = run(folder)["check"]
    assert not check["exact"] and sum(not one["exact"] for one in check["by_kind"].values()) == 1


def test_load_test_of_a_workload_resumes_in_its_folder_after_a_crash(folder, tmp_path):
    (tmp_path / "run").mkdir()

    def crash(now):
        if now.checkpoints is not None and now.checkpoints.committed:
            raise KeyboardInterrupt

    how = {"folder": str(tmp_path / "run"), "checkpoint_every": 0.3, "checked": int(RATE)}
    with pytest.raises(KeyboardInterrupt):
        run(folder, on_progress=crash, **how)
    assert len(list((tmp_path / "run" / "checkpoints").glob("epoch-*.json"))) > 1, "one of its own"
    report = run(folder, **how)
    assert report["check"]["exact"] and report["check"]["compared"] > 1_000
    source = report["topology"]["components"]["messages"]["tasks"][0]["figures"]
    assert 0 < source["published"] < report["messages"], "it resumed behind the checkpoint"


def test_workload_refuses_what_it_cannot_do(folder, tmp_path):
    with pytest.raises(InputError, match="no workload"):
        Workload(tmp_path)
    with pytest.raises(ConfigError, match="8,000 messages are over after"):
        run(folder, rate=9_000.0)
    with pytest.raises(ConfigError, match="is there already"):
        alerts.make(folder, 1_000)
