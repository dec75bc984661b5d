"""The list of deliberate faults is up to date, and what runs it tells a failing test from one that was never run."""

import re
from pathlib import Path

import pytest

from tests.mutants.__main__ import LIST, ROOT
from tests.mutants.copies import Mutant, _outcome, read_mutants

MUTANTS = read_mutants(LIST)


def test_mutants_replace_what_is_there_once_and_leave_python():
    sources: dict[str, str] = {}
    for mutant in MUTANTS:
        source = sources.setdefault(mutant.file, (ROOT / mutant.file).read_text())
        assert source.count(mutant.old) == 1, f"{mutant.file}: {mutant.name}: bring `old` up to date"
        compile(source.replace(mutant.old, mutant.new), mutant.file, "exec")


def test_mutants_name_tests_that_are_there():
    for mutant in MUTANTS:
        for test in mutant.tests:
            path, _, name = test.partition("::")
            source = (ROOT / path).read_text()
            wanted = name.partition("[")[0]
            assert not wanted or re.search(rf"^ *def {wanted}\(", source, re.MULTILINE), f"{mutant.name}: {test}"


def test_mutants_fit_on_their_lines():
    """Names say in words what comes out wrong, each once, and short enough for a table."""
    names = [mutant.name for mutant in MUTANTS]
    assert len(set(names)) == len(names) >= 100
    assert [name for name in names if len(name) > 120 or name.endswith(".")] == []


@pytest.mark.parametrize(
    ("code", "inside", "verdict"),
    [
        (0, "", (True, 0, 0, False)),
        (1, '<failure message="assert 1 == 2"/>', (False, 1, 0, False)),
        (1, '<error message="fixture is missing"/>', (False, 0, 1, False)),
        (1, '<failure message="Failed: Timeout (&gt;9.0s) from pytest-timeout."/>', (False, 0, 0, True)),
        (0, '<skipped message="needs Java"/>', (False, 0, 1, False)),
        (4, "", (False, 0, 1, False)),
    ],
    ids=["passed", "failed", "error", "timeout", "skipped", "not found"],
)
def test_outcome_tells_a_failing_test_from_one_that_did_not_run(tmp_path, code, inside, verdict):
    report = tmp_path / "report.xml"
    report.write_text(
        f'<testsuites><testsuite><testcase classname="a" name="b">{inside}</testcase></testsuite></testsuites>'
    )
    outcome = _outcome(code, report, "")
    told = outcome.passed, len(outcome.failed), len(outcome.errors), bool(outcome.timed_out)
    assert told == verdict
    assert _outcome(3, Path(tmp_path, "nothing.xml"), "killed").errors == ["pytest ended with 3: killed"]


def test_read_mutants_refuses_a_list_that_says_nothing(tmp_path):
    entry = '[[mutant]]\nname = "a"\nfile = "f"\nold = "x"\nnew = "{}"\ntests = {}\n'
    listed = tmp_path / "list.toml"
    for text, what in (
        (entry.format("y", '["t"]') * 2, "more than one"),
        (entry.format("x", '["t"]'), "changes nothing"),
        (entry.format("y", "[]"), "names no test"),
    ):
        listed.write_text(text)
        with pytest.raises(ValueError, match=what):
            read_mutants(listed)
    listed.write_text(entry.format("y", '["t"]') + "jit = false\n")
    assert read_mutants(listed) == [Mutant("a", "f", "x", "y", ("t",), False)]
