"""What every source promises (`gateway.sources.source`), held against real brokers."""

import json
import threading
import time

import pytest
from confluent_kafka import KafkaError

from gateway.sources import nats
from gateway.sources.kafka import KafkaSource, split_errors
from gateway.sources.nats import NatsSource
from gateway.sources.source import SourceAway
from matching.errors import ConfigError
from tests.support.brokers import STREAM, ApacheBroker, KafkaBroker, NatsBroker, position, read_all
from tests.support.serving import free_port

ROWS = [b'{"text": "ramen %d", "lon": 139.7, "lat": 35.7}' % number for number in range(250)]
NAMES = ("nats", "kafka", pytest.param("apache", marks=[pytest.mark.kafka, pytest.mark.long]))


def broker_of(name, folder):
    if name == "apache":
        return ApacheBroker(folder / "broker")
    return NatsBroker(folder / "broker") if name == "nats" else KafkaBroker()


@pytest.fixture(params=NAMES)
def broker(request, tmp_path):
    with broker_of(request.param, tmp_path) as one:
        yield one


@pytest.fixture
def closing():
    """Closes sources at the end."""
    sources = []
    yield lambda source: sources.append(source) or source
    for source in sources:
        source.close()


def in_order(messages):
    """Offsets of each partition grow."""
    last = {}
    for one in messages:
        if one.offset <= last.get(one.partition, -1):
            return False
        last[one.partition] = one.offset
    return True


def test_source_reads_each_message_once_in_order(broker, closing):
    broker.create()
    broker.publish(ROWS)
    source = closing(broker.source())
    assert source.open({}) == 0
    found = read_all(source, len(ROWS))
    assert sorted(one.data for one in found) == sorted(ROWS)
    assert in_order(found)
    assert source.read(10, 0.1) == []
    assert source.lag() == 0
    broker.publish([b"more"])
    assert [one.data for one in read_all(source, 1)] == [b"more"]


def test_source_opened_behind_a_position_reads_what_follows(broker, closing):
    broker.create()
    broker.publish(ROWS)
    source = closing(broker.source("skyray"))
    source.open({})
    first = read_all(source, 120)
    source.acknowledge(position(first))
    source.open(position(first))  # without a close, as after a broken connection
    rest = read_all(source, len(ROWS) - len(first))
    assert sorted(one.data for one in (*first, *rest)) == sorted(ROWS)
    source.close()
    source.close()
    another = closing(broker.source("skyray"))
    another.open(position(first))  # what the broker was told decides nothing
    again = read_all(another, len(rest))
    assert sorted(again) == sorted(rest)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("count", [1, 300])
def test_stream_made_anew_under_a_used_name_is_refused(name, count, tmp_path, closing):
    with broker_of(name, tmp_path) as earlier:
        earlier.create()
        earlier.publish(ROWS[:100])
        source = closing(earlier.source())
        source.open({})
        read = position(read_all(source, 100))
        source.close()
        if not isinstance(earlier, KafkaBroker):
            earlier.recreate()
            assert_refused(earlier, count, read, closing)
    if name == "kafka":
        with broker_of(name, tmp_path) as later:
            later.create()
            assert_refused(later, count, read, closing)


def assert_refused(broker, count, read, closing):
    broker.publish([b"other %d" % number for number in range(count)])
    with pytest.raises(ConfigError, match=r"created anew.*--out"):
        closing(broker.source()).open(read)


def test_stream_that_is_not_there_is_refused(broker, closing):
    source = closing(broker.source())
    if not isinstance(broker, NatsBroker):
        broker.create()
        source = closing(KafkaSource(broker.address, "absent"))
    with pytest.raises(ConfigError, match="create it"):
        source.open({})


def test_broker_that_is_not_there_is_away(closing, monkeypatch):
    monkeypatch.setattr("gateway.sources.kafka._ANSWER_S", 0.5)
    kafka = KafkaSource(f"127.0.0.1:{free_port()}", "posts")
    for source in (NatsSource([f"nats://127.0.0.1:{free_port()}"], STREAM), kafka):
        with pytest.raises(SourceAway, match="cannot be reached"):
            closing(source).open({})


def test_durable_position_is_shown_at_the_nats_server(tmp_path, closing):
    with NatsBroker(tmp_path) as broker:
        broker.create()
        broker.publish(ROWS)
        source = closing(broker.source("skyray"))
        source.open({})
        found = read_all(source, len(ROWS))
        source.acknowledge(position(found[:130]))
        source.lag()
        source.close()
        # only whole reads are acknowledged: the last that ends before the position
        assert broker.acknowledged("skyray") <= 130
        assert broker.acknowledged("skyray") > 0


def test_answers_of_nats_are_read_as_they_come_also_those_of_an_earlier_request(tmp_path, closing, monkeypatch):
    with NatsBroker(tmp_path / "broker") as broker:
        broker.create()
        broker.publish(ROWS)
        source, found = closing(broker.source()), []
        source.open({})
        with monkeypatch.context() as hasty:
            hasty.setattr(nats, "_REPLY_S", 0.0)  # each answer is late
            while len(found) < len(ROWS):
                assert len(some := source.read(7, 0.001)) <= 7
                found += some
        assert [one.data for one in found] == ROWS
        begun_s = time.monotonic()
        threading.Timer(0.2, broker.publish, [[b"late"]]).start()
        while not (found := source.read(100, 30.0)):
            pass
        assert [one.data for one in found] == [b"late"] and time.monotonic() - begun_s < 20, "it waits for no others"


def test_consumer_of_another_program_is_left_alone(tmp_path, closing):
    from nats.js.api import ConsumerConfig

    with NatsBroker(tmp_path) as broker:
        broker.create()
        broker.call(lambda context: context.add_consumer(STREAM, ConsumerConfig(durable_name="theirs")))
        with pytest.raises(ConfigError, match="consumer="):
            closing(broker.source("theirs")).open({})


def test_messages_that_the_broker_removed_are_counted(tmp_path, closing):
    with NatsBroker(tmp_path) as broker:
        broker.create()
        broker.publish(ROWS)
        source = closing(broker.source())
        source.open({})
        read = position([one for one in read_all(source, 100) if one.offset <= 50])
        source.close()
        broker.remove_through(80)
        assert source.open(read) == 30
        assert [one.offset for one in read_all(source, 170)] == list(range(81, 251))
        assert closing(broker.source()).open({}) == 0  # a folder that begins has missed nothing


def test_connection_that_breaks_is_noticed(tmp_path, closing):
    with NatsBroker(tmp_path) as broker:
        broker.create()
        broker.publish(ROWS[:10])
        source = closing(broker.source())
        source.open({})
        found = read_all(source, 10)
        broker.kill()
        with pytest.raises(SourceAway):
            for _ in range(100):
                source.read(10, 0.1)
        broker.start()
        broker.publish([b"after"])
        source.open(position(found))
        assert [one.data for one in read_all(source, 1)] == [b"after"]


def test_consumer_that_is_deleted_below_us_is_noticed(tmp_path, closing):
    with NatsBroker(tmp_path) as broker:
        broker.create()
        source = closing(broker.source("skyray"))
        source.open({})
        broker.call(lambda context: context.delete_consumer(STREAM, "skyray"))
        with pytest.raises(SourceAway):
            for _ in range(100):
                source.read(10, 0.1)


def test_topic_of_kafka_that_was_there_may_be_unknown_for_some_seconds(closing, monkeypatch):
    with KafkaBroker() as broker, KafkaBroker() as begun:
        broker.create()
        broker.publish(ROWS[:20])
        source = closing(broker.source())
        source.open({})
        read = position(read_all(source, 20))
        source._brokers = begun.address  # it has begun again, and knows no topic yet
        for _ in range(2):
            with pytest.raises(SourceAway, match="not yet"):
                source.open(read)
        source._brokers = broker.address
        assert source.open(read) == 0 and source._missing_since_s is None
        source._brokers = begun.address
        after_restart = closing(begun.source())  # of this process, whose folder has read the topic
        with pytest.raises(SourceAway, match="not yet"):
            after_restart.open(read)
        monkeypatch.setattr("gateway.sources.kafka._MISSING_S", 0.0)
        with pytest.raises(ConfigError, match="create it"):
            after_restart.open(read)


def statistics(ends):
    """What the client of Kafka says of the ends of partitions."""
    partitions = {str(partition): {"ls_offset": end} for partition, end in ends.items()}
    return json.dumps({"topics": {"posts": {"partitions": partitions}}})


def test_topic_of_kafka_that_shrinks_while_it_is_read_is_compared_again(closing):
    with KafkaBroker() as broker, KafkaBroker() as anew:
        broker.create()
        broker.publish(ROWS[:100])
        source = closing(broker.source())
        source.open({})
        read = position(read_all(source, 100))
        source._note_ends(statistics({0: 25, 1: 30, 2: -1001}))
        assert source.read(10, 0.0) == []
        source._note_ends(statistics({0: 25, 1: 29}))
        with pytest.raises(SourceAway, match="partition 1 ends before offset 29, and had 30"):
            source.read(10, 0.0)
        assert source.open(read) == 0  # the same topic: the broker has lost what was not read
        assert source.read(10, 0.0) == []
        anew.create()
        anew.publish([b"other %d" % number for number in range(300)])
        source._brokers = anew.address
        source._note_ends(statistics({3: 0}))
        with pytest.raises(SourceAway, match="partition 3"):
            source.read(10, 0.0)
        with pytest.raises(ConfigError, match=r"created anew.*--out"):
            source.open(read)


class Answered:
    """What the client of Kafka has for a message, or for an error of a partition."""

    def __init__(self, partition, offset, error=None):
        self.partition, self.offset = lambda: partition, lambda: offset
        self.error = lambda: None if error is None else KafkaError(error)
        self.value, self.key = lambda: b"%d" % offset, lambda: None
        self.timestamp, self.headers = lambda: (0, 0), lambda: None


def test_error_of_a_partition_of_kafka_loses_nothing_of_the_others():
    removed, end = KafkaError._AUTO_OFFSET_RESET, KafkaError._PARTITION_EOF
    answer = [
        Answered(1, 5),
        Answered(0, 7, removed),
        Answered(1, 6),
        Answered(2, 9, end),
        Answered(0, 8),
        Answered(1, 7),
    ]
    found, error = split_errors(answer)
    assert [(one.partition, one.offset) for one in found] == [("1", 5), ("1", 6), ("1", 7)]
    assert error is not None and error.code() == removed
    found, error = split_errors([Answered(0, 1), Answered(1, 2, end)])
    assert [one.offset for one in found] == [1] and error is None


def test_stream_of_nats_that_removes_what_is_taken_is_refused(tmp_path, closing):
    with NatsBroker(tmp_path / "broker") as broker:
        broker.create(retention="interest")
        with pytest.raises(ConfigError, match="retention interest.*retention limits"):
            closing(broker.source()).open({})
