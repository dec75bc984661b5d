"""Warm-up compiles what runs, of every kind: what comes later compiles nothing more."""

import importlib
import json
import os
import pkgutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest

import baselines
import matching
import papers
from benchmarks.driving import Tasks, kind_of
from compiling import kernel_cache
from matching.kind_table import Kind
from matching.kinds import KINDS
from matching.model import MessageBatch
from matching.sample_rows import sample_messages
from tests.support.any_kind import Recipe, make_turns, window_of
from tests.support.worlds import SPACE
from topology.warmup import (
    ROUTING,
    WORDS,
    KernelWarmup,
    Warmed,
    _warm_marks,
    in_turn,
    not_in_cache,
    parts,
    stamp_of,
    warmup,
)

pytestmark = pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="the compiler is switched off")  # type: ignore[attr-defined]

ROOT = Path(__file__).resolve().parents[3]
#: Enough subscriptions for trees and sorted blocks, enough messages for indexed windows; then small batches.
RECIPES = (
    Recipe("count:500", 4, (400,), first=2000, arrivals=900, departures=1800),
    Recipe("time:150", 12, (0, 1, 60), late=40, first=60, arrivals=30, departures=40),
)


def kernels() -> dict[str, Any]:
    """Every compiled function of the packages of engines, by name."""
    found = {}
    packages = (matching, papers, baselines)
    for module in (each for one in packages for each in pkgutil.walk_packages(one.__path__, f"{one.__name__}.")):
        for attribute, value in vars(importlib.import_module(module.name)).items():
            if hasattr(value, "py_func") and value.py_func.__module__ == module.name:
                found[f"{module.name}.{attribute}"] = value
    return found


def test_kernels_have_the_flags_of_the_house():
    assert len(kernels()) > 100
    for name, kernel in kernels().items():
        assert kernel.targetoptions.get("nogil") is True, name
        assert not set(kernel.targetoptions) & {"fastmath", "parallel"}, name
        assert type(kernel._cache).__name__ != "NullCache", name


def use(kind: Kind) -> int:
    """Run a kind over streams, read-only and not, saved and gone on with by several; returns how much it told."""
    told = 0
    for seed, recipe in enumerate(RECIPES):
        tasks = Tasks(kind, SPACE, window_of(recipe), window_tasks=1 + seed)
        for turn in make_turns(kind, seed, recipe):
            messages, added, ended = turn.messages, turn.added, turn.ended
            if turn.boundary.number % 2:
                messages, added, ended = (writable(table) for table in (messages, added, ended))
            told += len(tasks.process(turn.boundary, messages, added, turn.removed, ended).updates)
            if turn.boundary.number % 3 == 2:
                tasks.go_on(1 + turn.boundary.number % 2)
        tasks.results()
    return told


def writable(table: Any) -> Any:
    copies = {id(column): column.copy() for column in table}
    return type(table)(*(copies[id(column)] for column in table))


def compiled_later(chosen: str) -> dict[str, Any]:
    """What is compiled, or loaded, after the warm-up of the defaults (or of all there is) by kinds that are used."""
    everything = chosen == "all"
    warmup(KINDS, all_of_them=everything)
    before = {name: len(kernel.signatures) for name, kernel in kernels().items()}
    told = {}
    for kind in KINDS.run:
        for engine in kind.engines if everything else [kind.chosen(None)]:
            told[f"{kind.name}-{engine}"] = use(kind_of(kind.name, engine))
        for window in list(kind.windows)[1:] if everything else []:
            told[f"{kind.name}-{window}"] = use(kind_of(kind.name, window=window))
    after = {name: len(kernel.signatures) for name, kernel in kernels().items()}
    later = {name: [before[name], after[name]] for name in after if after[name] != before[name]}
    return {"later": later, "told": told, "called": sum(count > 0 for count in before.values())}


@pytest.mark.parametrize("chosen", ["defaults", pytest.param("all", marks=pytest.mark.long)])
def test_warmup_leaves_nothing_to_compile(chosen):
    """In a process of its own, in which no other test has compiled anything."""
    code = f"import json, tests.unit.topology.test_warmup as t; print(json.dumps(t.compiled_later('{chosen}')))"
    root = Path(matching.__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert not report["later"]
    assert min(report["told"].values()) > 200 and len(report["told"]) >= (20 if chosen == "all" else 3)
    assert report["called"] > 60


def test_warmup_of_a_kind_leaves_columns_that_all_tables_share_writable(monkeypatch):
    """Else the kinds behind it would be compiled for read-only ones."""
    made = []

    def recorded(*given, **more):
        made.append(MessageBatch(*(column.copy() for column in sample_messages(*given, **more))))
        return made[-1]

    monkeypatch.setattr("topology.warmup.sample_messages", recorded)
    _warm_marks(KINDS.named("boolean"))
    assert len(made) == 3 and all(column.flags.writeable for batch in made for column in batch)


def test_setup_compiles_the_kinds_that_the_cache_lacks(tmp_path, monkeypatch):
    monkeypatch.setattr(kernel_cache, "folder", lambda: tmp_path)
    names = [*(kind.name for kind in KINDS.run), WORDS, *ROUTING]
    assert not_in_cache() == names
    for name in names[1:]:
        stamp = stamp_of(name)
        assert stamp is not None
        stamp.touch()
    assert not_in_cache() == names[:1]
    monkeypatch.setattr(kernel_cache, "folder", lambda: None)
    assert not_in_cache() == names, "without a cache nothing is known to be there"


@pytest.mark.parametrize("used", [("boolean",), None])
def test_run_whose_kernels_are_in_the_cache_needs_no_warm_up(tmp_path, monkeypatch, used):
    monkeypatch.setattr(kernel_cache, "folder", lambda: tmp_path)
    monkeypatch.setattr("topology.warmup.parts", lambda *_, used: [(f"{used}", lambda: None)])
    monkeypatch.setattr("topology.warmup._WARM", set())
    run = KernelWarmup(KINDS, (("knn", "inverted_file"),), (), used, ("names", "signatures"))
    others = [run._replace(routing=("names", "router keyword")), run._replace(engines=(("boolean", "inverted_list"),))]
    assert not run.is_done()
    assert len(list(run())) == 2
    assert run.is_done() and not any(other.is_done() for other in others)
    monkeypatch.setattr(kernel_cache, "folder", lambda: None)
    assert not run.is_done(), "without a cache nothing is known to be there"


def test_setup_has_nothing_to_say_of_kernels_that_are_in_the_cache(tmp_path):
    """Fast, since each `make test` runs it; the empty cache has the stamps alone, so a kernel would be seen."""
    code = "import topology.warmup as w; [w.stamp_of(name).touch() for name in w.part_names()]"
    environment = {**os.environ, "SKYRAY_KERNEL_CACHE": str(tmp_path)}
    for words in (["-c", code], ["-m", "topology.warmup"]):
        done = subprocess.run(
            [sys.executable, *words], cwd=ROOT, env=environment, capture_output=True, text=True, check=True, timeout=300
        )
        assert done.stdout == done.stderr == ""
    assert not list(tmp_path.rglob("*.nbc"))


@pytest.mark.parametrize("target", ["setup", "test", "test-cluster", "demo"])
def test_make_looks_into_the_cache_of_kernels_each_time(target):
    """A file beside the environment said that kernels were compiled, whatever had become of the cache."""
    done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=True, timeout=300)
    assert "-m topology.warmup" in done.stdout


@numba.njit
def _twice(number):
    return number + number


def test_warmup_says_after_each_part_how_many_kernels_had_to_be_compiled():
    parts = [("integers", lambda: _twice(1)), ("the same", lambda: _twice(2)), ("floats", lambda: _twice(2.0))]
    told = list(in_turn(parts))
    assert told == [Warmed(1, 3, 1, "integers"), Warmed(2, 3, 1, "the same"), Warmed(3, 3, 2, "floats")]


def test_warmup_has_a_part_of_each_engine_and_window_index():
    named = [name for name, _ in parts(KINDS, {"topk": "l2_scan"}, {})]
    assert named[:3] == ["words", "boolean, engine cell_term", "filters"]
    assert named[3:5] == ["topk, engine l2_scan", "topk, window index segments"]
    assert len({name for name, _ in parts(KINDS, {}, {}, all_of_them=True)}) == 2 + sum(
        len(kind.engines) + len(kind.windows) for kind in KINDS.run
    )


def test_use_of_a_kernel_that_was_not_warmed_up_is_found_out():
    """The counts have teeth: a dtype that nobody has used makes a signature of its own."""
    kernel = kernels()["matching.storage.sorting.ascending"]
    before = len(kernel.signatures)
    kernel(np.zeros(4, np.int64))
    known = len(kernel.signatures)
    kernel(np.zeros(4, np.uint8))
    assert before <= known < len(kernel.signatures)
