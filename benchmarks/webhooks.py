"""Webhooks of a server that runs: how late updates come, beside bad endpoints and without them, and how many a second.

*Latency*: a `skyray serve` with 20 webhooks, each for a subscription of its own; every message matches all. Once all
endpoints answer at once, once four are bad: one hangs, one answers 500, one redirects, one drips a byte a second.
Measured from before the message is posted until the endpoint has it, of the same 16 webhooks in both.
*Throughput*: what was published before comes to one webhook from the beginning; beside it, in turns, the bare client
posts the same bodies to the same endpoint from a process of its own, with as many requests under way. Every update
has to come, once in all requests that were taken, and to the latency's webhooks each message.
"""

import asyncio
import json
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import httpx2
import msgspec
import numpy as np

from benchmarks import command
from benchmarks.command import verdict
from benchmarks.stopwatch import medians
from gateway.sinks.webhooks.dispatch import IN_FLIGHT
from gateway.sinks.webhooks.signing import new_secret, signed_headers
from tests.support.serving import Served, call

HOOKS, BAD = 20, ("hang", "fail", "redirect", "drip")
#: Subscriptions of the webhook whose throughput is measured, each with a word of its own.
SUBSCRIPTIONS = 500
#: The bare client, in a process of its own.
_BARE = "import sys; from benchmarks.webhooks import bare_main; bare_main(*sys.argv[1:])"
_ANSWERS = {
    "fail": b"HTTP/1.1 500 X\r\nContent-Length: 0\r\n\r\n",
    "redirect": b"HTTP/1.1 302 X\r\nLocation: /good/0\r\nContent-Length: 0\r\n\r\n",
}
_GOOD = b"HTTP/1.1 204 X\r\n\r\n"


class Endpoint:
    """All endpoints, told apart by their paths: `/good/N`, `/hang`, ...; its book has (N, arrival in seconds, body)."""

    def __init__(self) -> None:
        self._serving: set[asyncio.Task[None] | None] = set()  # a task that is referred to nowhere ends early
        self.book: list[tuple[str, float, bytes]] = []
        self.port = 0
        self._server: asyncio.Server | None = None

    async def begin(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def url(self, way: str) -> str:
        return f"http://127.0.0.1:{self.port}/{way}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._serving.add(asyncio.current_task())
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


#: Options of `skyray serve`.
_OPTIONS = "--window", "count:10000", "--set", "webhooks.allow_host=127.0.0.1"


def message(text: str) -> dict[str, Any]:
    return {"text": text, "lon": 139.5, "lat": 35.5}


async def latencies(endpoint: Endpoint, ways: list[str], seconds: float, a_second: int) -> dict[str, Any]:
    """How late the updates of the last 16 webhooks come, in milliseconds."""
    endpoint.book.clear()
    with tempfile.TemporaryDirectory() as folder, Served(Path(folder, "out"), *_OPTIONS) as served:
        port = served.port

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
        return {"updates": len(late_ms), "of": wanted, "p50_ms": float(p50), "p99_ms": float(p99)}


async def throughput(endpoint: Endpoint, messages: int, rounds: int, tell: command.Tell) -> tuple[list[Any], int]:
    """Requests and updates a second of one webhook from the beginning, beside the client, by the size of a batch; and
    how many updates were missing or came more often than once."""
    found, wrong = [], 0
    with tempfile.TemporaryDirectory() as folder, Served(Path(folder, "out"), *_OPTIONS) as served:
        port = served.port
        await asyncio.to_thread(_publish, port, messages)
        for size in (1, 100):
            turns: list[dict[str, float]] = []
            share = messages if size > 1 else messages // 10
            for turn in range(rounds):
                bodies, one = await _of_webhook(endpoint, port, share, size)
                if share == messages:
                    wrong += _wrong(bodies, messages)
                endpoint.book.clear()
                bare_s = await asyncio.to_thread(_bare_s, endpoint.url("good/0"), bodies, Path(folder, "bodies"))
                one["bare_client_requests_per_s"] = len(bodies) / bare_s
                one["ratio"] = one["requests_per_s"] / one["bare_client_requests_per_s"]
                turns.append(one)
                tell(f"batches of {size}, turn {turn + 1} of {rounds}: {one}")
            found.append({"batch_updates": size, **medians(turns), "turns": turns})
    return found, wrong


def _publish(port: int, messages: int) -> None:
    for first in range(SUBSCRIPTIONS):
        asked = {"kind": "boolean", "keywords": f"w{first}", "region": [139, 35, 140, 36]}
        call(port, "POST", "/v1/subscriptions", {"subscription_id": f"s{first}", "owner": "all", **asked})
    for first in range(0, messages, 5_000):
        ids = range(first, min(first + 5_000, messages))
        rows = [{"id": f"m{place}", **message(f"w{place % SUBSCRIPTIONS}")} for place in ids]
        call(port, "POST", "/v1/messages?wait=delivered", rows)


async def _of_webhook(endpoint: Endpoint, port: int, updates: int, size: int) -> tuple[list[bytes], dict[str, float]]:
    """Bodies that a new webhook has posted once so many updates have come, and how many a second."""
    endpoint.book.clear()
    body = {"url": endpoint.url("good/0"), "owner": "all", "since": "begin", "batch_updates": size}
    began_s = time.monotonic()
    hook = await asyncio.to_thread(call, port, "POST", "/v1/webhooks", body)
    while len(endpoint.book) * size < updates and time.monotonic() < began_s + 300:
        await asyncio.sleep(0.005)
    bodies, took_s = [each for _, _, each in endpoint.book], time.monotonic() - began_s
    await asyncio.to_thread(call, port, "PATCH", f"/v1/webhooks/{hook.json['id']}", {"state": "paused"})
    return bodies, {"requests_per_s": len(bodies) / took_s, "updates_per_s": len(bodies) * size / took_s}


def _wrong(bodies: list[bytes], messages: int) -> int:
    """How many updates are missing, come twice, or are of the wrong subscription."""
    came = Counter(
        (row["subscription_id"], row["message_id"]) for body in bodies for row in json.loads(body)["data"]["updates"]
    )
    expected = Counter((f"s{place % SUBSCRIPTIONS}", f"m{place}") for place in range(messages))
    return sum((came - expected).values()) + sum((expected - came).values())


def _bare_s(url: str, bodies: list[bytes], file: Path) -> float:
    file.write_bytes(msgspec.msgpack.encode(bodies))
    words = [sys.executable, "-c", _BARE, url, str(file)]
    return float(subprocess.run(words, check=True, capture_output=True, text=True, timeout=300).stdout)


def bare_main(url: str, file: str) -> None:
    """Post what is in a file, and print the seconds that it took."""
    print(asyncio.run(_bare(url, msgspec.msgpack.decode(Path(file).read_bytes(), type=list[bytes]))))


async def _bare(url: str, bodies: list[bytes]) -> float:
    """Seconds that the client alone takes to post these, signed, with as many under way as a webhook has."""
    left, secret = iter(bodies), new_secret()
    async with httpx2.AsyncClient(trust_env=False) as client:

        async def post() -> None:
            for body in left:
                await client.post(url, content=body, headers=signed_headers([secret], "id", 0, body))

        began_s = time.monotonic()
        await asyncio.gather(*(post() for _ in range(IN_FLIGHT)))
        return time.monotonic() - began_s


def bench(
    seconds: Annotated[float, "of each turn of latency"] = 30.0,
    rate: Annotated[int, "messages a second, each to all webhooks"] = 20,
    messages: Annotated[int, "that come to one webhook; of batches of one a tenth"] = 100_000,
    rounds: Annotated[int, "turns of each"] = 3,
    tell: command.Tell = print,
) -> dict[str, Any]:
    """Latencies, throughput, and whether all came."""
    return asyncio.run(_measure(seconds, rate, messages, rounds, tell))


async def _measure(seconds: float, rate: int, messages: int, rounds: int, tell: command.Tell) -> dict[str, Any]:
    endpoint = Endpoint()
    await endpoint.begin()
    good = [f"good/{place}" for place in range(HOOKS)]
    turns: dict[str, list[dict[str, float]]] = {"quiet": [], "beside_bad": []}
    for turn in range(rounds):
        for name, ways in (("quiet", good), ("beside_bad", [*BAD, *good[len(BAD) :]])):
            turns[name].append(await latencies(endpoint, ways, seconds, rate))
            tell(f"turn {turn + 1} of {rounds}, {name}: {turns[name][-1]}")
    rows, wrong = await throughput(endpoint, messages, rounds, tell)
    missing = sum(one["of"] - one["updates"] for each in turns.values() for one in each)
    return {
        "workload": {"seconds": seconds, "rate": rate, "messages": messages, "webhooks": HOOKS, "bad": list(BAD)},
        "measured": {
            "latency": {name: {**medians(each), "turns": each} for name, each in turns.items()},
            "throughput": rows,
        },
        **verdict(not wrong and not missing, messages * rounds, SUBSCRIPTIONS),
    }


if __name__ == "__main__":
    sys.exit(command.main(bench))
