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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import ray

from tests.support.processes import MARK, Command, command_line, marked, small_run
from tests.support.topologies import differences, plan_of
from tests.support.worlds import Recipe, make_world
from topology.core.runner import run_ray

pytestmark = [pytest.mark.cluster, pytest.mark.ray, pytest.mark.timeout(300)]

RAY = Path(sys.executable).with_name("ray")
OPEN = {"RAY_AUTH_MODE": "disabled"}
GUARDED = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0123456789abcdef" * 4}


_WHERE = """
import sys
import ray
from topology.core.connection import connected
with connected(sys.argv[1] if len(sys.argv) > 1 else None):
    print(ray.get_runtime_context().gcs_address, len(ray.nodes()))
"""


def _wait_for(address: str) -> None:
    """Poll until the head listens: whoever joins before waits for minutes."""
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex((host, int(port))) == 0:
                return
        threading.Event().wait(0.2)
    raise TimeoutError(f"no Ray head at {address}")


def _wait_for_nodes(address: str, nodes: int, access: dict[str, str]) -> None:
    """Poll until so many nodes have joined."""
    deadline = time.monotonic() + 60
    while True:
        with Command([address], access, script=_WHERE) as command:
            _, printed, said = command.finish()
        if printed.endswith(f" {nodes}\n"):
            return
        assert time.monotonic() < deadline, f"{nodes} nodes have not joined: {printed}{said}"


@contextmanager
def _two_nodes(access: dict[str, str]) -> Iterator[str]:
    """Address of a head with one worker node, both on loopback; ended by their process groups."""
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
                    env=os.environ | access | {MARK: address},
                )
            )
            _wait_for(address)
        _wait_for_nodes(address, 2, access)
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


@pytest.fixture(scope="module")
def open_cluster():
    """One for all, without access control."""
    with _two_nodes(OPEN) as address:
        yield address


@pytest.fixture
def cluster(open_cluster, monkeypatch):
    """Its address, for processes of this environment."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    return open_cluster


def test_topology_joins_a_running_cluster_and_equals_oracle(cluster):
    world = make_world(Recipe(), 1)
    report = run_ray(plan_of(world, "location", 1, query=3, tuples=2, distribution=2), address=cluster)
    assert not differences(world, report.components["delivery"].tasks[0].figures)


@pytest.mark.parametrize(("address", "nodes"), [(None, 1), ("auto", 2), ("HEAD", 2)])
def test_connected_uses_the_cluster_of_the_environment_only_if_told_so(cluster, address, nodes):
    arguments = [] if address is None else [address.replace("HEAD", cluster)]
    with Command(arguments, {"RAY_ADDRESS": cluster}, script=_WHERE) as command:
        code, printed, said = command.finish()
    assert code == 0, said
    gcs, _, count = printed.strip().partition(" ")
    assert int(count) == nodes
    # by port: a node may know its head as localhost
    assert (gcs.rpartition(":")[2] == cluster.rpartition(":")[2]) == (address is not None)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_run_told_to_end_takes_its_tasks_from_the_cluster_and_leaves_it_running(cluster, tmp_path, number, code):
    def tasks():
        return [line for line in map(command_line, marked(cluster)) if line.startswith("ray::WorkerActor")]

    arguments = small_run(tmp_path, messages=20_000, batch=1)
    with Command([*arguments, "--sink", "jsonl", "--address", cluster]) as command:
        command.await_(lambda: any(file.stat().st_size for file in (tmp_path / "out" / "updates").glob("*")))
        assert tasks()
        command.process.send_signal(number)
        ended, _, said = command.finish(40)
        command.assert_nothing_left()
    assert (ended, said.count("\n")) == (code, 1), said
    deadline = time.monotonic() + 15
    while tasks():
        assert time.monotonic() < deadline, tasks()
        threading.Event().wait(0.1)
    running = [command_line(process) for process in marked(cluster)]
    assert sum("raylet/raylet" in line for line in running) == 2 and any("gcs_server" in line for line in running)


def test_run_address_of_a_cluster_that_asks_for_a_token_says_so(tmp_path):
    arguments = small_run(tmp_path, messages=200, batch=50)
    without = {"RAY_AUTH_MODE": None, "RAY_AUTH_TOKEN": None}
    with _two_nodes(GUARDED) as address:
        with Command([*arguments, "--address", address], without) as command:
            code, _, said = command.finish()
        assert code == 3
        assert f"the Ray cluster at '{address}' asks for a token" in said and "RAY_AUTH_MODE=token" in said
        assert said.count("\n") == 1
        with Command([*arguments, "--address", address], GUARDED) as command:
            code, _, said = command.finish()
        assert code == 0, said
