"""`skyray serve --to` NATS or Kafka, and the broker, killed in turn: it has each update of the folder once, in order.

NATS and Apache Kafka are the real servers, killed. Short rows have the broker of `tests.support.transactional_broker`
in Kafka's place, which keeps its logs in memory: it goes away with its port and all connections, and comes back, but
nothing is said about a disk.
"""

import json
from collections import Counter
from contextlib import ExitStack

import numpy as np
import pytest

from gateway.sinks.kafka import POSITIONS
from tests.support.apache_kafka import ApacheKafka
from tests.support.brokers import NatsBroker
from tests.support.kafka_topics import committed
from tests.support.nats_sinking import NAME, SUBJECT, Had, create
from tests.support.serving import Served, free_port, written
from tests.support.sink_trial import OPTIONS, Producer, is_through, kill_in_turn, messages_of, sink_of, subscriptions_of
from tests.support.transactional_broker import TransactionalBroker

pytestmark = [pytest.mark.fault, pytest.mark.timeout(3_000)]

TOPIC, PARTITIONS = "updates", 3
#: On Ray, components whose actors are killed; a process of the server has all of them.
ACTORS = ("query", "delivery", "messages")
COLUMNS = ("as_of", "subscription_id", "message_id", "seq", "change", "score")


class ToNats:
    """A stream of a NATS server."""

    #: Whether updates of all subscriptions are in one order.
    ordered = True

    def __init__(self, stack, folder):
        self._broker = stack.enter_context(NatsBroker(folder))
        create(self._broker)
        self.uri = f"{self._broker.url}/{NAME}?subject={SUBJECT}"
        self.kill, self.start = self._broker.kill, self._broker.start

    def rows(self):
        return [json.loads(one) for one in Had.by(self._broker).data]


class ToKafka:
    """A topic of partitions, whose order is that of each subscription."""

    ordered = False

    def __init__(self, stack, folder):
        self.broker = stack.enter_context(self.broker_of(folder))
        self.uri = f"kafka://{self.broker.address}/{TOPIC}?create={PARTITIONS}"
        self.kill, self.start = self.broker.kill, self.broker.start

    def broker_of(self, folder):
        return TransactionalBroker()

    def rows(self):
        assert len(committed(self.broker.address, TOPIC + POSITIONS, 1)) > 1
        return [json.loads(one.value()) for one in committed(self.broker.address, TOPIC, PARTITIONS)]


class ToApacheKafka(ToKafka):
    def broker_of(self, folder):
        return ApacheKafka(folder)


def long(*values, marks=()):
    return pytest.param(*values, marks=[pytest.mark.long, *marks])


@pytest.mark.parametrize(
    ("receiver_of", "executor", "count", "kills", "most"),
    [
        long(ToNats, "local", 3_000, 2, 100),
        long(ToKafka, "local", 3_000, 2, 100),
        long(ToApacheKafka, "local", 3_000, 2, 100, marks=[pytest.mark.kafka]),
        long(ToNats, "local", 200_000, 10, 1_000),
        long(ToApacheKafka, "local", 200_000, 10, 1_000, marks=[pytest.mark.kafka]),
        long(ToNats, "ray", 200_000, 10, 1_000, marks=[pytest.mark.ray]),
        long(ToApacheKafka, "ray", 200_000, 10, 1_000, marks=[pytest.mark.kafka, pytest.mark.ray]),
    ],
)
def test_server_and_broker_killed_in_turn_neither_lose_nor_repeat(
    tmp_path, receiver_of, executor, count, kills, most, record_property
):
    rng = np.random.default_rng(5)
    out, port = tmp_path / "out", free_port()
    rows, first = messages_of(rng, count), subscriptions_of(rng, 30)
    victims = ACTORS if executor == "ray" else ()
    with ExitStack() as stack:
        receiver = receiver_of(stack, tmp_path / "broker")
        options = (*OPTIONS, "--executor", executor, "--to", receiver.uri)
        served = stack.enter_context(Served(out, *options, port=port))
        for one in first:
            assert served.call("POST", "/v1/subscriptions", one).status in (200, 201)
        producer = Producer(port, rows, most, [])
        producer.start()
        stack.callback(producer.join, 30)
        stack.callback(producer.over.set)
        served = kill_in_turn(
            stack, served, lambda: Served(out, *options, port=port), receiver, producer, count, kills, most,
            victims=victims,
        )  # fmt: skip
        served.await_(lambda: is_through(served), 600)
        sink, found = sink_of(served), receiver.rows()
        assert sink["released"] == sink["delivered"] == len(found) and sink["lost"] == 0, sink
        served.end(60)
    places = [(one["subscription_id"], *map(int, one["id"].split("-"))) for one in found]
    assert len(set(places)) == len(places), "repeated"
    for order in [[place[1:] for place in places]] if receiver_of.ordered else by_subscription(places):
        assert order == sorted(order)
    table = Counter(tuple(one[name] for name in COLUMNS) for one in found)
    told = written(out)
    assert (table - told).total() == 0, "extra or repeated"
    assert (told - table).total() == 0, "missing"
    assert told.total() > count / 10
    for name, value in {"updates": told.total(), "messages": count, "kills of each side": kills}.items():
        record_property(name, value)


def by_subscription(places):
    found = {}
    for name, *place in places:
        found.setdefault(name, []).append(place)
    return found.values()
