"""Figures of window indexes: measured, checked, written and drawn; and a wrong index is told."""

import json

import numpy as np
import pytest

from baselines.skyline.i3 import I3
from benchmarks.figures import skyline as skyline_figures
from benchmarks.figures.skyline import TREES
from benchmarks.figures.sweeps import Asked
from benchmarks.run import bench
from matching.errors import ConfigError

#: Engines and indexes that no run takes unless told to.
pytestmark = pytest.mark.long


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Little of everything."""
    monkeypatch.setattr(skyline_figures, "_BATCH", 100)
    monkeypatch.setattr(skyline_figures, "_QUERIES", 60)
    monkeypatch.setattr(skyline_figures, "_ROUNDS", 1)


@pytest.mark.parametrize("name", ["trees", "cleaning"])
def test_skyline_figure_is_measured_checked_and_drawn(name, tmp_path):
    told = []
    report = skyline_figures.PAGE.figure(name, tmp_path, window=1_200, seed=1, on_progress=told.append)
    assert report["exact"] is True and told
    stored = json.loads((tmp_path / f"skyline-{name}.json").read_text())
    assert stored["figure"] == name
    assert (tmp_path / f"skyline-{name}.png").read_bytes().startswith(b"\x89PNG")
    for panel in stored["panels"]:
        assert all(value > 0 and len(line) == len(panel["x"]) for line in panel["series"].values() for value in line)
        if name != "cleaning":
            assert set(TREES) <= set(panel["series"])


def test_skyline_figure_is_what_the_bench_command_draws(tmp_path):
    report = bench("skyline", figure="trees", window=1_200, engines=["mf_rtree"], out=str(tmp_path))
    assert report["figure"] == "trees" and (tmp_path / "skyline-trees.png").is_file()


def test_skyline_figure_of_trees_has_the_memo_tree_at_half_of_the_operations_of_another(tmp_path):
    report = skyline_figures.PAGE.figure("trees", tmp_path, window=2_000, engines=["mf_rtree", "ir_tree"], seed=2)
    memo, other = (report["rows"][-1]["engines"][name]["operations"] for name in ("mf_rtree", "ir_tree"))
    assert memo < 0.5 * other


def test_skyline_figure_of_engines_says_what_was_compared_and_how_many_times_the_first_each_takes(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(skyline_figures, "_BATCH", 200)
    monkeypatch.setattr(skyline_figures, "_BETWEEN", 500)
    pair = ("eager_star", "bnl")
    report = skyline_figures.PAGE.figure("engines", tmp_path, 300, 2_000, 400, pair, 1)
    assert report["exact"] and report["x"] == [500, 1_000, 2_000]
    for row in report["rows"]:
        fast, slow = (row["engines"][name] for name in pair)
        assert fast["compared"] == slow["compared"] > 0
        assert fast["compared_expired"] == slow["compared_expired"] > 0 < fast["compared_ended"]
        assert 0 < fast["compared_refills"] < slow["compared_refills"]
        assert fast["times_the_first"] == 1.0 and fast["us_per_message"] > 0 < slow["us_per_message"]
    for wrong in ("ir_tree", "nothing"):
        with pytest.raises(ConfigError, match="eager_star"):
            skyline_figures.PAGE.figure("engines", tmp_path, 300, 4_000, 300, (wrong,), 1)


class Forgetful(I3):
    """Broken: loses the last candidate."""

    def candidates(self, queries, as_of=None):
        found = super().candidates(queries, as_of)
        return found._replace(offsets=np.minimum(found.offsets, max(0, found.offsets[-1] - 1)))


def test_skyline_figure_of_a_wrong_index_is_not_exact(tmp_path, monkeypatch):
    monkeypatch.setitem(TREES, "i3", Forgetful)
    assert not skyline_figures.PAGE.figure("trees", tmp_path, window=1_200, engines=["i3"], seed=1)["exact"]


def test_skyline_figure_stream_replaces_the_version_before():
    asked = Asked(skyline_figures.PAGE.kind, 1, ("mf_rtree",), 1, 100, 0, None, 1, print).beside(TREES)
    stream = skyline_figures.Slide(asked, 100, *skyline_figures._USUAL)
    for seq in range(500):
        same = np.flatnonzero(stream.objects[:seq] == stream.objects[seq])
        assert stream.replaced[seq] == (same[-1] if same.size else -1)
    assert 100 < np.count_nonzero(stream.replaced[:500] >= 0) < 300


def test_skyline_figure_of_an_unknown_name_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="engines, longest, trees, cleaning"):
        skyline_figures.PAGE.figure("nothing", tmp_path)
    for index in ("nothing", "grid"):
        with pytest.raises(ConfigError, match="mf_rtree"):
            skyline_figures.PAGE.figure("trees", tmp_path, engines=[index])
