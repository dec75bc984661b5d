"""`skyray feed` and `deploy/feed_job.py` as processes: refusals in a line, and the same feed by `spark-submit`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from spark_etl.feed_folder import FeedSink
from tests.support.processes import ROOT, Command

pytestmark = [pytest.mark.spark, pytest.mark.wide]
_ROWS = [{"id": f"m{n}", "body": f"ramen {n}", "y": 95 if n % 10 == 9 else 1, "x": n} for n in range(100)]


@pytest.fixture
def raw(tmp_path):
    folder = tmp_path / "raw"
    folder.mkdir()
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in _ROWS))
    return folder


def fed(feed):
    """Ids in a feed, and rejected rows by reason."""
    sink = FeedSink(feed, "posts")
    batches = [sink.batch(number) for number in range(sink.batches())]
    ids = [json.loads(line)["id"] for batch in batches for line in sink.lines(batch)]
    return ids, [dict(batch.rejected) for batch in batches]


EXPECTED = [row["id"] for row in _ROWS if row["y"] == 1], [{"coordinate_out_of_range": 10}]


def test_spark_submit_fills_the_feed_as_the_command_does(tmp_path, raw):
    feed = tmp_path / "feed"
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    spark = ["--master", "local[2]", "--driver-memory", "512m", "--conf", "spark.ui.enabled=false"]
    job = [str(ROOT / "deploy" / "feed_job.py"), str(raw), "--out", str(feed), "--column", "text=body", "--once"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run([str(submit), *spark, *job], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3_000:]
    assert "1 batches, 90 messages" in done.stdout
    assert fed(feed) == EXPECTED
    wrong = subprocess.run([sys.executable, *job[:2], "--every", "-1"], env=environment, capture_output=True, text=True)
    assert wrong.returncode == 2 and "error: --out: name the folder" in wrong.stderr


def test_command_runs_until_it_is_ended_and_says_what_it_has_fed(tmp_path, raw):
    feed = tmp_path / "feed"
    with Command(["feed", raw, "--out", feed, "--json", "--master", "local[2]", "--driver-memory", "512m"]) as command:
        command.await_(lambda: FeedSink(feed, "posts").batches() == 1, 200)
        with Command(["feed", raw, "--out", feed]) as other:
            code, _, said = other.finish(60)
            assert code == 2 and "another process feeds this sink" in said
        command.process.terminate()
        code, told, said = command.finish(60)
        command.assert_nothing_left()
    assert code == 143, said
    answer = json.loads(told)
    assert (answer["messages"], answer["rejected_by_reason"]) == (90, {"coordinate_out_of_range": 10})
    assert "feed: reads" in said and "90 messages" in said and fed(feed) == EXPECTED
    with Command(["feed", raw, "--out", feed, "--checkpoint", tmp_path / "other"]) as command:
        code, _, said = command.finish(60)
        assert code == 2 and "is a fresh one" in said and said.count("\n") <= 2
