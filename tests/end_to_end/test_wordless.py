"""Subscriptions without keywords in the whole topology, beside those that exclude words, or need one of several.

Every router and signature, every kind that takes them, both executors: what the oracle says, whatever selects.
"""

import numpy as np
import pytest

from distribution.routers import ROUTERS
from matching.model import ANY_KEYWORD, BOOLEAN, DECAY, KNN, TOPK, SubscriptionTable
from tests.end_to_end.test_signatures import plan_of as plan_with_signatures
from tests.support.filters import with_filters
from tests.support.topologies import differences, plan_of
from tests.support.wordless import leave_out
from tests.support.worlds import Recipe, World, make_world
from topology.core.executors.local import run_local

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
@pytest.mark.parametrize("query", [1, 3])
def test_topology_without_keywords_equals_oracle_under_every_router(router, query):
    world = mixed(ALL, 31)
    assert not wrong(plan_of(world, router, 31, query=query, tuples=2, distribution=2), world, 31)


@pytest.mark.parametrize("router", ["hashing", "location"])
@pytest.mark.parametrize("mode", ["spatial", "spatial+text"])
@pytest.mark.parametrize("filters", [("bitmap", "cuckoo"), ("cuckoo", "cuckoo"), ("cuckoo", "minwise")])
def test_topology_without_keywords_equals_oracle_under_every_signature(router, mode, filters):
    world = mixed(REGIONS, 32)
    assert not wrong(plan_with_signatures(world, router=router, mode=mode, filters=filters), world, 32)
