"""`skyray run --resume auto`: the same command again and again, killed -9 in between, ends as an undisturbed run."""

import json
import os
import signal

import pytest

from gateway import cli
from tests.support.processes import Command, small_run

pytestmark = pytest.mark.fault

#: Runs the command line and kills it -9: MOMENT is the function at whose NUMBER-th call, before or after it.
KILLED_AT = """
import importlib, os, signal, sys
module, owner, name, number, when, *arguments = sys.argv[1:]
import topology.running
holder = getattr(importlib.import_module(module), owner)
real, calls = getattr(holder, name), []

def killing(*given, **named):
    calls.append(0)
    last = len(calls) == int(number)
    if last and when == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    answer = real(*given, **named)
    if last:
        os.kill(os.getpid(), signal.SIGKILL)
    return answer

setattr(holder, name, killing)
from gateway.cli import main
sys.exit(main(arguments))
"""
REPORT = "topology.folder", "RunFolder", "write_report"
COMMIT = "topology.core.checkpoint.store", "CheckpointStore", "commit"
#: The second `write_report` is that of the end.
MOMENTS = {
    "before its report": (*REPORT, 1, "before"),
    "before the first checkpoint": (*COMMIT, 1, "before"),
    "between checkpoints": (*COMMIT, 8, "after"),
    "at its end": (*REPORT, 2, "before"),
    "behind its end": (*REPORT, 2, "after"),
}


@pytest.fixture(scope="module")
def arguments(tmp_path_factory):
    folder = tmp_path_factory.mktemp("again")
    given = small_run(folder, messages=400, batch=10)
    # with a seed a checkpoint is written before the stream continues: there are as many at every speed
    return [*given, "--executor", "local", "--set", "topology.seed=1", "--checkpoint-every", 0.0001, "--resume", "auto"]


@pytest.fixture(scope="module")
def digest(arguments, tmp_path_factory):
    """That of a run that nothing has disturbed."""
    out = tmp_path_factory.mktemp("whole") / "out"
    assert cli.main(list(map(str, [*arguments, "--out", out]))) == 0
    report = report_of(out)
    assert sum(report["delivery"]["updates"].values()) > 500
    return report["digest"]


def report_of(out):
    return json.loads((out / "run.json").read_text())


def kill_at(moment, arguments):
    with Command([*MOMENTS[moment], *arguments], script=KILLED_AT) as command:
        code, _, said = command.finish()
    assert code == -signal.SIGKILL, f"was not killed {moment}: {said}"


def run_again(arguments):
    """The same command, to its end, in this process."""
    return cli.main(list(map(str, arguments)))


@pytest.mark.parametrize(
    "moment", [name if "between" in name else pytest.param(name, marks=pytest.mark.long) for name in MOMENTS]
)
def test_same_command_after_a_kill_ends_as_an_undisturbed_run(arguments, digest, tmp_path, capsys, moment):
    out = tmp_path / "out"
    arguments = [*arguments, "--out", out]
    kill_at(moment, arguments)
    assert run_again(arguments) == 0
    finished = "already finished" in capsys.readouterr().err
    report = report_of(out)
    assert (report["state"], report["digest"]) == ("finished", digest)
    assert finished == (moment == "behind its end")
    assert (report["incarnation"] > 0) == (moment not in ("before its report", "behind its end"))


@pytest.mark.long
def test_same_command_killed_at_all_moments_one_after_the_other(arguments, digest, tmp_path):
    """Each kill strikes the run that the one before has left."""
    out = tmp_path / "out"
    arguments = [*arguments, "--out", out]
    for moment in ("before its report", "before the first checkpoint", "between checkpoints", "at its end"):
        kill_at(moment, arguments)
    assert run_again(arguments) == 0 and report_of(out)["digest"] == digest
    before = (out / "run.json").read_bytes()
    assert run_again(arguments) == 0 and (out / "run.json").read_bytes() == before


def test_same_command_twice_at_the_same_time_runs_once(arguments, digest, tmp_path, capsys):
    out = tmp_path / "out"
    arguments = [*arguments, "--out", out]
    with Command([*arguments, "--set", "input.rate=20"]) as first:
        first.await_(lambda: (out / "run.json").exists())
        assert run_again(arguments) == 9
        assert f"another run writes there (process {first.process.pid})" in capsys.readouterr().err
        assert first.process.poll() is None
        os.kill(first.process.pid, signal.SIGKILL)
        first.finish()
    assert run_again(arguments) == 0 and report_of(out)["digest"] == digest


@pytest.mark.long
def test_killed_run_without_checkpoints_begins_anew(arguments, digest, tmp_path):
    out = tmp_path / "out"
    arguments = [*arguments, "--out", out, "--checkpoint-every", 0]
    kill_at("at its end", arguments)
    assert run_again(arguments) == 0
    report = report_of(out)
    assert (report["digest"], report["incarnation"]) == (digest, 0)


@pytest.mark.parametrize("state", ["finished", pytest.param("running", marks=pytest.mark.long)])
def test_other_settings_are_refused_with_their_names(arguments, digest, tmp_path, capsys, state):
    out = tmp_path / "out"
    arguments = [*arguments, "--out", out]
    if state == "finished":
        assert run_again(arguments) == 0
    else:
        kill_at("before the first checkpoint", arguments)
    before = (out / "run.json").read_bytes()
    assert run_again([*arguments, "--window", "count:99", "--limit", 7]) == 2
    said = capsys.readouterr().err
    assert "window was 'count:100', is 'count:99'; limit was None, is 7" in said, said
    assert (out / "run.json").read_bytes() == before
    assert run_again([*arguments, "--query-bolts", 2]) == 0 and report_of(out)["digest"] == digest


def test_finished_run_needs_its_inputs_no_more(arguments, digest, tmp_path, capsys):
    """And they are known by their whole paths."""
    copy, at = tmp_path / "mine.jsonl", arguments.index("--subscriptions") + 1
    copy.write_bytes(arguments[at].read_bytes())
    arguments = [*arguments[:at], copy, *arguments[at + 1 :], "--out", tmp_path / "out"]
    code = run_again(arguments)
    copy.unlink()
    assert (code, run_again(arguments)) == (0, 0), capsys.readouterr().err


def test_folder_of_something_else_and_overwrite_are_refused(arguments, tmp_path, capsys):
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine").write_text("kept")
    assert run_again([*arguments, "--out", out]) == 2 and (out / "mine").read_text() == "kept"
    assert run_again([*arguments, "--out", tmp_path / "new", "--overwrite"]) == 2
    assert "leave one of them out" in capsys.readouterr().err and not (tmp_path / "new").exists()
    assert run_again(["run", "--batch", "log:live", "--out", tmp_path / "new", "--resume", "auto"]) == 2
    assert "give --resume RUN_DIR" in capsys.readouterr().err
