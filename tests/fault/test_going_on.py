"""`topology.running` goes on with a run that died on a disk of this machine: at the worst moments, and with damage."""

import dataclasses
import json
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import xxhash

import bolts.sinks
import topology.recovering
import topology.running
from matching.errors import CheckpointError
from matching.part_names import PartName
from tests.support.simulated_disk import Halted
from tests.support.stories import product
from topology.core.checkpoint import coordinator as committing
from topology.core.checkpoint.barriers import Cadence
from topology.core.checkpoint.store import FORMAT, OLDEST, CheckpointStore
from topology.core.checkpoint.task_states import TaskState
from topology.running import run

pytestmark = pytest.mark.fault


@pytest.fixture(autouse=True)
def every_checkpoint_makes_a_part(monkeypatch):
    monkeypatch.setattr(bolts.sinks, "SMALL_ROWS", 1)
    build = topology.running.build_plan
    monkeypatch.setattr(topology.running, "build_plan", lambda config, *more: _unwarmed(build(config, *more)))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What an undisturbed run tells: digest and rows."""
    out = tmp_path_factory.mktemp("whole") / "out"
    digest = run(product().config(out))["digest"]
    told = rows(out)
    assert told.total() > 1_000 and max(told.values()) == 1
    return digest, told, pq.read_table(out / "results.parquet").to_pylist()


def _unwarmed(plan):
    return dataclasses.replace(plan, warm_up=None)


def rows(out):
    """Rows of all files that have their names."""
    told = Counter()
    for path in sorted((out / "updates").glob("part-*.parquet")):
        told.update(tuple(row.values()) for row in pq.read_table(path).to_pylist())
    return told


def die_before_name(monkeypatch, number):
    """The process is killed before it gives a file its name, the `number`-th from 0."""
    given = []
    publish = committing._publish

    def publish_or_die(output):
        if len(given) == number:
            raise Halted
        given.append(output)
        publish(output)

    monkeypatch.setattr(committing, "_publish", publish_or_die)
    return given


def died(out, monkeypatch, number):
    """A run that died so, in its folder; the store of its checkpoints."""
    with monkeypatch.context() as patch:
        given = die_before_name(patch, number)
        with pytest.raises(Halted):
            run(product().config(out))
    assert len(given) == number
    return CheckpointStore(str(out / "checkpoints"))


def assert_same(out, whole):
    told = run(product().config(out), resume=True)
    assert told["digest"] == whole[0] and told["incarnation"] == topology.recovering.INCARNATION_STEP
    assert rows(out) == whole[1]
    assert pq.read_table(out / "results.parquet").to_pylist() == whole[2]


def test_run_that_died_between_manifest_and_names_goes_on(whole, monkeypatch, tmp_path):
    store = died(tmp_path / "out", monkeypatch, 3)
    manifest = store.newest()
    assert manifest is not None and manifest.outputs
    assert not (tmp_path / "out" / manifest.outputs[-1][1]).exists(), "it died too late"
    assert_same(tmp_path / "out", whole)


def test_run_that_died_at_its_end_goes_on(whole, monkeypatch, tmp_path):
    """All its updates have their names, its results have not."""
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(committing.CheckpointCoordinator, "finish", _die)
        with pytest.raises(Halted):
            run(product().config(out))
    assert rows(out) and not (out / "results.parquet").exists()
    assert_same(out, whole)


def test_run_that_died_while_several_tasks_named_their_last_parts_has_each_boundary_in_one_number(
    whole, monkeypatch, tmp_path
):
    """Else a reader that has read the first of two numbers with updates of a boundary is behind it in the second."""
    out, named = tmp_path / "out", []
    config = product().config(out).model_copy(update={"delivery_bolts": 3})

    def name_one_and_die(coordinator, outputs):
        named.extend([*coordinator._take_unnamed(), *outputs][:1])
        committing.publish_all(named)
        raise Halted

    with monkeypatch.context() as patch:
        patch.setattr(topology.recovering, "Cadence", lambda seconds: Cadence(batches=7))
        patch.setattr(committing.CheckpointCoordinator, "finish", name_one_and_die)
        with pytest.raises(Halted):
            run(config)
    assert Path(named[0].name).exists() and PartName.of(Path(named[0].name).name).task > 0
    run(config, resume=True)
    assert rows(out) == whole[1]
    numbers = {}
    for path in (out / "updates").glob("part-*.parquet"):
        for as_of in set(pq.read_table(path).column("as_of").to_pylist()):
            numbers.setdefault(as_of, set()).add(PartName.of(path.name).number)
    assert len(numbers) > 5 and {len(of_boundary) for of_boundary in numbers.values()} == {1}


def _die(*_):
    raise Halted


def test_run_whose_newest_checkpoint_is_damaged_goes_on_behind_its_files(whole, monkeypatch, tmp_path):
    out = tmp_path / "out"
    manifest = died(out, monkeypatch, 4).newest()
    assert manifest is not None and manifest.epoch > 1
    committing.complete(str(out), manifest)
    assert manifest.outputs and all((out / name).exists() for _, name in manifest.outputs), "no file is ahead"
    frame = out / "checkpoints" / manifest.files[0].name
    frame.write_bytes(frame.read_bytes()[:-1])
    assert_same(out, whole)


def test_run_without_any_whole_checkpoint_is_refused(monkeypatch, tmp_path):
    out = tmp_path / "out"
    died(out, monkeypatch, 4)
    for path in (out / "checkpoints").glob("*.json"):
        path.write_bytes(path.read_bytes().replace(b"boundary", b"!").replace(b"1", b"2"))
    with pytest.raises(CheckpointError, match="none of its checkpoints can be used.*--overwrite"):
        run(product().config(out), resume=True)


@pytest.mark.parametrize("other", [OLDEST - 1, FORMAT + 1])
def test_run_saved_by_another_release_is_refused_and_stays_as_it_was(monkeypatch, tmp_path, other):
    out = tmp_path / "out"
    manifest = died(out, monkeypatch, 4).newest()
    assert manifest is not None
    path = out / "checkpoints" / f"epoch-{manifest.epoch:06d}.json"
    with monkeypatch.context() as patch:
        patch.setattr("topology.core.checkpoint.store.FORMAT", other)
        CheckpointStore(str(path.parent)).commit(manifest)
    assert json.loads(path.read_text())["format"] == other
    before = sorted(file.name for file in path.parent.iterdir())
    with pytest.raises(CheckpointError, match=f"format {other}, this release reads formats {OLDEST} to {FORMAT}"):
        run(product().config(out), resume=True)
    assert sorted(file.name for file in path.parent.iterdir()) == before


def save_again(store, monkeypatch, number, without):
    """The newest checkpoint in another format, as an earlier release wrote it: tuple tasks without a column."""
    manifest = store.newest()
    assert manifest is not None
    saved, files = store.load(manifest), []
    for file in manifest.files:
        arrays = dict(saved.tasks(file.component)[file.task])
        assert file.component != "tuples" or arrays.pop(without).ndim
        state = TaskState(file.component, file.task, file.tasks, manifest.number, arrays)
        files.append(store.write_task(state, manifest.epoch, manifest.incarnation))
    with monkeypatch.context() as patch:
        patch.setattr("topology.core.checkpoint.store.FORMAT", number)
        store.commit(manifest._replace(files=tuple(files)))


def test_run_saved_by_the_release_before_goes_on(whole, monkeypatch, tmp_path):
    store = died(tmp_path / "out", monkeypatch, 4)
    save_again(store, monkeypatch, OLDEST, "previous_seq")
    assert_same(tmp_path / "out", whole)


def test_run_saved_before_messages_had_attributes_is_refused_before_anything_starts(monkeypatch, tmp_path):
    """As an earlier version wrote it: format 2, and fewer columns."""
    out = tmp_path / "out"
    save_again(died(out, monkeypatch, 4), monkeypatch, 2, "keys")
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with pytest.raises(CheckpointError) as refused:
        run(product().config(out), resume=True)
    said = str(refused.value)
    for part in (
        str(out),
        "another version of Skyray",
        f"format 2, this release reads formats {OLDEST} to {FORMAT}",
        "--overwrite",
    ):
        assert part in said
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_saved_columns_are_those_of_the_format(monkeypatch, tmp_path):
    """Other columns in a checkpoint are another format: raise FORMAT, then note both here."""
    store = died(tmp_path / "out", monkeypatch, 4)
    manifest = store.newest()
    assert manifest is not None
    columns = sorted(
        f"{component}: {name} {array.dtype.str} {array.ndim}"
        for component, tasks in store.load(manifest).parts.items()
        for name, array in tasks[0].items()
    )
    assert len(columns) > 100
    assert (FORMAT, xxhash.xxh3_64_hexdigest("\n".join(columns).encode())) == (9, "d014de624fc60bbb"), "\n".join(
        columns
    )


def test_checkpoints_elsewhere_of_another_run_are_never_gone_on_from(tmp_path, monkeypatch, whole):
    """A run that dies before its first checkpoint must not go on from an earlier one's, which tells a part only."""
    elsewhere = str(tmp_path / "elsewhere")

    def config(name, **changed):
        return product().config(tmp_path / name).model_copy(update={"checkpoints": elsewhere, **changed})

    with monkeypatch.context() as patch:
        die_before_name(patch, 4)
        with pytest.raises(Halted):
            run(config("first"))
    (own,) = (tmp_path / "elsewhere").iterdir()
    assert CheckpointStore(str(own)).newest() is not None
    with monkeypatch.context() as patch:
        patch.setattr(CheckpointStore, "commit", _halted)
        with pytest.raises(Halted):
            run(config("second"))
    for name in ("second", "first"):
        assert run(config(name), resume=True)["digest"] == whole[0] and rows(tmp_path / name) == whole[1]


def _halted(_store, _manifest):
    raise Halted
