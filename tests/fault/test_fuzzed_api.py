"""Requests that Schemathesis makes of the API's own description: answers are as described, none is a 5xx or a hang."""

import pytest

from tests.support.fuzzing import fuzz
from tests.support.serving import Served

pytestmark = pytest.mark.fault


def fuzzed(tmp_path, *options, seconds):
    """A server with a message and a subscription, which is there and has not failed when all is over."""
    with Served(tmp_path / "out", "--window", "count:1000") as served:
        region = {"kind": "boolean", "keywords": "ramen", "region": [139, 35, 140, 36]}
        assert served.call("PUT", "/v1/subscriptions/s1", region).status == 201
        message = {"id": "m1", "text": "Ramen", "lon": 139.5, "lat": 35.5}
        assert served.call("POST", "/v1/messages?wait=delivered", message).json["delivered"]
        code, found = fuzz(served.port, tmp_path, *options, seconds=seconds)
        assert code == 0, found
        assert served.call("GET", "/ready").status == 200
        assert "Traceback" not in served.end()


def test_api_that_is_fuzzed_answers_as_described(tmp_path):
    fuzzed(tmp_path, "--max-examples", 3, "--phases", "examples,coverage,fuzzing", "--seed", 1, seconds=90)


@pytest.mark.long
@pytest.mark.timeout(1_200)
def test_api_that_is_fuzzed_for_ten_minutes_answers_as_described(tmp_path):
    fuzzed(tmp_path, "--max-time", 600, seconds=1_000)
