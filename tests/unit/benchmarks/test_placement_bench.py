"""The benchmark of placements counts what a plain count does, and loses nobody."""

import json
import subprocess
import sys

import numpy as np

from benchmarks.placement import FACTORIES, placement
from benchmarks.workload import WORLD, make_messages, topk_subscriptions
from distribution.placement.costs import SampleCosts
from matching.kinds import KINDS
from matching.model import SubscriptionTable


def test_counted_postings_are_those_of_a_plain_count():
    stream = make_messages(300, 3)
    table = topk_subscriptions(stream, 60, 3)
    table = SubscriptionTable(**table._asdict() | {"kind": np.full(60, KINDS.named("knn").code, np.int8)})
    known, batch = SampleCosts(WORLD, stream.batch.take(np.arange(200))), stream.batch.take(np.arange(200, 300))
    counts = {}
    for name, factory in FACTORIES.items():
        index = factory(known)
        index.insert(table)
        index.remove(table.number[:10])
        counts[name] = index.work(batch)
    plain = 0
    for row in range(10, 60):
        wanted = table.terms[table.term_offsets[row] : table.term_offsets[row + 1]]
        plain += int(np.isin(batch.terms, wanted).sum())
    assert counts["keywords"] == plain and 0 < counts["places"] < plain


def test_every_algorithm_holds_everybody_and_does_the_same_work_in_sum():
    figures = placement(400, 3, 200, 2, "knn", FACTORIES["places"], 5, True, lambda line: None)
    assert [row["name"] for row in figures["results"]] == [
        "hashing", "kop", "sop", "dkm-sks", "ps2stream", "dkm-sks as printed",
    ]  # fmt: skip
    for row in figures["results"]:
        assert sum(row["subscriptions"]["of_each"]) == 400 and sum(row["newcomers"]["of_each"]) == 200
        assert sum(row["work"]["of_each"]) == sum(figures["results"][0]["work"]["of_each"])


def test_placement_bench_prints_json():
    sizes = ["--subscriptions", "200", "--rounds", "1", "--workers", "2", "--sample", "100", "--kind", "boolean"]
    command = [sys.executable, "-m", "benchmarks.placement", *sizes]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["measured"][0]["workload"]["subscriptions"] == 200
