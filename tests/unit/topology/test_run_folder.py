"""The output folder of a run: never overwritten by accident, and known again after a failure."""

import os

import pytest

from matching.errors import ConfigError, InputError
from topology.folder import RUNNING, RunFolder, checksum, prepare_out, refuse_changed


def test_prepare_out_new_folder_is_made(tmp_path):
    prepare_out(tmp_path / "runs" / "first", overwrite=False)
    assert (tmp_path / "runs" / "first").is_dir()


def test_prepare_out_used_folder_is_refused_without_overwrite(tmp_path):
    prepare_out(tmp_path / "out", overwrite=False)
    RunFolder(tmp_path / "out").write_report(RUNNING, {})
    with pytest.raises(ConfigError, match="in use"):
        prepare_out(tmp_path / "out", overwrite=False)


def test_prepare_out_replaces_what_a_failed_run_left(tmp_path):
    prepare_out(tmp_path / "out", overwrite=False)
    RunFolder(tmp_path / "out").write_report(RUNNING, {})
    (tmp_path / "out" / "updates").mkdir()
    prepare_out(tmp_path / "out", overwrite=True)
    assert not (tmp_path / "out" / "updates").exists()


def test_prepare_out_never_removes_what_no_run_wrote(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(ConfigError, match="remove it yourself"):
        prepare_out(tmp_path, overwrite=True)
    assert (tmp_path / "thesis.txt").read_text() == "mine"


def test_run_folder_is_held_by_one_process_at_a_time(tmp_path):
    folder = RunFolder(tmp_path / "out")
    refused = pytest.raises(ConfigError, match=f"another run writes there .process {os.getpid()}.")
    with folder.held(), refused, folder.held():
        pass
    with RunFolder(tmp_path / "out").held():
        assert RunFolder(tmp_path / "out").path.is_dir()


def test_run_folder_report_is_whole_or_told_to_be_missing(tmp_path):
    folder = RunFolder(tmp_path)
    with pytest.raises(InputError, match="has no run.json"):
        folder.report()
    folder.write_report(RUNNING, {"digest": "0"})
    assert folder.report() == {"state": "running", "digest": "0"}
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
