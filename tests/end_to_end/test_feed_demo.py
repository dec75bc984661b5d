"""`skyray feed-demo`: from files by Spark to updates, with a verdict; a folder of anything else is left alone."""

import json

import pytest

from gateway.commands.feed_demo import subscriptions
from gateway.shell.places import places
from matching.kinds import KINDS
from tests.support.processes import Command

pytestmark = [pytest.mark.spark, pytest.mark.wide]


def test_feed_demo_is_exact_and_the_same_as_a_run_over_its_log(tmp_path):
    with Command(["feed-demo", "--out", tmp_path / "demo", "--seconds", 4, "--per-kind", 30, "--json"]) as command:
        code, told, said = command.finish(500)
        command.assert_nothing_left(10)
    assert code == 0, said
    found = json.loads(told)
    assert found["exact"] and found["same_as_run_over_log"] and found["verify"]["exact"]
    assert found["digests"]["live"] == found["digests"]["again"]
    assert found["messages"] > 30_000 and found["rejected"] == {"coordinate_not_number": found["rows"] // 100}
    assert sum(found["verify"]["oracle_updates"].values()) >= 1_000
    assert (tmp_path / "demo" / ".skyray-feed-demo").exists() and "update" in said and "all is written" in said


def test_feed_demo_leaves_a_folder_of_others_alone(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with Command(["feed-demo", "--out", tmp_path]) as command:
        code, _, said = command.finish(60)
    assert code == 2 and "holds something that is no earlier demo" in said
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_subscriptions_of_the_demo_are_all_usable():
    rows = list(places())
    found = list(subscriptions(rows, 50))
    assert len({row["subscription_id"] for row in found}) == 50 * len(KINDS.run)
    for row in found:
        assert ("region" in row) == (KINDS.named(row["kind"]).place == "region") and row["keywords"].strip()
