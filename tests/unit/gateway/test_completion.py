"""Completion of the command line in a shell, and its version, each in a process of its own."""

import os
import subprocess
import sys
import tomllib

import pytest

from gateway.shell.packages import home


def skyray(words, **environment):
    """What a process prints that bash has started, and how it ends."""
    return subprocess.run(
        ["bash", "-c", '"$0" -m gateway.entry "$@"; exit $?', sys.executable, *words],
        cwd=home(),
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def completed(line):
    """What bash is offered for the last word of a line."""
    last = len(line.split(" ")) - 1
    done = skyray([], _SKYRAY_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=str(last))
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("skyray ru", ["run"]),
        ("skyray run --query-b", ["--query-bolts"]),
        ("skyray subscriptions gen", ["generate"]),
        ("skyray etl --st", ["--strict-attributes", "--stem", "--stop-share"]),
    ],
)
def test_completion_offers_commands_and_the_options_that_settings_make(line, expected):
    assert completed(line) == expected


def test_completion_is_installed_below_the_home_of_the_user(tmp_path):
    shown = skyray(["--show-completion"], HOME=str(tmp_path), SHELL="/bin/bash")
    assert shown.returncode == 0 and "_SKYRAY_COMPLETE=complete_" in shown.stdout
    assert not list(tmp_path.iterdir())
    installed = skyray(["--install-completion"], HOME=str(tmp_path), SHELL="/bin/bash")
    assert installed.returncode == 0, installed.stderr
    scripts = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any("_SKYRAY_COMPLETE" in path.read_text() for path in scripts)


def test_version_is_one_line_and_imports_nothing_heavy():
    done = skyray(["--version"])
    assert (done.returncode, done.stdout, done.stderr) == (0, f"skyray {version_of_project()}\n", "")
    code = (
        "import sys; from gateway.cli import main; main(['--version']);"
        "heavy = {'ray', 'pyspark', 'pyarrow', 'numba', 'pandas', 'pydantic'} & set(sys.modules);"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=home(), capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr


def version_of_project():
    return tomllib.loads((home() / "pyproject.toml").read_text())["project"]["version"]
