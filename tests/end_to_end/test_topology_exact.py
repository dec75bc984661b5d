"""The whole topology over random worlds, in one process with seeded interleavings, against the oracle."""

from dataclasses import replace

import numpy as np
import pytest

from distribution.location import LocationRouter, LocationTable
from distribution.parts import CELLS_A_SIDE
from distribution.router import RoutingTable
from matching.kind_table import Kinds
from matching.kinds import KINDS
from matching.model import BOOLEAN, KEYWORDS_BY_KIND, TOPK, MessageBatch, Removals, SubscriptionTable, take_rows
from matching.topk import thresholds
from matching.topk.operator import TopkOperator
from tests.support.covering import tiered
from tests.support.topologies import broken_runs, differences, plan_of, with_lines
from tests.support.worlds import SPACE, Recipe, make_world
from topology.core.executors.local import run_local

WINDOWS = ("count:50", "time:40", "count:9", "time:15")


def run_random(seed: int) -> tuple[str, dict]:
    """A random world on a random topology under a random interleaving, all from one seed."""
    rng = np.random.default_rng(seed)
    recipe = Recipe(
        window=str(rng.choice(WINDOWS)),
        batch=int(rng.choice([1, 5, 20, 70])),
        messages=int(rng.choice([60, 200])),
        grid=[None, 3][rng.integers(2)],
        ranges=float(rng.choice([0.0, 0.3])),
        terms=int(rng.choice([4, 12, 30])),
        alphas=[(), (0.9, 1.0)][rng.integers(2)],
    )
    world = make_world(recipe, seed)
    plan = plan_of(
        world,
        str(rng.choice(["hashing", "location", "keyword", "prefix"])),
        seed,
        *(int(rng.choice(choices)) for choices in ([1, 2, 4, 8], [1, 3], [1, 2], [1, 2], [1, 2, 4, 8])),
    )
    figures = run_local(plan, seed=seed).components["delivery"].tasks[0].figures
    return differences(world, figures), figures


@pytest.mark.parametrize("first", tiered(range(0, 200, 25), 8))
def test_topology_random_configurations_equal_oracle(first):
    late = 0
    for seed in range(first, first + 25):
        told, figures = run_random(seed)
        assert not told, f"seed {seed}: {told}"
        late += figures["late"]
    assert late > 300, "refills that are never late do not test the protocol"


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_topology_a_thousand_interleavings_equal_oracle():
    for seed in range(1000, 2000):
        told, _ = run_random(seed)
        assert not told, f"seed {seed}: {told}"


REFILLING = Recipe(batch=5, messages=200, window="count:30")
#: Place decides, so that the routers' thresholds keep many messages back.
LOCAL = Recipe(
    batch=2,
    messages=400,
    window="count:40",
    terms=3,
    alphas=(0.9, 1.0),
    kinds=(1,),
    largest_k=2,
    subscriptions=12,
    churn=0,
)


@pytest.fixture
def tight_thresholds(monkeypatch):
    """Thresholds at the k-th score after every batch: refills all the time, and routers that keep much back."""
    monkeypatch.setitem(thresholds.RULES, thresholds.DEFAULT, lambda: thresholds.RankRule(1.0, 1.0, 0))


@pytest.mark.usefixtures("tight_thresholds")
def test_topology_with_tight_thresholds_equals_oracle():
    for seed in range(100, 120):
        told, _ = run_random(seed)
        assert not told, f"seed {seed}: {told}"


@pytest.mark.usefixtures("tight_thresholds")
def test_topology_where_place_decides_equals_oracle():
    assert not any(broken_runs(LOCAL, "location", query=4, distribution=2, credits=8))


class NoBarrier(TopkOperator):
    """Broken: asks the window at once, without relaxing the routers first."""

    def __init__(self, engine, site):
        super().__init__(engine, replace(site, relaxes=False))


def with_capacity(monkeypatch, broken) -> None:
    """Have `topk` matched by a broken operator."""
    kinds = Kinds([replace(kind, operator=broken) if kind.code == 1 else kind for kind in KINDS])
    monkeypatch.setattr("tests.support.topologies.KINDS", kinds)


@pytest.mark.usefixtures("tight_thresholds")
def test_topology_without_relaxing_routers_first_is_found_out(monkeypatch):
    with_capacity(monkeypatch, NoBarrier)
    # several distribution tasks: batches are under way that were routed by the old thresholds
    assert any(broken_runs(LOCAL, "location", runs=24, query=4, distribution=4, credits=8))


class ForgetsHitsInBetween(TopkOperator):
    """Broken: what a pending subscription hits while it waits is thrown away."""

    def __init__(self, engine, site):
        super().__init__(engine, site)
        defer = self.refills.defer
        self.refills.defer = lambda news: defer(  # type: ignore[method-assign]
            news._replace(offers=take_rows(news.offers, np.zeros(0, np.int64)))
        )


def test_topology_that_forgets_hits_of_pending_subscriptions_is_found_out(monkeypatch):
    with_capacity(monkeypatch, ForgetsHitsInBetween)
    assert any(broken_runs(REFILLING, "hashing", query=2, tuples=3, credits=8))


def test_location_table_raise_of_an_older_version_is_ignored():
    """A raise sent before a relax but taken for a later one would lose results."""
    table = LocationRouter(2, SPACE, np.zeros(1), np.zeros(1)).table()
    assert isinstance(table, LocationTable)
    world = make_world(Recipe(), 0)
    added = world.batches[0][2].added
    table.change(added, world.batches[0][2].removed)
    topk = added.number[added.kind == 1]
    table.relax(topk, np.ones(topk.size, np.int64))
    table.raise_thresholds(topk, np.zeros(topk.size, np.int64), np.full(topk.size, 2.0))
    assert np.all(table.subscriptions.columns.threshold[table.subscriptions.find(topk)] == -np.inf)
    table.raise_thresholds(topk, np.ones(topk.size, np.int64), np.full(topk.size, 2.0))
    assert np.all(table.subscriptions.columns.threshold[table.subscriptions.find(topk)] == 2.0)


def test_location_table_sends_what_is_near_across_a_border():
    """Beside a border, however long it is sought for, a message scores more than the distance of the cells allows."""
    tasks, hair = 16, 1e-4 / CELLS_A_SIDE
    centres = (np.arange(CELLS_A_SIDE) + 0.5) / CELLS_A_SIDE
    router = LocationRouter(tasks, SPACE, np.tile(centres, CELLS_A_SIDE), np.repeat(centres, CELLS_A_SIDE))
    owner = router.owner.reshape(CELLS_A_SIDE, CELLS_A_SIDE)
    row, column = np.nonzero(owner[:, :-1] != owner[:, 1:])
    y, border = centres[row], (column + 1) / CELLS_A_SIDE
    count = row.size
    number, one = np.arange(count), np.ones(count, np.float32)
    offsets, nowhere = np.arange(count + 1), np.full((count, 4), np.nan)
    rows = SubscriptionTable(
        number, np.full(count, TOPK, np.int8), np.zeros(count, np.int64), border + hair, y, nowhere,
        np.full(count, KEYWORDS_BY_KIND, np.int8), np.ones(count, np.int32), np.ones(count), offsets,
        number.astype(np.int32), one,
    )  # fmt: skip
    table = router.table()
    table.change(rows, Removals(number[:0], rows.kind[:0], number[:0]))
    score = 1.0 - 2 * hair / SPACE.max_distance
    assert score > 0.9998
    table.raise_thresholds(number, np.zeros(count, np.int64), np.full(count, score))
    lon, lat = (border - hair) * 360.0 - 180.0, y * 360.0 - 90.0
    sides = (lon, lat, lon, lat)
    sent = table.route(
        MessageBatch(number, border - hair, y, *sides, number, offsets, number.astype(np.int32), one)
    )  # fmt: skip
    held = owner[row, column + 1]
    assert count > 100
    assert [i for i in range(count) if i not in sent[held[i]]] == []


def test_location_pair_that_touches_at_the_antimeridian_is_told_by_exactly_one():
    """A message whose east is the west of a region across the antimeridian meets it there, and nowhere else."""
    centres = (np.arange(CELLS_A_SIDE) + 0.5) / CELLS_A_SIDE
    router = LocationRouter(64, SPACE, np.tile(centres, CELLS_A_SIDE), np.repeat(centres, CELLS_A_SIDE))
    region = np.array([[170.0, -10.0, -170.0, 10.0]])
    rows = SubscriptionTable(
        np.zeros(1, np.int64), np.full(1, BOOLEAN, np.int8), np.zeros(1, np.int64), np.full(1, np.nan),
        np.full(1, np.nan), region, np.full(1, KEYWORDS_BY_KIND, np.int8), np.zeros(1, np.int32), np.full(1, np.nan),
        np.array([0, 1]), np.zeros(1, np.int32), np.ones(1, np.float32),
    )  # fmt: skip
    for west, east in ((100.0, 170.0), (-180.0, -170.0), (-180.0, 180.0), (-170.0, 175.0), (-170.0, 100.0)):
        sides = (np.full(1, west), np.full(1, -5.0), np.full(1, east), np.full(1, 5.0))
        one = np.zeros(1, np.int64)
        message = MessageBatch(one, np.full(1, 0.5), np.full(1, 0.5), *sides, one, *rows[-3:])
        told = [
            task
            for task in range(64)
            if router.assigned_to(rows, task)[0]
            and len(router.box_rows(message, task))
            and router.owned_pairs(region, message, np.zeros(1, np.int32), task)[0]
        ]
        assert len(told) == 1, (west, east)


@pytest.mark.parametrize("router", ["hashing", "location"])
def test_topology_lines_and_world_wide_messages_equal_oracle(router):
    for grid in (None, 3):
        recipe = Recipe(ranges=0.5, grid=grid, kinds=(BOOLEAN, TOPK), subscriptions=80, messages=160, terms=9)
        world = with_lines(make_world(recipe, 24))
        figures = run_local(plan_of(world, router, 24, query=5), seed=24).components["delivery"].tasks[0].figures
        assert not differences(world, figures)


class SendsNothingFar(LocationRouter):
    """Broken: sends top-k messages to the owner of their place only."""

    def table(self) -> RoutingTable:
        table = super().table()
        assert isinstance(table, LocationTable)
        table._least = np.full_like(table._least, np.inf)
        table._lower = lambda slots: None  # type: ignore[attr-defined]
        return table


@pytest.mark.wide
def test_topology_that_keeps_far_messages_back_is_found_out(monkeypatch):
    monkeypatch.setattr("tests.support.topologies.LocationRouter", SendsNothingFar)
    assert any(broken_runs(LOCAL, "location", query=4))


def test_topology_range_messages_are_told_once_whoever_finds_them():
    world = make_world(Recipe(ranges=0.8, kinds=(0,), subscriptions=120), 5)
    figures = run_local(plan_of(world, "location", 5, query=4), seed=5).components["delivery"].tasks[0].figures
    assert not differences(world, figures)


def test_location_router_sends_fewer_messages_than_hashing():
    world = make_world(Recipe(messages=2000, batch=100, terms=200, subscriptions=100, window="count:500", churn=0), 3)
    sent = {}
    for router in ("hashing", "location"):
        report = run_local(plan_of(world, router, 3, query=4))
        assert not differences(world, report.components["delivery"].tasks[0].figures)
        sent[router] = sum(report.components["distribution"].tasks[0].figures["sent_to_each_query_task"])
    assert sent["location"] < sent["hashing"]
