"""Runs whose folders are in an object store, against the same runs on a disk of this machine."""

import dataclasses

import pytest

import bolts.sinks
import topology.running
from matching.errors import InputError
from tests.support.object_store import serving_objects
from tests.support.stories import product
from topology.core.objects import _store
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


def with_inputs(config, stored):
    return type(config)(**{**config.as_json(), "messages": stored[0], "subscriptions": stored[1]})


def test_inputs_in_a_store_give_the_same_digest(stored, digest, tmp_path):
    report = run(with_inputs(product().config(tmp_path / "out"), stored))
    assert report["digest"] == digest and report["messages"] == stored[0]


def test_inputs_that_are_missing_are_named_before_anything_starts(server, stored, tmp_path):
    config = with_inputs(product().config(tmp_path / "out"), stored)
    for name, value, what in (
        ("messages", f"{stored[0]}-other", "no manifest.json"),
        ("messages", "s3://no-such-bucket/etl", "there is no bucket no-such-bucket; make it first"),
        ("subscriptions", (f"{stored[0]}/mine.jsonl",), "mine.jsonl does not exist"),
        ("subscriptions", ("s3://no-such-bucket/mine.jsonl",), "there is no bucket no-such-bucket"),
    ):
        with pytest.raises(InputError, match=what):
            run(type(config)(**{**config.as_json(), name: value}))
    assert not (tmp_path / "out").exists()
