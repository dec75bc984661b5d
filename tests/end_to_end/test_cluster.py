"""A cluster started by hand, a head and a worker: the topology joins it and gives the same answer as one process."""

import signal
import threading
import time

import pytest

from tests.support.clusters import GUARDED, OPEN, WHERE, cluster_of
from tests.support.processes import Command, command_line, marked, small_run
from tests.support.topologies import differences, plan_of
from tests.support.worlds import Recipe, make_world
from topology.core.executors.ray import run_ray

pytestmark = [pytest.mark.cluster, pytest.mark.ray]


@pytest.fixture(scope="module")
def open_cluster():
    """One for all, without access control."""
    with cluster_of(2, OPEN) as cluster:
        yield cluster.address


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
    with Command(arguments, {"RAY_ADDRESS": cluster}, script=WHERE) as command:
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
    with Command([*arguments, "--checkpoint-every", "0.3", "--address", cluster]) as command:
        command.await_(lambda: any((tmp_path / "out" / "checkpoints").glob("epoch-*.json")))
        assert tasks()
        command.process.send_signal(number)
        ended, _, said = command.finish(40)
        command.assert_nothing_left()
    assert (ended, said.count("\n")) == (code, 1), said
    deadline = time.monotonic() + 300
    while tasks():
        assert time.monotonic() < deadline, tasks()
        threading.Event().wait(0.1)
    running = [command_line(process) for process in marked(cluster)]
    assert sum("raylet/raylet" in line for line in running) == 2 and any("gcs_server" in line for line in running)


GROUPS_LEFT = """
import sys
import ray
from topology.core.executors.connection import connected
with connected(sys.argv[1]):
    table = ray.util.placement_group_table().values()
    print(sorted(group["state"] for group in table), ray.available_resources()["CPU"])
"""


def test_run_killed_gives_back_what_it_has_reserved(cluster, tmp_path):
    """Six of the eight CPUs of the two nodes; then more than there is, which waits for its time and says so."""

    def reserved():
        with Command([cluster], script=GROUPS_LEFT) as command:
            return command.finish()[1].strip()

    arguments = [*small_run(tmp_path, messages=20_000, batch=1), "--address", cluster, "--query-bolts", 2]
    with Command([*arguments, "--set", "reservations.query_cpus=3", "--checkpoint-every", "0.3"]) as command:
        command.await_(lambda: any((tmp_path / "out" / "checkpoints").glob("epoch-*.json")))
        assert reserved() == "['CREATED'] 2.0"
        command.process.send_signal(signal.SIGKILL)
        command.finish(40)
    deadline = time.monotonic() + 300
    while reserved() != "['REMOVED'] 8.0":
        assert time.monotonic() < deadline, reserved()
    more = ["--set", "reservations.query_cpus=4.5", "--set", "reservations.reserve_wait=1", "--overwrite"]
    with Command([*arguments, *more]) as command:
        code, _, said = command.finish()
    assert code == 3 and "one process wants 4.5 CPUs, and no node has more than 4 CPUs" in said, said
    assert "lower reservations.query_cpus" in said and reserved().endswith(" 8.0")


def test_run_address_of_a_cluster_that_asks_for_a_token_says_so(tmp_path):
    arguments = small_run(tmp_path, messages=200, batch=50)
    without = {"RAY_AUTH_MODE": None, "RAY_AUTH_TOKEN": None}
    with cluster_of(2, GUARDED) as cluster:
        address = cluster.address
        with Command([*arguments, "--address", address], without) as command:
            code, _, said = command.finish()
        assert code == 3
        assert f"the Ray cluster at '{address}' asks for a token" in said and "RAY_AUTH_MODE=token" in said
        assert said.count("\n") == 1
        with Command([*arguments, "--address", address], GUARDED) as command:
            code, _, said = command.finish()
        assert code == 0, said
