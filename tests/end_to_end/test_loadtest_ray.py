"""A load test as people type it, on Ray, by a router that a load test used to leave out."""

import json

import pytest

import gateway.cli as cli
from tests.support.processes import Command

pytestmark = pytest.mark.ray


@pytest.mark.long
def test_cli_loadtest_by_keyword_makes_the_load_that_was_asked_for(ray_session, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    report = tmp_path / "report.json"
    code = cli.main(
        [
            "loadtest",
            "--rate",
            "500",
            "--seconds",
            "2",
            "--warm-up",
            "0",
            "--count",
            "boolean=60",
            "--count",
            "topk=40",
            "--router",
            "keyword",
            "--executor",
            "ray",
        ]
        + ["--query-bolts", "2", "--window", "count:500", "--out", str(report)]
    )
    assert code in (0, 1), "1 where this machine cannot keep the rate"
    assert "rate set         500 messages/s" in capsys.readouterr().out
    told = json.loads(report.read_text())
    asked = {name: told["settings"][name] for name in ("boolean", "topk", "skyline", "router", "query_bolts")}
    assert asked == {"boolean": 60, "topk": 40, "skyline": 0, "router": "keyword", "query_bolts": 2}
    assert told["messages"] == 1000 and told["updates"] > 0 and told["latency"]["count"] > 0
    held = [task["figures"]["subscriptions"] for task in told["topology"]["components"]["query"]["tasks"]]
    assert [sum(part[kind] for part in held) for kind in ("boolean", "topk", "skyline")] == [60, 40, 0]


#: The load test on a Ray of its own, in which the driver is told something as a raylet would tell it: again and again,
#: since Ray begins to listen some time after it says that it is there, and what was said before is lost.
_WARNED = """
import sys
import threading
import ray
from ray._private.utils import push_error_to_driver
import gateway.cli as cli
from topology.core.executors.connection import connected
def worry():
    while not over.wait(0.1):
        push_error_to_driver(ray._private.worker.global_worker, "slow_node", "a raylet is worried")
over = threading.Event()
with connected(None):
    worried = threading.Thread(target=worry, daemon=True)
    worried.start()
    load = ["--rate", "200", "--seconds", "1", "--warm-up", "0", "--window", "count:100", "--executor", "ray"]
    code = cli.main(["loadtest", "--json", *load, *sys.argv[1:]])
    over.set()
    worried.join()
sys.exit(code)
"""


@pytest.mark.wide
def test_cli_loadtest_as_json_keeps_what_ray_says_out_of_standard_output():
    few = [word for kind in ("boolean", "topk", "decay", "knn", "skyline") for word in ("--count", f"{kind}=9")]
    with Command(few, script=_WARNED) as command:
        code, out, errors = command.finish(240)
    assert code in (0, 1), errors
    assert json.loads(out)["messages"] == 200
    assert "a raylet is worried" in errors
