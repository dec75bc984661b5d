"""Who decides, what is carried and saved of it, and that everybody who asks is told the same."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distribution.placed import DkmSksRouter, KopRouter, PlacedRouter, Ps2StreamRouter, SopRouter
from distribution.placement.costs import UniformCosts
from distribution.placement.demand import demand_of
from distribution.placement.kop import KeywordOriented
from distribution.routers import PLACING, router_named
from matching.errors import CheckpointError, ConfigError, EngineError
from matching.kinds import KINDS
from matching.model import Removals, SubscriptionTable, concatenate, empty
from tests.support.placements import SPACE, changes, costs_of, draw_messages, draw_subscriptions, removal
from topology.core import frames

ROUTERS = [KopRouter, SopRouter, DkmSksRouter, Ps2StreamRouter]
SEEDS = st.integers(0, 2**32 - 1)
NOWHERE = np.zeros(0), np.zeros(0)


def router_with(which: type[PlacedRouter], tasks: int = 3, seed: int = 0) -> PlacedRouter:
    return which(tasks, SPACE, costs_of(draw_messages(np.random.default_rng(seed), 100)))


def saved(placer) -> dict:
    """What a placer saves, as a run that goes on gets it."""
    return frames.decode(frames.encode({}, placer.arrays() | {"told": np.zeros(2)}))[1]


def owners(router: PlacedRouter, change) -> np.ndarray:
    """The one task that holds each subscription added."""
    held = np.stack([router.assigned_in(change, task) for task in range(router.tasks)])
    assert np.all(held.sum(axis=0) == 1), "held by exactly one task"
    return np.argmax(held, axis=0)


def some_rounds(router: PlacedRouter, seed: int, rounds: int = 6):
    """A placer that has followed a stream of changes, and who is left."""
    rng, placer = np.random.default_rng(seed), router.placer()
    alive, following = empty(SubscriptionTable), 0
    for batch in range(rounds):
        added = draw_subscriptions(rng, int(rng.integers(0, 30)), following, at=batch and 10 * batch)
        following += len(added)
        everyone = concatenate([alive, added])
        # some that come go in the same change list
        gone = np.flatnonzero(rng.random(len(everyone)) < 0.3)
        change = placer.follow(changes(batch, added, removal(everyone, gone, 10 * batch + 9)))
        assert np.array_equal(owners(router, change), change.owner)
        alive = everyone.take(np.setdiff1d(np.arange(len(everyone)), gone))
        assert len(placer.ledger) == len(alive)
    return placer, alive, following


@pytest.mark.parametrize("which", ROUTERS)
@settings(deadline=None, max_examples=25)
@given(seed=SEEDS)
def test_loads_are_those_of_who_is_there_and_nothing_when_all_have_gone(which, seed):
    router = router_with(which)
    placer, alive, _ = some_rounds(router, seed)
    kept = placer.ledger.arrays()
    assert np.array_equal(kept["number"], alive.number)
    assert np.array_equal(placer.ledger.load, np.bincount(kept["owner"], kept["cost"], router.tasks))
    gone = removal(alive, np.arange(len(alive)), 99)
    placer.follow(changes(9, empty(SubscriptionTable), gone))
    assert placer.ledger.load.tolist() == [0.0] * router.tasks and len(placer.ledger) == 0


@pytest.mark.parametrize("which", ROUTERS)
@settings(deadline=None, max_examples=25)
@given(seed=SEEDS)
def test_placer_goes_on_from_what_was_saved(which, seed):
    router = router_with(which)
    placer, alive, following = some_rounds(router, seed)
    told, again = saved(placer), router.placer()
    again.restore(told, alive.take(np.random.default_rng(seed).permutation(len(alive))))
    assert np.array_equal(again.ledger.load, placer.ledger.load)
    assert np.array_equal(again.ledger.owners(alive.number), placer.ledger.owners(alive.number))
    for task in range(router.tasks):
        mine = router.assigned_on_resume(alive, task, told)
        assert np.array_equal(mine, placer.ledger.owners(alive.number) == task)
    change = changes(7, draw_subscriptions(np.random.default_rng(seed + 1), 20, following, at=80))
    assert np.array_equal(placer.follow(change).owner, again.follow(change).owner)


@pytest.mark.parametrize("which", ROUTERS)
@pytest.mark.parametrize("before", [("tasks", 5), ("router", 3), ("nothing", 3)])
def test_places_are_decided_anew_for_other_tasks_or_by_another_router(which, before):
    how, tasks = before
    other = router_with(KopRouter if which is not KopRouter else SopRouter if how == "router" else KopRouter, tasks)
    if how == "tasks":
        other = router_with(which, tasks)
    placer, alive, _ = some_rounds(other, 4)
    told = {} if how == "nothing" else saved(placer)
    router = router_with(which)
    again = router.placer()
    again.restore(told, alive.take(np.arange(len(alive))[::-1]))
    held = np.stack([router.assigned_on_resume(alive, task, told) for task in range(3)])
    assert np.all(held.sum(axis=0) == 1)
    assert np.array_equal(np.argmax(held, axis=0), again.ledger.owners(alive.number)), "all tasks agree with the spout"
    cost = again.ledger.arrays()["cost"]
    demand = demand_of(alive, KINDS.traits, SPACE, router.costs)
    by_keyword = KeywordOriented(router.costs, 3).price(demand)
    assert np.array_equal(cost, placer.ledger.arrays()["cost"] if how == "tasks" else by_keyword)
    assert again.ledger.load.max() - again.ledger.load.min() <= cost.max()
    later = draw_subscriptions(np.random.default_rng(13), 20, 10_000, at=90)
    assert set(again.follow(changes(9, later)).owner) <= {0, 1, 2}


def test_places_of_other_subscriptions_are_refused():
    router = router_with(DkmSksRouter)
    placer, alive, _ = some_rounds(router, 5)
    with pytest.raises(CheckpointError, match="dkm-sks: places were saved of .* use an older checkpoint"):
        router.placer().restore(saved(placer), alive.take(np.arange(1, len(alive))))


def test_those_of_the_beginning_are_placed_together_and_others_one_by_one():
    router = router_with(KopRouter)
    rng = np.random.default_rng(6)
    first, later = draw_subscriptions(rng, 30), draw_subscriptions(rng, 10, 30, at=5)
    placer = router.placer()
    change = placer.follow(changes(0, concatenate([first, later])))
    fresh = router.placer()
    assert np.array_equal(change.owner[:30], fresh.place_all(first))
    kept, load = placer.ledger.arrays(), fresh.ledger.load.copy()
    cost = dict(zip(kept["number"].tolist(), kept["cost"].tolist(), strict=True))
    for number, owner in zip(later.number.tolist(), change.owner[30:], strict=True):
        assert owner == np.argmin(load)
        load[owner] += cost[number]


def test_whoever_leaves_makes_room_for_those_who_come():
    router = router_with(KopRouter, 2)
    placer = router.placer()
    first = draw_subscriptions(np.random.default_rng(7), 40)
    owner = placer.follow(changes(0, first)).owner
    gone = removal(first, np.flatnonzero(owner == 1), 10)
    change = placer.follow(changes(1, draw_subscriptions(np.random.default_rng(8), 3, 40, at=10), gone))
    assert change.owner.tolist() == [1, 1, 1]


def test_change_list_without_owners_is_refused():
    router = router_with(SopRouter)
    with pytest.raises(EngineError, match=r"has no owners for .*PlacingSpout"):
        router.assigned_in(changes(3, draw_subscriptions(np.random.default_rng(9), 3)), 0)


def test_removal_of_a_stranger_is_refused():
    stranger = Removals(np.array([7]), np.zeros(1, np.int8), np.array([3]))
    with pytest.raises(EngineError, match="7 is not here"):
        router_with(SopRouter).placer().follow(changes(0, empty(SubscriptionTable), stranger))


@pytest.mark.parametrize("name", PLACING)
def test_router_by_name_knows_nothing_of_messages_unless_told(name):
    router = router_named(name, 3, SPACE, lambda: NOWHERE)
    assert isinstance(router, PlacedRouter) and isinstance(router.costs, UniformCosts)
    assert router.describe() | {"messages": 0, "query_tasks": 3, "router": name} == router.describe()
    table = draw_subscriptions(np.random.default_rng(10), 60)
    held = np.stack([router.assigned_to(table, task) for task in range(3)])
    assert np.all(held.sum(axis=0) == 1)
    known = router_named(name, 3, SPACE, lambda: NOWHERE, costs=lambda: router_with(KopRouter).costs)
    assert known.describe()["costs_from"] == "sample"


@pytest.mark.parametrize("name", PLACING)
@pytest.mark.parametrize("mode", ["spatial", "spatial+text"])
def test_router_that_sends_all_to_all_refuses_signatures(name, mode):
    expected = f"router {name} sends every message to all .* use hashing or location"
    with pytest.raises(ConfigError, match=expected.replace("+", r"\+")):
        router_named(name, 2, SPACE, lambda: NOWHERE, mode)


def test_placement_says_what_each_task_has_to_bear():
    placer, alive, _ = some_rounds(router_with(DkmSksRouter), 11)
    told = placer.describe()
    assert told["placed"] == len(alive) and told["load_of_each_query_task"] == placer.ledger.load.tolist()
    assert told["router"] == "dkm-sks" and told["costs_from"] == "sample"


def test_every_kind_can_be_placed():
    table = draw_subscriptions(np.random.default_rng(12), 200)
    assert set(table.kind) == {kind.code for kind in KINDS}
    for which in ROUTERS:
        router = router_with(which, 4)
        assert np.all(np.stack([router.assigned_to(table, task) for task in range(4)]).sum(axis=0) == 1)
