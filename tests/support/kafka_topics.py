"""What a topic of Kafka has, by a reader of committed records.

Apache Kafka answers a commit before the markers of the transaction are in its partitions: only then are its records
there for this reader. So it waits for them, where a test has not left a transaction open.
"""

import threading
import time
from collections.abc import Iterator
from typing import Any

import msgspec
from confluent_kafka import Consumer, IsolationLevel, KafkaError, Message, TopicPartition
from confluent_kafka.admin._listoffsets import OffsetSpec

from tests.support import apache_kafka

_DEADLINE_S = 60.0
#: Seconds for which markers may be behind the answer.
_MARKERS_S = 3.0


def committed(address: str, topic: str, partitions: int, isolation: str = "read_committed") -> list[Message]:
    """The records of a topic up to its end, partition by partition."""
    if isolation == "read_committed" and address in apache_kafka.RUNNING:
        until_s = time.monotonic() + _MARKERS_S
        while has_open(address, topic, partitions) and time.monotonic() < until_s:
            threading.Event().wait(0.02)
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


def has_open(address: str, topic: str, partitions: int) -> bool:
    """Whether records are there that no reader of committed ones may have yet."""
    return ends(address, topic, partitions, True) < ends(address, topic, partitions, False)


def ends(address: str, topic: str, partitions: int, is_committed: bool) -> int:
    """The offsets behind all records that a reader may have, of committed ones or of all, summed."""
    admin = apache_kafka.admin_of(address)
    wanted = {TopicPartition(topic, number): OffsetSpec.latest() for number in range(partitions)}
    level = IsolationLevel.READ_COMMITTED if is_committed else IsolationLevel.READ_UNCOMMITTED
    return sum(one.result(30).offset for one in admin.list_offsets(wanted, isolation_level=level).values())


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
