"""Subscriptions without keywords in the whole topology, beside those that exclude words, or need one of several.

Every router and signature, every kind that takes them, both executors: what the oracle says, whatever selects.
"""

import json
from collections import Counter

import numpy as np
import pyarrow.parquet as pq
import pytest

from distribution.routers import ROUTERS
from gateway.runs.explaining import explain
from gateway.runs.verify import verify_run
from gateway.subscriptions.preview import preview_subscriptions
from matching.model import ANY_KEYWORD, BOOLEAN, DECAY, KNN, TOPK, SubscriptionTable
from tests.end_to_end.test_signatures import plan_of as plan_with_signatures
from tests.support.etl_folder import random_rows, write_etl
from tests.support.filters import with_filters
from tests.support.topologies import differences, plan_of, told_on_ray
from tests.support.wordless import leave_out
from tests.support.worlds import Recipe, World, make_world
from topology.core.executors.local import run_local
from topology.running import run
from topology.settings import RunConfig

BY_WORDS = ("keyword", "prefix")
ALL = Recipe(
    messages=160, batch=10, subscriptions=60, terms=9, ranges=0.3, grid=6, kinds=(BOOLEAN, TOPK, DECAY, KNN), churn=0.8
)
REGIONS = Recipe(messages=160, batch=10, subscriptions=60, terms=9, ranges=0.3, kinds=(BOOLEAN,), churn=0.8)


def mixed(recipe: Recipe, seed: int) -> World:
    """Filters of all sorts, words that must not be there too; a third has no keywords, some need any of theirs."""
    world = leave_out(with_filters(make_world(recipe, seed), seed, recipe.terms), 0.35, seed)
    for place, (boundary, messages, changes) in enumerate(world.batches):
        rows = changes.added
        last = np.append(rows.weights, 0.0)[rows.term_offsets[1:] - 1]
        loose = (rows.kind == BOOLEAN) & (rows.number % 3 == 0) & ~np.signbit(last)
        match = np.where(loose, ANY_KEYWORD, rows.match).astype(np.int8)
        world.batches[place] = (
            boundary,
            messages,
            changes._replace(added=SubscriptionTable(**(rows._asdict() | {"match": match}))),
        )
    return world


def wrong(plan, world: World, seed: int) -> str:
    return differences(world, run_local(plan, seed=seed).components["delivery"].tasks[0].figures)


@pytest.mark.parametrize("router", [name for name in ROUTERS if name not in BY_WORDS])
@pytest.mark.parametrize("query", [pytest.param(1, marks=pytest.mark.long), 3])
def test_topology_without_keywords_equals_oracle_under_every_router(router, query):
    world = mixed(ALL, 31)
    assert not wrong(plan_of(world, router, 31, query=query, tuples=2, distribution=2), world, 31)


@pytest.mark.parametrize("router", ["hashing", "location"])
@pytest.mark.parametrize("mode", [pytest.param("spatial", marks=pytest.mark.long), "spatial+text"])
@pytest.mark.parametrize("filters", [("bitmap", "cuckoo"), ("cuckoo", "cuckoo"), ("cuckoo", "minwise")])
def test_topology_without_keywords_equals_oracle_under_every_signature(router, mode, filters):
    world = mixed(REGIONS, 32)
    assert not wrong(plan_with_signatures(world, router=router, mode=mode, filters=filters), world, 32)


@pytest.mark.ray
@pytest.mark.usefixtures("ray_session")
@pytest.mark.parametrize(("router", "tasks"), [("hashing", (2, 2, 1, 1)), ("location", (3, 1, 2, 1))])
def test_topology_on_ray_without_keywords_equals_oracle(router, tasks):
    told, _ = told_on_ray(mixed(ALL, 33), router, 33, tasks, ())
    assert not told


def test_run_over_files_with_and_without_keywords_is_exact_and_what_a_preview_says(tmp_path):
    etl = write_etl(tmp_path / "etl", random_rows(300))
    rows = [
        {"subscription_id": "place", "kind": "boolean", "region": [-90, -60, 90, 60]},
        {"subscription_id": "not", "kind": "boolean", "region": [-90, -60, 90, 60], "not_keywords": "w11 w10"},
        {"subscription_id": "all", "kind": "boolean", "everything": True},
        {"subscription_id": "words", "kind": "boolean", "keywords": "w11", "region": [-90, -60, 90, 60]},
        {"subscription_id": "near", "kind": "topk", "keywords": "", "lon": 5, "lat": 5, "k": 4},
        {"subscription_id": "next", "kind": "knn", "keywords": [], "lon": 5, "lat": 5, "k": 4, "radius_m": 5e6},
    ]
    asked = tmp_path / "asked.jsonl"
    asked.write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = tmp_path / "out"
    run(RunConfig(messages=etl, subscriptions=(asked,), out=out, window="count:60", executor="local", batch="25"))
    assert verify_run(out, None).exact and verify_run(out, None, plain=True).exact
    matched = Counter(row["subscription_id"] for row in pq.read_table(out / "updates").to_pylist())
    previewed = {one["subscription_id"]: one["messages"] for one in preview_subscriptions([asked], etl)}
    assert {name: matched[name] for name in ("place", "not", "all", "words")} == {
        name: previewed[name] for name in ("place", "not", "all", "words")
    }
    assert matched["all"] == 300 > matched["place"] > matched["not"] > 0
    assert explain(out, "place", "seq:0")["reason"] in ("matched", "outside_region")
