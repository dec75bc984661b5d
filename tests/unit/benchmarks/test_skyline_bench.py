"""The skyline benchmark: what it reports, that it checks, and that its workload has what it says."""

import json
from dataclasses import replace

import numpy as np
import pytest

from benchmarks import run
from benchmarks.cases import make_case
from benchmarks.harness import Bench
from benchmarks.workload import WORLD, make_messages, skyline_subscriptions, versions_of_objects
from matching.kinds import KINDS
from matching.model import SKYLINE
from matching.skyline.engines.eager_star import EagerStar

_FIGURES = {
    "engine",
    "exact",
    "build_s",
    "bytes_per_subscription",
    "messages_per_s",
    "scanned_per_message",
    "verified_per_message",
    "matched_per_message",
    "refills_per_message",
    "share_window",
}


@pytest.mark.long
def test_skyline_bench_reports_every_figure_for_every_engine():
    report = run.bench("skyline", 400, messages=600, window=2_000, seed=4, rounds=2)
    assert json.loads(json.dumps(report)) == report
    assert [result["engine"] for result in report["results"]] == [
        "eager_star",
        "eager",
        "lazy",
        "skyline_only",
        "bnl",
        "sweep",
    ]
    for result in report["results"]:
        assert set(result) >= _FIGURES
        assert result["exact"] is True and result["compared"] > 0 and result["compared_results"] > 0
    assert len({result["updates_per_message"] for result in report["results"]}) == 1
    fast, *_, slow = report["results"]
    assert 0 < fast["refills_per_message"] < slow["refills_per_message"]
    assert report["workload"]["window_index"] == "grid", "what a run has"


def test_skyline_bench_of_a_wrong_engine_is_not_exact():
    class Forgetful(EagerStar):
        def apply(self, offers, slots, seqs, floor):
            return super().apply(type(offers)(*(column[:-300] for column in offers)), slots, seqs, floor)

    kind = replace(KINDS.named("skyline"), engines={"wrong": Forgetful})
    bench = Bench(make_case(kind, 400, 600, 2_000, 1, 4), 1)
    assert bench.check([bench.build()])[0]["exact"] is False


def test_skyline_workload_has_versions_and_regions_as_described():
    drawn = make_messages(20_000, 1).batch
    moved, objects, ends = versions_of_objects(drawn, 3_000, 0.2, 5, 0.1, 1)
    newer = np.flatnonzero(ends >= 0)
    assert 0.18 < newer.size / ends.size < 0.2
    assert np.unique(ends[newer]).size == newer.size and np.all(objects[newer] == objects[ends[newer]])
    assert np.median(newer - ends[newer]) < 3_000 and np.all(newer > ends[newer])
    away = np.abs(moved.west[newer] - moved.west[ends[newer]])
    assert 0.0 < np.median(away) < 0.3 and np.array_equal(moved.terms, drawn.terms)
    table = skyline_subscriptions(make_messages(2_000, 1), 1_000, 1)
    assert np.all(table.kind == SKYLINE)
    sides = table.region[:, 2:] - table.region[:, :2]
    share = sides / np.array([WORLD.east - WORLD.west, WORLD.north - WORLD.south])
    assert np.all(share > 0.0) and np.all(share <= 0.1 + 1e-9) and share.max() > 0.09
