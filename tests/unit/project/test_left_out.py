"""A session of tests says what it left out and how to get it, and several sessions add that up."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import left_out
from tests.support.costs import ALWAYS, slow_tests

ROOT = Path(__file__).resolve().parents[3]
POSTGIS = "left out: 3 tests that need PostgreSQL with PostGIS: apt-get install postgresql-postgis"


def session(*arguments, **environment):
    """What a session of tests prints."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "PYTEST_"))}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=ROOT, env=kept | environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode in (0, pytest.ExitCode.NO_TESTS_COLLECTED), done.stdout + done.stderr
    return done.stdout.splitlines()


def summed(*arguments):
    """What the sum of several sessions prints."""
    command = [sys.executable, "-m", "tests.support.left_out", *map(str, arguments)]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=True
    ).stdout.splitlines()


def test_session_without_a_server_skips_what_needs_it_and_says_so_in_its_last_lines(tmp_path):
    *_, told, last = session("tests/unit/geo/test_against_postgis.py", PATH=str(tmp_path))
    assert told == POSTGIS and last.startswith("3 skipped")


def test_sessions_are_added_up(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    said = session("tests/unit/geo/test_against_postgis.py", "--left-out", str(first), PATH=str(tmp_path))
    assert not any(line.startswith("left out") for line in said)
    second.write_text(json.dumps({"postgis": 2, "long": 1_200}))
    total = [POSTGIS.replace("3", "5", 1), "left out: 1,200 long tests: make test-long"]
    assert summed(first, second, tmp_path / "of one that was interrupted") == total


def test_packages_of_what_is_missing_are_named_before_there_is_an_environment(tmp_path):
    """By the standard library alone; each marker needs something, so all are named on an empty machine."""
    arguments = [sys.executable, "-S", "-m", "tests.support.left_out", "--packages"]
    bare = {"PATH": str(tmp_path), "JAVA_HOME": str(tmp_path)}
    done = subprocess.run(arguments, cwd=ROOT, env=bare, capture_output=True, text=True, timeout=300, check=True)
    packages = {name: need.package for name, need in left_out.NEEDS.items() if need.package}
    missing = {package for name, package in packages.items() if name not in ("nginx", "redis", "sshd")}
    assert missing <= set(done.stdout.split()) <= set(packages.values())


def test_session_says_how_many_tests_of_a_tier_it_leaves_out_unless_they_are_picked_by_name():
    module = "tests/end_to_end/test_cluster.py"
    *_, told, last = session("--collect-only", module)
    there = int(last.partition("(")[2].partition(" deselected")[0])
    assert there > 0 and told == f"left out: {there} cluster tests: make test-cluster"
    assert not any(line.startswith("left out") for line in session("--collect-only", module, "-k", "nothing"))


def test_every_need_is_a_marker_and_no_program_is_there_on_an_empty_machine(monkeypatch, tmp_path):
    markers = (ROOT / "pyproject.toml").read_text()
    assert all(f'"{name}: ' in markers for name in (*left_out.NEEDS, *left_out.TIERS))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.delenv("PGHOST", raising=False)
    assert not any(left_out.NEEDS[name].there() for name in ("browser", "postgis", "spark"))


def test_list_of_slow_tests_names_tests_that_there_are_and_none_that_always_run():
    listed = slow_tests()
    assert listed and not [test for test in listed if test.startswith(ALWAYS)]
    names = {}
    for test in listed:
        path, _, name = test.partition("[")[0].partition("::")
        names.setdefault(path, set()).add(name.partition("::")[0])
    for path, wanted in names.items():
        there = set(re.findall(r"^(?:def |class )?(\w+)(?: = |\(|:)", (ROOT / path).read_text(), re.MULTILINE))
        assert wanted <= there, path


def test_session_over_a_folder_leaves_out_slow_tests_and_one_over_their_file_does_not():
    file = next(test for test in sorted(slow_tests()) if test.startswith("tests/unit/geo/")).partition("::")[0]
    *_, left, _ = session("--collect-only", str(Path(file).parent))
    assert "slow tests: make test WIDE=1" in left
    assert not any("slow tests" in line for line in session("--collect-only", file))
