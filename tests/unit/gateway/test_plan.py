"""The size of a topology: what bounds it, what divides among query bolts, and the measured costs of real topologies."""

import json

import pytest

import gateway.cli as cli
from gateway.load.measuring import MOST_SUBSCRIPTIONS, measure
from matching.errors import ConfigError
from topology.sizing import MOST_BUSY, Load, microseconds, read_profile, size

PROFILE = {
    "exact": True,
    "memory_bytes": 2**30,
    "subscriptions": {"boolean": 600, "topk": 400},
    "parts_us": {
        "spouts": 1.0, "distribution": 2.0, "query bolt": 4.0, "boolean match": 30.0, "topk close": 50.0,
        "topk refill": 5.0, "tuple bolt": 3.0, "delivery sink": 6.0, "framework": 7.0, "other threads": 12.0,
    },
}  # fmt: skip


def test_plan_of_a_profile_divides_what_kinds_match_and_adds_up_all_else():
    planned = size(Load(10_000.0, 1, 8), PROFILE)
    # a task is busy for 0.84 with all 84 us of unpacking and matching, for 0.44 with 4 and half of 80
    assert planned["fits"] and planned["query_bolts"] == 2
    assert planned["us_per_message"]["query"] == 44.0 and planned["us_per_message"]["tuples"] == 8.0
    assert planned["cores"] == pytest.approx(1e-2 * (sum(PROFILE["parts_us"].values()) + 4.0))
    assert planned["cores_needed"] == pytest.approx(planned["cores"] / MOST_BUSY)
    assert size(Load(10_000.0, 1, 8), PROFILE, 1)["bound_by"]["component"] == "query"
    most = planned["bound_by"]["most_per_s"]
    assert size(Load(most * 0.999, 1, 8), PROFILE, 2)["fits"]
    assert not size(Load(most * 1.001, 1, 8), PROFILE, 2)["fits"]


def test_plan_of_a_profile_on_too_few_cores_names_them():
    planned = size(Load(10_000.0, 1, 1), PROFILE)
    assert not planned["fits"] and planned["bound_by"]["component"] == "cores"


def test_cli_plan_of_a_profile(tmp_path, capsys):
    file = tmp_path / "profile.json"
    file.write_text(json.dumps(PROFILE))
    assert cli.main(["plan", "--profile", str(file), "--rate", "10000", "--cores", "2"]) == 0
    assert "600 boolean, 400 topk" in capsys.readouterr().out
    assert cli.main(["plan", "--profile", str(file), "--rate", "10000", "--cores", "1", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["bound_by"]["component"] == "cores"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"parts_us": {"a new part": 1.0}}, "no component does it"),
        ({"exact": False}, "not the oracle's"),
        ({"parts_us": None}, "no profile"),
    ],
)
def test_profile_that_cannot_be_planned_with_is_refused(tmp_path, changes, expected):
    file = tmp_path / "profile.json"
    file.write_text(json.dumps(PROFILE | changes))
    with pytest.raises(ConfigError, match=expected):
        size(Load(1.0), read_profile(file))


@pytest.mark.parametrize(
    ("part", "load", "component"),
    [
        ("spouts", Load(100.0, 1, 8), "messages"),
        ("topk match", Load(100.0, 1, 8), "query"),
        ("topk refill", Load(100.0, 1, 8), "tuples"),
        ("delivery sink", Load(100.0, 4, 8), "delivery"),
        ("framework", Load(100.0, 1, 1), "cores"),
    ],
)
def test_size_says_what_bounds_it_and_what_to_change(part, load, component):
    profile = PROFILE | {"parts_us": {"distribution": 1.0, part: 20_000.0}}
    bound = size(load, profile, 1)["bound_by"]
    assert bound["component"] == component and bound["remedy"]
    assert bound["most_per_s"] == pytest.approx(35.0, rel=0.01)


@pytest.mark.parametrize("kind", ["boolean", pytest.param("topk", marks=pytest.mark.long)])
def test_measured_costs_have_every_component_and_size_a_topology(kind):
    costs = measure(kind, 400, window=1_000)
    spent = microseconds(costs["parts_us"])
    assert {"messages", "unpacking", "query", "tuples", "delivery"} <= spent.keys()
    assert spent["unpacking"] > 0 and spent["query"] > 0 and spent["messages"] > 0
    assert costs["subscriptions"] == {kind: 400} and costs["memory_bytes"] > 1e7
    planned = size(Load(1.0), costs)
    assert planned["fits"] and planned["query_bolts"] == 1 and planned["load"]["rate"] == 1.0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "--kind: say of which kind"),
        (["--kind", "ring"], "ring"),
        (["--kind", "boolean", "--nodes", "0"], "positive"),
        (["--kind", "boolean", "--query-bolts", "0"], "positive"),
        (["--kind", "boolean", "--subscriptions", str(MOST_SUBSCRIPTIONS + 1)], "at most 4,000,000"),
        (["--kind", "boolean", "--window", "0"], "positive"),
        (["--profile", "/nowhere.json"], "no profile"),
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
    assert "fits           NO" in shown and "200 boolean" in shown and "costs          measured here" in shown
