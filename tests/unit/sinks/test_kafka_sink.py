"""The Kafka sink, through the contract of `gateway.sinks.stream`.

What is exact about it is tested with `TransactionalBroker`, since the mock broker of the client library shows
uncommitted records to readers of committed ones, and fences nobody. The mock is an implementation of the protocol that
is not ours, so what it can show is tested with it too. Neither keeps anything on a disk, nor has replicas. What needs
no fault that only ours can make is tested with Apache Kafka, too, where its jars are; the rest of what is tested with
it is in `tests/fault/test_apache_kafka.py`.
"""

import json
import signal
import subprocess
import threading

import pytest

from gateway.serve.released import ReleasedUpdate
from gateway.serve.update_parts import BEGINNING, Position
from gateway.sinks import kafka
from gateway.sinks.kafka import KafkaSink
from gateway.sinks.stream import SinkAway, UpdateChunk
from matching.errors import ConfigError, EngineError
from tests.support import all_updates
from tests.support import transactional_broker as broker_of
from tests.support.all_updates import STREAM, boundary, chunks_after, compared, deliver
from tests.support.brokers import KafkaBroker
from tests.support.kafka_topics import committed, headers_of, keys_and_positions
from tests.support.releasing import update_of
from tests.support.serving import free_port
from tests.support.sink_contract import await_away
from tests.support.transactional_broker import TransactionalBroker

TOPIC, PARTITIONS = "updates", 3
REFUSED, NOT_AUTHORISED = 29, 53  # of a topic, of a transactional id


#: Tests with both brokers.
on_both = pytest.mark.parametrize(
    "broker", ["ours", pytest.param("apache", marks=[pytest.mark.kafka, pytest.mark.long])], indirect=True
)


@pytest.fixture
def broker(request):
    topics = TOPIC, TOPIC + kafka.POSITIONS
    if getattr(request, "param", "ours") == "apache":
        apache = request.getfixturevalue("apache_kafka")
        for topic, partitions in zip(topics, (PARTITIONS, 1), strict=True):
            apache.create(topic, partitions)
        yield apache
        apache.delete(*topics)
        return
    with TransactionalBroker() as one:
        for topic, partitions in zip(topics, (PARTITIONS, 1), strict=True):
            one.create(topic, partitions)
        yield one


@pytest.fixture
def sink(broker):
    one = KafkaSink(broker.address, TOPIC)
    yield one
    one.close()


@pytest.fixture
def started(broker):
    """Starts a process that delivers the first updates; ends all of them."""
    processes = []

    def start(count, **more):
        processes.append(all_updates.started(broker.address, TOPIC, count, **more))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.wait(20)


def one_chunk(number=0, most=None):
    """A boundary, or its beginning, as a chunk."""
    updates = boundary(number)[:most]
    behind = Position.of(updates[-1].position)
    return UpdateChunk(updates, behind, most is None, behind.boundary)


def rest_of(chunk, number=0):
    updates = boundary(number)[len(chunk.updates) :]
    return UpdateChunk(updates, Position.of(updates[-1].position), True, chunk.through_seq)


def positions(broker):
    return [position for _, position in keys_and_positions(committed(broker.address, TOPIC, PARTITIONS))]


def kept(broker):
    """The positions that were committed."""
    messages = committed(broker.address, TOPIC + kafka.POSITIONS, 1)
    return [json.loads(one.value() or b"")["position"] for one in messages]


# ---------------------------------------------------------------- what is delivered


@on_both
def test_sink_delivers_each_update_once_in_order_of_its_subscription(broker, sink):
    deliver(sink, 6_000)
    had = keys_and_positions(committed(broker.address, TOPIC, PARTITIONS))
    assert compared(had, 6_000) == {"missing": 0, "extra": 0, "repeated": 0, "disordered": 0}


@on_both
def test_record_of_update_has_json_key_and_cloudevents_headers(broker, sink):
    sink.open("world 1")
    chunk = one_chunk()
    sink.deliver(chunk)
    by_position = {one.position: one for one in chunk.updates}
    for message in committed(broker.address, TOPIC, PARTITIONS):
        headers = headers_of(message)
        update = by_position[headers["ce_id"].removeprefix("world 1/")]
        assert message.value() == update.data
        assert message.key() == update.subscription_id.encode()
        assert headers == {
            "ce_specversion": "1.0",
            "ce_id": f"world 1/{update.position}",
            "ce_source": "/skyray/world%201",
            "ce_type": f"skyray.update.{json.loads(update.data)['change']}",
            "ce_subject": update.subscription_id,
            "content-type": "application/json",
        }


@on_both
def test_record_is_in_the_partition_that_java_clients_take_for_its_key(broker, sink):
    assert murmur2(b"foobar") == -790332482 & 0xFFFFFFFF  # an example of Kafka's own tests
    sink.open(STREAM)
    sink.deliver(one_chunk())
    messages = committed(broker.address, TOPIC, PARTITIONS)
    assert len({one.partition() for one in messages}) == PARTITIONS
    for message in messages:
        assert message.partition() == (murmur2(message.key()) & 0x7FFFFFFF) % PARTITIONS


def murmur2(data):
    """MurmurHash2 with the seed of Kafka."""
    mask, factor = 0xFFFFFFFF, 0x5BD1E995
    value = 0x9747B28C ^ len(data)
    whole = len(data) // 4 * 4
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * factor & mask
        word = (word ^ word >> 24) * factor & mask
        value = value * factor & mask ^ word
    if whole < len(data):
        value = (value ^ int.from_bytes(data[whole:], "little")) * factor & mask
    value = (value ^ value >> 13) * factor & mask
    return value ^ value >> 15


# ---------------------------------------------------------------- transactions and positions


@on_both
def test_boundary_in_two_chunks_is_visible_only_as_a_whole(broker, sink):
    sink.open(STREAM)
    assert sink.deliver(one_chunk(0)) == one_chunk(0).behind
    first = one_chunk(1, most=20)
    assert sink.deliver(first) == one_chunk(0).behind
    sink._producer.flush(10)
    assert len(committed(broker.address, TOPIC, PARTITIONS, "read_uncommitted")) == 70
    assert len(positions(broker)) == 50
    assert sink.deliver(rest_of(first, 1)) == one_chunk(1).behind
    assert len(positions(broker)) == 100


@on_both
def test_transaction_beyond_its_bytes_is_committed_within_the_boundary(broker, sink, monkeypatch):
    monkeypatch.setattr(kafka, "MOST_BYTES", 1_000)
    sink.open(STREAM)
    sink.deliver(one_chunk(0))
    first = one_chunk(1, most=20)
    assert sink.deliver(first) == first.behind
    assert len(positions(broker)) == 70
    sink.close()
    assert sink.open(STREAM) == first.behind


def test_position_is_in_the_transaction_of_its_updates(broker, sink):
    assert sink.open(STREAM) is None
    sink.deliver(one_chunk(0))
    sink.deliver(one_chunk(1))
    assert kept(broker) == [None, one_chunk(0).behind.text, one_chunk(1).behind.text]
    broker.fail(broker_of.END_TRANSACTION, broker_of.NO_PRODUCER)
    with pytest.raises(EngineError):
        sink.deliver(one_chunk(2))
    assert kept(broker)[-1] == one_chunk(1).behind.text
    assert len(positions(broker)) == 100
    assert sink.open(STREAM) == one_chunk(1).behind


def test_chunks_without_updates_take_no_transaction(broker, sink):
    sink.open(STREAM)
    sink.deliver(one_chunk(0))
    requests = len(broker.requests)
    assert sink.deliver(UpdateChunk([], Position(500, 0), True, 500)) == Position(500, 0)
    assert broker_of.END_TRANSACTION not in broker.requests[requests:]
    sink.close()
    assert sink.open(STREAM) == one_chunk(0).behind


@on_both
def test_chunk_without_updates_commits_the_boundary_that_it_ends(broker, sink):
    sink.open(STREAM)
    sink.deliver(one_chunk(0))
    sink.deliver(one_chunk(1, most=20))
    assert sink.deliver(UpdateChunk([], Position(19, 20), True, 19)) == Position(19, 20)
    assert len(positions(broker)) == 70


@on_both
def test_last_position_is_found_behind_many_dropped_transactions(broker, sink, monkeypatch):
    monkeypatch.setattr(kafka, "_LAST", 4)
    sink.open(STREAM)
    sink.deliver(one_chunk(0))
    monkeypatch.setattr(sink, "_topic", "other")  # its records are in the same topic of positions
    monkeypatch.setattr(kafka, "POSITIONS", "")
    for number in range(30):
        sink._producer.begin_transaction()
        sink._producer.produce(TOPIC + "-positions", b"{}", b"other", partition=0)
        sink._producer.flush(10)
        sink._producer.abort_transaction(10) if number % 2 else sink._producer.commit_transaction(10)
    monkeypatch.undo()
    sink._topic = TOPIC
    assert sink.open(STREAM) == one_chunk(0).behind


# ---------------------------------------------------------------- who may write


@on_both
def test_older_process_that_comes_back_cannot_write(broker, sink):
    sink.open(STREAM)
    sink.deliver(one_chunk(0))
    sink.deliver(one_chunk(1, most=20))
    newer = KafkaSink(broker.address, TOPIC)
    assert newer.open(STREAM) == one_chunk(0).behind
    newer.deliver(one_chunk(1))
    with pytest.raises(EngineError, match="a newer process delivers the updates of stream") as raised:
        sink.deliver(rest_of(one_chunk(1, most=20), 1))
    assert not isinstance(raised.value, SinkAway)
    assert newer.deliver(one_chunk(2)) == one_chunk(2).behind
    newer.close()
    had = keys_and_positions(committed(broker.address, TOPIC, PARTITIONS))
    assert compared(had, 150) == {"missing": 0, "extra": 0, "repeated": 0, "disordered": 0}


@on_both
def test_older_process_that_opens_again_does_not_fence_the_newer_one(broker, sink):
    sink.open(STREAM)
    sink.deliver(one_chunk(0))
    newer = KafkaSink(broker.address, TOPIC)
    newer.open(STREAM)
    sink.close()
    with pytest.raises(EngineError, match="a newer process delivers"):
        sink.open(STREAM)
    assert newer.deliver(one_chunk(1)) == one_chunk(1).behind
    newer.close()


def test_transaction_that_was_too_old_is_no_newer_process(broker, sink):
    sink.open(STREAM)
    sink.deliver(one_chunk(0))
    sink.deliver(one_chunk(1, most=20))
    sink._producer.flush(10)
    broker.expire()
    with pytest.raises(SinkAway, match="took longer than 60 s"):
        sink.deliver(rest_of(one_chunk(1, most=20), 1))
    assert sink.open(STREAM) == one_chunk(0).behind
    assert sink.deliver(one_chunk(1)) == one_chunk(1).behind
    assert len(positions(broker)) == 100


@on_both
def test_topic_of_another_stream_is_refused(broker, sink):
    sink.open(STREAM)
    other = KafkaSink(broker.address, TOPIC)
    with pytest.raises(ConfigError, match="stream stream-1 writes this topic, and this is stream stream-2"):
        other.open("stream-2")
    other.close()
    assert sink.deliver(one_chunk(0)) == one_chunk(0).behind


@on_both
def test_topic_of_positions_with_other_records_is_refused(broker, sink):
    sink.open(STREAM)
    sink._producer.begin_transaction()
    sink._producer.produce(TOPIC + kafka.POSITIONS, b"seven", TOPIC, partition=0)
    sink._producer.commit_transaction(10)
    with pytest.raises(ConfigError, match=r"offset 2 of topic 'updates-positions' is no position"):
        sink.open(STREAM)


# ---------------------------------------------------------------- errors


def test_topic_that_is_not_there_is_created_only_if_asked(broker):
    sink = KafkaSink(broker.address, "new")
    with pytest.raises(ConfigError, match=r"--create --topic new --partitions 4 && .*--topic new-positions"):
        sink.open(STREAM)
    assert "new" not in broker.logs
    sink = KafkaSink(broker.address, "new", create=5)
    assert sink.open(STREAM) is None
    assert (len(broker.logs["new"]), len(broker.logs["new-positions"])) == (5, 1)
    assert broker.configs["new-positions"]["cleanup.policy"] == "compact"
    assert sink.deliver(one_chunk(0)) == one_chunk(0).behind
    sink.close()
    sink = KafkaSink(broker.address, "new", create=7)
    assert sink.open(STREAM) == one_chunk(0).behind
    assert len(broker.logs["new"]) == 5
    sink.close()


def test_broker_that_may_not_create_topics_says_how(broker):
    broker.fail(broker_of.CREATE_TOPICS, 44)  # its policy
    sink = KafkaSink(broker.address, "new", create=5)
    with pytest.raises(ConfigError, match=r"does not create topic 'new' .*--topic new --partitions 5"):
        sink.open(STREAM)
    sink.close()


@pytest.mark.parametrize("limit", ["client", "broker"])
def test_update_that_is_too_large_is_named(broker, sink, limit):
    broker.largest_bytes = 50_000 if limit == "broker" else 5_000_000
    sink.open(STREAM)
    sink.deliver(one_chunk(0))
    text = "x" * (60_000 if limit == "broker" else 1_100_000)
    large = update_of("s1", "19-1", json.dumps({"id": "19-1", "change": "enter", "text": text}).encode())
    with pytest.raises(EngineError, match="update 19-1.* is larger than the broker or the client takes") as raised:
        sink.deliver(UpdateChunk([large], Position(19, 1), True, 19))
    assert not isinstance(raised.value, SinkAway)
    assert sink.open(STREAM) == one_chunk(0).behind
    assert len(positions(broker)) == 50


@pytest.mark.parametrize(
    ("kind", "error"),
    [(broker_of.INIT_PRODUCER_ID, NOT_AUTHORISED), (broker_of.ADD_PARTITIONS, REFUSED)],
)
def test_open_without_authorisation_is_refused(broker, sink, kind, error):
    broker.fail(kind, error)
    with pytest.raises(ConfigError, match="the broker refuses us"):
        sink.open(STREAM)


def test_sink_needs_no_authorisation_for_a_group(broker, sink):
    broker.group_error = 30
    for _ in range(5):
        sink.open(STREAM)
    assert broker_of.FIND_COORDINATOR in broker.requests


def test_deliver_without_authorisation_is_refused(broker, sink):
    sink.open(STREAM)
    broker.fail(broker_of.PRODUCE, REFUSED)
    with pytest.raises(ConfigError, match="the broker refuses us"):
        sink.deliver(one_chunk(0))


def test_sink_without_broker_is_away(monkeypatch):
    monkeypatch.setattr(kafka, "_ANSWER_S", 0.5)
    sink = KafkaSink(f"127.0.0.1:{free_port()}", TOPIC)
    with pytest.raises(SinkAway, match="kafka/updates"):
        sink.open(STREAM)
    sink.close()


def test_property_that_the_client_does_not_know_is_refused(broker):
    sink = KafkaSink(broker.address, TOPIC, {"no.such.property": "1"})
    with pytest.raises(ConfigError, match="the client refuses its properties"):
        sink.open(STREAM)


def test_broker_that_goes_away_in_a_transaction_gets_its_updates_once(broker, sink, monkeypatch):
    monkeypatch.setattr(kafka, "_COMMIT_S", 1.0)
    monkeypatch.setattr(kafka, "_ABORT_S", 0.2)
    sink.open(STREAM)
    sink.deliver(one_chunk(0))
    sink.deliver(one_chunk(1, most=20))
    sink._producer.flush(10)
    broker.kill()
    with pytest.raises(SinkAway):
        sink.deliver(rest_of(one_chunk(1, most=20), 1))
    broker.start()
    monkeypatch.setattr(kafka, "_COMMIT_S", 30.0)
    assert sink.open(STREAM) == one_chunk(0).behind
    deliver_rest(sink, 500)
    had = keys_and_positions(committed(broker.address, TOPIC, PARTITIONS))
    assert compared(had, 500) == {"missing": 0, "extra": 0, "repeated": 0, "disordered": 0}


def test_broker_that_goes_away_is_seen_where_nothing_is_to_be_delivered(broker, sink, monkeypatch):
    monkeypatch.setattr(kafka, "_ANSWER_S", 0.5)
    sink.open(STREAM)
    sink.check()
    sink.deliver(one_chunk(0))
    sink.check()
    broker.kill()
    await_away(sink)
    broker.start()
    monkeypatch.setattr(kafka, "_ANSWER_S", 5.0)
    assert sink.open(STREAM) == one_chunk(0).behind
    sink.check()


def test_commit_whose_answer_is_lost_is_known_after_opening(broker, sink, monkeypatch):
    monkeypatch.setattr(kafka, "_COMMIT_S", 1.0)
    monkeypatch.setattr(kafka, "_ABORT_S", 0.2)
    sink.open(STREAM)
    broker.once_after(broker_of.END_TRANSACTION, broker.kill)
    with pytest.raises(SinkAway):
        sink.deliver(one_chunk(0))
    broker.start()
    monkeypatch.setattr(kafka, "_COMMIT_S", 30.0)
    assert sink.open(STREAM) == one_chunk(0).behind
    assert len(positions(broker)) == 50


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        (broker_of.ADD_PARTITIONS, 51),  # concurrent transactions
        (broker_of.END_TRANSACTION, 14),  # the coordinator loads
        (broker_of.END_TRANSACTION, 16),  # another one is the coordinator
        (broker_of.PRODUCE, 6),  # another one is the leader
        (broker_of.PRODUCE, 7),  # timed out
    ],
)
def test_errors_that_pass_are_mended_by_the_client(broker, sink, kind, error):
    sink.open(STREAM)
    broker.fail(kind, error, error)
    deliver_rest(sink, 300)
    had = keys_and_positions(committed(broker.address, TOPIC, PARTITIONS))
    assert compared(had, 300) == {"missing": 0, "extra": 0, "repeated": 0, "disordered": 0}


def deliver_rest(sink, count):
    """Deliver what an open sink lacks."""
    for chunk in chunks_after(sink._durable or BEGINNING, count):
        sink.deliver(chunk)


@on_both
def test_chunk_that_the_client_has_no_room_for_is_delivered_whole(broker):
    sink = KafkaSink(broker.address, TOPIC, {"queue.buffering.max.messages": "100"})
    deliver(sink, 2_000)
    had = keys_and_positions(committed(broker.address, TOPIC, PARTITIONS))
    assert compared(had, 2_000) == {"missing": 0, "extra": 0, "repeated": 0, "disordered": 0}


# ---------------------------------------------------------------- killed


@pytest.mark.parametrize(
    ("count", "within", "behind"),
    [(4_000, 1, 1), pytest.param(200_000, 10, 2, marks=[pytest.mark.long, pytest.mark.timeout(900)])],
)
def test_process_killed_in_its_transactions_neither_loses_nor_repeats(broker, started, count, within, behind):
    """Killed by the broker's thread while a request is not answered.

    `within` times records are there and no marker is behind them; `behind` times the commit is carried out.
    """
    transactions = count // (within + behind + 1) // 1_000  # some are larger than a chunk of 500
    kinds = [broker_of.PRODUCE] * within + [broker_of.END_TRANSACTION] * behind
    for kill, kind in enumerate(kinds):
        requests = transactions * (PARTITIONS if kind == broker_of.PRODUCE else 1) + kill
        assert killed(broker, started(count), kind, requests) == -9
        is_open = any(part.open for log in broker.logs.values() for part in log)
        assert is_open == (kind == broker_of.PRODUCE)
    assert started(count).wait(300) == 0
    uncommitted = committed(broker.address, TOPIC, PARTITIONS, "read_uncommitted")
    had = keys_and_positions(committed(broker.address, TOPIC, PARTITIONS))
    assert len(uncommitted) > len(had), "no transaction was dropped"
    assert compared(had, count) == {"missing": 0, "extra": 0, "repeated": 0, "disordered": 0}


def killed(broker, process, kind, others):
    """Kill a process when the broker has carried out a request, and return the code of its end."""
    broker.once_after(kind, process.kill, others)
    return process.wait(300)


def test_process_that_was_stopped_in_its_transaction_cannot_write_when_it_runs_again(broker, started):
    older = started(4_000, stderr=subprocess.PIPE)
    stopped = threading.Event()

    def stop():
        older.send_signal(signal.SIGSTOP)
        stopped.set()

    broker.once_after(broker_of.PRODUCE, stop, others=6)
    assert stopped.wait(60)
    assert any(part.open for log in broker.logs.values() for part in log)
    assert started(2_000).wait(60) == 0
    older.send_signal(signal.SIGCONT)
    _, errors = older.communicate(timeout=300)
    assert older.returncode == 1
    assert b"EngineError: kafka/updates: a newer process delivers the updates of stream stream-1" in errors
    had = keys_and_positions(committed(broker.address, TOPIC, PARTITIONS))
    assert compared(had, 2_000) == {"missing": 0, "extra": 0, "repeated": 0, "disordered": 0}


# ---------------------------------------------------------------- the mock of the client library


@pytest.fixture
def mock():
    with KafkaBroker(TOPIC) as one:
        one.create()
        one.create(TOPIC + kafka.POSITIONS)
        yield one


def test_mock_has_each_update_once_and_the_position(mock):
    """The mock keeps the order and the markers of transactions; it neither hides uncommitted records nor fences."""
    sink = KafkaSink(mock.address, TOPIC)
    deliver(sink, 3_000)
    (last,) = list(chunks_after(BEGINNING, 3_000))[-1:]
    assert sink.open(STREAM) == last.behind
    sink.close()
    had = keys_and_positions(committed(mock.address, TOPIC, 4))
    assert compared(had, 3_000) == {"missing": 0, "extra": 0, "repeated": 0, "disordered": 0}
    with pytest.raises(ConfigError, match="another topic"):
        KafkaSink(mock.address, TOPIC).open("stream-2")


def test_mock_without_the_topic_is_refused(mock):
    with pytest.raises(ConfigError, match="has no topic 'none' and no topic 'none-positions'"):
        KafkaSink(mock.address, "none").open(STREAM)


def test_key_of_an_update_is_the_subscription_and_over_objects_the_object_too():
    update = ReleasedUpdate("0-0", "enter", 's"1', "m", 0, 0, None, "", 0.0, 0.0, b"{}")
    assert kafka.key_of(update) == 's"1'
    update.object_id = "o/1"
    assert json.loads(kafka.key_of(update)) == ['s"1', "o/1"]
