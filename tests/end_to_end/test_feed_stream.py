"""`spark_etl.stream`: files and a broker's stream into a feed, each row once, with the counts of the batch ETL."""

import json
import shutil
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gateway.sources.folder import FolderSource
from matching.errors import ConfigError, EngineError
from spark_etl.feed_folder import FeedSink
from spark_etl.feed_options import FeedOptions
from spark_etl.options import EtlOptions
from tests.support.brokers import STREAM, NatsBroker, read_all

pytestmark = [pytest.mark.spark, pytest.mark.wide]


@pytest.fixture(scope="module")
def spark(tmp_path_factory):
    from spark_etl.session import spark_session

    given = EtlOptions(inputs=("-",), master="local[2]", driver_memory="512m")
    with spark_session(given, tmp_path_factory.mktemp("spark")) as session:
        yield session


def rows(first, count):
    """Messages, of which every tenth cannot be used."""
    return [
        {"id": f"m{n}", "text": f"ramen {n}", "lon": n % 180, "lat": 91 if n % 10 == 9 else 1.5}
        for n in range(first, first + count)
    ]


def good(first, count):
    return [f"m{n}" for n in range(first, first + count) if n % 10 != 9]


def put(path, found):
    """A file that is there at once."""
    hidden = path.with_name(f".{path.name}")
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(found), hidden)
    elif path.suffix == ".csv":
        lines = [",".join(map(str, one.values())) for one in found]
        hidden.write_text("\n".join([",".join(found[0]), *lines, "cut,off"]))
    else:
        hidden.write_text("".join(json.dumps(one) + "\n" for one in found) + "no json\n")
    hidden.rename(path)


def ids_of(feed, count):
    source = FolderSource(feed)
    source.open({})
    found = [json.loads(one.data)["id"] for one in read_all(source, count)]
    assert source.read(1, 0.0) == []
    return found


def options(inputs, feed, **given):
    etl = EtlOptions(inputs=tuple(map(str, inputs)), master="local[2]", driver_memory="512m")
    return FeedOptions(etl=etl, out=str(feed), once=True, **given)


def test_files_are_fed_once_each_with_the_counts_of_the_batch(tmp_path, spark):
    from spark_etl.job import run_etl
    from spark_etl.stream import run_feed

    raw, more, feed = tmp_path / "raw [1]", tmp_path / "more", tmp_path / "feed"
    (raw / "below").mkdir(parents=True)
    more.mkdir()
    put(raw / "a.jsonl", rows(0, 100))
    put(raw / "below" / "b.csv", rows(100, 100))
    put(more / "c.parquet", rows(200, 100))
    (raw / "notes.txt").write_text("is no data")
    given = options([raw, more], feed)
    seen, begun = [], []
    totals = run_feed(given, seen.append, on_start=begun.append, spark=spark)
    assert begun == [0] and [one.batch for one in seen] == list(range(totals.batches))
    put(raw / "d.jsonl", rows(300, 100))
    # as if Spark had been killed between the commit of the feed and its own: the same batch comes again
    last = totals.batches - 1
    for path in (feed / "posts" / "checkpoint" / "commits").glob(f"*{last}*"):
        path.unlink()
    again = run_feed(given, on_start=begun.append, spark=spark)
    assert begun == [0, totals.batches] and again.rows == 90
    found = ids_of(feed, 360)
    assert Counter(found) == Counter(good(0, 400))
    assert found[-90:] == good(300, 100) and [one for one in found if one in set(good(0, 100))] == good(0, 100)
    rejected = totals.rejected + again.rejected
    etl = EtlOptions(inputs=(str(raw), str(more)), out=str(tmp_path / "etl"))
    manifest = run_etl(etl, spark=spark)
    assert manifest["kept"] == totals.rows + again.rows == 360
    assert manifest["rejected_by_reason"] == dict(sorted(rejected.items()))
    lines = [json.loads(line) for path in (feed / "posts" / "rejected").iterdir() for line in path.open()]
    sink = FeedSink(feed, "posts")
    named = [name for number in range(sink.batches()) for name in sink.batch(number).rejects]
    assert sorted(named) == sorted(path.name for path in (feed / "posts" / "rejected").iterdir())
    assert Counter(one["reason"] for one in lines) == rejected
    assert all(one["row"] == "no json" for one in lines if one["reason"] == "not_json")


def test_another_checkpoint_and_another_process_are_refused_before_spark_starts(tmp_path, spark):
    from spark_etl.stream import _only_one, run_feed

    raw, feed = tmp_path / "raw", tmp_path / "feed"
    raw.mkdir()
    put(raw / "a.jsonl", rows(0, 10))
    run_feed(options([raw], feed), spark=spark)
    with pytest.raises(ConfigError, match="is a fresh one.*--checkpoint.*--stream"):
        run_feed(options([raw], feed, checkpoint=str(tmp_path / "other")))
    run_feed(options([raw], feed, sink="second"), spark=spark)
    with pytest.raises(ConfigError, match="batches of another checkpoint"):
        run_feed(options([raw], feed, checkpoint=str(feed / "second" / "checkpoint")))
    with _only_one(FeedSink(feed, "posts")), pytest.raises(ConfigError, match="another process feeds this sink"):
        run_feed(options([raw], feed))


def test_failure_of_the_query_says_what_and_the_same_call_goes_on(tmp_path, spark):
    from spark_etl.stream import run_feed

    raw, feed = tmp_path / "raw", tmp_path / "feed"
    raw.mkdir()
    put(raw / "a.jsonl", rows(0, 20))
    given = options([raw], feed)
    (feed / "posts").mkdir(parents=True)
    (feed / "posts" / "rows").write_text("in the way")  # as a disk that is full would be
    with pytest.raises(EngineError, match="the stream has failed: .*Error"):
        run_feed(given, spark=spark)
    (feed / "posts" / "rows").unlink()
    run_feed(given, spark=spark)
    assert ids_of(feed, 18) == good(0, 20)
    with pytest.raises(ConfigError, match="no column for text"):
        run_feed(options([], tmp_path / "other", format="rate"), spark=spark)


def test_stream_of_nats_is_fed_once_each_across_restarts(tmp_path, spark):
    from spark_etl.stream import run_feed

    feed = tmp_path / "feed"
    with NatsBroker(tmp_path / "broker") as broker:
        broker.create()
        broker.publish([json.dumps(one).encode() for one in rows(0, 2_500)])
        named = (f"servers={broker.url}", f"stream={STREAM}", "rows=1000")
        given = options([], feed, format="nats", option=named)
        totals = run_feed(given, spark=spark)
        assert (totals.batches, totals.rows) == (3, 2_250)
        broker.kill()
        broker.start()
        broker.publish([json.dumps(one).encode() for one in rows(2_500, 500)])
        shutil.rmtree(feed / "posts" / "checkpoint" / "commits")
        (feed / "posts" / "checkpoint" / "commits").mkdir()
        again = run_feed(given, spark=spark)
        assert again.rows == 450
        assert ids_of(feed, 2_700) == good(0, 3_000)
        places = [json.loads(line) for path in (feed / "posts" / "rejected").iterdir() for line in path.open()]
        assert sorted(one["sequence"] for one in places) == list(range(10, 3_001, 10))
        broker.publish([json.dumps(one).encode() for one in rows(3_000, 20)])
        broker.remove_through(3_010)
        with pytest.raises(ConfigError, match="removed messages 3,001 to 3,010.*fail_on_data_loss"):
            run_feed(given, spark=spark)
        lossy = options([], feed, format="nats", option=(*named, "fail_on_data_loss=false"))
        assert run_feed(lossy, spark=spark).rows == 9
        broker.recreate()
        with pytest.raises(ConfigError, match="created anew"):
            run_feed(given, spark=spark)
        with pytest.raises(ConfigError, match="no such stream"):
            absent = (f"servers={broker.url}", "stream=ABSENT")
            run_feed(options([], tmp_path / "other", format="nats", option=absent), spark=spark)
