"""The benchmark of subscriptions that come over a full window: what is timed is right, or the report does not count."""

from benchmarks import cold_start
from matching.topk.operator import TopkOperator


def run() -> dict:
    return cold_start.bench(subscriptions=1_200, window=2_000, together=500, turns=1, tell=lambda _: None)


def test_cold_start_compares_first_results_with_the_oracle():
    report = run()
    assert report["exact"] and report["compared"] > 5_000 and report["compared_subscriptions"] > 900
    assert len(report["seconds"]) == 1 and report["median_s"] > 0.0


def test_cold_start_with_scores_that_are_a_hair_off_does_not_count(monkeypatch):
    answer = TopkOperator.answer
    monkeypatch.setattr(
        TopkOperator,
        "answer",
        lambda self, request, body: answer(self, request, body._replace(score=body.score * (1.0 - 1e-12))),
    )
    assert not run()["exact"]
