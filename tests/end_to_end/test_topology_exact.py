"""The whole topology over random worlds, in one process with seeded interleavings, against the oracle."""

from dataclasses import replace

import numpy as np
import pytest

from distribution.location import LocationRouter, LocationTable
from distribution.router import RoutingTable
from matching.kind_table import Kinds
from matching.kinds import KINDS
from matching.model import take_rows
from matching.topk import thresholds
from matching.topk.room import TopkRoom
from tests.support.covering import tiered
from tests.support.topologies import broken_runs, differences, plan_of
from tests.support.worlds import SPACE, Recipe, make_world
from topology.core.local import run_local

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


@pytest.mark.parametrize("first", tiered(range(0, 200, 50), 4))
@pytest.mark.timeout(300)
def test_topology_random_configurations_equal_oracle(first):
    late = 0
    for seed in range(first, first + 50):
        told, figures = run_random(seed)
        assert not told, f"seed {seed}: {told}"
        late += figures["late"]
    assert late > 600, "refills that are never late do not test the protocol"


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


class NoBarrier(TopkRoom):
    """Broken: asks the window at once, without relaxing the routers first."""

    def __init__(self, engine, site):
        super().__init__(engine, replace(site, relaxes=False))


def with_room(monkeypatch, broken) -> None:
    """Have `topk` matched by a broken room."""
    kinds = Kinds([replace(kind, room=broken) if kind.code == 1 else kind for kind in KINDS])
    monkeypatch.setattr(f"{__name__}.KINDS", kinds)


@pytest.mark.usefixtures("tight_thresholds")
def test_topology_without_relaxing_routers_first_is_found_out(monkeypatch):
    with_room(monkeypatch, NoBarrier)
    assert any(broken_runs(LOCAL, "location", query=4, distribution=2, credits=8))


class ForgetsHitsInBetween(TopkRoom):
    """Broken: what a pending subscription hits while it waits is thrown away."""

    def __init__(self, engine, site):
        super().__init__(engine, site)
        defer = self.pending.defer
        self.pending.defer = lambda news: defer(  # type: ignore[method-assign]
            news._replace(offers=take_rows(news.offers, np.zeros(0, np.int64)))
        )


def test_topology_that_forgets_hits_of_pending_subscriptions_is_found_out(monkeypatch):
    with_room(monkeypatch, ForgetsHitsInBetween)
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


class SendsNothingFar(LocationRouter):
    """Broken: sends top-k messages to the owner of their place only."""

    def table(self) -> RoutingTable:
        table = super().table()
        assert isinstance(table, LocationTable)
        table._least = np.full_like(table._least, np.inf)
        table._lower = lambda slots: None  # type: ignore[attr-defined]
        return table


def test_topology_that_keeps_far_messages_back_is_found_out(monkeypatch):
    monkeypatch.setattr(f"{__name__}.LocationRouter", SendsNothingFar)
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
