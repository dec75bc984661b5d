"""The benchmark of latency: a run is held against what had to be told, and one that loses an update is noticed."""

import numpy as np
import pytest

from benchmarks import latency
from matching.model import take_rows


def measured(monkeypatch):
    monkeypatch.setattr(latency, "_PEAK_MESSAGES", 1_500)
    monkeypatch.setattr(latency, "_CHECKED_MESSAGES", 300)
    monkeypatch.setattr(latency, "_LARGEST", 50)  # however busy the machine is, several batches end among them
    monkeypatch.setattr(latency, "_COUNTS", {"boolean": 300, "topk": 100})
    monkeypatch.setattr(latency, "_WINDOW", "count:400")
    return latency.bench(0.6, 0.4, 1_000.0, ("local",), rounds=1, tell=lambda _: None)


def test_latency_of_a_run_that_tells_what_it_has_to(monkeypatch):
    report = measured(monkeypatch)
    assert report["exact"] and report["compared"] > 500 and report["compared_subscriptions"] > 50
    one = report["measured"]["local"]
    assert one["rate"] == 1_000.0 and one["peak_per_s"] > 0
    assert 0 < one["p50_ms"] <= one["p99_ms"] <= one["longest_ms"]


@pytest.mark.parametrize("kind", ["boolean", "topk"])
def test_an_update_that_is_lost_makes_the_figure_count_for_nothing(monkeypatch, kind):
    told_in = latency.told_in

    def losing(out, asked):
        told = told_in(out, asked)
        if asked != kind:
            return told
        steady = np.flatnonzero((told.as_of >= 500) & (told.as_of < 600))
        return take_rows(told, np.delete(np.arange(len(told)), steady[steady.size // 2]))

    monkeypatch.setattr(latency, "told_in", losing)
    assert not measured(monkeypatch)["exact"]
