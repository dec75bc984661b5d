"""A topic of Kafka.

One reader assigns all partitions of the topic to itself: there is no group membership, so no rebalance can take a
partition away or give it back at another offset. With a group, offsets that are durable here are committed to the
broker for its tools, and never read back.

The token of a message is its timestamp and a checksum of its value. Offsets of a topic that was created anew begin at 0
again: so each opening reads the last message of every partition again and compares its token, and a partition that
shrinks makes the source open again.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import xxhash
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from gateway.sources.source import Delivered, Position, SourceAway
from matching.errors import ConfigError

#: Seconds for one answer of a broker; to read the last messages again; between two checks for new partitions.
_ANSWER_S, _COMPARE_S, _LOOK_S = 5.0, 20.0, 10.0
#: Seconds for which a topic that was read before may be missing: a broker that starts does not know its topics yet.
_MISSING_S = 30.0
#: Kilobytes that the client reads ahead, of one partition and of all.
_AHEAD_KIB = 16 * 1024
#: The client's log repeats the errors that are raised here, and would go to standard error.
_silent = logging.Logger("kafka")
_silent.addHandler(logging.NullHandler())
_UNKNOWN = KafkaError.UNKNOWN_TOPIC_OR_PART
#: Errors that do not pass by themselves.
_REFUSALS: frozenset[int] = frozenset(
    {
        KafkaError._AUTHENTICATION,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.SASL_AUTHENTICATION_FAILED,
    }
)


class KafkaSource:
    """See `gateway.sources.source.BrokerSource`.

    Parameters
    ----------
    brokers : str
        Hosts with ports, with commas between.
    group : str
        Consumer group to which durable offsets are committed; "" for none.
    properties : mapping
        More properties of librdkafka, for TLS and SASL.
    """

    extra = "kafka"

    def __init__(self, brokers: str, topic: str, group: str = "", properties: Mapping[str, str] | None = None):
        self.name = f"kafka/{topic}"
        self._brokers = brokers
        self._topic = topic
        self._group = group
        self._properties = dict(properties or {})
        self._consumer: Consumer | None = None
        self._trouble: KafkaError | None = None
        self._stopped: KafkaError | None = None  # of a partition; the next read raises it
        self._next: dict[int, int] = {}
        self._highs: dict[int, int] = {}
        self._shrunk = ""  # which partition, and how
        self._known = False  # the topic was there
        self._missing_since_s: float | None = None
        self._looked_s = 0.0

    def open(self, after: Position) -> int:
        self.close()
        self._trouble = self._stopped = None
        self._known = self._known or bool(after)
        self._consumer = self._new_consumer()
        try:
            return self._begin(self._consumer, after)
        except KafkaException as error:
            raise self._error(error.args[0]) from error

    def read(self, most: int, timeout_s: float) -> list[Delivered]:
        consumer = self._open()
        if self._stopped is not None:
            raise self._error(self._stopped)
        try:
            messages = consumer.consume(most, timeout_s)
        except KafkaException as error:
            raise self._error(error.args[0]) from error
        found, self._stopped = split_errors(messages)
        if not found and self._stopped is not None:
            raise self._error(self._stopped)
        if self._shrunk:  # the messages may be of a topic created anew; opening again compares the last one
            raise SourceAway(f"{self.name}: {self._shrunk}")
        self._next |= {int(one.partition): one.offset + 1 for one in found}
        if not found and self._trouble is not None:
            raise self._error(self._trouble)
        if time.monotonic() - self._looked_s >= _LOOK_S:
            self._look_for_partitions(consumer)
        return found

    def acknowledge(self, position: Position) -> None:
        if not self._group or not position:
            return
        offsets = [TopicPartition(self._topic, int(name), offset + 1) for name, (offset, _) in position.items()]
        try:
            self._open().commit(offsets=offsets, asynchronous=True)
        except KafkaException as error:
            raise self._error(error.args[0]) from error

    def lag(self) -> int | None:
        following, highs = self._next, self._highs
        if not following:
            return None
        return sum(max(0, highs.get(partition, 0) - at) for partition, at in following.copy().items())

    def close(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()
        self._next = {}
        self._highs = {}
        self._shrunk = ""

    def _new_consumer(self) -> Consumer:
        fixed = {
            "bootstrap.servers": self._brokers,
            "group.id": self._group or "skyray",  # the client wants one, and joins it only when it subscribes
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "allow.auto.create.topics": False,
            "isolation.level": "read_committed",
            "queued.max.messages.kbytes": _AHEAD_KIB,
            "statistics.interval.ms": 1_000,
            "stats_cb": self._note_ends,
            "error_cb": self._note_trouble,
            "logger": _silent,
        }
        try:
            return Consumer({"client.id": "skyray", **self._properties, **fixed})
        except (KafkaException, ValueError, TypeError) as error:
            raise ConfigError(f"{self.name}: the client refuses its properties: {error}; mend config=FILE") from error

    def _begin(self, consumer: Consumer, after: Position) -> int:
        partitions = self._partitions(consumer)
        if missing := sorted(int(name) for name in after if int(name) not in partitions):
            raise ConfigError(
                f"{self.name}: has no partition {missing[0]}, which this folder has read: the topic was created anew. "
                f"{_ANOTHER}"
            )
        removed, begin = 0, {}
        for partition in partitions:
            low, high = consumer.get_watermark_offsets(TopicPartition(self._topic, partition), _ANSWER_S)
            last = after[str(partition)][0] if str(partition) in after else -1
            if high <= last:
                raise ConfigError(
                    f"{self.name}: partition {partition} ends before offset {high:,}, and this folder has read offset "
                    f"{last:,}: the topic was created anew, or the broker has lost messages. {_ANOTHER}"
                )
            self._highs[partition] = high
            begin[partition] = max(low, last + 1)
            removed += max(0, low - last - 1) if last >= 0 else 0
        self._compare(consumer, {int(name): at for name, at in after.items()})
        consumer.assign([TopicPartition(self._topic, partition, offset) for partition, offset in begin.items()])
        self._next, self._looked_s = begin, time.monotonic()
        return removed

    def _partitions(self, consumer: Consumer) -> list[int]:
        topic = consumer.list_topics(self._topic, timeout=_ANSWER_S).topics[self._topic]
        if topic.error is not None:
            raise self._missing() if topic.error.code() == _UNKNOWN else self._error(topic.error)
        self._known, self._missing_since_s = True, None
        return sorted(topic.partitions)

    def _missing(self) -> Exception:
        """The error of a missing topic: for `_MISSING_S` the broker may have just started, then there is none."""
        now_s = time.monotonic()
        self._missing_since_s = now_s if self._missing_since_s is None else self._missing_since_s
        if self._known and now_s - self._missing_since_s < _MISSING_S:
            return SourceAway(f"{self.name}: the broker does not know the topic, perhaps not yet: it may be starting")
        return ConfigError(f"{self.name}: the broker has no topic {self._topic!r}; create it, or name another")

    def _compare(self, consumer: Consumer, after: Mapping[int, tuple[int, str]]) -> None:
        """Read the last message of each partition again. Raises ConfigError if it is another one."""
        open_ones = {}
        for partition, (offset, token) in after.items():
            low, _ = consumer.get_watermark_offsets(TopicPartition(self._topic, partition), _ANSWER_S)
            if low <= offset:  # else it was removed, and cannot be compared
                open_ones[partition] = offset, token
        if not open_ones:
            return
        consumer.assign([TopicPartition(self._topic, partition, at) for partition, (at, _) in open_ones.items()])
        until_s = time.monotonic() + _COMPARE_S
        while open_ones:
            if time.monotonic() > until_s:
                raise SourceAway(f"{self.name}: the broker does not send the last messages again")
            for message in consumer.consume(len(open_ones), 0.5):
                error, partition = message.error(), message.partition()
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    raise self._error(error)
                if partition not in open_ones:
                    continue
                offset, token = open_ones.pop(partition)
                if error is None and message.offset() == offset and _delivered(message).token != token:
                    raise ConfigError(
                        f"{self.name}: offset {offset:,} of partition {partition} is another message than the one that "
                        f"this folder has read: the topic was created anew. {_ANOTHER}"
                    )
        consumer.unassign()

    def _look_for_partitions(self, consumer: Consumer) -> None:
        self._looked_s = time.monotonic()
        try:
            there = self._partitions(consumer)
        except KafkaException as error:
            raise self._error(error.args[0]) from error
        if set(there) != set(self._next):
            raise SourceAway(f"{self.name}: its partitions have changed")  # opening it again takes them

    def _note_ends(self, text: str) -> None:
        """Take the ends of the partitions from the client's statistics; asking the consumer from here could block."""
        partitions = msgspec.json.decode(text).get("topics", {}).get(self._topic, {}).get("partitions", {})
        ends = {int(name): one["ls_offset"] for name, one in partitions.items() if int(name) in self._highs}
        for partition, end in ends.items():
            if 0 <= end < self._highs[partition]:  # below 0 it is not known
                self._shrunk = f"partition {partition} ends before offset {end:,}, and had {self._highs[partition]:,}"
        self._highs = {partition: max(high, ends.get(partition, 0)) for partition, high in self._highs.items()}

    def _note_trouble(self, error: KafkaError) -> None:
        if error.code() == KafkaError._ALL_BROKERS_DOWN or error.code() in _REFUSALS or error.fatal():
            self._trouble = error

    def _error(self, error: KafkaError) -> Exception:
        if error.code() in _REFUSALS:
            return ConfigError(f"{self.name}: the broker refuses us: {error.str()}; see config=FILE in docs/connect.md")
        return SourceAway(f"{self.name}: the broker cannot be reached ({error.str()})")

    def _open(self) -> Consumer:
        assert self._consumer is not None, "open() comes first"
        return self._consumer


def split_errors(messages: Sequence[Message]) -> tuple[list[Delivered], KafkaError | None]:
    """The messages of one answer, and the first error in it.

    Messages of a partition after an error are dropped, and read again. Other partitions keep theirs: the client has
    moved past them.
    """
    found: list[Delivered] = []
    ended: set[int] = set()
    first: KafkaError | None = None
    for message in messages:
        error, partition = message.error(), message.partition() or 0
        if error is None:
            if partition not in ended:
                found.append(_delivered(message))
        elif error.code() != KafkaError._PARTITION_EOF:
            ended.add(partition)
            first = first or error
    return found, first


_ANOTHER = "Name another folder with --out to begin with its first message, or bring the earlier topic back"


def _delivered(message: Any) -> Delivered:
    """A message of the client, which is no error; a tombstone has an empty value."""
    data = message.value() or b""
    token = f"{message.timestamp()[1]}-{xxhash.xxh3_64_intdigest(data):x}"
    return Delivered(str(message.partition()), message.offset(), token, data)
