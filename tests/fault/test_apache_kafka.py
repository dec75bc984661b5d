"""Apache Kafka itself behind `--from` and `--to`: kills of both sides, a stopped older process, its time limit of
transactions, compaction, removed records, new partitions, deleted topics.

`test_broker_sink_kills.py` and `test_source_kills.py` kill it under a server.
"""

import signal
import subprocess
import time

import pytest
from confluent_kafka import Producer

from gateway.serve.update_parts import Position
from gateway.sinks import kafka
from gateway.sinks.kafka import POSITIONS, KafkaSink
from gateway.sinks.stream import SinkAway, UpdateChunk
from gateway.sources.kafka import KafkaSource
from gateway.sources.source import SourceAway
from matching.errors import ConfigError
from tests.support.all_updates import STREAM, boundary, compared, started
from tests.support.apache_kafka import ApacheKafka
from tests.support.brokers import position, read_all
from tests.support.kafka_topics import committed, ends, has_open, keys_and_positions

pytestmark = [pytest.mark.kafka, pytest.mark.fault, pytest.mark.timeout(900)]

TOPIC, PARTITIONS = "updates", 3
EXACT = {"missing": 0, "extra": 0, "repeated": 0, "disordered": 0}
_DEADLINE_S = 120.0


@pytest.fixture
def broker(tmp_path):
    with ApacheKafka(tmp_path / "kafka") as one:
        one.create(TOPIC, PARTITIONS)
        one.create(TOPIC + POSITIONS, cleanup_policy="compact")
        yield one


@pytest.fixture
def topic(apache_kafka, request):
    """A topic of the session's broker for one test."""
    name = request.node.name
    apache_kafka.create(name, PARTITIONS)
    return name


@pytest.fixture
def closing():
    """Closes sinks and sources at the end."""
    opened = []
    yield lambda one: opened.append(one) or one
    for one in opened:
        one.close()


def is_in_transaction(broker):
    return has_open(broker.address, TOPIC, PARTITIONS)


def stop_in_transaction(broker, process):
    """SIGSTOP within a transaction, once the topic has a thousand records more."""
    until_s = time.monotonic() + _DEADLINE_S
    behind = ends(broker.address, TOPIC, PARTITIONS, False) + 1_000
    while True:
        assert process.poll() is None and time.monotonic() < until_s, "it has delivered all"
        if ends(broker.address, TOPIC, PARTITIONS, False) < behind:
            continue
        process.send_signal(signal.SIGSTOP)
        if is_in_transaction(broker):
            return
        process.send_signal(signal.SIGCONT)


def await_(condition):
    until_s = time.monotonic() + _DEADLINE_S
    while not condition():
        assert time.monotonic() < until_s


def had(broker):
    return keys_and_positions(committed(broker.address, TOPIC, PARTITIONS))


def chunk_of(number, first=0, last=None):
    """Updates of a boundary; all behind `first` end it."""
    updates = boundary(number)[first:last]
    behind = Position.of(updates[-1].position)
    return UpdateChunk(updates, behind, last is None, behind.boundary)


# ---------------------------------------------------------------- a sink


@pytest.mark.parametrize(("count", "kills"), [(50_000, 1), pytest.param(200_000, 4, marks=pytest.mark.long)])
def test_process_and_broker_killed_within_transactions_neither_lose_nor_repeat(broker, count, kills):
    for kill in range(kills):
        most = (kill + 1) * count // kills
        process = started(broker.address, TOPIC, most)
        stop_in_transaction(broker, process)
        process.kill()
        process.wait(20)
        process = started(broker.address, TOPIC, most, stderr=subprocess.DEVNULL)
        stop_in_transaction(broker, process)
        broker.kill()
        process.send_signal(signal.SIGCONT)
        broker.start()
        process.wait(300)  # with an error, or all: the client goes on where the broker is back in time
    assert started(broker.address, TOPIC, count).wait(300) == 0
    uncommitted = committed(broker.address, TOPIC, PARTITIONS, "read_uncommitted")
    assert compared(had(broker), count) == EXACT
    assert len(uncommitted) > count, "no transaction was dropped"


@pytest.mark.long
def test_process_that_was_stopped_in_its_transaction_cannot_write_when_it_runs_again(broker):
    older = started(broker.address, TOPIC, 200_000, stderr=subprocess.PIPE)
    try:
        stop_in_transaction(broker, older)
        assert started(broker.address, TOPIC, 50_000).wait(300) == 0
        older.send_signal(signal.SIGCONT)
        _, errors = older.communicate(timeout=300)
    finally:
        older.kill()
    assert older.returncode == 1
    assert b"EngineError: kafka/updates: a newer process delivers the updates of stream stream-1" in errors
    assert compared(had(broker), 50_000) == EXACT


@pytest.mark.long
def test_transaction_that_the_broker_ended_for_its_time_is_delivered_again(broker, closing, monkeypatch):
    monkeypatch.setattr(kafka, "_TRANSACTION_S", 1)
    sink = closing(KafkaSink(broker.address, TOPIC))
    sink.open(STREAM)
    sink.deliver(chunk_of(0))
    sink.deliver(chunk_of(1, last=20))
    sink._producer.flush(10)
    assert is_in_transaction(broker)
    await_(lambda: not is_in_transaction(broker))
    with pytest.raises(SinkAway, match="took longer than 1 s"):
        sink.deliver(chunk_of(1, first=20))
    assert sink.open(STREAM) == chunk_of(0).behind
    assert sink.deliver(chunk_of(1)) == chunk_of(1).behind
    assert compared(had(broker), 100) == EXACT


@pytest.mark.long
def test_last_position_is_found_once_the_broker_has_removed_those_before(tmp_path, closing):
    with ApacheKafka(tmp_path / "kafka") as broker:
        broker.create(TOPIC, PARTITIONS)
        compacted = {"cleanup_policy": "compact", "segment_ms": "200", "min_cleanable_dirty_ratio": "0.0"}
        broker.create(TOPIC + POSITIONS, **compacted)
        sink, number = closing(KafkaSink(broker.address, TOPIC)), 0
        sink.open(STREAM)

        def is_compacted():
            nonlocal number
            sink.deliver(chunk_of(number))
            number += 1
            return len(committed(broker.address, TOPIC + POSITIONS, 1)) < number // 2

        await_(is_compacted)
        sink.close()
        broker.kill()
        broker.start()
        another = closing(KafkaSink(broker.address, TOPIC))
        assert another.open(STREAM) == chunk_of(number - 1).behind


@pytest.mark.long
def test_topics_that_are_deleted_below_a_sink_are_named_when_it_opens_again(broker, closing):
    sink = closing(KafkaSink(broker.address, TOPIC))
    sink.open(STREAM)
    sink.deliver(chunk_of(0))
    broker.delete(TOPIC, TOPIC + POSITIONS)
    with pytest.raises((SinkAway, ConfigError)):
        for number in range(1, 30):
            sink.deliver(chunk_of(number))
    with pytest.raises(ConfigError, match="has no topic 'updates' and no topic 'updates-positions'"):
        sink.open(STREAM)


# ---------------------------------------------------------------- a source


@pytest.mark.long
def test_source_reads_what_was_committed_alone(apache_kafka, topic, closing):
    fixed = {"bootstrap.servers": apache_kafka.address, "transactional.id": topic, "log_level": 0}
    producer = Producer(fixed)
    producer.init_transactions(30)
    for number in range(6):
        producer.begin_transaction()
        for place in range(10):
            producer.produce(topic, b"%d-%d" % (number, place), partition=place % PARTITIONS)
        producer.flush(30)
        producer.commit_transaction(30) if number % 2 else producer.abort_transaction(30)
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=0)
    producer.flush(30)
    source = closing(KafkaSource(apache_kafka.address, topic))
    source.open({})
    found = read_all(source, 30)
    assert sorted(one.data for one in found) == sorted(b"%d-%d" % (n, at) for n in (1, 3, 5) for at in range(10))
    assert source.read(10, 1.0) == []
    producer.commit_transaction(30)
    assert [one.data for one in read_all(source, 1)] == [b"open"]
    again = closing(KafkaSource(apache_kafka.address, topic))
    assert again.open(position(found)) == 0, "behind a marker"
    assert [one.data for one in read_all(again, 1)] == [b"open"]


@pytest.mark.long
def test_records_that_retention_removed_are_counted_and_those_behind_are_read(apache_kafka, topic, closing):
    apache_kafka.send(topic, [b"%d" % number for number in range(90)], PARTITIONS)
    source = closing(KafkaSource(apache_kafka.address, topic))
    source.open({})
    found = read_all(source, 90)
    first = [one for one in found if one.offset < 10]
    source.close()
    apache_kafka.remove_before(topic, 1, 25)
    assert source.open(position(first)) == 15
    assert len(read_all(source, 45)) == 45  # 20 of two partitions, 5 of the other
    assert closing(KafkaSource(apache_kafka.address, topic)).open({}) == 0


@pytest.mark.long
def test_new_partitions_are_read_from_their_first_record(apache_kafka, topic, closing):
    source = closing(KafkaSource(apache_kafka.address, topic))
    source.open({})
    apache_kafka.send(topic, [b"%d" % number for number in range(30)], PARTITIONS)
    found = read_all(source, 30)
    apache_kafka.widen(topic, PARTITIONS + 2)
    apache_kafka.send(topic, [b"more %d" % number for number in range(10)], PARTITIONS + 2)

    def read_behind(found):
        until_s = time.monotonic() + _DEADLINE_S
        while len(found) < 40:
            assert time.monotonic() < until_s
            try:
                found += source.read(100, 0.5)
            except SourceAway as error:
                assert "its partitions have changed" in str(error)
                source.open(position(found))
        return found

    assert len({one.data for one in read_behind(found)}) == 40


@pytest.mark.long
def test_topic_that_is_deleted_while_it_is_read_is_away_and_then_refused(apache_kafka, topic, closing, monkeypatch):
    monkeypatch.setattr("gateway.sources.kafka._LOOK_S", 0.5)
    apache_kafka.send(topic, [b"%d" % number for number in range(30)], PARTITIONS)
    source = closing(KafkaSource(apache_kafka.address, topic))
    source.open({})
    read = position(read_all(source, 30))
    apache_kafka.delete(topic)
    with pytest.raises(SourceAway):
        await_(lambda: source.read(10, 0.2))
    with pytest.raises(SourceAway, match="not yet"):
        source.open(read)
    monkeypatch.setattr("gateway.sources.kafka._MISSING_S", 0.0)
    with pytest.raises(ConfigError, match="create it"):
        source.open(read)
    apache_kafka.create(topic, PARTITIONS)
    apache_kafka.send(topic, [b"another %d" % number for number in range(90)], PARTITIONS)
    with pytest.raises(ConfigError, match=r"created anew.*--out"):
        source.open(read)
