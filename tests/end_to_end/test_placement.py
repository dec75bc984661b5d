"""Placement by cost against the oracle in one process: every router of it, live changes, pauses, and broken ones."""

import numpy as np
import pytest

from distribution import routers
from distribution.placed import DkmSksRouter
from distribution.routers import PLACING
from matching.errors import TopologyError
from matching.kinds import KINDS
from matching.model import BOOLEAN, SKYLINE, TOPK
from spouts.placing import PlacingSpout, read_first
from tests.support import skyline_topologies
from tests.support.covering import pairwise, tiered
from tests.support.etl_folder import random_rows, write_etl
from tests.support.placements import SPACE
from tests.support.skyline_topologies import SkylineWorld, router_of
from tests.support.skyline_worlds import Recipe as SkylineRecipe
from tests.support.topologies import broken_runs, differences, plan_of
from tests.support.worlds import Recipe, make_world, without_the_last
from topology.core.executors.local import pause_local, run_local
from topology.settings import RunConfig
from topology.wiring import build_plan

SETTINGS = {
    "router": PLACING,
    "query": (1, 2, 4, 7),
    "tuples": (1, 3),
    "distribution": (1, 2),
    "window": ("count:40", "time:30"),
    "batch": (1, 7, 40),
    "ranges": (0.0, 0.4),
}
CHURNING = Recipe(batch=10, messages=200, window="count:40", churn=0.9, subscriptions=60)


def delivery_of(report):
    return report.components["delivery"].tasks[0].figures


def held(report) -> list[int]:
    return [sum(task.figures["subscriptions"].values()) for task in report.components["query"].tasks]


@pytest.mark.parametrize("row", tiered(pairwise(SETTINGS), 3), ids=lambda row: "-".join(map(str, row.values())))
def test_placed_topology_every_pair_of_settings_equals_oracle(row):
    recipe = Recipe(window=row["window"], batch=row["batch"], messages=160, ranges=row["ranges"], grid=3, churn=0.7)
    world = make_world(recipe, 41)
    tasks = {name: row[name] for name in ("query", "tuples", "distribution")}
    report = run_local(plan_of(world, row["router"], 41, **tasks), seed=41)
    assert not differences(world, delivery_of(report))


@pytest.mark.parametrize("router", PLACING)
def test_placed_skylines_equal_oracle(router):
    recipe = SkylineRecipe("count:60", batches=12, batch=6, subscriptions=30, objects=15, deletes=0.1, churn=0.6)
    world = SkylineWorld(recipe, 42, (BOOLEAN, TOPK, SKYLINE))
    report = run_local(skyline_topologies.plan_of(world, router_of(router, 4), tuples=2, distribution=2), seed=42)
    assert not skyline_topologies.differences(world, delivery_of(report))
    assert len([count for count in held(report) if count]) > 1


@pytest.mark.parametrize("router", PLACING)
def test_loads_told_are_those_of_who_is_left(router):
    report = run_local(plan_of(make_world(CHURNING, 43), router, 43, query=4), seed=43)
    told = report.components["subscriptions"].tasks[0].figures["placement"]
    assert told["placed"] == sum(held(report)) and sum(told["load_of_each_query_task"]) > 0
    report = run_local(plan_of(without_the_last(make_world(CHURNING, 43)), router, 43, query=4), seed=43)
    told = report.components["subscriptions"].tasks[0].figures["placement"]
    assert sum(held(report)) == 0 and told["load_of_each_query_task"] == [0.0] * 4


# -- over files


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """An ETL folder, and subscriptions that come, are replaced and go."""
    path = tmp_path_factory.mktemp("placed")
    write_etl(path / "etl", random_rows(240, 12))
    rng, rows = np.random.default_rng(3), []
    kinds = [kind for kind in KINDS.run if kind.name in ("boolean", "topk", "skyline")]
    for number in range(90):
        kind = kinds[number % len(kinds)]
        words = [f"w{word}" for word in rng.choice(12, rng.integers(1, 4), replace=False)]
        lon, lat = float(rng.uniform(-100, 100)), float(rng.uniform(-60, 60))
        row = {"subscription_id": f"s{number % 60}", "kind": kind.name, "keywords": words}
        row |= {"at": 0 if number < 40 else int(rng.integers(1, 200))}
        if kind.place == "point":
            row |= {"lon": lon, "lat": lat, "k": 4, "alpha": 0.5}
        else:
            row["region"] = [lon - 60.0, lat - 30.0, lon + 60.0, lat + 30.0]
        rows.append(row)
    rows += [{"unsubscribe": f"s{number}", "at": 201 + number} for number in range(20)]
    (path / "subscriptions.jsonl").write_text("".join(str(row).replace("'", '"') + "\n" for row in rows))
    return path


def plan_over(folder, router, query=3, **more):
    out = folder / "out"
    out.mkdir(exist_ok=True)
    config = RunConfig(
        messages=folder / "etl", subscriptions=(folder / "subscriptions.jsonl",), out=out, window="count:50", batch=12,
        router=router, query_bolts=query, sink="count", **more,
    )  # fmt: skip
    return build_plan(config)


def told(report):
    return {name: delivery_of(report)[name] for name in ("digest", "updates", "results", "complete_through")}


@pytest.mark.parametrize("router", PLACING)
@pytest.mark.parametrize("sample", [100, 10_000], ids=["sample", "vocabulary"])
def test_digest_is_that_of_hashing_also_where_a_run_was_paused(folder, router, sample):
    wanted = told(run_local(plan_over(folder, "hashing")))
    assert min(wanted["updates"].values()) > 20
    plan = plan_over(folder, router, placement_sample=sample)
    whole = run_local(plan, seed=1)
    assert told(whole) == wanted
    figures = whole.components["subscriptions"].tasks[0].figures["placement"]
    assert figures["costs_from"] == ("sample" if sample == 100 else "vocabulary")
    saved = pause_local(plan, 6, seed=2)
    went_on = run_local(plan, seed=3, resume=saved)
    assert told(went_on) == wanted
    assert held(went_on) == held(whole), "the same tasks hold the same ones"
    after = went_on.components["subscriptions"].tasks[0].figures["placement"]
    assert after == figures
    # by more tasks, decided anew, and by fewer again, of which one is of another router
    saved = pause_local(plan_over(folder, router, 5, placement_sample=sample), 10, seed=4, resume=saved)
    other = run_local(plan_over(folder, "kop" if router != "kop" else "sop", 2), seed=5, resume=saved)
    assert told(other) == wanted
    placed = other.components["subscriptions"].tasks[0].figures["placement"]
    assert placed["placed"] == sum(held(other)) and min(held(other)) > 0
    assert told(run_local(plan_over(folder, "hashing", 2), resume=saved)) == wanted
    begun_by_hashing = pause_local(plan_over(folder, "hashing", 4), 8)
    assert told(run_local(plan, seed=6, resume=begun_by_hashing)) == wanted


def test_sample_is_the_first_messages_there_are(folder):
    assert read_first(folder / "etl", SPACE, 100).seq.tolist() == list(range(100))
    assert len(read_first(folder / "etl", SPACE, 1000)) == 240


# -- broken on purpose


class AsksItself(DkmSksRouter):
    """Broken: one task works out what it holds by itself, from the change list alone, the others go by what is told."""

    def assigned_in(self, changes, task):
        return super().assigned_in(changes, task) if task else self.assigned_to(changes.added, task)


class ForgetsInPart(DkmSksRouter):
    """Broken: where a run goes on, every other task takes no notice of what was decided."""

    def assigned_on_resume(self, table, task, told):
        return self.assigned_to(table, task) if task % 2 else super().assigned_on_resume(table, task, told)


class Silent(PlacingSpout):
    """Broken: places nobody."""

    def open(self, context):
        super().open(context)
        self.inner.open(context)


def test_owner_decided_by_each_task_is_found_out(monkeypatch):
    monkeypatch.setitem(routers._CLASSES, "dkm-sks", AsksItself)
    assert any(broken_runs(CHURNING, "dkm-sks", query=3))


def test_owner_forgotten_where_a_run_goes_on_is_found_out(folder, monkeypatch):
    wanted = told(run_local(plan_over(folder, "hashing")))
    saved = pause_local(plan_over(folder, "dkm-sks"), 12)
    monkeypatch.setitem(routers._CLASSES, "dkm-sks", ForgetsInPart)
    assert told(run_local(plan_over(folder, "dkm-sks"), resume=saved)) != wanted


def test_changes_that_nobody_placed_stop_the_run(monkeypatch):
    monkeypatch.setattr("topology.wiring.PlacingSpout", Silent)
    with pytest.raises(TopologyError, match="has no owners for its subscriptions"):
        run_local(plan_of(make_world(CHURNING, 44), "sop", 44))
