"""A server that begins again says that it is ready when all that is logged is matched, and what waits is parsed."""

import re
import time

import pytest

from tests.support.processes import Command
from tests.support.serving import NDJSON, Served, call, free_port, kill, lines_of

pytestmark = pytest.mark.fault

SUBSCRIPTIONS = 4_000


def subscription(number):
    place = {"region": [number % 170, 0, number % 170 + 1, 1]}
    return {"subscription_id": f"s{number}", "kind": "boolean", "keywords": "ramen", **place}


def test_server_is_ready_once_all_that_is_logged_is_matched(tmp_path):
    options = (tmp_path / "out", "--window", "count:100", "--set", "recovery.checkpoint_every=300")
    with Served(*options) as served:
        rows = [subscription(number) for number in range(SUBSCRIPTIONS)]
        assert served.call("POST", "/v1/subscriptions", lines_of(rows), **NDJSON).status == 200
        messages = [{"id": f"m{number}", "text": "ramen", "lon": number, "lat": 0.5} for number in range(20)]
        assert served.call("POST", "/v1/messages", lines_of(messages), **NDJSON).status == 200
        kill(served)
    with Served(*options) as served:  # no checkpoint: all is matched again
        health = served.call("GET", "/ready").json
        assert health["complete_through"] == 19 and health["subscriptions"] == SUBSCRIPTIONS
        assert len(served.call("GET", "/v1/subscriptions/s7/results").lines) >= 1
        served.end()


def test_server_says_from_the_first_second_what_it_does_until_it_is_ready(tmp_path):
    options = (tmp_path / "out", "--window", "count:100", "--set", "recovery.checkpoint_every=300")
    with Served(*options) as served:
        rows = [subscription(number) for number in range(SUBSCRIPTIONS)]
        served.call("POST", "/v1/subscriptions", lines_of(rows), **NDJSON)
        served.call(
            "POST", "/v1/messages", [{"id": f"m{number}", "text": "ramen", "lon": 1, "lat": 1} for number in range(9)]
        )
        kill(served)
    port = free_port()
    with Command(["serve", "--out", *options, "--port", port, "--query-bolts", 1]) as served:
        seen, deadline = [], time.monotonic() + 60
        while not seen or seen[-1]["status"] == "starting":
            assert time.monotonic() < deadline, (seen, served.read())
            try:
                found = call(port, "GET", "/health")
            except OSError:
                continue
            assert found.status == 200
            seen.append(found.json)
        assert seen[0]["status"] == "starting" and seen[0]["doing"] and "messages" not in seen[0]
        assert seen[-1]["subscriptions"] == SUBSCRIPTIONS and seen[-1]["complete_through"] == 8
        assert seen[-1]["doing"] is None and seen[-1]["done"] is None
        shares = [one["done"] for one in seen if one["done"] is not None]
        assert shares and all(0 <= share <= 1 for share in shares)
        said = served.read()[1]
        steps = re.findall('event=starts doing="(.*?)"', said)
        assert steps[:4] == ["loading the program", "reading the log", "loading kernels", "loading the checkpoint"]
        assert steps[4:] in ([], ["matching what was logged"])
        assert said.index("event=listens") < said.index("event=starts") < said.index("event=ready")
