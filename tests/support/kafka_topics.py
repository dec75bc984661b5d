"""What a topic of Kafka has, by a reader of committed records."""

import time
from collections.abc import Iterator
from typing import Any

import msgspec
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

_DEADLINE_S = 60.0


def committed(address: str, topic: str, partitions: int, isolation: str = "read_committed") -> list[Message]:
    """The records of a topic up to its end, partition by partition."""
    settings = {
        "bootstrap.servers": address,
        "group.id": "reader",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": isolation,
        "fetch.wait.max.ms": 10,
    }
    consumer = Consumer(settings)
    try:
        consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
        return sorted(_read(consumer, partitions), key=lambda one: (one.partition() or 0, one.offset() or 0))
    finally:
        consumer.close()


def _read(consumer: Consumer, partitions: int) -> Iterator[Message]:
    until_s = time.monotonic() + _DEADLINE_S
    ended: set[int | None] = set()
    while len(ended) < partitions:
        assert time.monotonic() < until_s, "the topic does not end"
        for message in consumer.consume(1_000, 0.02):
            error = message.error()
            if error is None:
                yield message
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition())


class _Identified(msgspec.Struct):
    id: str


_identified = msgspec.json.Decoder(_Identified)


def keys_and_positions(messages: list[Message]) -> list[tuple[str, str]]:
    """The subscription id of each record, by its key, and the position, by its value."""
    return [((one.key() or b"").decode(), _identified.decode(one.value() or b"").id) for one in messages]


def headers_of(message: Message) -> dict[str, str]:
    """The headers of a record that has each name once."""
    rows: Any = message.headers() or ()
    found = {name: value.decode() for name, value in rows}
    assert len(found) == len(rows)
    return found
