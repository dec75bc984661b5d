"""Digests at set times of a server that is killed while a wall clock goes back: each window one digest, each update in
one, the same for webhooks and for those who follow.

The zone is made by the test: its clock goes back by some seconds while the server is killed.
"""

import http.client
import json
import os
import random
import struct
import threading
import time
from collections import Counter
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from tests.support.endpoints import Endpoint
from tests.support.serving import Served, kill

pytestmark = [pytest.mark.fault, pytest.mark.timeout(1800)]

ZONE, BACK_S = "Test/Changing", 12


def write_zone(folder, changes_s):
    """A zone 0:20 ahead of UTC, whose clocks go back at a moment (RFC 8536, version 1)."""
    path = folder / ZONE
    path.parent.mkdir()
    types = struct.pack(">lBB", 1200, 0, 0) + struct.pack(">lBB", 1200 - BACK_S, 0, 4)
    head = b"TZif" + b"\0" * 16 + struct.pack(">6l", 0, 0, 0, 1, 2, 8)
    path.write_bytes(head + struct.pack(">l", changes_s) + b"\x01" + types + b"SUM\0WIN\0")


class Publisher(threading.Thread):
    """Publishes one message after the other, each until it is taken."""

    def __init__(self, port):
        super().__init__(daemon=True)
        self.port, self.count, self.over = port, 0, threading.Event()

    def run(self):
        while not self.over.wait(0.05):  # what comes while a clock is set back fits into one digest
            body = json.dumps({"id": f"m{self.count}", "text": f"tea {self.count}", "lon": 0, "lat": 0})
            try:
                connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
                connection.request("POST", "/v1/messages", body, {"Content-Type": "application/json"})
                self.count += connection.getresponse().status in (200, 201)
                connection.close()
            except OSError:
                continue


@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.long)])
def test_one_digest_a_window_over_kills_and_a_change_of_clocks(tmp_path, monkeypatch, kills):
    rng = random.Random(kills)
    system = os.pathsep.join(("/usr/share/zoneinfo", "/usr/lib/zoneinfo", "/etc/zoneinfo"))
    monkeypatch.setenv("PYTHONTZPATH", f"{tmp_path}{os.pathsep}{system}")
    row = {"kind": "boolean", "keywords": "tea", "region": [-1, -1, 1, 1]}
    options = ("--set", "webhooks.allow_host=127.0.0.1", "--set", "webhooks.retry_s=0.1")
    options += ("--set", "recovery.checkpoint_every=3")
    with Endpoint() as endpoint:
        served = Served(tmp_path / "out", *options)
        port, began_s, step_s = served.port, int(time.time()), 5 if kills < 10 else 8
        changes_s = began_s + 8 * kills + 4  # while it is killed, or soon behind
        write_zone(tmp_path, changes_s)
        zone = ZoneInfo.from_file(open(tmp_path / ZONE, "rb"))  # noqa: SIM115
        local = [datetime.fromtimestamp(began_s + step_s * n, zone) for n in range(96)]
        times = sorted({f"{one:%H:%M:%S}" for one in local})
        served.call("POST", "/v1/subscriptions", {**row, "subscription_id": "s", "tell": {"at": times, "zone": ZONE}})
        served.call("POST", "/v1/subscriptions", {**row, "subscription_id": "plain"})
        for name in ("s", "plain"):
            served.call("POST", "/v1/webhooks", {"url": endpoint.url, "subscription_id": name})
        publisher = Publisher(port)
        publisher.start()
        for _ in range(kills):
            threading.Event().wait(rng.uniform(0.5, 6.0))
            kill(served)
            served.__exit__(None, None, None)
            served = Served(tmp_path / "out", *options, port=port)
        while time.time() < changes_s + BACK_S + 10:  # until each time has come twice
            threading.Event().wait(0.5)
        publisher.over.set()
        publisher.join(20)
        count = publisher.count
        with served:
            deadline = time.monotonic() + 300
            while len(_told(endpoint)) < count:
                assert time.monotonic() < deadline, (len(_told(endpoint)), count)
                threading.Event().wait(0.5)
            endpoint.await_(lambda book: len(_updates(book, "plain")) >= count, 60)
            state = served.call("GET", "/v1/subscriptions/s/tell").json
            followed = _followed(port)
    expected = {f"m{number}" for number in range(count)}
    by_id = {one.id: one for one in endpoint.book}  # an attempt whose answer the server did not hear comes again
    digests = [json.loads(one.body)["data"] for one in by_id.values() if json.loads(one.body)["type"] == "skyray.told"]
    told = Counter(one["message_id"] for each in digests for one in each["updates"])
    assert told == dict.fromkeys(expected, 1) and state["held"] == 0
    assert Counter(_updates(by_id.values(), "plain")) == dict.fromkeys(expected, 1)
    windows = Counter(each["told"]["window"] for each in digests)
    assert (
        max(windows.values()) == 1 and len(windows) >= 3 and not any(each["told"].get("left_out") for each in digests)
    )
    local_times = Counter(window[:19] for window in windows)
    assert max(local_times.values()) == 1, "a time that comes twice gives one digest"
    assert {window[11:19] for window in windows} <= set(times)
    assert {window[19:] for window in windows} == {"+00:20", f"+00:19:{60 - BACK_S}"}, "the clock has changed"
    assert Counter(each["told"]["id"] for each in followed) == dict.fromkeys((one["told"]["id"] for one in digests), 1)
    assert [one["message_id"] for each in followed for one in each["updates"]] == sorted(
        expected, key=lambda m: int(m[1:])
    )


def _updates(book, name):
    found = [json.loads(one.body) for one in book]
    plain = [each["data"]["updates"] for each in found if each["type"] == "skyray.updates"]
    return [one["message_id"] for each in plain for one in each if one["subscription_id"] == name]


def _told(endpoint):
    found = [json.loads(one.body) for one in endpoint.book]
    told = [each["data"]["updates"] for each in found if each["type"] == "skyray.told"]
    return {one["message_id"] for each in told for one in each}


def _followed(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    connection.request("GET", "/v1/told?since=0")
    answer, found = connection.getresponse(), []
    while "progress" not in (row := json.loads(answer.readline())):
        found.append(row["told"])
    connection.close()
    return found
