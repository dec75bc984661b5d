"""`skyray serve --from` and its broker, killed in turn: the log has each published message once."""

import json
import re
from contextlib import ExitStack

import pytest

from spouts.log import LogReader
from tests.support.brokers import STREAM, NatsBroker, Publisher
from tests.support.serving import Served, call, kill

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
            self.names += [json.loads(line)["text"] for line in record.message_lines()]
        return len(self.names)

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()


class Killed:
    """A server that is killed and started again."""

    def __init__(self, stack, folder, uri, batch):
        self._stack = stack
        self._given = folder, "--from", uri, "--batch", batch
        self.kills = 0
        self.start()

    def start(self):
        self.served = self._stack.enter_context(Served(*self._given))

    def kill(self):
        kill(self.served)
        self.kills += 1
        self.start()


@pytest.mark.parametrize(
    ("count", "kills", "batch"),
    [
        (3_000, 1, 100),
        pytest.param(20_000, 3, 500, marks=pytest.mark.long),
        pytest.param(200_000, 10, 1_000, marks=pytest.mark.long),
    ],
)
def test_server_and_broker_killed_in_turn_neither_lose_nor_repeat(tmp_path, count, kills, batch):
    rows = [
        json.dumps({"text": f"ramen {n}", "lon": n % 180, "lat": n % 90}).encode()  # no id by which repeats were known
        for n in range(count)
    ]
    out = tmp_path / "out"
    with ExitStack() as stack:
        broker = stack.enter_context(NatsBroker(tmp_path / "broker"))
        broker.create()
        log = Logged(out)
        stack.callback(log.close)
        server = Killed(stack, out, f"{broker.url}/{STREAM}?consumer=skyray", batch)
        broker_kills, progress = 0, [0]

        def at_least(wanted):
            progress[0] = log.count()
            return progress[0] >= wanted

        # what is not published yet at a kill cannot have been read: each kill is in the middle of the stream
        stack.enter_context(Publisher(broker, rows, lambda: progress[0] + count // (2 * kills + 1) // 2))
        for step in range(1, 2 * kills + 1):
            server.served.await_(lambda step=step: at_least(step * count // (2 * kills + 1)), 300)
            if step % 2:
                server.kill()
            else:
                broker.kill()
                server.served.await_(lambda: source_of(server.served)["state"] == "away", 60)
                assert server.served.call("GET", "/ready").status == 200
                broker_kills += 1
                broker.start()
        server.served.await_(lambda: at_least(count), 600)
        server.served.await_(lambda: source_of(server.served)["state"] == "reading", 60)
        assert source_of(server.served)["durable"] == {"0": count}
        metrics = server.served.call("GET", "/metrics").body.decode()
        assert re.search(rf'skyray_source_records_total{{source="nats/{STREAM}"}} \d', metrics)
        assert f'skyray_source_up{{source="nats/{STREAM}"}} 1.0' in metrics
        reconnects = re.search(r"skyray_source_reconnects_total\{[^}]*\} ([0-9.]+)", metrics)
        assert reconnects is not None and float(reconnects[1]) >= 1
        assert (server.kills, broker_kills) == (kills, kills)
        published = [json.loads(row)["text"] for row in rows]
        at_least(count)
        assert len(log.names) - len(set(log.names)) == 0, "repeated"
        assert set(published) - set(log.names) == set(), "missing"
        assert set(log.names) - set(published) == set(), "extra"
        assert log.names == published
        server.served.end(60)


def source_of(served):
    return call(served.port, "GET", "/v1/topology").json["source"]
