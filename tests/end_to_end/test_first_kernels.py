"""A run prepares the kernels of its kinds and its router, and no others, and its batches find them ready."""

import json
import subprocess
import sys
from pathlib import Path

import numba
import pytest

from gateway.subscriptions.generate import generate_subscriptions
from matching.kinds import KINDS
from tests.support.etl_folder import random_rows, write_etl
from topology.warmup import parts as warm_up_parts

pytestmark = pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="the compiler is switched off")  # type: ignore[attr-defined]

ROOT = Path(__file__).resolve().parents[2]
#: Builds a run, warms it up and executes it: the parts of the warm-up, the modules with a kernel that is ready at the
#: end, which kernels were compiled or loaded after the warm-up, and the number of updates.
SCRIPT = """
import json, sys
from topology.core.executors.local import run_local
from topology.settings import RunConfig
from topology.wiring import build_plan

def ready():
    found = {}
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] in ("matching", "distribution", "papers", "baselines"):
            for attribute, value in vars(module).items():
                if hasattr(value, "py_func") and value.py_func.__module__ == name and value.signatures:
                    found[f"{name}.{attribute}"] = len(value.signatures)
    return found

plan = build_plan(RunConfig(executor="local", **json.loads(sys.argv[1])))
parts = [warmed.part for warmed in plan.warm_up()]
before = ready()
updates = run_local(plan).components["delivery"].tasks[0].figures["updates"]
later = sorted(name for name, count in ready().items() if count > before.get(name, 0))
modules = sorted({name.rpartition(".")[0] for name in ready()})
print(json.dumps({"parts": parts, "modules": modules, "later": later, "updates": sum(updates.values())}))
"""
BOOLEAN = ["boolean, engine cell_term", "filters"]
TOPK = ["topk, engine skype", "topk, window index segments"]
#: Parts of all kinds, since tasks that exchange hits work on each.
ALL = "all kinds"
#: Small kernels that only some batches run.
SELDOM = {
    "matching.topk.window._without_older_ties",
    "distribution.location._mark_bits",
    "distribution.keyword._mark_wanted",
}


@pytest.mark.parametrize(
    ("kind", "settings", "parts"),
    [
        ("boolean", {}, BOOLEAN),
        ("topk", {}, TOPK),
        pytest.param("boolean", {"signatures": "spatial+text"}, ["signatures", *BOOLEAN], marks=pytest.mark.wide),
        pytest.param("boolean", {"router": "kop"}, ["placement by cost", *BOOLEAN], marks=pytest.mark.wide),
        pytest.param("boolean", {"router": "location"}, ["router location", ALL], marks=pytest.mark.wide),
        pytest.param("topk", {"router": "prefix"}, ["router keyword", ALL], marks=pytest.mark.wide),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value) or "defaults",
)
def test_run_prepares_the_kernels_that_it_uses_and_no_others(tmp_path, kind, settings, parts):
    etl = write_etl(tmp_path / "etl", random_rows(600))
    file = tmp_path / "subscriptions.jsonl"
    generate_subscriptions(etl, kind, 40, 3, file, max_frequency=1.0)
    given = {"messages": str(etl), "subscriptions": [str(file)], "out": str(tmp_path / "run")}
    given |= {"window": "count:60", "batch": "50"} | settings
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(given)],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["updates"] > 50
    everything = [name for name, _ in warm_up_parts(KINDS, {}, {})]
    assert found["parts"] == ["names", *([parts[0], *everything] if parts[-1] is ALL else parts)]
    assert set(found["later"]) <= SELDOM
    if parts[-1] is not ALL:
        others = tuple(f"matching.{each.name}." for each in KINDS.run if each.name != kind)
        assert not [name for name in found["modules"] if name.startswith(others)]
