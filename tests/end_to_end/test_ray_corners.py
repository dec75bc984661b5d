"""The product's topology on Ray actors: exact at the corners of the matrix, and files the same as in one process."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.support.covering import tiered
from tests.support.etl_folder import random_rows, write_etl
from tests.support.topologies import differences, plan_of
from tests.support.worlds import Recipe, make_world
from topology.core.executors.ray import run_ray
from topology.placement import LIGHT
from topology.running import run
from topology.settings import RunConfig

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]

#: Changes in the middle of batches, ties, late messages, rectangles: whatever tells a wrong topology from a right one.
WORLD = Recipe(batch=10, messages=300, window="count:50", ranges=0.2, grid=3, subscriptions=60)

TIME_15 = Recipe(**{**vars(WORLD), "window": "time:15"})
TIME_40 = Recipe(**{**vars(WORLD), "window": "time:40"})

#: Who shares an actor: nobody, the light ones (two actors for each number of task), everybody.
SPREAD, SHARED, ONE = (), (LIGHT,), (("query", *LIGHT),)

#: Router; query, tuple, distribution and aggregation bolts; world; who shares an actor.
CORNERS = [
    pytest.param("hashing", (1, 1, 1, 1), WORLD, SPREAD, id="hashing-1-1-1-spread"),
    pytest.param("hashing", (3, 2, 2, 2), TIME_40, SHARED, id="hashing-3-2-2-shared"),
    pytest.param("hashing", (2, 3, 1, 1), WORLD, ONE, id="hashing-2-3-1-one"),
    pytest.param("location", (2, 1, 2, 1), TIME_15, SHARED, id="location-2-1-2-shared"),
    pytest.param("location", (4, 3, 1, 1), WORLD, SPREAD, id="location-4-3-1-spread"),
    pytest.param("location", (8, 1, 2, 1), TIME_40, ONE, id="location-8-1-2-one"),
    pytest.param("keyword", (1, 3, 2, 1), WORLD, ONE, id="keyword-1-3-2-one"),
    pytest.param("keyword", (4, 3, 2, 2), TIME_40, SPREAD, id="keyword-4-3-2-spread"),
    pytest.param("keyword", (8, 1, 2, 1), WORLD, SHARED, id="keyword-8-1-2-shared"),
    pytest.param("prefix", (2, 3, 2, 1), TIME_15, SHARED, id="prefix-2-3-2-shared"),
    pytest.param("prefix", (4, 1, 2, 2), WORLD, ONE, id="prefix-4-1-2-one"),
    pytest.param("prefix", (3, 3, 1, 1), TIME_40, SPREAD, id="prefix-3-3-1-spread"),
]


@pytest.mark.parametrize(("router", "tasks", "recipe", "together"), tiered(CORNERS, 12, 3))
def test_topology_on_ray_equals_oracle(router, tasks, recipe, together):
    query, tuples, distribution, aggregation = tasks
    world = make_world(recipe, seed=11)
    plan = plan_of(world, router, 11, query=query, tuples=tuples, distribution=distribution, aggregation=aggregation)
    report = run_ray(plan, together=together)
    figures = report.components["delivery"].tasks[0].figures
    assert not differences(world, figures)
    assert figures["late"] > 0, "no refill came back late: the protocol was not tested"
    assert report.published == report.acknowledged == len(world.batches)
    held = [task.figures["subscriptions"] for task in report.components["query"].tasks]
    assert all(sum(kinds.values()) > 0 for kinds in held), "a query bolt without subscriptions proves nothing"
    assert sum(task.figures["answered"]["topk"] for task in report.components["tuples"].tasks) > 0


def write_subscriptions(path, count=80, words=12, seed=2):
    """Boolean and top-k subscriptions, a third of which end in the middle of the stream."""
    rng = np.random.default_rng(seed)
    with path.open("w", encoding="utf-8") as out:
        for number in range(count):
            keywords = [f"w{word}" for word in rng.choice(words, rng.integers(1, 4), replace=False)]
            lon, lat = float(rng.uniform(-170, 170)), float(rng.uniform(-80, 80))
            row = {"subscription_id": f"s{number}", "keywords": keywords}
            if number % 2:
                row |= {"kind": "topk", "lon": lon, "lat": lat, "k": 3, "alpha": float(rng.uniform(0.05, 0.95))}
            else:
                row |= {
                    "kind": "boolean",
                    "region": [max(-180.0, lon - 60), max(-90.0, lat - 40), min(180.0, lon + 60), min(90.0, lat + 40)],
                }
            if number % 3 == 0:
                row["until"] = int(rng.integers(100, 900))
            out.write(json.dumps(row) + "\n")
    return path


@pytest.mark.wide  # the way of the command line has this too
def test_run_over_files_gives_the_same_on_ray_as_in_one_process(tmp_path):
    messages = write_etl(tmp_path / "etl", random_rows(1_000, late_s=5))
    subscriptions = write_subscriptions(tmp_path / "subscriptions.jsonl")
    reports, results = {}, {}
    for executor in ("local", "ray"):
        out = tmp_path / executor
        reports[executor] = run(
            RunConfig(
                messages=messages,
                subscriptions=(subscriptions,),
                out=out,
                executor=executor,
                router="location" if executor == "ray" else "hashing",
                window="count:200",
                batch=50,
                query_bolts=3 if executor == "ray" else 1,
                tuple_bolts=2,
                distribution_bolts=2,
                delivery_bolts=3 if executor == "ray" else 1,
            )
        )
        results[executor] = (out / "results.parquet").read_bytes()
    local, ray = reports["local"], reports["ray"]
    assert ray["topology"]["executor"] == "ray" and local["topology"]["executor"] == "local"
    assert local["delivery"]["updates"] == ray["delivery"]["updates"] and min(ray["delivery"]["updates"].values()) > 100
    assert local["digest"] == ray["digest"]
    assert results["local"] == results["ray"]
    assert pq.read_table(tmp_path / "ray" / "results.parquet").num_rows == ray["delivery"]["results"] > 50
    told = pq.read_table(tmp_path / "ray" / "updates").num_rows
    assert told == sum(ray["delivery"]["updates"].values())
