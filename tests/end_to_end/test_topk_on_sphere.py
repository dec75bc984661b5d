"""`topk` on the sphere through the whole topology: routers, refills, replicas, pauses; radii are filters, too."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distribution.location import LocationRouter, LocationTable
from distribution.parts import CELLS_A_SIDE
from distribution.routers import PLACING
from matching.filter_programs import joined_programs, program_of
from matching.filters import circle_instruction
from matching.kind_table import Kinds
from matching.kinds import KINDS
from matching.model import BOOLEAN, TOPK, MessageBatch, Removals, SubscriptionTable, empty
from matching.space import Space
from matching.topk import thresholds
from matching.topk.replicas import HomeEngine
from tests.support.etl_folder import random_rows, write_etl
from tests.support.topk_tables import messages_of, table_of, with_exact_thresholds
from tests.support.topologies import differences, plan_of
from tests.support.worlds import Recipe, World, make_world
from topology.core.executors.local import pause_local, run_local
from topology.settings import RunConfig
from topology.wiring import build_plan

TWO_KINDS = Kinds([KINDS[BOOLEAN], KINDS[TOPK]])
BY_KEYWORD = ("keyword", "prefix")
ROUTERS = ("hashing", "location", *BY_KEYWORD, *PLACING)
#: Few words, short windows: buffers run short all the time.
REFILLING = Recipe(batch=5, messages=200, window="count:30", terms=5, kinds=(TOPK,), sphere=True, radii=0.5)
#: Place decides, so that routers keep many messages back.
LOCAL = Recipe(
    batch=2, messages=300, window="count:40", terms=3, alphas=(0.9, 1.0), kinds=(TOPK,), largest_k=2,
    subscriptions=12, churn=0, sphere=True, radii=0.4,
)  # fmt: skip


@pytest.fixture
def tight_thresholds(monkeypatch):
    """Thresholds at the k-th score after every batch: refills all the time, and routers that keep much back."""
    monkeypatch.setitem(thresholds.RULES, thresholds.DEFAULT, lambda: thresholds.RankRule(1.0, 1.0, 0))


def with_circles(world: World) -> World:
    """The world as the gate admits it: radii are filters, too."""
    for place, (boundary, messages, changes) in enumerate(world.batches):
        rows, programs = changes.added, []
        z = np.degrees(np.arcsin(np.clip(rows.vector[:, 2], -1, 1)))
        lon = np.degrees(np.arctan2(rows.vector[:, 1], rows.vector[:, 0]))
        for row, radius_m in enumerate(rows.radius_m.tolist()):
            circle = [] if np.isnan(radius_m) else [circle_instruction(float(lon[row]), float(z[row]), radius_m)]
            programs.append(program_of(circle))
        offsets, words = joined_programs(programs)
        rows = SubscriptionTable(**(rows._asdict() | {"filter_offsets": offsets, "filter_words": words}))
        world.batches[place] = (boundary, messages, changes._replace(added=rows))
    return world


def outcome(world: World, router: str, seed: int, **tasks) -> str:
    plan = plan_of(world, router, seed, kinds=TWO_KINDS, **tasks)
    return differences(world, run_local(plan, seed=seed).components["delivery"].tasks[0].figures)


@pytest.mark.parametrize("router", ROUTERS)
def test_topology_on_the_sphere_equals_oracle(router):
    kinds, compared = (TOPK,) if router in BY_KEYWORD else (BOOLEAN, TOPK), 0
    for seed, window in enumerate(("count:40", "time:30", "count:12")):
        recipe = Recipe(
            window, 160, (20, 7, 40)[seed], terms=9, grid=(None, 6, 2)[seed], kinds=kinds, sphere=True, radii=0.5
        )  # fmt: skip
        world = with_circles(make_world(recipe, seed))
        assert not outcome(world, router, seed, query=3, tuples=2, distribution=2), f"seed {seed}"
        compared += sum(each.total() for each in world.expected()[0])
    assert compared > 500


@pytest.mark.usefixtures("tight_thresholds")
@pytest.mark.parametrize("router", ["location", *BY_KEYWORD])
@pytest.mark.parametrize("recipe", [REFILLING, LOCAL], ids=["refilling", "local"])
def test_topology_on_the_sphere_with_tight_thresholds_equals_oracle(router, recipe):
    compared = 0
    for seed in range(2):
        world = make_world(recipe, seed)
        assert not outcome(world, router, seed, query=4, tuples=3, distribution=2, credits=8), f"seed {seed}"
        compared += sum(each.total() for each in world.expected()[0])
    assert compared > 200


def test_location_router_on_the_sphere_keeps_messages_back():
    world, sent = make_world(LOCAL, 0), {}
    for router in ("hashing", "location"):
        report = run_local(plan_of(world, router, 0, query=4, kinds=TWO_KINDS), seed=0)
        sent[router] = sum(report.components["distribution"].tasks[0].figures["sent_to_each_query_task"])
    assert sent["location"] < 0.9 * sent["hashing"]


# -- bounds of the location router

SPACES = {
    "earth": Space(-180.0, -90.0, 180.0, 90.0, distance="sphere"),
    "pole": Space(-180.0, 60.0, 180.0, 90.0, distance="sphere"),
    "east": Space(0.0, -90.0, 180.0, 90.0, distance="sphere"),
    "town": Space(13.0, 52.3, 13.8, 52.7, distance="sphere"),
}


def inside(rng, space: Space, table):
    """The rows of a table at points of a space, half of them on borders of cells or of the space, in few places."""
    rows = len(table)
    low, high = np.array([[space.west], [space.south]]), np.array([[space.east], [space.north]])
    place = rng.uniform(low, high, (2, rows))
    side = max(space.east - space.west, space.north - space.south) / CELLS_A_SIDE
    steps = low + side * rng.choice([0, 1, 2, CELLS_A_SIDE // 2, CELLS_A_SIDE], (2, rows))
    lon, lat = np.where(rng.random(rows) < 0.5, np.minimum(steps, high), place)
    x, y = space.project(lon, lat)
    columns = {"x": x, "y": y, "vector": space.vectors(lon, lat)}
    if isinstance(table, MessageBatch):
        columns |= {"west": lon, "south": lat, "east": lon, "north": lat}
    else:
        own = np.exp(rng.uniform(np.log(1.0), np.log(2e7), rows))
        columns["radius_m"] = np.where(rng.random(rows) < 0.5, own, np.nan)
    return type(table)(**(table._asdict() | columns))


def dropped(space: Space, seed: int, made: type[LocationRouter] = LocationRouter) -> tuple[int, int]:
    """Pairs that reach a threshold, thresholds being exact scores, and how many of them the router does not send."""
    rng = np.random.default_rng(seed)
    table = inside(rng, space, table_of(rng, 0, 60, terms=30))
    table = SubscriptionTable(**(table._asdict() | {"alpha": rng.choice([0.9, 1.0], 60)}))
    batch = inside(rng, space, messages_of(rng, 90, terms=30))
    home = HomeEngine(space)
    slots = home.insert(table)
    pairs = with_exact_thresholds(rng, home, batch, slots)
    around = space.project(rng.uniform(space.west, space.east, 300), rng.uniform(space.south, space.north, 300))
    router = made(int(rng.integers(2, 9)), space, *around)
    routed = router.table()
    assert isinstance(routed, LocationTable)
    routed.change(table, empty(Removals))
    routed.raise_thresholds(table.number, np.zeros(60, np.int64), home.subscriptions.columns.threshold[slots])
    sent = [set(rows.tolist()) for rows in routed.route(batch)]
    task = [int(np.flatnonzero([router.assigned_to(table, t)[n] for t in range(router.tasks)])[0]) for n in range(60)]
    number = home.subscriptions.columns.number
    return len(pairs), sum(row not in sent[task[int(number[slot])]] for slot, row in pairs)


@settings(max_examples=40, deadline=None)
@given(space=st.sampled_from(sorted(SPACES)), seed=st.integers(0, 2**32 - 1))
def test_location_router_on_the_sphere_drops_no_true_pair(space, seed):
    assert dropped(SPACES[space], seed)[1] == 0


class ByWorldsRadius(LocationTable):
    """Broken: takes every radius for the world's, whose proximity falls faster than that of a larger one."""

    def change(self, added, removed):
        super().change(SubscriptionTable(**(added._asdict() | {"radius_m": added.radius_m * np.nan})), removed)


class PlanarCells(LocationRouter):
    """Broken: bounds distances by those of cells in the plane."""

    def _part(self, loads):
        super()._part(loads)
        flat = LocationRouter(self.tasks, self.space._replace(distance="plane"), np.zeros(1), np.zeros(1))
        flat._part(loads)
        self.similarity = flat.similarity


class LargeRadii(LocationRouter):
    def table(self):
        return ByWorldsRadius(self)


@pytest.mark.parametrize(("broken", "space"), [(PlanarCells, "earth"), (LargeRadii, "town")])
def test_location_router_broken_on_the_sphere_is_found_out(broken, space):
    sound, found = ([dropped(SPACES[space], seed, made) for seed in range(4)] for made in (LocationRouter, broken))
    assert sum(pairs for pairs, _ in sound) > 1_000 and not any(lost for _, lost in sound)
    assert any(lost for _, lost in found)


# -- paused and resumed

MESSAGES, BATCH, WORDS = 240, 8, 12
SIZES = ((3, 2, 2, 1), (2, 3, 1, 2), (4, 1, 2, 2))


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> tuple[Path, Path]:
    """An ETL folder, and subscriptions of which two thirds name a radius, on both sides of the antimeridian."""
    folder, rng = tmp_path_factory.mktemp("sphere"), np.random.default_rng(5)
    etl = write_etl(folder / "etl", random_rows(MESSAGES, WORDS, late_s=20), WORDS)
    rows = []
    for number in range(60):
        words = [f"w{word}" for word in rng.choice(WORDS, rng.integers(1, 4), replace=False)]
        row = {"subscription_id": f"s{number}", "kind": "topk", "keywords": words, "at": int(rng.integers(0, MESSAGES))}
        row |= {"lon": float(rng.uniform(-180, 180)), "lat": float(rng.uniform(-80, 80)), "k": 3}
        row |= {"alpha": float(rng.choice([0.1, 0.5, 0.9]))}
        if number % 3:
            row["radius_m"] = float(10 ** rng.uniform(5.5, 7.2))
        rows.append(row)
    file = folder / "topk.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    return etl, file


def plan_from(files, out, router, sizes):
    etl, file = files
    query, tuples, distribution, aggregation = sizes
    out.mkdir(exist_ok=True)
    config = RunConfig(
        messages=etl, subscriptions=(file,), out=out, window="count:40", batch=BATCH, router=router, distance="sphere",
        world="earth", threshold_rule="sma", query_bolts=query, tuple_bolts=tuples, distribution_bolts=distribution,
        aggregation_bolts=aggregation, sink="count",
    )  # fmt: skip
    return build_plan(config, kinds=TWO_KINDS)


def told(report):
    figures = report.components["delivery"].tasks[0].figures
    return {name: figures[name] for name in ("digest", "updates", "batches", "complete_through", "results")}


@pytest.mark.parametrize("router", ["hashing", "location", *BY_KEYWORD])
def test_topology_on_the_sphere_paused_with_other_numbers_of_bolts_tells_the_same(files, tmp_path, router):
    whole = told(run_local(plan_from(files, tmp_path, "hashing", SIZES[0])))
    assert whole["updates"]["enter"] > 300 and whole["results"] > 10
    saved = None
    for place, after in enumerate((4, 11, 23)):
        saved = pause_local(plan_from(files, tmp_path, router, SIZES[place]), after, seed=after, resume=saved)
    assert told(run_local(plan_from(files, tmp_path, router, SIZES[1]), resume=saved)) == whole
