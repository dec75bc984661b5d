"""Figures for boolean: each is measured, checked, written as JSON and drawn; wrong names are refused."""

import json
from dataclasses import replace

import pytest

from baselines.boolean.inverted_list import InvertedList
from benchmarks import cases
from benchmarks.figures import boolean as boolean_figures
from benchmarks.figures.boolean import PAGE
from matching.errors import ConfigError
from matching.kinds import KINDS
from papers.lfilter.mbr_trie import STRATEGIES

_PAIR = ("cell_term", "inverted_list")


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(cases, "_HISTORY", 1_000)
    # the smallest size is no larger than what a round changes: the updates of every round are still measured
    monkeypatch.setattr(cases, "_CHANGES_A_CALL", 50)
    monkeypatch.setattr(cases, "_CALLS_A_ROUND", 4)
    monkeypatch.setattr(boolean_figures, "_SIZES", (200, 1_000, 100_000))
    monkeypatch.setattr(boolean_figures, "_SEARCHES", (2_000, 4_000, 100_000))
    monkeypatch.setattr(boolean_figures, "_PRINTED_SIZES", (500, 100_000))
    monkeypatch.setattr(boolean_figures, "_PRINTED_LENGTHS", (6, 40))
    monkeypatch.setattr(boolean_figures, "_LENGTHS", {"short": (6, 12), "long": (40,)})
    monkeypatch.setattr(boolean_figures, "PAGE", PAGE._replace(rounds=2, figures=boolean_figures.figures()))


@pytest.mark.parametrize(
    "name",
    [
        name if name in ("subscriptions", "searches") else pytest.param(name, marks=pytest.mark.long)
        for name in PAGE.figures
        if name not in ("choice", "printed")
    ],
)
def test_figure_is_measured_checked_and_drawn(name, tmp_path):
    told = []
    # without stop words few subscriptions match
    size = 20_000 if name in ("opponents-usa", "searches") else 1_000
    report = boolean_figures.PAGE.figure(name, tmp_path, size, None, 40, _PAIR, 1, None, told.append)
    assert report["exact"] is True
    stored = json.loads((tmp_path / f"boolean-{name}.json").read_text())
    assert stored == json.loads(json.dumps(report)) and stored["figure"] == name
    assert (tmp_path / f"boolean-{name}.png").read_bytes().startswith(b"\x89PNG")
    assert sum(result["compared"] for row in report["rows"] for result in row["engines"].values()) > 0
    for panel in stored["panels"]:
        lines = panel["series"]
        assert set(lines) == set(_PAIR) and all(len(line) == len(panel["x"]) for line in lines.values())
        assert all(value is None or value > 0 for line in lines.values() for value in line)
    assert told


@pytest.mark.long
def test_figure_choice_shows_ways_of_two_engines(tmp_path, monkeypatch):
    monkeypatch.setattr(boolean_figures, "_LENGTHS", {"short": (6,)})
    monkeypatch.setitem(boolean_figures._CHOICE, "rounds", 2)
    page = boolean_figures.PAGE._replace(figures=boolean_figures.figures())
    report = page.figure("choice", tmp_path, 500, messages=40)
    ways = set(report["panels"][0]["series"])
    assert report["exact"] and ways >= {"lfilter", "mbr_trie", "pt_quadtree", "quadtree, prune"}
    assert {f"mbr_trie, {way}" for way in STRATEGIES[1:]} < ways
    assert [row["engines"]["lfilter"]["times_the_first"] for row in report["rows"]] == [1.0] * len(report["rows"])


@pytest.mark.long
def test_figure_of_printed_forms_has_their_size_beside_ours(tmp_path):
    report = boolean_figures.PAGE.figure("printed", tmp_path, 500, messages=40)
    assert report["exact"] and [row["x"] for row in report["rows"]] == [500] * 4
    for row in report["rows"]:
        size = {name: engine["bytes_per_subscription"] for name, engine in row["engines"].items()}
        assert max(size["mbr_trie_paper"], size["pt_quadtree_paper"]) < size["lfilter_paper"]


@pytest.mark.long
def test_figure_asked_for_no_engines_takes_the_default_and_those_there_are(tmp_path):
    report = boolean_figures.PAGE.figure("lengths", tmp_path, 500, messages=40)
    default = next(iter(KINDS.named("boolean").engines))
    assert set(report["panels"][0]["series"]) == {default, *boolean_figures._PARTS, *boolean_figures._OPPONENTS}


def test_figure_of_a_wrong_engine_is_not_exact(tmp_path, monkeypatch):
    class Forgetful(InvertedList):
        def match(self, batch):
            found = super().match(batch)
            return found._replace(slot=found.slot[::2], row=found.row[::2])

    wrong = replace(KINDS.named("boolean"), engines={"inverted_list": Forgetful})
    monkeypatch.setattr(boolean_figures, "PAGE", boolean_figures.PAGE._replace(kind=wrong))
    assert boolean_figures.PAGE.figure("workloads", tmp_path, 1_000, None, 60, ("inverted_list",))["exact"] is False


@pytest.mark.parametrize("options", [{"name": "nothing"}, {"name": "lengths", "engines": ["r_tree"]}])
def test_figure_of_what_is_not_there_names_the_choices(options, tmp_path):
    with pytest.raises(ConfigError, match="choose one of"):
        boolean_figures.PAGE.figure(out=tmp_path, **options)


def test_figure_over_a_window_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="leave --window out"):
        boolean_figures.PAGE.figure("lengths", tmp_path, 500, 1_000)
