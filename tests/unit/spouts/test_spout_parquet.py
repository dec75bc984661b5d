"""Messages from an ETL directory: batches, boundaries, refusals, and a directory that is still growing."""

from datetime import timedelta

import numpy as np
import pyarrow as pa
import pytest

from matching.errors import ConfigError, InputError
from matching.space import Space
from matching.window import Window
from spouts.parquet import ParquetSpout, count_null_times, read_messages, read_points
from tests.support.etl_folder import SCHEMA
from tests.support.message_files import COUNT, EARTH, START, RecordingContext, message, write, write_manifest
from topology.core.api.component import Tick


def rows_of(batches) -> list[tuple]:
    """What every message of some batches looks like, however they were cut."""
    rows = []
    for boundary, messages, names, *_ in batches:
        assert len(messages) == boundary.last_seq - boundary.first_seq + 1
        for i, name in enumerate(names.strings()):
            cut = slice(*messages.term_offsets[i : i + 2])
            columns = [
                float(getattr(messages, c)[i]) for c in ("seq", "x", "y", "west", "south", "east", "north", "life")
            ]
            rows.append((name, *columns, messages.terms[cut].tolist(), messages.weights[cut].tolist()))
    return rows


@pytest.mark.parametrize("batch", [1, 3, 5, 7, 10, 100])
def test_spout_parquet_every_batch_size_gives_the_same_messages(tmp_path, batch):
    write(tmp_path, [message(seq) for seq in range(16)], "part-00000.parquet")
    write(tmp_path, [message(seq) for seq in range(16, 33)], "part-00001.parquet")
    batches = list(read_messages(tmp_path, COUNT, EARTH, batch))
    assert [b.boundary.number for b in batches] == list(range(-(-33 // batch)))
    assert [b.boundary.first_seq for b in batches] == list(range(0, 33, batch))
    assert batches[-1].boundary.last_seq == 32
    assert all(b.boundary.floor == b.boundary.last_seq - 4 for b in batches)
    rows = rows_of(batches)
    assert len(rows) == 33
    for seq, (name, *columns, terms, weights) in enumerate(rows):
        expected = message(seq)
        assert name == expected["message_id"]
        lon, lat = expected["lon"], expected["lat"]
        assert columns == [seq, (lon + 180) * (1 / 360), (lat + 90) * (1 / 360), lon, lat, lon, lat, seq]
        assert terms == expected["terms"]
        assert weights == np.float32(expected["weights"]).tolist()


def test_spout_parquet_batch_within_a_row_group_is_views_and_points_share_sides(tmp_path):
    write(tmp_path, [message(seq) for seq in range(20)], row_group_size=20)
    for _, messages, names, *_ in read_messages(tmp_path, COUNT, EARTH, 5):
        assert messages.east is messages.west and messages.north is messages.south
        assert messages.seq.base is not None and not messages.seq.flags.owndata
        assert not messages.weights.flags.owndata and not names.data.flags.owndata
        for name, column in messages._asdict().items():
            assert column.flags.c_contiguous, name
        assert messages.term_offsets[0] == 0 and messages.term_offsets[-1] == len(messages.terms)


def test_spout_parquet_range_messages_keep_their_sides_and_only_their_batches_pay(tmp_path):
    rows = [message(seq) for seq in range(9)]
    rows[4] |= {"west": 1.0, "south": 2.0, "east": 3.0, "north": 4.5}
    write(tmp_path, rows, row_group_size=9)
    batches = list(read_messages(tmp_path, COUNT, EARTH, 3))
    assert [b.messages.east is b.messages.west for b in batches] == [True, False, True]
    assert [rows_of(batches)[4][4:8]] == [(1.0, 2.0, 3.0, 4.5)]
    assert rows_of(batches)[3][4:8] == (3.0, -3.0 % 50, 3.0, -3.0 % 50)


def test_spout_parquet_limit_stops_inside_a_batch(tmp_path):
    write(tmp_path, [message(seq) for seq in range(20)])
    batches = list(read_messages(tmp_path, COUNT, EARTH, 6, limit=8))
    assert [b.boundary[:3] for b in batches] == [(0, 0, 5), (1, 6, 7)]
    assert list(read_messages(tmp_path, COUNT, EARTH, 6, limit=0)) == []
    assert len(list(read_messages(tmp_path, COUNT, EARTH, 6, limit=12))) == 2
    assert len(rows_of(read_messages(tmp_path, COUNT, EARTH, 6, limit=99))) == 20


def test_spout_parquet_time_window_floor_is_running_maximum_minus_length(tmp_path):
    late = {3: -50, 4: 100}  # a late message, and one that jumps ahead of who is read with it
    write(
        tmp_path,
        [message(seq, event_time=START + timedelta(seconds=late.get(seq, seq))) for seq in range(9)],
        row_group_size=2,
    )
    start_us = int(START.timestamp()) * 1_000_000
    batches = list(read_messages(tmp_path, Window.parse("time:10"), EARTH, 3))
    assert [(b.boundary.floor - start_us) // 1_000_000 for b in batches] == [2 - 10, 100 - 10, 100 - 10]
    lives = np.concatenate([b.messages.life for b in batches])
    assert ((lives - start_us) // 1_000_000).tolist() == [late.get(seq, seq) for seq in range(9)]


def test_spout_parquet_null_times_refuse_a_time_window_only(tmp_path):
    write(tmp_path, [message(seq, event_time=None if seq < 3 else START) for seq in range(9)])
    assert count_null_times(tmp_path) == 3
    with pytest.raises(InputError, match=r"3 messages have no event time.*count:N"):
        list(read_messages(tmp_path, Window.parse("time:10"), EARTH, 3))
    assert len(rows_of(read_messages(tmp_path, COUNT, EARTH, 3))) == 9


def test_spout_parquet_outside_world_keeps_seq_loses_terms_and_is_counted(tmp_path):
    write(tmp_path, [message(seq, lon=float(seq), lat=0.0, terms=[1, 2], weights=[0.5, 0.25]) for seq in range(9)])
    space = Space(2.0, -1.0, 6.0, 1.0)
    rows = rows_of(read_messages(tmp_path, COUNT, space, 4))
    assert [row[1] for row in rows] == list(range(9))
    assert [seq for seq, row in enumerate(rows) if row[-2] == [1, 2] and row[-1] == [0.5, 0.25]] == [2, 3, 4, 5, 6]
    assert all(row[-2] == [] == row[-1] for row in rows[:2] + rows[7:])
    assert all(0 <= row[2] <= 1 for row in rows)
    spout, context = ParquetSpout(tmp_path, COUNT, space, 4, limit=8), RecordingContext()
    spout.open(context)
    while spout.next_batch(spout.cutter.number, None) is not None:
        pass
    assert spout.report() == {
        "messages": 8, "batches": 2, "outside_world": 3, "ahead": 0, "ended": 0, "kind_columns": [], "latest_us": None
    }  # fmt: skip
    spout.close()


def test_spout_parquet_emits_batches_to_tasks_in_turn_and_ends(tmp_path):
    write(tmp_path, [message(seq) for seq in range(10)])
    spout, context = ParquetSpout(tmp_path, COUNT, EARTH, 3), RecordingContext(tasks=2)
    spout.open(context)
    ticks = [spout.next_batch(number, None) for number in range(5)]
    assert ticks == [Tick(0, 0, 2), Tick(1, 3, 5), Tick(2, 6, 8), Tick(3, 9, 9), None]
    assert [(stream, to) for stream, _, to in context.emitted] == [("batches", number % 2) for number in range(4)]
    emitted = [(p.boundary, p.messages, p.names) for _, p, _ in context.emitted]
    assert rows_of(emitted) == rows_of(read_messages(tmp_path, COUNT, EARTH, 3))
    assert all(payload.published_s == 1000.0 for _, payload, _ in context.emitted)
    spout.close()


def test_spout_parquet_empty_data_set_has_no_batches(tmp_path):
    write(tmp_path, [])
    assert list(read_messages(tmp_path, COUNT, EARTH, 3)) == []


def gap(rows):
    del rows[5]


def swap(rows):
    rows[2], rows[3] = rows[3], rows[2]


def change(seq, **values):
    return lambda rows: rows[seq].update(values)


@pytest.mark.parametrize(
    ("damage", "pattern"),
    [
        (gap, "seq 6 where 5 comes next"),
        (swap, "seq 3 where 2 comes next"),
        (change(4, terms=[3, 3], weights=[1.0, 1.0]), "ascend"),
        (change(4, terms=[3, 1], weights=[1.0, 1.0]), "ascend"),
        (change(4, terms=[-1], weights=[1.0]), "ascend"),
        (change(4, terms=[1, 2], weights=[1.0]), "differ in number"),
        (change(4, terms=[1, None], weights=[1.0, 1.0]), "differ in number"),
        (change(4, weights=[float("nan")] * 0, terms=[1]), "differ in number"),
        (change(4, terms=[1], weights=[float("inf")]), "not finite"),
        (change(4, lon=None), "'lon' has 1 nulls"),
        (change(4, lat=float("nan")), "coordinate that is not finite"),
        (change(4, message_id=None), "'message_id' has 1 nulls"),
        (change(4, west=1.0, south=1.0), "some sides"),
        (change(4, west=3.0, south=1.0, east=2.0, north=2.0), "swapped"),
    ],
)
def test_spout_parquet_broken_contract_names_the_file(tmp_path, damage, pattern):
    rows = [message(seq) for seq in range(9)]
    damage(rows)
    path = write(tmp_path, rows, row_group_size=100)
    with pytest.raises(InputError, match=pattern) as caught:
        list(read_messages(tmp_path, COUNT, EARTH, 3))
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("column", ["seq", "message_id", "lon", "terms", "weights"])
def test_spout_parquet_missing_or_mistyped_column_is_named(tmp_path, column):
    rows = [message(seq) for seq in range(3)]
    index = SCHEMA.get_field_index(column)
    write(tmp_path, [{k: v for k, v in row.items() if k != column} for row in rows], schema=SCHEMA.remove(index))
    with pytest.raises(InputError, match=f"part-00000.parquet: column '{column}' should be .* is missing"):
        list(read_messages(tmp_path, COUNT, EARTH, 3))
    mistyped = SCHEMA.set(index, pa.field(column, pa.bool_()))
    write(tmp_path, [row | {column: None} for row in rows], schema=mistyped)
    with pytest.raises(InputError, match=f"column '{column}' should be .* is bool"):
        list(read_messages(tmp_path, COUNT, EARTH, 3))


def test_spout_parquet_truncated_or_foreign_file_is_named(tmp_path):
    path = write(tmp_path, [message(seq) for seq in range(50)])
    whole = path.read_bytes()
    for damaged in (b"", b"junk", whole[:-20], whole[: len(whole) // 2]):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=str(path)):
            list(read_messages(tmp_path, COUNT, EARTH, 3))
        with pytest.raises(InputError, match=str(path)):
            count_null_times(tmp_path)


def test_spout_parquet_missing_directory_folder_or_files_say_what_to_do(tmp_path):
    for directory in (tmp_path / "absent", tmp_path):
        with pytest.raises(InputError, match=r"no folder messages/.*skyray etl"):
            read_messages(directory, COUNT, EARTH, 3)
    (tmp_path / "messages").mkdir()
    with pytest.raises(InputError, match=r"no \*.parquet files"):
        read_messages(tmp_path, COUNT, EARTH, 3)


def test_spout_parquet_missing_file_is_noticed_first_middle_and_last(tmp_path):
    for part in range(3):
        write(tmp_path, [message(seq) for seq in range(part * 5, part * 5 + 5)], f"part-0000{part}.parquet")
    write_manifest(tmp_path, 15)
    assert len(rows_of(read_messages(tmp_path, COUNT, EARTH, 4))) == 15
    for part, pattern in (
        (2, "10 messages, manifest.json says 15"),
        (1, "part-00002.parquet: seq 10 where 5"),
        (0, "seq 5 where 0"),
    ):
        if part == 1:
            write(tmp_path, [message(seq) for seq in range(10, 15)], "part-00002.parquet")
        (tmp_path / "messages" / f"part-0000{part}.parquet").unlink()
        if part == 0:
            write(tmp_path, [message(seq) for seq in range(5, 10)], "part-00001.parquet")
        with pytest.raises(InputError, match=pattern):
            list(read_messages(tmp_path, COUNT, EARTH, 4))


def test_spout_parquet_manifest_names_missing_and_damaged_files_before_the_run(tmp_path):
    path = write(tmp_path, [message(seq) for seq in range(5)])
    facts = {"rows": 5, "size_bytes": path.stat().st_size}
    write_manifest(tmp_path, 5, files={"messages/part-00000.parquet": facts, "rejected/part-0.jsonl": {}})
    assert len(rows_of(read_messages(tmp_path, COUNT, EARTH, 4))) == 5
    write_manifest(tmp_path, 5, files={"messages/part-00000.parquet": facts | {"size_bytes": 7}})
    with pytest.raises(InputError, match=r"part-00000.parquet: has .* bytes, manifest.json says 7"):
        read_messages(tmp_path, COUNT, EARTH, 4)
    write_manifest(tmp_path, 5, files={"messages/part-00001.parquet": facts})
    with pytest.raises(InputError, match=r"part-00001.parquet: named in manifest.json"):
        read_messages(tmp_path, COUNT, EARTH, 4)
    write_manifest(tmp_path, 5, format_version=3)
    with pytest.raises(InputError, match="format 3.*reads 1 and 2"):
        read_messages(tmp_path, COUNT, EARTH, 4)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(InputError, match=r"manifest.json: cannot be read as JSON"):
        read_messages(tmp_path, COUNT, EARTH, 4)


def test_spout_parquet_points_for_balancing_are_spread_and_inside(tmp_path):
    write(tmp_path, [message(seq, lon=float(seq), lat=1.0) for seq in range(60)])
    write(tmp_path, [message(seq, lon=float(seq), lat=1.0) for seq in range(60, 100)], "part-00001.parquet")
    x, y = read_points(tmp_path, Space(0.0, 0.0, 80.0, 10.0), 10)
    np.testing.assert_allclose(x * 80, [0, 10, 20, 30, 40, 50, 60, 70, 80])
    np.testing.assert_allclose(y * 80, 1.0)
    assert len(read_points(tmp_path, EARTH, 10_000)[0]) == 100
    (tmp_path / "messages" / "part-00001.parquet").write_bytes(b"junk")
    with pytest.raises(InputError, match="cannot be opened as Parquet"):
        read_points(tmp_path, EARTH, 10)


def test_spout_parquet_bad_options_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="batch 0"):
        ParquetSpout(tmp_path, COUNT, EARTH, 0)
    with pytest.raises(ConfigError, match="limit -1"):
        ParquetSpout(tmp_path, COUNT, EARTH, 1, limit=-1)


def test_spout_parquet_following_a_growing_directory_gives_the_same_boundaries(tmp_path):
    """Files appear between batches; what has no whole batch yet waits, and empty batches mark the time."""
    (tmp_path / "messages").mkdir()
    spout, context = ParquetSpout(tmp_path, COUNT, EARTH, 4, follow=True, poll_s=0.001), RecordingContext()
    spout.open(context)
    steps = [
        None,
        lambda: write(tmp_path, [message(seq) for seq in range(6)], "part-00000.parquet"),
        None,
        lambda: (tmp_path / "messages" / ".part-00001.parquet").write_bytes(b"half written"),
        lambda: write(tmp_path, [message(seq) for seq in range(6, 13)], "part-00001.parquet"),
        None,
        None,
        lambda: write_manifest(tmp_path, 13),
        None,
    ]
    ticks = []
    for number, step in enumerate(steps):
        if step is not None:
            step()
        tick = spout.next_batch(number, None)
        ticks.append(None if tick is None else tick[:3])
    assert ticks == [
        (0, 0, -1),
        (1, 0, 3),
        (2, 4, 3),
        (3, 4, 3),
        (4, 4, 7),
        (5, 8, 11),
        (6, 12, 11),
        (7, 12, 12),
        None,
    ]
    emitted = [(p.boundary, p.messages, p.names) for _, p, _ in context.emitted]
    assert rows_of(emitted) == rows_of(read_messages(tmp_path, COUNT, EARTH, 4))
    assert all(p.boundary.floor == p.boundary.last_seq - 4 for _, p, _ in context.emitted)
    spout.close()


def test_spout_parquet_following_a_file_out_of_order_is_refused(tmp_path):
    write(tmp_path, [message(seq) for seq in range(4)], "part-00001.parquet")
    spout = ParquetSpout(tmp_path, COUNT, EARTH, 4, follow=True, poll_s=0.001)
    spout.open(RecordingContext())
    assert spout.next_batch(0, None) == Tick(0, 0, 3)
    write(tmp_path, [message(seq) for seq in range(4, 8)], "part-00000.parquet")
    with pytest.raises(InputError, match=r"part-00000.parquet: appeared after part-00001.parquet"):
        for number in range(1, 4):
            spout.next_batch(number, None)
    spout.close()
