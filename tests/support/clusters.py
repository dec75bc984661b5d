"""Clusters of Ray started by hand on this machine, as their users start them."""

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
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import ray

from tests.support.processes import MARK, Command

#: `ray start` on loopback alone; told 127.0.0.1, it would take the address of the machine in its network.
START = """
from ray._private import services
from ray.scripts.scripts import start
services.get_node_ip_address = lambda address=None: "127.0.0.1"
start()
"""
OPEN = {"RAY_AUTH_MODE": "disabled"}
GUARDED = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0123456789abcdef" * 4}


class Cluster(NamedTuple):
    """Address of the head, the processes that hold the nodes, the head's first (each leads a group), Ray's folder."""

    address: str
    nodes: list[Any]
    folder: Path


WHERE = """
import sys
import ray
from topology.core.executors.connection import connected
with connected(sys.argv[1] if len(sys.argv) > 1 else None):
    print(ray.get_runtime_context().gcs_address, len(ray.nodes()))
"""


def _wait_for(address: str) -> None:
    """Poll until the head listens: whoever joins before waits for minutes."""
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex((host, int(port))) == 0:
                return
        threading.Event().wait(0.2)
    raise TimeoutError(f"no Ray head at {address}")


def _wait_for_nodes(address: str, nodes: int, access: dict[str, str]) -> None:
    """Poll until so many nodes have joined."""
    deadline = time.monotonic() + 300
    while True:
        with Command([address], access, script=WHERE) as command:
            _, printed, said = command.finish()
        if printed.endswith(f" {nodes}\n"):
            return
        assert time.monotonic() < deadline, f"{nodes} nodes have not joined: {printed}{said}"


@contextmanager
def cluster_of(
    count: int, access: dict[str, str], health: dict[str, str] | None = None, store_bytes: int | None = None
) -> Iterator[Cluster]:
    """A head and other nodes, `count` in all, on loopback; ended by their process groups.

    `access` are the variables of whoever joins, `health` those of the nodes alone; `store_bytes` the size of the object
    store of each.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    common = ["--node-ip-address", "127.0.0.1", "--num-cpus", "4", "--disable-usage-stats", "--block"]
    common += [] if store_bytes is None else ["--object-store-memory", str(store_bytes)]
    folder = tempfile.mkdtemp(prefix="ray-")  # short: Ray puts sockets into it, whose paths may have 107 bytes
    head = ["--head", "--port", address.rpartition(":")[2], "--include-dashboard=false", "--temp-dir", folder]
    nodes = []
    try:
        for more in [head] + [["--address", address]] * (count - 1):
            nodes.append(
                subprocess.Popen(
                    [sys.executable, "-c", START, *more, *common],
                    start_new_session=True,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env=os.environ | access | (health or {}) | {MARK: address},
                )
            )
            _wait_for(address)
        _wait_for_nodes(address, count, access)
        yield Cluster(address, nodes, Path(folder))
    finally:
        ray.shutdown()
        for node in reversed(nodes):
            with suppress(ProcessLookupError):
                os.killpg(node.pid, signal.SIGTERM)
        for node in nodes:
            try:
                node.wait(15)
            except subprocess.TimeoutExpired:  # a head that waits for its parts
                os.killpg(node.pid, signal.SIGKILL)
                node.wait(15)
        shutil.rmtree(folder, ignore_errors=True)
