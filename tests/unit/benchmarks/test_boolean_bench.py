"""The boolean benchmark: what it reports, that it checks, and that its workload can be made again."""

import json
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from benchmarks import cases, command, harness, run
from benchmarks.cases import make_case
from benchmarks.harness import Bench
from benchmarks.searches import WORDS, apart, columns_of, texts_of
from benchmarks.workload import (
    WORLD,
    BooleanRecipe,
    boolean_subscriptions,
    make_messages,
    topk_subscriptions,
    widened,
)
from gateway.commands.bench import run_bench
from gateway.shell.terminal import Terminal
from matching.boolean.engines.cell_term import CellTerm
from matching.errors import ConfigError
from matching.filter_programs import AT_LEAST, PHRASE, POLYGON, instructions_of
from matching.kinds import KINDS
from tests.support.etl_folder import random_rows, write_etl

_FIGURES = {
    "engine",
    "exact",
    "compared",
    "build_s",
    "bytes_per_subscription",
    "messages_per_s",
    "scanned_per_message",
    "verified_per_message",
    "matched_per_message",
    "subscribe_per_s",
    "unsubscribe_per_s",
}
BOOLEAN = KINDS.named("boolean")
NAMES = list(BOOLEAN.engines)


def kind_of(engine, name="boolean"):
    """The kind of a name, run by one engine alone."""
    return replace(KINDS.named(name), engines={"wrong": engine})


@pytest.fixture(autouse=True)
def short_history(monkeypatch):
    monkeypatch.setattr(cases, "_HISTORY", 2_000)
    monkeypatch.setattr(cases, "_CHANGES_A_CALL", 20)
    monkeypatch.setattr(cases, "_CALLS_A_ROUND", 3)


@pytest.mark.long
def test_bench_reports_every_figure_for_every_engine():
    heard = []
    report = run.bench("boolean", 3_000, messages=200, seed=4, rounds=2, on_progress=heard.append)
    assert json.loads(json.dumps(report)) == report
    assert report["kind"] == "boolean"
    assert report["workload"]["subscriptions"] == 3_000
    assert [result["engine"] for result in report["results"]] == NAMES
    for result in report["results"]:
        assert set(result) >= _FIGURES
        assert result["exact"] is True
        assert result["compared"] > 0
    by_name = {result["engine"]: result for result in report["results"]}
    fast, slow = by_name["cell_term"], by_name["inverted_list"]
    assert fast["matched_per_message"] == slow["matched_per_message"] > 0
    assert fast["verified_per_message"] == slow["verified_per_message"] > 0
    assert any("oracle" in sentence for sentence in heard)


def test_bench_command_tells_its_steps_unless_told_not_to(capfd):
    told = {}
    for progress in (None, False):
        options = {"subscriptions": 300, "seed": 4, "messages": 60, "engines": "cell_term"}
        assert run_bench(Terminal(as_json=True), run, "boolean", options, progress) == 0
        out, told[progress] = capfd.readouterr()
        assert json.loads(out)["kind"] == "boolean"
    assert "bench boolean: building cell_term\n" in told[None] and "turn 7 of 7: cell_term\n" in told[None]
    assert told[False] == ""


class Forgetful(CellTerm):
    """Misses its first hit of each batch."""

    forgets = True

    def match(self, batch):
        hits = super().match(batch)
        return hits._replace(slot=hits.slot[1:], row=hits.row[1:]) if self.forgets else hits


def test_bench_of_a_wrong_engine_is_not_exact():
    bench = Bench(make_case(kind_of(Forgetful), 3_000, 200, rounds=1, seed=4), 1)
    assert bench.check([bench.build("wrong")])[0]["exact"] is False


def test_bench_of_an_engine_that_is_wrong_after_its_check_is_not_exact(monkeypatch):
    monkeypatch.setattr(command, "FEWEST_COMPARED", 1)
    monkeypatch.setattr(command, "FEWEST_SUBSCRIPTIONS", 1)
    monkeypatch.setattr(Forgetful, "forgets", False)
    kind = replace(BOOLEAN, engines={"cell_term": CellTerm, "wrong": Forgetful})
    bench = Bench(make_case(kind, 3_000, 200, rounds=2, seed=4), 2)

    def tell(step):
        Forgetful.forgets = step == "turn 2 of 2: wrong"

    results = harness.time_beside(bench, ["cell_term", "wrong"], tell)
    assert [result["exact"] for result in results.values()] == [True, False]


def test_check_of_too_little_does_not_count(monkeypatch):
    monkeypatch.undo()
    told = []
    report = run.bench("boolean", 3_000, messages=100, seed=4, engines=["cell_term"], rounds=1, on_progress=told.append)
    few = report["results"][0]
    assert 0 < few["compared"] < command.FEWEST_COMPARED and few["exact"] is False
    assert f"only {few['compared']} expected of" in few["warning"]
    assert any(few["warning"] in sentence for sentence in told)
    monkeypatch.setattr(command, "FEWEST_COMPARED", few["compared"])
    monkeypatch.setattr(command, "FEWEST_SUBSCRIPTIONS", few["compared_subscriptions"])
    again = run.bench("boolean", 3_000, messages=100, seed=4, engines=["cell_term"], rounds=1)["results"][0]
    assert again["compared"] == few["compared"] and again["exact"] is True and "warning" not in again


@pytest.mark.parametrize(
    "options", [{"kind": "bool"}, {"kind": "knn", "engines": ["skype"]}, {"kind": "boolean", "engines": ["r_tree"]}]
)
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


def test_recipe_is_read_from_text():
    assert BooleanRecipe.parse("") == BooleanRecipe()
    recipe = BooleanRecipe.parse("places=uniform,stop_words=no,keywords=2,regions=city,shape=range,words=long")
    assert recipe == BooleanRecipe("uniform", False, (2, 2), "city", "range", (100, 1000))
    assert BooleanRecipe.parse("words=3-4").words == (3, 4)


@pytest.mark.parametrize("text", ["size=3", "places=moon", "words=0", "keywords=3-2", "words=many", "stop_words=maybe"])
def test_recipe_nobody_knows_is_refused(text):
    with pytest.raises(ConfigError, match="workload '"):
        BooleanRecipe.parse(text)


def test_workload_follows_its_recipe():
    plain = make_messages(2_000, 1)

    def side(name):
        region = boolean_subscriptions(plain, 2_000, 1, recipe=BooleanRecipe(regions=name)).region
        return np.median(region[:, 2] - region[:, 0])

    assert side("city") < 0.5 < side("small") * 5 < side("mixed") * 5 < side("country") * 5
    uniform = make_messages(2_000, 1, recipe=BooleanRecipe(places="uniform")).batch
    counted = [np.histogram2d(b.west, b.south, 20, [[-180, 180], [-90, 90]])[0].max() for b in (plain.batch, uniform)]
    assert counted[0] > 5 * counted[1]
    sparse = make_messages(2_000, 1, recipe=BooleanRecipe(stop_words=False)).batch
    assert np.bincount(sparse.terms).max() < np.bincount(plain.batch.terms).max() / 10
    long = make_messages(600, 1, recipe=BooleanRecipe(words=(100, 100)), history=500).batch
    lengths = np.diff(long.term_offsets)
    assert lengths[:500].max() <= 14 and lengths[500:].min() > 40
    ranges = widened(plain.batch, 1)
    assert np.all(ranges.west <= plain.batch.west) and np.all(plain.batch.west <= ranges.east)
    assert 0 < np.median(ranges.east - ranges.west) < 1.0
    table = boolean_subscriptions(plain, 100, 1, recipe=BooleanRecipe(keywords=(2, 2)))
    assert set(np.diff(table.term_offsets)) == {2}
    # one keyword each: the last and so commonest term of some message
    common = boolean_subscriptions(plain, 100, 1, recipe=BooleanRecipe.parse("keywords=1,tokens=frequent")).terms
    assert (
        set(common) < set(plain.batch.terms[plain.batch.term_offsets[1:] - 1])
        and common.mean() > 1.2 * table.terms.mean()
    )


@pytest.mark.parametrize("engines", [NAMES[:1], pytest.param(NAMES, marks=pytest.mark.long)], ids=["default", "every"])
def test_bench_by_recipe_and_from_real_messages_is_exact(tmp_path, engines):
    real = write_etl(tmp_path, random_rows(300))
    for options in ({"workload": "words=30-60,shape=range,regions=country"}, {"messages_from": str(real)}):
        report = run.bench("boolean", 1_000, messages=100, seed=2, engines=engines, rounds=1, **options)
        assert [result["exact"] for result in report["results"]] == [True] * len(engines)
        assert report["results"][0]["compared"] > 0
    assert report["workload"]["messages_from"] == "resampled" and report["workload"]["words"] == "real"
    told = []
    with pytest.raises(ConfigError, match="own places and words"):
        run.bench("boolean", 100, messages_from=str(real), workload="words=long", on_progress=told.append)
    assert "compiling kernels" not in told, "all engines would be compiled first"
    with pytest.raises(ConfigError, match="only boolean has recipes"):
        run.bench("topk", 100, workload="words=long")


def test_bench_of_saved_searches_says_bytes_apart_and_how_long_a_message_takes_alone(tmp_path):
    engines, out = ["cell_term", "inverted_list"], tmp_path / "searches.json"
    how = {"messages": 400, "seed": 2, "engines": engines, "rounds": 2, "workload": "saved-searches"}
    report = run.bench("boolean", 6_000, out=str(out), **how)
    assert json.loads(out.read_text()) == json.loads(json.dumps(report))
    fast, slow = report["results"]
    for result in (fast, slow):
        assert result["exact"] and result["compared"] > 0 and result["updates_digest"] == fast["updates_digest"]
        assert 0 < result["alone_p50_ms"] <= result["alone_p99_ms"] and result["messages_alone"] == 400
        parts = [result[f"bytes_of_{name}"] for name in ("ids", "rings", "all_else")]
        assert min(parts) > 0 and sum(parts) == pytest.approx(result["bytes_per_subscription"])
    assert fast["verified_per_message"] <= slow["verified_per_message"]
    stages = [fast[f"{name}_per_message"] for name in ("scanned", "met_box", "passed_mark", "had_keywords", "matched")]
    assert stages == sorted(stages, reverse=True) and stages[1] > stages[2] == fast["verified_per_message"]
    assert "met_box_per_message" not in slow
    (told,) = report["times_the_first"].values()
    assert len(told["whole"]["pairs"]) == 2 and min(told["whole"]["pairs"]) > 0 and "join" not in told


def test_bench_of_a_portal_has_six_of_ten_searches_without_words_and_is_exact():
    report = run.bench("boolean", 6_000, messages=200, seed=2, engines=["cell_term"], rounds=1, workload="portal")
    assert report["workload"]["wordless"] == 0.6
    assert report["results"][0]["exact"] and report["results"][0]["compared"] > 0
    case = make_case(BOOLEAN, 2_000, 10, rounds=1, seed=4, recipe=BooleanRecipe.parse("portal"))
    first = case.table.term_offsets[:-1]
    assert 1_100 < np.signbit(case.table.weights[first]).sum() < 1_300 and np.signbit(case.messages.weights).any()
    words = [case.table.filter_words[a:b] for a, b in pairwise(case.table.filter_offsets)]
    asked = Counter(one.operation for each in words for one in instructions_of(each.tobytes()))
    assert 350 < asked[PHRASE] < 450 and 160 < asked[AT_LEAST] < 260
    assert 160 < (case.table.terms[first] >= WORDS).sum() - np.signbit(case.table.weights[first]).sum() < 240
    asked = [one for one in columns_of(case.table)["query"] if one is not None]
    assert sum(bool({*one} & set("<|*")) for one in asked) > 700
    texts = texts_of(case.messages)
    assert len(texts) == len(case.messages) and all(6 <= len(text.split()) <= 14 for text in texts)


def test_bytes_of_rings_are_those_of_the_polygons_instructions():
    case = make_case(BOOLEAN, 2_000, 10, rounds=1, seed=4, recipe=BooleanRecipe.parse("saved-searches"))
    running, table = Bench(case, 1).build(), case.table
    words = [table.filter_words[a:b] for a, b in pairwise(table.filter_offsets)]
    polygons = [one for each in words for one in instructions_of(each.tobytes()) if one.operation == POLYGON]
    assert len(polygons) > 300
    told = apart(running.operator.arrays(), len(table))
    assert told["bytes_of_rings"] * len(table) == pytest.approx(8 * sum(1 + len(one.words) for one in polygons))
    assert apart(Bench(make_case(BOOLEAN, 100, 10, rounds=1, seed=4), 1).build().operator.arrays(), 100) == {}


def test_check_of_more_messages_than_there_are_ends_with_the_last():
    bench = Bench(make_case(BOOLEAN, 3_000, 300, rounds=1, seed=4), 1, checked=500)
    checked = bench.check([bench.build(NAMES[0])])[0]
    assert checked["exact"] and checked["messages_timed"] == 300


def test_messages_of_a_slow_engine_end_when_its_time_is_up(monkeypatch):
    asked = []

    class Slow(CellTerm):
        def match(self, batch):
            asked.append(len(batch))
            return super().match(batch)

    bench = Bench(make_case(kind_of(Slow), 500, 900, rounds=3, seed=2), 3)
    running = bench.build()
    monkeypatch.setattr(harness, "_MOST_CHECK_S", 0.0)
    checked = bench.check([running])[0]
    assert checked["exact"] and checked["messages_timed"] == sum(asked) == harness._FEWEST_A_BATCH
    running.pace_s = 1.0
    timed = bench.time(running, 0, most_s=0.0, changes=False)
    assert timed["messages_timed"] == harness._FEWEST_A_BATCH
    running.pace_s = 1e-9
    assert bench.time(running, 1, most_s=60.0, changes=False)["messages_timed"] == 300
    assert asked == [100, 100, 300], "a known pace makes one call of it"


def test_stream_of_a_kind_without_window_begins_again_where_it_ends():
    bench = Bench(make_case(BOOLEAN, 2_000, 150, rounds=1, seed=4), 1)
    running = bench.build()
    bench.check([running])
    turns = [bench.time(running, turn, changes=False) for turn in range(2)]
    assert [turn["messages_timed"] for turn in turns] == [150, 150]
    assert turns[0]["matched_per_message"] == turns[1]["matched_per_message"] > 0


def test_changes_leave_as_many_as_there_were():
    bench = Bench(make_case(BOOLEAN, 1_000, 100, rounds=2, seed=4), 2)
    running = bench.build()
    assert len(running.operator) == 1_000
    for turn in range(2):
        assert bench.time(running, turn)["subscribe_per_s"] > 0
        assert len(running.operator) == 1_000
    assert (
        not running.operator.contains(bench.case.table.number).all()
        and running.operator.contains(bench.case.fresh.number).all()
    )
