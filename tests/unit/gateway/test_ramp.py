"""The search for the peak rate converges on the rate that breaks, and the hold below it is exact."""

import numpy as np
import pytest

import gateway.cli as cli
from gateway.load.loadtest import Executor, load_test
from gateway.load.ramp import MOST_STEPS, Step, find_peak, judge, ramp_test, seconds_of
from matching.errors import ConfigError
from matching.space import EARTH, Space
from matching.window import Window
from spouts.generated import MessageRecipe
from spouts.paced import GeneratedSubscriptions
from topology.core.metrics import LatencyTimeline


def keeping(most):
    """A target that keeps rates up to `most`."""
    return lambda rate: Step(rate, rate, 0.01, 0.02, rate <= most, "" if rate <= most else "p99 900 ms")


@pytest.mark.parametrize("most", [1.0, 37.0, 999.0, 1_000.0, 1_001.0, 54_321.0, 3e6])
@pytest.mark.parametrize("precision", [1.02, 1.1, 1.5])
def test_find_peak_is_within_the_precision_below_the_breaking_rate(most, precision):
    seen = []
    peak, steps = find_peak(keeping(most), precision=precision, on_step=seen.append)
    assert peak <= most <= peak * precision
    assert steps == seen and len(steps) < MOST_STEPS
    assert [step.kept for step in steps].count(False) >= 1


def test_find_peak_of_a_target_that_keeps_nothing_is_an_error_with_the_remedy():
    with pytest.raises(ConfigError, match="was kept .p99 900 ms.: raise --limit-p99-ms"):
        find_peak(keeping(0.0))


def test_find_peak_of_a_target_that_never_breaks_ends():
    peak, steps = find_peak(keeping(1e30))
    assert len(steps) == MOST_STEPS and peak == steps[-1].rate


@pytest.mark.parametrize(
    ("p99_s", "reached", "why"),
    [(0.5, 1000.0, ""), (0.51, 1000.0, "p99 510 ms"), (0.1, 949.0, "reached 949/s"), (0.1, 950.0, "")],
)
def test_judge_breaks_by_latency_or_by_the_rate_reached(p99_s, reached, why):
    latency = {"count": 5, "p50_s": 0.01, "p99_s": p99_s}
    step = judge({"latency": latency, "rate": 1000.0, "reached_rate": reached}, 0.5)
    assert (step.why, step.kept) == (why, not why)


def test_judge_a_step_without_updates_has_no_verdict():
    with pytest.raises(ConfigError, match="no update.*generate more subscriptions"):
        judge({"latency": {"count": 0}, "rate": 5.0, "reached_rate": 5.0}, 0.5)


def test_seconds_of_units_and_what_is_none():
    assert [seconds_of(text) for text in ("60s", "5m", "1h", "1.5")] == [60.0, 300.0, 3600.0, 1.5]
    for wrong in ("", "0s", "-3", "5d", "s"):
        with pytest.raises(ConfigError, match="60s, 5m or 1h"):
            seconds_of(wrong)


def test_latency_timeline_has_each_latency_at_its_due_time():
    timeline = LatencyTimeline(2.0)
    timeline.record(np.array([100.0, 101.9, 102.1]), np.array([0.1, 0.2, 0.4]), np.array([1, 2, 3]))
    timeline.record(np.array([107.0]), np.array([0.8]), np.array([4]))
    rows = timeline.summary()
    assert [(row["at_s"], row["count"], row["max_s"]) for row in rows] == [(0.0, 3, 0.2), (2.0, 3, 0.4), (6.0, 4, 0.8)]
    assert all(row["p50_s"] <= row["p99_s"] <= row["p999_s"] <= row["max_s"] for row in rows)


def test_ramp_test_in_one_process_holds_below_the_peak_and_is_exact():
    seen = []
    report = ramp_test(
        "0.6s", first_rate=400.0, step_seconds=0.3, limit_p99_ms=1e6, warm_up=0.1, check=True, on_step=seen.append,
        executor=Executor.local, window="count:500", subscriptions={"boolean": 300, "topk": 60}, checkpoint_every=0,
        load=_broken_above(1_000.0),
    )  # fmt: skip
    assert report["check"]["exact"] and report["check"]["compared"] > 100
    assert report["rate"] == 0.8 * report["peak_per_s"] and 900 < report["peak_per_s"] <= 1_000
    assert len(seen) == len(report["ramp"]["steps"]) >= 4
    assert sum(row["count"] for row in report["timeline"]) == report["latency"]["count"] > 0


def _broken_above(most):
    """Real load tests, whose rate counts as not reached above `most`, so that no clock decides."""
    from gateway.load.loadtest import load_test

    def load(*, rate, **options):
        report = load_test(rate=rate, **options)
        return report | {"reached_rate": rate if rate <= most else 0.0}

    return load


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--hold", "5 days"], "60s, 5m or 1h"),
        (["--hold", "5s", "--seconds", "4"], "leave out --seconds"),
        (["--hold", "5s", "--limit-p99-ms", "0"], "positive"),
    ],
)
def test_cli_loadtest_wrong_ramp_is_one_line(capsys, arguments, expected):
    assert cli.main(["loadtest", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1 and expected in printed.err


def test_load_test_with_changes_is_exact_and_each_changing_subscription_ends():
    report = load_test(
        rate=3000, seconds=2, warm_up=0.5, executor=Executor.local, checkpoint_every=0, changes=3000, check=True,
        window="count:500", batch=100, subscriptions={"boolean": 200, "topk": 60, "knn": 30, "decay": 9, "skyline": 9},
    )  # fmt: skip
    check = report["check"]
    assert check["exact"] and all(one["compared"] > 0 for one in check["by_kind"].values()), check
    query = report["topology"]["components"]["query"]["tasks"]
    assert sum(sum(task["figures"]["subscriptions"].values()) for task in query) == 308 + 1000


def test_generated_changes_do_not_depend_on_how_the_stream_is_cut():
    counts, window = {"boolean": 30, "topk": 7}, Window.parse("count:100")
    spout = GeneratedSubscriptions(MessageRecipe(seed=3), window, Space(*EARTH), counts, changes=0.7, changing=50)
    whole, gone = spout.changed(0, 299)
    assert len(whole) == 209 and whole.number.tolist() == list(range(37, 246))
    assert gone.number.tolist() == list(range(37, 196)) and (np.diff(whole.at) >= 0).all()
    pieces = [spout.changed(first, min(first + 12, 299)) for first in range(0, 300, 13)]
    for column in ("number", "at", "kind"):
        assert (
            np.concatenate([getattr(piece, column) for piece, _ in pieces]).tolist() == getattr(whole, column).tolist()
        )
        assert (
            np.concatenate([getattr(piece, column) for _, piece in pieces]).tolist() == getattr(gone, column).tolist()
        )
    assert all(
        ((piece.at >= first) & (piece.at < first + 13)).all()
        for (piece, _), first in zip(pieces, range(0, 300, 13), strict=True)
    )
