"""The whole topology over a random world, and what a run of it missed or made up."""

from collections import Counter

import numpy as np

from distribution.hashing import HashingRouter
from distribution.keyword import KeywordRouter, PrefixRouter
from distribution.location import LocationRouter
from matching.kinds import KINDS
from matching.model import UpdateBatch
from matching.naive import tally
from tests.support.worlds import SPACE, Collector, Recipe, World, WorldChanges, WorldMessages, make_world
from topology.core.local import run_local
from topology.wiring import wire


def plan_of(
    world: World, router: str, seed: int, query=2, tuples=1, distribution=1, aggregation=1, credits=4, engines=None
):
    if router != "location":
        placed = {"hashing": HashingRouter, "keyword": KeywordRouter, "prefix": PrefixRouter}[router](query)
    else:
        rng = np.random.default_rng(seed)
        placed = LocationRouter(query, SPACE, rng.random(200), rng.random(200) / 2)
    return wire(
        WorldMessages(world),
        WorldChanges(world),
        placed,
        SPACE,
        world.window,
        Collector(credits),
        kinds=KINDS,
        engines=engines,
        distribution_bolts=distribution,
        tuple_bolts=tuples,
        aggregation_bolts=aggregation,
        credits=credits,
    )


def differences(world: World, figures: dict) -> str:
    """What the run missed or made up, in words; empty when it agrees with the oracle."""
    dtypes = (np.int64, np.int64, np.int64, np.int8, np.float64)
    columns = [np.array(column, dtype) for column, dtype in zip(figures["updates"], dtypes, strict=True)]
    got, results = tally(UpdateBatch(*columns)), Counter(zip(*figures["results"], strict=True))
    per_batch, expected_results = world.expected()
    expected = sum(per_batch, Counter())
    told = ""
    if got != expected:
        told += f"missing {list(expected - got)[:3]}, extra {list(got - expected)[:3]}; "
    if results != expected_results:
        told += f"results missing {expected_results - results}, extra {results - expected_results}; "
    if figures["complete_through"] != len(world.batches) - 1:
        told += f"complete only through {figures['complete_through']}"
    return told


def broken_runs(recipe: Recipe, router: str, **tasks) -> list[str]:
    found = []
    for seed in range(8):
        world = make_world(recipe, seed)
        plan = plan_of(world, router, seed, **tasks)
        found.append(differences(world, run_local(plan, seed=seed).components["delivery"].tasks[0].figures))
    return found
