"""Runs whose folders are in an object store, against the same runs on a disk of this machine."""

import dataclasses
import json
import signal
import time
from collections import Counter

import psutil
import pytest

import bolts.sinks
import topology.running
from gateway import cli
from gateway.runs.reader import RunReader
from gateway.runs.verify import verify_run
from matching.errors import ConfigError, EngineError, InputError
from spouts.subscriptions import SubscriptionSpout
from tests.support.faulty_proxy import FAULTS, faults_before
from tests.support.object_store import serving_objects
from tests.support.processes import Command
from tests.support.stories import product
from topology.core.checkpoint.fence import read_committed
from topology.core.objects import Bucket, _store
from topology.running import run, run_or_resume


@pytest.fixture(scope="module")
def server():
    with serving_objects() as server:
        yield server


@pytest.fixture(autouse=True)
def use(server, monkeypatch):
    """Every checkpoint makes a part; nothing is compiled ahead."""
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    _store.cache_clear()
    monkeypatch.setattr(bolts.sinks, "SMALL_ROWS", 1)
    build = topology.running.build_plan
    unwarmed = lambda config, *more: dataclasses.replace(build(config, *more), warm_up=None)  # noqa: E731
    monkeypatch.setattr(topology.running, "build_plan", unwarmed)


@pytest.fixture(scope="module")
def stored(server):
    """URIs of the story's messages and subscriptions."""
    config, bucket = product().config("unused"), server.new_bucket()
    messages = server.upload(config.messages, f"{bucket}/etl")
    return messages, tuple(server.upload(path, f"{bucket}/{path.name}") for path in config.subscriptions)


@pytest.fixture(scope="module")
def digest(tmp_path_factory):
    """Of the same run over folders of this machine."""
    return run(product().config(tmp_path_factory.mktemp("whole") / "out"))["digest"]


def config_of(out, stored=None):
    config = product().config("unused")
    changed = {"out": out} if stored is None else {"out": out, "messages": stored[0], "subscriptions": stored[1]}
    return type(config)(**{**config.as_json(), **changed})


def test_inputs_in_a_store_give_the_same_digest(stored, digest, tmp_path):
    report = run(config_of(tmp_path / "out", stored))
    assert report["digest"] == digest and report["messages"] == stored[0]


def test_inputs_that_are_missing_are_named_before_anything_starts(server, stored, tmp_path):
    config = config_of(tmp_path / "out", stored)
    for name, value, what in (
        ("messages", f"{stored[0]}-other", "no manifest.json"),
        ("messages", "s3://no-such-bucket/etl", "there is no bucket no-such-bucket; make it first"),
        ("subscriptions", (f"{stored[0]}/mine.jsonl",), "mine.jsonl does not exist"),
        ("subscriptions", ("s3://no-such-bucket/mine.jsonl",), "there is no bucket no-such-bucket"),
    ):
        with pytest.raises(InputError, match=what):
            run(type(config)(**{**config.as_json(), name: value}))
    assert not (tmp_path / "out").exists()


def test_run_in_a_store_is_exact(server, stored, digest):
    out = f"{server.new_bucket()}/runs/first"
    report = run(config_of(out, stored))
    assert report["digest"] == digest and report["state"] == "finished"
    verified = verify_run(out, None)
    assert verified.exact and sum(verified.delivered_updates.values()) > 1_000
    left = Bucket(out).names()
    committed = read_committed(Bucket(out))[0].outputs
    assert sorted([*committed, "committed.json", "run.json"]) == [name for name in left if name != "rejected.jsonl"]


def test_folder_that_has_a_run_is_kept_or_replaced_as_a_whole(server, stored, digest):
    out = f"{server.new_bucket()}/out"
    run(config_of(out, stored))
    before = Bucket(out).names()
    with pytest.raises(ConfigError, match="is in use: name another, or add --overwrite"):
        run(config_of(out, stored))
    assert Bucket(out).names() == before
    again = config_of(out, stored).model_copy(update={"overwrite": True, "window": "count:50"})
    report = run(again)
    assert report["digest"] != digest and verify_run(out, None).exact
    assert not set(before) & {name for name in Bucket(out).names() if name.startswith(("updates/", "results"))}


def test_folder_of_something_else_is_left_alone(server, stored):
    out = f"{server.new_bucket()}/out"
    Bucket(out).write("notes.txt", b"mine")
    config = config_of(out, stored).model_copy(update={"overwrite": True})
    with pytest.raises(ConfigError, match="holds something that is no run of skyray: remove it yourself"):
        run(config)
    assert Bucket(out).names() == ["notes.txt"]


def test_run_that_fails_before_it_opens_leaves_the_folder_as_it_was(server, stored, monkeypatch):
    out = f"{server.new_bucket()}/out"
    run(config_of(out, stored))
    exact = verify_run(out, None)
    with monkeypatch.context() as patch:
        patch.setattr(SubscriptionSpout, "open", _refuse)
        with pytest.raises(EngineError, match="cannot open"):
            run(config_of(out, stored).model_copy(update={"overwrite": True}))
        other = f"{server.new_bucket()}/out"
        with pytest.raises(EngineError, match="cannot open"):
            run(config_of(other, stored))
    assert verify_run(out, None) == exact
    assert Bucket(other).names() == []


def _refuse(*_):
    raise InputError("missing_file", "cannot open")


def test_checkpoints_elsewhere_are_refused(server, stored, tmp_path):
    config = config_of(f"{server.new_bucket()}/out", stored).model_copy(update={"checkpoints": str(tmp_path)})
    with pytest.raises(ConfigError, match="recovery.checkpoints: .*leave it out"):
        run(config)


KILLED_AT_REQUEST = """
import os, signal, sys
from topology.core import objects
number, request = int(sys.argv[1]), sys.argv[2]
real, calls = getattr(objects.Bucket, request), []

def counted(self, *arguments):
    calls.append(arguments)
    if len(calls) == number:
        os.kill(os.getpid(), SIGNAL)
    return real(self, *arguments)

setattr(objects.Bucket, request, counted)
import bolts.sinks
bolts.sinks.SMALL_ROWS = 1
from gateway.cli import main
sys.exit(main(sys.argv[3:]))
"""


def arguments_of(out, stored):
    files = [part for path in stored[1] for part in ("--subscriptions", path)]
    given = [
        "--window",
        product().window,
        "--batch",
        product().config("x").batch,
        "--executor",
        "local",
        "--set",
        "topology.seed=1",
    ]
    given += ["--checkpoint-every", 0.001, "--query-bolts", 1, "--out", out]
    return ["run", "--messages", stored[0], *files, *given]


def died_at(server, out, stored, number, end=signal.SIGKILL, request="_asking"):
    """A process that gets the signal before its `number`-th request, or its `number`-th of one sort."""
    script = KILLED_AT_REQUEST.replace("SIGNAL", str(int(end)))
    return Command([number, request, *arguments_of(out, stored), "--resume", "auto"], server.environment, script)


def rows_of(out):
    """Updates of all committed parts."""
    return Counter(tuple(row.values()) for row in RunReader(out).updates().to_pylist())


@pytest.fixture(scope="module")
def told(tmp_path_factory, stored, server):
    """Rows of a run that nothing has disturbed."""
    out = tmp_path_factory.mktemp("told") / "out"
    run(config_of(out))
    rows = rows_of(out)
    assert rows.total() > 1_000 and max(rows.values()) == 1
    return rows


@pytest.mark.fault
def test_driver_that_wakes_after_another_has_resumed_commits_nothing(server, stored, digest, told):
    out = f"{server.new_bucket()}/out"
    with died_at(server, out, stored, 8, signal.SIGSTOP, "replace") as zombie:
        await_stopped(zombie.process.pid)
        before = read_committed(Bucket(out))[0]
        assert before.checkpoints and before.outputs, "it was stopped too early"
        report = run(config_of(out, stored), resume=True)
        assert report["digest"] == digest and rows_of(out) == told
        after = {name: Bucket(out).read(name) for name in ("committed.json", "run.json")}
        zombie.process.send_signal(signal.SIGCONT)
        assert zombie.process.wait(timeout=300) == 9
        assert "another process has begun or resumed this run" in zombie.read()[1]
    assert {name: Bucket(out).read(name) for name in after} == after
    late = "updates/part-00000.1.parquet"  # such as a task of the old driver may write at last
    Bucket(out).write(late, Bucket(out).read(before.outputs[0]).data)
    assert rows_of(out) == told and verify_run(out, None).exact


def await_stopped(pid):
    deadline = time.monotonic() + 300
    while psutil.Process(pid).status() != psutil.STATUS_STOPPED:
        assert time.monotonic() < deadline, "it has never been stopped"
        time.sleep(0.01)


def assert_killed_at_is_exact(server, stored, digest, told, number):
    out = f"{server.new_bucket()}/out"
    with died_at(server, out, stored, number) as killed:
        ended = killed.process.wait(timeout=300)
        assert ended in (0, -signal.SIGKILL), killed.read()
    report, _ = run_or_resume(config_of(out, stored))
    assert report["digest"] == digest and rows_of(out) == told
    return ended


@pytest.mark.fault
@pytest.mark.parametrize("number", [30, pytest.param(120, marks=pytest.mark.long)])
def test_run_killed_at_a_request_is_exact_when_run_again(server, stored, digest, told, number):
    assert assert_killed_at_is_exact(server, stored, digest, told, number) == -signal.SIGKILL


@pytest.mark.fault
@pytest.mark.long
@pytest.mark.timeout(3600)
def test_run_killed_at_any_request_is_exact_when_run_again(server, stored, digest, told):
    number = 1
    while assert_killed_at_is_exact(server, stored, digest, told, number):
        number += 1 + number // 12
    assert number > 200


@pytest.mark.parametrize("command", [["live", "--out"], ["live", "--status"], ["serve", "--out"]])
def test_live_streams_refuse_an_object_store(command, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main([*command, "s3://bucket/out"]) == 2
    assert f"{command[1]} s3://bucket/out: a live stream forces each line to disk" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_page_of_a_run_in_an_object_store_is_refused(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["show", "s3://bucket/out", "--page"]) == 2
    assert "and s3://bucket/out is in an object store; copy it first" in capsys.readouterr().err


def test_run_in_a_store_takes_no_scaling_requests(capsys):
    assert cli.main(["scale", "s3://bucket/out", "--query-bolts", "4"]) == 2
    assert "s3://bucket/out: a run in an object store takes no requests" in capsys.readouterr().err


def test_commands_read_a_run_in_a_store(server, stored, told, capsys):
    out = f"{server.new_bucket()}/out"
    assert cli.main(list(map(str, arguments_of(out, stored)))) == 0
    assert cli.main(["verify", out, "--all"]) == 0
    capsys.readouterr()
    assert cli.main(["show", out, "--updates", "--limit", "0", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)["updates"]
    assert len(shown) == told.total()
    assert cli.main(["explain", out, shown[0]["subscription_id"], shown[0]["message_id"], "--json"]) == 0
    assert "in_result" in json.loads(capsys.readouterr().out)


def assert_exact_behind(proxy, server, stored, digest, told, monkeypatch):
    """A run over a faulty store, read over the store itself."""
    out = f"{server.new_bucket()}/out"
    with monkeypatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", proxy.url)
        _store.cache_clear()
        report = run(config_of(out, stored))
    _store.cache_clear()
    assert report["digest"] == digest and rows_of(out) == told
    assert all(proxy.counts[fault] for fault in FAULTS), proxy.counts


@pytest.mark.fault
def test_run_over_a_store_that_throttles_and_loses_answers_is_exact(server, stored, digest, told, monkeypatch):
    with faults_before(server.url, 0.05, seed=1) as proxy:
        assert_exact_behind(proxy, server, stored, digest, told, monkeypatch)


@pytest.mark.fault
@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 12))
def test_run_over_a_worse_store_is_exact(server, stored, digest, told, monkeypatch, seed):
    with faults_before(server.url, 0.3, seed) as proxy:
        assert_exact_behind(proxy, server, stored, digest, told, monkeypatch)
