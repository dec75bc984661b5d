"""Ctrl-C and a polite kill, in every phase of a run: one line, the exit code a shell expects, nothing left."""

import os
import signal
from pathlib import Path

import pytest

from tests.support.covering import tiered
from tests.support.processes import Command, small_run

pytestmark = [pytest.mark.ray, pytest.mark.fault]

NAMED = [
    pytest.param(signal.SIGINT, 130, "interrupted", id="SIGINT"),
    pytest.param(signal.SIGTERM, 143, "terminated", id="SIGTERM"),
]
#: What has to be there before the signal is sent: a process by a word of its command line, or a checkpoint.
PHASES = {"ray starts": "gcs_server", "node starts": "raylet/raylet", "tasks start": "ray::", "running": None}


@pytest.fixture(scope="module")
def arguments(tmp_path_factory):
    """A run that takes minutes: a batch for each message."""
    return small_run(tmp_path_factory.mktemp("interrupts"), messages=20_000, batch=1)


def interrupted(arguments, tmp_path, phase, number, send):
    """Start a run, send the signal in a phase; exit code and line. Nothing is left by then."""
    out = tmp_path / "out"
    with Command([*arguments, "--out", out, "--checkpoint-every", "0.3"]) as command:
        word = PHASES[phase]
        command.await_(lambda: _is_running(out) if word is None else command.has_started(word))
        send(command.process.pid, number)
        code, printed, said = command.finish(80)
        command.assert_nothing_left()
    assert (printed == "") == (word is not None)  # a run that drains has something to tell
    return code, said


def _is_running(out: Path) -> bool:
    return any((out / "checkpoints").glob("epoch-*.json"))


#: The next tests have these phases.
LATER = [pytest.param(phase, marks=pytest.mark.wide) for phase in ("ray starts", "node starts")]


@pytest.mark.parametrize(("number", "code", "word"), tiered(NAMED, 2))
@pytest.mark.parametrize("phase", [*LATER, "tasks start", "running"])
def test_run_told_to_end_does_so_in_every_phase(arguments, tmp_path, phase, number, code, word):
    ended, said = interrupted(arguments, tmp_path, phase, number, os.kill)
    assert ended == code, said
    assert said.startswith(f"error: {word}") and said.count("\n") == 1, said


@pytest.mark.parametrize(("number", "code", "word"), tiered(NAMED, 2, 1))  # processes of Ray do not hear of SIGINT
def test_run_whose_whole_group_is_told_to_end_does_so(arguments, tmp_path, number, code, word):
    """As a terminal does on Ctrl-C, and `timeout` or a service manager on its end: Ray's processes get it as well."""
    ended, said = interrupted(arguments, tmp_path, "node starts", number, os.killpg)
    assert ended == code, said
    assert said.startswith(f"error: {word}") and said.count("\n") == 1, said


def test_load_test_told_to_end_does_so():
    with Command(["loadtest", "--rate", 100, "--seconds", 600, "--executor", "ray"]) as command:
        command.await_(lambda: command.has_started("gcs_server"))
        os.kill(command.process.pid, signal.SIGINT)
        assert command.finish(40) == (130, "", "error: interrupted\n")
        command.assert_nothing_left()
