"""`skyray serve --demo` as a process: updates come by themselves, and each is right."""

import re
import shutil
from pathlib import Path

import pytest

from gateway.runs.verify import verify_run
from gateway.serve.demo import SUBSCRIPTIONS_OF_A_KIND, message, subscriptions
from matching.kinds import KINDS
from tests.support.processes import Command
from tests.support.serving import Follower, call

pytestmark = pytest.mark.fault


def test_demo_from_nothing_to_updates_that_are_exact():
    with Command(["serve", "--demo", "--port", 0, "--set", "server.demo_rate=200", "--query-bolts", 1]) as served:
        served.await_(lambda: "first update after" in served.read()[1], 240)
        said = served.read()[1]
        port = int(re.findall(r"open http://127\.0\.0\.1:(\d+) in a browser", said)[0])
        out = Path(re.findall(r"everything is in (\S+)", said)[0])
        found = re.findall(rf"curl '(http://127\.0\.0\.1:{port}\S+/results)'", said)
        with Follower(port) as follower:
            served.await_(lambda: len(follower.book) >= 100)
        results = call(port, "GET", found[0].partition(str(port))[2])
        assert results.status == 200 and results.json["kind"] == "boolean"
        assert set(call(port, "GET", "/v1/topology").json["preparing"]) < {kind.name for kind in KINDS.run}
        served.process.terminate()
        code, _, said = served.finish(60)
        assert code == 0 and f"skyray verify {out}" in said
        served.assert_nothing_left()
    verdict = verify_run(out)
    assert verdict.exact and sum(verdict.oracle_updates.values()) >= 100
    shutil.rmtree(out)


def test_demo_makes_the_same_messages_and_subscriptions_each_time():
    assert message(7, "2030-01-01") == message(7, "2030-01-01") != message(8, "2030-01-01")
    for kind in KINDS.run:
        rows = subscriptions(kind)
        assert rows == subscriptions(kind) and len({row["subscription_id"] for row in rows}) == SUBSCRIPTIONS_OF_A_KIND
