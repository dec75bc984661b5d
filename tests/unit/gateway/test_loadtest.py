"""Load tests: the router asked for is the one that runs, the load is what the table says and people ask for."""

import os
import pickle
import subprocess
import sys
from dataclasses import replace
from functools import wraps
from inspect import signature

import pytest

import gateway.cli as cli
from distribution.routers import ROUTERS
from gateway.load.loadtest import Executor, load_plan, load_test, render
from gateway.load.pace import Pace
from gateway.shell.packages import home
from gateway.shell.per_kind import each_kind, words_of
from matching.errors import ConfigError
from matching.kind_table import Kind, Kinds
from matching.kinds import KINDS
from topology.core.executors.local import run_local

LOAD = {"boolean": 300, "topk": 60}


def plan_of(router, counts, query_bolts=2, kinds=KINDS):
    return load_plan(Pace(1e6, 900, 300), counts, "count:500", query_bolts, router, kinds=kinds)


def streams(plan):
    return {edge["stream"] for edge in plan.describe()["edges"]}


def test_load_plan_every_router_runs_and_tells_the_same():
    told, held = {}, {}
    for router in ROUTERS:
        report = run_local(plan_of(router, LOAD))
        delivery = report.components["delivery"].tasks[0].figures
        assert sum(delivery["updates"].values()) > 100
        told[router] = delivery["digest"]
        held[router] = str([part.figures["subscriptions"] for part in report.components["query"].tasks])
    assert len(set(told.values())) == 1, told
    assert held["keyword"] == held["prefix"], "they differ by replicas alone"
    assert len(set(held.values())) >= len(ROUTERS) - 2, "the others by who holds what, but that some may agree"


@pytest.mark.parametrize(
    ("router", "own"),
    [
        ("hashing", set()),
        ("location", {"hits"}),
        ("keyword", {"hits", "register", "thresholds"}),
        ("prefix", {"hits", "register", "thresholds"}),
    ],
)
def test_load_plan_has_the_router_asked_for_and_its_streams(router, own):
    plan = plan_of(router, LOAD)
    assert streams(plan) & {"hits", "register", "thresholds"} == own
    for name in ("distribution", "query"):
        assert pickle.loads(plan.component(name).template).router.name == router  # noqa: S301 - our own bytes


@pytest.mark.parametrize("router", ["keyword", "prefix"])
def test_load_plan_what_the_router_cannot_place_is_refused_with_the_remedy(router):
    expected = (
        f"--router {router}: .* of kind skyline, .* use --router hashing or location or influence, or --count skyline=0"
    )
    with pytest.raises(ConfigError, match=expected):
        plan_of(router, LOAD | {"skyline": 1})
    assert plan_of(router, LOAD | {"skyline": 0})


def test_load_plan_router_nobody_knows_is_refused_with_those_there_are():
    with pytest.raises(ConfigError, match="router 'keywrd': choose one of hashing, location, keyword, prefix"):
        plan_of("keywrd", LOAD)


def test_load_plan_takes_kinds_that_are_handed_in():
    twin = replace(KINDS.named("topk"), code=5, name="twin", operator=KINDS.named("skyline").operator)
    with pytest.raises(ConfigError, match="of kind twin, .* or --count twin=0"):
        plan_of("prefix", {"twin": 9}, kinds=KINDS.plus(twin))
    with pytest.raises(ConfigError, match="unknown kind 'twin'"):
        plan_of("hashing", {"twin": 9})
    assert plan_of("hashing", {"twin": 9}, kinds=KINDS.plus(twin))


def test_load_test_without_counts_makes_what_the_recipes_say():
    """Refused by what it would make, so nothing starts."""
    loaded = replace(KINDS.named("skyline"), recipe=replace(KINDS.named("skyline").recipe, load=7))
    kinds = Kinds([*[kind for kind in KINDS if kind.name != "skyline"], loaded])
    with pytest.raises(ConfigError, match="of kind skyline"):
        load_test(rate=100, seconds=1, router="keyword", kinds=kinds)
    assert {kind.name: kind.recipe.load for kind in KINDS.run} == {
        "boolean": 10_000,
        "topk": 10_000,
        "decay": 0,
        "knn": 0,
        "skyline": 0,
    }


def test_load_test_in_one_process_is_saved_and_tells_the_warm_up_apart():
    report = load_test(
        rate=2000, seconds=0.5, warm_up=0.25, executor=Executor.local, subscriptions={"boolean": 200, "topk": 50},
        window="count:500", checkpoint_every=0.1,
    )  # fmt: skip
    assert report["messages"] == 1500 and report["checkpoints"] >= 1
    # full batches would be 8; a message waits 10 ms at most, in which twenty are due
    assert report["batches"] > 20
    assert report["latency"]["count"] > 0 and report["warm_up"]["count"] > 0
    assert report["latency"]["count"] + report["warm_up"]["count"] == report["updates"]
    assert "while warming up" in render(report) and "checkpoints" in render(report)


# ------------------------------------------------------------------------------------------------ what people type


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ["--router", "keyword", "--count", "skyline=4"],
            "use --router hashing or location or influence, or --count skyline=0",
        ),
        (["--router", "keywrd"], "choose one of hashing, location, keyword, prefix"),
        (["--count", "boolean=-1"], "'--set count.boolean'"),
        (["--ring", "3"], "No such option: --ring"),
        (["--seconds", "0"], "is no message at all"),
    ],
)
def test_cli_loadtest_wrong_use_is_one_line_before_anything_starts(capsys, arguments, expected):
    assert cli.main(["loadtest", "--rate", "100", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1 and expected in printed.err


def test_cli_loadtest_help_names_each_kind_that_runs(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert cli.main(["loadtest", "--help"]) == 0
    shown = capsys.readouterr().out
    line = next(line for line in shown.splitlines() if "--count " in line)
    assert "KIND=N" in line and all((kind.name in line) == kind.runs for kind in KINDS)


def test_loadtest_options_are_those_of_the_function_and_of_the_kinds():
    command = cli.typer.main.get_command(cli.app).commands["loadtest"]  # type: ignore[attr-defined]
    params = {param.name: param for param in command.get_params(cli.typer.Context(command, info_name="loadtest"))}
    known = signature(load_test).parameters
    own = known.keys() - {"workload", "subscriptions", "on_progress", "kinds", "folder", "checked"}
    assert params.keys() == own | {kind.name for kind in KINDS.run} | {
        "out", "hold", "limit_p99_ms", "step_seconds", "json", "help", "url", "key", "generators",
        "config", "sets", "count",
    }  # fmt: skip
    assert all(params[name].default == known[name].default for name in own)
    assert all(params[kind.name].default == kind.recipe.load for kind in KINDS.run)


def test_cli_loadtest_passes_on_what_was_given_and_nothing_else(monkeypatch):
    told = {}

    @wraps(load_test)  # which keeps its options
    def load(**options):
        del options["on_progress"]
        told.update(options)
        raise ConfigError("enough")

    monkeypatch.setattr("gateway.commands.loadtest.load_test", load)
    cli.main(["loadtest", "--rate", "5", "--query-bolts", "3", "--count", "topk=7"])
    assert told == {"rate": 5.0, "query_bolts": 3, "subscriptions": {"topk": 7}}


def test_deployed_load_test_is_the_command():
    script = home() / "deploy" / "load_test.py"
    arguments = ["--rate", "100", "--router", "prefix", "--count", "skyline=4"]
    done = subprocess.run(
        [sys.executable, script, *arguments],
        capture_output=True, text=True, timeout=300, env={**os.environ, "PYTHONPATH": str(home())},
    )  # fmt: skip
    assert done.returncode == 2 and "or --count skyline=0" in done.stderr and done.stdout == ""


def test_per_kind_words_and_options_follow_the_table():
    more = KINDS.plus(
        replace(KINDS.named("topk"), code=5, name="twin", recipe=replace(KINDS.named("topk").recipe, load=12, share=3)),
        Kind(6, "zone", "region", fields=("match",)),
    )
    words = words_of(more)
    assert words["kinds"] == "boolean, topk, decay, knn, skyline or twin; zone, which do not run yet"
    assert words["match"] == "boolean or zone" and words["engines"].endswith("; twin: skype")
    assert words["windows"].endswith("; twin: segments")
    fewer = {"decay": 20, "knn": 4, "skyline": 10, "twin": 3}
    assert words["fewer"] == "".join(f", {times} times fewer of {kind}" for kind, times in fewer.items())
    assert [(each.name, each.default.default, each.default.help) for each in each_kind(more)] == [
        ("boolean", 10_000, "Boolean subscriptions."),
        ("topk", 10_000, "Topk subscriptions."),
        ("decay", 0, "Decay subscriptions."),
        ("knn", 0, "Knn subscriptions."),
        ("skyline", 0, "Skyline subscriptions."),
        ("twin", 12, "Twin subscriptions."),
    ]
