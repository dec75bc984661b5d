"""What a user would take instead of an engine, behind an engine's own interface: PostGIS, DuckDB and Lucene's Monitor.

`skyray bench boolean --engines cell_term,postgis,duckdb,lucene` times them in the same run as engines, held against the
same oracle; one that cannot run here is reported with the line that installs it. Each is given its best shape: bulk
load in a good order, an index over place and word together where that can be said, whole batches of messages in one
call, no durability, one core like an engine.
"""

import importlib.util
import struct
import subprocess
import tempfile
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks import runtimes, searches
from matching.attributes import MISSING_KEY
from matching.errors import EngineError
from matching.filters import FilterStore
from matching.geo.sphere import unit_vectors
from matching.index import Hits, SubscriptionIndex
from matching.kind_table import Kind
from matching.model import Int32, MessageBatch, SubscriptionTable
from matching.space import Space
from matching.storage.slots import SlotMap

#: Filters of `benchmarks.searches` as columns, and whether message m passes those of subscription s, but for octagons
#: and what is asked of words.
_FILTERS = ", ".join(
    ["price_low bigint, price_high bigint, beds_low bigint, types bigint[]", *(f"{c} float8" for c in ("x", "y", "z"))]
    + ["chord float8"]
)
_HOME = "price bigint, beds bigint, type bigint, x float8, y float8, z float8"
_PASS = (
    " AND m.price BETWEEN s.price_low AND s.price_high AND m.beds >= s.beds_low"
    " AND (s.types IS NULL OR m.type = ANY(s.types))"
    " AND ((m.x - s.x) * (m.x - s.x) + (m.y - s.y) * (m.y - s.y)) + (m.z - s.z) * (m.z - s.z) <= s.chord"
)
#: Searches that are sent to Lucene at a time.
_ROWS = 100_000
_SIDES = ("west", "south", "east", "north")
_BOX = ", ".join(f"{side} float8" for side in _SIDES)
#: Whether the boxes of message m and subscription s meet, closed and in doubles.
_MEET = "s.west <= m.east AND s.east >= m.west AND s.south <= m.north AND s.north >= m.south"


#: PostgreSQL's types of columns that are no doubles.
_TYPES = {
    "number": "int8", "rarest": "int4", "row": "int4", "rest": "int4[]", "terms": "int4[]", "types": "int8[]",
    **dict.fromkeys(("shape", "query", "text"), "text"),
    **dict.fromkeys(("price_low", "price_high", "beds_low", "price", "beds", "type"), "int8"),
}  # fmt: skip


class Peer(SubscriptionIndex):
    """A database that holds boolean subscriptions, for an operator in place of an engine."""

    name, package, install = "", "", "pip install 'skyray[bench]'"
    #: Statements: what was measured, bytes of table and indexes, and forgetting a list of numbers.
    _version = _size = _forget = ""
    _sql: Any

    def __init__(self, space: Space):
        super().__init__(SlotMap())
        #: Seconds that the join itself has taken, without sending messages and reading what is found.
        self.joined_s = 0.0

    @classmethod
    def absence(cls) -> str | None:
        """Why the peer cannot run here, and the line that changes it; or None."""
        if importlib.util.find_spec(cls.package) is None:
            return f"Python package {cls.package} is not installed. Install it: {cls.install}"
        return None

    def insert(self, table: SubscriptionTable) -> Int32:
        if len(table):
            self._take_in(table)
        return self.slots.insert(table.number)

    def _post(self, slots: Int32) -> None:
        pass

    def _unpost(self, slots: Int32) -> None:
        self._ask(self._forget, [self.numbers(slots).tolist()])

    def release(self, slots: Int32) -> None:
        self.slots.remove(self.numbers(slots))

    def arrays(self) -> dict[str, np.ndarray]:
        return self.slots.arrays()

    def match(self, batch: MessageBatch) -> Hits:
        """Every matching pair of a batch, in ascending row; `scanned` and `verified` are not known and 0."""
        row, number = self._find(batch)
        order = np.argsort(row, kind="stable")
        return Hits(self.find(number[order]), row[order].astype(np.int32), (), len(batch), 0, 0)

    def version(self) -> str:
        return self._ask(self._version).fetchone()[0]

    def size_bytes(self) -> int:
        return int(self._ask(self._size).fetchone()[0])

    def close(self) -> None:
        """Give back what is held outside this process's memory; may be called twice."""
        self._sql.close()

    def _ask(self, statement: str, *given: Any) -> Any:
        """The cursor with the answer; each has its own, since in DuckDB a result in use blocks the connection."""
        return self._sql.cursor().execute(statement, *given)

    @abstractmethod
    def _take_in(self, table: SubscriptionTable) -> None: ...

    @abstractmethod
    def _find(self, batch: MessageBatch) -> tuple[np.ndarray, np.ndarray]:
        """Row and number of every matching pair, in any order."""


def rows_of(table: SubscriptionTable) -> pa.Table:
    """One row a subscription: number, rarest keyword (the smallest term id), box, the rest of the keywords.

    In order of rarest keyword and place, so that what is read together lies together; none crosses the antimeridian.
    """
    west, south, _, _ = table.region.T
    table = table.take(np.lexsort((south, west, table.terms[table.term_offsets[:-1]])))
    first, offsets = table.term_offsets[:-1], table.term_offsets - np.arange(len(table) + 1)
    rest = pa.ListArray.from_arrays(offsets.astype(np.int32), np.delete(table.terms, first))
    columns: dict[str, Any] = dict(zip(_SIDES, table.region.T, strict=True))
    if table.filter_words.shape[0]:
        columns |= searches.columns_of(table)
        del columns["asked"]
    return pa.table({"number": table.number, "rarest": table.terms[first], **columns, "rest": rest})


def _bits(*columns: np.ndarray) -> list[np.ndarray]:
    """The bits of doubles as int64."""
    return [np.ascontiguousarray(column).view(np.int64) for column in columns]


def homes_of(batch: MessageBatch) -> dict[str, Any]:
    """The columns of `_HOME`, where messages have attributes."""
    if not batch.keys.shape[1]:
        return {}
    vectors = unit_vectors(batch.west, batch.south)
    return {
        **dict(zip(("price", "beds", "type"), batch.keys.T, strict=True)),
        **dict(zip("xyz", vectors.T, strict=True)),
    }


def texts_of(batch: MessageBatch) -> dict[str, Any]:
    """The column of texts, where messages have the order of their words."""
    texts = searches.texts_of(batch)
    return {"text": texts} if texts else {}


class DuckDB(Peer):
    """In this process, in memory, on one thread: a hash join over the rarest keyword.

    Nothing about space prunes: DuckDB's own R-tree cannot be joined by. The larger the batch, the better it does.
    """

    name = package = "duckdb"
    _version = "SELECT 'DuckDB ' || ltrim(version(), 'v')"
    _size = "SELECT sum(memory_usage_bytes) FROM duckdb_memory()"
    _forget = "DELETE FROM subscriptions WHERE number IN (SELECT unnest(?))"

    def __init__(self, space: Space):
        super().__init__(space)
        import duckdb

        self._sql = duckdb.connect(config={"threads": 1})
        self._others = FilterStore()

    def insert(self, table: SubscriptionTable) -> Int32:
        """What needs extensions in DuckDB, octagons and phrases, is kept beside, and tested by the engines' kernel."""
        self._others.insert(searches.beyond_joins(table), table.number.astype(np.int32))
        return super().insert(table)

    def _take_in(self, table: SubscriptionTable) -> None:
        rows = rows_of(table)
        rows = rows.drop_columns(["shape", "query"]) if "shape" in rows.column_names else rows
        if not len(self):
            filters = f"{_FILTERS}, " if "chord" in rows.column_names else ""
            columns = f"number BIGINT, rarest INTEGER, {_BOX}, {filters}rest INTEGER[]"
            self._sql.execute(f"CREATE TABLE IF NOT EXISTS subscriptions ({columns})")
        self._sql.cursor().register("given", rows).execute("INSERT INTO subscriptions SELECT * FROM given")

    def _find(self, batch: MessageBatch) -> tuple[np.ndarray, np.ndarray]:
        """Join; the other keywords are tested on what comes back, which is twice as fast as list functions."""
        message = np.repeat(np.arange(len(batch)), np.diff(batch.term_offsets))
        box = {side: getattr(batch, side)[message] for side in _SIDES}
        homes = {name: column[message] for name, column in homes_of(batch).items()}
        given = self._sql.cursor().register("given", pa.table({"row": message, "term": batch.terms, **box, **homes}))
        begun = perf_counter()
        hits = given.sql(
            "SELECT m.row, s.number, s.rest FROM given m JOIN subscriptions s ON s.rarest = m.term "
            f"WHERE {_MEET}{_PASS if homes else ''}"
        ).to_arrow_table()
        self.joined_s += perf_counter() - begun
        row, rest = hits["row"].to_numpy(), hits["rest"].combine_chunks()
        pair = np.repeat(np.arange(len(row)), np.diff(rest.offsets.to_numpy()))
        carried = message * 2**32 + batch.terms  # ascending, since terms ascend within a message
        wanted = row[pair] * 2**32 + rest.flatten().to_numpy()
        lacking = carried[np.minimum(np.searchsorted(carried, wanted), len(carried) - 1)] != wanted
        good = np.bincount(pair[lacking], minlength=len(row)) == 0
        row, number = row[good], hits["number"].to_numpy()[good]
        inside = self._others.passing(number.astype(np.int32), row.astype(np.int32), batch)
        return (row, number) if inside is None else (row[inside], number[inside])


class PostGIS(Peer):
    """The server that `PGHOST` and the like name; one GiST index over (rarest keyword, region), the best shape tried.

    A batch of messages is copied into a temporary table (binary) and joined by a prepared statement: for every term of
    a message one descent that knows word and place, then the other keywords, and the exact box: GiST has float32,
    rounded outwards. What the join takes alone, of messages that are in the database already, is `joined_s`.
    """

    name, package = "postgis", "psycopg"
    install = (
        "apt-get install postgresql postgresql-15-postgis-3 && pip install 'skyray[bench]'; have a server for the time "
        "of the command: pg_virtualenv -o shared_buffers=1GB -o fsync=off -o autovacuum=off skyray bench ..."
    )
    _version = "SELECT 'PostgreSQL ' || split_part(version(), ' ', 2) || ', PostGIS ' || postgis_lib_version()"
    _size = "SELECT pg_total_relation_size('subscriptions')"
    _forget = "DELETE FROM subscriptions WHERE number = ANY(%s)"
    #: No waiting for disks, no parallel query; plans are for one message: a batch must not talk one out of the index.
    _set = (
        "synchronous_commit=off jit=off work_mem=256MB maintenance_work_mem=1GB effective_cache_size=6GB "
        "random_page_cost=1.0 max_parallel_workers_per_gather=0 max_parallel_maintenance_workers=0 "
        "enable_hashjoin=off enable_mergejoin=off enable_seqscan=off search_path=skyray_bench,public"
    )

    @classmethod
    def absence(cls) -> str | None:
        if missing := super().absence():
            return missing
        import psycopg

        try:
            with psycopg.connect() as sql:
                there = sql.execute("SELECT FROM pg_available_extensions WHERE name = 'postgis'").rowcount
        except psycopg.Error as refused:
            return f"no PostgreSQL server answers ({str(refused).strip()}). Install it: {cls.install}"
        return None if there else f"the PostgreSQL server has no PostGIS. Install it: {cls.install}"

    def __init__(self, space: Space):
        super().__init__(space)
        import psycopg

        self._sql = psycopg.connect(autocommit=True, options=" ".join(f"-c {each}" for each in self._set.split()))
        for extension in ("postgis", "btree_gist", "intarray"):
            self._sql.execute(f"CREATE EXTENSION IF NOT EXISTS {extension} SCHEMA public")
        # of our own, whatever else the server has
        self._sql.execute("CREATE SCHEMA skyray_bench")
        self._made = False

    def _make(self, filters: bool) -> None:
        """Make the tables."""
        drawn = f"geometry GENERATED ALWAYS AS (ST_MakeEnvelope({', '.join(_SIDES)})) STORED"
        shape = "shape text, covers geometry GENERATED ALWAYS AS (shape::geometry) STORED"
        query = "query text, asked tsquery GENERATED ALWAYS AS (to_tsquery('simple'::regconfig, query)) STORED"
        text = "text text, words tsvector GENERATED ALWAYS AS (to_tsvector('simple'::regconfig, text)) STORED"
        point = "point geometry GENERATED ALWAYS AS (ST_MakePoint(west, south)) STORED"
        searched, home = (f"{_FILTERS}, {shape}, {query}, ", f"{_HOME}, {point}, {text}, ") if filters else ("", "")
        self._sql.execute(
            f"CREATE UNLOGGED TABLE subscriptions "
            f"(number bigint, rarest int, {_BOX}, region {drawn}, {searched}rest int[]); "
            f"CREATE TEMPORARY TABLE messages (row int, {_BOX}, place {drawn}, {home}terms int[])"
        )
        self._made = True

    def _copy(self, into: str, rows: pa.Table) -> None:
        """Load rows."""
        load = f"COPY {into} ({', '.join(rows.column_names)}) FROM STDIN (FORMAT BINARY)"
        with self._sql.cursor() as cursor, cursor.copy(load) as copy:
            copy.set_types([_TYPES.get(name, "float8") for name in rows.column_names])
            for row in zip(*(column.to_pylist() for column in rows.columns), strict=True):
                copy.write_row(row)

    def _take_in(self, table: SubscriptionTable) -> None:
        """The first call makes the indexes, after loading."""
        rows = rows_of(table)
        if not self._made:
            self._make("chord" in rows.column_names)
        self._copy("subscriptions", rows)
        if not len(self):
            self._sql.execute("CREATE UNIQUE INDEX ON subscriptions (number)")
            self._sql.execute("CREATE INDEX ON subscriptions USING gist (rarest, region)")
            self._sql.execute("VACUUM ANALYZE subscriptions")

    def _find(self, batch: MessageBatch) -> tuple[np.ndarray, np.ndarray]:
        """Copy the messages, join, fetch."""
        terms = pa.ListArray.from_arrays(batch.term_offsets.astype(np.int32), batch.terms)
        box, homes = {side: getattr(batch, side) for side in _SIDES}, homes_of(batch)
        texts = texts_of(batch)
        columns = {"row": np.arange(len(batch)), **box, **homes, **texts, "terms": terms}
        passes = f"{_PASS} AND (s.covers IS NULL OR ST_Covers(s.covers, m.point))" if homes else ""
        passes += " AND (s.asked IS NULL OR m.words @@ s.asked)" if texts else ""
        with self._sql.transaction(), self._sql.cursor(binary=True) as cursor:
            cursor.execute("TRUNCATE messages")
            self._copy("messages", pa.table(columns))
            begun = perf_counter()
            # OFFSET keeps the planner from looking for places first and words later, which is 20 times slower
            cursor.execute(
                "SELECT array_agg(m.row), array_agg(s.number) "
                "FROM (SELECT *, unnest(terms) AS term FROM messages OFFSET 0) m JOIN subscriptions s "
                f"ON s.rarest = m.term AND s.region && m.place WHERE s.rest <@ m.terms AND {_MEET}{passes}",
                prepare=True,
            )
            self.joined_s += perf_counter() - begun
            row, number = cursor.fetchone()
        return np.array(row or [], np.int64), np.array(number or [], np.int64)

    def close(self) -> None:
        if not self._sql.closed:
            self._sql.execute("DROP SCHEMA skyray_bench CASCADE")
        super().close()


class Lucene(Peer):
    """Lucene's Monitor in a process of its own, on one thread (`benchmarks/LuceneMonitor.java`).

    Its presearcher knows the words of a search, the cells of a grid that its box meets, and the bands of prices that it
    asks for; a message must have one term of each of the `passes` rarest of these. Candidates are tested by Lucene's
    own queries of words, and by one of ours for all else. What Java takes from numbers and texts to pairs is
    `joined_s`.
    """

    name = "lucene"
    passes, threads, batch = 2, 1, 1
    install = runtimes.LUCENE_INSTALL
    # caches of the runtime itself would be in the size of the heap, and leave it at any time
    _flags = (
        "-Xmx6g",
        "-Xmn1500m",
        "-XX:+UseSerialGC",
        "-XX:SoftRefLRUPolicyMSPerMB=0",
        "--add-modules=jdk.incubator.vector",
    )

    @classmethod
    def absence(cls) -> str | None:
        if runtimes.jdk() and runtimes.lucene_jars():
            return None
        return f"Lucene {runtimes.LUCENE} or Java {runtimes.JAVA} is not here. Install it: {cls.install}"

    def __init__(self, space: Space):
        super().__init__(space)
        how = [f"-D{name}={getattr(self, name)}" for name in ("passes", "threads", "batch")]
        found = runtimes.jdk()
        assert found is not None, self.install
        home, self._java = found
        jars, source = ":".join(map(str, runtimes.lucene_jars())), Path(__file__).with_name("LuceneMonitor.java")
        # apart, since a compiler in the process would be in the size of its heap
        self._folder = tempfile.TemporaryDirectory()
        subprocess.run([home / "bin/javac", "-cp", jars, "-d", self._folder.name, source], check=True)
        program = [home / "bin/java", *self._flags, *how, "-cp", f"{self._folder.name}:{jars}", "LuceneMonitor"]
        self._process = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def _told(self, command: str, rows: np.ndarray, texts: Sequence[str] = ()) -> tuple[int, np.ndarray]:
        """The number of an answer, and its pairs."""
        text = "\n".join(texts).encode()
        head = struct.pack("<4q", ord(command), *rows.shape, len(text))
        sent, back = self._process.stdin, self._process.stdout
        assert sent is not None and back is not None
        sent.write(head + np.ascontiguousarray(rows, np.int64).tobytes() + text)
        sent.flush()
        answer = back.read(16)
        if len(answer) < 16:
            raise EngineError(f"{self.name}: Java has ended with code {self._process.wait()}; what it printed says why")
        number, pairs = struct.unpack("<2q", answer)
        return number, np.frombuffer(back.read(8 * pairs), np.int32).reshape(-1, 2)

    def _take_in(self, table: SubscriptionTable) -> None:
        """The number, box, ranges and circle of each, as int64 and the bits of float64; words, types and shape."""
        if not table.filter_words.shape[0]:
            table = table.having(filter_offsets=np.zeros(len(table) + 1, np.int64))
        for rows in np.split(np.arange(len(table)), range(_ROWS, len(table), _ROWS)):
            some = table.take(rows)
            given = searches.columns_of(some)
            numbers = [some.number, *_bits(*some.region.T)]
            numbers += [given[name] for name in ("price_low", "price_high", "beds_low")]
            numbers += _bits(*(given[name] for name in ("x", "y", "z", "chord")))
            texts = zip(given["asked"], given["types"], given["shape"], strict=True)
            lines = [f"{asked}\t{','.join(map(str, types or ()))}\t{shape or ''}" for asked, types, shape in texts]
            self._told("A", np.stack(numbers, axis=1), lines)

    def _find(self, batch: MessageBatch) -> tuple[np.ndarray, np.ndarray]:
        missing = np.full(len(batch), MISSING_KEY)
        homes = homes_of(batch) or dict.fromkeys(("price", "beds", "type", *"xyz"), missing)
        numbers = _bits(*(getattr(batch, side) for side in _SIDES))
        numbers += [np.asarray(homes[name]).view(np.int64) for name in ("price", "beds", "type", *"xyz")]
        # without an order of words any will do
        texts = searches.texts_of(batch) or searches.joined(batch.term_offsets, batch.terms)
        taken, pairs = self._told("M", np.stack(numbers, axis=1), texts)
        self.joined_s += taken / 1e9
        return pairs[:, 0].astype(np.int64), pairs[:, 1].astype(np.int64)

    def _unpost(self, slots: Int32) -> None:
        self._told("D", self.numbers(slots)[:, None])

    def version(self) -> str:
        return f"Lucene {runtimes.LUCENE}, Java {self._java}"

    def size_bytes(self) -> int:
        """The heap after a collection, less what it was before any search."""
        return self._told("S", np.zeros((0, 0)))[0]

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.communicate(timeout=60)
        self._folder.cleanup()


class LuceneOnTwo(Lucene):
    """Likewise, on two threads: each has messages of its own."""

    name, threads = "lucene_on_two", 2


class LuceneByOneTerm(Lucene):
    """Likewise, where a message must have one term of the rarest of a search's alone."""

    name, passes = "lucene_by_one_term", 1


#: Peers by name.
PEERS: dict[str, type[Peer]] = {each.name: each for each in (PostGIS, DuckDB, Lucene, LuceneOnTwo, LuceneByOneTerm)}


def with_peers(kind: Kind) -> Kind:
    """A kind that has its peers among its engines, behind its own; there are some of `boolean`."""
    return replace(kind, engines={**kind.engines, **PEERS}) if kind.name == "boolean" else kind
