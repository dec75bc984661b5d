"""Delivery that is saved behind a batch: another goes on with its names, counts and digest, in a folder of its own."""

import numpy as np
import pyarrow.parquet as pq
import pytest

from bolts.delivery import DeliveryBolt
from bolts.names import IdColumn, hash_names
from bolts.payloads import Closed, Late
from matching.errors import CheckpointError, TopologyError
from matching.model import BOOLEAN, ENTER, KNN, LEAVE, MATCH, TOPK, ChangeList, Names, Removals
from matching.window import Boundary, Window
from tests.support.deliveries import (
    RecordingContext,
    changes,
    deliver,
    finish_and_name,
    ids,
    results,
    run_batch,
    updates,
)
from tests.support.saving import through_frames

SIZE, WINDOW = 500, Window("time", 100)
#: When all messages of a batch came. At the long step many of them die at once, so that ids are given up there.
TIMES = (10, 20, 30, 40, 50, 149, 152, 160, 170)
BATCHES = len(TIMES)
KINDS = {0: KNN, 1: KNN, 2: TOPK, 3: BOOLEAN, 4: TOPK, 5: TOPK, 6: KNN, 7: TOPK, 8: KNN}
#: Batch: who comes, whom each of them follows under its id, who goes. Number 1 goes with all it holds.
COMINGS = {0: ((0, 1, 2, 3, 4), None, ()), 2: ((5, 6), (-1, -1), ()), 4: ((7, 8), (2, -1), (1, 2))}
LASTING, GONE = (0, 6, 8), {1: 4, 2: 4}


def boundary_of(number):
    last = number * SIZE + SIZE - 1
    return Boundary(number, number * SIZE, last, TIMES[number] - WINDOW.length)


def life(seq):
    return TIMES[seq // SIZE]


def script(seed=0):
    """What every batch tells: rows of updates by batch, and the results at the end."""
    rng = np.random.default_rng(seed)
    holds = {number: set() for number in KINDS}
    told = []
    for batch in range(BATCHES):
        at, rows = boundary_of(batch), []
        comes = {n: min(b for b, (added, _, _) in COMINGS.items() if n in added) for n in KINDS}
        for number, kind in KINDS.items():
            if comes[number] > batch or GONE.get(number, BATCHES) <= batch:
                continue
            fresh = {int(seq) for seq in rng.integers(at.first_seq, at.last_seq + 1, 4)}
            if kind == BOOLEAN:
                rows += [(seq, number, seq, MATCH, np.nan) for seq in sorted(fresh)]
                continue
            old = holds[number]
            if number == 4:  # holds all of the window, until the last moment at which a message may be named
                fresh = set(range(at.first_seq, at.last_seq + 1))
                left = {seq for seq in old if life(seq) <= at.floor}
            elif kind == TOPK:
                left = {seq for seq in old if life(seq) <= at.floor or rng.random() < 0.3}
            else:
                left = {seq for seq in old if rng.random() < 0.1}
            rows += [(at.last_seq, number, seq, LEAVE, float(seq)) for seq in sorted(left)]
            rows += [(at.last_seq, number, seq, ENTER, float(seq)) for seq in sorted(fresh)]
            holds[number] = (old - left) | fresh
        told.append(rows)
    standing = [
        (number, rank, seq, 0.5)
        for number in sorted(holds)
        if number not in GONE and KINDS[number] != BOOLEAN
        for rank, seq in enumerate(sorted(holds[number]), 1)
    ]
    return told, standing


TOLD, STANDING = script()


def make(folder, tasks, sink="parquet"):
    context = RecordingContext(tasks)
    bolt = DeliveryBolt(str(folder), WINDOW, 2, sink=sink, cumulative=(KNN,))
    bolt.prepare(context)
    return bolt, context


def change_list(batch):
    numbers, follows, removed = COMINGS.get(batch, ((), None, ()))
    plain = changes(batch, numbers)
    columns = plain.added._asdict() | {"kind": np.array([KINDS[n] for n in numbers], np.int8)}
    gone = np.array(removed, np.int64)
    names = Names.of([f"abo {'é' * n}{n}" for n in numbers])
    return ChangeList(
        batch,
        type(plain.added)(**columns),
        names,
        Removals(gone, gone.astype(np.int8), gone),
        None if follows is None else np.array(follows, np.int64),
    )


def drive(bolt, first, last, tasks):
    """Batches `first` to `last`; each subscription told by one task, the last task late by its last batch."""
    for batch in range(first, last + 1):
        at = boundary_of(batch)
        deliver(bolt, change_list(batch), ids(at, prefix="message é"))
        for task in range(tasks):
            rows = [row for row in TOLD[batch] if row[1] % tasks == task]
            late = task == tasks - 1 and rows
            deliver(bolt, Closed(at, batch - 1 if late else batch, updates(*([] if late else rows))), task=task)
            if late:
                assert not bolt.quiet()
                deliver(bolt, Late(batch, updates(*rows)), task=task)
        assert bolt.quiet()


def finish(bolt, tasks):
    for task in range(tasks):
        deliver(bolt, results(*[row for row in STANDING if row[0] % tasks == task]), task=task)
    finish_and_name(bolt)
    bolt.close()
    figures = bolt.report()
    return {name: value for name, value in figures.items() if name not in ("bytes_written", "id_bytes")}


def written(folder):
    return pq.read_table(folder / "updates").to_pylist()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    bolt, _ = make(folder, 2)
    drive(bolt, 0, BATCHES - 1, 2)
    assert bolt.messages.first > 0 and bolt.messages._kept_numbers.size > 5, "no id was given up, or none was kept"
    return folder, finish(bolt, 2)


def same_rows(rows):
    return sorted(map(repr, rows))


@pytest.mark.parametrize("tasks", [1, 2, 3])
@pytest.mark.parametrize("after", range(-1, BATCHES))
def test_delivery_saved_behind_every_batch_goes_on_the_same(tmp_path, whole, after, tasks):
    bolt, context = make(tmp_path / "first", 2)
    drive(bolt, 0, after, 2)
    saved = through_frames(after, delivery=bolt)
    bolt.close()
    assert context.acknowledged == list(range(after + 1))
    resumed, context = make(tmp_path / "second", tasks)
    resumed.restore(saved)
    assert resumed.quiet() and resumed.watermark == after
    drive(resumed, after + 1, BATCHES - 1, tasks)
    figures = finish(resumed, tasks)
    assert context.acknowledged == list(range(after + 1, BATCHES))
    folder, expected = whole
    free = {"message_ids_held": None, "updates": None}
    assert figures | free == expected | free and figures["updates"] == expected["updates"]
    last_seq = boundary_of(after).last_seq if after >= 0 else -1
    later = [row for row in written(folder) if row["as_of"] > last_seq]
    assert same_rows(written(tmp_path / "second")) == same_rows(later)
    results_of = [(each / "results.parquet").read_bytes() for each in (folder, tmp_path / "second")]
    assert results_of[0] == results_of[1]


def test_delivery_saved_again_and_again_goes_on_the_same(tmp_path, whole):
    tasks, bolt = 2, make(tmp_path / "-1", 2)[0]
    for batch in range(BATCHES):
        drive(bolt, batch, batch, tasks)
        saved = through_frames(batch, delivery=bolt)
        bolt.close()
        tasks = batch % 3 + 1
        bolt, _ = make(tmp_path / str(batch), tasks)
        bolt.restore(saved)
    figures = finish(bolt, tasks)
    assert figures["digest"] == whole[1]["digest"] and figures["updates"] == whole[1]["updates"]
    assert (tmp_path / str(BATCHES - 1) / "results.parquet").read_bytes() == (whole[0] / "results.parquet").read_bytes()


def test_delivery_saves_the_ids_of_the_window_and_those_held_and_no_others(tmp_path):
    bolt, _ = make(tmp_path / "run", 1)
    drive(bolt, 0, 6, 1)
    state = through_frames(6, delivery=bolt).single("delivery")
    bolt.close()
    first = int(state["messages:first"])
    assert first == min(seq for seq in range(7 * SIZE) if life(seq) > boundary_of(6).floor) > 0
    held = set()
    for rows in TOLD[:7]:
        for _, number, seq, change, _ in rows:
            if number in LASTING:
                (held.add if change == ENTER else held.discard)((number, seq))
    assert state["messages:kept"].tolist() == sorted({seq for _, seq in held if seq < first})
    assert len(state["messages:offsets"]) == len(state["messages:kept"]) + 7 * SIZE - first + 1


def test_delivery_that_wrote_nothing_goes_on_writing_nothing_and_else_is_refused(tmp_path, whole):
    bolt, _ = make(tmp_path / "unused", 2, sink="count")
    drive(bolt, 0, 4, 2)
    counted = through_frames(4, delivery=bolt)
    with pytest.raises(CheckpointError, match='no subscription ids were saved, .* by sink "count"'):
        make(tmp_path / "files", 2)[0].restore(counted)
    files, _ = make(tmp_path / "more", 2)
    drive(files, 0, 4, 2)
    for saved in (counted, through_frames(4, delivery=files)):
        resumed, _ = make(tmp_path / "unused", 2, sink="count")
        resumed.restore(saved)
        drive(resumed, 5, BATCHES - 1, 2)
        assert finish(resumed, 2)["digest"] == whole[1]["digest"]
    files.close()
    assert not (tmp_path / "unused").exists()


def test_delivery_lasting_kinds_are_those_that_it_is_told(tmp_path):
    for cumulative, kept in (((TOPK,), True), ((BOOLEAN,), False)):
        bolt = DeliveryBolt(str(tmp_path / str(kept)), Window("count", 10), 2, cumulative=cumulative)
        bolt.prepare(RecordingContext())
        run_batch(bolt, 0, (2, 0, 1, ENTER, 0.5), added=(0,), kind=TOPK)
        for number in range(1, 8):
            run_batch(bolt, number)
        assert (bolt.retained.messages().tolist() == [1]) is kept
        assert through_frames(7, delivery=bolt).single("delivery")["messages:kept"].tolist() == ([1] if kept else [])
        bolt.close()


def test_delivery_is_not_quiet_with_half_a_batch_or_while_something_is_not_told(tmp_path):
    bolt, _ = make(tmp_path / "run", 2)
    assert bolt.quiet()
    at = boundary_of(0)
    for payload, task in (
        (change_list(0), 0),
        (ids(at), 0),
        (Closed(at, 0, updates()), 0),
        (Closed(at, -1, updates()), 1),
    ):
        deliver(bolt, payload, task=task)
        assert not bolt.quiet()
    deliver(bolt, Late(0, updates()), task=1)
    assert bolt.quiet()
    deliver(bolt, Closed(boundary_of(1), 1, updates()))
    assert not bolt.quiet()
    bolt.close()


def test_delivery_resumed_refuses_a_batch_that_is_done(tmp_path):
    bolt, _ = make(tmp_path / "first", 1)
    drive(bolt, 0, 3, 1)
    resumed, _ = make(tmp_path / "second", 1)
    resumed.restore(through_frames(3, delivery=bolt))
    with pytest.raises(TopologyError, match="batch 3 of 'changes' .* came again, the next batch is 4"):
        deliver(resumed, change_list(3))
    for each in (bolt, resumed):
        each.close()


@pytest.mark.parametrize("keep_names", [True, False])
def test_id_column_restored_knows_the_same_and_grows(keep_names):
    strings = [f"{'é' * (n % 3)}{n}" for n in range(50)]
    column = IdColumn("message", keep_names)
    column.append(Names.of(strings))
    column.drop_before(20, np.array([3, 11]))
    for first, needed in ((20, [3, 11]), (30, [3, 25]), (50, []), (50, [0 + 11, 49])):
        again = IdColumn("message", keep_names)
        again.restore({name: _read_only(values) for name, values in column.state(first, np.array(needed, int)).items()})
        known = np.array([*needed, *range(first, 50)], np.int64)
        assert (again.first, again.end) == (first, 50)
        np.testing.assert_array_equal(again.hashes(known), hash_names(Names.of([strings[n] for n in known])))
        again.append(Names.of([]))
        again.append(Names.of(["more", ""]))
        if keep_names:
            assert again.names(np.append(known, [50, 51])).to_pylist() == [strings[n] for n in known] + ["more", ""]
        with pytest.raises(TopologyError, match="message 12 is named"):
            again.hashes(np.array([12]))


def _read_only(array):
    view = array.view()
    view.flags.writeable = False
    return view
