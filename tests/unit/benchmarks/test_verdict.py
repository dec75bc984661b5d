"""What counts as enough."""

import pytest

from benchmarks.command import verdict


@pytest.mark.parametrize(
    ("same", "compared", "subscriptions", "counts"),
    [(True, 1_000, 500, True), (False, 5_000, 5_000, False), (True, 999, 500, False), (True, 1_000, 499, False)],
)
def test_verdict_counts_what_is_right_and_enough(same, compared, subscriptions, counts, monkeypatch):
    monkeypatch.undo()
    report = verdict(same, compared, subscriptions)
    assert report["exact"] is counts and ("warning" in report) is (compared < 1_000 or subscriptions < 500)
