"""What workers reserve, and the line that says what a start waits for."""

from pathlib import Path

import pytest

from tests.support.example_topologies import pipeline
from topology.core.api.resources import MIB, Needs, Resources, bundles_of, exceeds, shortfall
from topology.core.tasks.worker import place
from topology.placement import LIGHT, RESERVING, needs_of
from topology.settings import CHANGEABLE, RunConfig


def test_bundles_of_workers_are_sums_over_their_tasks():
    plan = pipeline()
    needs = Needs({"pass": Resources(1.5, 64), "ack": Resources(0.25, 0)})
    apart = bundles_of(plan, place(plan), needs)
    assert apart == [{}, {"CPU": 1.5, "memory": 64.0 * MIB}, {"CPU": 0.25}]
    together = bundles_of(plan, place(plan, (("pass", "ack"),)), needs)
    assert together == [{}, {"CPU": 1.75, "memory": 64.0 * MIB}]


@pytest.mark.parametrize(
    ("bundles", "nodes", "free", "line", "never"),
    [
        ([1] * 6, [2], 1, "6 CPUs: 2 CPUs are there, 1 CPU free", True),
        ([1] * 6, [4, 4], 5, "6 CPUs: 8 CPUs are there, 5 CPUs free", False),
        ([3], [2, 2], 4, "3 CPUs: one process wants 3 CPUs, and no node has more than 2 CPUs", True),
        ([2, 2], [3, 3], 4, "4 CPUs: what is free is in pieces that are too small", False),
        ([0.5], [], 0, "0.5 CPUs: one process wants 0.5 CPUs, and no node has more than 0 CPUs", True),
    ],
)
def test_shortfall_says_what_is_wanted_and_what_is_there(bundles, nodes, free, line, never):
    wanted, there = [{"CPU": each} for each in bundles], [{"CPU": each} for each in nodes]
    assert shortfall(wanted, there, {"CPU": free}) == line
    assert exceeds(wanted, there) == never


def test_shortfall_of_memory_is_in_mib():
    line = shortfall([{"CPU": 1, "memory": 2048 * MIB}], [{"CPU": 8, "memory": 1024 * MIB}], {"CPU": 8})
    assert line == (
        "1 CPU and 2,048 MiB of memory: one process wants 2,048 MiB of memory, and no node has more than "
        "1,024 MiB of memory"
    )


def config_of(**settings):
    return RunConfig(messages=Path("etl"), subscriptions=(Path("s.jsonl"),), out=Path("out"), **settings)


def test_needs_of_settings_name_what_to_lower_and_are_none_by_default():
    assert needs_of(config_of()).of == {}
    needs = needs_of(config_of(query_cpus=1, spout_memory_mib=100, reserve_wait=5))
    assert needs == Needs(
        {"query": Resources(1.0, 0.0), "messages": Resources(0.0, 100.0), "subscriptions": Resources(0.0, 100.0)},
        5.0,
        "reservations.query_cpus or reservations.spout_memory_mib",
    )


def test_needs_are_settings_of_every_component_and_may_change_on_resume():
    assert sorted(name for names in RESERVING.values() for name in names) == sorted({*LIGHT, "query"})
    fields = {f"{word}_{what}" for word in RESERVING for what in ("cpus", "memory_mib")}
    assert fields | {"reserve_wait"} <= CHANGEABLE & RunConfig.model_fields.keys()
