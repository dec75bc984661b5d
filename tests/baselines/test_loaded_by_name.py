"""An engine of a paper or a baseline is imported when a run names it, and never otherwise; answers are the same."""

import json
import pickle
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from gateway.subscriptions.generate import generate_subscriptions
from matching.kinds import KINDS
from tests.support.etl_folder import random_rows, write_etl

ROOT = Path(__file__).resolve().parents[2]
#: Runs the command line, and says which modules of `papers` and `baselines` it has imported.
COMMAND = """
import json, sys
from gateway.cli import main
code = main(sys.argv[1:])
print(json.dumps([code, sorted(name for name in sys.modules if name.split(".")[0] in ("papers", "baselines"))]))
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
    """`skyray run` in a process of its own: its exit code, the engines it imported, the digest of its updates."""
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
def test_run_imports_the_engines_that_it_names_and_by_default_none(inputs, tmp_path):
    code, imported, digest = run(inputs, tmp_path / "defaults")
    assert (code, imported) == (0, [])
    named = ("--engine", "skyline=sweep", "--engine", "boolean=lfilter")
    code, imported, same = run(inputs, tmp_path / "named", *named)
    assert code == 0 and same == digest
    assert {"baselines.skyline.sweep", "papers.lfilter.lfilter"} <= set(imported)
    folders = {".".join(name.split(".")[:2]) for name in imported}
    assert folders == {"baselines", "baselines.skyline", "papers", "papers.lfilter"}
    assert not {"baselines.skyline.lazy", "baselines.skyline.i3"} & set(imported)


NAMED = [
    (kind, what, name)
    for kind in KINDS.run
    for what, table in (("engine", kind.engines), ("window", kind.windows))
    for name in table
]


@pytest.mark.parametrize(("kind", "what", "name"), NAMED, ids=lambda value: getattr(value, "name", value))
def test_engine_is_found_by_the_name_it_has(kind, what, name):
    assert getattr(kind, what)(name).name == name


def test_every_module_of_an_engine_is_in_the_table():
    found = {getattr(kind, what)(name).__module__ for kind, what, name in NAMED}
    for path in (*(ROOT / "papers").glob("*/*.py"), *(ROOT / "baselines").glob("*/*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        own = [each for each in vars(import_module(module)).values() if getattr(each, "__module__", "") == module]
        if any(isinstance(each, type) and isinstance(getattr(each, "name", None), str) for each in own):
            assert module in found


def test_table_survives_pickling_by_names_alone():
    pickled = pickle.dumps(KINDS)
    again = pickle.loads(pickled)  # noqa: S301 - what was pickled here
    for kind, own in zip(again, KINDS, strict=True):
        assert list(kind.engines) == list(own.engines) and kind.chosen(None) == own.chosen(None)
        assert len(kind.engines) == len(list(kind.engines)) and all(name in kind.engines for name in own.engines)
    assert again.named("topk").engine("l2_scan") is KINDS.named("topk").engine("l2_scan")
    assert b"baselines.topk.l2_scan:L2Scan" in pickled
    with pytest.raises(KeyError):
        again.named("topk").engines["nothing"]
