"""What a stream's folder takes of its disk, and when that is full."""

import json
import os
import re

import pytest

from gateway.serve.disk_use import EVERY_S, KEPT_S, DiskUse
from tests.support.beside import BUSY
from tests.support.serving import Served

KIB = 1024


class Growing:
    """A folder like a stream's, whose files a test grows, and its clock."""

    def __init__(self, folder):
        self.folder, self.now_s = folder, 1_000_000.0
        for name in ("journal/index", "updates", "checkpoints"):
            (folder / name).mkdir(parents=True)
        self.use = DiskUse(folder, lambda: self.now_s)

    def grow(self, name, kib):
        with open(self.folder / name, "ab") as file:
            file.write(os.urandom(kib * KIB))
            os.fsync(file.fileno())


@pytest.fixture
def growing(tmp_path):
    return Growing(tmp_path)


def test_sizes_are_those_of_each_part_of_the_folder(growing):
    for number, name in enumerate(
        ("journal/log", "journal/index/0", "updates/part-0", "updates/part-1", "checkpoints/e")
    ):
        growing.grow(name, 64 << number)
    found = growing.use.figures()
    assert found.size_bytes == {
        "log": 64 * KIB, "index": 128 * KIB, "updates": (256 + 512) * KIB, "checkpoints": 1024 * KIB
    }  # fmt: skip
    assert found.free_bytes == pytest.approx(
        os.statvfs(growing.folder).f_bavail * os.statvfs(growing.folder).f_frsize, rel=0.1
    )
    assert (found.grows_bytes_per_s, found.full_s) == (None, None), "nothing is known within the first minute"


def test_disk_is_full_at_the_pace_of_log_updates_and_index_within_the_last_day(growing):
    growing.use.figures()
    growing.now_s += EVERY_S
    growing.grow("journal/log", 512)
    growing.grow("updates/part-0", 128)
    growing.grow("checkpoints/e", 4096)
    found = growing.use.figures()
    assert found.grows_bytes_per_s == 640 * KIB / EVERY_S
    assert found.full_s == pytest.approx(growing.now_s + found.free_bytes / (640 * KIB / EVERY_S))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", json.loads(json.dumps(found.as_json()))["full_at"])
    growing.now_s += EVERY_S / 2
    growing.grow("journal/log", 512)
    assert growing.use.figures() is found, "once a minute"
    growing.now_s += KEPT_S
    late = growing.use.figures()
    assert late.grows_bytes_per_s is None, "what is older than a day counts no more"
    growing.now_s += 2 * EVERY_S
    assert growing.use.figures().grows_bytes_per_s == 0.0
    assert growing.use.figures().full_s is None


def test_clock_that_is_set_back_begins_anew(growing):
    growing.use.figures()
    growing.now_s -= 10 * EVERY_S
    growing.grow("journal/log", 512)
    assert growing.use.figures().grows_bytes_per_s is None
    growing.now_s += EVERY_S
    growing.grow("journal/log", 128)
    assert growing.use.figures().grows_bytes_per_s == 128 * KIB / EVERY_S


def test_folder_of_pruned_or_new_parts_has_what_is_there(growing):
    assert growing.use.figures().size_bytes == dict.fromkeys(("log", "updates", "index", "checkpoints"), 0)


def test_server_says_what_its_folder_takes(tmp_path):
    with Served(tmp_path / "out", *BUSY) as served:
        assert served.call("POST", "/v1/messages?wait=delivered", {"text": "ramen", "lon": 1, "lat": 1}).status == 200
        disk = served.call("GET", "/v1/stream").json["disk"]
        assert set(disk["size_bytes"]) == {"log", "updates", "index", "checkpoints"}
        assert disk["free_bytes"] > 0 and disk["full_at"] is None
        said = served.call("GET", "/metrics").body.decode()
        assert 'skyray_disk_bytes{what="log"}' in said and "skyray_disk_free_bytes" in said
        served.end()
