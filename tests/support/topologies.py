"""The whole topology over a random world, and what a run of it missed or made up."""

from collections import Counter
from collections.abc import Iterator

import numpy as np

from distribution.hashing import HashingRouter
from distribution.influence import InfluenceRouter
from distribution.keyword import KeywordRouter, PrefixRouter
from distribution.location import LocationRouter
from distribution.placement.costs import SampleCosts
from distribution.routers import PLACING, router_named
from matching.kinds import KINDS
from matching.model import MessageBatch, UpdateBatch, join_messages
from matching.naive_rows import tally
from tests.support.worlds import SPACE, Collector, Recipe, World, WorldChanges, WorldMessages, make_world
from topology.core.executors.local import run_local
from topology.core.executors.ray import run_ray
from topology.core.metrics import RunReport
from topology.placement import LIGHT
from topology.wiring import wire

#: Router; query, tuple, distribution and aggregation bolts; window; who shares an actor.
RAY_CORNERS = [
    ("hashing", (1, 1, 1, 1), "count:50", ()),
    ("hashing", (3, 2, 2, 1), "time:15", (LIGHT,)),
    ("location", (2, 1, 2, 1), "time:40", (("query", *LIGHT),)),
    ("location", (4, 2, 1, 2), "count:50", (LIGHT,)),
    ("kop", (2, 1, 1, 1), "count:50", (LIGHT,)),
    ("sop", (3, 1, 2, 1), "time:15", (("query", *LIGHT),)),
    ("dkm-sks", (4, 2, 2, 1), "count:50", (LIGHT,)),
    ("ps2stream", (2, 2, 1, 1), "time:40", ()),
]


def costs_of(world: World, batches: int = 2) -> SampleCosts:
    """What is known of a world beforehand: its first batches."""
    return SampleCosts(world.space, join_messages([messages for _, messages, _ in world.batches[:batches]]))


def plan_of(
    world: World, router: str, seed: int, query=2, tuples=1, distribution=1, aggregation=1, credits=4, engines=None,
    kinds=None,
):  # fmt: skip
    if router in PLACING:
        nowhere = np.zeros(0), np.zeros(0)
        placed = router_named(router, query, world.space, lambda: nowhere, costs=lambda: costs_of(world))
    elif router not in ("location", "influence"):
        placed = {"hashing": HashingRouter, "keyword": KeywordRouter, "prefix": PrefixRouter}[router](query)
    else:
        rng = np.random.default_rng(seed)
        made = InfluenceRouter if router == "influence" else LocationRouter
        placed = made(query, world.space, rng.random(200), rng.random(200) / 2)
    return wire(
        WorldMessages(world),
        WorldChanges(world),
        placed,
        world.space,
        world.window,
        Collector(credits),
        kinds=kinds or KINDS,
        engines=engines,
        fading=getattr(world, "fading", None),
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


def told_on_ray(
    world: World, router: str, seed: int, tasks: tuple[int, int, int, int], together: tuple
) -> tuple[str, RunReport]:
    """`differences` of a run on Ray, and its report; `tasks` and `together` as in `RAY_CORNERS`."""
    query, tuples, distribution, aggregation = tasks
    plan = plan_of(world, router, seed, query, tuples, distribution, aggregation)
    report = run_ray(plan, together=together)
    return differences(world, report.components["delivery"].tasks[0].figures), report


def broken_runs(recipe: Recipe, router: str, runs: int = 8, **tasks) -> Iterator[str]:
    """`differences` of so many runs, one after the other: what is broken is found in the first that shows it."""
    for seed in range(runs):
        world = make_world(recipe, seed)
        plan = plan_of(world, router, seed, **tasks)
        yield differences(world, run_local(plan, seed=seed).components["delivery"].tasks[0].figures)


def with_lines(world: World) -> World:
    """The world with messages as wide as it is, and with lines that end where a region begins."""
    regions = np.concatenate([changes.added.region for _, _, changes in world.batches])
    regions = regions[~np.isnan(regions[:, 0])]
    for place, (boundary, messages, changes) in enumerate(world.batches):
        west, south, east, north = (np.array(column) for column in messages[3:7])
        seq = messages.seq
        its = regions[seq % len(regions)]
        shape = seq % 5
        west[shape == 0], east[shape == 0] = -180.0, 180.0
        everything = seq % 10 == 0
        south[everything], north[everything] = -90.0, 90.0
        west = np.where(shape == 1, its[:, 2], west)  # a vertical line on a region's eastern side
        east = np.where(shape == 1, its[:, 2], east)
        south = np.where(shape == 1, -90.0, south)
        east = np.where(shape == 2, its[:, 0], east)  # ends at a region's western side
        west = np.where(shape == 2, np.maximum(-180.0, east - 120.0), west)
        north = np.where(shape == 3, south, north)  # a horizontal line
        x, y = SPACE.project((west + east) / 2.0, (south + north) / 2.0)
        sides = {"x": x, "y": y, "west": west, "south": south, "east": east, "north": north}
        messages = MessageBatch(**(messages._asdict() | sides))
        world.batches[place] = (boundary, messages, changes)
    return world
