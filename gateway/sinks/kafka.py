"""A topic of Kafka that gets all updates of a stream, each once, in transactions.

**A transaction** has the updates up to the end of a boundary, or up to a bound, and a record of the topic
`TOPIC-positions`: `{"stream", "position", "writer"}`, with the topic as its key. So the position is committed with the
updates or not at all. It is a record, not the offset of a consumer group, since a broker forgets the offsets of a group
without members after a week, and a stream may rest for longer; a compacted topic keeps the last record of each key. At
each opening the end of the topic is read, by a reader of committed records.

**Fencing.** The transactional id has the stream and the topic in it: opening the sink ends the transaction of an older
process, and the broker refuses what that process still sends. Then the opening commits a record with its own `writer`.
A process that was away and opens its sink again finds another writer there, and ends instead of fencing the newer one.

A record of an update has the subscription id as key, over objects that and the object's, the JSON as value, and the
CloudEvents attributes as headers, as the Kafka binding of CloudEvents has them in binary mode.
"""

import contextlib
import logging
import time
import uuid
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import msgspec
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from gateway.serve.released import ReleasedUpdate
from gateway.serve.update_parts import Position
from gateway.sinks.cloudevents import attributes_of
from gateway.sinks.stream import SinkAway, UpdateChunk
from matching.errors import ConfigError, EngineError

#: Behind the name of the topic.
POSITIONS = "-positions"
#: Seconds for one answer of a broker, for a transaction to begin or end, to drop one, and to read the last position.
_ANSWER_S, _COMMIT_S, _ABORT_S, _READ_S = 5.0, 30.0, 2.0, 20.0
#: Seconds that the report of a record may be behind the error of its transaction.
_REPORT_S = 1.0
#: A transaction with this many bytes, or open for this many seconds, is committed before its boundary ends.
MOST_BYTES, MOST_S = 16 * 1024 * 1024, 5.0
#: Seconds after which the broker itself aborts a transaction that is neither committed nor aborted.
_TRANSACTION_S = 60
#: Records of positions that are read at first, from the end: a commit takes two offsets, the record and its marker.
_LAST = 64
#: Updates between two calls that serve the queue of the client.
_PART = 1_000
#: The client would write to standard error: what it says of brokers is in the errors that are raised here.
_silent = logging.Logger("kafka")
_silent.addHandler(logging.NullHandler())
#: Errors that no repetition mends.
_REFUSALS: frozenset[int] = frozenset(
    {
        KafkaError._AUTHENTICATION,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
#: The epoch of the producer is not the last one; a client that has learnt it says `_FATAL` from then on.
_FENCED: frozenset[int] = frozenset(
    {KafkaError._FENCED, KafkaError._FATAL, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH}
)
_TOO_LARGE: frozenset[int] = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE})
_UNKNOWN: frozenset[int] = frozenset(
    {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
)


class _Kept(msgspec.Struct):
    """The value of a record of `TOPIC-positions`: whose topic it is, how far it is, and which process has opened it."""

    stream: str
    position: str | None
    writer: str


_kept = msgspec.json.Decoder(_Kept)


class KafkaSink:
    """See `gateway.sinks.stream.StreamSink`.

    Parameters
    ----------
    servers : str
        Hosts with ports, with commas between.
    topic : str
        Its positions are in `TOPIC-positions`.
    properties : mapping, optional
        More properties of librdkafka, for TLS, SASL, compression and so on.
    create : int, optional
        Partitions of the topic, which is created with `TOPIC-positions` where it is not there.
    """

    extra = "kafka"
    exactly_once = True

    def __init__(
        self, servers: str, topic: str, properties: Mapping[str, str] | None = None, create: int | None = None
    ):
        self.name = f"kafka/{topic}"
        self._servers = servers
        self._topic = topic
        self._properties = dict(properties or {})
        self._create = create
        self._writer = uuid.uuid4().hex
        self._claimed = False  # whether a record of the broker has our writer
        self._producer: Producer | None = None
        self._stream = ""
        self._durable: Position | None = None
        self._began_s: float | None = None  # of the open transaction
        self._bytes = 0  # in it
        self._trouble: KafkaError | None = None
        self._undelivered: tuple[KafkaError, str] | None = None  # the first of this transaction, and its update

    def open(self, stream: str) -> Position | None:
        self.close()
        self._stream, self._trouble = stream, None
        consumer = self._reader()
        try:
            self._find_topics(consumer)
            if self._claimed:
                self._check(self._last(consumer))
            self._producer = producer = self._made(Producer, self._transactions())
            producer.init_transactions(_COMMIT_S)
            kept = self._last(consumer)
            self._check(kept)
            self._durable = Position.of(kept.position) if kept is not None and kept.position is not None else None
            self._begin()
            self._commit(self._durable)
            self._claimed = True
        except KafkaException as error:
            raise self._error(error.args[0]) from error
        finally:
            consumer.close()
        return self._durable

    def deliver(self, chunk: UpdateChunk) -> Position:
        try:
            if chunk.updates:
                if self._began_s is None:
                    self._begin()
                self._produce(chunk.updates)
            if self._began_s is None:
                return chunk.behind  # nothing is between it and the last update
            full = self._bytes >= MOST_BYTES or time.monotonic() - self._began_s >= MOST_S
            if chunk.ends_boundary or full or self._durable is None:
                self._commit(chunk.behind)
        except KafkaException as error:
            raise self._error(error.args[0]) from error
        return chunk.behind if self._durable is None else self._durable

    def check(self) -> None:
        try:
            if self._began_s is None:
                self._open().list_topics(self._topic, timeout=_ANSWER_S)
        except KafkaException as error:
            raise self._error(error.args[0]) from error

    def close(self) -> None:
        producer, self._producer = self._producer, None
        if producer is None:
            return
        began_s, self._began_s, self._undelivered = self._began_s, None, None
        with contextlib.suppress(KafkaException):  # the broker drops it, by its time limit or at the next opening
            if began_s is not None:
                producer.abort_transaction(_ABORT_S)
        with contextlib.suppress(KafkaException):  # a client that has ended has nothing to be purged
            producer.purge()
            producer.flush(0)

    def _made(self, make: Any, fixed: Mapping[str, Any]) -> Any:
        """A client of the library."""
        common = {
            "bootstrap.servers": self._servers,
            "error_cb": self._note_trouble,
            "logger": _silent,
        }
        try:
            return make({"client.id": "skyray", **self._properties, **common, **fixed})
        except (KafkaException, ValueError, TypeError) as error:
            raise ConfigError(f"{self.name}: the client refuses its properties: {error}; mend config=FILE") from error

    def _reader(self) -> Consumer:
        """A reader of committed positions."""
        return self._made(Consumer, {"group.id": "skyray", "isolation.level": "read_committed", **_READING})

    def _transactions(self) -> dict[str, Any]:
        """Properties of the producer."""
        return {
            "transactional.id": f"skyray/{quote(self._stream, safe='')}/{self._topic}",
            "transaction.timeout.ms": _TRANSACTION_S * 1_000,
            "partitioner": "murmur2_random",  # of Java clients, so that others find the partition of a key
            "on_delivery": self._note_delivery,
            "delivery.report.only.error": True,
        }

    def _find_topics(self, consumer: Consumer) -> None:
        """Make sure that both topics are there. Raises ConfigError, KafkaException, SinkAway."""
        if not (missing := self._missing(consumer)):
            return
        if self._create is None:
            raise ConfigError(
                f"{self.name}: the broker has no topic {' and no topic '.join(map(repr, missing))}; add "
                f"?create=PARTITIONS to the URI, or create it: {self._creating(missing)}"
            )
        self._create_topics(missing)
        until_s = time.monotonic() + _READ_S
        while self._missing(consumer):
            if time.monotonic() > until_s:
                raise SinkAway(f"{self.name}: the broker does not have the topics yet that it has created")
            consumer.poll(0.05)

    def _missing(self, consumer: Consumer) -> dict[str, int]:
        """The topics that are not there, and how many partitions they are to have."""
        missing = {}
        for name, partitions in {self._topic: self._create or 4, self._topic + POSITIONS: 1}.items():
            error = consumer.list_topics(name, timeout=_ANSWER_S).topics[name].error
            if error is not None and error.code() not in _UNKNOWN:
                raise KafkaException(error)
            if error is not None:
                missing[name] = partitions
        return missing

    def _create_topics(self, missing: Mapping[str, int]) -> None:
        admin = self._made(AdminClient, {})
        new = [
            NewTopic(name, partitions, config=dict(_COMPACTED) if name.endswith(POSITIONS) else {})
            for name, partitions in missing.items()
        ]
        for name, answer in admin.create_topics(new, operation_timeout=_ANSWER_S, request_timeout=_COMMIT_S).items():
            try:
                answer.result(_COMMIT_S)
            except KafkaException as error:
                code = error.args[0].code()
                if code in _REFUSALS:
                    raise
                if code != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise ConfigError(
                        f"{self.name}: the broker does not create topic {name!r} ({error.args[0].str()}); create it "
                        f"yourself: {self._creating({name: missing[name]})}"
                    ) from error

    def _creating(self, missing: Mapping[str, int]) -> str:
        """The commands that create topics."""
        return " && ".join(
            f"kafka-topics.sh --bootstrap-server {self._servers} --create --topic {name} --partitions "
            + (f"1 {_COMPACTED_OPTIONS}" if name.endswith(POSITIONS) else str(partitions))
            for name, partitions in missing.items()
        )

    def _last(self, consumer: Consumer) -> _Kept | None:
        """The last committed record of the positions, or None. Raises ConfigError, KafkaException, SinkAway."""
        low, high = consumer.get_watermark_offsets(TopicPartition(self._topic + POSITIONS, 0), _ANSWER_S)
        count, begin = _LAST, high
        while begin > low:
            begin = max(low, high - count)
            if (found := self._last_from(consumer, begin)) is not None:
                return found
            count *= 8  # all of these belong to transactions that were dropped, or are of other topics
        return self._last_from(consumer, low) if high == low else None

    def _last_from(self, consumer: Consumer, begin: int) -> _Kept | None:
        """The last committed record from an offset on."""
        found, until_s = None, time.monotonic() + _READ_S
        consumer.assign([TopicPartition(self._topic + POSITIONS, 0, begin)])
        while True:
            if time.monotonic() > until_s:
                raise SinkAway(f"{self.name}: the broker does not send the last position")
            message = consumer.poll(0.5)
            if message is None:
                continue
            error = message.error()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                consumer.unassign()
                return found
            if error is not None and error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
                continue  # the client looks for the coordinator of its group, which is not used
            if error is not None:
                raise KafkaException(error)
            if message.key() == self._topic.encode():
                found = self._decoded(message)

    def _decoded(self, message: Message) -> _Kept:
        try:
            return _kept.decode(message.value() or b"")
        except msgspec.MsgspecError as error:
            raise ConfigError(
                f"{self.name}: the record at offset {message.offset()} of topic {self._topic + POSITIONS!r} is no "
                f"position ({error}): another program writes there; name another topic"
            ) from error

    def _check(self, kept: _Kept | None) -> None:
        """Refuse the topic of another stream, or one that a newer process has opened."""
        if kept is None:
            return
        if kept.stream != self._stream:
            raise ConfigError(
                f"{self.name}: stream {kept.stream} writes this topic, and this is stream {self._stream}; name another "
                f"topic, or remove topics {self._topic} and {self._topic + POSITIONS} if that stream has ended"
            )
        if self._claimed and kept.writer != self._writer:
            raise self._fenced()

    def _begin(self) -> None:
        producer = self._open()
        producer.begin_transaction()
        self._began_s, self._bytes, self._undelivered = time.monotonic(), 0, None

    def _produce(self, updates: list[ReleasedUpdate]) -> None:
        """Put updates into the open transaction."""
        stream, topic, poll = self._stream, self._topic, self._open().poll
        for first in range(0, len(updates), _PART):
            for update in updates[first : first + _PART]:
                try:
                    self._put(topic, update.data, key_of(update), headers=headers_of(update, stream))
                except KafkaException as error:
                    if error.args[0].code() in _TOO_LARGE:
                        raise self._too_large(update.position, len(update.data)) from error
                    raise
                self._bytes += len(update.data)
            poll(0)

    def _put(self, topic: str, value: bytes, key: str, **more: Any) -> None:
        """Give a record to the client; wait where it has no room."""
        producer = self._open()
        try:
            producer.produce(topic, value, key, **more)
        except BufferError:
            if producer.flush(_COMMIT_S):
                raise SinkAway(f"{self.name}: the broker takes no updates{self._why()}") from None
            producer.produce(topic, value, key, **more)

    def _commit(self, position: Position | None) -> None:
        """Commit the open transaction, with a position. Raises KafkaException."""
        text = None if position is None else position.text
        kept = msgspec.json.encode(_Kept(self._stream, text, self._writer))
        self._put(self._topic + POSITIONS, kept, self._topic, partition=0)
        self._open().commit_transaction(_COMMIT_S)
        self._began_s = None
        self._durable = position

    def _note_delivery(self, error: KafkaError | None, message: Message) -> None:
        """Keep why a record did not arrive; called while the client is polled."""
        if error is not None and self._undelivered is None:
            name = message.topic() or ""
            self._undelivered = error, "" if name.endswith(POSITIONS) else position_in(message.value() or b"")

    def _await_report(self) -> None:
        """Learn which record made the transaction fail: its report may come after the error of the transaction."""
        until_s = time.monotonic() + _REPORT_S
        while self._undelivered is None and self._producer is not None and time.monotonic() < until_s:
            self._producer.poll(0.05)

    def _note_trouble(self, error: KafkaError) -> None:
        if error.code() == KafkaError._ALL_BROKERS_DOWN or error.code() in _REFUSALS:
            self._trouble = error

    def _error(self, error: KafkaError) -> Exception:
        """The exception for an error of the client."""
        if error.txn_requires_abort():
            self._await_report()
        if self._undelivered is not None:
            cause, position = self._undelivered
            if cause.code() in _TOO_LARGE:
                return self._too_large(position)
            if cause.code() in _REFUSALS | _FENCED | _UNKNOWN:
                error = cause
        if error.code() in _FENCED:
            return self._replaced()
        for one in (error, self._trouble):
            if one is not None and one.code() in _REFUSALS:
                return ConfigError(f"{self.name}: the broker refuses us: {one.str()}; see config=FILE")
        return SinkAway(f"{self.name}: the broker does not take updates ({error.str()}){self._why()}")

    def _replaced(self) -> Exception:
        """The exception for an old epoch: a newer process has opened the sink, or the transaction was too old."""
        try:
            consumer = self._reader()
            try:
                self._check(self._last(consumer))
            finally:
                consumer.close()
        except KafkaException as error:
            return SinkAway(f"{self.name}: the broker has ended the transaction, and cannot say why ({error})")
        except EngineError as error:
            return error
        return SinkAway(f"{self.name}: the broker has ended a transaction that took longer than {_TRANSACTION_S} s")

    def _fenced(self) -> EngineError:
        return EngineError(
            f"{self.name}: a newer process delivers the updates of stream {self._stream}, so this one has ended its "
            "delivery; let only one run"
        )

    def _too_large(self, position: str, size_bytes: int | None = None) -> EngineError:
        size = "" if size_bytes is None else f" of {size_bytes:,} bytes"
        return EngineError(
            f"{self.name}: update {position}{size} is larger than the broker or the client takes; raise "
            "max.message.bytes of the topic, and message.max.bytes in config=FILE"
        )

    def _why(self) -> str:
        return "" if self._trouble is None else f": {self._trouble.str()}"

    def _open(self) -> Producer:
        assert self._producer is not None, "open() comes first"
        return self._producer


#: Of the reader of positions.
_READING: Mapping[str, Any] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "allow.auto.create.topics": False,
    "auto.offset.reset": "beginning",
    "fetch.wait.max.ms": 10,  # the end of a partition is seen by an answer without records
}
#: A broker keeps the last position for good, and removes those before it.
_COMPACTED: Mapping[str, str] = {"cleanup.policy": "compact", "segment.bytes": str(16 * 1024 * 1024)}
_COMPACTED_OPTIONS = " ".join(f"--config {name}={value}" for name, value in _COMPACTED.items())


#: Headers and the attributes that they have: the Kafka binding of CloudEvents in binary mode.
_HEADERS = (
    ("content-type", "datacontenttype"),
    *((f"ce_{name}", name) for name in ("specversion", "id", "source", "type", "subject")),
)


def key_of(update: ReleasedUpdate) -> str:
    """The subscription id; over objects JSON of both ids: a compacted topic keeps the last state of each object."""
    if not update.object_id:
        return update.subscription_id
    return msgspec.json.encode([update.subscription_id, update.object_id]).decode()


def headers_of(update: ReleasedUpdate, stream: str) -> list[tuple[str, str | bytes | None]]:
    """The headers of an update's record."""
    attributes = attributes_of(update, stream)
    return [(header, attributes[name]) for header, name in _HEADERS]


class _Identified(msgspec.Struct):
    id: str


def position_in(data: bytes) -> str:
    """The position of an update, by its JSON."""
    return msgspec.json.decode(data, type=_Identified).id
