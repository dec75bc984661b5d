"""A damaged checkpoint is always found out, and the one before it is gone on from: never damage, never half of one."""

import json
import random

import numpy as np
import pytest

from matching.errors import CheckpointError
from tests.support.clocks import FakeClock
from tests.support.simulated_disk import Halted, Machine
from tests.support.writing_ledger import writing_ledger
from topology.core.checkpoint import store as module
from topology.core.checkpoint.barriers import Cadence
from topology.core.checkpoint.coordinator import Checkpoints
from topology.core.checkpoint.store import CheckpointStore
from topology.core.checkpoint.task_states import TaskState
from topology.core.executors.local import run_local

pytestmark = pytest.mark.fault

FLIPS = 1_000
FACTS = {
    "settings": {"window": "count:90", "batch": 40, "out": "/data/run", "decay_smoothing": 0.2, "address": None},
    "inputs": {"/data/etl/vocabulary.parquet": "99aa06d3014798d86001c324468d497f"},
}


@pytest.fixture
def machine():
    """A run that died behind its third checkpoint: the newest two are there."""
    machine = Machine("damaged")
    settings = Checkpoints(store_of(machine), Cadence(batches=3), machine.root, lambda: FACTS)

    def on_step(step):
        if "checkpoints/epoch-000002.json" in machine.paths():
            raise Halted

    with pytest.raises(Halted):
        plan = writing_ledger(machine.root, "jsonl", 12, 30, (2, 3, 2, 3))
        run_local(plan, seed=1, clock=FakeClock(step_s=1.0), checkpoints=settings, on_step=on_step)
    yield machine
    machine.forget()


def store_of(machine):
    return CheckpointStore(f"{machine.root}/checkpoints")


def files_of(machine, epoch):
    """All files of one checkpoint."""
    return machine.paths(f"checkpoints/epoch-{epoch:06d}.")


def falls_back(machine):
    """Whether the newest is refused and the one before it is taken, and can be read."""
    store = store_of(machine)
    manifest = store.newest()
    assert manifest is not None, store.refused
    if manifest.epoch != 1:
        return False
    saved = store.load(manifest)
    assert len(store.refused) == 1 and all(dict(task) for tasks in saved.parts.values() for task in tasks)
    return True


def test_newest_undamaged_is_the_last(machine):
    store = store_of(machine)
    manifest = store.newest()
    assert manifest is not None and manifest.epoch == 2 and not store.refused
    assert len(files_of(machine, 2)) == len(manifest.files) + 1 and manifest.facts == FACTS
    assert len(files_of(machine, 1)) > 5 and not files_of(machine, 0)


def test_newest_finds_every_flipped_bit(machine):
    """Half of them in the manifest, which is small, the others anywhere in all frames."""
    rng, found = random.Random(3), 0
    frames = [path for path in files_of(machine, 2) if path.endswith(".frame")]
    sizes = [len(machine.get(path)) for path in frames]
    for number in range(FLIPS):
        path = "checkpoints/epoch-000002.json" if number % 2 else rng.choices(frames, sizes)[0]
        right = machine.get(path)
        bit = rng.randrange(8 * len(right))
        machine.flip(path, bit)
        assert falls_back(machine), f"bit {bit} of {path} is flipped, and nobody sees it"
        found += 1
        machine.put(path, right)
    assert found == FLIPS
    assert not falls_back(machine)


def test_newest_finds_every_bit_of_a_manifest(machine):
    """All that can be flipped up to the names of files, among it the format, and in the checksum."""
    path = "checkpoints/epoch-000002.json"
    right = machine.get(path)
    for bit in range(8 * right.index(b'"files"')):
        machine.flip(path, bit)
        assert falls_back(machine), f"bit {bit} of {path} is flipped, and nobody sees it"
        machine.put(path, right)


def test_newest_finds_every_truncation(machine):
    found = wanted = 0
    for path in files_of(machine, 2):
        right = machine.get(path)
        cuts = {0, 1, 31, 32, 33, len(right) - 1, *range(0, len(right), max(1, len(right) // 20))}
        for cut in cuts:
            machine.put(path, right[:cut])
            found += falls_back(machine)
            wanted += 1
        machine.put(path, right + b"\0")
        found += falls_back(machine) or path.endswith(".json")
        wanted += 1
        machine.put(path, right)
    assert found == wanted > 100


def test_newest_finds_every_missing_file(machine):
    for path in files_of(machine, 2):
        right = machine.get(path)
        machine.remove([path])
        store = store_of(machine)
        manifest = store.newest()
        assert manifest is not None and manifest.epoch == 1, path
        assert bool(store.refused) == path.endswith(".frame")  # without its manifest it is no checkpoint
        machine.put(path, right)


@pytest.mark.parametrize("other", [1, module.FORMAT + 1])
def test_newest_of_another_format_is_refused_by_name(machine, other):
    told = json.loads(machine.get("checkpoints/epoch-000002.json"))
    told["format"] = other
    told["checksum"] = module._checksum(other, told["checkpoint"])
    machine.put("checkpoints/epoch-000002.json", json.dumps(told).encode())
    with pytest.raises(
        CheckpointError, match=f"format {other}, this release reads formats {module.OLDEST} to {module.FORMAT}"
    ):
        store_of(machine).newest()


def test_newest_of_another_format_that_is_damaged_falls_back(machine):
    told = json.loads(machine.get("checkpoints/epoch-000002.json"))
    told["format"] = module.FORMAT + 1
    machine.put("checkpoints/epoch-000002.json", json.dumps(told).encode())
    assert falls_back(machine)


def of_another_epoch(files, older):
    return (older[0], *files[1:])


def of_another_task(files, older):
    counts = [place for place, file in enumerate(files) if file.component == "count"]
    one, other = files[counts[0]], files[counts[1]]
    wrong = one._replace(name=other.name, checksum=other.checksum, size_bytes=other.size_bytes)
    return tuple(wrong if file == one else file for file in files)


def of_the_same_task_twice(files, older):
    counts = [file for file in files if file.component == "count"]
    return tuple(counts[1] if file == counts[0] else file for file in files)


def without_a_task(files, older):
    return tuple(file for file in files if (file.component, file.task) != ("count", 0))


def of_other_numbers_of_tasks(files, older):
    return tuple(file._replace(tasks=1) if (file.component, file.task) == ("count", 0) else file for file in files)


@pytest.mark.parametrize(
    "wrong", [of_another_epoch, of_another_task, of_the_same_task_twice, without_a_task, of_other_numbers_of_tasks]
)
def test_newest_finds_a_manifest_of_wrong_frames(wrong, machine):
    """Its checksum is right: whoever wrote it was wrong."""
    store = store_of(machine)
    manifest = store.newest()
    assert manifest is not None and sum(file.component == "count" for file in manifest.files) > 1
    older = store._read_manifest(1)
    store.commit(manifest._replace(files=wrong(manifest.files, older.files)))
    assert falls_back(machine)


def test_newest_finds_a_whole_frame_that_is_not_the_one_that_was_named(machine):
    """Of the same task, behind the same batch, undamaged: told by a process that went another way."""
    store = store_of(machine)
    manifest = store.newest()
    assert manifest is not None
    file = next(file for file in manifest.files if file.component == "deal")
    state = TaskState(file.component, file.task, file.tasks, manifest.number, {"dealt": np.array(7)})
    assert store.write_task(state, manifest.epoch, manifest.incarnation).name == file.name
    assert falls_back(machine)


def test_newest_finds_the_manifest_of_another_checkpoint(machine):
    machine.put("checkpoints/epoch-000002.json", machine.get("checkpoints/epoch-000001.json"))
    assert falls_back(machine)


def test_newest_of_nothing_but_damage_is_none_and_says_why(machine):
    for epoch in (1, 2):
        machine.flip(f"checkpoints/epoch-{epoch:06d}.json", 500)
    store = store_of(machine)
    assert store.newest() is None and len(store.refused) == 2


def test_load_looks_at_frames_again(machine):
    """What is damaged between looking for a checkpoint and going on from it is not taken either."""
    store = store_of(machine)
    manifest = store.newest()
    assert manifest is not None
    saved = store.load(manifest)
    machine.flip(f"checkpoints/{manifest.files[0].name}", 4_000)
    with pytest.raises(CheckpointError, match="damaged"):
        saved.tasks(manifest.files[0].component)[manifest.files[0].task]


def test_newest_never_takes_files_of_an_older_incarnation(machine):
    """A process that was given up for dead wakes and writes: no manifest names its files, and they go."""
    for path in files_of(machine, 2):
        if path.endswith(".0.frame"):
            machine.put(path.replace(".0.frame", ".9.frame"), b"rubbish")
    store = store_of(machine)
    manifest = store.newest()
    assert manifest is not None and manifest.epoch == 2 and not store.refused
    store.prune()
    assert not [path for path in machine.paths() if path.endswith(".9.frame")]
