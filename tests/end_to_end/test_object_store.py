"""Runs whose folders are in an object store, against the same runs on a disk of this machine."""

import dataclasses

import pytest

import bolts.sinks
import topology.running
from gateway.runs.verify import verify_run
from matching.errors import ConfigError, EngineError, InputError
from spouts.subscriptions import SubscriptionSpout
from tests.support.object_store import serving_objects
from tests.support.stories import product
from topology.core.checkpoint.fence import read_committed
from topology.core.objects import Bucket, _store
from topology.running import run


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


def test_checkpoints_elsewhere_are_refused(server, stored):
    config = config_of(f"{server.new_bucket()}/out", stored).model_copy(update={"checkpoints": "/tmp/other"})
    with pytest.raises(ConfigError, match="--checkpoints: .*leave it out"):
        run(config)
