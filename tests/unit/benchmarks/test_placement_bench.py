"""The benchmark of placements: all workers together tell the same and are right; who loses somebody is noticed."""

import pytest

from benchmarks import placement_work
from benchmarks.placement_work import measure
from distribution.placed import SopRouter

SIZES = {"subscriptions": 300, "workers": 3, "rounds": 2, "history": 2_000}


@pytest.mark.wide
def test_every_placement_tells_the_same_updates():
    report = measure(**SIZES)
    assert report["exact"] and report["same_updates"] and report["workload"]["workers"] == 3
    assert report["compared"] > 100 and report["compared_subscriptions"] > 30
    pairs = [(row["placement"], row["index"]) for row in report["results"]]
    assert pairs[:4] == list(placement_work._OF_PAPER.items()) and len(pairs) == len(set(pairs)) + 3
    for row in report["results"]:
        assert 0 < row["slowest_ms"] <= row["all_ms"] and 1.0 <= row["max_to_mean"] <= 3.0


@pytest.mark.parametrize("by", ["one", "all"])
def test_placement_that_gives_somebody_to_nobody_is_noticed(by, monkeypatch):
    monkeypatch.setattr(placement_work, "_OF_PAPER", {"sop": "influence_grid"})
    monkeypatch.setattr(placement_work, "_PLACEMENTS", {"sop": SopRouter})
    owners = placement_work.Workers._owners

    def losing(self, *args):
        owner = owners(self, *args).copy()
        if by == "all" or self.name == "sop":
            owner[::3] = self.count
        return owner

    monkeypatch.setattr(placement_work.Workers, "_owners", losing)
    report = measure(**SIZES)
    assert not report["exact"] and report["same_updates"] == (by == "all")
