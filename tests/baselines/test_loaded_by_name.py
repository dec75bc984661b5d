"""Baselines are imported when a run names them, one by one, and never otherwise; the answers are the same."""

import json
import pickle
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from baselines.kinds import ENGINES, WINDOWS, WITH_BASELINES
from gateway.subscriptions.generate import generate_subscriptions
from matching.kinds import KINDS
from tests.support.etl_folder import random_rows, write_etl
from topology.engines import kinds_with

ROOT = Path(__file__).resolve().parents[2]
#: Runs the command line, and says which modules of `baselines` it has imported.
COMMAND = """
import json, sys
from gateway.cli import main
code = main(sys.argv[1:])
print(json.dumps([code, sorted(name for name in sys.modules if name.split(".")[0] == "baselines")]))
"""


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Messages in `etl`, and a file of subscriptions of each kind."""
    folder = tmp_path_factory.mktemp("named")
    etl = write_etl(folder / "etl", random_rows(240))
    for kind in KINDS.run:
        share = {"region_share": 0.6} if kind.place == "region" else {}
        generate_subscriptions(etl, kind.name, 6, 3, folder / f"{kind.name}.jsonl", max_keywords=3, **share)
    return folder


def run(inputs, out, *more):
    """`skyray run` in a process of its own: its exit code, the baselines it imported, the digest of its updates."""
    rows = [word for path in sorted(inputs.glob("*.jsonl")) for word in ("--subscriptions", path)]
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, "run", "--messages", inputs / "etl", *rows, "--out", out, "--window",
         "count:60", "--batch", "25", "--executor", "local", *more],
        cwd=ROOT, capture_output=True, text=True, timeout=580,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    code, imported = json.loads(done.stdout.splitlines()[-1])
    return code, imported, json.loads((out / "run.json").read_text())["digest"]


@pytest.mark.timeout(1200)  # where nothing is compiled yet
def test_run_imports_the_baselines_that_it_names_and_by_default_none(inputs, tmp_path):
    code, imported, digest = run(inputs, tmp_path / "defaults")
    assert (code, imported) == (0, [])
    code, imported, told = run(inputs, tmp_path / "named", "--engine", "skyline=sweep")
    assert code == 0 and told == digest
    assert {"baselines.kinds", "baselines.skyline.sweep"} <= set(imported)
    assert not {"baselines.skyline.lazy", "baselines.skyline.i3", "baselines.boolean"} & set(imported)


@pytest.mark.parametrize(("table", "what"), [(ENGINES, "engine"), (WINDOWS, "window")])
def test_baselines_are_found_by_the_name_they_have(table, what):
    for kind, places in table.items():
        for name in places:
            assert getattr(WITH_BASELINES.named(kind), what)(name).name == name
            assert name not in getattr(KINDS.named(kind), f"{what}s")


def test_every_module_of_an_engine_is_in_the_table():
    tables = [(kind, place) for table in (ENGINES, WINDOWS) for kind in table for place in table[kind].values()]
    found = {f"{kind}.{place.partition(':')[0]}" for kind, place in tables}
    for path in (ROOT / "baselines").glob("*/*.py"):
        name = f"{path.parent.name}.{path.stem}"
        own = vars(import_module(f"baselines.{name}")).values()
        own = [each for each in own if isinstance(each, type) and each.__module__ == f"baselines.{name}"]
        if any(isinstance(getattr(each, "name", None), str) for each in own):
            assert name in found


def test_table_with_baselines_keeps_defaults_and_survives_pickling():
    again = pickle.loads(pickle.dumps(WITH_BASELINES))  # noqa: S301 - what was pickled here
    for kind, own in zip(again, KINDS, strict=True):
        assert list(kind.engines)[: len(own.engines)] == list(own.engines) and kind.chosen(None) == own.chosen(None)
        assert len(kind.engines) == len(own.engines) + len(ENGINES.get(kind.name, ()))
        assert all(name in kind.engines and kind.engine(name) for name in kind.engines)
    assert again.named("topk").engine("l2_scan") is WITH_BASELINES.named("topk").engine("l2_scan")
    with pytest.raises(KeyError):
        again.named("topk").engines["nothing"]


def test_kinds_with_is_the_table_itself_unless_something_is_named_that_it_lacks():
    assert kinds_with(KINDS) is kinds_with(KINDS, {"boolean": "lfilter"}, {"skyline": "mf_rtree"}) is KINDS
    assert "rt_tree" in kinds_with(KINDS, {"boolean": "rt_tree"}).named("boolean").engines
    assert "i3" in kinds_with(KINDS, {}, {"skyline": "i3"}).named("skyline").windows
    assert kinds_with(WITH_BASELINES, {"boolean": "rt_tree"}) is WITH_BASELINES
    assert kinds_with(KINDS, {"zone": "rt_tree"}) is KINDS, "a kind that nobody knows is refused elsewhere"
