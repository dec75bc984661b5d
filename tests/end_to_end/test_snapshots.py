"""A snapshot has the state at its barrier, though its arrays are made when the stream is long past it."""

import random
from types import MappingProxyType

import pytest

from bolts.names import IdColumn
from bolts.retained import RetainedMessages
from matching.cumulative.results import BestResults
from matching.skyline.results import CandidatePool
from matching.skyline.subscriptions import SkylineSubscriptions
from matching.storage.point_subscriptions import PointSubscriptions
from matching.storage.region_subscriptions import RegionSubscriptions
from matching.topk.results import ResultBuffers
from tests.support.snapshots import arrays_of
from tests.support.stories import product
from topology.core.checkpoint.barriers import Cadence
from topology.core.checkpoint.coordinator import Checkpoints
from topology.core.checkpoint.store import CheckpointStore
from topology.core.checkpoint.writer import Writer
from topology.core.executors.local import run_local

#: What a snapshot copies. Names are read in place, by an object of their own, since they are only ever appended to.
COPIED = (
    ResultBuffers, BestResults, CandidatePool, PointSubscriptions, RegionSubscriptions, SkylineSubscriptions,
    RetainedMessages, IdColumn,
)  # fmt: skip


def snapshots(monkeypatch, folder, window="count:60", seed=None):
    """Snapshots of all tasks of a run, of each batch: the fragments, and a copy of their arrays made at the barrier."""
    taken = []
    write = Writer.write

    def noted(writer, copied):
        arrays = {name: values.copy() for name, values in arrays_of(copied.fragments).items()}
        taken.append((f"{copied.state.component}:{copied.state.task} {copied.epoch}", copied.fragments, arrays))
        write(writer, copied)

    monkeypatch.setattr(Writer, "write", noted)
    monkeypatch.setattr(Writer, "stored", lambda *_: MappingProxyType({}))
    plan = product(window).plan(str(folder), None if seed is None else random.Random(seed))
    store = CheckpointStore(str(folder / "checkpoints"))
    report = run_local(plan, seed=1, checkpoints=Checkpoints(store, Cadence(batches=1), str(folder)))
    assert len(report.checkpoints) > 8 and not [each for each in report.checkpoints if "failed" in each]
    return taken


def changed(taken):
    """Arrays that are others at the end of the run than they were at the barrier."""
    found = []
    for task, fragments, arrays in taken:
        now = arrays_of(fragments)
        assert now.keys() == arrays.keys()
        found += [f"{task} {name}" for name in now if now[name].tobytes() != arrays[name].tobytes()]
    return found


@pytest.mark.parametrize(("window", "seed"), [("count:60", None), ("time:40", None), ("count:60", 3), ("time:40", 5)])
def test_snapshot_made_at_the_end_of_the_run_has_the_state_at_its_barrier(monkeypatch, tmp_path, window, seed):
    taken = snapshots(monkeypatch, tmp_path, window, seed)
    assert sum(len(arrays) for *_, arrays in taken) > 1_000
    of_query = [arrays for task, _, arrays in taken if task.startswith("query:0")]
    first, last = of_query[0], of_query[-1]
    same = [name for name in first if first[name].tobytes() == last[name].tobytes()]
    assert len(same) < len(first) / 2, f"too little has changed since the first checkpoint: {same} have not"
    assert not changed(taken)


@pytest.mark.parametrize("copied", COPIED, ids=lambda one: one.__name__)
def test_snapshot_that_is_not_copied_is_found_to_change(monkeypatch, tmp_path, copied):
    monkeypatch.setattr(copied, "snapshot", lambda self: self)
    assert changed(snapshots(monkeypatch, tmp_path))
