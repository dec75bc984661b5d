"""Webhooks with real processes, both ends of which are killed: by the endpoint's book nothing is lost."""

import itertools
import json
import threading
import time
from contextlib import suppress

import pytest

from tests.support.processes import Command
from tests.support.serving import NDJSON, Served, call, free_port, kill, lines_of

pytestmark = [pytest.mark.fault, pytest.mark.long, pytest.mark.timeout(1_800)]

MESSAGES, GROUP, KILLS, NAMES = 200_000, 2_000, 10, 10
#: Answers once a line with what came is in its book.
ENDPOINT = """
import asyncio, json, os, sys
book = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
async def serve(reader, writer):
    try:
        while True:
            head = (await reader.readuntil(b"\\r\\n\\r\\n")).decode("latin-1").lower().split("\\r\\n")
            fields = dict(line.split(": ", 1) for line in head[1:] if line)
            data = json.loads(await reader.readexactly(int(fields["content-length"])))["data"]
            rows = [[one["id"], one["subscription_id"], one["message_id"]] for one in data["updates"]]
            os.write(book, json.dumps([fields["webhook-id"], data["webhook_id"], rows]).encode() + b"\\n")
            writer.write(b"HTTP/1.1 204 X\\r\\n\\r\\n")
            await writer.drain()
    except (OSError, asyncio.IncompleteReadError):
        writer.close()
async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", int(sys.argv[1]))
    print("ready", flush=True)
    await server.serve_forever()
asyncio.run(main())
"""
OPTIONS = ("--window", "count:1000", "--set", "webhooks.allow_host=127.0.0.1", "--set", "webhooks.retry_s=0.1")


class Receiver:
    """A process that keeps a book, and can be killed and begun again."""

    def __init__(self, path):
        self.port, self.path, self.kills = free_port(), path, 0
        self._begin()

    def _begin(self):
        self._process = Command([self.port, self.path], script=ENDPOINT).__enter__()
        self._process.await_(lambda: "ready" in self._process.read()[0])

    def kill(self):
        kill(self._process)
        self.close()
        self.kills += 1
        self._begin()

    def close(self):
        self._process.__exit__(None, None, None)

    def book(self):
        return [json.loads(line) for line in self.path.read_bytes().splitlines()] if self.path.exists() else []


def group_of(first):
    rows = range(first, first + GROUP)
    return lines_of([{"id": f"m{row}", "text": f"k{row % NAMES}", "lon": 139.5, "lat": 35.5} for row in rows])


def publish(port, first):
    """A group of messages, sent again until all are on disk."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        with suppress(OSError):
            answer = call(port, "POST", "/v1/messages", group_of(first), **{"Content-Type": NDJSON["Content-Type"]})
            if answer.status == 200 and {one["status"] for one in answer.lines} <= {"accepted", "duplicate"}:
                return
    raise AssertionError("not taken")


def begin(served, url):
    """Subscriptions and webhooks: of all, of one in small batches, of one as a digest."""
    for place in range(NAMES):
        region = {"kind": "boolean", "region": [139, 35, 140, 36], "owner": "all"}
        row = {"subscription_id": f"k{place}", "keywords": f"k{place}", **region}
        assert served.call("POST", "/v1/subscriptions", row).status == 201
    wanted = [
        ({"owner": "all", "batch_updates": 300}, set(range(NAMES))),
        ({"subscription_id": "k1", "batch_updates": 10}, {1}),
        ({"subscription_id": "k2", "every": "2s"}, {2}),
    ]
    made = [served.call("POST", "/v1/webhooks", {"url": url, **body}).json["id"] for body, _ in wanted]
    return {name: places for name, (_, places) in zip(made, wanted, strict=True)}


def counts_of(served):
    return [one["deliveries"] | {"at": one["updates"]} for one in served.call("GET", "/v1/webhooks").json["webhooks"]]


def test_both_ends_killed_again_and_again_nothing_is_missing_or_extra(tmp_path, record_property):
    receiver, out = Receiver(tmp_path / "book"), tmp_path / "out"
    hooks, kills, waiting_at_kills = {}, 0, 0
    firsts = iter(range(0, MESSAGES, GROUP))
    try:
        for life in range(KILLS + 1):
            with Served(out, *OPTIONS, "--set", "webhooks.attempts=100") as served:
                hooks = hooks or begin(served, f"http://127.0.0.1:{receiver.port}/")
                share = None if life == KILLS else MESSAGES // GROUP // (KILLS + 1)
                for number, first in enumerate(itertools.islice(firsts, share)):
                    publish(served.port, first)
                    if number == 3:
                        receiver.kill()
                if life < KILLS:
                    waiting_at_kills += sum(one["waiting"] for one in counts_of(served))
                    kill(served)
                    kills += 1
                    continue
                deadline = time.monotonic() + 300
                total = MESSAGES + 2 * MESSAGES // NAMES
                while sum(one["at"]["delivered"] for one in counts_of(served)) < total:
                    assert time.monotonic() < deadline, counts_of(served)
                    threading.Event().wait(0.2)
                counts = counts_of(served)
    finally:
        receiver.close()
    assert all(one["waiting"] == one["dead"] == 0 and one["accepted"] == one["delivered"] for one in counts)
    book = receiver.book()
    content = {}
    for batch, hook, rows in book:
        assert content.setdefault(batch, (hook, rows)) == (hook, rows), "an id with two contents"
    for name, places in hooks.items():
        got = [(row[1], row[2]) for hook, rows in content.values() if hook == name for row in rows]
        wanted = {(f"k{row % NAMES}", f"m{row}") for row in range(MESSAGES) if row % NAMES in places}
        assert len(got) == len(set(got)), "repeated under another id"
        assert set(got) == wanted
    record_property("requests", len(book))
    record_property("repeats", len(book) - len(content))
    assert kills == KILLS and receiver.kills >= KILLS and waiting_at_kills > 0
