"""The model of a plan: what bounds it, what grows with what, and its counted work beside that of a real topology."""

import json
from itertools import product

import numpy as np
import pytest

import gateway.cli as cli
from gateway.load.measuring import TASKS, fitted, measure, sizes_of, steady_work
from gateway.load.planning import (
    BASES,
    COMPONENTS,
    MOST_BUSY,
    SHIPPED,
    Constants,
    Load,
    Work,
    plan_for,
    read_constants,
    user_constants,
)
from gateway.load.profiled import ProfiledLoad, plan_of_profile, read_profile
from matching.errors import ConfigError
from matching.kinds import KINDS

#: Factors of a made-up kind, chosen so that each component can be the one that bounds.
FACTORS = {
    "messages": [1.0],
    "distribution": [0.5, 0.1],
    "query": [2.0, 1e-4],
    "tuples": [0.2, 1e-7],
    "delivery": [1.0, 0.02, 1e-6],
}
MADE = Constants(FACTORS, [100.0, 50.0, 0.001], 100.0, 200.0, 1e8, 40_000)
KNOWN = {"kinds": {"boolean": MADE}}


def load(**changes):
    return Load(**{"subscriptions": 1_000_000, "rate": 10_000.0, "kind": "boolean", "nodes": 4, "cores": 16} | changes)


def test_plan_takes_the_fewest_query_tasks_that_the_rate_needs():
    planned = plan_for(load(), KNOWN)
    tasks = planned["query_bolts"]
    assert planned["fits"] and max(planned["busy"].values()) <= MOST_BUSY
    assert 1e-6 * 10_000 * MADE.busy("query", 1_000_000, tasks - 1) > MOST_BUSY
    fewer = plan_for(load(), KNOWN, tasks - 1)
    assert not fewer["fits"] and fewer["bound_by"]["component"] == "query" and fewer["latency"]["p99_s"] is None


@pytest.mark.parametrize(
    ("changes", "tasks", "component"),
    [
        ({"subscriptions": 10_000_000}, 4, "query"),
        ({"subscriptions": 1_000, "nodes": 64}, 600, "distribution"),
        ({"subscriptions": 60_000_000, "nodes": 900}, 900, "distribution"),
        ({"subscriptions": 100_000_000, "nodes": 900}, 700, "delivery"),
        ({"nodes": 1, "cores": 1, "subscriptions": 1_000, "rate": 110_000}, 1, "cores"),
    ],
)
def test_plan_says_what_bounds_it_and_what_to_change(changes, tasks, component):
    bound = plan_for(load(**changes), KNOWN, tasks)["bound_by"]
    assert bound["component"] == component and bound["remedy"].startswith("take ")


def test_plan_at_its_own_most_fits_and_just_above_does_not():
    planned = plan_for(load(), KNOWN, 20)
    most = planned["bound_by"]["most_per_s"]
    assert plan_for(load(rate=most * 0.999), KNOWN, 20)["fits"]
    assert not plan_for(load(rate=most * 1.001), KNOWN, 20)["fits"]


def test_plan_memory_and_bytes_are_sums_that_can_be_done_by_hand():
    planned = plan_for(load(window=1000), KNOWN, 10)
    assert planned["memory_bytes"] == 1e6 * 100 + 1000 * 200 + (10 + 4) * 1e8
    assert planned["between_nodes_bytes_per_s"] == pytest.approx(10_000 * 0.75 * (100 + 10 * 50 + 1000))
    assert plan_for(load(nodes=1), KNOWN, 10)["between_nodes_bytes_per_s"] == 0
    assert planned["far"] == 1_000_000 / 10 / 40_000


def test_plan_latency_grows_with_the_rate_and_is_at_least_the_linger_time():
    rates = [100.0, 1_000.0, 5_000.0, 9_000.0]
    latencies = [plan_for(load(rate=rate), KNOWN, 40)["latency"] for rate in rates]
    assert [each["p99_s"] for each in latencies] == sorted(each["p99_s"] for each in latencies)
    assert all(0.01 < each["p50_s"] + 0.005 <= each["p99_s"] for each in latencies)


def test_fitted_finds_the_factors_that_made_the_points():
    points = [
        Work(n, q, {name: 1e-6 * MADE.busy(name, n, q) for name in COMPONENTS}, MADE.moved(n, q), 100.0, 200.0)
        for n, q in product((10_000, 40_000), (1, 4))
    ]
    found = fitted(points, 10**8)
    assert found.measured_subscriptions == 40_000
    for name in BASES:
        np.testing.assert_allclose(found.busy_us[name], FACTORS[name], rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(found.bytes_moved, MADE.bytes_moved, rtol=1e-6)


def test_fitted_has_no_negative_factor_where_noise_would_make_one():
    points = [
        Work(n, q, dict.fromkeys(COMPONENTS, 1e-6 * (5.0 - q)), 1000.0 - q, 1.0, 1.0)
        for n, q in product((10, 40), (1, 4))
    ]
    found = fitted(points, 1)
    assert all(factor >= 0 for factors in [*found.busy_us.values(), found.bytes_moved] for factor in factors)
    assert found.busy_us["messages"] == pytest.approx([2.5])


@pytest.mark.parametrize(("kind", "most"), [("boolean", 800), pytest.param("topk", 240, marks=pytest.mark.long)])
def test_plan_bytes_of_few_tasks_foretell_those_of_many(kind, most):
    """Bytes are counted, so that the machine's load does not matter."""
    points = [steady_work(kind, n, q, 1_000) for n, q in product(sizes_of(kind, most), TASKS)]
    found = fitted(points, 1)
    for tasks in (4, 32):
        real = steady_work(kind, most, tasks, 1_000)
        assert found.moved(most, tasks) == pytest.approx(real.bytes_moved, rel=0.15), tasks
        assert found.bytes_each <= real.bytes_each * 1.1


def test_measure_can_be_written_and_planned_with(tmp_path):
    measured = measure(("boolean",), messages=1_000, most=400, rounds=1)
    file = tmp_path / "constants.json"
    file.write_text(json.dumps(measured))
    known, path = read_constants(file)
    assert path == file and known["kinds"]["boolean"].bytes_each > 0
    planned = plan_for(load(subscriptions=1_000, rate=1.0), known)
    assert planned["fits"] and planned["memory_bytes"] > known["kinds"]["boolean"].worker_bytes > 1e7


def test_shipped_constants_name_their_machine_and_have_each_kind():
    known, _ = read_constants(SHIPPED)
    assert known["machine"] and known["date"]
    assert set(known["kinds"]) == {kind.name for kind in KINDS.run}


def test_constants_of_the_user_come_before_those_of_the_package(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert read_constants()[1] == SHIPPED
    user_constants().parent.mkdir()
    user_constants().write_bytes(SHIPPED.read_bytes())
    assert read_constants()[1] == user_constants() == tmp_path / "skyray" / "constants.json"


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"kinds": {"boolean": {"odd": 1}}}'])
def test_constants_that_are_none_are_an_error_with_the_remedy(tmp_path, content):
    file = tmp_path / "constants.json"
    file.write_text(content)
    with pytest.raises(ConfigError, match="no constants .*--measure"):
        read_constants(file)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "--kind: say of which kind"),
        (["--kind", "ring"], "constants are known of boolean"),
        (["--kind", "boolean", "--nodes", "0"], "positive"),
        (["--kind", "boolean", "--constants", "/nowhere.json"], "no constants"),
    ],
)
def test_cli_plan_wrong_use_is_one_line(capsys, arguments, expected):
    assert cli.main(["plan", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1 and expected in printed.err


def test_cli_plan_answers_people_and_programs_and_says_no_by_its_exit_code(tmp_path, capsys):
    file = tmp_path / "constants.json"
    file.write_text(
        json.dumps({"machine": "m", "date": "d", "load_average": 9.0, "kinds": {"boolean": MADE._asdict()}})
    )
    line = ["plan", "--kind", "boolean", "--constants", str(file), "--nodes", "4", "--cores", "16"]
    assert cli.main([*line, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["query_bolts"] == plan_for(load(), KNOWN)["query_bolts"]
    assert cli.main([*line, "--subscriptions", "10000000000"]) == 1
    shown = capsys.readouterr().out
    assert "load average of 9" in shown
    assert "fits           NO" in shown and "extrapolated" in shown and "constants      m, d" in shown


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
    planned = plan_of_profile(ProfiledLoad(10_000.0, 1, 8), PROFILE)
    # a task is busy for 0.84 with all 84 us of unpacking and matching, for 0.44 with 4 and half of 80
    assert planned["fits"] and planned["query_bolts"] == 2
    assert planned["us_per_message"]["query"] == 44.0 and planned["us_per_message"]["tuples"] == 8.0
    assert planned["cores"] == pytest.approx(1e-2 * (sum(PROFILE["parts_us"].values()) + 4.0))
    assert planned["cores_needed"] == pytest.approx(planned["cores"] / MOST_BUSY)
    assert plan_of_profile(ProfiledLoad(10_000.0, 1, 8), PROFILE, 1)["bound_by"]["component"] == "query"
    most = planned["bound_by"]["most_per_s"]
    assert plan_of_profile(ProfiledLoad(most * 0.999, 1, 8), PROFILE, 2)["fits"]
    assert not plan_of_profile(ProfiledLoad(most * 1.001, 1, 8), PROFILE, 2)["fits"]


def test_plan_of_a_profile_on_too_few_cores_names_them():
    planned = plan_of_profile(ProfiledLoad(10_000.0, 1, 1), PROFILE)
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
        plan_of_profile(ProfiledLoad(1.0), read_profile(file))
