"""Kinds with lasting results in whole topologies, beside others, on both executors, against the oracle."""

import numpy as np
import pytest

from distribution.routers import PLACING
from matching.kinds import KINDS
from matching.model import BOOLEAN, DECAY, KNN, TOPK
from tests.support.covering import pairwise, tiered
from tests.support.topologies import RAY_CORNERS, differences, plan_of, told_on_ray
from tests.support.worlds import Recipe, make_world, without_the_last
from topology.core.executors.local import run_local

KINDS_BESIDE = (BOOLEAN, TOPK, DECAY, KNN)
ROUTERS = ("hashing", "location", "influence", *PLACING)
ENGINES = {name: tuple(KINDS.named(name).engines) for name in ("decay", "knn")}
#: Others cost half a minute of compiling each.
DEFAULTS = {name: engines[0] for name, engines in ENGINES.items()}
SETTINGS = {
    "router": ROUTERS,
    "query": (1, 2, 5),
    "tuples": (1, 3),
    "distribution": (1, 2),
    "window": ("count:40", "time:15"),
    "batch": (1, 20, 70),
    "decay": ENGINES["decay"],
    "knn": ENGINES["knn"],
    "half_life_s": (1.0, 30.0, 3.2e8),
    "grid": (None, 3),
    "alphas": ((), (0.0, 1.0)),
    "largest_k": (2, 300),
    "late_s": (0.0, 8.0, 300.0),
}


def told_wrong(recipe: Recipe, seed: int, row: dict) -> str:
    world = make_world(recipe, seed)
    tasks = {name: row[name] for name in ("query", "tuples", "distribution")}
    engines = {name: row[name] for name in ENGINES}
    report = run_local(plan_of(world, row["router"], seed, engines=engines, **tasks), seed=seed)
    return differences(world, report.components["delivery"].tasks[0].figures)


def recipe_of(row: dict, **more) -> Recipe:
    ours = ("window", "batch", "half_life_s", "grid", "alphas", "largest_k", "late_s")
    return Recipe(kinds=KINDS_BESIDE, churn=0.7, **{name: row[name] for name in ours}, **more)


@pytest.mark.parametrize(
    "row", tiered(pairwise(SETTINGS), 3, plain=DEFAULTS), ids=lambda row: "-".join(map(str, row.values()))
)
def test_lasting_topology_every_pair_of_settings_equals_oracle(row):
    assert not told_wrong(recipe_of(row, messages=160, terms=10), 51, row)


@pytest.mark.parametrize(
    "part",
    tiered([{"first": n, "engines": {}} for n in range(0, 200, 25)], 8, plain={"engines": DEFAULTS}),
    ids=lambda part: str(part["first"]),
)
def test_lasting_topology_random_configurations_equal_oracle(part):
    for seed in range(part["first"], part["first"] + 25):
        rng = np.random.default_rng(seed)
        row = {name: values[rng.integers(len(values))] for name, values in SETTINGS.items()} | part["engines"]
        recipe = recipe_of(row, messages=int(rng.choice([60, 200])), terms=int(rng.choice([2, 8, 30])))
        assert not (told := told_wrong(recipe, seed, row)), f"seed {seed}: {told}"


@pytest.mark.parametrize("router", ["hashing", "dkm-sks"])
def test_lasting_topology_after_the_last_has_left_holds_nothing(router):
    world = without_the_last(make_world(Recipe(kinds=KINDS_BESIDE, messages=120), 52))
    figures = run_local(plan_of(world, router, 52, query=3), seed=52).components["delivery"].tasks[0].figures
    assert not differences(world, figures)
    assert figures["results"][0] == []


@pytest.mark.ray
@pytest.mark.usefixtures("ray_session")
@pytest.mark.parametrize(
    ("router", "tasks", "window", "together"), tiered([pytest.param(*corner) for corner in RAY_CORNERS], 8)
)
@pytest.mark.wide  # a stream of these kinds with filters goes over Ray in test_wordless.py
def test_lasting_topology_on_ray_equals_oracle(router, tasks, window, together):
    recipe = Recipe(kinds=KINDS_BESIDE, window=window, batch=10, messages=300, grid=3, subscriptions=60, churn=0.7)
    told, report = told_on_ray(make_world(recipe, 53), router, 53, tasks, together)
    assert not told
    held = [task.figures["subscriptions"] for task in report.components["query"].tasks]
    assert sum(kinds["decay"] for kinds in held) > 5 and sum(kinds["knn"] for kinds in held) > 5
