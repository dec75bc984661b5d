"""The file of webhooks: a process that dies before any statement leaves each change whole or not made at all."""

import contextlib
import re
import sqlite3
from typing import ClassVar
from unittest import mock

from gateway.serve.update_parts import Position
from gateway.sinks.webhooks import store as store_module
from gateway.sinks.webhooks.model import Batch, Webhook, WebhookDelivery
from gateway.sinks.webhooks.store import Store, accept, change_webhook, record, revive, save_webhook
from tests.support.simulated_disk import Halted


class Dying(sqlite3.Connection):
    """A connection of a process that dies before a statement: when none are left to it."""

    left = 0
    opened: ClassVar[list["Dying"]] = []

    def execute(self, *values):
        self._count()
        return super().execute(*values)

    def executemany(self, *values):
        self._count()
        return super().executemany(*values)

    def executescript(self, *values):
        self._count()
        return super().executescript(*values)

    def _count(self):
        Dying.left -= 1
        if Dying.left < 0:
            raise Halted("before a statement")


def connecting(real=sqlite3.connect):
    def connect(*values, **named):
        Dying.opened.append(real(*values, factory=Dying, check_same_thread=False, **named))
        return Dying.opened[-1]

    return mock.patch("sqlite3.connect", connect)


def hook(name):
    return Webhook(name, "https://example.org", "s1", None, None, 1, "secret", Position(-1, 0))


def batch(number):
    return Batch(f"b{number}", number, f"{number}-0", f"{number}-1", b"{}\n{}\n")


def ended(status):
    """Records the oldest delivery that waits."""

    def change(connection):
        columns = ", ".join(WebhookDelivery._fields)
        rows = connection.execute(f"SELECT {columns} FROM deliveries WHERE status = 'waiting' ORDER BY number LIMIT 1")
        return record([WebhookDelivery(*rows.fetchone())._replace(status=status, attempts=1, ended_s=2.0)])(connection)

    return change


CHANGES = [
    save_webhook(hook("w1")),
    save_webhook(hook("w2")),
    accept("w1", Position(10, 2), 0.0, 0, [(batch(1), 2), (batch(2), 2)]),
    ended("delivered"),
    accept("w2", Position(20, 2), 3.0, 0, [(batch(3), 2)]),
    ended("dead"),
    change_webhook("w2", {"state": "paused", "why": "asked"}),
    revive("w1", None, 4.0),
    accept("w1", Position(30, 0), 0.0, 0, [(batch(4), 1)]),
    ended("delivered"),
]


def states(path):
    """What the store has after each change that nothing disturbs."""
    store, found = Store(path), []
    for change in CHANGES:
        found.append(store.load())
        store._thread.submit(store._apply, [change]).result()
    found.append(store.load())
    store.close()
    return found


def live(path, wanted, made, statements):
    """A process that makes the changes that are left; how many it knows to be made."""
    Dying.left = statements
    store = None
    with connecting(), contextlib.suppress(Halted):
        store = Store(path)
        now = wanted.index(store.load())
        assert made <= now <= made + 1, f"{made} changes were made, and {now} are there"
        made = now
        for change in CHANGES[made:]:
            store._thread.submit(store._apply, [change]).result()
            made += 1
    Dying.left = 10**9
    if store is not None:
        store.close()
    while Dying.opened:
        Dying.opened.pop().close()
    return made


def test_webhook_store_of_a_process_that_dies_before_any_statement_twice_has_each_change_once(tmp_path):
    wanted = states(tmp_path / "whole")
    assert len({repr(one) for one in wanted}) == len(CHANGES) + 1
    deaths = 0
    for number in range(1, 70, 5):
        for second in range(number % 17, 60, 23):
            path, made = tmp_path / f"{number}-{second}", 0
            for statements in (number, second):
                made = live(path, wanted, made, statements)
                deaths += made < len(CHANGES)
            assert live(path, wanted, made, 10**9) == len(CHANGES)
            store = Store(path)
            assert store.load() == wanted[-1]
            store.close()
    assert deaths > 40


def test_file_of_the_release_before_is_changed_once_and_keeps_what_it_has(tmp_path):
    """Format 1 had no tellings, and webhooks no number of one."""
    path = tmp_path / "sinks.sqlite"
    connection = sqlite3.connect(path)
    for statement in re.sub(r",\n    told INTEGER.*\n.*''\n", "\n", store_module._SCHEMA).split(";")[:-1]:
        connection.execute(statement)
    columns = [name for name in store_module._OF_WEBHOOK if name not in ("told", "tell", "include")]
    values = [getattr(hook("w1"), name) for name in columns]
    marks = ", ".join("?" * (len(columns) + 2))
    connection.execute(
        f"INSERT INTO webhooks ({', '.join(columns)}, boundary, place) VALUES ({marks})", [*values, 7, 2]
    )
    connection.execute("INSERT INTO tallies (webhook_id) VALUES ('w1')")
    connection.execute("PRAGMA user_version = 1")
    connection.commit()
    connection.close()
    for _ in range(2):
        store = Store(path)
        (found,), waiting, saved = store.load()
        store.close()
        assert (found.webhook_id, found.position, found.told, waiting) == ("w1", Position(7, 2), 0, [])
        assert found.included is None
        assert (saved.position, saved.standings, saved.last) == (None, {}, 0)
    assert sqlite3.connect(path).execute("PRAGMA user_version").fetchone()[0] == 3
