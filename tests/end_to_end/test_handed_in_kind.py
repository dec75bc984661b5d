"""A kind that is handed in goes the whole way: made by its recipe, read from a file, run, told; and in load tests.

That what it tells is right is shown in `test_sixth_kind`; here, that nobody on the way has to know it.
"""

import json
from dataclasses import replace

import pyarrow.parquet as pq
import pytest

from bolts.delivery import DeliveryBolt
from distribution.routers import router_named
from gateway.generate import generate_subscriptions
from gateway.loadtest import load_plan
from matching.errors import ConfigError
from matching.kind_table import Recipe
from matching.kinds import KINDS
from matching.space import EARTH, Space
from matching.window import Window
from spouts.parquet import ParquetSpout, read_points
from spouts.subscriptions import SubscriptionSpout, load_vocabulary
from tests.end_to_end.test_sixth_kind import EARLIEST
from tests.support.etl_folder import random_rows, write_etl
from topology.core.local import run_local
from topology.wiring import wire

MORE = KINDS.plus(replace(EARLIEST, recipe=Recipe("none", k=(1, 4), side=0.9)))
SPACE, WINDOW = Space(*EARTH), Window.parse("count:60")


@pytest.fixture(scope="module")
def etl(tmp_path_factory):
    return write_etl(tmp_path_factory.mktemp("sixth") / "etl", random_rows(240))


def run(etl, files, out, router):
    placed = router_named(router, 3, SPACE, lambda: read_points(etl, SPACE, 100), kinds=MORE)
    subscriptions = SubscriptionSpout(files, load_vocabulary(etl), SPACE, out / "rejected.jsonl", MORE)
    delivery = DeliveryBolt(str(out), WINDOW, 4, lasting=())
    out.mkdir()
    report = run_local(
        wire(ParquetSpout(etl, WINDOW, SPACE, 20), subscriptions, placed, SPACE, WINDOW, delivery, kinds=MORE)
    )
    told = report.components["delivery"].tasks[0].figures
    return told["digest"], report.components["subscriptions"].tasks[0].figures


def test_kind_handed_in_is_made_read_run_and_told(etl, tmp_path):
    files = []
    for kind, share in (("earliest", 0.7), ("boolean", 0.5)):
        files.append(tmp_path / f"{kind}.jsonl")
        generate_subscriptions(etl, kind, 30, 4, files[-1], region_share=share, until_share=0.3, kinds=MORE)
    with files[0].open("a") as file:
        row = json.loads(files[0].read_text().splitlines()[0])
        file.write(json.dumps(row | {"subscription_id": "no k", "k": None}) + "\n")
        file.write(json.dumps(row | {"subscription_id": "idle", "kind": "knn"}) + "\n")
    runs = {router: run(etl, files, tmp_path / router, router) for router in ("hashing", "location")}
    assert runs["hashing"][0] == runs["location"][0]
    figures = runs["location"][1]
    assert figures["by_kind"] == {"boolean": 30, "topk": 0, "decay": 0, "knn": 0, "skyline": 0, "earliest": 30}
    assert figures["rejected_by_reason"] == {"bad_k": 1, "wrong_place": 1}
    reasons = [json.loads(line)["what"] for line in (tmp_path / "location" / "rejected.jsonl").read_text().splitlines()]
    assert any("knn and earliest need one" in what for what in reasons)
    rows = pq.read_table(tmp_path / "location" / "updates").to_pylist()
    told = {(row["subscription_id"].split("-")[0], row["change"]) for row in rows}
    assert told == {("earliest", "enter"), ("earliest", "leave"), ("boolean", "match")}


def test_kind_handed_in_is_a_load_of_load_tests():
    digests = set()
    for router in ("hashing", "location"):
        counts = {"earliest": 20, "boolean": 40}
        plan = load_plan(1e6, 600, 100, counts, "count:300", 2, router, kinds=MORE)
        report = run_local(plan)
        assert report.components["delivery"].tasks[0].figures["updates"]["enter"] > 20
        digests.add(report.components["delivery"].tasks[0].figures["digest"])
    assert len(digests) == 1
    with pytest.raises(ConfigError, match="of kind earliest, .* or --earliest 0"):
        load_plan(1e6, 600, 100, {"earliest": 1}, "count:300", 2, "keyword", kinds=MORE)
