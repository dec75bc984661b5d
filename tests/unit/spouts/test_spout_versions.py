"""Versions and deletions of objects: what each batch ends, held against the oracle's rule, and what is remembered."""

import json

import numpy as np
import pyarrow as pa
import pytest

from matching.errors import InputError
from matching.model import MessageBatch
from matching.window import NO_FLOOR, Boundary, Window, stream_time
from spouts.cutting import cut_messages
from spouts.parquet import ParquetSpout, has_objects
from spouts.versions import Objects, Versions
from tests.support.etl_folder import SCHEMA
from tests.support.message_files import COUNT, EARTH, RecordingContext, write
from tests.support.message_files import message as odd_message
from tests.support.message_files import write_manifest as manifest_of


def message(seq: int) -> dict:
    """A message that is an object of its own."""
    return odd_message(seq, message_id=f"m{seq}")


def stream(seed: int, messages: int, objects: int, late: int):
    """Messages with lives, the names of their objects, and which delete."""
    rng = np.random.default_rng(seed)
    seq = np.arange(messages)
    life = seq - rng.integers(0, late + 1, messages)
    lon = rng.uniform(-10, 10, messages)
    offsets = np.concatenate([[0], np.cumsum(rng.integers(0, 4, messages))])
    terms = np.concatenate([np.arange(n) for n in np.diff(offsets)]).astype(np.int32)
    batch = MessageBatch(
        seq, lon, lon, lon, lon, lon, lon, life, offsets, terms, np.full(terms.size, 0.5, np.float32)
    )  # fmt: skip
    names = [f"o{one}" for one in rng.integers(0, objects, messages)]
    return batch, Objects(names, rng.random(messages) < 0.1)


def plain(batch, objects, window, size):
    """What each boundary ends, by the rule alone: the last version before, and every deletion, unless expired."""
    latest, newest, expected = {}, NO_FLOOR, []
    for first in range(0, len(batch), size):
        last = min(first + size, len(batch)) - 1
        newest = stream_time(batch.life[first : last + 1], newest)
        floor, ended = window.floor(last, newest), set()
        for seq in range(first, last + 1):
            name, before = objects.names[seq], latest.get(objects.names[seq])
            ended |= {before} - {None}
            ended |= {seq} if objects.deleted[seq] else set()
            latest[name] = seq
        told = {seq for batch_ in expected for seq in batch_[1]}
        expected.append((floor, sorted(s for s in ended if batch.life[s] > floor and s not in told)))
    return expected


@pytest.mark.parametrize(("window", "late"), [(Window("count", 40), 0), (Window("time", 40), 25)])
@pytest.mark.parametrize("size", [1, 7, 64])
def test_versions_random_streams_end_what_the_rule_ends_with_its_contents(window, late, size):
    for seed in range(6):
        batch, objects = stream(seed, 300, 25, late)
        versions, fed, count = Versions(), 0, 0
        for number, (floor, expected) in enumerate(plain(batch, objects, window, size)):
            last = min((number + 1) * size, 300) - 1
            while fed <= last:  # rows come in pieces that know nothing of batches
                step = 1 + (fed * 7) % 50
                rows = slice(fed, fed + step)
                versions.feed(cut_messages(batch, fed, min(fed + step, 300)), Objects(*(c[rows] for c in objects)))
                fed += step
            ended = versions.pop_ended(Boundary(number, number * size, last, floor))
            assert ended.seq.tolist() == expected, (seed, number)
            for mine, theirs in zip(ended, batch.take(ended.seq), strict=True):
                np.testing.assert_array_equal(mine, theirs)
            assert ended.east is ended.west
            count += len(expected)
        assert versions.ended == count > 20


def test_versions_of_a_long_stream_are_forgotten_with_the_window():
    versions, window, most = Versions(), Window("count", 100), 0
    batch, _ = stream(0, 50, 1, 0)
    for number in range(200):
        first = number * 50
        seq = batch.seq + first
        columns = batch._asdict() | {"seq": seq, "life": seq}
        names = [f"o{one}" for one in range(first, first + 40)] + [f"again {number % 7} {n}" for n in range(10)]
        versions.feed(MessageBatch(**columns), Objects(names, np.zeros(50, np.bool_)))
        versions.pop_ended(Boundary(number, first, first + 49, window.floor(first + 49, 0)))
        most = max(most, versions.retained)
    assert most <= 2 * (100 + 2 * 50)


def test_versions_without_objects_keep_nothing():
    versions = Versions()
    assert len(versions.pop_ended(Boundary(0, 0, 9, -1))) == 0
    assert versions.retained == versions.ended == 0


def spout_ended(tmp_path, batch=4, **options):
    """The messages that every emitted batch ends, and the spout's report."""
    spout = ParquetSpout(tmp_path, COUNT, EARTH, batch, **options)
    context = RecordingContext()
    spout.open(context)
    number = 0
    while spout.next_batch(number, None) is not None:
        number += 1
    spout.close()
    return [payload.ended for _, payload, _ in context.emitted], spout.report()


def test_spout_parquet_versions_and_deletions_end_messages_with_their_contents(tmp_path):
    rows = [message(seq) for seq in range(12)]
    rows[3] |= {"object_id": "m1"}  # replaces message 1 of its own batch
    rows[5] |= {"object_id": "m2"}  # message 2 has expired when the batch ends: the window is 4 messages
    rows[6] |= {"object_id": "m3", "op": 1}  # nothing to delete, but it is itself a deletion
    rows[7] |= {"object_id": "m5"}  # message 5 speaks of another object than its own id says
    rows[11] |= {"object_id": "m10"}
    write(tmp_path, rows, row_group_size=5)
    manifest_of(tmp_path, 12, deletes=1)
    ended, report = spout_ended(tmp_path)
    assert [batch.seq.tolist() for batch in ended] == [[1], [6], [10]]
    assert report["ended"] == 3
    assert ended[2].terms.tolist() == [0, 1] and ended[2].west.tolist() == [10.0]


def test_spout_parquet_version_replaces_a_live_one_of_an_earlier_batch(tmp_path):
    rows = [message(seq) for seq in range(6)]
    rows[4] |= {"object_id": "m3"}
    rows[5] |= {"object_id": "m3", "op": 1, "terms": [], "counts": [], "weights": []}
    write(tmp_path, rows, row_group_size=4)
    manifest_of(tmp_path, 6)
    ended, _ = spout_ended(tmp_path, batch=2)
    assert [batch.seq.tolist() for batch in ended] == [[], [], [3, 4, 5]]
    assert ended[2].terms.tolist() == [0, 1, 2]


def test_spout_parquet_folder_without_objects_reads_no_object_and_keeps_none(tmp_path):
    write(tmp_path, [message(seq) for seq in range(9)])
    manifest_of(tmp_path, 9, deletes=0)
    assert not has_objects(tmp_path)
    spout = ParquetSpout(tmp_path, COUNT, EARTH, 4)
    source = spout.open_source()
    assert source.read().objects is None
    source.close()
    ended, report = spout_ended(tmp_path)
    assert [len(batch) for batch in ended] == [0, 0, 0] and report["ended"] == 0


@pytest.mark.parametrize("change", [{"object_id": "m0"}, {"op": 1}])
def test_has_objects_one_version_or_deletion_is_enough(tmp_path, change):
    write(tmp_path, [message(seq) for seq in range(20)])
    write(tmp_path, [message(20), message(21) | change], "part-00001.parquet")
    manifest_of(tmp_path, 22)
    assert has_objects(tmp_path)


def test_has_objects_null_and_absent_columns_mean_the_message_itself(tmp_path):
    rows = [message(seq) | {"object_id": None, "op": None} for seq in range(5)]
    write(tmp_path, rows)
    manifest_of(tmp_path, 5)
    assert not has_objects(tmp_path)
    short = pa.schema([field for field in SCHEMA if field.name not in ("object_id", "op")])
    write(tmp_path, [{n: v for n, v in row.items() if n in short.names} for row in rows], schema=short)
    assert not has_objects(tmp_path)


def test_spout_parquet_following_a_directory_takes_notice_of_objects(tmp_path):
    rows = [message(seq) for seq in range(4)]
    rows[2] |= {"object_id": "m0"}
    write(tmp_path, rows)
    spout = ParquetSpout(tmp_path, COUNT, EARTH, 2, follow=True)
    context = RecordingContext()
    spout.open(context)
    spout.next_batch(0, None)
    manifest_of(tmp_path, 4)  # written last
    spout.next_batch(1, None)
    spout.close()
    assert [payload.ended.seq.tolist() for _, payload, _ in context.emitted] == [[], [0]]


@pytest.mark.parametrize(
    ("schema", "change", "pattern"),
    [
        (SCHEMA, {"op": 2}, "'op' has 2"),
        (pa.schema([f if f.name != "op" else pa.field("op", pa.string()) for f in SCHEMA]), {"op": "1"}, "'op' is str"),
        (
            pa.schema([f if f.name != "object_id" else pa.field("object_id", pa.int64()) for f in SCHEMA]),
            {"object_id": 7, "op": 1},
            "'object_id' is int64",
        ),
    ],
)
def test_spout_parquet_objects_that_keep_no_contract_are_named(tmp_path, schema, change, pattern):
    write(tmp_path, [message(0) | {"object_id": None, "op": None} | change], schema=schema)
    manifest_of(tmp_path, 1)
    with pytest.raises(InputError, match=pattern) as raised:
        spout_ended(tmp_path)
    assert raised.value.reason_code == "broken_file"
    assert json.loads((tmp_path / "manifest.json").read_text())["kept"] == 1
