"""What is told, in `sinks.sqlite` of a stream's folder: tellings in order, and the state that a teller goes on from."""

import sqlite3
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

import msgspec

from gateway.serve.update_parts import Position
from gateway.sinks.telling import Standing, TellingStep, Told

TELLING_SCHEMA = """
CREATE TABLE teller (
    one INTEGER PRIMARY KEY CHECK (one = 1), boundary INTEGER NOT NULL, place INTEGER NOT NULL, clock_s REAL NOT NULL
) STRICT;
CREATE TABLE standings (subscription_id TEXT PRIMARY KEY, state BLOB NOT NULL) STRICT;
CREATE TABLE tells (subscription_id TEXT PRIMARY KEY, number INTEGER NOT NULL, tell BLOB NOT NULL) STRICT;
CREATE TABLE told (
    number INTEGER PRIMARY KEY AUTOINCREMENT, told_id TEXT NOT NULL, subscription_id TEXT NOT NULL, owner TEXT NOT NULL,
    boundary INTEGER NOT NULL, place INTEGER NOT NULL, told_s REAL NOT NULL, head BLOB NOT NULL, rows BLOB NOT NULL
) STRICT;
"""
#: Tellings that are kept for those who follow them, and their bytes; bytes of those that a webhook has not taken.
KEPT_TOLD, KEPT_TOLD_BYTES, LATE_TOLD_BYTES = 10_000, 64 * 2**20, 256 * 2**20
#: Bytes of tellings that are read at a time; the last one may exceed them.
READ_BYTES = 4 * 2**20
_COLUMNS = "number, told_id, subscription_id, owner, boundary, place, told_s, head, rows"
_STANDING = msgspec.json.Decoder(Standing)

Result = TypeVar("Result")
Change = Callable[[sqlite3.Connection], Result]


class SavedTelling(NamedTuple):
    """What a teller goes on from: the position and the time behind its last step, None and 0 before the first."""

    position: Position | None
    clock_s: float
    standings: dict[str, Standing]
    overrides: dict[str, tuple[int, Any]]
    last: int  # number of the last telling


def load_telling(connection: sqlite3.Connection) -> SavedTelling:
    """As it was stored last."""
    row = connection.execute("SELECT boundary, place, clock_s FROM teller").fetchone()
    position, clock_s = (None, 0.0) if row is None else (Position(row[0], row[1]), row[2])
    states = connection.execute("SELECT subscription_id, state FROM standings")
    standings = {name: _STANDING.decode(state) for name, state in states}
    tells = connection.execute("SELECT subscription_id, number, tell FROM tells")
    overrides = {name: (number, msgspec.json.decode(tell)) for name, number, tell in tells}
    return SavedTelling(position, clock_s, standings, overrides, _last(connection))


def store_step(step: TellingStep) -> Change[int]:
    """Write a step; returns the number of the last telling."""

    def change(connection: sqlite3.Connection) -> int:
        place = (*step.position, step.clock_s)
        connection.execute("INSERT OR REPLACE INTO teller VALUES (1, ?, ?, ?)", place)
        states = [(name, msgspec.json.encode(one)) for name, one in step.changed.items() if one is not None]
        connection.executemany("INSERT OR REPLACE INTO standings VALUES (?, ?)", states)
        gone = [(name,) for name, one in step.changed.items() if one is None]
        connection.executemany("DELETE FROM standings WHERE subscription_id = ?", gone)
        connection.executemany(
            "INSERT INTO told (told_id, subscription_id, owner, boundary, place, told_s, head, rows)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            [(*one[:3], *one.through, *one[4:]) for one in step.told],
        )
        return _last(connection)

    return change


def store_tell(name: str, number: int, tell: Any) -> Change[None]:
    """Write how the subscription of a number is told in place of its column; None: by the column again."""

    def change(connection: sqlite3.Connection) -> None:
        connection.execute("DELETE FROM tells WHERE subscription_id = ?", (name,))
        if tell is not None:
            connection.execute("INSERT INTO tells VALUES (?, ?, ?)", (name, number, msgspec.json.encode(tell)))

    return change


def told_after(number: int, most: int) -> Change[list[tuple[int, Told]]]:
    """Tellings behind a number, in order, with their numbers."""

    def read(connection: sqlite3.Connection) -> list[tuple[int, Told]]:
        found, size_bytes = [], 0
        rows = connection.execute(
            f"SELECT {_COLUMNS} FROM told WHERE number > ? ORDER BY number LIMIT ?", (number, most)
        )
        for one, told_id, name, owner, boundary, place, told_s, head, updates in rows:
            found.append((one, Told(told_id, name, owner, Position(boundary, place), told_s, head, updates)))
            size_bytes += len(updates)
            if size_bytes > READ_BYTES:
                break
        return found

    return read


def told_before(position: Position) -> Change[int]:
    """Number of the last telling whose updates are all up to a position; 0 if none is."""

    def read(connection: sqlite3.Connection) -> int:
        found = connection.execute("SELECT MAX(number) FROM told WHERE (boundary, place) <= (?, ?)", tuple(position))
        return found.fetchone()[0] or 0

    return read


def first_told(connection: sqlite3.Connection) -> int:
    """Number of the oldest telling that is kept; of the next one if none is."""
    found = connection.execute("SELECT MIN(number) FROM told").fetchone()[0]
    return _last(connection) + 1 if found is None else found


def prune_told(taken: Iterable[int]) -> Change[None]:
    """Remove old tellings; webhooks have those up to these numbers."""
    reached = min(taken, default=2**62)

    def change(connection: sqlite3.Connection) -> None:
        size_bytes = 0
        sizes = connection.execute("SELECT number, length(rows) + length(head) FROM told ORDER BY number DESC")
        for place, (number, length) in enumerate(sizes):
            size_bytes += length
            most_bytes = LATE_TOLD_BYTES if number > reached else KEPT_TOLD_BYTES
            if (place >= KEPT_TOLD and number <= reached) or size_bytes > most_bytes:
                connection.execute("DELETE FROM told WHERE number <= ?", (number,))
                return

    return change


def _last(connection: sqlite3.Connection) -> int:
    found = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'told'").fetchone()
    return 0 if found is None else found[0]
