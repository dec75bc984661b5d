"""`spark.read.format("skyray")`: Spark reads updates and results of a run as pyarrow does."""

import json
from collections import Counter

import pyarrow.parquet as pq
import pytest

from spark_etl.options import EtlOptions
from tests.support.etl_folder import random_rows, write_etl
from tests.support.processes import NEAR
from topology.running import run
from topology.settings import RunConfig

pytestmark = [pytest.mark.spark, pytest.mark.wide]


def counted(path, columns):
    """Rows of a file or folder as a multiset, read by pyarrow."""
    rows = pq.read_table(path, columns=columns)
    return Counter(zip(*(rows[name].to_pylist() for name in columns), strict=True))


def test_spark_reads_updates_and_results_as_pyarrow_does(tmp_path):
    from spark_etl.feed_sink import FeedDataSource
    from spark_etl.session import spark_session

    rows = [{"subscription_id": f"near {number}", **NEAR, "lat": number} for number in range(40)]
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = tmp_path / "run"
    config = RunConfig(
        messages=write_etl(tmp_path / "etl", random_rows(2_000)),
        subscriptions=(tmp_path / "mine.jsonl",),
        out=out,
        window="count:500",
        batch="50",
        executor="local",
        delivery_bolts=2,
    )
    run(config)
    options = EtlOptions(inputs=("-",), master="local[2]", driver_memory="512m")
    with spark_session(options, tmp_path / "scratch") as spark:
        spark.dataSource.register(FeedDataSource)
        updates = spark.read.format("skyray").load(str(out))
        assert updates.rdd.getNumPartitions() == len(list((out / "updates").glob("part-*"))) > 1
        found = Counter(tuple(row) for row in updates.collect())
        assert found == counted(out / "updates", updates.columns) and sum(found.values()) > 1_000
        by_change = {row["change"]: row["count"] for row in updates.groupBy("change").count().collect()}
        assert by_change == Counter(pq.read_table(out / "updates")["change"].to_pylist())
        results = spark.read.format("skyray").option("table", "results").load(str(out))
        assert Counter(tuple(row) for row in results.collect()) == counted(out / "results.parquet", results.columns)
        assert results.where("rank = 1").count() == len(rows)
