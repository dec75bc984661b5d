"""Updates a second into PostgreSQL: by a bare COPY of the same rows, and by the sink with results and positions.

    pg_virtualenv python -m benchmarks.sinks [--updates N] [--boundary N] [--rounds N]

`copy` writes the columns of `updates` with psycopg's COPY into a table of the same columns and key, in one transaction
for each boundary; `matches` is the sink with the same updates, which change no result. `copy_both` writes updates that
enter and leave, and what enters into a table with the columns and key of `results`, out of which it removes nothing;
`changes` is the sink with the same updates. They take turns; after each the tables are compared with what was given.
"""

import sys
from collections.abc import Callable, Iterator
from statistics import median
from time import perf_counter
from typing import Annotated, Any

import msgspec
import psycopg
from psycopg import sql

from benchmarks import command
from benchmarks.command import Tell
from benchmarks.stopwatch import in_turns
from gateway.live.update_listener import MessageText
from gateway.serve.released import RANKS, ReleasedUpdate
from gateway.serve.update_parts import Position
from gateway.sinks.postgres import PostgresSink
from gateway.sinks.pump import MOST
from gateway.sinks.stream import UpdateChunk
from matching.errors import ConfigError
from tests.support.releasing import RawUpdate, release

#: Subscriptions, and messages that are in the result of each at a time.
_SUBSCRIPTIONS, _INSIDE = 1_000, 10
_SCHEMA = "skyray_bench"
_COLUMNS = "boundary, place, change, subscription_id, message_id, seq, as_of, score, lon, lat, text"
_TYPES = ["int8", "int8", "text", "text", "text", "int8", "int8", "float8", "float8", "float8", "text"]
_RESULT_TYPES = ["text", "int8", "text", "int8", "float8", "float8", "float8", "text"]


def measure(
    updates: Annotated[int, "updates of the stream"] = 200_000,
    boundary: Annotated[int, "updates of a boundary"] = 2_500,
    rounds: Annotated[int, "turns of each way"] = 5,
    *,
    tell: Tell,
) -> dict[str, Any]:
    """Updates a second of each way."""
    try:
        with psycopg.connect() as connection:
            version = connection.execute("SHOW server_version").fetchone()
    except psycopg.Error as error:
        raise ConfigError(
            f"no PostgreSQL answers ({str(error).strip()}): begin with pg_virtualenv, or set PGHOST"
        ) from error
    streams = {kind: _boundaries(updates, boundary, kind) for kind in ("match", "change")}
    tell(f"{updates:,} updates are made")
    ways: dict[str, Callable[[], float]] = {
        "copy": lambda: _by_copy(streams["match"]),
        "copy_both": lambda: _by_copy(streams["change"], both=True),
        "matches": lambda: _by_sink(streams["match"]),
        "changes": lambda: _by_sink(streams["change"]),
    }
    turns = in_turns(ways, rounds, lambda name, turn: round(updates / ways[name]()))
    middle = {name: median(mine) for name, mine in turns.items()}
    bare = {"matches": "copy", "changes": "copy_both"}
    return {
        "updates": updates,
        "boundary": boundary,
        "postgresql": None if version is None else version[0],
        "psycopg": psycopg.__version__,
        "updates_per_s": middle,
        "of_bare": {name: round(middle[name] / middle[one], 3) for name, one in bare.items()},
        "turns": turns,
        "exact": True,  # else an AssertionError
    }


def _boundaries(count: int, size: int, kind: str) -> list[list[ReleasedUpdate]]:
    """A stream of matches, or of messages that enter and leave; a message each."""

    def texts(seqs: Any) -> dict[int, MessageText]:
        return {
            seq: MessageText(f"m{seq}", f"ramen and udon, open late {seq % 977}", seq % 180, seq % 90) for seq in seqs
        }

    found, later = [], _SUBSCRIPTIONS * _INSIDE
    for first in range(0, count, size):
        last = min(first + size, count) - 1
        raw = []
        for n in range(first, last + 1):
            if kind == "match":
                raw.append(RawUpdate(f"s{n % _SUBSCRIPTIONS}", RANKS["match"], n, last, None))
            elif n < later or n % 2 == 0:
                raw.append(RawUpdate(f"s{n % _SUBSCRIPTIONS}", RANKS["enter"], n, last, n / 7))
            else:  # the oldest of those that are left
                gone = (n - later) // 2 * 2 if (n - later) // 2 * 2 < later else n - 1 - later
                raw.append(RawUpdate(f"s{gone % _SUBSCRIPTIONS}", RANKS["leave"], gone, last, gone / 7))
        found.append(release(last, raw, texts))
    return found


def _rows(updates: list[ReleasedUpdate]) -> Iterator[tuple[Any, ...]]:
    for one in updates:
        row = msgspec.json.decode(one.data)
        at = Position.of(one.position)
        middle = (row[name] for name in ("message_id", "seq", "as_of", "score"))
        yield (*at, row["change"], one.subscription_id, *middle, one.lon, one.lat, row["text"])


def _by_copy(boundaries: list[list[ReleasedUpdate]], both: bool = False) -> float:
    """Seconds of a bare COPY of rows that are there already, as tuples; with `both`, of what enters, too."""
    _forget()
    rows = [list(_rows(updates)) for updates in boundaries]
    inside = [[(*one[3:6:2], one[4], one[0], *one[7:]) for one in some if one[2] == "enter"] for some in rows]
    with psycopg.connect() as connection:
        connection.execute(f"CREATE SCHEMA {_SCHEMA}")
        connection.execute(
            f"CREATE TABLE {_SCHEMA}.updates (boundary int8, place int8, change text, subscription_id text, message_id"
            " text, seq int8, as_of int8, score float8, lon float8, lat float8, text text,"
            " PRIMARY KEY (boundary, place))"
        )
        connection.execute(
            f"CREATE TABLE {_SCHEMA}.results (subscription_id text, seq int8, message_id text, boundary int8, score"
            " float8, lon float8, lat float8, text text, PRIMARY KEY (subscription_id, seq))"
        )
        connection.commit()
        began = perf_counter()
        for some, entered in zip(rows, inside, strict=True):
            _copy(connection, "updates", _TYPES, some)
            if both:
                _copy(connection, "results", _RESULT_TYPES, entered)
            connection.commit()
        took = perf_counter() - began
    _check(boundaries, results=False)
    return took


def _copy(connection: psycopg.Connection[Any], table: str, types: list[str], rows: list[tuple[Any, ...]]) -> None:
    statement = sql.SQL(f"COPY {_SCHEMA}.{table} FROM STDIN (FORMAT BINARY)")  # pyright: ignore[reportArgumentType]
    with connection.cursor().copy(statement) as copy:
        copy.set_types(types)
        for row in rows:
            copy.write_row(row)


def _by_sink(boundaries: list[list[ReleasedUpdate]]) -> float:
    """Seconds of the sink."""
    _forget()
    sink = PostgresSink("", _SCHEMA)
    sink.open("bench")
    began = perf_counter()
    for updates in boundaries:
        for first in range(0, len(updates), MOST):
            some = updates[first : first + MOST]
            behind = Position.of(some[-1].position)
            sink.deliver(UpdateChunk(some, behind, first + MOST >= len(updates), behind.boundary))
    took = perf_counter() - began
    sink.close()
    _check(boundaries, results=True)
    return took


def _forget() -> None:
    with psycopg.connect() as connection:
        connection.execute(f"DROP SCHEMA IF EXISTS {_SCHEMA} CASCADE")


def _check(boundaries: list[list[ReleasedUpdate]], results: bool) -> None:
    """Raise AssertionError unless the tables have what was given."""
    wanted = [row for updates in boundaries for row in _rows(updates)]
    with psycopg.connect() as connection:
        query = sql.SQL(f"SELECT {_COLUMNS} FROM {_SCHEMA}.updates ORDER BY boundary, place")  # pyright: ignore[reportArgumentType]
        assert connection.execute(query).fetchall() == wanted, "other updates than were given"
        if not results:
            return
        inside: set[tuple[str, int]] = set()
        for _, _, change, name, _, seq, *_ in wanted:
            if change == "enter":
                inside.add((name, seq))
            elif change == "leave":
                inside.remove((name, seq))
        query = sql.SQL(f"SELECT subscription_id, seq FROM {_SCHEMA}.results")  # pyright: ignore[reportArgumentType]
        assert set(connection.execute(query).fetchall()) == inside, "other results than those of replay"


if __name__ == "__main__":
    sys.exit(command.main(measure))
