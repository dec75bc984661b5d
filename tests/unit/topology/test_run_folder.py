"""The output folder of a run: never overwritten by accident, and known again after a failure."""

import os
import random
import stat
from importlib.metadata import version

import pytest

from matching.errors import ConfigError, InputError
from tests.support.mirrored_disk import MirroredDisk
from tests.support.simulated_disk import Halted, Machine
from topology.core.checkpoint.storage import LocalDisk, written
from topology.folder import DIED, FINISHED, FORMATS, REPORT, RUNNING, RunFolder, check_out, checksum, refuse_changed


def begin(out, overwrite=False, fails="", write=("run.json",)):
    """A run that writes these files, and fails before it has opened, after, or not."""
    folder = RunFolder(out)
    with folder.locked(), folder.beginning(overwrite) as note_opened:
        for name in write:
            (out / name).parent.mkdir(exist_ok=True)
            (out / name).write_text("new")
        if fails == "at open":
            raise InputError("broken_file", "as told")
        note_opened()
        if fails:
            raise InputError("broken_file", "as told")


def files(out):
    """What is there, but for the lock."""
    found = {path.relative_to(out).as_posix(): path.read_text() for path in out.rglob("*") if path.is_file()}
    found.pop(".lock", None)
    return found


def test_run_folder_of_a_run_that_has_opened_is_kept_whatever_comes(tmp_path):
    begin(tmp_path / "first")
    with pytest.raises(InputError, match="as told"):
        begin(tmp_path / "second", fails="later")
    assert files(tmp_path / "first") == files(tmp_path / "second") == {"run.json": "new"}


@pytest.mark.parametrize("there", [False, True])
def test_run_folder_of_a_run_that_fails_at_open_is_free(tmp_path, there):
    out = tmp_path / "out"
    if there:
        out.mkdir()
    for _ in range(2):
        with pytest.raises(InputError, match="as told"):
            begin(out, fails="at open", write=("run.json", "updates/.part.tmp"))
        assert out.exists() == there and files(tmp_path) in ({}, {"out/.lock": str(os.getpid())})
    begin(out)


def test_run_folder_that_is_replaced_is_so_once_the_run_has_opened(tmp_path):
    out = tmp_path / "out"
    begin(out, write=("run.json", "updates/part-0", "results.parquet"))
    before = files(out)
    with pytest.raises(InputError, match="as told"):
        begin(out, True, "at open", ("run.json", "rejected.jsonl"))
    assert files(out) == before and len(before) == 3
    begin(out, True, write=("run.json", "rejected.jsonl"))
    assert files(out) == {"run.json": "new", "rejected.jsonl": "new"}


def test_run_folder_whose_process_died_while_it_began_is_replaced(tmp_path):
    out = tmp_path / "out"
    begin(out)
    (out / ".before").mkdir()
    (out / "run.json").rename(out / ".before" / "run.json")
    begin(out, True)
    assert files(out) == {"run.json": "new"}


@pytest.mark.parametrize("stops", [False, True], ids=["killed", "stopped"])
def test_run_folder_whose_process_died_while_it_was_emptied_is_still_a_runs(tmp_path, stops):
    """Whatever is left can be resumed or replaced: it is not taken for files that no run wrote."""
    for number in range(20):
        machine = Machine(str(tmp_path))
        disk = MirroredDisk(machine, tmp_path / str(number))
        out = disk.root / "out"
        with disk.watched():
            folder = RunFolder(out)
            for name in ("updates", "checkpoints"):
                with written(LocalDisk(out / name), "one", ".one.tmp") as file:
                    file.write(b"1")
            folder.write_report(RUNNING, {})
        machine.halt_before(None, number)
        died = False
        try:
            with disk.watched():
                folder.empty()
        except Halted:
            died = True
        disk.restart()
        if stops:
            disk.lose(random.Random(number))
        check_out(out, overwrite=True)
        machine.forget()
        if not died:
            break
    assert number > 5


def test_run_folder_in_use_is_refused_without_overwrite(tmp_path):
    begin(tmp_path / "out")
    with pytest.raises(ConfigError, match="in use"):
        begin(tmp_path / "out")


def test_run_folder_with_what_no_run_wrote_is_never_replaced(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(ConfigError, match="remove it yourself"):
        begin(tmp_path, overwrite=True)
    assert (tmp_path / "thesis.txt").read_text() == "mine"


def test_run_folder_of_a_process_that_died_says_so(tmp_path):
    folder = RunFolder(tmp_path)
    with folder.locked():
        folder.write_report(RUNNING, {})
        assert RunFolder(tmp_path).state() == RUNNING
    assert RunFolder(tmp_path).state() == DIED
    folder.write_report(FINISHED, {})
    assert RunFolder(tmp_path).state() == FINISHED


def test_run_folder_is_held_by_one_process_at_a_time(tmp_path):
    folder = RunFolder(tmp_path / "out")
    refused = pytest.raises(ConfigError, match=f"another run writes there .process {os.getpid()}.")
    with folder.locked(), refused, folder.locked():
        pass
    with RunFolder(tmp_path / "out").locked():
        assert RunFolder(tmp_path / "out").path.is_dir()
    assert not (tmp_path / "out").exists(), "nothing was written there"


def test_run_folder_report_is_whole_or_told_to_be_missing(tmp_path):
    folder = RunFolder(tmp_path)
    with pytest.raises(InputError, match="has no run.json"):
        folder.report()
    folder.write_report(RUNNING, {"digest": "0"})
    stamp = {"release": version("skyray"), "formats": FORMATS}
    assert folder.report() == {"state": "running", "digest": "0", **stamp}
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(InputError, match="cannot be read"):
        folder.report()


def test_inputs_that_have_changed_are_named(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text("one")
    before = {str(file): checksum(file)}
    refuse_changed(before, before, followed=False)
    file.write_text("two")
    with pytest.raises(InputError, match="a.jsonl: has changed since the run began"):
        refuse_changed(before, {str(file): checksum(file)}, followed=True)
    with pytest.raises(InputError, match="a.jsonl: was read when the run began and is gone"):
        refuse_changed(before, {}, followed=False)
    more = before | {str(tmp_path / "b.jsonl"): "0"}
    refuse_changed(before, more, followed=True)
    with pytest.raises(InputError, match="b.jsonl: was not there when the run began"):
        refuse_changed(before, more, followed=False)


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_folder_of_a_new_run_is_for_its_user_alone_and_stays_as_people_set_it(tmp_path):
    """Also one that was there, with the keys of the server that is to write to it."""
    for out in (tmp_path / "new", tmp_path / "there"):
        if out.name == "there":
            out.mkdir(0o755)
        with RunFolder(out).locked():
            assert mode_of(out) == 0o700
            (out / REPORT).write_text("{}")
        out.chmod(0o750)
        with RunFolder(out).locked():
            assert mode_of(out) == 0o750
    with LocalDisk(tmp_path / "checkpoints").create("part") as file:
        file.write(b"x")
    assert mode_of(tmp_path / "checkpoints") == 0o700
