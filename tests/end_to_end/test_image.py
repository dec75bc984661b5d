"""The image of `deploy/Containerfile`, built and started: its user, its commands, a server in it, and Ray.

Built by buildah without a daemon or a registry (`tests.support.images`). What this does not show: namespaces and limits
of a container's runtime, and the base image that the container file names.
"""

import json
import os
import re
import signal
import subprocess
import threading
import time
from contextlib import contextmanager, suppress

import psutil
import pytest

from tests.support import machines
from tests.support.images import Images
from tests.support.serving import call

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3000)]

USER = 10001
_RAY = """
import ray
from topology.core.executors.connection import connected
with connected(None):
    print(len(ray.nodes()))
"""


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    lacking = [each for each in ("buildah", "debootstrap") if each in machines.missing()]
    assert not lacking, f"make test-cluster installs {lacking}"
    made = Images(tmp_path_factory.mktemp("images"))
    made.make()
    return made


@pytest.fixture(scope="module")
def volumes(tmp_path_factory):
    """Folders for data and kernels, which belong to the image's user; all above may be entered."""
    found = {}
    for name in ("data", "kernels"):
        found[name] = tmp_path_factory.mktemp(name)
        os.chown(found[name], USER, USER)
    return found


def ended(images, volumes, *words, seconds=1500):
    done = subprocess.run(
        images.inside(*words, **volumes), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


@contextmanager
def started(images, volumes, log, *words):
    """A program of the image while the block lasts; yields the process in it, once it is there."""
    with open(log, "wb") as out:
        outer = subprocess.Popen(images.inside(*words, **volumes), stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    try:
        yield outer
    finally:
        if outer.poll() is None:
            for process in [*psutil.Process(outer.pid).children(recursive=True), psutil.Process(outer.pid)]:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            outer.wait(60)


def wait_for(what, seconds=600):
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < deadline, what
        threading.Event().wait(0.5)
    return found


def test_image_says_its_user_ports_and_volumes(images):
    config = json.loads(images.config())["OCIv1"]["config"]
    assert config["User"] == f"{USER}:{USER}" and config["Entrypoint"] == ["skyray"] and config["Cmd"] == ["--help"]
    assert set(config["Volumes"]) == {"/data", "/var/cache/skyray"} and config["WorkingDir"] == "/data"
    variables = dict(each.split("=", 1) for each in config["Env"])
    assert variables["RAY_AUTH_MODE"] == "token" and variables["RAY_USAGE_STATS_ENABLED"] == "0"


def test_volumes_of_the_image_are_the_folders_that_are_named_at_every_start(images, volumes):
    for number in range(12):
        ended(images, volumes, "touch", f"/data/start-{number}", f"/var/cache/skyray/start-{number}")
    assert {name: len(list(folder.glob("start-*"))) for name, folder in volumes.items()} == {"data": 12, "kernels": 12}


def test_commands_of_the_image_run_as_its_user_who_may_write_only_where_volumes_are(images, volumes):
    script = "id -u; touch /data/a /var/cache/skyray/b; ! touch /opt/skyray/c 2>/dev/null; ! touch /etc/d 2>/dev/null"
    assert ended(images, volumes, "sh", "-ec", script).split() == [str(USER)]
    assert {(folder / name).stat().st_uid for folder, name in zip(volumes.values(), "ab", strict=True)} == {USER}
    version = ended(images, volumes, "skyray", "version")
    assert "skyray 0.2.0" in version and "ray 2." in version and "pyspark not installed" in version
    assert ended(images, volumes, "ray", "--version").startswith("ray, version")
    assert ended(images, volumes, "wget", "--version")


def test_server_of_the_image_matches_and_ends_by_sigterm(images, volumes, tmp_path):
    log = tmp_path / "log"
    words = ("skyray", "serve", "--out", "/data/serve", "--port", "0", "--query-bolts", "1")
    with started(images, volumes, log, *words) as outer:
        found = wait_for(lambda: re.findall(r"url=http://127\.0\.0\.1:(\d+)", log.read_text()))
        wait_for(lambda: "event=ready" in log.read_text())
        port = int(found[0])
        row = {"subscription_id": "s1", "kind": "boolean", "keywords": "ramen", "region": [139, 35, 140, 36]}
        assert call(port, "POST", "/v1/subscriptions", row, timeout=600).json["status"] == "created"
        for number in range(50):
            message = {"id": f"m{number}", "text": "Ramen, open late", "lon": 139.69, "lat": 35.68}
            assert call(port, "POST", "/v1/messages", message, timeout=600).json["status"] == "accepted"
        wait_for(lambda: call(port, "GET", "/health", timeout=600).json["complete_through"] == 49)
        lines = call(port, "GET", "/v1/updates?since=begin&poll=true&limit=100", timeout=600).lines
        assert [one["message_id"] for one in lines if "change" in one] == [f"m{number}" for number in range(50)]
        server = next(one for one in psutil.Process(outer.pid).children(recursive=True) if "serve" in one.cmdline())
        inner = [one for one in server.children(recursive=True) or [server] if one.uids().effective == USER]
        for process in inner or [server]:
            process.send_signal(signal.SIGTERM)
        wait_for(lambda: outer.poll() is not None)
    assert "exact" in ended(images, volumes, "skyray", "verify", "/data/serve")


def test_ray_starts_in_the_image(images, volumes):
    assert ended(images, volumes, "/opt/skyray/bin/python", "-c", _RAY).split()[-1] == "1"
