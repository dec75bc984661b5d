"""The CIQ paper's figures by its printed forms: what is counted, that mechanisms work, that results are compared."""

import numpy as np
import pytest

from benchmarks import evaluations
from benchmarks.cases import make_case
from benchmarks.command import main
from benchmarks.lasting import LastingBench
from matching.errors import ConfigError
from matching.kinds import KINDS
from papers.ciq.ciq_paper import CiqPaper


def measure(figure, **asked):
    report = evaluations.bench(**{"subscriptions": 700, "figures": (figure,), "tell": lambda _: None, **asked})
    return report, {row["x"]: row["engines"] for row in report["rows"]}


@pytest.mark.long
def test_text_relevances_fall_with_the_block_evaluations_do_not_and_all_results_are_compared():
    report, rows = measure("block", alpha=0.9, subscriptions=2_000)
    small, large = rows["1"]["ciq_paper"], rows["4096"]["ciq_paper"]
    assert small["text_relevances_per_message"] < 0.9 * large["text_relevances_per_message"]
    # lemma 1 does not depend on blocks
    assert small["evaluations_per_message"] == large["evaluations_per_message"] > small["matched_per_message"]
    assert large["associations"] > rows["1"]["bif_paper"]["associations"] == 1.0
    assert large["evaluations_per_message"] < rows["1"]["bif_paper"]["evaluations_per_message"]
    assert set(rows["1"]) == {"ciq_paper", "ciq_h_paper", "bif_paper"}, "an engine without blocks"
    each = [engine for row in rows.values() for engine in row.values()]
    assert report["exact"] and all(engine["exact"] and engine["compared_results"] > 5_000 for engine in each)


@pytest.mark.long
def test_buckets_that_are_all_the_same_are_found_to_be_idle(monkeypatch: pytest.MonkeyPatch):
    report, rows = measure("width", engines=("ciq_paper",), alpha=0.9)
    assert report["worked"] and rows["0.6"]["ciq_paper"]["buckets_used"] > rows["2.0"]["ciq_paper"]["buckets_used"] > 1
    monkeypatch.setattr(evaluations, "FIGURES", {"width": {"1e9": {"width": 1e9}}})
    report, rows = measure("width", engines=("ciq_paper",))
    assert rows["1e9"]["ciq_paper"]["idle"] == ["buckets"] and report["exact"] and not report["worked"]
    monkeypatch.setattr("sys.argv", ["evaluations"])

    def idle(tell) -> dict:
        return {"exact": True, "worked": False}

    assert main(idle) == 1


@pytest.mark.long
def test_newcomers_with_results_are_divided_among_cells_by_algorithm_2():
    report, rows = measure("insertion", engines=("ciq_paper", "bif_paper", "ifl_paper", "keyword_blocks"))
    (row,) = rows.values()
    assert row["ciq_paper"]["associations_per_newcomer"] > 2.0
    assert row["bif_paper"]["associations_per_newcomer"] == row["keyword_blocks"]["associations_per_newcomer"] == 1.0
    assert report["exact"] and report["worked"] and all(each["compared"] > 10_000 for each in row.values())
    assert not any("us_per_insertion" in each for each in row.values()), "times of a run that asked for counts"


@pytest.mark.long
def test_rounds_are_timed():
    _, rows = measure("standard", engines=("bif_paper", "ifl_paper"), rounds=2, messages=40)
    ifl = rows[""]["ifl_paper"]
    assert ifl["us_per_message"] > 0.0 and ifl["evaluations_per_message"] == ifl["text_relevances_per_message"]


def test_results_of_the_history_are_kept_for_the_same_workload_alone(tmp_path):
    def bench(**given):
        case = make_case(KINDS.named("decay"), 700, 20, rounds=1, history=2_000, **given)
        return LastingBench(case, 1, str(tmp_path / "kept"))

    first, again = bench(), bench()
    assert isinstance(again._before.key, np.memmap)
    assert all(np.array_equal(one, other) for one, other in zip(first._before, again._before, strict=True))
    running = again.build("bif_paper")
    for _ in again._take(running, again.checked, np.inf):
        pass
    assert again.compare_results(running)[0]
    with pytest.raises(ConfigError, match=r"another workload \(half_life_s differ\)"):
        bench(half_life_s=1.0)


def test_evaluations_of_an_engine_that_loses_results_do_not_count(monkeypatch: pytest.MonkeyPatch):
    scan = CiqPaper._scan
    monkeypatch.setattr(CiqPaper, "_scan", lambda self, batch, row: scan(self, batch, max(row, min(3, len(batch)))))
    report, _ = measure("standard", engines=("bif_paper",))
    assert not report["exact"]
