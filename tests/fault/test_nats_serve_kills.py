"""`skyray serve --to nats://` and NATS, killed in turn: the stream has each update of the folder once, in order."""

import json
from collections import Counter
from contextlib import ExitStack

import numpy as np
import pytest

from tests.fault import test_sink_kills as sinks
from tests.support.brokers import NatsBroker
from tests.support.nats_sinking import NAME, SUBJECT, Had, create
from tests.support.serving import Served, free_port, kill, written

pytestmark = [pytest.mark.fault, pytest.mark.long, pytest.mark.timeout(3_000)]


@pytest.mark.parametrize(("count", "kills", "most"), [(3_000, 2, 100), (60_000, 5, 1_000)])
def test_server_and_nats_killed_in_turn_neither_lose_nor_repeat(tmp_path, count, kills, most):
    rng = np.random.default_rng(5)
    out, port = tmp_path / "out", free_port()
    rows, first = sinks.messages_of(rng, count), sinks.subscriptions_of(rng, 30)
    with ExitStack() as stack:
        broker = stack.enter_context(NatsBroker(tmp_path / "broker"))
        create(broker)
        options = (*sinks.OPTIONS, "--to", f"{broker.url}/{NAME}?subject={SUBJECT}")
        served = stack.enter_context(Served(out, *options, port=port))
        for one in first:
            assert served.call("POST", "/v1/subscriptions", one).status in (200, 201)
        producer = sinks.Producer(port, rows, most, [])
        producer.start()
        stack.callback(producer.join, 30)
        stack.callback(producer.over.set)
        steps = 2 * kills + 1
        for step in range(1, steps):
            producer.may_send = step * count // steps + most
            served.await_(lambda step=step: producer.sent >= step * count // steps, 600)
            if step % 2:
                kill(served)
                served.__exit__()
                served = stack.enter_context(Served(out, *options, port=port))
            else:
                broker.kill()
                served.await_(lambda served=served: sinks.sink_of(served)["state"] == "away", 60)
                producer.may_send += most
                served.await_(lambda: producer.sent >= min(producer.may_send, count) - most, 60)
                broker.start()
        producer.may_send = count
        served.await_(lambda: producer.sent == count, 1_200)

        def is_through():
            health = served.call("GET", "/health").json
            return health["sinks"][0]["waiting"] == 0 and health["complete_through"] == health["next_seq"] - 1

        served.await_(is_through, 600)
        sink = sinks.sink_of(served)
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
