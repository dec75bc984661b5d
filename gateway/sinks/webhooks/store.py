"""`sinks.sqlite` of a stream's folder: webhooks with their positions, deliveries with their rows, and counts.

A batch is on disk, in one transaction with the position behind it, before its first attempt; so an id has the same
content for ever, and a crash loses none. One thread has the connection; changes that come while it writes share the
next transaction. Counts change in the transaction that changes what they count.
"""

import asyncio
import os
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from gateway.serve.update_parts import Position
from gateway.sinks.told_store import TELLING_SCHEMA, SavedTelling, load_telling
from gateway.sinks.webhooks.model import Batch, Tally, Webhook, WebhookDelivery
from gateway.sinks.webhooks.together import Together
from matching.errors import DeliveryError, InputError

#: Name of the file in the folder.
FILE = "sinks.sqlite"
_VERSION = 3
#: Columns of webhooks that were added to a format; format 1 had no tellings.
_ADDED = {
    1: ("told INTEGER NOT NULL DEFAULT 0", "tell TEXT NOT NULL DEFAULT ''"),
    2: ("include TEXT NOT NULL DEFAULT ''",),
}
#: Deliveries of a webhook that are listed after they ended; dead ones keep their rows, and are redelivered from them.
KEPT_DELIVERED, KEPT_DEAD = 100, 10_000
#: Bytes of rows that the dead deliveries of a webhook have at most, but for the newest one.
KEPT_DEAD_BYTES = 64 * 2**20
_SCHEMA = """
CREATE TABLE webhooks (
    webhook_id TEXT PRIMARY KEY, url TEXT NOT NULL, subscription_id TEXT, owner TEXT, made_by TEXT,
    created_s INTEGER NOT NULL, secret TEXT NOT NULL, old_secret TEXT NOT NULL, old_until_s REAL NOT NULL,
    batch_updates INTEGER NOT NULL, batch_bytes INTEGER NOT NULL, every_s INTEGER NOT NULL, due_s REAL NOT NULL,
    state TEXT NOT NULL, why TEXT NOT NULL, boundary INTEGER NOT NULL, place INTEGER NOT NULL,
    told INTEGER NOT NULL DEFAULT 0, tell TEXT NOT NULL DEFAULT '',
    include TEXT NOT NULL DEFAULT ''
) STRICT;
CREATE TABLE tallies (
    webhook_id TEXT PRIMARY KEY, accepted INTEGER NOT NULL DEFAULT 0, delivered INTEGER NOT NULL DEFAULT 0,
    dead INTEGER NOT NULL DEFAULT 0, accepted_updates INTEGER NOT NULL DEFAULT 0,
    delivered_updates INTEGER NOT NULL DEFAULT 0, dead_updates INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE deliveries (
    number INTEGER PRIMARY KEY AUTOINCREMENT, webhook_id TEXT NOT NULL, batch_id TEXT NOT NULL UNIQUE,
    first TEXT NOT NULL, last TEXT NOT NULL, updates INTEGER NOT NULL, created_s INTEGER NOT NULL,
    status TEXT NOT NULL, attempts INTEGER NOT NULL, due_s REAL NOT NULL, ended_s REAL,
    reason TEXT NOT NULL, detail TEXT NOT NULL, began_s REAL NOT NULL, rows BLOB NOT NULL
) STRICT;
CREATE INDEX of_webhook ON deliveries (webhook_id, status, number);
"""
_OF_WEBHOOK = (
    "webhook_id", "url", "subscription_id", "owner", "made_by", "created_s", "secret", "old_secret", "old_until_s",
    "batch_updates", "batch_bytes", "every_s", "due_s", "state", "why", "told",
    "tell", "include",
)  # fmt: skip
_OF_DELIVERY = ", ".join(WebhookDelivery._fields)
Result = TypeVar("Result")
Change = Callable[[sqlite3.Connection], Result]


class Store:
    """The file of one stream.

    Parameters
    ----------
    path : Path
        Made if it is not there, readable by its owner alone: it has secrets.

    Raises
    ------
    InputError
        If the file is not of this format.
    DeliveryError
        If it cannot be opened.
    """

    def __init__(self, path: Path):
        self._path = path
        self._thread = ThreadPoolExecutor(1, "webhook-store")
        self._changes: Together[Change[Any], Any] = Together(self._write)
        try:
            self._connection = self._thread.submit(self._open).result()
        except (OSError, sqlite3.Error) as error:
            self._thread.shutdown()
            raise DeliveryError(f"{path}: cannot be opened ({error}); free space, or restore the file") from error
        except BaseException:
            self._thread.shutdown()
            raise

    def _open(self) -> sqlite3.Connection:
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        connection = sqlite3.connect(self._path, isolation_level=None)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version == 0:
            connection.executescript(f"BEGIN; {_SCHEMA} {TELLING_SCHEMA} PRAGMA user_version = {_VERSION}; COMMIT;")
        elif version in _ADDED:
            new = [column for number in range(version, _VERSION) for column in _ADDED[number]]
            added = " ".join(f"ALTER TABLE webhooks ADD COLUMN {column};" for column in new)
            telling = TELLING_SCHEMA if version == 1 else ""
            connection.executescript(f"BEGIN; {added} {telling} PRAGMA user_version = {_VERSION}; COMMIT;")
        elif version != _VERSION:
            connection.close()
            raise InputError("bad_sinks", f"{self._path}: has the format {version}, and {_VERSION} is read")
        return connection

    def close(self) -> None:
        """Close the file, after what is being written."""
        self._thread.submit(self._connection.close).result()
        self._thread.shutdown()

    def load(self) -> tuple[list[Webhook], list[WebhookDelivery], SavedTelling]:
        """All webhooks, the deliveries that wait, in order, and what the teller goes on from. Raises DeliveryError."""
        try:
            return self._thread.submit(_load, self._connection).result()
        except (sqlite3.Error, TypeError, ValueError) as error:  # TypeError: a row lacks its counts
            raise DeliveryError(f"{self._path}: cannot be read ({error}); restore the file") from error

    async def change(self, change: Change[Result]) -> Result:
        """Make a change, together with others that come meanwhile; it is on disk afterwards.

        Raises
        ------
        DeliveryError
            If the file cannot be written; none of the changes of the transaction was made.
        """
        return await self._changes.put(change)

    async def read(self, read: Change[Result]) -> Result:
        """Read, without a transaction. Raises DeliveryError."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, read, self._connection)
        except sqlite3.Error as error:
            raise DeliveryError(f"{self._path}: cannot be read ({error}); restore the file") from error

    async def _write(self, changes: list[Change[Any]]) -> list[Any]:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._apply, changes)
        except sqlite3.Error as error:
            raise DeliveryError(f"{self._path}: cannot be written ({error}); free space") from error

    def _apply(self, changes: Iterable[Change[Any]]) -> list[Any]:
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            results = [change(connection) for change in changes]
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        return results


def _load(connection: sqlite3.Connection) -> tuple[list[Webhook], list[WebhookDelivery], SavedTelling]:
    hooks = []
    names = ", ".join(_OF_WEBHOOK)
    for *fields, boundary, place in connection.execute(f"SELECT {names}, boundary, place FROM webhooks ORDER BY rowid"):
        hook = Webhook(**dict(zip(_OF_WEBHOOK, fields, strict=True)), position=Position(boundary, place))
        counts = connection.execute("SELECT * FROM tallies WHERE webhook_id = ?", (hook.webhook_id,)).fetchone()
        hook.deliveries, hook.updates = Tally(*counts[1:4]), Tally(*counts[4:7])
        hooks.append(hook)
    waiting = connection.execute(f"SELECT {_OF_DELIVERY} FROM deliveries WHERE status = 'waiting' ORDER BY number")
    return hooks, [WebhookDelivery(*row) for row in waiting], load_telling(connection)


def save_webhook(hook: Webhook) -> Change[None]:
    """Add a webhook."""
    values = [getattr(hook, name) for name in _OF_WEBHOOK] + [*hook.position]

    def change(connection: sqlite3.Connection) -> None:
        columns = (*_OF_WEBHOOK, "boundary", "place")
        marks = ", ".join("?" * len(columns))
        connection.execute(f"INSERT INTO webhooks ({', '.join(columns)}) VALUES ({marks})", values)
        connection.execute("INSERT INTO tallies (webhook_id) VALUES (?)", (hook.webhook_id,))

    return change


def change_webhook(webhook_id: str, changes: Mapping[str, Any]) -> Change[None]:
    """Write some columns of a webhook, and no others; nothing if it is not there."""
    assert changes.keys() <= set(_OF_WEBHOOK[1:]), "they are columns"
    sets, values = ", ".join(f"{name} = ?" for name in changes), [*changes.values(), webhook_id]

    def change(connection: sqlite3.Connection) -> None:
        connection.execute(f"UPDATE webhooks SET {sets} WHERE webhook_id = ?", values)

    return change


def delete_webhook(webhook_id: str) -> Change[None]:
    """Remove a webhook with its deliveries."""

    def change(connection: sqlite3.Connection) -> None:
        for table in ("webhooks", "tallies", "deliveries"):
            connection.execute(f"DELETE FROM {table} WHERE webhook_id = ?", (webhook_id,))

    return change


def move(positions: Iterable[tuple[str, Position, float, int]]) -> Change[None]:
    """Write the positions of webhooks, when their next digests are due, and how far they have what is told."""
    rows = [(position.boundary, position.index, due_s, told, name) for name, position, due_s, told in positions]

    def change(connection: sqlite3.Connection) -> None:
        columns = "boundary = ?, place = ?, due_s = ?, told = ?"
        connection.executemany(f"UPDATE webhooks SET {columns} WHERE webhook_id = ?", rows)

    return change


def accept(
    webhook_id: str, position: Position, due_s: float, told: int, batches: list[tuple[Batch, int]], began_s: float = 0.0
) -> Change[list[int]]:
    """Add batches of a webhook, with their numbers of updates, and write how far it has all (`move`); returns their
    numbers.

    Their age counts from `began_s`.
    """

    def change(connection: sqlite3.Connection) -> list[int]:
        numbers = []
        for batch, updates in batches:
            values = (webhook_id, batch.batch_id, batch.first, batch.last, updates, batch.created_s, batch.rows)
            cursor = connection.execute(
                "INSERT INTO deliveries (webhook_id, batch_id, first, last, updates, created_s, rows, status, attempts,"
                " due_s, reason, detail, began_s) VALUES (?, ?, ?, ?, ?, ?, ?, 'waiting', 0, 0, '', '', ?)",
                (*values, began_s),
            )
            assert cursor.lastrowid is not None
            numbers.append(cursor.lastrowid)
        _count(connection, webhook_id, "accepted", len(batches), sum(updates for _, updates in batches))
        move([(webhook_id, position, due_s, told)])(connection)
        return numbers

    return change


class Recorded(NamedTuple):
    """What became of a change of a delivery.

    written : bool     False if the delivery does not wait any more
    forgotten : int    dead deliveries that were removed since they were too many, or had too many bytes
    """

    written: bool
    forgotten: int = 0


def record(deliveries: Sequence[WebhookDelivery]) -> Change[list[Recorded]]:
    """Write the outcomes of waiting deliveries. O(dead deliveries of its webhook) for each that is dead."""

    def change(connection: sqlite3.Connection) -> list[Recorded]:
        recorded = [_record(connection, one) for one in deliveries]
        delivered: dict[str, list[int]] = {}
        for one, (written, _) in zip(deliveries, recorded, strict=True):
            if written and one.status == "delivered":
                delivered.setdefault(one.webhook_id, []).append(one.updates)
        for webhook_id, updates in delivered.items():
            _count(connection, webhook_id, "delivered", len(updates), sum(updates))
            _forget_delivered(connection, webhook_id)
        return recorded

    return change


def _record(connection: sqlite3.Connection, delivery: WebhookDelivery) -> Recorded:
    """Write one; those that were delivered are not counted yet."""
    rows = ", rows = x''" if delivery.status == "delivered" else ""
    written = connection.execute(
        f"UPDATE deliveries SET status = ?, attempts = ?, due_s = ?, ended_s = ?, reason = ?, detail = ?{rows}"
        " WHERE number = ? AND status = 'waiting'",
        (*delivery[7:13], delivery.number),
    )
    if not written.rowcount or delivery.status != "dead":
        return Recorded(bool(written.rowcount))
    _count(connection, delivery.webhook_id, "dead", 1, delivery.updates)
    return Recorded(True, _forget_dead(connection, delivery))


def revive(webhook_id: str, numbers: list[int] | None, now_s: float) -> Change[list[WebhookDelivery]]:
    """Make dead deliveries wait again, these or all; returns them."""

    def change(connection: sqlite3.Connection) -> list[WebhookDelivery]:
        found = connection.execute(
            f"SELECT {_OF_DELIVERY} FROM deliveries WHERE webhook_id = ? AND status = 'dead' ORDER BY number",
            (webhook_id,),
        )
        chosen = [WebhookDelivery(*row) for row in found.fetchall() if numbers is None or row[0] in numbers]
        revived = [one._replace(status="waiting", attempts=0, due_s=0.0, ended_s=None, began_s=now_s) for one in chosen]
        for one in revived:
            connection.execute(
                "UPDATE deliveries SET status = 'waiting', attempts = 0, due_s = 0, ended_s = NULL, began_s = ?"
                " WHERE number = ?",
                (now_s, one.number),
            )
        _count(connection, webhook_id, "dead", -len(revived), -sum(one.updates for one in revived))
        return revived

    return change


def rows_of(number: int) -> Change[bytes]:
    """The rows of a delivery; empty if it is not there."""

    def read(connection: sqlite3.Connection) -> bytes:
        found = connection.execute("SELECT rows FROM deliveries WHERE number = ?", (number,)).fetchone()
        return b"" if found is None else found[0]

    return read


def listed(webhook_id: str, status: str | None, before: int | None, most: int) -> Change[list[WebhookDelivery]]:
    """Deliveries of a webhook, the newest first."""

    def read(connection: sqlite3.Connection) -> list[WebhookDelivery]:
        found = connection.execute(
            f"SELECT {_OF_DELIVERY} FROM deliveries WHERE webhook_id = ? AND (? IS NULL OR status = ?)"
            " AND (? IS NULL OR number < ?) ORDER BY number DESC LIMIT ?",
            (webhook_id, status, status, before, before, most),
        )
        return [WebhookDelivery(*row) for row in found]

    return read


def _count(connection: sqlite3.Connection, webhook_id: str, what: str, deliveries: int, updates: int) -> None:
    connection.execute(
        f"UPDATE tallies SET {what} = {what} + ?, {what}_updates = {what}_updates + ? WHERE webhook_id = ?",
        (deliveries, updates, webhook_id),
    )


def _forget_delivered(connection: sqlite3.Connection, webhook_id: str) -> None:
    """Remove the delivered ones of a webhook, the oldest, that are too many; counts keep them."""
    connection.execute(
        "DELETE FROM deliveries WHERE webhook_id = :id AND status = 'delivered' AND number <= (SELECT number FROM"
        " deliveries WHERE webhook_id = :id AND status = 'delivered' ORDER BY number DESC LIMIT 1 OFFSET :most)",
        {"id": webhook_id, "most": KEPT_DELIVERED},
    )


def _forget_dead(connection: sqlite3.Connection, delivery: WebhookDelivery) -> int:
    """Remove the dead ones of a webhook, the oldest, that are too many or have too many bytes; returns how many."""
    oldest_kept, size_bytes = delivery.number, 0
    found = connection.execute(
        "SELECT number, length(rows) FROM deliveries WHERE webhook_id = ? AND status = 'dead' ORDER BY number DESC"
        " LIMIT ?",
        (delivery.webhook_id, KEPT_DEAD),
    )
    for place, (number, length) in enumerate(found):
        size_bytes += length
        if place and size_bytes > KEPT_DEAD_BYTES:
            break
        oldest_kept = number
    gone = connection.execute(
        "DELETE FROM deliveries WHERE webhook_id = ? AND status = 'dead' AND number < ?",
        (delivery.webhook_id, oldest_kept),
    )
    return gone.rowcount
