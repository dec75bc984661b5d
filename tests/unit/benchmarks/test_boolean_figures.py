"""Figures for boolean: each is measured, checked, written as JSON and drawn; wrong names are refused."""

import json
from dataclasses import replace

import pytest

from benchmarks import cases
from benchmarks.figures import boolean as boolean_figures
from benchmarks.figures import sweeps
from benchmarks.figures.boolean import PAGE
from matching.boolean.engines.inverted_list import InvertedList
from matching.errors import ConfigError
from matching.kinds import KINDS

_PAIR = ("cell_term", "inverted_list")


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(cases, "_HISTORY", 1_000)
    # the smallest size is no larger than what a round changes: the updates of every round are still measured
    monkeypatch.setattr(cases, "_CHANGES_A_CALL", 50)
    monkeypatch.setattr(cases, "_CALLS_A_ROUND", 4)
    monkeypatch.setattr(boolean_figures, "_SIZES", (200, 1_000, 100_000))
    monkeypatch.setattr(boolean_figures, "_LENGTHS", {"short": (6, 12), "long": (40,)})
    monkeypatch.setattr(boolean_figures, "_CHECKED", (500, 60))
    monkeypatch.setattr(boolean_figures, "PAGE", PAGE._replace(rounds=2, figures=boolean_figures.figures()))


@pytest.mark.parametrize("name", [name for name in PAGE.figures if name not in ("probing", "choice")])
def test_figure_is_measured_checked_and_drawn(name, tmp_path):
    told = []
    # without stop words few subscriptions match
    size = 20_000 if name == "opponents-usa" else 1_000
    report = boolean_figures.PAGE.figure(name, tmp_path, size, None, 40, _PAIR, 1, None, told.append)
    assert report["exact"] is True
    stored = json.loads((tmp_path / f"boolean-{name}.json").read_text())
    assert stored == json.loads(json.dumps(report)) and stored["figure"] == name
    assert (tmp_path / f"boolean-{name}.png").read_bytes().startswith(b"\x89PNG")
    assert sum(result["compared"] for row in report["rows"] for result in row["engines"].values()) > 0
    for panel in stored["panels"]:
        lines = panel.get("series") or panel["groups"]
        x = panel.get("x") or stored["x"]
        assert lines and all(len(line) == len(x) for line in lines.values())
        assert all(value is None or value > 0 for line in lines.values() for value in line)
        if name != "scalability":
            assert set(lines) == set(_PAIR)
    assert told


def test_figure_probing_shows_ways_of_one_engine(tmp_path):
    report = boolean_figures.PAGE.figure("probing", tmp_path, 500, messages=40)
    assert report["exact"] and set(report["panels"][0]["series"]) == set(boolean_figures._PROBING)


def test_figure_asked_for_no_engines_takes_the_default_and_those_there_are(tmp_path):
    report = boolean_figures.PAGE.figure("lengths", tmp_path, 500, messages=40)
    assert set(report["panels"][0]["series"]) == {next(iter(KINDS.named("boolean").engines)), *boolean_figures._PAPER}


def test_figure_of_a_wrong_engine_is_not_exact(tmp_path, monkeypatch):
    class Forgetful(InvertedList):
        def match(self, batch):
            found = super().match(batch)
            return found._replace(number=found.number[::2], row=found.row[::2])

    wrong = replace(KINDS.named("boolean"), engines={"inverted_list": Forgetful})
    monkeypatch.setattr(boolean_figures, "PAGE", boolean_figures.PAGE._replace(kind=wrong))
    assert boolean_figures.PAGE.figure("memory", tmp_path, 1_000, None, 60, ("inverted_list",))["exact"] is False


def test_figure_stops_where_memory_ends_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(sweeps, "_MOST_MEMORY", 0.0)
    report = boolean_figures.PAGE.figure("subscriptions", tmp_path, 1_000, None, 40, _PAIR)
    assert report["x"] == [200]
    assert "1,000 subscriptions left out" in report["stopped"] and "GB needed" in report["stopped"]


@pytest.mark.parametrize("options", [{"name": "nothing"}, {"name": "keywords", "engines": ["r_tree"]}])
def test_figure_of_what_is_not_there_names_the_choices(options, tmp_path):
    with pytest.raises(ConfigError, match="choose one of"):
        boolean_figures.PAGE.figure(out=tmp_path, **options)


def test_figure_over_a_window_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="leave --window out"):
        boolean_figures.PAGE.figure("keywords", tmp_path, 500, 1_000)
