"""A process with a sink of NATS and its server, killed in turn: the stream has each update once, in order."""

import signal
from contextlib import ExitStack

import pytest

from tests.support.brokers import NatsBroker
from tests.support.nats_cluster import NatsCluster
from tests.support.nats_sinking import (
    IDENTITY,
    NAME,
    Had,
    SinkProcess,
    create,
    last_sequence,
    unread_bytes,
    updates_of,
)

pytestmark = [pytest.mark.fault, pytest.mark.timeout(900)]


class Killing:
    """Kills the process with the sink, and the server, while updates are between them.

    Attributes
    ----------
    in_doubt : list of int
        Of each kill with a server that stood still: bytes that were on their way.
    """

    def __init__(self, broker, sink):
        self._broker = broker
        self._sink = sink
        self.in_doubt = []

    def kill(self, number, step):
        """The sink and the server in turn, each while it works and, the next time, while the server stands still."""
        kill_sink, stand_still = number % 2, (number - 1) // 2 % 2
        at = number * step
        self._sink.await_(lambda: last_sequence(self._broker) >= at)
        server = self._broker.process
        if stand_still:
            server.send_signal(signal.SIGSTOP)
            self._sink.allow(at + step)
            self._sink.await_(lambda: unread_bytes(self._broker))
            self.in_doubt.append(unread_bytes(self._broker))
        else:
            self._sink.allow(at + step)
            self._sink.await_(lambda: last_sequence(self._broker) > at)
        if kill_sink:
            self._sink.kill()
            server.send_signal(signal.SIGCONT)  # it takes what the dead process has sent, while the next one starts
            self._sink.start()
        else:
            self._broker.kill()
            self._broker.start()


@pytest.mark.parametrize(
    ("count", "kills"), [(6_000, 2), pytest.param(200_000, 10, marks=pytest.mark.long)], ids=["short", "long"]
)
def test_sink_and_server_killed_in_turn_neither_lose_nor_repeat(tmp_path, count, kills):
    updates = updates_of(count)
    step = count // (2 * kills + 1)
    with ExitStack() as stack:
        broker = stack.enter_context(NatsBroker(tmp_path / "broker"))
        create(broker)
        sink = stack.enter_context(SinkProcess(tmp_path, broker, count, limit=step))
        killing = Killing(broker, sink)
        for number in range(1, 2 * kills + 1):
            killing.kill(number, step)
        sink.allow(count)
        sink.join()
        had = Had.by(broker)
    assert len(killing.in_doubt) == kills
    assert_once_each(had, updates)


@pytest.mark.long
def test_sink_and_leader_of_three_servers_killed_in_turn_neither_lose_nor_repeat(tmp_path):
    count, kills = 30_000, 3
    updates = updates_of(count)
    step = count // (2 * kills + 1)
    with ExitStack() as stack:
        cluster = stack.enter_context(NatsCluster(tmp_path / "cluster"))
        create(cluster, num_replicas=3)
        sink = stack.enter_context(SinkProcess(tmp_path, cluster, count, limit=step))
        for number in range(1, 2 * kills + 1):
            at = number * step
            sink.await_(lambda at=at: last_sequence(cluster) >= at)
            sink.allow(at + step)
            sink.await_(lambda at=at: last_sequence(cluster) > at)
            if number % 2:
                sink.kill()
                sink.start()
            else:
                leader = cluster.leader(NAME)
                leader.kill()
                leader.start()
        sink.allow(count)
        sink.join()
        assert_once_each(Had.by(cluster), updates)


def assert_once_each(had, updates):
    """That a stream has all updates once, in their order."""
    ids, wanted = had.ids, [f"{IDENTITY}/{one.position}" for one in updates]
    assert set(wanted) - set(ids) == set(), "missing"
    assert set(ids) - set(wanted) == set(), "extra"
    assert len(ids) - len(set(ids)) == 0, "repeated"
    assert had.data == [one.data for one in updates]
