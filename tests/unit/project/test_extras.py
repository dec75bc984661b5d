"""A core installation: what works without any extra, and the one line that says which extra is missing."""

import importlib.metadata
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import skyray
from matching.extras import EXTRAS
from tests.support.etl_folder import random_rows, write_etl

ROOT = Path(__file__).resolve().parents[3]
#: Runs commands, a list each, in a Python that finds no module of an extra; prints the exit code of each.
WITHOUT_EXTRAS = """
import json, sys
from importlib.machinery import PathFinder

class Core:
    find_distributions = PathFinder.find_distributions

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in ABSENT:
            return None
        return PathFinder.find_spec(name, path, target)

ABSENT = set(json.loads(sys.argv[1]))
sys.meta_path = [Core if finder is PathFinder else finder for finder in sys.meta_path]
for name in ABSENT:
    try:
        __import__(name)
    except ModuleNotFoundError:
        continue
    raise SystemExit(f"{name} is there")
import skyray
from gateway.cli import main
codes = [main(words) for words in json.loads(sys.argv[2])]
sys.stdout.flush()
print(json.dumps({"codes": codes}))
"""
MODULES = sorted({name for extra in EXTRAS.values() for name in extra.modules} | {"py4j"})
LINES = [
    {"subscribe": {"subscription_id": "b", "kind": "boolean", "keywords": "ramen", "region": [139, 35, 140, 36]}},
    {"subscribe": {"subscription_id": "n", "kind": "knn", "keywords": "ramen", "lon": 139.7, "lat": 35.7, "k": 1}},
    {"id": "far", "text": "ramen", "lon": 139.1, "lat": 35.1},
    {"id": "near", "text": "ramen is open", "lon": 139.69, "lat": 35.69},
    {"id": "other", "text": "udon", "lon": 139.69, "lat": 35.69},
]


def without_extras(*commands, stdin=""):
    """Exit codes, standard output before them, and standard error."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_EXTRAS, json.dumps(MODULES), json.dumps(commands)],
        input=stdin, capture_output=True, text=True, timeout=300, check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    *printed, codes = done.stdout.splitlines()
    return json.loads(codes)["codes"], printed, done.stderr


def commands_of(command, words=()):
    """The words of every command of the command line."""
    yield list(words)
    for name, below in getattr(command, "commands", {}).items():
        yield from commands_of(below, (*words, name))


def test_extras_are_those_of_the_distribution_and_their_modules_what_they_bring():
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(EXTRAS) == set(listed) - {"all", "docs", "dev"}
    carriers = importlib.metadata.packages_distributions()
    for name, extra in EXTRAS.items():
        wanted = {canonicalize_name(Requirement(line).name) for line in listed[name]}
        brought = {canonicalize_name(carriers[module][0] if module in carriers else module) for module in extra.modules}
        assert brought == wanted


def test_every_command_has_its_help_without_extras():
    import typer

    from gateway import cli

    commands = [[*words, "--help"] for words in commands_of(typer.main.get_command(cli.app))]
    assert len(commands) > 15
    codes, printed, said = without_extras(*commands)
    assert codes == [0] * len(commands), said
    assert sum("Usage: skyray" in line for line in printed) == len(commands)


def test_live_stream_works_without_extras():
    (code,), printed, said = without_extras(["live"], stdin="".join(json.dumps(line) + "\n" for line in LINES))
    assert code == 0, said
    updates = [json.loads(line) for line in printed]
    found = sorted((one["subscription_id"], one["change"], one["message_id"]) for one in updates)
    assert found == [("b", "match", "far"), ("b", "match", "near"), ("n", "enter", "near")]


def test_run_in_one_process_works_without_extras_and_is_exact(tmp_path):
    etl, given, out = str(tmp_path / "etl"), tmp_path / "subscriptions.jsonl", str(tmp_path / "out")
    write_etl(tmp_path / "etl", random_rows(400, seed=3))
    rows = [
        {"subscription_id": f"b{number}", "kind": "boolean", "keywords": f"w{number}", "region": [-180, -90, 180, 90]}
        for number in range(12)
    ]
    given.write_text("".join(json.dumps(row) + "\n" for row in rows))
    codes, _, said = without_extras(
        ["run", "--messages", etl, "--subscriptions", str(given), "--executor", "local", "--out", out],
        ["verify", out, "--all"],
    )
    assert codes == [0, 0], said
    assert skyray.open(out).updates().num_rows > 400


def test_doctor_without_extras_says_what_each_is_for_and_finds_no_fault(tmp_path):
    (code,), printed, said = without_extras(["doctor", "--json", "--out", str(tmp_path)])
    assert code == 0, printed or said
    findings = {one["name"]: one for one in json.loads(printed[0])["findings"]}
    for name, extra in EXTRAS.items():
        assert findings[f"extra {name}"]["state"] == "absent"
        assert extra.modules[0] in findings[f"extra {name}"]["found"]
        assert f"pip install 'skyray[{name}]'" in findings[f"extra {name}"]["remedy"]
    assert "Java" not in findings and "shared memory" not in findings


@pytest.mark.parametrize(
    ("extra", "command"),
    [
        (
            "ray",
            [
                "run",
                "--executor",
                "ray",
                "--messages",
                "{etl}",
                "--subscriptions",
                "{etl}/manifest.json",
                "--out",
                "{out}",
            ],
        ),
        ("ray", ["live", "--executor", "ray", "--out", "{out}"]),
        ("ray", ["loadtest", "--executor", "ray", "--rate", "10", "--seconds", "1"]),
        ("client", ["loadtest", "--url", "http://127.0.0.1:1"]),
        ("spark", ["etl", "examples/tweets.jsonl", "--out", "{out}"]),
        ("demo", ["demo", "--out", "{out}"]),
        ("bench", ["bench", "boolean", "--figure", "lengths", "--out", "{out}"]),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_missing_extra_is_one_line_that_says_how_to_install_it(tmp_path, extra, command):
    write_etl(tmp_path / "etl", random_rows(20))
    words = [word.format(etl=tmp_path / "etl", out=tmp_path / "out") for word in command]
    (code,), printed, said = without_extras(words)
    (line,) = [line for line in said.splitlines() if line.startswith("error: ")]
    assert code == 2 and printed == [] and "Traceback" not in said
    assert EXTRAS[extra].modules[0] in line and f"pip install 'skyray[{extra}]'" in line
    assert not list((tmp_path / "out").rglob("run.json")), "nothing was begun"
