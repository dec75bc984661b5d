"""Fragments of snapshots that have not changed are not written again, also by a process that was resumed; one that
stays the same gets two files, so that damage of one leaves a checkpoint."""

import random

import numpy as np
import pytest

from matching.errors import CheckpointError
from topology.core.api.component import Fragment
from topology.core.checkpoint import writer as module
from topology.core.checkpoint.store import CheckpointStore, Manifest
from topology.core.checkpoint.task_states import Copied, TaskState
from topology.core.checkpoint.writer import Writer


@pytest.fixture(autouse=True)
def every_fragment_has_a_file(monkeypatch):
    monkeypatch.setattr(module, "SMALL_FRAGMENT_BYTES", 0)


class Task:
    """Takes checkpoints of one task with a fragment `names`, which has `size` names."""

    def __init__(self, folder, incarnation=0):
        self.store = CheckpointStore(str(folder))
        self.incarnation = incarnation
        self.epoch, self.committed = self.store.last_epoch(), -1
        self.writer = Writer(self.store, incarnation, behind=False, kept=self.store.kept())
        self.made = 0

    def save(self, size, commit=True, first=0):
        """Returns what was written, without an error unless it says one. The version is one of this process."""
        self.epoch += 1
        stored = self.writer.stored(0, self.committed)
        version = size - self.incarnation

        def names():
            self.made += 1
            assert stored.get("names") != version, "it is in a file"
            return {"names": np.arange(first, first + size)}

        fragments = {"": Fragment(lambda: {"total": np.array(self.epoch)}), "names": Fragment(names, version)}
        self.writer.write(Copied(0, self.epoch, TaskState("count", 0, 1, 10 * self.epoch, {}), [], 0.0, fragments))
        (written,) = self.writer.fetch()
        if commit and written.file is not None:
            self.store.commit(Manifest(self.epoch, 10 * self.epoch, self.incarnation, (written.file,), (), {}))
            self.store.prune()
            self.committed = self.epoch
        elif not commit:
            self.store.clear_above(self.epoch - 1)
        return written

    def recognise(self, size):
        """Compare with what is kept, as a process does that was restored."""

        def names():
            self.made += 1
            return {"names": np.arange(size)}

        state = TaskState("count", 0, 1, self.epoch, {})
        fragment = Fragment(names, size - self.incarnation)
        self.writer.recognise(Copied(0, -1, state, [], 0.0, {"names": fragment}))

    def restored(self):
        manifest = self.store.newest()
        assert manifest is not None
        state = self.store.load(manifest).single("count")
        return manifest.epoch, int(state["total"]), state["names"].shape[0]

    def fragment(self, written):
        """The file of the fragment in a checkpoint."""
        (fragment,) = written.file.fragments
        return fragment.name


def damage(folder, name):
    """Flip the last byte of a file."""
    whole = (folder / name).read_bytes()
    (folder / name).write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))


def test_fragment_that_has_not_changed_is_written_once_and_copied_once(tmp_path):
    task = Task(tmp_path)
    written = [task.save(1_000) for _ in range(6)]
    assert task.made == 1
    first, second, *later = (one.written_bytes for one in written)
    assert first == second > 8_000 and {*later} == {first - written[0].file.fragments[0].size_bytes}
    names = [task.fragment(one) for one in written]
    assert names[0] == names[2] == names[4] != names[1] == names[3] == names[5]
    assert task.restored() == (5, 5, 1_000)
    assert len(task.store.disk.names()) == 2 * 3


def test_checkpoints_in_a_row_have_no_file_in_common_and_each_can_be_read(tmp_path):
    task, names = Task(tmp_path), []
    for version in (1, 1, 1, 4, 4, 4, 4, 5, 6, 6):
        names.append(task.save(version).file.names)
        assert task.restored() == (task.epoch, task.epoch, version)
        assert not set.intersection(*names[-2:]) or len(names) == 1
    (tmp_path / sorted(names[-1])[0]).write_bytes(b"damaged")
    assert task.restored() == (8, 8, 6)


def test_resumed_process_names_the_files_that_are_there(tmp_path):
    task = Task(tmp_path)
    written = [task.save(1_000) for _ in range(5)]
    resumed = Task(tmp_path, incarnation=64)
    later = [resumed.save(1_000) for _ in range(4)]
    assert resumed.made == 1 and max(one.written_bytes for one in later) < 2_000 < written[0].written_bytes
    names = [task.fragment(one) for one in [*written[2:], *later]]
    assert all(one != other for one, other in zip(names, names[1:], strict=False)) and len(set(names)) == 2
    assert resumed.restored() == (8, 8, 1_000)


def test_resumed_process_with_one_checkpoint_copies_its_fragment_once(tmp_path):
    Task(tmp_path).save(1_000)
    resumed = Task(tmp_path, incarnation=64)
    written = [resumed.save(1_000).written_bytes > 8_000 for _ in range(4)]
    assert written == [True, False, False, False] and resumed.made == 1 and resumed.restored() == (4, 4, 1_000)


@pytest.mark.parametrize(("size", "first"), [(999, 0), (1_001, 0), (1_000, 1)])
def test_resumed_process_writes_a_fragment_that_has_changed(tmp_path, size, first):
    task = Task(tmp_path)
    for _ in range(4):
        task.save(1_000)
    resumed = Task(tmp_path, incarnation=64)
    assert resumed.save(size, first=first).written_bytes > 7_000 and resumed.restored() == (4, 4, size)
    assert resumed.store.load(resumed.store.newest()).single("count")["names"][0] == first


@pytest.mark.parametrize("compares_first", [False, True])
@pytest.mark.parametrize("older", [True, False])
def test_resumed_process_names_no_damaged_file(tmp_path, older, compares_first):
    task = Task(tmp_path)
    written = [task.save(1_000) for _ in range(4)]
    bad = task.fragment(written[-2 if older else -1])
    damage(tmp_path, bad)
    resumed = Task(tmp_path, incarnation=64)
    if compares_first:
        resumed.recognise(1_000)
    later = [resumed.save(1_000) for _ in range(4)]
    assert bad not in {task.fragment(one) for one in later} and not any(one.error for one in later)
    assert resumed.restored() == (7, 7, 1_000) and not resumed.store.refused


def test_file_of_an_earlier_process_that_is_damaged_later_is_found_when_it_is_read(tmp_path):
    task = Task(tmp_path)
    for _ in range(4):
        task.save(1_000)
    resumed = Task(tmp_path, incarnation=64)
    for _ in range(2):
        last = resumed.save(1_000)
    damage(tmp_path, task.fragment(last))
    with pytest.raises(CheckpointError, match="damaged"):
        resumed.store._read_task(last.file, last.number)
    assert resumed.restored() == (4, 4, 1_000) and len(resumed.store.refused) == 1


def test_damaged_fragment_is_not_copied_and_written_anew(tmp_path):
    task = Task(tmp_path)
    damage(tmp_path, task.fragment(task.save(1_000)))
    failed = task.save(1_000)
    assert failed.file is None and "damaged" in failed.error
    assert task.save(1_000).error == "" and task.restored() == (2, 2, 1_000) and task.made == 2


@pytest.mark.parametrize("seed", range(3))
def test_no_file_that_a_kept_checkpoint_names_is_ever_removed(tmp_path, seed):
    """Over changes, checkpoints without a manifest, and processes that die between the two."""
    rng, size, resumed = random.Random(seed), 500, 0
    task = Task(tmp_path)
    for _ in range(40):
        deed = rng.random()
        if deed < 0.15:
            resumed += 1
            task = Task(tmp_path, incarnation=64 * resumed)
            task.store.clear_above(max((one.epoch for one in task.store.kept()), default=-1))
        size += deed > 0.8
        if deed < 0.3:
            task.save(size, commit=False)
            continue
        written = task.save(size)
        manifests = task.store.kept()
        there = set(task.store.disk.names())
        first, last = ({name for file in one.files for name in file.names} for one in (manifests[0], manifests[-1]))
        assert len(manifests) == 1 or not first & last
        assert all(file.names <= there for one in manifests for file in one.files)
        if not written.error:
            assert manifests[-1].epoch == task.epoch and task.restored() == (task.epoch, task.epoch, size)
    assert resumed > 1 and size > 502


def test_fragment_of_an_abandoned_checkpoint_is_not_used(tmp_path):
    task = Task(tmp_path)
    for version in (1, 1, 2):
        task.save(version)
    assert task.save(3, commit=False).error == "" and task.restored() == (2, 2, 2)
    for version in (3, 3, 3, 3):
        assert task.save(version).error == ""
        assert task.restored() == (task.epoch, task.epoch, 3)


def test_fragment_whose_file_is_gone_fails_one_checkpoint_and_is_written_anew(tmp_path):
    task = Task(tmp_path)
    first = task.fragment([task.save(1) for _ in range(2)][0])
    task.store.disk.remove(first)
    failed = task.save(1)
    assert failed.file is None and first in failed.error
    assert task.save(1).error == "" and task.restored() == (3, 3, 1)


def test_small_fragment_has_no_file_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "SMALL_FRAGMENT_BYTES", 100)
    task = Task(tmp_path)
    assert [len(task.save(version).file.names) for version in (3, 3, 3, 30, 30, 30)] == [1, 1, 1, 2, 2, 2]
    assert task.restored() == (5, 5, 30)


@pytest.mark.parametrize("wrong", ["later", "twice"])
def test_newest_finds_a_manifest_of_wrong_fragments(tmp_path, wrong):
    task = Task(tmp_path)
    task.save(1)
    file = task.save(1).file
    (fragment,) = file.fragments
    fragments = (fragment._replace(number=fragment.number + 20),) if wrong == "later" else (fragment, fragment)
    task.store.commit(Manifest(1, 10, 0, (file._replace(fragments=fragments),), (), {}))
    assert task.restored() == (0, 0, 1)
    with pytest.raises(CheckpointError, match="later than 10" if wrong == "later" else "another fragment has too"):
        task.store._read_task(file._replace(fragments=fragments), 10)


@pytest.mark.parametrize("checkpoints", [1, 2, 4])
def test_process_that_compares_as_it_is_resumed_makes_no_fragment_for_its_first_checkpoint(tmp_path, checkpoints):
    task = Task(tmp_path)
    for _ in range(checkpoints):
        task.save(1_000)
    resumed = Task(tmp_path, incarnation=64)
    resumed.recognise(1_000)
    assert resumed.made == 1 and resumed.writer.stored(0, -1) == {"names": 1_000 - 64}
    later = [resumed.save(1_000) for _ in range(4)]
    # `save` fails where a fragment is made that is in a file; a process with one checkpoint before it copies that once
    assert resumed.made == 1 and [one.written_bytes > 8_000 for one in later] == [checkpoints == 1] + 3 * [False]
    assert resumed.restored() == (checkpoints + 3, checkpoints + 3, 1_000)


def test_process_that_compares_as_it_is_resumed_writes_what_has_changed_since(tmp_path):
    task = Task(tmp_path)
    for _ in range(4):
        task.save(1_000)
    resumed = Task(tmp_path, incarnation=64)
    resumed.recognise(1_000)
    assert resumed.save(1_001).written_bytes > 8_000 and resumed.restored() == (4, 4, 1_001)
