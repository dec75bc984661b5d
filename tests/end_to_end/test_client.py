"""Python clients of a server that is killed, again and again: neither misses, repeats or invents an update."""

import asyncio
import threading
from collections import Counter

import msgspec
import numpy as np
import pytest

from gateway.client.rows import Progress, Update
from skyray import AsyncClient, Client
from tests.support.beside import BUSY, random_message, random_subscription
from tests.support.books import assert_booked
from tests.support.live_streams import read_table
from tests.support.processes import Command
from tests.support.serving import FIELDS, Served, free_port, kill, written

pytestmark = pytest.mark.fault

#: Messages, those of a request, updates between two pauses, and messages that a paused client misses at least.
MESSAGES, GROUP, PAUSE, MISSED = 900, 20, 600, 60


class Book:
    """What a client wrote down, in a thread of its own, up to a message.

    Attributes
    ----------
    book : list of (str, dict)
    gaps : list
    connections : int
    paused, resumed : list of Event
        Each time `PAUSE` more updates are written down, the client reads no more until it may.
    """

    def __init__(self, last_seq, pauses):
        self.book, self.gaps, self.connections = [], [], 0
        self.paused, self.resumed = ([threading.Event() for _ in range(pauses)] for _ in range(2))
        self._last_seq = last_seq

    def take(self, event, events):
        """Whether that was the last."""
        self.connections = events.connections
        if isinstance(event, Update):
            self.book.append((event.id, msgspec.to_builtins(event)))
            turn, left = divmod(len(self.book), PAUSE)
            if left == 0 and turn <= len(self.paused):
                self.paused[turn - 1].set()
                self.resumed[turn - 1].wait(120)
        return isinstance(event, Progress) and event.through >= self._last_seq


def follow(url, book):
    with Client(url, patience_s=60) as client, client.events(since="begin", on_gap=book.gaps.append) as events:
        for event in events:
            if book.take(event, events):
                return


def follow_in_a_loop(url, book):
    async def read():
        client = AsyncClient(url, patience_s=60)
        async with client, client.events(since="begin", on_gap=book.gaps.append) as events:
            async for event in events:
                if book.take(event, events):
                    return

    asyncio.run(read())


def publish_in_a_loop(url, messages):
    """Outcomes of messages that come one by one, from an asynchronous iterator."""

    async def each():
        for message in messages:
            yield message

    async def publish():
        async with AsyncClient(url, patience_s=60) as client:
            return [one async for one in client.publish_stream(each(), group=GROUP)]

    return asyncio.run(publish())


def publish(url, messages):
    with Client(url, patience_s=60) as client:
        return list(client.publish_stream(messages, group=GROUP))


def through(served):
    """The message up to which all updates are released."""
    return served.call("GET", "/health").json["complete_through"]


def updates_of_a_run(stream, out):
    """Updates of the same batches by another command, as a multiset."""
    with Command(["run", "--batch", f"log:{stream}", "--executor", "local", "--out", out]) as command:
        code, _, said = command.finish(120)
        assert code == 0, said
    return written(out)


@pytest.mark.parametrize(
    ("send", "killed_at"),
    [(publish, (400,)), pytest.param(publish_in_a_loop, (250, 550), marks=pytest.mark.wide)],
)
def test_clients_of_a_server_killed_in_the_middle_miss_and_repeat_nothing(send, killed_at, tmp_path):
    rng, out, port = np.random.default_rng(11), tmp_path / "out", free_port()
    url = f"http://127.0.0.1:{port}"
    subscriptions = [random_subscription(rng, place) | {"subscription_id": f"s{place}"} for place in range(120)]
    rows = [random_message(rng, number) for number in range(MESSAGES)]
    released = -1
    sent, killed = [threading.Event() for _ in killed_at], [threading.Event() for _ in killed_at]
    books, outcomes = [Book(MESSAGES - 1, len(killed_at)) for _ in range(2)], []

    def messages():
        """All of them, slowly from the place at which the server is to be killed until it is."""
        for place, row in enumerate(rows):
            for number, at in enumerate(killed_at):
                if place == at:
                    sent[number].set()
                if place >= at and place % GROUP == 0:
                    killed[number].wait(0.05)
            yield row

    threads = [
        threading.Thread(target=follow, args=(url, books[0]), daemon=True),
        threading.Thread(target=follow_in_a_loop, args=(url, books[1]), daemon=True),
        threading.Thread(target=lambda: outcomes.extend(send(url, messages())), daemon=True),
    ]
    for life in range(len(killed_at) + 1):
        with Served(out, *BUSY, port=port) as served:
            if life == 0:
                with Client(url) as client:
                    assert {one.status for one in client.subscribe_many(subscriptions)} == {"created"}
                for thread in threads:
                    thread.start()
            else:
                served.await_(lambda served=served, seq=released + MISSED: through(served) > seq)
                for book in books:
                    book.resumed[life - 1].set()
            if life < len(killed_at):
                assert sent[life].wait(60) and all(book.paused[life].wait(60) for book in books)
                released = through(served)
                kill(served)
                killed[life].set()
                continue
            for thread in threads:
                thread.join(60)
                assert not thread.is_alive()
            served.end()
    assert [one.line for one in outcomes] == list(range(1, MESSAGES + 1))
    assert {one.status for one in outcomes} <= {"accepted", "duplicate"}
    logged = read_table(out, "message_id")
    assert [one.id for one in outcomes] == logged.column("message_id").to_pylist()
    total = {assert_booked(out, book) for book in books}
    assert min(total) >= 1_000 and all(book.connections >= 2 for book in books)
    if len(killed_at) > 1:
        booked = Counter(tuple(row[name] for name in FIELDS) for _, row in books[0].book)
        assert booked == updates_of_a_run(out, tmp_path / "again")
