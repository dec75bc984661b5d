"""Queries in whole runs over files: every router, phrases, and what a preview and an explanation say of them."""

import json
from collections import Counter

import pyarrow.parquet as pq
import pytest

from distribution.routers import ROUTERS
from gateway.runs.explaining import explain
from gateway.runs.verify import verify_run
from gateway.subscriptions.preview import preview_subscriptions
from tests.support.etl_folder import random_rows, with_hashtags, with_order, write_etl
from tests.support.naive_conditions import query_holds
from topology.running import run
from topology.settings import RunConfig

EVERYWHERE = {"kind": "boolean", "region": [-180, -90, 180, 90]}
NEAR = {"lon": 5, "lat": 5, "k": 6}
#: Subscriptions whose queries every router can place, by a word that all matches have.
PLACEABLE = {
    "words": EVERYWHERE | {"query": "w11 w10 -w9"},
    "group": EVERYWHERE | {"query": {"all": ["w11", {"any": ["w9", {"all": ["w10", "w8"]}]}]}},
    "phrase": EVERYWHERE | {"query": {"all": ['"w11 w10"']}},
    "near": EVERYWHERE | {"query": {"all": ['"w11 w10"~2'], "none": ["w9"]}},
}
OTHERS = {
    "any": EVERYWHERE | {"query": {"any": ["w8", "w7", '"w11 w11"']}},
    "not": {"kind": "boolean", "region": [-90, -60, 90, 60], "query": {"none": ["w11", {"all": ["w10", "w9"]}]}},
    "no phrase": {"kind": "boolean", "region": [-90, -60, 90, 60], "query": {"none": ['"w11 w10"~1']}},
    "best": {"kind": "topk", "alpha": 0.5, "query": {"any": ["w11", {"all": ["w10", "w9"]}], "none": ["w8"]}} | NEAR,
    "next": {"kind": "knn", "query": {"all": ["w11", '"w11 w10"~1']}} | NEAR,
    "newest": {"kind": "decay", "alpha": 0.5, "keywords": "w9", "query": {"all": ["w11"], "none": ['"w11 w10"']}}
    | NEAR,
    "line": {"kind": "skyline", "region": [-90, -60, 90, 60], "query": {"all": ["w11"], "none": ["w10"]}},
    "best phrase": {"kind": "topk", "alpha": 0.5, "at": 150, "query": 'w11 "w11 w10"~2'} | NEAR,
    "line of phrases": {"kind": "skyline", "region": [-90, -60, 90, 60], "at": 150, "query": '(w10 OR w11) -"w11 w10"'},
}
BY_WORDS = ("keyword", "prefix")


def told_by(tmp_path, router: str, asked: dict[str, dict]):
    """Run, and the matches of each boolean subscription."""
    rows = with_order(random_rows(300))
    etl, path, out = write_etl(tmp_path / "etl", rows), tmp_path / "asked.jsonl", tmp_path / "out"
    path.write_text("".join(json.dumps({"subscription_id": name} | row) + "\n" for name, row in asked.items()))
    more = {"window": "count:60", "executor": "local", "batch": "25", "router": router, "query_bolts": 3}
    run(RunConfig(messages=etl, subscriptions=(path,), out=out, **more))
    assert verify_run(out, None).exact and verify_run(out, None, plain=True).exact
    matched = Counter()
    for row in pq.read_table(out / "updates").to_pylist():
        matched[row["subscription_id"]] += row["change"] == "match"
    return rows, etl, path, out, matched


#: The other routers are those of `test_objects.py`; the long set has all of both.
THERE = ("location", "prefix", "kop")


@pytest.mark.parametrize(
    "router", [name if name not in THERE else pytest.param(name, marks=pytest.mark.long) for name in ROUTERS]
)
def test_run_with_queries_is_exact_and_what_a_preview_says_under_every_router(tmp_path, router):
    asked = PLACEABLE if router in BY_WORDS else PLACEABLE | OTHERS
    rows, etl, path, out, matched = told_by(tmp_path, router, asked)
    previewed = {one["subscription_id"]: one["messages"] for one in preview_subscriptions([path], etl)}
    for name, row in asked.items():
        if row["kind"] == "boolean":
            assert matched[name] == previewed[name], name
    for name in ("phrase", "near", "group"):
        wanted = [row for row in rows if query_holds(asked[name]["query"], {}, {}, row["text"].split())]
        assert matched[name] == len(wanted) > 0, name
    lacking = next(row for row in rows if {"w11", "w10"} <= {*row["text"].split()} and "w11 w10" not in row["text"])
    found = explain(out, "phrase", f"seq:{lacking['seq']}")
    told = 'the message does not satisfy the query: "w11 w10" is not there: w11 at '
    assert found["reason"] == "query" and found["why"].startswith(told), found["why"]


TAGGED = {
    "word": EVERYWHERE | {"keywords": "w3"},
    "phrase": EVERYWHERE | {"query": {"all": ['"w11 w10"']}},
    "near": EVERYWHERE | {"query": {"all": ['"w3 w11"~2'], "none": ["w9"]}},
    "best": {"kind": "topk", "alpha": 0.5, "keywords": "w3 w4"} | NEAR,
    "newest": {"kind": "decay", "alpha": 0.5, "keywords": "w3 w4"} | NEAR,
    "next": {"kind": "knn", "keywords": "w3 w4"} | NEAR,
    "line": {"kind": "skyline", "region": [-90, -60, 90, 60], "query": '(w3 OR w11) -"w11 w10"'},
}


@pytest.mark.parametrize("executor", ["local", pytest.param("ray", marks=pytest.mark.ray)])
def test_run_over_hashtags_is_exact_and_finds_the_words_that_they_name(tmp_path, executor):
    rows = with_hashtags(random_rows(300))
    etl, path, out = write_etl(tmp_path / "etl", rows), tmp_path / "asked.jsonl", tmp_path / "out"
    path.write_text("".join(json.dumps({"subscription_id": name} | row) + "\n" for name, row in TAGGED.items()))
    more = {"window": "count:60", "executor": executor, "batch": "25", "query_bolts": 2}
    run(RunConfig(messages=etl, subscriptions=(path,), out=out, **more))
    assert verify_run(out, None).exact and verify_run(out, None, plain=True).exact
    matched = Counter(row["subscription_id"] for row in pq.read_table(out / "updates").to_pylist())
    previewed = {one["subscription_id"]: one["messages"] for one in preview_subscriptions([path], etl)}
    for name in ("word", "phrase", "near"):
        query, marked = TAGGED[name].get("query", "w3"), 0
        for row in rows:
            words = row["text"].split()
            bare = [word for word in words if not word.startswith("#")]
            marked += query_holds(query, {}, {}, words) and not query_holds(query, {}, {}, bare)
        wanted = sum(query_holds(query, {}, {}, row["text"].split()) for row in rows)
        assert matched[name] == previewed[name] == wanted > 0 < marked, name
    assert all(matched[name] for name in TAGGED)


def test_phrase_over_a_folder_without_the_order_of_words_is_refused_with_what_to_do(tmp_path):
    etl, path = write_etl(tmp_path / "etl", random_rows(60)), tmp_path / "asked.jsonl"
    path.write_text(json.dumps({"subscription_id": "s"} | PLACEABLE["phrase"]) + "\n")
    out = tmp_path / "out"
    run(RunConfig(messages=etl, subscriptions=(path,), out=out, window="count:60", executor="local"))
    (refused,) = [json.loads(line) for line in (out / "rejected.jsonl").read_text().splitlines()]
    assert refused["reason"] == "no_word_order" and "run the ETL again" in refused["what"]
