"""The sink of NATS as one of all sinks."""

import json

import pytest

from tests.support import sink_contract as contract
from tests.support.brokers import NatsBroker
from tests.support.nats_sinking import NAME, Had, create, sink_of


class NatsReceiver(contract.Receiver):
    """A stream of a server."""

    def __init__(self, broker):
        self._broker = broker

    def sink(self):
        return sink_of(self._broker)

    def ids(self):
        return [json.loads(one)["id"] for one in Had.by(self._broker).data]

    def cut(self):
        self._broker.kill()
        self._broker.start()


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with NatsBroker(tmp_path_factory.mktemp("broker")) as one:
        yield one


class TestNats(contract.SinkContract):
    @pytest.fixture
    def receiver(self, broker):
        create(broker)
        yield NatsReceiver(broker)
        broker.delete(NAME)
