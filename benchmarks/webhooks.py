"""Webhooks of a server that runs: how late updates come, beside bad endpoints and without them, and how many a second.

    python -m benchmarks.webhooks            about two minutes; prints JSON
    python -m benchmarks.webhooks --quick    a few seconds, to see that it works

*Latency*: a `skyray serve` with 20 webhooks, each for a subscription of its own; every message matches all. Once all
endpoints answer at once, once four are bad: one hangs, one answers 500, one redirects, one drips a byte a second.
Measured from before the message is posted until the endpoint has it, of the same 16 webhooks in both.
*Throughput*: what was published before comes to one webhook from the beginning; beside it the bare client posts the
same bodies to the same endpoint, with as many requests under way.
"""

import argparse
import asyncio
import http.client
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import numpy as np

from gateway.sinks.webhooks.dispatch import IN_FLIGHT
from gateway.sinks.webhooks.signing import new_secret, signed_headers

HOOKS, BAD = 20, ("hang", "fail", "redirect", "drip")
_ANSWERS = {
    "fail": b"HTTP/1.1 500 X\r\nContent-Length: 0\r\n\r\n",
    "redirect": b"HTTP/1.1 302 X\r\nLocation: /good/0\r\nContent-Length: 0\r\n\r\n",
}
_GOOD = b"HTTP/1.1 204 X\r\n\r\n"


class Endpoint:
    """All endpoints, told apart by their paths: `/good/N`, `/hang`, ...; its book has (N, arrival in seconds, body)."""

    def __init__(self) -> None:
        self.book: list[tuple[str, float, bytes]] = []
        self.port = 0
        self._server: asyncio.Server | None = None

    async def begin(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def url(self, way: str) -> str:
        return f"http://127.0.0.1:{self.port}/{way}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                length = re.search(r"content-length: (\d+)", head, re.IGNORECASE)
                body = await reader.readexactly(int(length[1]) if length else 0)
                way = head.split(" ", 2)[1].strip("/")
                if way == "hang":
                    await asyncio.Event().wait()
                if way == "drip":
                    writer.write(b"HTTP/1.1 200 X\r\nContent-Length: 1000\r\n\r\n")
                    while True:
                        writer.write(b".")
                        await writer.drain()
                        await asyncio.sleep(1)
                if way.startswith("good"):
                    self.book.append((way, time.monotonic(), body))
                writer.write(_ANSWERS.get(way, _GOOD))
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            writer.close()


@contextmanager
def served(out: Path) -> Iterator[int]:
    """A server of a folder, and its port."""
    command = [sys.executable, "-m", "gateway.cli", "serve", "--out", str(out), "--port", "0", "--query-bolts", "1"]
    command += ["--window", "count:10000", "--webhook-allow-host", "127.0.0.1"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            port = 0
            for line in process.stderr:
                found = re.search(r"http://127\.0\.0\.1:(\d+)", line)
                port = int(found[1]) if found else port
                if "serve: ready" in line:
                    break
            yield port
        finally:
            process.terminate()
            process.stderr.read()


def call(port: int, method: str, path: str, body: Any = None) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, json.dumps(body), {"Content-Type": "application/json"})
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()


def message(text: str) -> dict[str, Any]:
    return {"text": text, "lon": 139.5, "lat": 35.5}


async def latencies(endpoint: Endpoint, ways: list[str], seconds: float, a_second: int) -> dict[str, Any]:
    """How late the updates of the last 16 webhooks come, in milliseconds."""
    endpoint.book.clear()
    with tempfile.TemporaryDirectory() as folder, served(Path(folder, "out")) as port:

        def prepare() -> None:
            for place, way in enumerate(ways):
                region = {"kind": "boolean", "keywords": "all", "region": [139, 35, 140, 36]}
                call(port, "POST", "/v1/subscriptions", {"subscription_id": f"s{place}", **region})
                made = {"url": endpoint.url(way), "subscription_id": f"s{place}"}
                call(port, "POST", "/v1/webhooks", made)

        await asyncio.to_thread(prepare)
        count = int(seconds * a_second)

        def publish() -> list[float]:
            posted, began_s = [], time.monotonic()
            for place in range(count):
                time.sleep(max(0.0, began_s + place / a_second - time.monotonic()))
                posted.append(time.monotonic())
                call(port, "POST", "/v1/messages", {"id": f"m{place}", **message("all")})
            return posted

        posted = await asyncio.to_thread(publish)
        measured = set(ways[len(BAD) :])
        wanted = count * len(measured)
        deadline_s = time.monotonic() + 60
        late_ms: list[float] = []
        while len(late_ms) < wanted and time.monotonic() < deadline_s:
            await asyncio.sleep(0.5)
            late_ms = [
                1e3 * (at_s - posted[int(row["message_id"][1:])])
                for way, at_s, body in endpoint.book
                if way in measured
                for row in json.loads(body)["data"]["updates"]
            ]
        p50, p99 = np.quantile(late_ms, (0.5, 0.99))
        return {"updates": len(late_ms), "of": wanted, "p50_ms": round(p50, 1), "p99_ms": round(p99, 1)}


async def throughput(endpoint: Endpoint, messages: int) -> list[dict[str, Any]]:
    """Updates and requests a second of one webhook from the beginning, by the size of a batch, beside the client."""
    found = []
    with tempfile.TemporaryDirectory() as folder, served(Path(folder, "out")) as port:

        def prepare() -> None:
            region = {"kind": "boolean", "keywords": "all", "region": [139, 35, 140, 36]}
            call(port, "POST", "/v1/subscriptions", {"subscription_id": "s", **region})
            for first in range(0, messages, 5_000):
                rows = [message("all") for _ in range(min(5_000, messages - first))]
                call(port, "POST", "/v1/messages?wait=delivered", rows)

        await asyncio.to_thread(prepare)
        for size in (1, 100):
            endpoint.book.clear()
            share = messages if size > 1 else messages // 10
            body = {"url": endpoint.url("good/0"), "subscription_id": "s", "since": "begin", "batch_updates": size}
            began_s = time.monotonic()
            hook = await asyncio.to_thread(call, port, "POST", "/v1/webhooks", body)
            while len(endpoint.book) * size < share and time.monotonic() < began_s + 120:
                await asyncio.sleep(0.01)
            took_s = time.monotonic() - began_s
            bodies = [each for _, _, each in endpoint.book]
            await asyncio.to_thread(call, port, "PATCH", f"/v1/webhooks/{hook['id']}", {"state": "paused"})
            bare_s = await bare(endpoint.url("good/0"), bodies)
            found.append(
                {
                    "batch_updates": size,
                    "requests": len(bodies),
                    "requests_per_s": round(len(bodies) / took_s),
                    "updates_per_s": round(len(bodies) * size / took_s),
                    "bare_client_requests_per_s": round(len(bodies) / bare_s),
                }
            )
    return found


async def bare(url: str, bodies: list[bytes]) -> float:
    """Seconds that the client alone takes to post these, signed, with as many under way as a webhook has."""
    left, secret = iter(bodies), new_secret()
    async with httpx2.AsyncClient(trust_env=False) as client:

        async def post() -> None:
            for body in left:
                await client.post(url, content=body, headers=signed_headers([secret], "id", 0, body))

        began_s = time.monotonic()
        await asyncio.gather(*(post() for _ in range(IN_FLIGHT)))
        return time.monotonic() - began_s


async def measure(quick: bool) -> dict[str, Any]:
    """All figures."""
    endpoint = Endpoint()
    await endpoint.begin()
    seconds, a_second, messages = (3.0, 10, 2_000) if quick else (30.0, 20, 100_000)
    good = [f"good/{place}" for place in range(HOOKS)]
    return {
        "quiet": await latencies(endpoint, good, seconds, a_second),
        "beside_bad": await latencies(endpoint, [*BAD, *good[len(BAD) :]], seconds, a_second),
        "throughput": await throughput(endpoint, messages),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    print(json.dumps(asyncio.run(measure(parser.parse_args().quick)), indent=2))
