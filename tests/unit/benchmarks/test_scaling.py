"""The benchmark of scaling: a row for each number of query bolts, beside the first, all telling the same."""

import numpy as np
import pytest

from benchmarks import cases, routers, scaling
from benchmarks.cases import make_case
from benchmarks.topology_cost import filled, stream_of
from matching.errors import ConfigError
from matching.kinds import KINDS
from matching.model import SubscriptionTable, concatenate, empty


def test_rows_are_set_beside_the_first_number_of_query_bolts(tmp_path):
    report = scaling.bench(
        ("skyline",), 300, (1, 3), 400, window=600, batch=100, rounds=1, tell=lambda _: None,
        picture=str(tmp_path / "curves.png"),
    )  # fmt: skip
    assert (tmp_path / "curves.png").stat().st_size > 1_000
    rate, work = (panel["series"] for panel in report["panels"])
    assert rate["skyline, hashing"] == [row["times"] for row in report["rows"]]
    assert work["skyline, hashing"] == [row["all_work"] for row in report["rows"]]
    one, three = report["rows"]
    assert report["exact"] and len(report["judged"]) == 1
    assert [row["subscriptions"] for row in report["rows"]] == [300, 300]
    assert (one["times"], one["linear"], one["all_work"]) == (1.0, 1.0, 1.0) and one["query_bolts"] == 1
    assert three["query_bolts"] == 3 and three["linear"] == pytest.approx(three["times"] / 3)
    for row in report["rows"]:
        assert row["us_per_message"] == row["busiest_us"][row["slowest"]] == max(row["busiest_us"].values())
        assert sum(row["work_us"].values()) == pytest.approx(row["all_us"])
        assert row["us_per_message"] <= row["all_us"] and row["bytes_per_message"] > 0 and row["same_updates"]


@pytest.mark.parametrize(("kind", "bolts"), [("boolean", 8), ("knn", 2)])
def test_bolts_one_by_one_are_booked_and_tell_as_all_at_once(kind, bolts, monkeypatch):
    monkeypatch.setattr(cases, "_HISTORY", 2_000)
    monkeypatch.setattr(cases, "_BEFORE", 2_000)
    case = make_case(KINDS.named(kind), 600, 400, rounds=4, seed=3, history=2_000)
    table = concatenate([scaling.drawn(case, bolts, bolt) for bolt in range(bolts)])
    assert np.array_equal(np.sort(table.number), np.arange(bolts * 600))
    whole = stream_of(case._replace(table=table.take(np.argsort(table.number))), 100)
    wanted = routers.simulated(whole, filled(whole), "hashing", bolts)
    stream = stream_of(case._replace(table=empty(SubscriptionTable)), 100)
    found = scaling.one_by_one(stream, case, bolts)
    assert found.keys() == wanted.keys() and found["beside"] == wanted["beside"]
    assert found["beside"]["delivery"] == (2 if kind == "boolean" else 1)
    assert found["digest"] == wanted["digest"] != "0" * 32
    for exact in ("bytes_per_message", "sent_per_message", "found_per_message", "updates_of_busiest_share"):
        assert found[exact] == wanted[exact]
    for component in wanted["work_us"]:
        assert found["work_us"][component] == pytest.approx(wanted["work_us"][component], rel=2.0)
    assert found["query_us"] <= found["us_per_message"] <= found["all_us"]


def test_weak_scaling_is_checked_where_all_bolts_run_at_once(monkeypatch):
    monkeypatch.setattr(cases, "_HISTORY", 2_000)
    monkeypatch.setattr(scaling, "_WHOLE", 2_000)
    report = scaling.bench(("boolean",), 2_000, (1, 2), 400, batch=100, weak=1, rounds=1, tell=lambda _: None)
    one, two = report["rows"]
    assert report["exact"] and report["judged"][0]["compared"] > 30
    assert [row["subscriptions"] for row in report["rows"]] == [2_000, 4_000]
    assert (one["same_updates"], two["same_updates"]) == (True, None)
    assert two["linear"] == two["times"] == one["us_per_message"] / two["us_per_message"]
    with pytest.raises(ConfigError, match="ask the window"):
        scaling.bench(("topk",), 10, weak=1, tell=lambda _: None)
