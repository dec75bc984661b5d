"""A cluster of two nodes by `deploy/node.py`: guarded, on loopback alone, and gone when told to."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from tests.support.processes import MARK, ROOT, Command, command_line, marked, small_run

pytestmark = pytest.mark.ray

#: A token of its own needs a home of its own; kernels that are compiled already do not.
KERNELS = {"SKYRAY_KERNEL_CACHE": os.environ.get("SKYRAY_KERNEL_CACHE") or str(Path.home() / ".cache")}
LISTENING = """
import psutil
from topology.core.executors.connection import connected
with connected(None):
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        for connection in process.net_connections("inet"):
            if connection.status == psutil.CONN_LISTEN:
                print(connection.laddr.ip)
"""


def test_connected_to_a_ray_of_its_own_listens_on_loopback_alone():
    with Command([], script=LISTENING) as command:
        code, printed, said = command.finish()
    assert code == 0, said
    assert len(printed.split()) >= 3 and {ip.removeprefix("::ffff:") for ip in printed.split()} == {"127.0.0.1"}


def listening(mark):
    found = set()
    for process in marked(mark):
        try:
            sockets = process.net_connections("inet")
        except psutil.Error:
            continue
        found |= {each.laddr.ip.removeprefix("::ffff:") for each in sockets if each.status == psutil.CONN_LISTEN}
    return found


def await_(what, seconds=60):
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline
        threading.Event().wait(0.2)


def start(mark, home, *arguments, **environment):
    return subprocess.Popen(
        [sys.executable, ROOT / "deploy" / "node.py", *map(str, arguments)],
        env={name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        | {"HOME": str(home), "PYTHONPATH": str(ROOT), MARK: mark, **KERNELS, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        text=True,
    )


@pytest.mark.cluster
def test_node_head_and_worker_run_a_topology_by_token_on_loopback(tmp_path_factory):
    home = tmp_path_factory.mktemp("h")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address, mark = f"127.0.0.1:{port}", f"node {port}"
    temp = ["--temp-dir", Path("/tmp") / f"ray-{port}"]  # short: Ray puts sockets into it
    nodes = [start(mark, home, "head", "--loopback", "--port", port, "--num-cpus", 4, *temp)]
    try:
        await_(lambda: listening(mark) and (home / ".ray" / "auth_token").is_file())
        nodes.append(start(mark, home, "worker", address, "--loopback", "--num-cpus", 4))
        await_(lambda: sum("raylet/raylet" in command_line(process) for process in marked(mark)) == 2)
        run = [*small_run(home, messages=300, batch=50), "--address", address, "--json"]
        environment = {"HOME": str(home), "RAY_AUTH_MODE": None, "RAY_AUTH_TOKEN": None, **KERNELS}
        with Command(run, environment) as command:
            code, printed, said = command.finish()
        assert code == 0 and sum(json.loads(printed)["delivery"]["updates"].values()) > 0, said
        assert listening(mark) == {"127.0.0.1"}
        with Command(run, environment | {"RAY_AUTH_TOKEN": "0" * 64}) as command:
            code, _, said = command.finish()
        assert code == 3 and "asks for a token" in said
    finally:
        for node in reversed(nodes):
            node.send_signal(signal.SIGTERM)
        said = [node.communicate(timeout=300)[0] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], said
    assert not marked(mark)


def test_node_without_a_token_is_refused_with_what_to_do(tmp_path):
    for arguments, environment, told in (
        (["worker", "192.0.2.1:6379"], {}, "copy"),
        (["head"], {"RAY_AUTH_MODE": "disabled"}, "RAY_AUTH_MODE"),
    ):
        node = start("none", tmp_path, *arguments, **environment)
        said, _ = node.communicate(timeout=300)
        assert node.returncode == 2 and said.startswith("error: ") and told in said
    assert not (tmp_path / ".ray").exists()
