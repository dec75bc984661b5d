"""Peers: exact like an engine, also at edges and after changes; one that is not installed says what to install."""

import json
from collections import Counter
from itertools import pairwise

import numpy as np
import psycopg
import pytest

from baselines.boolean.inverted_list import InvertedList
from benchmarks import cases, run
from benchmarks.peers import PEERS, DuckDB, PostGIS
from benchmarks.searches import columns_of
from benchmarks.workload import WORLD, BooleanRecipe, boolean_subscriptions, make_messages, widened
from matching.boolean.engines.cell_term import CellTerm
from matching.filter_programs import LENGTH_AT, PHRASE
from matching.model import BOOLEAN, KEYWORDS_BY_KIND, MessageBatch, SubscriptionTable

SCHEMA = "SELECT FROM information_schema.schemata WHERE schema_name = 'skyray_bench'"


@pytest.fixture(autouse=True)
def short_history(monkeypatch):
    monkeypatch.setattr(cases, "_HISTORY", 2_000)
    monkeypatch.setattr(cases, "_CHANGES_A_CALL", 20)
    monkeypatch.setattr(cases, "_CALLS_A_ROUND", 2)


@pytest.fixture(
    params=[
        "duckdb",
        pytest.param("postgis", marks=pytest.mark.postgis),
        pytest.param("lucene", marks=pytest.mark.lucene),
        pytest.param("lucene_on_two", marks=[pytest.mark.lucene, pytest.mark.long]),
        pytest.param("lucene_by_one_term", marks=[pytest.mark.lucene, pytest.mark.long]),
    ]
)
def peer(request):
    """An empty peer."""
    if request.param == "postgis":
        request.getfixturevalue("postgis")
    made = PEERS[request.param](WORLD)
    yield made
    made.close()
    made.close()


def hits(engine, batch):
    found = engine.match(batch)
    assert np.all(np.diff(found.row) >= 0) and found.matched == found.row.shape[0]
    return sorted(zip(found.row.tolist(), engine.numbers(found.slot).tolist(), strict=True))


def test_peer_matches_what_an_engine_matches_before_and_after_changes(peer):
    messages = make_messages(2_200, 3)
    table = boolean_subscriptions(messages, 3_000, 3)
    points = messages.batch.take(np.arange(2_000, 2_200))
    first, later = table.take(np.arange(2_500)), table.take(np.arange(2_500, 3_000))
    engine = InvertedList(WORLD)
    for one in (engine, peer):
        one.insert(first)
    wanted = hits(engine, points)
    assert len(wanted) > 50
    assert hits(peer, points) == wanted
    for one in (engine, peer):
        one.remove(np.arange(0, 2_500, 2))
        one.insert(later)
    assert len(peer) == len(engine) == 1_750
    for batch in (points, widened(points, 3), points.take(np.arange(0))):
        assert hits(peer, batch) == hits(engine, batch)
    assert peer.size_bytes() > 0 and any(character.isdigit() for character in peer.version())


def test_peer_finds_phrases_alternatives_and_beginnings_that_an_engine_finds(peer):
    recipe = BooleanRecipe.parse("portal")
    messages = make_messages(1_500, 3, recipe)
    table, points = boolean_subscriptions(messages, 3_000, 3, recipe), messages.batch.take(np.arange(700))
    engine = CellTerm(WORLD)
    engine.insert(table)
    peer.insert(table)
    wanted = hits(engine, points)
    assert hits(peer, points) == wanted
    queries = columns_of(table)["query"]
    found = [queries[number] for _, number in wanted]
    marks = Counter(mark for asked in found for mark in ("<->", "|", "*") if mark in str(asked))
    assert min(marks[mark] for mark in ("<->", "|", "*")) > 20 and None in found, marks
    engine, swapped = CellTerm(WORLD), table._asdict() | {"filter_words": _with_phrases_swapped(table)}
    engine.insert(SubscriptionTable(**swapped))
    assert len(hits(engine, points)) < len(wanted) - 20, "phrases decide nothing"


def _with_phrases_swapped(table):
    """Programs with the words of each phrase the other way round."""
    words = table.filter_words.copy()
    for at, end in pairwise(table.filter_offsets.tolist()):
        at += 1
        while at < end:
            after = at + 1 + (words[at] >> LENGTH_AT)
            if words[at] & 0xFF == PHRASE:
                words[at + 1 : after] = words[at + 1 : after][::-1].copy()
            at = after
    return words


def test_peer_compares_closed_boxes_in_doubles(peer):
    lon, lat = 0.1, -0.3  # neither is a float32
    up, down = np.nextafter(lon, 1), np.nextafter(lon, -1)
    above, below = np.nextafter(lat, 1), np.nextafter(lat, -1)
    region = np.array(
        [
            [lon, lat, lon, lat],
            [lon, lat, lon + 1, lat + 1],
            [lon - 1, lat - 1, lon, lat],
            [up, lat, lon + 1, lat + 1],
            [lon - 1, lat - 1, down, lat],
            [lon, above, lon + 1, lat + 1],
            [lon - 1, lat - 1, lon, below],
        ]
    )
    count = region.shape[0]
    nowhere, whole = np.full(count, np.nan), np.arange(count, dtype=np.int64)
    offsets, terms = np.arange(count + 1) * 2, np.tile(np.array([3, 7], np.int32), count)
    weights = np.full(2 * count, np.sqrt(0.5), np.float32)
    table = SubscriptionTable(
        whole, np.full(count, BOOLEAN, np.int8), np.zeros(count, np.int64), nowhere, nowhere, region,
        np.full(count, KEYWORDS_BY_KIND, np.int8), np.zeros(count, np.int32), nowhere, offsets, terms, weights,
    )  # fmt: skip
    peer.insert(table)
    x, y = WORLD.project(np.array([lon, lon]), np.array([lat, lat]))
    lons, lats = np.array([lon, lon]), np.array([lat, lat])
    carried = np.array([3, 7, 3, 8], np.int32)  # the second message lacks a keyword
    seq = np.arange(2, dtype=np.int64)
    batch = MessageBatch(
        seq, x, y, lons, lats, lons, lats, seq, np.array([0, 2, 4]), carried, np.full(4, np.sqrt(0.5), np.float32)
    )
    assert hits(peer, batch) == [(0, 0), (0, 1), (0, 2)]


def test_bench_times_peers_beside_engines():
    names = ["cell_term", "duckdb"]
    report = run.bench("boolean", 2_000, messages=120, seed=4, engines=names, rounds=2)
    assert json.loads(json.dumps(report)) == report
    there = [name for name in names if name not in report.get("absent", {})]
    assert [result["engine"] for result in report["results"]] == there
    for result in report["results"]:
        assert result["exact"] is True and result["compared"] > 0
        assert min(result[key] for key in ("messages_per_s", "subscribe_per_s", "bytes_per_subscription")) > 0
        assert result["matched_per_message"] == report["results"][0]["matched_per_message"]
        assert ("join_us_per_message" in result) == (result["engine"] in PEERS)
        assert result.get("join_us_per_message", 0.0) < result["us_per_message"]
    assert all({"whole", "join"} == told.keys() for told in report.get("times_the_first", {}).values())


def test_bench_leaves_out_a_peer_that_is_not_installed_and_says_how_to_install_it(monkeypatch):
    class Elsewhere(DuckDB):
        name = "elsewhere"
        install = "pip install elsewhere"
        package = "no_such_package"

    monkeypatch.setitem(PEERS, "elsewhere", Elsewhere)
    heard = []
    report = run.bench(
        "boolean", 500, messages=60, engines=["cell_term", "elsewhere"], rounds=1, on_progress=heard.append
    )
    assert [result["engine"] for result in report["results"]] == ["cell_term"]
    assert report["absent"] == {
        "elsewhere": "Python package no_such_package is not installed. Install it: pip install elsewhere"
    }
    assert any("pip install elsewhere" in sentence for sentence in heard)


def test_bench_of_a_wrong_peer_is_not_exact_and_the_peer_is_closed(monkeypatch):
    closed = []

    class Forgetful(DuckDB):
        def match(self, batch):
            found = super().match(batch)
            return found._replace(slot=found.slot[:-1], row=found.row[:-1])

        def close(self):
            closed.append(True)
            super().close()

    monkeypatch.setitem(PEERS, "duckdb", Forgetful)
    report = run.bench("boolean", 2_000, messages=100, seed=4, engines=["duckdb"], rounds=1)
    assert [result["exact"] for result in report["results"]] == [False]
    assert closed


def test_postgis_without_a_server_says_how_to_have_one(monkeypatch, tmp_path):
    monkeypatch.setenv("PGHOST", str(tmp_path))
    absence = PEERS["postgis"].absence()
    assert absence.startswith("no PostgreSQL server answers")
    assert "apt-get install postgresql" in absence and "pg_virtualenv" in absence


@pytest.mark.postgis
def test_postgis_closed_leaves_nothing_on_the_server_of_whoever_it_is(postgis):
    for _ in range(2):
        peer = PostGIS(WORLD)
        with psycopg.connect() as sql:
            assert sql.execute(SCHEMA).rowcount == 1
        peer.close()
        with psycopg.connect() as sql:
            assert sql.execute(SCHEMA).rowcount == 0
