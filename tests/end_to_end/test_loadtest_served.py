"""`skyray loadtest --url` against a real server: exact from outside, with a key, by several processes, and undone."""

import json

import pytest

import gateway.cli as cli
from gateway.serve.keys import create_key
from tests.support.processes import Command
from tests.support.serving import Served

FEW = ["--count", "boolean=900", "--count", "topk=60", "--count", "knn=30", "--count", "skyline=10", "--filters", "0.3"]


def loadtest(served, *words, **environment):
    with Command(["loadtest", "--url", f"http://127.0.0.1:{served.port}", "--json", *words], environment) as command:
        code, out, said = command.finish(200)
    assert out, said
    return code, json.loads(out), said


@pytest.mark.long
def test_load_test_of_a_server_is_exact_from_outside_and_leaves_no_subscription(tmp_path):
    with Served(tmp_path / "serve", "--window", "count:500", "--attribute", "price:number") as served:
        pace = ["--rate", "600", "--seconds", "1.5", "--warm-up", "0.5", "--generators", "2", "--check"]
        code, report, said = loadtest(served, *pace, *FEW)
        check = report["check"]
        assert check["exact"] and check["compared"] > 1_000 and check["not_checked"] == [], check
        assert {kind for kind, one in check["by_kind"].items() if one["compared"]} == set(check["by_kind"])
        assert report["messages"] == report["accepted"] == 1_200 and report["latency"]["count"] > 0
        assert len(report["generators"]) == 2 and report["failures"] == [] and report["refused"] == {}
        assert code == (0 if report["kept_up"] else 1), said
        assert served.call("GET", "/v1/subscriptions").json["subscriptions"] == []


def test_load_test_that_adds_and_ends_subscriptions_meanwhile_is_exact_from_outside(tmp_path):
    with Served(tmp_path / "serve", "--window", "count:500") as served:
        pace = ["--rate", "600", "--seconds", "1.4", "--warm-up", "0.1", "--changes", "250", "--check"]
        few = ["--count", "boolean=300", "--count", "topk=150", "--filters", "0.2"]
        code, report, said = loadtest(served, *pace, *few)
        check, changes = report["check"], report["changes"]
        assert check["exact"] and check["compared_changed"] > 1_000 and check["unanswered"] == 0, check
        assert check["changed_subscriptions"] > 100
        assert changes["offered"] == changes["done"] == 2 * changes["added"] == 2 * changes["ended"] == 750, said
        assert changes["answer"]["count"] > 600 and changes["effect"]["count"] > 600
        assert 0 < changes["answer"]["p50_s"] <= changes["answer"]["p99_s"]
        assert code == (0 if report["kept_up"] else 1), said
        assert served.call("GET", "/v1/subscriptions").json["subscriptions"] == []


@pytest.mark.long
def test_ramp_that_changes_subscriptions_of_all_kinds_is_exact_over_all_its_steps(tmp_path):
    with Served(tmp_path / "serve", "--window", "count:500", "--attribute", "price:number") as served:
        code, report, said = loadtest(
            served, "--hold", "3s", "--rate", "200", "--set", "loadtest.step_seconds=1", "--limit-p99-ms", "2000",
            "--check", "--generators", "2", "--changes", "400", *FEW,
        )  # fmt: skip
        check, steps = report["check"], report["ramp"]["steps"]
        assert check["exact"] and check["not_checked"] == [] and check["compared_changed"] > 1_000, said
        assert all(one["compared_changed"] for one in check["by_kind"].values()), check
        assert len(steps) >= 2 and report["changes"]["offered"] == 2 * 400 * 4
        assert code == (0 if report["kept_up"] else 1)
        assert served.call("GET", "/v1/subscriptions").json["subscriptions"] == []


@pytest.mark.long
def test_load_test_with_a_key_finds_the_peak(tmp_path):
    out = tmp_path / "serve"
    out.mkdir()
    _, key = create_key(out / "keys.json", frozenset({"subscribe", "publish"}))
    with Served(out, "--window", "count:500", "--require-key") as served:
        code, report, said = loadtest(
            served, "--hold", "3s", "--rate", "200", "--set", "loadtest.step_seconds=1", "--limit-p99-ms", "2000",
            "--check", "--count", "boolean=900", "--count", "topk=60",
            SKYRAY_KEY=key,
        )  # fmt: skip
        assert report["check"]["exact"] and len(report["ramp"]["steps"]) >= 2, said
        assert code == (0 if report["kept_up"] else 1)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--url", "ftp://x"], "no address of a server"),
        (["--url", "http://127.0.0.1:9", "--query-bolts", "2"], "--query-bolts: of a topology that the test starts"),
        (["--generators", "2"], "give its address by --url"),
    ],
)
def test_cli_loadtest_of_a_server_wrong_use_is_one_line(capsys, words, expected):
    assert cli.main(["loadtest", *words]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and expected in printed.err.splitlines()[-1]
