"""The size of a topology: what bounds it, what divides among query bolts, and the measured costs of real topologies."""

import json

import pytest

import gateway.cli as cli
from gateway.load.measuring import MOST_SUBSCRIPTIONS, measure
from topology.sizing import MOST_BUSY, Load, size

COSTS = {
    "memory_bytes": 2**30,
    "subscriptions": {"boolean": 1_000},
    "us_per_message": {
        "messages": 1.0, "distribution": 2.0, "unpacking": 4.0, "query": 80.0, "tuples": 8.0, "delivery": 6.0,
    },
}  # fmt: skip


def test_plan_divides_what_kinds_match_and_adds_up_all_else():
    planned = size(Load(10_000.0, 1, 8), COSTS)
    # a task is busy for 0.84 with all 84 us of unpacking and matching, for 0.44 with 4 and half of 80
    assert planned["fits"] and planned["query_bolts"] == 2
    assert planned["us_per_message"]["query"] == 44.0 and planned["us_per_message"]["tuples"] == 8.0
    assert planned["cores"] == pytest.approx(1e-2 * (sum(COSTS["us_per_message"].values()) + 4.0))
    assert planned["cores_needed"] == pytest.approx(planned["cores"] / MOST_BUSY)
    assert size(Load(10_000.0, 1, 8), COSTS, 1)["bound_by"]["component"] == "query"
    most = planned["bound_by"]["most_per_s"]
    assert size(Load(most * 0.999, 1, 8), COSTS, 2)["fits"]
    assert not size(Load(most * 1.001, 1, 8), COSTS, 2)["fits"]


def test_plan_on_too_few_cores_names_them():
    planned = size(Load(10_000.0, 1, 1), COSTS)
    assert not planned["fits"] and planned["bound_by"]["component"] == "cores"


@pytest.mark.parametrize(("component", "nodes"), [("messages", 1), ("query", 1), ("tuples", 1), ("delivery", 4)])
def test_size_says_what_bounds_it_and_what_to_change(component, nodes):
    costs = COSTS | {"us_per_message": {"query": 0.0, "unpacking": 0.0, "distribution": 1.0, component: 20_000.0}}
    bound = size(Load(100.0, nodes, 8), costs, 1)["bound_by"]
    assert bound["component"] == component and bound["remedy"]
    assert bound["most_per_s"] == pytest.approx(35.0, rel=0.01)


@pytest.mark.parametrize("kind", ["boolean", pytest.param("topk", marks=pytest.mark.long)])
def test_measured_costs_have_every_component_and_size_a_topology(kind):
    costs = measure(kind, 400, window=1_000)
    spent = costs["us_per_message"]
    assert {"messages", "unpacking", "query", "tuples", "delivery"} <= spent.keys()
    assert spent["unpacking"] > 0 and spent["query"] > 0 and spent["messages"] > 0
    assert costs["subscriptions"] == {kind: 400} and costs["memory_bytes"] > 1e7
    planned = size(Load(1.0), costs)
    assert planned["fits"] and planned["query_bolts"] == 1 and planned["load"]["rate"] == 1.0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "--kind"),
        (["--kind", "ring"], "ring"),
        (["--kind", "boolean", "--nodes", "0"], "positive"),
        (["--kind", "boolean", "--query-bolts", "0"], "positive"),
        (["--kind", "boolean", "--subscriptions", str(MOST_SUBSCRIPTIONS + 1)], "at most 4,000,000"),
        (["--kind", "boolean", "--window", "0"], "positive"),
    ],
)
def test_cli_plan_wrong_use_is_one_line(capsys, arguments, expected):
    assert cli.main(["plan", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1 and expected in printed.err


def test_cli_plan_measures_and_says_no_by_its_exit_code(capsys):
    line = ["plan", "--kind", "boolean", "--subscriptions", "200", "--window", "500"]
    assert cli.main([*line, "--rate", "1", "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert planned["query_bolts"] == 1 and planned["subscriptions"] == {"boolean": 200}
    assert cli.main([*line, "--rate", "1000000000"]) == 1
    shown = capsys.readouterr().out
    assert "fits           NO" in shown and "200 boolean" in shown
