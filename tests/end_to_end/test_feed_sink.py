"""`format("skyray")`: a stream of Spark into a feed folder, each row once, and a fresh checkpoint refused."""

import json

import pytest
from pyspark.errors import StreamingQueryException

from gateway.sources.folder import FolderSource
from spark_etl.feed_folder import FeedSink
from spark_etl.options import EtlOptions
from spark_etl.session import spark_session

pytestmark = [pytest.mark.spark, pytest.mark.wide]


def test_stream_feeds_each_row_once_and_a_fresh_checkpoint_is_refused(tmp_path):
    from spark_etl.feed_sink import FeedDataSource

    raw, feed = tmp_path / "raw", tmp_path / "feed"
    raw.mkdir()
    options = EtlOptions(inputs=("-",), master="local[2]", driver_memory="512m")
    with spark_session(options, tmp_path / "scratch") as spark:
        spark.dataSource.register(FeedDataSource)

        def run(checkpoint):
            rows = spark.readStream.schema("id string, text string, lon double, lat double").json(str(raw))
            writer = rows.writeStream.format("skyray").option("sink", "posts").trigger(availableNow=True)
            writer.option("checkpointLocation", str(tmp_path / checkpoint)).start(str(feed)).awaitTermination(90)

        def add(name, numbers):
            rows = [
                {"id": f"m{n}", "text": f"ramen {n}", "lon": n % 180, "lat": 91 if n % 10 == 9 else 1} for n in numbers
            ]
            (raw / name).write_text("".join(json.dumps(row) + "\n" for row in rows))

        add("a.json", range(100))
        run("checkpoint")
        # as if Spark had been killed between the commit here and its own: the same batch comes again
        (tmp_path / "checkpoint" / "commits" / "0").unlink()
        (tmp_path / "checkpoint" / "commits" / ".0.crc").unlink(missing_ok=True)
        run("checkpoint")
        add("b.json", range(100, 200))
        run("checkpoint")
        with pytest.raises(StreamingQueryException, match="fresh checkpoint"):
            run("another")
    sink = FeedSink(feed, "posts")
    assert [sink.batch(number).rejected for number in range(sink.batches())] == [{"coordinate_out_of_range": 10}] * 2
    source = FolderSource(feed)
    source.open({})
    found = sorted(json.loads(one.data)["id"] for one in source.read(1_000, 1.0))
    assert found == sorted(f"m{n}" for n in range(200) if n % 10 != 9)
