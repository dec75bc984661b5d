"""Exit codes: the same fault has the same code in every command, the one that --help promises; nothing half is left."""

import errno
import json
import os
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gateway import cli
from gateway.load.loadtest import write_report
from gateway.shell import exit_codes
from gateway.sinks.stream import SinkAway
from matching.errors import DeliveryError, EngineError
from tests.support.small_runs import small_run

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return small_run(tmp_path_factory.mktemp("codes")).parent


def asked(folder, out):
    """Commands that write, to a place of that name."""
    etl, file = folder / "etl", folder / "topk.jsonl"
    run = ["run", "--messages", etl, "--subscriptions", file, "--executor", "local", "--window", "count:60"]
    return {
        "run": [*run, "--out", out],
        "generate": ["subscriptions", "generate", "--messages", etl, "--kind", "knn", "--count", "2000", "--out", out],
        "map": ["show", folder / "run", "place", "--map", f"{out}.png"],
    }


WRITING = ["run", "generate", "map"]


@pytest.mark.parametrize("command", WRITING)
@pytest.mark.parametrize("where", ["/proc/skyray", "/proc/self/skyray/deep", "under a file", "no folder"])
def test_exit_code_of_a_place_that_cannot_be_written_to_is_6(folder, tmp_path, capsys, command, where):
    """/proc takes no files, whoever asks."""
    (tmp_path / "file").write_text("kept")
    place = {"under a file": tmp_path / "file" / "x", "no folder": tmp_path / "no" / "x"}.get(where, where)
    code = cli.main(list(map(str, asked(folder, place)[command])))
    if (command, where) == ("run", "no folder"):  # a run makes its folders
        assert code == 0
        return
    told = capsys.readouterr().err
    assert code == 6 and "cannot be written" in told and told.count("\n") == 1, told
    assert (tmp_path / "file").read_text() == "kept"


def test_exit_code_of_a_load_test_whose_report_cannot_be_written_is_6():
    with pytest.raises(DeliveryError, match="cannot be written"):
        write_report({}, Path("/proc/skyray/report.json"))
    assert DeliveryError.exit_code == 6


def _small_files():
    resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048))


@pytest.mark.parametrize("command", WRITING)
def test_exit_code_of_a_full_disk_is_6(folder, tmp_path, command):
    """No file may grow above 2 kB: the system says so in the middle of writing, as it does when a disk is full."""
    arguments = [sys.executable, "-m", "gateway.entry", *map(str, asked(folder, tmp_path / "x")[command])]
    # what caches write is no part of the command
    environment = os.environ | {"MPLCONFIGDIR": str(tmp_path / "mpl"), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        arguments, cwd=ROOT, capture_output=True, text=True, timeout=300, preexec_fn=_small_files, env=environment
    )
    assert done.returncode == 6, done.stderr
    assert "cannot be written" in done.stderr and "Traceback" not in done.stderr


def missing(folder, nothing):
    """Commands that read, of what is not there."""
    etl, file, run = folder / "etl", folder / "topk.jsonl", folder / "run"
    return [
        ["show", nothing],
        ["explain", nothing, "a", "b"],
        ["explain", run, "mine", "nobody"],
        ["verify", nothing],
        ["match", "--subscriptions", nothing, "--messages", etl, "--text", "a", "--at", "1,1"],
        ["match", "--subscriptions", file, "--messages", nothing, "--text", "a", "--at", "1,1"],
        ["subscriptions", "check", nothing, "--messages", etl],
        ["subscriptions", "check", file, "--messages", nothing],
        ["subscriptions", "generate", "--messages", nothing, "--kind", "knn", "--count", "1", "--out", nothing / "x"],
        ["run", "--messages", nothing, "--subscriptions", file, "--out", nothing / "x", "--executor", "local"],
        ["run", "--messages", etl, "--subscriptions", nothing, "--out", nothing / "x", "--executor", "local"],
        ["run", "--resume", nothing],
        ["etl", nothing, "--out", nothing / "x"],
        ["etl", nothing, "--dry-run", "3"],
        ["live", "--vocabulary", nothing],
        ["topology", "show", "--messages", nothing, "--subscriptions", file],
    ]


@pytest.mark.parametrize("number", range(16))
def test_exit_code_of_what_is_not_there_is_4(folder, tmp_path, capsys, number):
    nothing = tmp_path / "nothing"
    assert cli.main(list(map(str, missing(folder, nothing)[number]))) == 4
    told = capsys.readouterr()
    assert told.out == "" and told.err.startswith("error: ") and told.err.count("\n") == 1
    assert not nothing.exists()


def test_exit_code_of_a_file_that_is_there_is_2_and_it_is_kept(folder, tmp_path, capsys):
    path = tmp_path / "mine.jsonl"
    path.write_text("by hand\n")
    arguments = list(map(str, asked(folder, path)["generate"]))
    assert cli.main(arguments) == 2
    assert "--overwrite" in capsys.readouterr().err and path.read_text() == "by hand\n"
    assert cli.main([*arguments, "--overwrite"]) == 0 and len(path.read_text().splitlines()) == 2000


@pytest.mark.parametrize("options", [["--k", "99999999"], ["--k", "0"], ["--max-keywords", "257"]])
def test_exit_code_of_what_a_run_would_refuse_is_2_in_generate(folder, tmp_path, capsys, options):
    arguments = asked(folder, tmp_path / "x")["generate"]
    assert cli.main([*map(str, arguments), *options]) == 2
    assert not (tmp_path / "x").exists() and options[1] in capsys.readouterr().err.replace(",", "")


@pytest.mark.parametrize("as_json", [[], ["--json"]])
def test_exit_code_of_a_run_of_rejected_subscriptions_is_4(folder, tmp_path, capsys, as_json):
    rows = [
        "{",
        '{"kind": "topk"}',
        '{"subscription_id": "a", "kind": "knn", "keywords": "w1", "k": 0, "lon": 1, "lat": 1}',
    ]
    (tmp_path / "bad.jsonl").write_text("\n".join(rows))
    arguments = ["--messages", folder / "etl", "--subscriptions", tmp_path / "bad.jsonl", "--out", tmp_path / "run"]
    assert cli.main(["run", *map(str, arguments), "--executor", "local", *as_json]) == 4
    told = capsys.readouterr()
    assert "all 3 subscriptions were rejected" in told.err and "bad_k=1" in told.err and "rejected.jsonl" in told.err
    if as_json:
        assert json.loads(told.out)["spouts"]["subscriptions"]["rejected"] == 3
    assert json.loads((tmp_path / "run" / "run.json").read_text())["state"] == "finished"


def test_exit_code_of_a_run_of_messages_outside_the_world_is_4(folder, tmp_path, capsys):
    arguments = ["--messages", folder / "etl", "--subscriptions", folder / "boolean.jsonl", "--out", tmp_path / "run"]
    world = ["--world", "10.5,10.5,11,11"]
    assert cli.main(["run", *map(str, arguments), "--executor", "local", *world]) == 4
    assert "all 240 messages were set aside (outside_world=240)" in capsys.readouterr().err


def test_exit_code_0_where_one_row_is_good(folder, tmp_path, capsys):
    good = (folder / "knn.jsonl").read_text().splitlines()[0]
    (tmp_path / "one.jsonl").write_text("{\n" + good)
    arguments = ["--messages", folder / "etl", "--subscriptions", tmp_path / "one.jsonl", "--out", tmp_path / "run"]
    assert cli.main(["run", *map(str, arguments), "--executor", "local"]) == 0
    shown = capsys.readouterr().out
    assert "rejected subscriptions: not_json=1" in shown and str(tmp_path / "run") in shown.replace("\n", "")
    shutil.rmtree(tmp_path / "run")


def test_exit_codes_are_told_by_every_help(capsys):
    for command in (
        ["run"],
        ["show"],
        ["explain"],
        ["match"],
        ["subscriptions", "check"],
        ["subscriptions", "generate"],
    ):
        assert cli.main([*command, "--help"]) == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert "4 input missing, unreadable, or without one usable row" in shown
        assert "6 output cannot be written (disk full, read-only, no such folder)" in shown


def test_exit_codes_of_errors_are_in_the_table_and_each_is_one_error_s():
    errors = [EngineError]
    for error in errors:
        errors += error.__subclasses__()
    codes = [error.exit_code for error in errors if error.__module__ == "matching.errors"]
    assert len(codes) == len(set(codes)) > 8
    assert set(codes) | {0, SinkAway.exit_code, 130, 141, 143} == {one.code for one in exit_codes.CODES}


def test_exit_codes_of_the_documents_are_those_of_the_table():
    """And whether a job system should run the command again."""
    page = (ROOT / "docs" / "running.md").read_text().split("## Exit codes")[1]
    rows = re.findall(r"^\| (\d+) \| (.*) \| (yes|no)\b.* \|$", page, re.MULTILINE)
    known = {one.code: one for one in exit_codes.CODES}
    known[exit_codes.KILLED] = exit_codes.ExitCode(exit_codes.KILLED, "killed", True)
    assert {int(code): answer == "yes" for code, _, answer in rows} == {code: one.again for code, one in known.items()}
    for code, meaning, _ in rows:
        assert meaning.startswith(known[int(code)].meaning), meaning


def test_exit_codes_worth_another_try_are_in_the_help_of_a_run(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert cli.main(["run", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "with --resume auto: 3, 6, 9, 75, 130, 141, 143, and 137 (killed)" in shown


def test_full_file_system_is_named_by_the_paths_that_the_command_was_given(tmp_path, monkeypatch, capsys):
    """The system does not say which file it could not write."""
    full, real = tmp_path / "full", os.statvfs
    full.mkdir()

    def no_room(path):
        found = real(path)
        return os.statvfs_result([*found[:4], 0, *found[5:]]) if full in (Path(path), *Path(path).parents) else found

    def fails(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("gateway.cli.os.statvfs", no_room)
    monkeypatch.setattr("gateway.cli.check_packages", fails)
    assert cli.main(["run", "--messages", str(tmp_path), "--out", str(full / "not" / "there")]) == 6
    said = capsys.readouterr().err
    assert f"{full / 'not' / 'there'}: No space left" in said and "free space" in said and "system:" not in said
    assert cli.main(["run", f"--out={full}/x"]) == 6 and f"{full}/x: No space" in capsys.readouterr().err
    assert cli.main(["run"]) == 6 and "system: No space left on device; free space" in capsys.readouterr().err
