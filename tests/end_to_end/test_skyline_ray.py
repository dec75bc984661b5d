"""Skylines on Ray actors: exact at the corners of the matrix."""

import pytest

from matching.model import BOOLEAN, SKYLINE, TOPK
from tests.support.covering import tiered
from tests.support.skyline_topologies import SkylineWorld, differences, plan_of, router_of
from tests.support.skyline_worlds import Recipe
from topology.core.executors.ray import run_ray
from topology.placement import LIGHT

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]

COUNT = Recipe("count:60", batches=16, batch=10, subscriptions=25, objects=25, deletes=0.1)
TIME = Recipe("time:40", batches=16, batch=10, subscriptions=25, objects=25, deletes=0.1, late=10, tick=2)
MIXED = (BOOLEAN, TOPK, SKYLINE, SKYLINE)

#: Who shares an actor: nobody, the light ones (two actors for each number of task), everybody.
SPREAD, SHARED, ONE = (), (LIGHT,), (("query", *LIGHT),)

#: Router; query, tuple, distribution and aggregation bolts; recipe; kinds; engine; signatures; who shares an actor.
CORNERS = [
    pytest.param("hashing", (1, 1, 1, 1), COUNT, (SKYLINE,), "eager_star", "off", SHARED, id="hashing-1-1-1"),
    pytest.param("hashing", (3, 2, 2, 2), TIME, MIXED, "bnl", "off", ONE, id="hashing-3-2-2-bnl"),
    pytest.param("hashing", (4, 4, 1, 1), COUNT, (SKYLINE,), "lazy", "spatial+text", SHARED, id="hashing-4-4-1-signed"),
    pytest.param("location", (1, 1, 1, 1), TIME, (SKYLINE,), "eager", "off", SHARED, id="location-1-1-1"),
    pytest.param("location", (2, 2, 2, 1), COUNT, MIXED, "eager_star", "off", SPREAD, id="location-2-2-2-spread"),
    pytest.param("location", (4, 1, 1, 2), TIME, (SKYLINE,), "sweep", "spatial", SHARED, id="location-4-1-1-signed"),
    pytest.param("location", (8, 4, 2, 1), COUNT, (SKYLINE,), "eager_star", "off", ONE, id="location-8-4-2-one"),
    pytest.param("location", (3, 4, 2, 2), TIME, MIXED, "eager", "spatial+text", SHARED, id="location-3-4-2-signed"),
]


@pytest.mark.parametrize(
    ("router", "tasks", "recipe", "kinds", "engine", "signatures", "together"), tiered(CORNERS, 8, 4)
)
def test_skylines_on_ray_equal_oracle(router, tasks, recipe, kinds, engine, signatures, together):
    query, tuples, distribution, aggregation = tasks
    world = SkylineWorld(recipe, 11, kinds)
    plan = plan_of(
        world, router_of(router, query, 11, signatures), engine=engine, tuples=tuples, distribution=distribution,
        aggregation=aggregation,
    )  # fmt: skip
    report = run_ray(plan, together=together)
    figures = report.components["delivery"].tasks[0].figures
    assert not differences(world, figures)
    assert figures["late"] > 0, "nothing came back late: the protocol was not tested"
    sent = sum(task.figures["hits_sent"].get("skyline", 0) for task in report.components["query"].tasks)
    assert (sent > 0) == (router == "location" and query > 1)
