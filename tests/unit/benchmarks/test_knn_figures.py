"""Figures of `knn`: the placements of the paper, each with the index of its workers."""

import numpy as np
import pytest

from benchmarks import placements
from benchmarks.cases import make_case
from benchmarks.figures.knn import PAGE
from benchmarks.lasting import LastingBench
from benchmarks.placements import SYSTEMS, with_workers
from matching.kinds import KINDS


@pytest.fixture(scope="module")
def bench():
    return LastingBench(make_case(KINDS.named("knn"), 2_000, 2_000, rounds=2, history=4_000), 2)


@pytest.mark.long
def test_every_placement_has_the_results_of_the_bulk_routine_and_tells_its_times(bench):
    measured = with_workers(4)(bench, list(SYSTEMS), print)
    for row in measured.values():
        assert row["exact"] and row["compared"] > 1_000
        assert 0 < row["load_gap_ms"] < row["update_ms"] and len(row["update_ms_by_tick"]) == 2
        assert min(row["insertion_ms"], row["deletion_ms"]) > 0 and 500 <= row["subscriptions_of_fullest"] <= 2_000
    assert with_workers(4, best=True)(bench, ["sop"], print)["sop"]["exact"]


def test_rectangle_that_does_not_enclose_balls_is_noticed(bench, monkeypatch):
    monkeypatch.setattr(placements, "enclosing", lambda balls: np.median(balls, axis=0))
    assert not with_workers(4)(bench, ["sop"], print)["sop"]["exact"]


def test_page_has_the_figures_of_the_paper():
    assert list(PAGE.figures) == ["ticks", "workers", "subscriptions", "k", "load", "best"]
