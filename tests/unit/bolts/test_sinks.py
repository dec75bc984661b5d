"""Files of updates when a run goes back behind those that have their names."""

import errno
import json
import threading
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from bolts.names import IdColumn, hash_names
from bolts.shares import owner_of
from bolts.sinks import FORMS, GROUP_ROWS, ParquetPart, PartSink
from matching.errors import DeliveryError
from matching.model import Names, UpdateBatch
from tests.support.deliveries import updates
from topology.core.checkpoint.coordinator import publish_all


@pytest.fixture
def named():
    columns = IdColumn("subscription"), IdColumn("message")
    for column in columns:
        column.append(Names.of([f"{column.what} {number}" for number in range(400)]))
    return columns


@pytest.mark.parametrize("form", FORMS.values())
def test_sink_saved_again_behind_named_files_still_knows_how_far_they_go(form, named, tmp_path):
    """Part 0 was named, then its checkpoint proved damaged: the run goes back, is saved, and goes back once more."""
    first = PartSink(str(tmp_path), None, form)
    early = first.snapshot(*named)()
    first.write(updates((300, 1, 300, 0, np.nan)), named[0], named[1], 0.0)
    first.seal(*named)
    publish_all(first.sealed())
    second = PartSink(str(tmp_path), None, form, 1)
    assert second.restore(early).through == 300
    third = PartSink(str(tmp_path), None, form, 2)
    assert third.restore(second.snapshot(*named)()).through == 300


def test_sink_of_other_tasks_rewrites_what_named_files_of_their_owners_lack(named, tmp_path):
    """Of two tasks one had named a part when the run went back; of three, each then leaves out what that part has."""
    hashes = hash_names(Names.of([f"subscription {number}" for number in range(400)]))
    one = PartSink(str(tmp_path), None, ParquetPart, task=1, tasks=2)
    early = one.snapshot(*named)()
    own = np.flatnonzero(owner_of(hashes, 2) == 1)[:50]
    one.write(updates(*((30, number, 30, 0, np.nan) for number in own.tolist())), named[0], named[1], 0.0)
    one.seal(*named)
    publish_all(one.sealed())
    again = PartSink(str(tmp_path), None, ParquetPart, 1, task=2, tasks=3)
    found = [again.restore(early)]
    third = PartSink(str(tmp_path), None, ParquetPart, 2)
    found.append(third.restore(again.snapshot(*named)()))
    for covered in found:
        as_of = np.full(400, 30)
        assert np.array_equal(covered.has(as_of, hashes), owner_of(hashes, 2) == 1)
        assert not covered.has(as_of + 1, hashes).any()
    again.write(updates((40, 7, 40, 0, np.nan)), named[0], named[1], 0.0)
    again.seal(*named)
    assert [Path(output.name).name for output in again.sealed()] == ["part-00001-0002of0003.parquet"]


class Full(ParquetPart):
    """A file on a disk that is full from the second group on."""

    def _write(self, table):
        if self.rows > GROUP_ROWS:
            raise OSError(errno.ENOSPC, "no space left on device")
        super()._write(table)


def many(rows: int, first: int = 0) -> UpdateBatch:
    """Updates of 400 subscriptions and messages in turn."""
    at = np.arange(first, first + rows)
    return UpdateBatch(at, at % 400, at % 400, np.zeros(rows, np.int8), np.full(rows, np.nan))


@pytest.mark.parametrize("form", FORMS.values())
def test_sink_what_a_thread_writes_comes_whole_and_in_order(form, named, tmp_path):
    sink = PartSink(str(tmp_path), None, form)
    groups = [GROUP_ROWS, 1_000, GROUP_ROWS + 5] if form is FORMS["parquet"] else [GROUP_ROWS, 10]
    for group, first in zip(groups, np.cumsum([0, *groups[:-1]]).tolist(), strict=True):
        sink.write(many(group, first), named[0], named[1], 0.0)
    sink.seal(*named)
    publish_all(sink.sealed())
    (path,) = tmp_path.iterdir()
    if form is FORMS["parquet"]:
        assert pq.read_table(path, columns=["as_of"])["as_of"].to_pylist() == list(range(sum(groups)))
    else:
        told = [json.loads(line)["as_of"] for line in path.read_text().splitlines()]
        assert told == list(range(sum(groups)))


@pytest.mark.parametrize("next_step", ["write", "seal", "cut"])
def test_sink_what_a_thread_could_not_write_is_told_at_the_next_step(next_step, named, tmp_path):
    sink = PartSink(str(tmp_path), None, Full)
    sink.write(many(GROUP_ROWS), named[0], named[1], 0.0)
    sink.write(many(GROUP_ROWS), named[0], named[1], 0.0)  # which the thread fails to write
    with pytest.raises(DeliveryError, match="no space left"):
        if next_step == "write":
            sink.write(many(GROUP_ROWS), named[0], named[1], 0.0)
        elif next_step == "seal":
            sink.seal(*named)
        else:
            sink.cut(named[0], named[1], 0.0)[0]()
    sink.abandon()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("updates")]
