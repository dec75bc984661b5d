"""`skyray serve` killed again and again below many clients: by their own books nothing is missed, extra or repeated.

Followers connect again with their last id, a producer and one that subscribes send again what was not answered. In the
end the books are compared with the folder, and that with the oracle and with a run over the same batches.
"""

import asyncio
import json
from itertools import cycle

import numpy as np
import pytest

from gateway.runs.verify import verify_run
from tests.support.beside import BOX, random_message, random_subscription
from tests.support.faulty_runs import ENOUGH, actor_of
from tests.support.live_streams import read_table
from tests.support.many_followers import Follower, Producer, Subscriber, await_, compare_all
from tests.support.processes import Command
from tests.support.serving import Served, call, free_port, kill, written

pytestmark = pytest.mark.fault

SUBSCRIPTIONS = 60
OPTIONS = (
    "--world",
    BOX,
    "--window",
    "count:200",
    "--set",
    "recovery.checkpoint_every=0.5",
    "--set",
    "stream.batch_rows=500",
)


def subscription_of(rng, place):
    """Ids that do not go from one kind to another, so that each is replaced in its own."""
    return random_subscription(rng, place) | {"subscription_id": f"s{place}"}


class Clients:
    """All clients of a server, and its process, which is struck meanwhile.

    Parameters
    ----------
    out : Path
    followers : int
        Every tenth of them, and the first, follows everything, the others three subscriptions each.
    a_second : int
        Messages.
    options : sequence
        Of the command, beside `OPTIONS`.
    deliveries : sequence of int
        Delivery bolts of each life of the server, again and again.
    """

    def __init__(self, out, followers, a_second, *options, deliveries=(1,)):
        self.out, self.port, self.options = out, free_port(), options
        self.deliveries = cycle(deliveries)
        self.rng = np.random.default_rng(11)
        messages = np.random.default_rng(12)
        rows = np.random.default_rng(13)
        self.producer = Producer(self.port, lambda number: random_message(messages, number), a_second)
        self.first = [subscription_of(rows, place) for place in range(SUBSCRIPTIONS)]
        changes = (subscription_of(rows, int(rows.integers(SUBSCRIPTIONS))) for _ in range(100_000))
        self.subscriber = Subscriber(self.port, changes, 5)
        self.followers = [self._follower(place) for place in range(followers)]
        self.served = None
        self.killed_before_ready = self.connected = 0

    def _follower(self, place):
        names = [f"s{number}" for number in self.rng.choice(SUBSCRIPTIONS, 3, replace=False)]
        hang_up = int(self.rng.integers(5, 50)) if place % 5 == 3 else 0
        return Follower(self.port, None if place % 50 == 0 else names, hang_up)

    def begin(self):
        """Start the server; it may not be ready yet."""
        bolts = [] if "--query-bolts" in self.options else ["--query-bolts", 1]
        bolts += ["--set", f"topology.delivery_bolts={next(self.deliveries)}"]
        self.served = Command(["serve", "--out", self.out, "--port", self.port, *OPTIONS, *bolts, *self.options])

    async def says(self, word):
        await asyncio.to_thread(self.served.await_, lambda: word in self.served.read()[1])

    async def kill(self):
        """SIGKILL; whatever it has started ends, too."""
        assert self.served.process.poll() is None, self.served.read()
        self.killed_before_ready += "event=ready" not in self.served.read()[1]
        await asyncio.to_thread(kill, self.served)
        self.served.__exit__()

    async def answered(self, more):
        """Wait until so many messages more are answered."""
        wanted = len(self.producer.book) + more
        await await_(lambda: len(self.producer.book) >= wanted, 90, lambda: (wanted, self.served.read()))

    async def through(self, strike):
        """All clients at work while `strike` does harm; then the end in order."""
        self.begin()
        await self.says("event=ready")
        for row in self.first:
            await self.subscriber.put(row)
        producing = asyncio.create_task(self.producer.run())
        others = [asyncio.create_task(one.run()) for one in (self.subscriber, *self.followers)]
        try:
            await strike(self)
            self.producer.over = True
            await asyncio.wait_for(producing, 90)
            await self.says("event=ready")
            others[0].cancel()
            last = (await self.figures())["next_seq"] - 1
            for one in self.followers:
                one.leave()  # one that comes again gets a `progress` at once, one that waits for updates after seconds
            await await_(
                lambda: all(one.through >= last for one in self.followers),
                90,
                lambda: (last, sorted(one.through for one in self.followers), self.served.read()[1]),
            )
            await asyncio.to_thread(Served.end, self.served)
        finally:
            for task in (producing, *others):
                task.cancel()
            await asyncio.gather(producing, *others, return_exceptions=True)
            self.served.__exit__()

    async def figures(self):
        return (await asyncio.to_thread(call, self.port, "GET", "/health")).json

    async def half_logged(self):
        """Wait until the server has logged half of a request."""
        await self.producer.at_half()
        while (await self.figures())["messages"] <= len(self.producer.book):
            await asyncio.sleep(0.01)

    def assert_books(self, again=None):
        """Nothing is missed, extra, repeated or out of order, and the folder has what the oracle wants; counts."""
        told = written(self.out)
        found = compare_all(self.followers, told)
        assert found.wrong == 0, found
        assert told.total() >= ENOUGH and found.compared >= told.total(), found
        assert not [one.gaps for one in self.followers if one.gaps]
        assert not self.producer.wrong and not self.subscriber.wrong
        ids = read_table(self.out, "message_id").column("message_id").to_pylist()
        assert self.producer.book == {name: seq for seq, name in enumerate(ids)}
        verdict = verify_run(self.out, sample=None)
        assert verdict.exact and not verdict.vacuous, verdict
        if again is not None:
            assert written(again) == told
        counts = {"messages": len(ids), "updates": told.total(), "compared": found.compared}
        return counts | {"sent again": self.producer.again}


def run_again(out, again):
    """A run over the messages, changes and batches of the stream; their digests."""
    words = ["run", "--batch", f"log:{out}", "--out", again, "--query-bolts", 1, "--executor", "local"]
    with Command(words) as command:
        code, _, said = command.finish(600)
        assert code == 0, said
    return [json.loads((folder / "run.json").read_text())["digest"] for folder in (out, again)]


def strikes_of(kills, least, most):
    """Kill the server so often: in the middle of a request, whenever, and while it starts."""

    async def strike(clients):
        for turn in range(kills):
            if turn % 3 == 1:
                await clients.says("event=listens" if turn % 2 else "event=resumes")  # which takes rows already
            else:
                await clients.says("event=ready")
                await clients.answered(int(clients.rng.integers(least, most)))
            if turn % 2 == 0:
                await asyncio.wait_for(clients.half_logged(), 90)
            await clients.kill()
            clients.producer.go_on()
            clients.begin()
        await clients.says("event=ready")
        await clients.answered(most)

    return strike


def test_serve_killed_twice_below_twenty_clients_nothing_is_missed_or_repeated(tmp_path):
    clients = Clients(tmp_path / "out", 20, 1_000, deliveries=(2, 4, 1))
    asyncio.run(clients.through(strikes_of(2, 400, 800)))
    clients.assert_books()
    assert clients.producer.halves == 1 and clients.producer.again > 0
    assert min(one.connections for one in clients.followers) >= 3


@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_serve_killed_twenty_times_below_two_hundred_clients_nothing_is_missed_or_repeated(tmp_path, record_property):
    clients = Clients(tmp_path / "out", 200, 1_000)
    asyncio.run(clients.through(strikes_of(20, 100, 2_000)))
    assert len(set(run_again(clients.out, tmp_path / "again"))) == 1
    for name, value in clients.assert_books(tmp_path / "again").items():
        record_property(name, value)
    assert clients.producer.halves == 10 and clients.producer.again > 0
    assert clients.killed_before_ready > 0
    assert min(one.connections for one in clients.followers) >= 10


@pytest.mark.ray
@pytest.mark.long
@pytest.mark.timeout(1_200)
def test_serve_on_ray_whose_actors_are_killed_nothing_is_missed_or_repeated(tmp_path, record_property):
    victims = ["query", "delivery", "messages", "query", "delivery"]

    async def strike(clients):
        for turn, word in enumerate(victims):
            await clients.answered(int(clients.rng.integers(500, 1_500)))
            (await asyncio.to_thread(actor_of, clients.served, word)).kill()
            await await_(lambda seen=turn: clients.served.read()[1].count("recovered") > seen, 90, clients.served.read)
        await clients.answered(1_000)

    clients = Clients(tmp_path / "out", 50, 500, "--executor", "ray", "--query-bolts", 2, deliveries=(2,))
    asyncio.run(clients.through(strike))
    for name, value in clients.assert_books().items():
        record_property(name, value)
    report = json.loads((clients.out / "run.json").read_text())
    assert len(report["topology"]["recoveries"]) == len(victims)
