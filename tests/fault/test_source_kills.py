"""`skyray serve --from` and its broker, killed in turn: the log has each published message once."""

import json
import re
from contextlib import ExitStack

import pytest
from confluent_kafka import Producer

from spouts.log import LogReader
from tests.support.apache_kafka import ApacheKafka
from tests.support.brokers import STREAM, NatsBroker, Publisher
from tests.support.logged import messages_in
from tests.support.serving import Served, call, kill
from tests.support.transactional_broker import TransactionalBroker

pytestmark = [pytest.mark.fault, pytest.mark.timeout(1_500)]


class Logged:
    """The log of a folder, read as it grows.

    Attributes
    ----------
    names : list of str    texts of the messages
    """

    def __init__(self, folder):
        self.names = []
        self._path = folder / "journal" / "log"
        self._reader = None

    def count(self) -> int:
        if self._reader is None and self._path.exists():
            self._reader = LogReader(self._path)
        while self._reader is not None and (record := self._reader.read()) is not None:
            self.names += [one.text for one in messages_in([record])]
        return len(self.names)

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()


class Killed:
    """A server that is killed and started again."""

    def __init__(self, stack, folder, uri, batch):
        self._stack = stack
        self._given = folder, "--from", uri, "--set", f"stream.batch_rows={batch}"
        self.kills = 0
        self.start()

    def start(self):
        self.served = self._stack.enter_context(Served(*self._given))

    def kill(self):
        kill(self.served)
        self.kills += 1
        self.start()


class FromNats:
    """A stream that is written to while the server is killed, too."""

    partitions = 1

    def __init__(self, stack, folder, rows, step):
        self._broker = stack.enter_context(NatsBroker(folder))
        self._broker.create()
        self.kill, self.start = self._broker.kill, self._broker.start
        self.name, self.uri = f"nats/{STREAM}", f"{self._broker.url}/{STREAM}?consumer=skyray"
        self._read = 0
        stack.enter_context(Publisher(self._broker, rows, lambda: self._read + step // 2))

    def publish_from(self, read):
        """There are half a step more than were read: each kill is in the middle of the stream."""
        self._read = read


class FromKafka:
    """A topic of the tests' own broker, which keeps its logs in memory while it is away; a row goes to each partition
    in turn."""

    partitions = 3

    def __init__(self, stack, folder, rows, step):
        self._broker = stack.enter_context(self.broker_of(folder))
        self._broker.create("posts", self.partitions)
        self.kill, self.start = self._broker.kill, self._broker.start
        self.name, self.uri = "kafka/posts", f"kafka://{self._broker.address}/posts"
        self._rows, self._step, self._sent = rows, step, 0

    def broker_of(self, folder):
        return TransactionalBroker()

    def publish_from(self, read):
        last = min(len(self._rows), read + self._step // 2)
        if last <= self._sent:
            return
        producer = Producer({"bootstrap.servers": self._broker.address, "log_level": 0})
        for number in range(self._sent, last):
            producer.produce("posts", self._rows[number], partition=number % self.partitions)
            producer.poll(0)
        assert producer.flush(60) == 0
        self._sent = last


class FromApacheKafka(FromKafka):
    def broker_of(self, folder):
        return ApacheKafka(folder)


@pytest.mark.parametrize(
    ("broker_of", "count", "kills", "batch"),
    [
        (FromNats, 3_000, 1, 100),
        pytest.param(FromNats, 20_000, 3, 500, marks=pytest.mark.long),
        pytest.param(FromNats, 200_000, 10, 1_000, marks=pytest.mark.long),
        pytest.param(FromKafka, 3_000, 1, 100, marks=pytest.mark.wide),
        pytest.param(FromApacheKafka, 3_000, 1, 100, marks=[pytest.mark.long, pytest.mark.kafka]),
        pytest.param(FromApacheKafka, 200_000, 10, 1_000, marks=[pytest.mark.long, pytest.mark.kafka]),
    ],
)
def test_server_and_broker_killed_in_turn_neither_lose_nor_repeat(tmp_path, broker_of, count, kills, batch):
    rows = [
        json.dumps({"text": f"ramen {n}", "lon": n % 180, "lat": n % 90}).encode()  # no id by which repeats were known
        for n in range(count)
    ]
    out, steps = tmp_path / "out", 2 * kills + 1
    with ExitStack() as stack:
        broker = broker_of(stack, tmp_path / "broker", rows, count // steps)
        log = Logged(out)
        stack.callback(log.close)
        server = Killed(stack, out, broker.uri, batch)
        broker_kills = 0

        def at_least(wanted):
            there = log.count()
            broker.publish_from(there)
            return there >= wanted

        for step in range(1, steps):
            server.served.await_(lambda step=step: at_least(step * count // steps), 300)
            if step % 2:
                server.kill()
            else:
                broker.kill()
                server.served.await_(lambda: source_of(server.served)["state"] == "away", 180)
                assert server.served.call("GET", "/ready").status == 200
                broker_kills += 1
                broker.start()
        server.served.await_(lambda: at_least(count), 600)
        server.served.await_(lambda: source_of(server.served)["state"] == "reading", 180)

        def all_durable():  # the log can be read a little before it is forced to disk
            durable = source_of(server.served)["durable"]
            return durable == {"0": count} or sum(offset + 1 for offset in durable.values()) == count

        server.served.await_(all_durable, 180)
        assert len(source_of(server.served)["durable"]) == broker.partitions
        metrics = server.served.call("GET", "/metrics").body.decode()
        assert re.search(rf'skyray_source_records_total{{source="{broker.name}"}} \d', metrics)
        assert f'skyray_source_up{{source="{broker.name}"}} 1.0' in metrics
        reconnects = re.search(r"skyray_source_reconnects_total\{[^}]*\} ([0-9.]+)", metrics)
        assert reconnects is not None and float(reconnects[1]) >= 1
        assert (server.kills, broker_kills) == (kills, kills)
        published = [json.loads(row)["text"] for row in rows]
        at_least(count)
        assert len(log.names) - len(set(log.names)) == 0, "repeated"
        assert set(published) - set(log.names) == set(), "missing"
        assert set(log.names) - set(published) == set(), "extra"
        numbers = [int(name.removeprefix("ramen ")) for name in log.names]
        for partition in range(broker.partitions):
            mine = [number for number in numbers if number % broker.partitions == partition]
            assert mine == sorted(mine), "the order of a partition stays"
        server.served.end(60)


def source_of(served):
    return call(served.port, "GET", "/v1/topology").json["source"]
