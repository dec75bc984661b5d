"""Updates a second into a topic of Kafka: by a bare transactional producer of the client library, and by the sink.

    python -m benchmarks.sinks_kafka [--updates N] [--chunk N] [--rounds N]

Both put the same records, with the same headers, into transactions of one chunk each; `bare` has the records ready,
`sink` has updates as the server has them, makes the headers, and commits its position too. They take turns, each with a
topic of its own. Counted is the time from the first update to the answer of the last commit. The records of each topic
are read and compared with the updates before a figure counts. The broker is the mock of the client library, in this
process: it has no disk, so that the cost is that of the client.
"""

import sys
from time import perf_counter
from typing import Annotated, Any

from confluent_kafka import Producer

from benchmarks import command
from benchmarks.command import Tell
from benchmarks.stopwatch import in_turns
from gateway.serve.update_parts import BEGINNING
from gateway.sinks.kafka import POSITIONS, KafkaSink, headers_of
from gateway.sinks.stream import UpdateChunk
from tests.support import kafka_topics
from tests.support.all_updates import STREAM, chunks_after
from tests.support.brokers import KafkaBroker
from tests.support.kafka_topics import committed

_PARTITIONS = 4  # of the mock


def measure(
    updates: Annotated[int, "updates of the stream"] = 50_000,
    chunk: Annotated[int, "updates of a chunk"] = 5_000,
    rounds: Annotated[int, "turns of each way"] = 5,
    *,
    tell: Tell,
) -> dict[str, Any]:
    """Updates a second of each way, and whether its topic had each once."""
    chunks = list(chunks_after(BEGINNING, updates, chunk))
    records = [[(one.data, one.subscription_id, headers_of(one, STREAM)) for one in some.updates] for some in chunks]
    wanted = sorted((key.encode(), value, sorted(headers)) for some in records for value, key, headers in some)
    with KafkaBroker("unused") as broker:
        tell(f"{updates:,} updates in {len(chunks):,} chunks")

        def turn_of(name: str, turn: int) -> tuple[float, bool]:
            topic = f"{name}-{turn}"
            broker.create(topic)
            broker.create(topic + POSITIONS)
            seconds = _bare(broker, topic, records) if name == "bare" else _by_sink(broker, topic, chunks)
            return seconds, _had(broker, topic) == wanted

        turns = in_turns(("bare", "sink"), rounds, turn_of)
    rates = {name: [round(updates / seconds) for seconds, _ in mine] for name, mine in turns.items()}
    middle = {name: sorted(mine)[len(mine) // 2] for name, mine in rates.items()}
    return {
        "updates": updates,
        "chunk": chunk,
        "updates_per_s": middle,
        "of_bare": round(middle["sink"] / middle["bare"], 3),
        "turns": rates,
        "exact": all(same for mine in turns.values() for _, same in mine),
    }


def _bare(broker: KafkaBroker, topic: str, records: list[list[tuple[bytes, str, Any]]]) -> float:
    settings = {"bootstrap.servers": broker.address, "transactional.id": topic, "partitioner": "murmur2_random"}
    producer = Producer(settings)
    producer.init_transactions(30)
    began_s = perf_counter()
    for some in records:
        producer.begin_transaction()
        for value, key, headers in some:
            producer.produce(topic, value, key, headers=headers)
        producer.commit_transaction(30)
    return perf_counter() - began_s


def _by_sink(broker: KafkaBroker, topic: str, chunks: list[UpdateChunk]) -> float:
    sink = KafkaSink(broker.address, topic)
    sink.open(STREAM)
    began_s = perf_counter()
    for some in chunks:
        sink.deliver(some._replace(ends_boundary=True))
    seconds = perf_counter() - began_s
    sink.close()
    return seconds


def _had(broker: KafkaBroker, topic: str) -> list[Any]:
    return sorted(
        (one.key(), one.value(), sorted(kafka_topics.headers_of(one).items()))
        for one in committed(broker.address, topic, _PARTITIONS)
    )


if __name__ == "__main__":
    sys.exit(command.main(measure))
