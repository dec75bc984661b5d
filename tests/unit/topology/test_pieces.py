"""Pieces of snapshots that have not changed are not written again; two checkpoints in a row have no common file."""

import numpy as np
import pytest

from matching.errors import CheckpointError
from topology.core.api.component import Piece
from topology.core.checkpoint import store as module
from topology.core.checkpoint.store import CheckpointStore, Manifest, Writer
from topology.core.checkpoint.task_states import Copied, TaskState


@pytest.fixture(autouse=True)
def every_piece_has_a_file(monkeypatch):
    monkeypatch.setattr(module, "SMALL_PIECE_BYTES", 0)


class Task:
    """Takes checkpoints of one task with a piece `names`, whose version says how many there are."""

    def __init__(self, folder):
        self.store = CheckpointStore(str(folder))
        self.writer = Writer(self.store, 0, behind=False)
        self.epoch = self.committed = -1
        self.made = 0

    def save(self, version, commit=True):
        """Returns what was written, without an error unless it says one."""
        self.epoch += 1
        stored = self.writer.stored(0, self.committed)

        def names():
            self.made += 1
            assert stored.get("names") != version, "it is in a file"
            return {"names": np.arange(version)}

        pieces = {"": Piece(lambda: {"total": np.array(self.epoch)}), "names": Piece(names, version)}
        self.writer.write(Copied(0, self.epoch, TaskState("count", 0, 1, 10 * self.epoch, {}), [], 0.0, pieces))
        (written,) = self.writer.fetch()
        if commit and written.file is not None:
            self.store.commit(Manifest(self.epoch, 10 * self.epoch, 0, (written.file,), (), {}))
            self.store.prune()
            self.committed = self.epoch
        elif not commit:
            self.store.clear_above(self.committed)
        return written

    def restored(self):
        manifest = self.store.newest()
        assert manifest is not None
        state = self.store.load(manifest).single("count")
        return manifest.epoch, int(state["total"]), state["names"].shape[0]


def test_piece_that_has_not_changed_is_not_written_again(tmp_path):
    task = Task(tmp_path)
    written = [task.save(5).written_bytes for _ in range(6)]
    assert task.made == 2, "once for each of the two checkpoints that are kept"
    assert written[0] == written[1] > written[2] == written[5]
    assert task.restored() == (5, 5, 5)
    assert len(task.store.disk.names()) == 2 * 3


def test_checkpoints_in_a_row_have_no_file_in_common_and_each_can_be_read(tmp_path):
    task, names = Task(tmp_path), []
    for version in (1, 1, 1, 4, 4, 4, 4, 5, 6, 6):
        names.append(task.save(version).file.names)
        assert task.restored() == (task.epoch, task.epoch, version)
        assert not set.intersection(*names[-2:]) or len(names) == 1
    (tmp_path / sorted(names[-1])[0]).write_bytes(b"damaged")
    assert task.restored() == (8, 8, 6)


def test_piece_of_an_abandoned_checkpoint_is_not_used(tmp_path):
    task = Task(tmp_path)
    for version in (1, 1, 2):
        task.save(version)
    assert task.save(3, commit=False).error == "" and task.restored() == (2, 2, 2)
    for version in (3, 3, 3, 3):
        assert task.save(version).error == ""
        assert task.restored() == (task.epoch, task.epoch, 3)


def test_piece_whose_file_is_gone_fails_one_checkpoint_and_is_written_anew(tmp_path):
    task = Task(tmp_path)
    task.save(1)
    written = task.save(1)
    (first,) = {name for name in task.store.disk.names() if ".names." in name} - written.file.names
    task.store.disk.remove(first)
    failed = task.save(1)
    assert failed.file is None and first in failed.error
    assert task.save(1).error == "" and task.restored() == (3, 3, 1)


def test_small_piece_has_no_file_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "SMALL_PIECE_BYTES", 100)
    task = Task(tmp_path)
    assert [len(task.save(version).file.names) for version in (3, 3, 3, 30, 30, 30)] == [1, 1, 1, 2, 2, 2]
    assert task.restored() == (5, 5, 30)


@pytest.mark.parametrize("wrong", ["later", "twice"])
def test_newest_finds_a_manifest_of_wrong_pieces(tmp_path, wrong):
    task = Task(tmp_path)
    task.save(1)
    file = task.save(1).file
    (piece,) = file.pieces
    pieces = (piece._replace(number=piece.number + 10),) if wrong == "later" else (piece, piece)
    task.store.commit(Manifest(1, 10, 0, (file._replace(pieces=pieces),), (), {}))
    assert task.restored() == (0, 0, 1)
    with pytest.raises(CheckpointError, match="later than 10" if wrong == "later" else "another piece has too"):
        task.store._read_task(file._replace(pieces=pieces), 10)
