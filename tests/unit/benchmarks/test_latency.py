"""The benchmark of latency: a run is held against what had to be told, and one that loses an update is noticed."""

import pytest

from benchmarks import latency
from gateway.load import loadtest
from tests.support.losing import spoil_one


def measured(monkeypatch, rate=1_000.0, rounds=1):
    monkeypatch.setattr(loadtest, "PEAK_MESSAGES", 1_500)
    load = {"subscriptions": {"boolean": 300, "topk": 100}, "window": "count:400"}
    # however busy the machine is, several batches of 50 end
    monkeypatch.setattr(latency, "_LOAD", latency._LOAD | load | {"batch": 50})
    return latency.bench(0.6, 0.4, rate, ("local",), rounds=rounds, tell=lambda _: None)


def test_latency_of_a_run_that_tells_what_it_has_to(monkeypatch):
    report = measured(monkeypatch)
    assert report["exact"] and report["compared"] > 500 and report["compared_subscriptions"] > 50
    one = report["measured"]["local"]
    assert one["rate"] == 1_000.0 and one["kept_up"]
    assert 0 < one["p50_ms"] <= one["p99_ms"] <= one["longest_ms"]


def test_latency_is_measured_at_half_of_the_peak_which_the_first_turn_finds(monkeypatch):
    report = measured(monkeypatch, None, 2)
    assert report["exact"] and report["compared"] > 500
    one = report["measured"]["local"]
    assert one["rate"] == one["peak_per_s"] / 2 > 0 and len(one["turns"]) == 2


@pytest.mark.parametrize("numbers", [range(300), range(300, 400)], ids=["boolean", "topk"])
def test_an_update_that_is_lost_makes_the_figure_count_for_nothing(monkeypatch, numbers):
    spoil_one(monkeypatch, numbers, 500)
    assert not measured(monkeypatch)["exact"]
