"""Updates as rows of PostgreSQL, and the standing results beside them; exactly once.

A transaction begins where the last one ended and ends with a boundary. It adds the updates, changes the results by
them, and moves the position: so other sessions see results as of a boundary, and a chunk that was cut off has left
nothing. It locks the row of `stream` first and compares the fencing number there: a process that is older than the last
one that opened the sink writes nothing any more.

All rows come by COPY. Of a chunk, what has left goes out of `results` by one DELETE, and then what has entered and
stayed comes in: a row that leaves and enters again is a new one.
"""

import os
import re
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from gateway.serve.released import ReleasedUpdate
from gateway.serve.update_parts import BEGINNING, Position
from gateway.sinks.stream import SinkAway, UpdateChunk
from matching.errors import ConfigError, DeliveryError, EngineError

FORMAT = 1
#: Seconds that a connection, a wait for a row's lock, a statement, and a chunk or an opening in all may take.
_CONNECT_S, _LOCK_S, _STATEMENT_S, _ALL_S = 10, 10, 60, 90.0
#: What libpq does about a server that is gone without a word, unless the URI says otherwise.
_PATIENCE = {
    "connect_timeout": str(_CONNECT_S), "keepalives_idle": "20", "keepalives_interval": "5", "keepalives_count": "4",
    "tcp_user_timeout": "40000", "application_name": "skyray",
}  # fmt: skip
#: Of a session: rows are looked up by their keys, however large a table is that was never analysed.
_SETTINGS = {
    "lock_timeout": f"{_LOCK_S}s", "statement_timeout": f"{_STATEMENT_S}s", "enable_hashjoin": "off",
    "enable_mergejoin": "off", "idle_in_transaction_session_timeout": "0",
}  # fmt: skip
_TABLES = """
CREATE TABLE {schema}.updates (
    boundary bigint NOT NULL, place bigint NOT NULL, change text NOT NULL, subscription_id text NOT NULL,
    message_id text NOT NULL, seq bigint NOT NULL, as_of bigint NOT NULL, score double precision,
    lon double precision NOT NULL, lat double precision NOT NULL, text text NOT NULL,
    object_id text NOT NULL DEFAULT '', PRIMARY KEY (boundary, place)
);
CREATE TABLE {schema}.results (
    subscription_id text NOT NULL, seq bigint NOT NULL, message_id text NOT NULL, boundary bigint NOT NULL,
    score double precision, lon double precision NOT NULL, lat double precision NOT NULL, text text NOT NULL,
    object_id text NOT NULL DEFAULT '', PRIMARY KEY (subscription_id, seq)
);
CREATE INDEX ON {schema}.results (subscription_id, object_id) WHERE object_id <> '';
CREATE TABLE {schema}.stream (
    stream text NOT NULL, boundary bigint NOT NULL, place bigint NOT NULL, as_of bigint NOT NULL,
    fence bigint NOT NULL, backend integer, backend_start timestamptz, format integer NOT NULL,
    the_only_row boolean PRIMARY KEY DEFAULT true CHECK (the_only_row)
);
COMMENT ON TABLE {schema}.updates IS 'every update of a Skyray stream; its id is boundary-place';
COMMENT ON TABLE {schema}.results IS 'what is in the result of each subscription as of stream.as_of';
COMMENT ON TABLE {schema}.stream IS 'which stream this is, and how far it is here';
"""
#: What tables lack that an earlier release has made.
_ADDITIONS = """
ALTER TABLE {schema}.updates ADD COLUMN IF NOT EXISTS object_id text NOT NULL DEFAULT '';
ALTER TABLE {schema}.results ADD COLUMN IF NOT EXISTS object_id text NOT NULL DEFAULT '';
CREATE INDEX ON {schema}.results (subscription_id, object_id) WHERE object_id <> '';
"""
_COPY_UPDATES = (
    "COPY {schema}.updates (boundary, place, change, subscription_id, message_id, seq, as_of, score, lon, lat, text,"
    " object_id) FROM STDIN (FORMAT BINARY)"
)
_UPDATE_TYPES = ["int8", "int8", "text", "text", "text", "int8", "int8", "float8", "float8", "float8", "text", "text"]
_COPY_RESULTS = (
    "COPY {schema}.results (subscription_id, seq, message_id, boundary, score, lon, lat, text, object_id)"
    " FROM STDIN (FORMAT BINARY)"
)
_RESULT_TYPES = ["text", "int8", "text", "int8", "float8", "float8", "float8", "text", "text"]
_LEAVE = (
    "DELETE FROM {schema}.results r USING unnest(%b::text[], %b::bigint[]) AS gone (subscription_id, seq)"
    " WHERE r.subscription_id = gone.subscription_id AND r.seq = gone.seq"
)
#: The same of objects, whose result may have another version than the one that leaves.
_LEAVE_OBJECT = (
    "DELETE FROM {schema}.results r USING unnest(%b::text[], %b::text[]) AS gone (subscription_id, object_id)"
    " WHERE r.subscription_id = gone.subscription_id AND r.object_id = gone.object_id AND r.object_id <> ''"
)
#: What the server says when it refuses a connection for good; libpq gives no code for it.
_REFUSED = re.compile(
    r"authentication failed|no password supplied|does not exist|no pg_hba\.conf entry|not permitted to log in"
    r"|permission denied|certificate|server does not support SSL|invalid connection option|root certificate file"
)
#: Classes of SQLSTATE after which opening again may help: connection, transaction state and rollback, resources, locks,
#: an operator's intervention, system.
_AWAY = ("08", "25", "40", "53", "55", "57", "58")


class PostgresSink:
    """A schema of a PostgreSQL database; see `gateway.sinks.stream.StreamSink`.

    Parameters
    ----------
    dsn : str
        URI or parameters of libpq, which also reads PGPASSWORD, ~/.pgpass and the like.
    schema : str
        Made at the first use.
    """

    extra = "postgres"
    exactly_once = True

    def __init__(self, dsn: str, schema: str = "skyray"):
        try:
            given = conninfo_to_dict(dsn)
        except psycopg.Error as error:
            text = re.sub(r"//.*@", "//***@", _first_line(error))
            raise ConfigError(f"--to postgresql://: {text}") from error
        self._given = {**_PATIENCE, **given}
        self._schema = sql.Identifier(schema)
        database = given.get("dbname") or os.environ.get("PGDATABASE") or given.get("user") or ""
        self.name = f"postgres/{database}.{schema}"
        self._connection: psycopg.Connection[Any] | None = None
        self._fence = 0
        self._durable = BEGINNING
        self._is_begun = False

    def open(self, stream: str) -> Position | None:
        """See `StreamSink`; O(1)."""
        self.close()
        try:
            self._connection = psycopg.connect(**self._given)  # pyright: ignore[reportArgumentType]
        except psycopg.Error as error:
            text = _first_line(error)
            if _REFUSED.search(str(error)) or not isinstance(error, psycopg.OperationalError):
                raise ConfigError(f"{self.name}: {text}; correct --to, or the rights of its user") from error
            raise SinkAway(f"{self.name}: {text}") from error
        try:
            with self._speaking() as connection:
                for name, value in _SETTINGS.items():
                    connection.execute(sql.SQL("SELECT set_config({}, {}, false)").format(name, value))
                self._make_tables(connection)
                found = self._take_over(connection, stream)
                connection.commit()
        except BaseException:
            self.close()
            raise
        self._durable = BEGINNING if found is None else found
        return found

    def deliver(self, chunk: UpdateChunk) -> Position:
        """See `StreamSink`; commits where a boundary ends."""
        with self._speaking() as connection:
            if not self._is_begun:
                self._begin(connection)
            self._add(connection, chunk.updates)
            if chunk.ends_boundary:
                connection.execute(
                    self._sql("UPDATE {schema}.stream SET boundary = %s, place = %s, as_of = %s"),
                    (*chunk.behind, chunk.through_seq),
                )
                connection.commit()
                self._durable, self._is_begun = chunk.behind, False
        return self._durable

    def check(self) -> None:
        """See `StreamSink`."""
        if not self._is_begun:
            with self._speaking() as connection:
                connection.execute("SELECT 1")
                connection.commit()

    def close(self) -> None:
        connection, self._connection, self._is_begun = self._connection, None, False
        if connection is not None:
            with suppress(psycopg.Error):
                connection.close()

    def _make_tables(self, connection: psycopg.Connection[Any]) -> None:
        """Make what is missing; where all is there, no right to make anything is needed."""
        schema = self._schema.as_string(connection)
        if _first(connection, "SELECT to_regclass(%s)", f"{schema}.stream") is not None:
            has_objects = "SELECT 1 FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attname = 'object_id'"
            if _first(connection, has_objects, f"{schema}.results") is None:
                connection.execute(self._sql(_ADDITIONS))
                connection.commit()
            return
        connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (f"skyray {schema}",))
        if _first(connection, "SELECT to_regnamespace(%s)", schema) is None:
            connection.execute(self._sql("CREATE SCHEMA {schema}"))
        if _first(connection, "SELECT to_regclass(%s)", f"{schema}.stream") is None:
            connection.execute(self._sql(_TABLES))
        connection.commit()

    def _take_over(self, connection: psycopg.Connection[Any], stream: str) -> Position | None:
        """Check whose tables these are, end the session of an earlier process, and raise the fencing number."""
        connection.execute(
            self._sql(
                "INSERT INTO {schema}.stream (stream, boundary, place, as_of, fence, format)"
                " VALUES (%s, %s, %s, -1, 0, %s) ON CONFLICT DO NOTHING"
            ),
            (stream, *BEGINNING, FORMAT),
        )
        connection.commit()
        self._check(connection.execute(self._sql("SELECT * FROM {schema}.stream")).fetchone(), stream)
        # one that hangs in the middle of a transaction holds the row's lock
        connection.execute(
            self._sql(
                "SELECT pg_terminate_backend(a.pid) FROM {schema}.stream s JOIN pg_stat_activity a"
                " ON a.pid = s.backend AND a.backend_start = s.backend_start WHERE a.pid <> pg_backend_pid()"
            )
        )
        connection.commit()
        row = connection.execute(self._sql("SELECT * FROM {schema}.stream FOR UPDATE")).fetchone()
        position = self._check(row, stream)
        fence = connection.execute(
            self._sql(
                "UPDATE {schema}.stream SET stream = %s, fence = fence + 1, backend = pg_backend_pid(), backend_start ="
                " (SELECT backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()) RETURNING fence"
            ),
            (stream,),
        ).fetchone()
        connection.commit()
        assert fence is not None, "the row is locked"
        self._fence = fence[0]
        return None if position == BEGINNING else position

    def _check(self, row: tuple[Any, ...] | None, stream: str) -> Position:
        """The position of a row of `stream`. Raises ConfigError if the tables are not this stream's."""
        if row is None or len(row) != 9 or row[7] != FORMAT:
            found = (
                "no row" if row is None else f"the format {row[7] if len(row) == 9 else '?'}, and {FORMAT} is written"
            )
            raise ConfigError(f"{self.name}: its table stream has {found}; name another schema")
        position = Position(row[1], row[2])
        if row[0] != stream and position != BEGINNING:
            raise ConfigError(
                f"{self.name}: has the updates of another stream ({row[0]}, up to message {row[3]:,}); name another "
                "schema, or drop this one"
            )
        return position

    def _begin(self, connection: psycopg.Connection[Any]) -> None:
        """Begin a transaction; no other method may."""
        if _first(connection, self._sql("SELECT fence FROM {schema}.stream FOR UPDATE")) != self._fence:
            raise DeliveryError(
                f"{self.name}: another process delivers this stream there now; end one of the two, and use one folder"
            )
        self._is_begun = True

    def _add(self, connection: psycopg.Connection[Any], updates: Sequence[ReleasedUpdate]) -> None:
        """Add updates, and change the results by them."""
        if not updates:
            return
        gone: dict[tuple[str, int | str], None] = {}  # by seq, of objects by their ids
        come: dict[tuple[str, int | str], tuple[Any, ...]] = {}
        with connection.cursor() as cursor:
            with cursor.copy(self._sql(_COPY_UPDATES)) as copy:
                copy.set_types(_UPDATE_TYPES)
                write = copy.write_row
                for one in updates:
                    boundary, place = Position.of(one.id)
                    name, seq, message = one.subscription_id, one.seq, (one.score, one.lon, one.lat, one.text)
                    write((boundary, place, one.change, name, one.message_id, seq, one.as_of, *message, one.object_id))
                    key = name, one.object_id or seq
                    if one.change == "leave" or (one.object_id and one.change != "match"):
                        come.pop(key, None)  # a new version takes the place of the one before
                        gone[key] = None
                    if one.change in ("enter", "change"):  # a match is in no standing result
                        come[key] = name, seq, one.message_id, boundary, *message, one.object_id
            for statement, of in ((_LEAVE, int), (_LEAVE_OBJECT, str)):
                if keys := [key for key in gone if isinstance(key[1], of)]:
                    cursor.execute(self._sql(statement), ([name for name, _ in keys], [what for _, what in keys]))
            if come:
                with cursor.copy(self._sql(_COPY_RESULTS)) as copy:
                    copy.set_types(_RESULT_TYPES)
                    for row in come.values():
                        copy.write_row(row)

    def _sql(self, statement: str) -> sql.Composed:
        return sql.SQL(statement).format(schema=self._schema)  # pyright: ignore[reportArgumentType] - ours, all of them

    @contextmanager
    def _speaking(self) -> Iterator[psycopg.Connection[Any]]:
        """A block of statements that ends in time; the errors of the database become ours."""
        connection = self._connection
        if connection is None:
            raise SinkAway(f"{self.name}: is not open")
        cut = threading.Timer(_ALL_S, _shut_down, (connection,))
        cut.daemon = True
        cut.start()
        try:
            yield connection
        except psycopg.Error as error:
            raise self._judged(error) from error
        finally:
            cut.cancel()

    def _judged(self, error: psycopg.Error) -> EngineError:
        code, text = error.sqlstate, f"{self.name}: {_first_line(error)}"
        if code is None and isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
            return SinkAway(text)  # the connection is gone
        if code is None or code.startswith("22"):
            return DeliveryError(f"{text}; an update cannot be stored: report it")
        if code.startswith(_AWAY):
            return SinkAway(text)
        if code == "42501":
            return ConfigError(
                f"{text}; its user needs CREATE on the database, or USAGE on the schema and SELECT, INSERT, UPDATE and "
                "DELETE on its tables"
            )
        if code.startswith(("42", "3F", "23")):
            return ConfigError(f"{text}; its tables are not as Skyray made them: restore them, or name another schema")
        return DeliveryError(f"{text} (SQLSTATE {code})")


def _first(connection: psycopg.Connection[Any], statement: Any, *given: Any) -> Any:
    """The first value that a query returns; None without a row."""
    row = connection.execute(statement, given or None).fetchone()
    return None if row is None else row[0]


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _shut_down(connection: psycopg.Connection[Any]) -> None:
    """End a connection below a thread that waits for it; the thread gets an error."""
    with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as same:
        same.shutdown(socket.SHUT_RDWR)
