"""The output folder of a run: never overwritten by accident, and known again after a failure."""

import pytest

from matching.errors import ConfigError
from topology.folder import RUNNING, RunFolder, prepare_out


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
