"""`skyray serve --to nats://` and NATS, killed in turn: the stream has each update of the folder once, in order."""

import json
from collections import Counter
from contextlib import ExitStack

import numpy as np
import pytest

from tests.support.brokers import NatsBroker
from tests.support.nats_sinking import NAME, SUBJECT, Had, create
from tests.support.serving import Served, free_port, written
from tests.support.sink_trial import OPTIONS, Producer, kill_in_turn, messages_of, sink_of, subscriptions_of

pytestmark = [pytest.mark.fault, pytest.mark.long, pytest.mark.timeout(3_000)]


@pytest.mark.parametrize(("count", "kills", "most"), [(3_000, 2, 100), (60_000, 5, 1_000)])
def test_server_and_nats_killed_in_turn_neither_lose_nor_repeat(tmp_path, count, kills, most):
    rng = np.random.default_rng(5)
    out, port = tmp_path / "out", free_port()
    rows, first = messages_of(rng, count), subscriptions_of(rng, 30)
    with ExitStack() as stack:
        broker = stack.enter_context(NatsBroker(tmp_path / "broker"))
        create(broker)
        options = (*OPTIONS, "--to", f"{broker.url}/{NAME}?subject={SUBJECT}")
        served = stack.enter_context(Served(out, *options, port=port))
        for one in first:
            assert served.call("POST", "/v1/subscriptions", one).status in (200, 201)
        producer = Producer(port, rows, most, [])
        producer.start()
        stack.callback(producer.join, 30)
        stack.callback(producer.over.set)
        served = kill_in_turn(
            stack, served, lambda: Served(out, *options, port=port), broker, producer, count, kills, most
        )

        def is_through():
            health = served.call("GET", "/health").json
            return health["sinks"][0]["waiting"] == 0 and health["complete_through"] == health["next_seq"] - 1

        served.await_(is_through, 600)
        sink = sink_of(served)
        had = Had.by(broker)
        assert sink["released"] == sink["delivered"] == len(had) and sink["lost"] == 0, sink
        served.end(60)
        found = [json.loads(one) for one in had.data]
        places = [tuple(map(int, one["id"].split("-"))) for one in found]
        assert places == sorted(set(places))
        columns = ("as_of", "subscription_id", "message_id", "seq", "change", "score")
        table = Counter(tuple(one[name] for name in columns) for one in found)
        told = written(out)
        assert (table - told).total() == 0, "extra or repeated"
        assert (told - table).total() == 0, "missing"
        assert told.total() > count / 10
