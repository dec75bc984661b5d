"""`topology.running` goes on with a run that died on a disk of this machine: at the worst moments, and with damage."""

import dataclasses
import json
from collections import Counter

import pyarrow.parquet as pq
import pytest

import bolts.sinks
import topology.recovering
import topology.running
from matching.errors import CheckpointError
from tests.support.simulated_disk import Halted
from tests.support.stories import product
from topology.core.checkpoint import coordinator as committing
from topology.core.checkpoint.store import FORMAT, CheckpointStore
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


@pytest.mark.parametrize("other", [FORMAT - 1, FORMAT + 1])
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
    with pytest.raises(CheckpointError, match=f"format {other}, this release reads format {FORMAT}"):
        run(product().config(out), resume=True)
    assert sorted(file.name for file in path.parent.iterdir()) == before


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
