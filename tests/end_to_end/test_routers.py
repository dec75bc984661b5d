"""Routers against the oracle in one process: every pair of settings, broken protocols, and changes in mid-stream."""

from dataclasses import replace

import numpy as np
import pytest

from bolts.distribution import DistributionBolt
from bolts.exchange import Exchange
from distribution.keyword import KeywordRouter, KeywordTable, PrefixRouter
from matching.errors import TopologyError
from matching.kind_table import Kinds
from matching.kinds import KINDS
from matching.model import ANY_KEYWORD, BOOLEAN, KEYWORDS_BY_KIND, TOPK, Removals, SubscriptionTable, concatenate
from matching.operator import OperatorContext, Thresholds
from matching.storage.point_subscriptions import PointSubscriptions
from matching.storage.prefixes import prefix_lengths, task_of_term
from matching.topk import thresholds
from matching.topk.operator import TopkOperator
from matching.topk.replicas import Replicas
from matching.window import Window
from tests.support.covering import pairwise, tiered
from tests.support.topologies import broken_runs, differences, plan_of
from tests.support.worlds import SPACE, Recipe, World, make_world, without_the_last
from topology.core.executors.local import run_local

SETTINGS = {
    "router": ("hashing", "location", "keyword", "prefix"),
    "query": (1, 2, 4, 8),
    "tuples": (1, 3),
    "distribution": (1, 2),
    "window": ("count:40", "time:30"),
    "batch": (1, 7, 40),
    "engine": tuple(KINDS.named("topk").engines),
}
BOOLEAN_SETTINGS = {
    "engine": tuple(KINDS.named("boolean").engines),
    "router": ("hashing", "location", "keyword", "prefix"),
    "query": (1, 2, 4, 8),
    "distribution": (1, 2),
    "ranges": (0.0, 0.5),
    "batch": (1, 7, 40),
}
#: Few terms and high k: buffers run short all the time, and terms are shared.
REFILLING = Recipe(batch=5, messages=200, window="count:30", terms=6, kinds=(TOPK,), churn=0.3)
#: Text decides, so that prefixes are short.
WORDY = Recipe(
    batch=5, messages=300, window="count:60", terms=8, kinds=(TOPK,), alphas=(0.0, 0.1), largest_k=2, churn=0
)


@pytest.mark.parametrize(
    "row",
    tiered(pairwise(SETTINGS), 3, plain={"engine": SETTINGS["engine"][0]}),
    ids=lambda row: "-".join(map(str, row.values())),
)
def test_topology_every_pair_of_settings_equals_oracle(row):
    recipe = Recipe(window=row["window"], batch=row["batch"], messages=160, ranges=0.2, grid=3, terms=9)
    world = make_world(recipe, 21)
    tasks = {name: row[name] for name in ("query", "tuples", "distribution")}
    plan = plan_of(world, row["router"], 21, engines={"topk": row["engine"]}, **tasks)
    assert not differences(world, run_local(plan, seed=21).components["delivery"].tasks[0].figures)


@pytest.mark.parametrize(
    "row",
    tiered(pairwise(BOOLEAN_SETTINGS), 3, plain={"engine": BOOLEAN_SETTINGS["engine"][0]}),
    ids=lambda row: "-".join(map(str, row.values())),
)
def test_topology_every_pair_of_boolean_settings_equals_oracle(row):
    recipe = Recipe(
        batch=row["batch"], messages=160, ranges=row["ranges"], subscriptions=120, grid=6, terms=9, kinds=(BOOLEAN,)
    )
    world = make_world(recipe, 22)
    tasks = {name: row[name] for name in ("query", "distribution")}
    plan = plan_of(world, row["router"], 22, engines={"boolean": row["engine"]}, **tasks)
    assert not differences(world, run_local(plan, seed=22).components["delivery"].tasks[0].figures)


def with_any(world: World) -> World:
    """The world, with one keyword being enough for every other boolean subscription."""
    for place, (boundary, messages, changes) in enumerate(world.batches):
        rows = changes.added
        loose = (rows.kind == BOOLEAN) & (rows.number % 2 == 0)
        match = np.where(loose, ANY_KEYWORD, KEYWORDS_BY_KIND).astype(np.int8)
        rows = SubscriptionTable(**(rows._asdict() | {"match": match}))
        world.batches[place] = (boundary, messages, changes._replace(added=rows))
    return world


@pytest.mark.parametrize("router", ["hashing", "location", "dkm-sks"])
def test_topology_any_of_the_keywords_equals_oracle(router):
    recipe = Recipe(messages=160, ranges=0.4, subscriptions=80, grid=6, kinds=(BOOLEAN,))
    world = with_any(make_world(recipe, 23))
    plan = plan_of(world, router, 23, query=3, distribution=2)
    assert not differences(world, run_local(plan, seed=23).components["delivery"].tasks[0].figures)


@pytest.mark.parametrize("router", ["keyword", "prefix"])
def test_router_by_keyword_refuses_any_of_the_keywords(router):
    world = with_any(make_world(Recipe(kinds=(BOOLEAN,)), 23))
    with pytest.raises(TopologyError, match="use --router hashing or location"):
        run_local(plan_of(world, router, 23), seed=23)


@pytest.fixture
def tight_thresholds(monkeypatch):
    """Thresholds at the k-th score after every batch: refills all the time, prefixes that shrink and grow."""
    monkeypatch.setitem(thresholds.RULES, thresholds.DEFAULT, lambda: thresholds.RankRule(1.0, 1.0, 0))


@pytest.mark.usefixtures("tight_thresholds")
@pytest.mark.parametrize("router", ["keyword", pytest.param("prefix", marks=pytest.mark.wide)])
def test_replicas_with_tight_thresholds_equal_oracle(router):
    for recipe in (REFILLING, WORDY):
        assert not any(broken_runs(recipe, router, query=4, tuples=3, distribution=2, credits=8))


# -- broken on purpose


class NoBarrier(TopkOperator):
    """Broken: asks for the window at once, while replicas still hold the old threshold."""

    def __init__(self, engine, site):
        super().__init__(engine, replace(site, relaxes=False))


class NoVersion(TopkOperator):
    """Broken: takes every new threshold, even one that was sent before the last relax."""

    def raise_thresholds(self, raised):
        super().raise_thresholds(raised._replace(version=np.full(raised.version.size, 2**62)))


class ClosesEarly(Exchange):
    """Broken: does not wait for the hits of other tasks, and takes them with the next batch."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.held_back = {}

    def receive(self, found, sender):
        earlier = self.held_back.get(sender, found._replace(body=found.body._make(c[:0] for c in found.body)))
        self.held_back[sender] = found
        super().receive(found._replace(body=earlier.body), sender)


class RegistersLate(DistributionBolt):
    """Broken: answers a relax without registering the replicas again."""

    def _relax(self, asked):
        replicates, self.router.replicates = self.router.replicates, False
        super()._relax(asked)
        self.router.replicates = replicates


class EveryTermOwns(Replicas):
    """Broken: every replica indexes all terms, so a pair is found wherever it meets."""

    def _posted(self, table, length):
        whole = super()._posted(table, length)
        mine = np.add.reduceat(np.append(whole, False), table.term_offsets[:-1]) > 0
        return np.repeat(mine, np.diff(table.term_offsets))


@pytest.mark.usefixtures("tight_thresholds")
@pytest.mark.parametrize(
    ("where", "broken", "router"),
    [
        ("topk", NoBarrier, "keyword"),
        ("topk", NoVersion, "keyword"),
        ("bolts.query.Exchange", ClosesEarly, "keyword"),
        ("topology.wiring.DistributionBolt", RegistersLate, "prefix"),
        ("matching.topk.operator.Replicas", EveryTermOwns, "keyword"),
    ],
)
def test_broken_protocol_is_found_out(monkeypatch, where, broken, router):
    if where == "topk":
        kinds = Kinds([replace(kind, operator=broken) if kind.name == where else kind for kind in KINDS])
        monkeypatch.setattr("tests.support.topologies.KINDS", kinds)
    else:
        monkeypatch.setattr(where, broken)
    assert any(broken_runs(REFILLING, router, query=4, tuples=3, distribution=2, credits=8))


# -- what a router holds


def prefix_of(rows: SubscriptionTable, thresholds) -> np.ndarray:
    store = PointSubscriptions()
    slots = store.insert(rows)
    store.columns.threshold[slots] = thresholds
    return prefix_lengths(store.columns, slots)


def test_prefix_length_is_the_least_that_loses_no_pair():
    """Three equal weights: behind p terms at most sqrt((3 - p) / 3) of the text is left."""
    weights = np.full(3, 3**-0.5, np.float32)
    row = SubscriptionTable(
        np.zeros(1, np.int64), np.full(1, TOPK, np.int8), np.zeros(1, np.int64), np.zeros(1), np.zeros(1),
        np.full((1, 4), np.nan), np.full(1, KEYWORDS_BY_KIND, np.int8), np.ones(1, np.int32), np.zeros(1),
        np.array([0, 3]), np.arange(3, dtype=np.int32), weights,
    )  # fmt: skip
    for threshold, length in ((-np.inf, 3), (0.57, 3), (0.58, 2), (0.81, 2), (0.82, 1), (0.99, 1), (1.01, 0)):
        assert prefix_of(row, threshold).tolist() == [length], threshold


def random_rows(count: int, seed: int) -> SubscriptionTable:
    world = make_world(Recipe(subscriptions=count, kinds=(TOPK,), terms=40), seed)
    return world.batches[0][2].added


def test_replicas_hold_each_term_at_one_task_and_forget_everything():
    rows, tasks = random_rows(200, 1), 3
    engine, window = KINDS.named("topk").engine(), Window("count", 10)
    sites = [OperatorContext(SPACE, window, task, tasks, replicates=True, prefix_only=True) for task in range(tasks)]
    held = [Replicas(engine(SPACE), site) for site in sites]
    for replicas in held:
        replicas.add(rows, rows.number % tasks)
        mine = task_of_term(rows.terms, tasks) == replicas.task
        wanted = np.unique(rows.number[np.repeat(np.arange(len(rows)), np.diff(rows.term_offsets))[mine]])
        assert np.array_equal(np.sort(rows.number[replicas.engine.contains(rows.number)]), wanted)
    total = sum(map(len, held))
    first, second = np.zeros(len(rows), np.int64), np.ones(len(rows), np.int64)
    for replicas in held:
        replicas.raise_thresholds(Thresholds(rows.number, first, np.full(len(rows), 0.95)))
    assert sum(map(len, held)) < total, "prefixes must have become shorter somewhere"
    for replicas in held:
        replicas.relax(0, rows.number, second, rows)
        replicas.raise_thresholds(Thresholds(rows.number, first, np.full(len(rows), 5.0)))  # late, of the older version
        here = replicas.engine.subscriptions.find(rows.number)
        assert np.all(replicas.engine.subscriptions.columns.threshold[here[here >= 0]] == -np.inf)
    assert sum(map(len, held)) == total
    for replicas in held:
        replicas.remove(rows.number)
        assert len(replicas) == 0


def test_keyword_table_counts_registrations_back_to_nothing():
    rows = make_world(Recipe(subscriptions=150, terms=30), 2).batches[0][2].added
    nobody = Removals(np.zeros(0, np.int64), np.zeros(0, np.int8), np.zeros(0, np.int64))
    for router in (KeywordRouter(4), PrefixRouter(4)):
        table = router.table()
        assert isinstance(table, KeywordTable)
        table.change(rows, nobody)
        assert table._registered.sum() > 0
        topk = rows.number[rows.kind == TOPK]
        table.raise_thresholds(topk, np.zeros(topk.size, np.int64), np.full(topk.size, 0.9))
        table.relax(topk[::2], np.ones(topk[::2].size, np.int64))
        none = rows.take(np.zeros(0, np.int64))
        table.change(none, Removals(rows.number, rows.kind, np.zeros(len(rows), np.int64)))
        assert table._registered.sum() > 0, "boolean ones match up to the seq of their removal"
        table.change(none, nobody)
        assert table._registered.sum() == 0 and len(table.subscriptions) == 0


@pytest.mark.parametrize("router", ["hashing", "location", "keyword", "prefix"])
def test_removed_subscriptions_leave_nothing_behind(router):
    world = without_the_last(make_world(Recipe(window="count:40", batch=10, messages=200), 4))
    report = run_local(plan_of(world, router, 4, query=4, distribution=2), seed=4)
    assert not differences(world, report.components["delivery"].tasks[0].figures)
    for task in report.components["query"].tasks:
        assert not any(task.figures["subscriptions"].values())
        assert task.figures["operators"]["topk"].get("replicas_held", 0) == 0


@pytest.mark.usefixtures("tight_thresholds")
@pytest.mark.parametrize("router", ["keyword", "prefix"])
def test_replicas_of_removed_subscriptions_do_not_come_back_by_late_registrations(router):
    """Three distribution tasks relax at different times, some of them before they know who has gone."""
    held = 0
    for seed in range(4):
        world = without_the_last(make_world(replace(REFILLING, churn=0.9), seed))
        plan = plan_of(world, router, seed, query=4, tuples=2, distribution=3, credits=8)
        report = run_local(plan, seed=seed)
        assert not differences(world, report.components["delivery"].tasks[0].figures)
        operators = [task.figures["operators"]["topk"] for task in report.components["query"].tasks]
        held += sum(operator["replicas_held"] for operator in operators)
    assert held == 0


def with_a_crowd(world: World, crowd: SubscriptionTable) -> World:
    """The world, with a crowd that comes in its fifth batch and goes in its ninth."""
    batches = list(world.batches)
    for place, comes in ((4, True), (8, False)):
        boundary, messages, changes = batches[place]
        rows = crowd._asdict() | {"at": np.full(len(crowd), boundary.first_seq)}
        gone = Removals(crowd.number, crowd.kind, np.full(len(crowd), boundary.last_seq))
        removed = Removals(*(np.concatenate(pair) for pair in zip(changes.removed, gone, strict=True)))
        added = concatenate([changes.added, SubscriptionTable(**rows)])
        changes = changes._replace(added=added) if comes else changes._replace(removed=removed)
        batches[place] = (boundary, messages, changes)
    return World(world.recipe, world.window, batches)


@pytest.mark.parametrize("router", ["hashing", "prefix"])
def test_thousands_of_changes_in_mid_stream_change_no_other_result(router):
    world = make_world(Recipe(window="count:100", batch=20, messages=300, churn=0), 6)
    rows = random_rows(3_000, 7)
    crowd = SubscriptionTable(**(rows._asdict() | {"number": rows.number + 1_000_000}))
    updates = []
    for each in (world, with_a_crowd(world, crowd)):
        figures = run_local(plan_of(each, router, 6, query=2)).components["delivery"].tasks[0].figures
        told = [row for row in zip(*figures["updates"], strict=True) if row[1] < 1_000_000]
        updates.append(sorted(map(str, told)))  # as text: NaN is a score too
        crowd_told = len(figures["updates"][0]) - len(told)
    assert not differences(world, run_local(plan_of(world, router, 6)).components["delivery"].tasks[0].figures)
    assert updates[0] == updates[1]
    assert crowd_told > 10_000


def test_prefix_router_replicates_and_sends_less_than_keyword():
    world = make_world(
        Recipe(messages=2000, batch=100, terms=60, subscriptions=200, window="count:500", churn=0, alphas=(0.1,)),
        3,
    )
    measured = {}
    for router in ("hashing", "keyword", "prefix"):
        report = run_local(plan_of(world, router, 3, query=8))
        assert not differences(world, report.components["delivery"].tasks[0].figures)
        sent = sum(report.components["distribution"].tasks[0].figures["sent_to_each_query_task"])
        operators = [task.figures["operators"]["topk"] for task in report.components["query"].tasks]
        held = sum(operator.get("replicas_held", operator["homed"]) for operator in operators)
        measured[router] = (held, sent)
    assert measured["hashing"][0] < measured["prefix"][0] < measured["keyword"][0]
    assert measured["prefix"][1] <= measured["keyword"][1] < measured["hashing"][1]
