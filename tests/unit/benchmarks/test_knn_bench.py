"""The knn benchmark: results filled in bulk are those of the definition; a wrong engine is found before it is timed."""

import json
from dataclasses import replace

import numpy as np
import pytest

from baselines.knn.inverted_file import KnnInvertedFile
from benchmarks import run
from benchmarks.cases import make_case
from benchmarks.figures import decay as figures
from benchmarks.lasting import LastingBench, best_messages
from matching.errors import ConfigError
from matching.kinds import KINDS
from matching.model import KNN
from matching.naive import Oracle
from matching.window import NO_FLOOR, Boundary
from tests.support.worlds import Recipe, make_world

ROW = KINDS.named("knn")


@pytest.mark.parametrize("recipe", [{}, {"grid": 2}, {"largest_k": 300, "terms": 4}], ids=["plain", "ties", "large_k"])
@pytest.mark.parametrize("parts", [(0, 240), (0, 90, 90, 240)], ids=["at_once", "in_parts"])
@pytest.mark.parametrize("sphere", [False, True], ids=["plane", "sphere"])
def test_nearest_messages_in_bulk_are_those_of_the_oracle(recipe, parts, sphere):
    world = make_world(Recipe(kinds=(KNN,), churn=0.0, batch=240, sphere=sphere, **recipe), 3)
    _, messages, changes = world.batches[0]
    held, farthest = None, world.space.max_distance
    for first, end in zip(parts, parts[1:], strict=False):
        held = best_messages(changes.added, messages.take(np.arange(first, end)), farthest, before=held)
    assert held is not None
    oracle = Oracle(None, farthest)
    oracle.advance(Boundary(0, 0, 239, NO_FLOOR), messages, changes.added, changes.removed)
    wanted = [(row.number, row.seq, row.score) for row in oracle.results()]
    number = np.repeat(changes.added.number, np.diff(held.offsets))
    assert list(zip(number.tolist(), held.seq.tolist(), (-held.key).tolist(), strict=True)) == wanted
    assert len(wanted) > 50


@pytest.mark.long
def test_knn_bench_reports_every_figure_for_every_engine():
    report = run.bench("knn", 1_500, messages=600, seed=4, rounds=2)
    assert json.loads(json.dumps(report)) == report
    assert [result["engine"] for result in report["results"]] == list(ROW.engines)
    assert report["workload"]["full_share"] > 0.9
    for result in report["results"]:
        assert result["exact"] is True and result["compared"] >= 1_000 and result["compared_subscriptions"] >= 500
        assert result["matched_per_message"] == report["results"][0]["matched_per_message"] > 0
        assert result["subscribe_per_s"] > 0 and result["unsubscribe_per_s"] > 0
        assert result["bytes_per_subscription"] > 0
    *grids, plain = report["results"]
    assert all(grid["scanned_per_message"] < plain["scanned_per_message"] for grid in grids)


@pytest.mark.long
def test_decay_bench_on_the_sphere_is_of_the_sphere_and_exact():
    plane, sphere = (run.bench("decay", 600, messages=40, rounds=2, engines="keyword_blocks", distance=distance)
                     for distance in ("plane", "sphere"))  # fmt: skip
    assert sphere["workload"].pop("distance") == "sphere" and "distance" not in plane["workload"]
    for report in (plane, sphere):
        (result,) = report["results"]
        assert result["exact"] is True and result["compared"] >= 1_000 and result["compared_results"] >= 1_000
        assert result["text_relevances_per_message"] == result["verified_per_message"] > 0
    digests = [report["results"][0]["updates_digest"] for report in (plane, sphere)]
    assert digests[0] != digests[1], "results by other distances are other results"


def test_bench_on_the_sphere_refuses_engines_of_the_plane_and_kinds_with_regions():
    with pytest.raises(ConfigError, match="ciq: decay is measured with --distance sphere by keyword_blocks"):
        run.bench("decay", 10, engines="ciq", distance="sphere")
    with pytest.raises(ConfigError, match="skyline has regions"):
        run.bench("skyline", 10, distance="sphere")


class Late(KnnInvertedFile):
    """Misses one message in fifty."""

    def match(self, batch):
        return super().match(batch.take(np.flatnonzero(batch.seq % 50)))


@pytest.mark.parametrize(("engine", "subscriptions"), [(Late, 1_500), (KnnInvertedFile, 100)])
def test_knn_bench_of_a_wrong_engine_or_of_too_little_is_not_exact(engine, subscriptions, monkeypatch):
    monkeypatch.undo()
    bench = LastingBench(make_case(replace(ROW, engines={"given": engine}), subscriptions, 100, rounds=1), 1)
    report = bench.check([bench.build()])[0]
    assert report["exact"] is False and ("warning" in report) is (engine is KnnInvertedFile)


def test_figures_of_a_kind_without_or_nobody_knows_or_of_a_window_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="choose one of ticks, "):
        run.bench("knn", figure="alpha", out=str(tmp_path))
    with pytest.raises(ConfigError, match="choose one of subscriptions, keywords, alpha, k"):
        figures.PAGE.figure("thresholds", tmp_path)
    with pytest.raises(ConfigError, match="no window"):
        figures.PAGE.figure("k", tmp_path, window=9)
