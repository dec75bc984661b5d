"""A server that begins again says that it is ready when all that is logged is matched, and what waits is parsed."""

import pytest

from tests.support.serving import NDJSON, Served, kill, lines_of

pytestmark = [pytest.mark.fault, pytest.mark.timeout(200)]

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
