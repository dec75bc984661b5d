"""The benchmark of scaling: a row for each number of query bolts, beside the first, all telling the same."""

import pytest

from benchmarks import scaling


@pytest.mark.parametrize(
    ("weak", "subscriptions"), [(0, [300, 300]), pytest.param(1, [300, 900], marks=pytest.mark.long)]
)
def test_rows_are_set_beside_the_first_number_of_query_bolts(weak, subscriptions, tmp_path):
    report = scaling.bench(
        ("skyline",), 300, (1, 3), 400, window=600, batch=100, weak=weak, rounds=1, tell=lambda _: None,
        picture=str(tmp_path / "curves.png"),
    )  # fmt: skip
    assert (tmp_path / "curves.png").stat().st_size > 1_000
    rate, work = (panel["series"] for panel in report["panels"])
    assert rate["skyline, hashing"] == [row["times"] for row in report["rows"]]
    assert work["skyline, hashing"] == [row["all_work"] for row in report["rows"]]
    one, three = report["rows"]
    assert report["exact"] and len(report["judged"]) == (2 if weak else 1)
    assert [row["subscriptions"] for row in report["rows"]] == subscriptions
    assert (one["times"], one["linear"], one["all_work"]) == (1.0, 1.0, 1.0) and one["query_bolts"] == 1
    assert three["query_bolts"] == 3 and three["linear"] == pytest.approx(three["times"] / (1 if weak else 3))
    for row in report["rows"]:
        assert row["us_per_message"] == row["busiest_us"][row["slowest"]] == max(row["busiest_us"].values())
        assert sum(row["work_us"].values()) == pytest.approx(row["all_us"])
        assert row["us_per_message"] <= row["all_us"] and row["bytes_per_message"] > 0 and row["same_updates"]
