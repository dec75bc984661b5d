"""The Python client beside the bare HTTP library: messages published and updates read a second.

    python -m benchmarks.client [--messages N] [--subscriptions N] [--rounds N]

One `skyray serve` runs beside it, and all ways take turns with it: `client` and `awaited` are `skyray.Client` and
`skyray.AsyncClient`, `bare` is httpx2 with its own JSON, without ids, trying again, or checks of events. `publish`
sends all messages in arrays of 1,000, `one` a fiftieth of them one by one, `updates` reads all updates from the
beginning. Every way must be answered the same, and read the same updates. Medians, and `share`: of the rate of `bare`.
"""

import asyncio
import json
import tempfile
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import httpx2

from benchmarks import command
from benchmarks.command import Tell, verdict
from benchmarks.stopwatch import in_turns, medians
from skyray import AsyncClient, Client
from tests.support.serving import Served

_GROUP, _PART = 1_000, 50
WAYS = ("bare", "client", "awaited")


def messages_of(name: str, count: int, words: int) -> list[dict[str, Any]]:
    """Each has a word that one subscription wants."""
    return [
        {"id": f"{name}-{place}", "text": f"word{place % words} in a text of some words", "lon": 5.0, "lat": 52.0}
        for place in range(count)
    ]


def bare_publish(url: str, rows: list[dict[str, Any]]) -> int:
    with httpx2.Client(base_url=url) as library:
        parts = iter(rows)
        accepted = 0
        while part := list(islice(parts, _GROUP)):
            accepted += library.post("/v1/messages", json=part).json()["accepted"]
        return accepted


def bare_one(url: str, rows: list[dict[str, Any]]) -> int:
    with httpx2.Client(base_url=url) as library:
        return sum(library.post("/v1/messages", json=row).json()["status"] == "accepted" for row in rows)


def bare_updates(url: str, count: int) -> list[str]:
    found: list[str] = []
    headers = {"Accept": "text/event-stream"}
    with (
        httpx2.Client(base_url=url) as library,
        library.stream("GET", "/v1/updates", params={"since": "begin"}, headers=headers) as response,
    ):
        for line in response.iter_lines():
            if line.startswith('data: {"id"'):
                found.append(json.loads(line[6:])["id"])
                if len(found) == count:
                    break
    return found


def client_publish(url: str, rows: list[dict[str, Any]]) -> int:
    with Client(url) as client:
        return sum(one.status == "accepted" for one in client.publish_stream(rows))


def client_one(url: str, rows: list[dict[str, Any]]) -> int:
    with Client(url) as client:
        return sum(client.publish(row).status == "accepted" for row in rows)


def client_updates(url: str, count: int) -> list[str]:
    with Client(url) as client, client.updates(since="begin") as updates:
        return [one.id for one in islice(updates, count)]


def awaited_publish(url: str, rows: list[dict[str, Any]]) -> int:
    async def publish() -> int:
        async with AsyncClient(url) as client:
            return len([one async for one in client.publish_stream(rows) if one.status == "accepted"])

    return asyncio.run(publish())


def awaited_one(url: str, rows: list[dict[str, Any]]) -> int:
    async def publish() -> int:
        async with AsyncClient(url) as client:
            return len([1 for row in rows if (await client.publish(row)).status == "accepted"])

    return asyncio.run(publish())


def awaited_updates(url: str, count: int) -> list[str]:
    async def read() -> list[str]:
        async with AsyncClient(url) as client, client.updates(since="begin") as updates:
            return [(await anext(updates)).id for _ in range(count)]

    return asyncio.run(read())


_PUBLISH = {"bare": bare_publish, "client": client_publish, "awaited": awaited_publish}
_ONE = {"bare": bare_one, "client": client_one, "awaited": awaited_one}
_UPDATES = {"bare": bare_updates, "client": client_updates, "awaited": awaited_updates}


def _rate(work: Callable[[], Any], count: int) -> tuple[float, Any]:
    """Of `count` a second, and what the work gave."""
    before_s = perf_counter()
    found = work()
    return count / (perf_counter() - before_s), found


def measure(
    messages: Annotated[int, "of each turn"] = 20_000,
    subscriptions: Annotated[int, "each with a word of its own"] = 500,
    rounds: Annotated[int, "turns of each way; the median counts"] = 5,
    *,
    tell: Tell = command.say,
) -> dict[str, Any]:
    """Let all ways publish in turns, then read in turns."""
    few = max(1, messages // _PART)
    with tempfile.TemporaryDirectory() as scratch, Served(Path(scratch) / "out") as served:
        url = f"http://127.0.0.1:{served.port}"
        with Client(url) as client:
            client.subscribe_many(
                {
                    "subscription_id": f"s{place}",
                    "kind": "boolean",
                    "keywords": f"word{place}",
                    "region": [4, 51, 6, 53],
                }
                for place in range(subscriptions)
            )

        def publish(way: str, turn: int) -> dict[str, float]:
            tell(f"{way} publishes, turn {turn + 1} of {rounds}")
            many = messages_of(f"{way}-{turn}", messages, subscriptions)
            single = messages_of(f"{way}-{turn}-one", few, subscriptions)
            per_s, accepted = _rate(lambda: _PUBLISH[way](url, many), messages)
            one_per_s, also = _rate(lambda: _ONE[way](url, single), few)
            taken.append(accepted == messages and also == few)
            with Client(url) as client:  # the next turn begins with a server that has nothing to do
                client.publish({"text": "nothing", "lon": 5.0, "lat": 52.0}, wait="delivered")
            return {"publish_per_s": per_s, "one_per_s": one_per_s}

        def read(way: str, turn: int) -> dict[str, float]:
            tell(f"{way} reads {count:,} updates, turn {turn + 1} of {rounds}")
            per_s, found = _rate(lambda: _UPDATES[way](url, count), count)
            ids.append(found)
            return {"updates_per_s": per_s}

        taken: list[bool] = []
        ids: list[list[str]] = []
        published = in_turns(WAYS, rounds, publish)
        count = (messages + few) * len(WAYS) * rounds  # each is one update
        followed = in_turns(WAYS, rounds, read)
    rates = {way: medians(published[way]) | medians(followed[way]) for way in WAYS}
    share = {
        way: {name: rate / rates["bare"][name] for name, rate in rates[way].items()} for way in WAYS if way != "bare"
    }
    same = all(taken) and all(one == ids[0] for one in ids) and len(set(ids[0])) == count
    return {
        **verdict(same, count, subscriptions),
        "messages": messages,
        "rounds": rounds,
        "rates": rates,
        "share": share,
    }


if __name__ == "__main__":
    raise SystemExit(command.main(measure))
