"""Files by Spark into a feed, and from there into a topology; each side is killed, and nothing is lost or repeated."""

import pytest

from tests.support.feed_trial import assert_exact, run_trial, say

pytestmark = [pytest.mark.fault, pytest.mark.spark, pytest.mark.timeout(3_600)]


@pytest.mark.parametrize(
    ("seconds", "rate", "kills"),
    [
        pytest.param(10, 1_000, 1, marks=pytest.mark.wide),
        pytest.param(150, 2_000, 3, marks=pytest.mark.long),
        pytest.param(600, 2_000, 3, marks=pytest.mark.long),
    ],
)
def test_spark_and_topology_killed_in_turn_neither_lose_nor_repeat(tmp_path, seconds, rate, kills):
    assert_exact(run_trial(tmp_path, rate, seconds, kills, say), kills)
