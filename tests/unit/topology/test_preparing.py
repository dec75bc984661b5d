"""Kinds are prepared once, in the order in which they are asked for, by processes that end with the stream."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import numba
import pytest

from compiling import kernel_cache
from matching.kinds import KINDS
from tests.support.processes import ROOT
from topology import preparing, warmup
from topology.preparing import Preparing

DEADLINE_S = 20


class Noting(Preparing):
    """Notes what it would prepare, one after the other."""

    def __init__(self, ready=()):
        self.said: list[tuple[str, bool]] = []
        super().__init__(KINDS, {}, {}, False, ready, lambda name, is_ready: self.said.append((name, is_ready)))
        self.leave_a_core()
        self._most = 1
        self.prepared: list[str] = []
        self.may = threading.Semaphore(0)

    def _prepare(self, name):
        assert self.may.acquire(timeout=DEADLINE_S)
        self.prepared.append(name)


def test_preparing_is_in_the_order_of_asking_and_once():
    with Noting(ready=["topk"]) as preparing:
        assert preparing.is_ready("topk") and preparing.is_ready("no kind at all")
        for name in ("knn", "decay", "knn"):
            assert not preparing.is_ready(name)
        assert preparing.preparing == ["knn", "decay"]
        preparing.may.release()
        assert preparing.wait(["knn"]) and not preparing.is_ready("decay")
        preparing.may.release()
        assert preparing.wait(["knn", "decay", "topk"]) and preparing.preparing == []
    assert preparing.prepared == ["knn", "decay"]
    assert preparing.said[:2] == [("knn", False), ("knn", True)]


def test_preparing_that_is_closed_or_stopped_makes_nobody_wait():
    with Noting() as preparing:
        assert not preparing.wait(["knn"], lambda: True)
    assert not preparing.wait(["decay"]) and not preparing.prepared
    preparing.may.release()


class Ahead(Preparing):
    """Compiles nothing, and loads one kernel a kind, which it notes."""

    def __init__(self, monkeypatch):
        self.said: list[tuple[str, bool]] = []
        self.compiled: list[str] = []
        self.loaded: list[str] = []
        self.began, self.may = threading.Semaphore(0), threading.Semaphore(0)
        monkeypatch.setattr(preparing, "stamp_of", lambda name, engine, window: Path("/nowhere"))
        load = lambda kinds, engines, windows, used: [("part", lambda: self.loaded.extend(used))]  # noqa: E731
        monkeypatch.setattr(preparing, "parts", load)
        super().__init__(KINDS, {}, {}, True, tell=lambda name, is_ready: self.said.append((name, is_ready)))
        self._most = 1

    def _compile(self, name):
        self.compiled.append(name)
        self.began.release()
        assert self.may.acquire(timeout=DEADLINE_S)


def test_kinds_that_nobody_asked_for_are_compiled_ahead_and_loaded_when_somebody_does(monkeypatch):
    with Ahead(monkeypatch) as ahead:
        ahead.compile_ahead(["boolean", "knn", "topk"])
        assert ahead.began.acquire(timeout=DEADLINE_S) and ahead.preparing == ["boolean"]
        assert not ahead.is_ready("topk"), "it comes next: before knn, which nobody has asked for"
        assert ahead.began.acquire(timeout=DEADLINE_S) and ahead.compiled == ["boolean", "topk"]
        ahead.may.release(2)
        assert ahead.wait(["topk"]) and ahead.loaded == ["topk"]
        assert ahead.began.acquire(timeout=DEADLINE_S) and ahead.compiled == ["boolean", "topk", "knn"]
        assert not ahead.is_ready("knn"), "asked for while it is compiled"
        ahead.may.release()
        assert ahead.wait(["knn"]) and ahead.loaded == ["topk", "knn"]
        ahead.may.release()
        assert not ahead.is_ready("boolean") and ahead.wait(["boolean"])
    assert sorted(ahead.compiled) == ["boolean", "boolean", "knn", "topk"], "here the cache keeps nothing"
    assert ahead.said.count(("boolean", True)) == ahead.said.count(("knn", True)) == 1


class Compiling(Preparing):
    """Notes what it would compile."""

    def __init__(self, engines):
        super().__init__(KINDS, engines, {}, False)
        self.compiled: list[str] = []

    def _compile(self, name):
        self.compiled.append(name)


@pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="the compiler is switched off")  # type: ignore[attr-defined]
def test_kind_that_setup_has_compiled_is_not_compiled_again(tmp_path, monkeypatch):
    monkeypatch.setattr(kernel_cache, "folder", lambda: tmp_path)
    warmup.warm_named("knn", False)
    (stamp,) = tmp_path.glob("prepared-*")
    assert stamp.stat().st_mode & 0o777 == 0o600
    with Compiling({}) as preparing:
        assert preparing.wait(["knn", "boolean"]) and preparing.compiled == ["boolean"]
    with Compiling({"knn": "inverted_file"}) as preparing:  # setup has compiled the default engine
        assert preparing.wait(["knn"]) and preparing.compiled == ["knn"]


def test_stamp_is_another_one_when_the_engine_that_is_named_changes(tmp_path, monkeypatch):
    monkeypatch.setattr(kernel_cache, "folder", lambda: tmp_path)
    monkeypatch.setattr("numba.config.DISABLE_JIT", 0)
    before = [warmup.stamp_of("knn", name) for name in (None, "inverted_file")]
    known, changed = kernel_cache.digest_of, Path("baselines/knn/inverted_file.py")
    monkeypatch.setattr(kernel_cache, "digest_of", lambda path: "changed" if path == changed else known(path))
    after = [warmup.stamp_of("knn", name) for name in (None, "inverted_file")]
    assert before[0] == after[0] and before[1] != after[1]


def test_nothing_is_noted_where_nothing_is_compiled(tmp_path, monkeypatch):
    monkeypatch.setattr(kernel_cache, "folder", lambda: tmp_path)
    monkeypatch.setattr("numba.config.DISABLE_JIT", 1)
    assert warmup.stamp_of("knn") is None
    monkeypatch.setattr("numba.config.DISABLE_JIT", 0)
    monkeypatch.setattr(kernel_cache, "folder", lambda: None)
    assert warmup.stamp_of("knn") is None


CLOSED = """
import json, os, sys, time
import psutil
from matching.kinds import KINDS
from topology.preparing import Preparing

with Preparing(KINDS, {}, {}, load=False) as preparing:
    assert not preparing.is_ready("knn")
    deadline = time.monotonic() + 300
    while not (children := psutil.Process().children()):
        assert time.monotonic() < deadline
print(json.dumps([child.is_running() for child in children]))
"""


def test_preparing_that_is_closed_ends_the_process_that_compiles(tmp_path):
    environment = {**os.environ, "SKYRAY_KERNEL_CACHE": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", CLOSED],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert json.loads(done.stdout) == [False] and not list(tmp_path.rglob("prepared-*"))
