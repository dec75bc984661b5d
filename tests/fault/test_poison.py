"""Messages and subscriptions on which a component raises: found, set aside, told of, and everything else is exact.

A query bolt raises on chosen rows wherever they come with their terms, in the run and in the search.
"""

import errno
import json

import pyarrow.parquet as pq
import pytest

import topology.running
from bolts.query import QueryBolt
from gateway.runs.verify import verify_run
from spouts.quarantine import Quarantine
from tests.support.faulty_runs import make_work
from tests.support.poisoned import poisoned
from topology.core.failures import ComponentFailed
from topology.folder import FAILED, RunFolder
from topology.running import run
from topology.settings import RunConfig

pytestmark = pytest.mark.fault


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    return make_work(tmp_path_factory.mktemp("poison"), 600, 15, batch=40)


def config_of(work, out, **options):
    given = {"messages": work.etl, "subscriptions": work.files, "out": out, "executor": "local"}
    return RunConfig(**{**given, **work.options, "checkpoint_every": 0.001, **options})


def poison(monkeypatch, **rows):
    """Every topology that is built from now on has the poisoned bolt; how many were built."""
    build, built = topology.running.build_plan, []

    def build_poisoned(config, *more):
        built.append(more)
        return poisoned(build(config, *more), **rows)

    monkeypatch.setattr(topology.running, "build_plan", build_poisoned)
    return built


def with_terms(work, first):
    """The first seqs from `first` on of messages that have terms."""
    rows = pq.read_table(work.etl / "messages", columns=["seq", "terms"]).to_pylist()
    return [row["seq"] for row in rows if row["seq"] >= first and row["terms"]]


RAY = pytest.param(1, {"executor": "ray", "checkpoint_every": 0.3}, marks=[pytest.mark.ray, pytest.mark.long])


@pytest.mark.parametrize(("count", "options"), [(1, {}), (3, {"query_bolts": 2}), RAY])
def test_poisoned_messages_are_set_aside_and_all_else_is_exact(work, tmp_path, monkeypatch, count, options):
    seqs = [*with_terms(work, 130)[:count], with_terms(work, 500)[0]]  # of two batches
    poison(monkeypatch, seqs=seqs)
    report = run(config_of(work, tmp_path / "out", **options))
    assert report["state"] == "finished"
    assert Quarantine.of(report["quarantined"]) == Quarantine(tuple((seq, seq) for seq in seqs))
    rejects = [json.loads(line) for line in (tmp_path / "out" / "rejected.jsonl").read_text().splitlines()]
    assert [row["seq"] for row in rejects] == seqs and all("this row is poison" in row["what"] for row in rejects)
    verdict = verify_run(tmp_path / "out")
    assert verdict.exact and sum(verdict.oracle_updates.values()) > 1_000, verdict.render()
    assert report["digest"] != work.digest, "setting them aside changed nothing"


def test_poisoned_subscription_is_set_aside_and_all_else_is_exact(work, tmp_path, monkeypatch):
    poison(monkeypatch, numbers=[7])
    report = run(config_of(work, tmp_path / "out"))
    assert report["quarantined"] == {"messages": [], "subscriptions": [[7, 7]]}
    verdict = verify_run(tmp_path / "out")
    assert verdict.exact and sum(verdict.oracle_updates.values()) > 1_000, verdict.render()


def test_component_that_raises_whoever_is_set_aside_ends_the_run_with_its_cause(work, tmp_path, monkeypatch):
    poison(monkeypatch, always=6)
    with pytest.raises(ComponentFailed, match="this row is poison"):
        run(config_of(work, tmp_path / "out"))
    told = json.loads((tmp_path / "out" / "run.json").read_text())
    assert told["state"] == "failed" and "this row is poison" in told["error"]


def test_full_disk_does_not_hide_the_failure_that_cannot_be_written(work, tmp_path, monkeypatch):
    write_report = RunFolder.write_report

    def full(folder, state, values):
        if state == FAILED:
            raise OSError(errno.ENOSPC, "no space left on device")
        write_report(folder, state, values)

    monkeypatch.setattr(RunFolder, "write_report", full)
    poison(monkeypatch, always=6)
    with pytest.raises(ComponentFailed, match="this row is poison"):
        run(config_of(work, tmp_path / "out"))


def test_strict_run_ends_at_once(work, tmp_path, monkeypatch):
    built = poison(monkeypatch, seqs=with_terms(work, 130)[:1])
    with pytest.raises(ComponentFailed, match="this row is poison"):
        run(config_of(work, tmp_path / "out", strict=True))
    assert len(built) == 1, "somebody was looked for"


def test_poison_that_strikes_once_only_is_nobodys_fault(work, tmp_path, monkeypatch):
    """Nothing is set aside for what does not happen again; the run ends, and can be gone on with."""
    process, raised = QueryBolt._process, []

    def raises_once(self, changes, part):
        if part.boundary.number == 6 and not raised:
            raised.append(6)
            raise ValueError("a cosmic ray")
        return process(self, changes, part)

    monkeypatch.setattr(QueryBolt, "_process", raises_once)
    with pytest.raises(ComponentFailed, match="a cosmic ray"):
        run(config_of(work, tmp_path / "out"))
    report = run(config_of(work, tmp_path / "out"), resume=True)
    assert report["digest"] == work.digest and report["quarantined"] == {"messages": [], "subscriptions": []}


def test_run_gone_on_with_leaves_aside_whoever_was_set_aside(work, tmp_path, monkeypatch):
    seq = with_terms(work, 130)[0]
    poison(monkeypatch, seqs=[seq])
    asked = []

    def stop():
        asked.append(1)
        return len(asked) > 15

    report = run(config_of(work, tmp_path / "out"), stop=stop)
    assert report["state"] == "interrupted" and report["quarantined"]["messages"] == [[seq, seq]]
    assert 160 < report["limit"] < 600
    report = run(config_of(work, tmp_path / "out"), resume=True)
    assert report["state"] == "finished" and report["quarantined"]["messages"] == [[seq, seq]]
    assert verify_run(tmp_path / "out").exact
