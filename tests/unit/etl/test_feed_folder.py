"""A feed folder: the first commit of a batch wins, another job is refused, and each row is read once."""

import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from gateway.sources.folder import FolderSource
from gateway.sources.source import SourceAway
from gateway.sources.uris import source_of
from matching.errors import ConfigError, EngineError
from spark_etl.feed_folder import FeedSink
from tests.support.brokers import position, read_all
from tests.support.mirrored_disk import MirroredDisk
from tests.support.simulated_disk import Halted, Machine

ROWS = [b'{"text": "ramen %d", "lon": 139.7, "lat": 35.7}' % number for number in range(250)]


def fed(folder, name="posts", rows=ROWS, size=40, query="one"):
    """A sink with these rows, of which every third batch is empty and each has two files."""
    sink = FeedSink(folder, name)
    sink.claim(query)
    number = sink.batches()
    for begin in range(0, len(rows), size):
        batch = rows[begin : begin + size]
        assert sink.commit(number, [sink.write_rows(batch[:7]), sink.write_rows(batch[7:])], {"empty_text": 1})
        number += 1
        if number % 3 == 2:
            assert sink.commit(number, [], {})
            number += 1
    return sink


def test_rows_are_read_once_in_order_also_those_that_come_later(tmp_path):
    fed(tmp_path)
    source = source_of(f"feed:{tmp_path}")
    assert source.open({}) == 0 and source.lag() == len(ROWS)
    found = read_all(source, len(ROWS))
    assert [one.data for one in found] == ROWS and [one.offset for one in found] == list(range(len(ROWS)))
    assert source.read(10, 0.0) == [] and source.lag() == 0
    fed(tmp_path, rows=[b"more"])
    fed(tmp_path, "another", [b"other"], query="two")
    assert sorted(one.data for one in read_all(source, 2)) == [b"more", b"other"]


@pytest.mark.parametrize("cut", [0, 1, 6, 7, 8, 39, 40, 41, 249, 250])
def test_opened_behind_any_position_reads_what_follows(tmp_path, cut):
    fed(tmp_path)
    source = FolderSource(tmp_path)
    source.open({} if not cut else {"posts": (cut - 1, "one")})
    assert source.lag() == len(ROWS) - cut
    assert [one.data for one in read_all(source, len(ROWS) - cut)] == ROWS[cut:]
    assert source.read(1, 0.0) == []


def test_first_commit_of_a_batch_wins_among_many_at_once(tmp_path):
    sink = FeedSink(tmp_path, "posts")
    sink.claim("one")
    files = [sink.write_rows([b"row %d" % number]) for number in range(16)]
    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(lambda file: sink.commit(0, [file], {}), files))
    assert won.count(True) == 1
    source = FolderSource(tmp_path)
    source.open({})
    assert [one.data for one in source.read(10, 1.0)] == [b"row %d" % won.index(True)]
    assert not any(path.name.startswith(".") for path in sink.path.iterdir())


def test_another_job_under_a_used_name_is_refused(tmp_path):
    fed(tmp_path)
    with pytest.raises(ConfigError, match="fresh checkpoint.*name another sink"):
        FeedSink(tmp_path, "posts").claim("two")
    with pytest.raises(EngineError, match="has fed another folder"):
        FeedSink(tmp_path, "elsewhere").commit(3, [], {})
    with pytest.raises(ConfigError, match="sink name"):
        FeedSink(tmp_path, "../posts")


def test_folder_that_was_made_anew_is_refused(tmp_path):
    fed(tmp_path, rows=ROWS[:10])
    for after, what in (
        ({"posts": (10, "one")}, "ends before row 11"),
        ({"posts": (3, "two")}, "created anew"),
        ({"gone": (3, "one")}, "has no sink gone"),
    ):
        with pytest.raises(ConfigError, match=rf"{what}.*--out"):
            FolderSource(tmp_path).open(after)
    with pytest.raises(SourceAway, match="cannot be read"):
        FolderSource(tmp_path / "absent").open({})
    with pytest.raises(ConfigError, match="no such folder"):
        source_of(f"feed:{tmp_path / 'absent'}")


def test_file_that_lost_rows_is_refused(tmp_path):
    sink = fed(tmp_path)
    batch = sink.batch(1)
    (sink.path / "rows" / batch.files[1].name).write_bytes(b"")
    source = FolderSource(tmp_path)
    source.open({})
    with pytest.raises(ConfigError, match="bring the file back"):
        read_all(source, len(ROWS))


def test_position_of_what_was_read_continues_behind_it(tmp_path):
    fed(tmp_path)
    source = FolderSource(tmp_path)
    source.open({})
    first = read_all(source, 120)
    source.open(position(first))
    assert [one.data for one in read_all(source, len(ROWS) - len(first))] == ROWS[len(first) :]


@pytest.mark.parametrize("stops", [False, True], ids=["killed", "killed, then the machine stops"])
def test_feed_that_dies_before_any_operation_twice_has_each_row_once(tmp_path, stops):
    """What a job knows to be committed is there, also where the process that committed it died before it was known."""
    rows, deaths = ROWS[:6], 0
    for number in range(40):
        for second in range(number % 5, 40, 5):
            machine = Machine(f"{tmp_path}")
            disk = MirroredDisk(machine, tmp_path / f"{number}-{second}")
            known = 0  # batches, as the job's own checkpoint has them
            for life, dies in enumerate((number, second, None)):
                if dies is not None:
                    machine.halt_before(None, dies)
                try:
                    with disk.watched():
                        sink = FeedSink(disk.root / "feed", "posts")
                        sink.claim("one")
                        while known < 3:
                            sink.commit(known, [sink.write_rows(rows[2 * known : 2 * known + 2])], {})
                            known += 1
                except Halted:
                    deaths += 1
                disk.restart()
                if life == 1 and stops:
                    disk.lose(random.Random(f"{number} {second}"))
                assert FeedSink(disk.root / "feed", "posts").batches() >= known, f"{number}, {second}: a batch is gone"
            source = FolderSource(disk.root / "feed")
            source.open({})
            assert [one.data for one in source.read(100, 0.0)] == rows, f"{number}, {second}"
            machine.forget()
    assert deaths > 500
