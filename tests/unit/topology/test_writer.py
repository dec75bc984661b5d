"""States written behind the stream: nothing that was begun is forgotten, and what fails is told."""

import threading

import numpy as np
import pytest

from matching.errors import ConfigError
from topology.core.checkpoint.barriers import Cadence
from topology.core.checkpoint.coordinator import CheckpointCoordinator, Checkpoints
from topology.core.checkpoint.storage import LocalDisk, Output
from topology.core.checkpoint.store import CheckpointStore, Manifest
from topology.core.checkpoint.task_states import Copied, TaskState
from topology.core.checkpoint.writer import Writer

STATE = TaskState("count", 0, 1, 7, {"totals": np.arange(5)})


def test_writer_drain_waits_for_what_was_begun(tmp_path):
    """As the driver does at the end of a run: a part of the last checkpoint may still be without its name."""
    release = threading.Event()

    def close():
        assert release.wait(20)
        return Output("hidden", "part")

    writer = Writer(CheckpointStore(str(tmp_path)), 0)
    writer.write(Copied(3, 12, STATE, [close], 0.25))
    assert writer.fetch() == []
    threading.Timer(0.05, release.set).start()
    writer.drain()
    (written,) = writer.fetch()
    writer.close()
    assert (written.address, written.epoch, written.number, written.pause_s) == (3, 12, 7, 0.25)
    assert written.outputs == (Output("hidden", "part"),) and written.error == written.fatal == ""
    assert (tmp_path / written.file.name).stat().st_size == written.file.size_bytes


def test_writer_tells_a_checkpoint_that_fails_from_an_output_that_is_lost(tmp_path):
    (tmp_path / "file").write_text("where the folder should be")
    writer = Writer(CheckpointStore(str(tmp_path / "file")), 0, behind=False)
    writer.write(Copied(0, 0, STATE, [], 0.0))

    def fails():
        raise OSError("the disk is full")

    writer.write(Copied(0, 1, STATE, [fails], 0.0))
    unsaved, lost = writer.fetch()
    assert unsaved.file is None and "cannot be written" in unsaved.error and not unsaved.fatal
    assert lost.file is None and lost.fatal == "the disk is full"


class DiskWithoutRenames(LocalDisk):
    """A folder of this machine in which nothing is renamed, as in a store of objects."""

    renames = False

    def rename(self, old, new):
        raise OSError(f"{old}: cannot be renamed")


def test_store_on_a_disk_without_renames_writes_the_manifest_last_and_reads_it_back(tmp_path):
    store = CheckpointStore("unused")
    store._disk = DiskWithoutRenames(tmp_path / "checkpoints")
    assert store.newest() is None and store.last_epoch() == -1
    for epoch in range(3):
        file = store.write_task(STATE, epoch, 0)
        store.commit(Manifest(epoch, 7, 0, (file,), (), {}))
        store.prune()
    manifest = store.newest()
    assert manifest is not None and manifest.epoch == 2
    assert store.load(manifest).single("count")["totals"].tolist() == [0, 1, 2, 3, 4]
    assert len(store.disk.names()) == 4, "two checkpoints of two files are kept"
    store.disk.remove(manifest.files[0].name)
    assert store.newest().epoch == 1 and len(store.refused) == 1


@pytest.mark.parametrize("uri", ["hdfs://host/runs", "gs://bucket/runs"])
def test_store_of_an_unknown_scheme_is_refused_with_those_that_are_known(uri):
    with pytest.raises(ConfigError, match=f"{uri}: .*give a path, or a URI file:// or s3://"):
        CheckpointStore(uri).last_epoch()


@pytest.mark.parametrize("resumed", [False, True], ids=["same process", "resumed"])
def test_committer_leaves_nothing_of_a_checkpoint_that_failed(tmp_path, resumed):
    """What is left of it would take up the room that the next one needs; the one before stays."""
    store = CheckpointStore(str(tmp_path))
    settings = Checkpoints(store, Cadence(seconds=1.0), str(tmp_path))
    committer = CheckpointCoordinator(settings, (0, 1))
    writer = Writer(store, 0, behind=False)
    for task in (0, 1):
        writer.write(Copied(task, 0, STATE._replace(task=task, tasks=2), [], 0.0))
    assert committer.take(writer.fetch()) == [0] and committer.committed == 0
    before = set(store.disk.names())
    writer.write(Copied(0, 1, STATE._replace(tasks=2), [], 0.0))
    (whole,) = writer.fetch()
    assert set(store.disk.names()) > before
    failed = whole._replace(address=1, file=None, error="no space left")
    if resumed:
        committer = CheckpointCoordinator(settings, (0, 1))
    assert committer.take([whole, failed]) == [1] and committer.committed == (-1 if resumed else 0)
    assert set(store.disk.names()) == before and store.newest().epoch == 0
    assert committer.figures[-1]["failed"] == "no space left"


def test_store_prune_damaged_checkpoint_is_not_one_of_those_kept(tmp_path):
    store = CheckpointStore(str(tmp_path))
    for epoch in range(4):
        store.commit(Manifest(epoch, 7, 0, (store.write_task(STATE, epoch, 0),), (), {}))
    damaged = tmp_path / "epoch-000002.json"
    damaged.write_bytes(damaged.read_bytes()[:-9])
    store.prune()
    left = {name.split(".")[0] for name in store.disk.names()}
    assert left == {"epoch-000003", "epoch-000001"}
    (tmp_path / "epoch-000003.json").unlink()
    assert store.newest().epoch == 1
