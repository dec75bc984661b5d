"""Load tests that are checked: a right one is found exact, and one update that is lost or wrong makes it wrong."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

import gateway.cli as cli
from gateway.load import check as load_check
from gateway.load import loadtest
from gateway.load.loadtest import Executor, load_test, render
from gateway.load.pace import Pace
from matching.kinds import KINDS
from tests.support.losing import spoil_one

COUNTS = {"boolean": 800, "topk": 60, "decay": 60, "knn": 80, "skyline": 80}


def checked(subscriptions=COUNTS, **how):
    """Of a load test that is over soon; however busy the machine is, several batches end in it."""
    settings = {"rate": 2000.0, "seconds": 0.6, "warm_up": 0.4, "batch": 50, "window": "count:400"} | how
    return load_test(executor=Executor.local, check=True, subscriptions=subscriptions, **settings)


def numbers_of(kind):
    """Subscriptions are numbered kind by kind."""
    names = list(COUNTS)
    before = sum(COUNTS[name] for name in names[: names.index(kind)])
    return range(before, before + COUNTS[kind])


@pytest.mark.parametrize(
    "how", [{}, {"window": "time:0.4", "seed": 1}, {"warm_up": 0.0, "checkpoint_every": 0.1, "filters": 0.6}]
)
def test_load_check_of_all_kinds_is_exact(how):
    report = checked(**how)
    check = report["check"]
    assert check["exact"] and not check["misnamed"] and check["not_checked"] == []
    assert check["by_kind"].keys() == COUNTS.keys()
    for name, told in check["by_kind"].items():
        assert told["exact"] and told["sampled"] <= COUNTS[name]
        assert told["compared"] >= told["compared_subscriptions"] > 5, name
    assert check["compared"] == sum(told["compared"] for told in check["by_kind"].values()) > 300
    assert f"check            exact: {check['compared']:,} updates of" in render(report)


@pytest.mark.parametrize(
    ("kind", "how"), [*((kind, "lost") for kind in COUNTS), ("boolean", "twice"), ("topk", "off"), ("knn", "off")]
)
def test_load_check_one_update_that_is_wrong_is_noticed(monkeypatch, kind, how):
    spoil_one(monkeypatch, numbers_of(kind), 1_000, how)
    report = checked()
    assert not report["check"]["exact"] and not report["check"]["by_kind"][kind]["exact"]
    assert [name for name, told in report["check"]["by_kind"].items() if not told["exact"]] == [kind]
    assert f"WRONG: {kind}" in render(report)
    assert report["check"][{"lost": "missing", "twice": "repeated", "off": "scores_off"}[how]] == 1


def test_load_check_all_updates_lost_is_noticed(monkeypatch):
    monkeypatch.setattr("bolts.sinks.PartSink.write", lambda self, *told: None)
    check = checked()["check"]
    assert not any(told["exact"] for told in check["by_kind"].values()) and check["compared"] > 300


def test_load_check_ids_that_nobody_has_are_noticed(monkeypatch):
    read = load_check.read_updates

    def renamed(folder):
        for part in read(folder):
            at = part.schema.get_field_index("message_id")
            yield part.set_column(at, "message_id", part["message_id"].take(list(range(len(part)))[::-1]))

    monkeypatch.setattr(load_check, "read_updates", renamed)
    report = checked({**dict.fromkeys(COUNTS, 0), "boolean": 400})
    assert not report["check"]["exact"] and report["check"]["by_kind"]["boolean"]["exact"]
    assert f"WRONG: {report['check']['misnamed']:,} ids" in render(report)


def test_load_check_of_kinds_with_lasting_results_takes_as_many_as_a_check_can(monkeypatch):
    monkeypatch.setattr(load_check, "_MOST_PAIRS", 2_000)
    check = checked()["check"]
    assert check["exact"]
    assert all(0 < check["by_kind"][name]["sampled"] < COUNTS[name] for name in ("decay", "knn"))


def test_load_check_without_two_batches_compares_nothing():
    report = checked(rate=100.0, seconds=0.1, warm_up=0.1, batch=50, linger_ms=0.0)
    assert not report["check"]["exact"] and report["check"]["compared"] == 0
    assert "NOTHING TO COMPARE" in render(report)


def test_load_check_says_which_kinds_the_oracle_does_not_know():
    twin = replace(KINDS.named("knn"), code=5, name="twin")
    report = checked({**COUNTS, "twin": 9}, kinds=KINDS.plus(twin))
    assert report["check"]["exact"] and report["check"]["not_checked"] == ["twin"]
    assert "not checked: twin" in render(report)


def test_load_check_of_a_topology_needs_no_library_of_http():
    script = "import sys, gateway.load.check; assert not {'httpx', 'httpx2'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=300)


def test_load_check_watches_some_batches_however_large():
    assert Pace(1.0, 10_000, 50, warming=900).watched() == range(900, 4_900)
    assert Pace(1.0, 100_000, 5_000).watched() == range(20_000)
    assert Pace(1.0, 100_000, 50, checked=30_000).watched() == range(30_000)


def test_load_test_without_a_rate_takes_half_of_the_peak_that_it_finds(monkeypatch):
    monkeypatch.setattr(loadtest, "PEAK_MESSAGES", 1_500)
    report = load_test(seconds=0.2, warm_up=0.1, executor=Executor.local, subscriptions={"boolean": 200, "topk": 50},
                       window="count:500")  # fmt: skip
    assert report["rate"] == report["peak_per_s"] / 2 > 0 and report["check"] is None
    assert f", half of {report['peak_per_s']:,.0f} at most" in render(report) and "check  " not in render(report)
    assert load_test(rate=500, seconds=0.2, executor=Executor.local, subscriptions=COUNTS)["peak_per_s"] is None


@pytest.mark.parametrize("lost", [False, True])
def test_cli_loadtest_checked_ends_with_1_if_an_update_is_lost(monkeypatch, capsys, lost):
    if lost:
        spoil_one(monkeypatch, numbers_of("topk"), 500)
    loads = [word for name, count in COUNTS.items() for word in ("--count", f"{name}={count}")]
    pace = ["--rate", "500", "--seconds", "1.2", "--warm-up", "0.8", "--window", "count:400"]
    assert cli.main(["loadtest", "--check", "--json", "--executor", "local", *pace, *loads]) == int(lost)
    assert json.loads(capsys.readouterr().out)["check"]["exact"] is not lost
