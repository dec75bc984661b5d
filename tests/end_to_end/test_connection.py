"""Whose Ray a run uses: its own unless told otherwise, and never for long one that is not there."""

import json
import os
import shutil
import socket
import tempfile
import threading
import time
from pathlib import Path

import pytest

from gateway.cli import main
from tests.support.covering import tiered
from tests.support.processes import Command, small_run

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def arguments(tmp_path_factory):
    return small_run(tmp_path_factory.mktemp("connection"), messages=200, batch=50)


@pytest.fixture
def nobody():
    """HOST:PORT where nobody listens, and nobody else will while the test runs."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"


@pytest.fixture
def listener():
    """Serve what connects at a port; yields the function that says how and returns HOST:PORT."""
    server = socket.create_server(("0.0.0.0", 0))  # Ray turns 127.0.0.1 into the machine's own address
    connections = []

    def listen(greeting: bytes | None) -> str:
        def serve():
            while True:
                try:
                    connections.append(server.accept()[0])
                except OSError:
                    return
                if greeting is not None:
                    connections[-1].sendall(greeting)

        threading.Thread(target=serve, daemon=True).start()
        return f"127.0.0.1:{server.getsockname()[1]}"

    yield listen
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    for connection in connections:
        connection.close()


@pytest.fixture(scope="module")
def start_s(arguments):
    """How long this machine takes to begin at all, and to be refused."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return refused(arguments, "--address", f"127.0.0.1:{held.getsockname()[1]}")[2]


@pytest.fixture
def left_over(nobody):
    """A folder for Ray in which a cluster that is no more has left its address; short, for Ray's sockets."""
    folder = Path(tempfile.mkdtemp(prefix="ray-"))
    (folder / "ray").mkdir()
    (folder / "ray" / "ray_current_cluster").write_text(nobody)
    yield str(folder)
    shutil.rmtree(folder, ignore_errors=True)


def refused(arguments, *more, environment=None):
    """Run what cannot run; its exit code, its line, and how long it took."""
    out = Path(arguments[arguments.index("--out") + 1])
    with Command([*arguments, *more], environment) as command:
        code, printed, said = command.finish()
        took_s = time.monotonic() - command.began_s
        command.assert_nothing_left(0)
    assert printed == "" and said.startswith("error: ") and said.count("\n") == 1, said
    assert not out.exists(), "the output folder was touched"
    return code, said, took_s


@pytest.mark.parametrize("how", tiered(["environment", "file"], 2))
def test_run_without_address_starts_its_own_ray_whatever_cluster_is_named(arguments, nobody, left_over, tmp_path, how):
    environment = {"RAY_ADDRESS": nobody} if how == "environment" else {"RAY_TMPDIR": left_over}
    with Command([*arguments, "--out", tmp_path / how, "--json"], environment) as command:
        code, printed, said = command.finish()
        command.assert_nothing_left()
    assert code == 0, said
    assert json.loads(printed)["spouts"]["messages"]["messages"] == 200


def test_run_address_where_nobody_listens_is_told_at_once(arguments, nobody):
    code, said, took_s = refused(arguments, "--address", nobody)
    assert code == 3
    for part in (f"no Ray cluster answers at '{nobody}'", "refused", "ray start --head", "leave --address out"):
        assert part in said
    assert took_s < 15


@pytest.mark.parametrize("greeting", [None, b"HTTP/1.1 400 Bad Request\r\n\r\n"], ids=["silent", "other"])
def test_run_address_of_what_is_no_ray_is_told_within_seconds(arguments, listener, greeting, start_s):
    address = listener(greeting)
    code, said, took_s = refused(arguments, "--address", address)
    assert code == 3
    assert f"no Ray cluster answers at '{address}'" in said and "leave --address out" in said
    assert took_s - start_s < 14


def test_run_address_auto_without_cluster_is_told(arguments, tmp_path):
    code, said, _ = refused(arguments, "--address", "auto", environment={"RAY_TMPDIR": str(tmp_path)})
    assert code == 3
    assert "auto" in said and "RAY_ADDRESS" in said and "leave --address out" in said


@pytest.mark.parametrize("how", tiered(["environment", "file"], 2))
def test_run_address_auto_of_a_dead_cluster_names_it(arguments, nobody, left_over, how):
    environment = {"RAY_ADDRESS": nobody} if how == "environment" else {"RAY_TMPDIR": left_over}
    code, said, _ = refused(arguments, "--address", "auto", environment=environment)
    assert code == 3
    assert f"no Ray cluster answers at '{nobody}'" in said


def test_run_address_auto_does_not_join_what_another_user_has_named(arguments, nobody, left_over):
    """All users can write to the folder of Ray: whoever joined would run the code of that cluster."""
    named = Path(left_over, "ray", "ray_current_cluster")
    if os.geteuid() == 0:
        os.chown(named, 65534, 65534)
        why = "belongs to user 65534"
    else:  # who is not root cannot make files of others: a link to one stands in
        named.unlink()
        named.symlink_to("/etc/hostname")
        why = "cannot be read"
    code, said, _ = refused(arguments, "--address", "auto", environment={"RAY_TMPDIR": left_over})
    assert code == 3 and why in said, said


def test_run_address_is_tried_without_the_code_of_the_current_folder(arguments, nobody, tmp_path):
    (tmp_path / "socket.py").write_text("import sys; sys.exit('code of another user ran')")
    script = """
import os, sys
sys.path.remove("")  # as for the command
os.chdir(sys.argv.pop())
from gateway.cli import main
sys.exit(main(sys.argv[1:]))
"""
    with Command([*arguments, "--address", nobody, tmp_path], script=script) as command:
        code, _, said = command.finish()
    assert code == 3 and "refused" in said, said


@pytest.mark.parametrize("how", ["ended", "killed"])
def test_run_keeps_its_own_ray_where_nobody_else_may_enter_and_leaves_nothing_there(tmp_path, how):
    """Ray lets all users write to the folder that it gets, in which its sockets and the code of workers lie."""
    place = Path(tempfile.mkdtemp(prefix="t-", dir="/tmp"))
    place.chmod(0o1777)
    try:
        script = """
import sys
from topology.core.executors.connection import connected
with connected(None):
    print("there", flush=True)
    sys.stdin.readline()
"""
        reading, writing = os.pipe()
        with Command([], {"RAY_TMPDIR": str(place)}, script=script, source=reading) as command:
            command.await_(lambda: command.read()[0] == "there\n")
            (own,) = place.iterdir()
            assert own.stat().st_mode & 0o777 == 0o700 and list(own.glob("ray/session_*/sockets"))
            if how == "killed":
                command.process.kill()
            os.close(writing)
            command.process.wait(60)
            command.assert_nothing_left(10)
        os.close(reading)
        deadline = time.monotonic() + 10
        while list(place.iterdir()):
            assert time.monotonic() < deadline, list(place.iterdir())
            threading.Event().wait(0.05)
    finally:
        shutil.rmtree(place)


@pytest.mark.parametrize(
    ("address", "word"),
    [("ray://127.0.0.1:10001", "client"), ("127.0.0.1", "HOST:PORT"), ("127.0.0.1:99999", "HOST:PORT"), ("", "HOST")],
)
def test_run_address_that_is_none_is_wrong_use(arguments, address, word, capsys):
    assert main([*map(str, arguments), f"--address={address}"]) == 2
    printed, said = capsys.readouterr()
    assert printed == "" and said.startswith("error: ") and said.count("\n") == 1, said
    assert f"--address {address}" in said and word in said
    assert not Path(arguments[arguments.index("--out") + 1]).exists(), "the output folder was touched"
