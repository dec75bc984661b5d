"""Sessions that share their tests run each file once, whichever of them takes it."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests import halves

ROOT = Path(__file__).resolve().parents[3]
NAMES = [f"test_{letter}.py" for letter in "abcde"]
#: Two tests that use a fixture of their file; writes what happens into the file that WRITTEN names.
FILE = """
import os, pytest, time
from pathlib import Path

def tell(word):
    with open(os.environ["WRITTEN"], "a") as out:
        out.write(f"{os.environ['WHO']} {Path(__file__).stem} {word}\\n")

@pytest.fixture(scope="module")
def own():
    tell("begins")
    yield
    tell("ends")

def test_first(own):
    tell("first")
    while os.environ["WHO"] == "slow" and not Path(os.environ["WRITTEN"]).read_text().count("quick"):
        time.sleep(0.02)

def test_second(own):
    tell("second")
"""


def start(folder, who, *more):
    environment = os.environ | {"WRITTEN": str(folder / "written"), "WHO": who}
    environment |= {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    tests = folder / "tests"
    words = ["-q", "-p", "no:cacheprovider", "-p", "tests.support.sharing", "-c", os.devnull, "--rootdir", tests]
    return subprocess.Popen(
        [sys.executable, "-m", "pytest", *map(str, [*words, "--shared", folder / "marks", *more, tests])],
        cwd=folder, env=environment, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "marks").mkdir()
    (tmp_path / "tests").mkdir()
    (tmp_path / "written").touch()
    for name in NAMES:
        (tmp_path / "tests" / name).write_text(FILE)
    return tmp_path


def told(folder):
    return [tuple(line.split()) for line in (folder / "written").read_text().splitlines()]


def test_sessions_that_share_run_each_test_once_from_both_ends(folder):
    slow = start(folder, "slow")
    deadline = time.monotonic() + 300
    while ("slow", "test_a", "first") not in told(folder):
        assert time.monotonic() < deadline and slow.poll() is None
        threading.Event().wait(0.02)
    quick = start(folder, "quick", "--from-the-end")
    printed = [each.communicate(timeout=300)[0] for each in (slow, quick)]
    assert (slow.returncode, quick.returncode) == (0, 0), printed
    lines = told(folder)
    assert sorted(line[1:] for line in lines) == sorted(
        (name[:-3], word) for name in NAMES for word in ("begins", "first", "second", "ends")
    )
    assert [name for who, name, word in lines if (who, word) == ("quick", "first")][:2] == ["test_e", "test_d"]
    for who in ("slow", "quick"):  # a file is over before the next one of a session begins
        own = [line[1:] for line in lines if line[0] == who]
        assert [word for _, word in own] == ["begins", "first", "second", "ends"] * (len(own) // 4)
    passed = [int(text.split(" passed")[0].split()[-1]) for text in printed if " passed" in text]
    assert sum(passed) == 2 * len(NAMES)


def test_session_without_a_test_left_to_take_is_fine_and_a_failure_is_not(folder):
    for name in NAMES[1:]:
        (folder / "marks" / name).touch()
    (folder / "tests" / NAMES[0]).write_text("def test_wrong():\n    assert False\n")
    first, second = (start(folder, "quick") for _ in range(2))
    printed = [each.communicate(timeout=300)[0] for each in (first, second)]
    assert sorted([first.returncode, second.returncode]) == [0, 1], printed
    assert "".join(printed).count("1 failed") == 1


def test_session_that_begins_late_does_not_read_what_is_taken(folder):
    (folder / "marks" / NAMES[0]).touch()
    (folder / "tests" / NAMES[0]).write_text("raise SystemError('read')\n")
    late, first = start(folder, "quick", "--from-the-end"), start(folder, "quick")
    printed = [each.communicate(timeout=300)[0] for each in (late, first)]
    assert late.returncode == 0, printed
    assert first.returncode == pytest.ExitCode.INTERRUPTED and "SystemError: read" in printed[1], printed


def test_halves_are_everything_there_is():
    """A path that is gone would end a session; one that is in neither half would be run by nobody."""
    assert all((ROOT / path).exists() for path in (*halves.PLAIN, *halves.BROWSER))
    assert halves.REST[0] == "tests" and set(halves.REST[2::2]) == {*halves.PLAIN, *halves.BROWSER}
    assert halves.REST[1::2] == ["--ignore"] * (len(halves.PLAIN) + len(halves.BROWSER))
