"""Fading subscriptions on the sphere, with radii of their own, against the oracle; and broken engines are found."""

from dataclasses import replace

import numpy as np
import pytest

from matching.decay.engines.keyword_blocks import KeywordBlocks
from matching.errors import ConfigError
from matching.filter_programs import joined_programs, program_of
from matching.filters import circle_instruction
from matching.geo.sphere import unit_vectors
from matching.half_life import SHORTEST_HALF_LIFE_S
from matching.kind_table import Kinds
from matching.kinds import KINDS
from matching.model import DECAY, MessageBatch, SubscriptionTable
from tests.support.filters import with_filters
from tests.support.lasting import EveryPair, differences
from tests.support.topologies import differences as topology_differences
from tests.support.topologies import plan_of
from tests.support.worlds import SPHERE, Recipe, World, make_world
from topology.core.executors.local import run_local
from topology.engines import check_distance

#: The first of an engine compiles it.
ENGINES = ("keyword_blocks", "inverted_file")
RECIPES = {
    "plain": {"terms": 30, "radii": 0.5},
    "no_radii": {"terms": 10},
    "ties": {"grid": 3, "radii": 0.3},
    "poles_and_opposites": {"grid": 1, "terms": 4, "radii": 0.2},
    "large_k": {"largest_k": 300, "terms": 4, "radii": 0.5},
    "place_alone": {"alphas": (1.0,), "grid": 4, "radii": 0.5},
    "text_alone": {"alphas": (0.0, 1e-9, 3e-7), "radii": 0.7, "terms": 4, "subscriptions": 120},
    "faint_texts_alone": {"alphas": (0.0, 1e-9), "radii": 0.8, "terms": 25, "subscriptions": 300},
    "half_life_of_a_second": {"half_life_s": 1.0, "radii": 0.5},
    "half_life_of_a_microsecond": {"half_life_s": SHORTEST_HALF_LIFE_S, "radii": 0.8, "terms": 4},
    "very_late_messages": {"late_s": 500.0, "half_life_s": 5.0, "radii": 0.5},
    "long_lists": {"terms": 2, "subscriptions": 600, "messages": 120, "radii": 0.5},
    "one_batch": {"batch": 240, "radii": 0.5, "subscriptions": 200, "terms": 6},
}
#: Of towns of a few metres to some kilometres.
GATHERED = {
    "plain": {"terms": 6, "radii": 0.6, "subscriptions": 150},
    "long_lists": {"terms": 2, "radii": 0.9, "subscriptions": 600, "messages": 150},
    "ages": {"terms": 3, "radii": 0.8, "half_life_s": 3.2e8, "subscriptions": 200},
    "place_alone": {"alphas": (1.0,), "terms": 4, "radii": 0.8, "half_life_s": 3.2e8, "subscriptions": 200},
}
#: So that engines of other kinds have no say.
DECAY_ALONE = Kinds(kind if kind.fades else replace(kind, operator=None) for kind in KINDS)
CENTRES = ((0.0, 90.0), (180.0, 0.0), (0.0, 0.0), (139.7, 35.7), (-40.3, -35.7))


def recipe_of(table: dict, name: str) -> Recipe:
    return Recipe(kinds=(DECAY,), sphere=True, **table[name])


def gathered(world: World, seed: int, filters: bool = False) -> World:
    """The world with all places near a few centres, and own radii from 3 m on; with circles for half of them."""
    rng = np.random.default_rng([seed, 7])

    def places(count):
        lon, lat = np.array(CENTRES)[rng.integers(len(CENTRES), size=count)].T
        degrees = 10.0 ** rng.uniform(0.0, 4.5, count) / 111_195.0
        turn = np.round(rng.uniform(0, 8, count)) / 8 * 2 * np.pi
        lat = lat + degrees * np.sin(turn)
        lon = lon + degrees * np.cos(turn) / np.maximum(np.cos(np.radians(lat)), 1e-9)
        at_pole = lat > 89.0
        lat = np.where(at_pole, 90.0 - degrees, lat)
        lon = (np.where(at_pole, np.degrees(turn), lon) + 180.0) % 360.0 - 180.0
        same = rng.random(count) < 0.2
        lon[same], lat[same] = CENTRES[3]
        return lon, lat, *SPHERE.project(lon, lat), unit_vectors(lon, lat)

    for at, (boundary, messages, changes) in enumerate(world.batches):
        lon, lat, x, y, vector = places(len(messages))
        box = {"west": lon, "south": lat, "east": lon, "north": lat}
        messages = MessageBatch(**(messages._asdict() | box | {"x": x, "y": y, "vector": vector}))
        table = changes.added
        lon, lat, x, y, vector = places(len(table))
        radius = np.where(np.isnan(table.radius_m), np.nan, 10.0 ** rng.uniform(0.5, 5.0, len(table)))
        columns = {"x": x, "y": y, "vector": vector, "radius_m": radius}
        if filters:
            circle = ~np.isnan(radius) & (rng.random(len(table)) < 0.5)
            programs = [
                program_of([circle_instruction(*place)] if inside else [])
                for inside, *place in zip(circle, lon.tolist(), lat.tolist(), radius.tolist(), strict=True)
            ]
            columns["filter_offsets"], columns["filter_words"] = joined_programs(programs)
        changes = changes._replace(added=SubscriptionTable(**(table._asdict() | columns)))
        world.batches[at] = boundary, messages, changes
    return world


def compared(world: World) -> int:
    """Updates that the oracle expects."""
    return sum(sum(each.values()) for each in world.expected()[0])


def assert_equal_to_oracle(worlds: list[World], engine, **how) -> None:
    for seed, world in enumerate(worlds):
        assert not (told := differences(world, "decay", engine, **how)), f"seed {seed}: {told}"
    assert sum(map(compared, worlds)) >= 1_000


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", RECIPES)
def test_decay_on_the_sphere_over_random_worlds_equals_oracle(engine, name):
    assert_equal_to_oracle([make_world(recipe_of(RECIPES, name), seed) for seed in range(5)], engine)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", GATHERED)
def test_decay_in_towns_with_small_radii_equals_oracle(engine, name):
    worlds = [gathered(make_world(recipe_of(GATHERED, name), seed), seed, seed % 2 == 1) for seed in range(6)]
    assert_equal_to_oracle(worlds, engine)


def test_scores_on_the_sphere_of_every_pair_equal_oracle():
    worlds = [make_world(recipe_of(RECIPES, name), seed) for name in ("plain", "ties") for seed in range(2)]
    assert_equal_to_oracle(worlds, EveryPair)


@pytest.mark.parametrize("name", ["plain", "ties", "large_k"])
def test_decay_on_the_sphere_with_filters_equals_oracle(name):
    worlds = [with_filters(make_world(recipe_of(RECIPES, name), seed), seed) for seed in range(8)]
    assert_equal_to_oracle(worlds, "keyword_blocks")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["plain", "ties", "large_k", "long_lists"])
def test_decay_on_the_sphere_saved_and_resumed_equals_oracle(engine, name):
    worlds = [make_world(recipe_of(RECIPES, name), seed) for seed in range(3)]
    worlds += [gathered(make_world(recipe_of(GATHERED, "plain"), seed), seed, True) for seed in range(3)]
    assert_equal_to_oracle(worlds, engine, count=2, saved=True)


@pytest.mark.parametrize("router", ["hashing", "location"])
def test_decay_on_the_sphere_over_three_bolts_equals_oracle(router):
    worlds = [make_world(recipe_of(RECIPES, "ties"), seed) for seed in range(2)]
    worlds += [gathered(make_world(recipe_of(GATHERED, "plain"), seed), seed, True) for seed in range(2)]
    for seed, world in enumerate(worlds):
        plan = plan_of(world, router, seed, query=3, distribution=2, kinds=DECAY_ALONE)
        figures = run_local(plan, seed=seed).components["delivery"].tasks[0].figures
        assert not (told := topology_differences(world, figures)), f"seed {seed}: {told}"
    assert sum(map(compared, worlds)) >= 1_000


class PlaneEngine(KeywordBlocks):
    """Measures in the unit square, whatever the space."""

    def _scan(self, batch, first_row):
        return super()._scan(MessageBatch(**(batch._asdict() | {"vector": np.zeros((0, 3))})), first_row)


class WorldRadius(KeywordBlocks):
    """Takes MaxDist of the world for every subscription."""

    def _post(self, slots):
        self.subscriptions.columns.max_distance[slots] = self.max_distance
        super()._post(slots)


@pytest.mark.parametrize("broken", [PlaneEngine, WorldRadius])
def test_decay_engine_that_measures_otherwise_is_found(broken):
    worlds = [make_world(recipe_of(RECIPES, "plain"), seed) for seed in range(3)]
    assert all(differences(world, "decay", broken) for world in worlds)


def test_engines_of_the_plane_refuse_the_sphere():
    for engine in ("ciq", "ciq_h", "block_inverted_file"):
        with pytest.raises(ConfigError, match=f"{engine}: measures distances in the plane alone.*keyword_blocks"):
            check_distance(DECAY_ALONE, SPHERE, {"decay": engine})
    check_distance(DECAY_ALONE, SPHERE, {"decay": "keyword_blocks"})
    able = {name for name, engine in KINDS.named("decay").engines.items() if engine.serves_sphere}
    assert able == {"keyword_blocks", "inverted_file"}
