"""Loss of nodes: what ran there goes on elsewhere, and each update is told once."""

import os
import signal

import pytest

from tests.support.clusters import OPEN, cluster_of
from tests.support.faulty_runs import FaultyRun, make_work

pytestmark = [pytest.mark.cluster, pytest.mark.ray, pytest.mark.fault]

#: Ray notices the death of a node after 15 s unless it is told to look more often.
HEALTH = {
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_failure_threshold": "3",
    "RAY_health_check_timeout_ms": "1000",
}


def test_killed_nodes_lose_nothing_their_tasks_go_on_elsewhere(tmp_path, monkeypatch):
    """Two of three nodes, one after the other; the head is left, where the command runs."""
    work = make_work(tmp_path / "work", 6_000, 60)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    run = FaultyRun(work, tmp_path / "out")
    with (
        cluster_of(3, OPEN, HEALTH) as cluster,
        run.start("--set", "input.rate=300", "--address", cluster.address) as command,
    ):
        for lost, node in enumerate(cluster.nodes[:0:-1]):
            run.await_progress(command, 2)
            run.strike(command, lambda node=node: os.killpg(node.pid, signal.SIGKILL))
            command.await_(lambda seen=lost: command.read()[1].count("recovered") > seen)
        run.finish(command)
    report = run.assert_exact(2)
    assert len(report["topology"]["recoveries"]) >= 2
