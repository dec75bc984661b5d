"""A cluster started by hand, a head and a worker: the topology joins it and gives the same answer as one process."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
import ray

from tests.end_to_end.test_topology_exact import differences, plan_of
from tests.worlds import Recipe, make_world
from topology.core.runner import run_ray

pytestmark = [pytest.mark.cluster, pytest.mark.ray, pytest.mark.timeout(300)]

RAY = Path(sys.executable).with_name("ray")


def _wait_for(address: str) -> None:
    """Poll until the head listens."""
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex((host, int(port))) == 0:
                return
        threading.Event().wait(0.2)
    raise TimeoutError(f"no Ray head at {address}")


@pytest.fixture
def cluster(monkeypatch):
    """Address of a head with one worker node, both on loopback; ended by their process groups."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    common = ["--node-ip-address", "127.0.0.1", "--num-cpus", "4", "--disable-usage-stats", "--block"]
    folder = tempfile.mkdtemp(prefix="ray-")  # short: Ray puts sockets into it, whose paths may have 107 bytes
    head = ["--head", "--port", address.rpartition(":")[2], "--include-dashboard=false", "--temp-dir", folder]
    nodes = []
    try:
        for more in (head, ["--address", address]):
            nodes.append(
                subprocess.Popen(
                    [RAY, "start", *more, *common],
                    start_new_session=True,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env=os.environ | {"RAY_AUTH_MODE": "disabled"},
                )
            )
            _wait_for(address)
        yield address
    finally:
        ray.shutdown()
        for node in reversed(nodes):
            os.killpg(node.pid, signal.SIGTERM)
        for node in nodes:
            try:
                node.wait(15)
            except subprocess.TimeoutExpired:  # a head that waits for its parts
                os.killpg(node.pid, signal.SIGKILL)
                node.wait(15)
        shutil.rmtree(folder, ignore_errors=True)


def test_topology_joins_a_running_cluster_and_equals_oracle(cluster):
    world = make_world(Recipe(), 1)
    report = run_ray(plan_of(world, "location", 1, query=3, tuples=2, distribution=2), address=cluster)
    assert not differences(world, report.components["delivery"].tasks[0].figures)
