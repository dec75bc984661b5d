"""Figures: each is measured, checked, written as JSON and drawn; wrong names are refused."""

import json

import pytest

from benchmarks.figures import topk as figures
from benchmarks.run import bench
from matching.errors import ConfigError
from tests.support.etl_folder import random_rows, write_etl


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.long) for name in ("k", "pruning")])
def test_figure_is_measured_checked_and_drawn(name, tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "PAGE", figures.PAGE._replace(rounds=1))
    told = []
    engines = ("skype", "l2_scan") if name == "k" else None
    report = figures.PAGE.figure(name, tmp_path, 300, 300, 60, engines, 1, None, told.append)
    assert report["exact"] is True
    stored = json.loads((tmp_path / f"topk-{name}.json").read_text())
    assert stored["figure"] == name and len(stored["panels"]) >= 1
    assert (tmp_path / f"topk-{name}.png").read_bytes().startswith(b"\x89PNG")
    for panel in stored["panels"]:
        assert panel["series"] and all(value > 0 for line in panel["series"].values() for value in line)
    assert told


def test_figure_of_an_unknown_name_is_refused_with_the_names_there_are(tmp_path):
    with pytest.raises(ConfigError, match="subscriptions, k, alpha"):
        figures.PAGE.figure("nothing", tmp_path)


def test_figure_of_streams_is_of_no_real_messages(tmp_path):
    with pytest.raises(ConfigError, match="leave --messages-from out"):
        figures.PAGE.figure("streams", tmp_path, engines=("l2_scan",), messages_from="etl")


def test_figure_is_of_real_messages_where_they_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "PAGE", figures.PAGE._replace(rounds=1))
    real = write_etl(tmp_path, random_rows(300))
    report = figures.PAGE.figure("keywords", tmp_path, 200, 200, 40, ("l2_scan",), 3, str(real))
    assert {row["workload"]["messages_from"] for row in report["rows"]} == {"resampled"}


@pytest.mark.long
def test_figure_of_thresholds_goes_by_k_by_window_and_by_subscriptions(tmp_path):
    report = figures.PAGE.figure("thresholds", tmp_path, 600, 400)
    assert [row["x"] for row in report["rows"]] == [1, 10, 50, 100, 200, 400, 150, 300, 600]
    assert all(len({rule["updates_timed"] for rule in row["engines"].values()}) == 1 for row in report["rows"])


def test_figure_alpha_ends_with_the_uniform_workload(tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "PAGE", figures.PAGE._replace(rounds=1))
    report = figures.PAGE.figure("alpha", tmp_path, 200, 200, 40, ("l2_scan",), 3)
    assert report["x"][-1] == "uniform"
    asked = [row["workload"]["alpha"] for row in report["rows"]]
    assert asked[0] == [0.1, 0.1] and asked[-1] == [0.0, 1.0]
    assert report["exact"]


@pytest.mark.long
def test_figure_takes_the_variant_that_the_help_of_bench_names(tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "PAGE", figures.PAGE._replace(rounds=1))
    small = {"subscriptions": 200, "window": 200, "messages": 40, "out": str(tmp_path)}
    report = bench("topk", figure="alpha", engines="skype,skype_paper", **small)
    assert report["exact"] and all(row["engines"].keys() == {"skype", "skype_paper"} for row in report["rows"])
    pairs = [
        row["engines"][name]["verified_per_message"] for row in report["rows"] for name in ("skype", "skype_paper")
    ]
    assert pairs[::2] != pairs[1::2], "both are the same engine"


def test_figure_of_threshold_rules_counts_all_rounds_but_the_first_and_notices_rules_that_disagree(tmp_path):
    report = figures.PAGE.figure("thresholds-mixed", tmp_path, 300, 300)
    row = report["rows"][0]
    assert report["exact"] is True and row["workload"]["k"] == [1, 10, 100]
    assert all(rule["us_per_refill"] > 0 and rule["ns_per_hit"] > 0 for rule in row["engines"].values())
    assert len({rule["updates_timed"] for rule in row["engines"].values()}) == 1
    told = {name: rule | {"updates_timed": at} for at, (name, rule) in enumerate(row["engines"].items())}
    assert not any(rule["exact"] for rule in figures.agreed(told).values())
