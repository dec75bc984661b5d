"""How many tasks there are beside the query bolts, and what is said of a run that one component holds up."""

import re
from dataclasses import replace

import pytest

from matching.kinds import KINDS
from matching.space import EARTH, Space
from topology.settings import RunConfig
from topology.sizing import BESIDE, beside, chosen, overloaded
from topology.wiring import bolts_beside, router_of

ONE = dict.fromkeys(BESIDE, 1)
KIND = replace(KINDS[0], beside={"tuples": 0.3, "delivery": 0.02})
OTHER = replace(KINDS[1], beside={"delivery": 0.5})


@pytest.mark.parametrize(
    ("query_bolts", "kinds", "sends_all", "wanted"),
    [
        (1, [KIND, OTHER], False, ONE),
        (20, [], True, ONE),
        (20, [], False, ONE | {"distribution": 2}),
        (20, [KIND], True, ONE | {"tuples": 6}),
        (20, [KIND, OTHER], True, ONE | {"tuples": 6, "delivery": 10}),
        (64, [KIND], True, ONE | {"distribution": 2, "tuples": 20, "delivery": 2}),
        (4, [replace(KIND, beside={"tuples": 3.0})], True, ONE | {"tuples": 4}),
    ],
)
def test_as_many_tasks_beside_query_bolts_as_the_busiest_kind_needs(query_bolts, kinds, sends_all, wanted):
    assert beside(query_bolts, kinds, sends_all) == wanted


def test_numbers_that_settings_give_stand_and_the_others_are_chosen():
    config = RunConfig(
        messages="etl", subscriptions="mine.jsonl", out="out", query_bolts=64, tuple_bolts=3, world="earth"
    )
    router = router_of(config, Space(*EARTH))
    tasks = bolts_beside(config, router, [OTHER])
    assert tasks == {"distribution_bolts": 2, "tuple_bolts": 3, "aggregation_bolts": 1, "delivery_bolts": 32}
    by_component = {name: tasks[setting] for name, setting in BESIDE.items()}
    assert chosen(config, by_component) == {"distribution": 2, "aggregation": 1, "delivery": 32}


@pytest.mark.parametrize(
    ("busy", "said"),
    [
        ({"query": 0.4, "tuples": 0.95, "delivery": 0.1}, "tuples was busy for 95% .* more than 40%: .*--tuple-bolts"),
        ({"query": 0.99, "tuples": 0.3}, "--query-bolts"),
        ({"query": 0.7, "tuples": 0.95}, None),
        ({"query": 0.2, "tuples": 0.85}, None),
    ],
)
def test_run_that_one_component_held_up_says_what_would_help(busy, said):
    advice = overloaded(busy)
    assert advice is None if said is None else re.search(said, str(advice))
