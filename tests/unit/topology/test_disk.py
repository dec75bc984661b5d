"""What is forced to disk, and when: the order of calls, which no test of contents can see."""

import os
from pathlib import Path

import pytest

from topology.core.checkpoint.storage import LocalDisk, Output, publish, written


@pytest.fixture
def calls(monkeypatch):
    """Names of files that are forced to disk or renamed, as it happens."""
    told = []
    fsync, replace = os.fsync, os.replace

    def record_fsync(descriptor):
        told.append(("force", Path(os.readlink(f"/proc/self/fd/{descriptor}")).name))
        fsync(descriptor)

    def record_replace(old, new):
        told.append(("rename", Path(old).name, Path(new).name))
        replace(old, new)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(os, "replace", record_replace)
    return told


def test_written_file_is_forced_before_it_has_its_name_and_the_name_after(calls, tmp_path):
    with written(LocalDisk(tmp_path / "folder"), "name", ".name.tmp") as file:
        file.write(b"data")
        assert not calls
    wanted = [("force", ".name.tmp"), ("force", "folder"), ("force", tmp_path.name)]
    assert calls == [*wanted, ("rename", ".name.tmp", "name"), ("force", "folder")]
    assert (tmp_path / "folder" / "name").read_bytes() == b"data"


def test_sync_forces_the_name_too_and_the_folder_once(calls, tmp_path):
    """A manifest in another folder names the hidden file: that it is there must not depend on a later rename."""
    disk = LocalDisk(tmp_path / "folder")
    for name in ("one", "two"):
        with disk.create(name) as file:
            file.write(b"data")
        assert disk.sync(name) == 4
    assert calls == [("force", name) for name in ("one", "folder", tmp_path.name, "two", "folder")]


def test_publish_forces_the_new_name(calls, tmp_path):
    (tmp_path / ".part.tmp").write_bytes(b"data")
    publish(Output(f"{tmp_path}/.part.tmp", f"{tmp_path}/part"))
    assert calls == [("rename", ".part.tmp", "part"), ("force", tmp_path.name)]


def test_written_leaves_an_older_file_as_it_was_where_it_fails(tmp_path):
    (tmp_path / "name").write_bytes(b"older")
    with pytest.raises(OSError, match="full"), written(LocalDisk(tmp_path), "name", ".name.tmp") as file:
        file.write(b"half")
        raise OSError("full")
    assert [path.name for path in tmp_path.iterdir()] == ["name"]
    assert (tmp_path / "name").read_bytes() == b"older"
