"""Filters of subscriptions through the whole topology, against the oracle: every kind, router and filter."""

import numpy as np
import pytest

from distribution.routers import PLACING
from matching.filters import NO_FILTERS, FilterStore
from matching.kinds import KINDS
from matching.model import BOOLEAN, DECAY, KNN, NO_WORDS, SKYLINE, TOPK
from matching.topk.operator import TopkOperator
from tests.support import skyline_worlds
from tests.support.covering import pairwise, tiered
from tests.support.filters import with_filters
from tests.support.skyline_topologies import SkylineWorld, router_of
from tests.support.skyline_topologies import differences as skyline_differences
from tests.support.skyline_topologies import plan_of as skyline_plan
from tests.support.topologies import RAY_CORNERS, differences, plan_of, told_on_ray
from tests.support.worlds import Recipe, make_world
from topology.core.executors.local import run_local

EVERYWHERE = ("hashing", "location", *PLACING)
SETTINGS = {
    "router": EVERYWHERE,
    "query": (1, 2, 5),
    "tuples": (1, 3),
    "distribution": (1, 2),
    "window": ("count:40", "time:15"),
    "batch": (1, 20, 70),
    "ranges": (0.0, 0.4),
    "grid": (None, 6),
}
SKYLINE_SETTINGS = {
    "router": ("hashing", "location"),
    "query": (1, 3),
    "tuples": (1, 3),
    "distribution": (1, 2),
    "signatures": ("off", "spatial", "spatial+text", "minwise"),
    "window": ("count:40", "time:30"),
    "batch": (2, 6, 20),
}


def world_of(seed: int, kinds=(BOOLEAN, TOPK, DECAY, KNN), **more):
    return with_filters(make_world(Recipe(kinds=kinds, churn=0.6, **more), seed), seed)


def outcome(world, router: str, seed: int, **tasks) -> str:
    plan = plan_of(world, router, seed, **tasks)
    return differences(world, run_local(plan, seed=seed).components["delivery"].tasks[0].figures)


@pytest.mark.parametrize("row", tiered(pairwise(SETTINGS), 3), ids=lambda row: "-".join(map(str, row.values())))
def test_filters_every_pair_of_settings_equals_oracle(row):
    made = {name: row[name] for name in ("window", "batch", "ranges", "grid")}
    tasks = {name: row[name] for name in ("query", "tuples", "distribution")}
    assert not outcome(world_of(61, messages=200, **made), row["router"], 61, **tasks)


@pytest.mark.parametrize("first", tiered(range(0, 200, 25), 8))
def test_filters_random_configurations_equal_oracle(first):
    for seed in range(first, first + 25):
        rng = np.random.default_rng([seed, 7])
        kinds = ((BOOLEAN, TOPK), (BOOLEAN, TOPK, DECAY, KNN))[rng.integers(2)]
        routers = ("keyword", "prefix", "hashing") if len(kinds) == 2 else EVERYWHERE
        # who needs any of its keywords cannot be placed by them, and of boolean subscriptions some do
        router = str(rng.choice(routers))
        kinds = (TOPK,) if router in ("keyword", "prefix") else kinds
        world = world_of(
            seed,
            kinds,
            window=str(rng.choice(["count:50", "time:40", "count:9"])),
            batch=int(rng.choice([1, 5, 20, 70])),
            messages=int(rng.choice([80, 200])),
            ranges=float(rng.choice([0.0, 0.3])),
            terms=12,
            grid=[None, 6][rng.integers(2)],
        )
        tasks = {"query": int(rng.choice([1, 2, 4])), "tuples": int(rng.choice([1, 3])), "distribution": 2}
        assert not (found := outcome(world, router, seed, **tasks)), f"seed {seed}: {found}"


@pytest.mark.parametrize("row", tiered(pairwise(SKYLINE_SETTINGS), 3), ids=lambda row: "-".join(map(str, row.values())))
def test_filters_of_skylines_every_pair_of_settings_equals_oracle(row):
    recipe = skyline_worlds.Recipe(
        row["window"], -(-160 // row["batch"]), row["batch"], 30, objects=25, deletes=0.1, late=6, tick=2, churn=0.3,
        ranges=0.2,
    )  # fmt: skip
    world = with_filters(SkylineWorld(recipe, 62, (SKYLINE, SKYLINE, BOOLEAN, TOPK)), 62, 8)
    router = router_of(row["router"], row["query"], 62, row["signatures"])
    plan = skyline_plan(world, router, tuples=row["tuples"], distribution=row["distribution"])
    figures = run_local(plan, seed=62).components["delivery"].tasks[0].figures
    assert not skyline_differences(world, figures)


ENGINES = [
    {"kind": kind.name, "engine": engine}
    for kind in KINDS
    if kind.name != "skyline"
    for engine in kind.engines
    if engine != next(iter(kind.engines))
]


@pytest.mark.long
@pytest.mark.parametrize("row", ENGINES, ids=lambda row: "-".join(row.values()))
def test_filters_in_every_engine_equal_oracle(row):
    code = KINDS.named(row["kind"]).code
    for seed in range(4):
        world = world_of(seed, (code,), window="count:40", batch=7, messages=300, subscriptions=80)
        assert not outcome(world, "hashing", seed, engines={row["kind"]: row["engine"]})


class ForgetsFilterInWindow(TopkOperator):
    """Broken: refills take messages that the filter excludes."""

    def query(self, slots):
        return super().query(slots)._replace(filter_offsets=NO_WORDS, filter_words=NO_WORDS)


def test_filter_forgotten_in_the_answer_of_the_window_is_found(monkeypatch):
    from tests.end_to_end.test_topology_exact import with_capacity
    from tests.support import topologies

    with_capacity(monkeypatch, ForgetsFilterInWindow)
    assert topologies.KINDS.named("topk").operator is ForgetsFilterInWindow
    assert any(outcome(world_of(seed, (TOPK,), window="count:30", batch=5), "hashing", seed) for seed in range(4))


def test_filter_that_forgets_what_it_tests_is_found(monkeypatch):
    monkeypatch.setattr(FilterStore, "passing", lambda self, slots, rows, batch: None)
    assert outcome(world_of(3, (BOOLEAN,)), "hashing", 3)


def test_filter_forgotten_by_results_since_registration_is_found(monkeypatch):
    monkeypatch.setattr(FilterStore, "view", NO_FILTERS)
    assert outcome(world_of(3, (KNN,)), "hashing", 3) and outcome(world_of(3, (DECAY,)), "hashing", 3)


@pytest.mark.ray
@pytest.mark.usefixtures("ray_session")
@pytest.mark.parametrize(
    ("router", "tasks", "window", "together"), tiered([pytest.param(*corner) for corner in RAY_CORNERS], 8)
)
@pytest.mark.wide  # a stream of these kinds with filters goes over Ray in test_wordless.py
def test_filters_on_ray_equal_oracle(router, tasks, window, together):
    world = world_of(63, window=window, batch=10, messages=300, grid=6, subscriptions=60)
    told, _ = told_on_ray(world, router, 63, tasks, together)
    assert not told
