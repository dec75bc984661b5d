"""The boolean benchmark: what it reports, that it checks, and that its workload can be made again."""

import json

import numpy as np
import pytest

from benchmarks import boolean as boolean_bench
from benchmarks import run
from benchmarks.workload import WORLD, boolean_subscriptions, make_messages, topk_subscriptions
from matching.boolean.cell_term import CellTerm
from matching.errors import ConfigError

_FIGURES = {
    "engine",
    "exact",
    "checked_matches",
    "build_s",
    "bytes_per_subscription",
    "messages_per_s",
    "scanned_per_message",
    "verified_per_message",
    "matched_per_message",
    "subscribe_per_s",
    "unsubscribe_per_s",
}


@pytest.fixture(autouse=True)
def short_history(monkeypatch):
    monkeypatch.setattr(boolean_bench, "_HISTORY", 2_000)
    monkeypatch.setattr(boolean_bench, "_CHANGES_A_CALL", 20)
    monkeypatch.setattr(boolean_bench, "_CALLS_A_ROUND", 3)


def test_bench_reports_every_figure_for_every_engine():
    heard = []
    report = run.bench("boolean", 3_000, messages=200, seed=4, rounds=2, on_progress=heard.append)
    assert json.loads(json.dumps(report)) == report
    assert report["kind"] == "boolean"
    assert report["workload"]["subscriptions"] == 3_000
    engines = ["cell_term", "hashed_cells", "inverted_list", "lfilter", "mbr_trie", "pt_quadtree"]
    assert [result["engine"] for result in report["results"]] == engines
    for result in report["results"]:
        assert set(result) >= _FIGURES
        assert result["exact"] is True
        assert result["checked_matches"] > 0
    fast, slow = report["results"][0], report["results"][2]
    assert fast["matched_per_message"] == slow["matched_per_message"] > 0
    assert fast["verified_per_message"] < slow["verified_per_message"]
    assert any("oracle" in sentence for sentence in heard)


def test_bench_of_a_wrong_engine_is_not_exact(monkeypatch):
    class Forgetful(CellTerm):
        def match(self, batch):
            hits = super().match(batch)
            return hits._replace(number=hits.number[1:], row=hits.row[1:])

    monkeypatch.setattr(boolean_bench, "factory", lambda kind, name: Forgetful)
    report = run.bench("boolean", 3_000, messages=200, seed=4, engines=["cell_term"], rounds=1)
    assert [result["exact"] for result in report["results"]] == [False]


@pytest.mark.parametrize("options", [{"kind": "bool"}, {"kind": "boolean", "engines": ["r_tree"]}])
def test_bench_of_what_is_not_there_names_the_choices(options):
    with pytest.raises(ConfigError, match="choose one of"):
        run.bench(subscriptions=10, **options)


def test_workload_of_one_seed_is_always_the_same():
    first, again, other = (make_messages(300, seed) for seed in (7, 7, 8))
    assert all(np.array_equal(a, b) for a, b in zip(first.batch, again.batch, strict=True))
    assert not np.array_equal(first.batch.west, other.batch.west)
    tables = [boolean_subscriptions(first, 100, seed) for seed in (7, 7, 8)]
    assert all(np.array_equal(a, b, equal_nan=True) for a, b in zip(tables[0], tables[1], strict=True))
    assert not np.array_equal(tables[0].region, tables[2].region)


def test_workload_columns_keep_their_contract():
    messages = make_messages(500, 1)
    batch, frequency = messages.batch, np.bincount(messages.batch.terms)
    assert np.all(np.diff(frequency) >= 0), "term 0 is the rarest"
    assert np.allclose(messages.idf, np.log(1 + 500 / frequency))
    assert WORLD.contains(batch.west, batch.south).all()
    boolean, topk = boolean_subscriptions(messages, 2_000, 1), topk_subscriptions(messages, 2_000, 1)
    for rows in (batch, boolean, topk):
        for start, end in zip(rows.term_offsets, rows.term_offsets[1:], strict=False):
            assert np.all(np.diff(rows.terms[start:end]) > 0)
            assert abs(np.linalg.norm(rows.weights[start:end].astype(float)) - 1) < 1e-6
    for rows in (boolean, topk):
        lengths = np.diff(rows.term_offsets)
        assert (lengths.min(), lengths.max()) == (1, 5)
        assert abs(lengths.mean() - 3) < 0.1
    west, south, east, north = boolean.region.T
    assert np.all((west >= -180) & (west < east) & (east <= 180) & (south >= -90) & (south < north) & (north <= 90))
    assert np.all((topk.alpha >= 0) & (topk.alpha < 1) & (topk.k == 10))
    assert WORLD.max_distance > 1
    assert np.all((topk.x >= 0) & (topk.x <= 1) & (topk.y >= 0) & (topk.y <= 0.5))
