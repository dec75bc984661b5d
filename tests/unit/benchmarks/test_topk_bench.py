"""The top-k benchmark: what it reports, that it checks, and that every engine continues from one bulk refill."""

import json
from dataclasses import replace

import numpy as np
import pytest

from baselines.topk.l2_scan import L2Scan
from benchmarks import run
from benchmarks.cases import make_case
from benchmarks.driving import NO_REMOVALS
from benchmarks.harness import Bench
from benchmarks.workload import WORLD
from matching.kinds import KINDS
from matching.local_engine import LocalEngine
from matching.model import NO_MESSAGES

TOPK = KINDS.named("topk")


@pytest.mark.long
def test_topk_bench_reports_every_figure_for_every_engine():
    report = run.bench("topk", 500, messages=300, window=2_000, seed=4, rounds=2)
    assert json.loads(json.dumps(report)) == report
    assert [result["engine"] for result in report["results"]] == list(TOPK.engines)
    for result in report["results"]:
        assert result["exact"] is True and result["compared"] > 0 and result["compared_results"] > 1_000
        assert result["updates_per_message"] == report["results"][0]["updates_per_message"] > 0
        shares = [value for name, value in result.items() if name.startswith("share_")]
        assert sum(shares) == pytest.approx(1.0, abs=0.05)
        assert result["bytes_per_subscription"] > 0 and result["window_bytes"] > 0
    fast, slow = (
        next(row for row in report["results"] if row["engine"] == name) for name in ("skype", "inverted_file")
    )
    assert fast["verified_per_message"] < slow["verified_per_message"]
    assert report["workload"]["window_index"] == "segments"


def test_topk_bench_of_a_wrong_engine_is_not_exact():
    class Forgetful(L2Scan):
        def match(self, batch, first_row=0, most_hits=1 << 21):
            hits = super().match(batch, first_row, most_hits)
            kept = np.arange(hits.slot.shape[0]) % 7 > 0
            return hits._replace(slot=hits.slot[kept], row=hits.row[kept], scores=(hits.scores[0][kept],))

    bench = Bench(make_case(replace(TOPK, engines={"wrong": Forgetful}), 400, 300, 1_000, 1, 4), 1)
    assert bench.check([bench.build()])[0]["exact"] is False


def test_filled_buffers_are_those_of_a_refill_of_everybody_at_once():
    bench = Bench(make_case(TOPK, 300, 200, 1_000, 1, 4), 1)
    held = bench.build("skype").alone.results()
    alone = LocalEngine([TOPK], WORLD, bench.case.window)
    empty = alone.states()
    alone.restore(bench._full, bench.case.messages.take(np.arange(1_000)), empty)

    after = bench._full._replace(number=1, first_seq=1_000)
    alone.process(after, NO_MESSAGES, bench.case.table, NO_REMOVALS)
    assert all(np.array_equal(a, b) for a, b in zip(held[:4], alone.results()[:4], strict=True))
    assert len(held) > 1_000


@pytest.mark.parametrize("index", list(TOPK.windows))
@pytest.mark.long
def test_window_gives_up_what_has_expired_while_it_slides(index):
    bench = Bench(make_case(TOPK, 50, 3_000, 500, 6, 4), 6, windows={"topk": index})
    running = bench.build()
    for turn in range(5):
        bench.time(running, turn)
    held = len(running.alone.window_index)
    assert held >= 500
    for turn in range(5, 6):
        bench.time(running, turn)
    assert len(running.alone.window_index) < 2 * 500 + 2 * bench.case.batch and held < 2 * 500 + 2 * bench.case.batch
