"""Whose Ray a run uses: its own unless told otherwise, and never for long one that is not there."""

import json
import shutil
import socket
import tempfile
import threading
import time
from pathlib import Path

import pytest

from tests.support.covering import tiered
from tests.support.processes import Command, small_run

pytestmark = [pytest.mark.ray, pytest.mark.timeout(120)]


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
def test_run_address_of_what_is_no_ray_is_told_within_seconds(arguments, nobody, listener, greeting):
    _, _, start_s = refused(arguments, "--address", nobody)  # how long this machine takes to begin at all
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


@pytest.mark.parametrize(
    ("address", "word"),
    [("ray://127.0.0.1:10001", "client"), ("127.0.0.1", "HOST:PORT"), ("127.0.0.1:99999", "HOST:PORT"), ("", "HOST")],
)
def test_run_address_that_is_none_is_wrong_use(arguments, address, word):
    code, said, _ = refused(arguments, f"--address={address}")
    assert code == 2
    assert f"--address {address}" in said and word in said
