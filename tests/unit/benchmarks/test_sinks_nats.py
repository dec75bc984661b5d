"""The benchmark of the sink of NATS compares what it times."""

from benchmarks import sinks_nats


def test_each_way_is_timed_and_compared():
    report = sinks_nats.measure(updates=1_500, rounds=1, tell=lambda sentence: None)
    assert report["exact"]
    assert set(report["updates_per_s"]) == {"bare", "behind", "sink"}


def test_way_that_loses_an_update_is_not_exact(monkeypatch):
    right = sinks_nats._by_sink
    monkeypatch.setattr(sinks_nats, "_by_sink", lambda broker, rows: right(broker, rows[:-1]))
    assert not sinks_nats.measure(updates=50, rounds=1, tell=lambda sentence: None)["exact"]
