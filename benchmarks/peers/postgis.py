"""Peer: PostgreSQL with PostGIS, a server of our own in a temporary folder, reached by a Unix socket.

Its best shape, of those tried: one GiST index over (rarest keyword, region), by extension `btree_gist`. A batch of
messages is copied into a temporary table and joined: for every term of a message one descent that knows word and place,
then the exact box and the other keywords of what it finds. GiST keeps boxes in float32, rounded outwards, so the exact
box is compared in doubles. `postgis_region` is what most people would begin with: GiST over the region alone.

No durability (fsync off), no parallel query, statistics up to date, everything cached.
"""

import getpass
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from time import monotonic
from typing import Any, ClassVar

import numpy as np

from benchmarks.peers.base import Absence, Peer, Rows
from benchmarks.peers.guard import GuardedServer
from matching.errors import EngineError
from matching.model import Int64, MessageBatch, SubscriptionTable
from matching.space import Space

_INSTALL = "apt-get install postgresql postgresql-15-postgis-3 && pip install 'skyray[bench]'"
_START_S = 60.0
_SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "max_wal_size": "8GB",
    "autovacuum": "off",
    "jit": "off",
    "max_parallel_workers_per_gather": "0",
    "max_parallel_maintenance_workers": "0",
    "shared_buffers": "1GB",
    "work_mem": "256MB",
    "maintenance_work_mem": "1GB",
    "effective_cache_size": "6GB",
    "random_page_cost": "1.0",
    "listen_addresses": "''",
}
_COLUMNS = "number, rarest, west, south, east, north, rest"


def _programs() -> Path | None:
    """The folder of `initdb` and `postgres`: Debian keeps it off the path."""
    found = [Path(path).resolve().parent for path in (shutil.which("initdb"),) if path]
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name), reverse=True)
    return next((path for path in found if (path / "initdb").exists() and (path / "postgres").exists()), None)


def _extensions(programs: Path) -> Path:
    """Where extensions are described; without `pg_config`, where Debian puts them."""
    if (programs / "pg_config").exists():
        told = subprocess.run([programs / "pg_config", "--sharedir"], capture_output=True, text=True, check=True)
        return Path(told.stdout.strip(), "extension")
    return Path("/usr/share/postgresql", programs.parent.name, "extension")


def _account() -> str | None:
    """Who runs the server: PostgreSQL refuses root, who therefore lends it to the account `postgres`."""
    if os.geteuid() != 0:
        return getpass.getuser()
    import pwd

    return "postgres" if any(entry.pw_name == "postgres" for entry in pwd.getpwall()) else None


class Server:
    """A PostgreSQL server in a temporary folder, from construction to `stop` or the end of this process.

    Raises
    ------
    EngineError
        If it cannot be made or does not answer in time; the message ends with the server's own last words.
    """

    def __init__(self) -> None:
        programs, account = _programs(), _account()
        if programs is None or account is None:
            raise EngineError(f"no PostgreSQL server here: {_INSTALL}")
        self.folder = Path(tempfile.mkdtemp(prefix="skyray-pg-"))
        self._as: dict[str, Any] = {}
        if os.geteuid() == 0:
            shutil.chown(self.folder, account)
            self._as = {"user": account, "group": account, "extra_groups": []}
        data = self.folder / "data"
        made = subprocess.run(
            [programs / "initdb", "-D", data, "-U", "skyray", "--auth=trust", "-E", "UTF8", "--locale=C", "--no-sync"],
            capture_output=True, text=True, check=False, cwd=self.folder, **self._as,
        )  # fmt: skip
        if made.returncode:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise EngineError(f"initdb failed in {self.folder}: {made.stderr.strip()[-500:]}")
        settings = [part for name, value in _SETTINGS.items() for part in ("-c", f"{name}={value.strip(chr(39))}")]
        command = [programs / "postgres", "-D", data, "-k", self.folder, *settings]
        self.process = GuardedServer(command, self.folder, account if os.geteuid() == 0 else None)

    def connect(self) -> Any:
        """A connection, as soon as the server takes one."""
        import psycopg

        deadline = monotonic() + _START_S
        while True:
            try:
                return psycopg.connect(host=str(self.folder), user="skyray", dbname="postgres", autocommit=True)
            except psycopg.OperationalError as refused:
                if self.process.wait(0.05) or monotonic() > deadline:
                    said = (self.folder / "log").read_text(errors="replace")[-500:]
                    self.stop()
                    raise EngineError(f"PostgreSQL in {self.folder} does not answer: {said}") from refused

    def stop(self) -> None:
        """End the server and delete its folder."""
        self.process.stop()


class PostGIS(Peer):
    """GiST over (rarest keyword, region)."""

    name = "postgis"
    install = _INSTALL
    packages = ("psycopg",)
    _index: ClassVar[str] = "USING gist (rarest, region)"
    _join: ClassVar[str] = (
        # OFFSET keeps the planner from looking for places first and words later, which is 20 times slower
        "FROM (SELECT *, unnest(terms) AS term FROM messages OFFSET 0) m "
        "JOIN subscriptions s ON s.rarest = m.term AND s.region && m.place WHERE s.rest <@ m.terms"
    )

    @classmethod
    def absence(cls) -> Absence | None:
        """Server, extension, account and driver: the first that is missing."""
        programs = _programs()
        if programs is None:
            return Absence(cls.name, "no PostgreSQL server is installed", cls.install)
        if not (_extensions(programs) / "postgis.control").exists():
            return Absence(cls.name, "PostgreSQL has no extension postgis", cls.install)
        if _account() is None:
            return Absence(cls.name, "PostgreSQL does not run as root, and there is no account postgres", cls.install)
        return super().absence()

    def __init__(self, space: Space):
        super().__init__(space)
        self._server = Server()
        self._sql = self._server.connect()
        # Plans are chosen for one message; a batch must not talk the planner out of the index.
        self._sql.execute("SET enable_hashjoin = off; SET enable_mergejoin = off; SET enable_seqscan = off")
        for extension in ("postgis", "btree_gist", "intarray"):
            self._sql.execute(f"CREATE EXTENSION {extension}")
        self._sql.execute(
            "CREATE UNLOGGED TABLE subscriptions (number bigint NOT NULL, rarest int NOT NULL, west float8, "
            "south float8, east float8, north float8, region geometry GENERATED ALWAYS AS "
            "(ST_MakeEnvelope(west, south, east, north)) STORED, rest int[] NOT NULL)"
        )
        self._sql.execute(
            "CREATE TEMPORARY TABLE messages (row int, west float8, south float8, east float8, north float8, "
            "place geometry GENERATED ALWAYS AS (ST_MakeEnvelope(west, south, east, north)) STORED, terms int[])"
        )

    def version(self) -> str:
        """Of the server and the extension."""
        server, extension = self._sql.execute("SELECT version(), postgis_lib_version()").fetchone()
        return f"{server.split(' (')[0].split(' on ')[0]}, PostGIS {extension}"

    def _take_in(self, table: SubscriptionTable) -> None:
        """COPY; the first call makes the indexes, after loading."""
        rows = Rows.of(table)
        columns = zip(*(column.tolist() for column in rows[:6]), rows.rest_of(), strict=True)
        load = f"COPY subscriptions ({_COLUMNS}) FROM STDIN (FORMAT BINARY)"
        with self._sql.cursor() as cursor, cursor.copy(load) as copy:
            copy.set_types(["int8", "int4", *["float8"] * 4, "int4[]"])
            for row in columns:
                copy.write_row(row)
        if not len(self):
            self._sql.execute("CREATE UNIQUE INDEX ON subscriptions (number)")
            self._sql.execute(f"CREATE INDEX subscriptions_found ON subscriptions {self._index}")
            self._sql.execute("VACUUM ANALYZE subscriptions")

    def _forget(self, numbers: Int64) -> None:
        """DELETE by primary key."""
        self._sql.execute("DELETE FROM subscriptions WHERE number = ANY(%s)", [numbers.tolist()])

    def _find(self, batch: MessageBatch) -> tuple[np.ndarray, np.ndarray]:
        """Copy the messages, join, fetch."""
        cuts, terms = batch.term_offsets.tolist(), batch.terms.tolist()
        boxes = zip(*(column.tolist() for column in (batch.west, batch.south, batch.east, batch.north)), strict=True)
        with self._sql.transaction(), self._sql.cursor(binary=True) as cursor:
            cursor.execute("TRUNCATE messages")
            with cursor.copy("COPY messages (row, west, south, east, north, terms) FROM STDIN (FORMAT BINARY)") as copy:
                copy.set_types(["int4", *["float8"] * 4, "int4[]"])
                for row, box in enumerate(boxes):
                    copy.write_row((row, *box, terms[cuts[row] : cuts[row + 1]]))
            cursor.execute(
                f"SELECT array_agg(m.row), array_agg(s.number) {self._join} "
                "AND s.west <= m.east AND s.east >= m.west AND s.south <= m.north AND s.north >= m.south"
            )
            row, number = cursor.fetchone() or (None, None)
        return np.array(row or [], np.int64), np.array(number or [], np.int64)

    def size_bytes(self) -> int:
        """Table and indexes, as PostgreSQL counts them."""
        return int(self._sql.execute("SELECT pg_total_relation_size('subscriptions')").fetchone()[0])

    def close(self) -> None:
        """Stop the server and delete its folder."""
        self._sql.close()
        self._server.stop()


class PostGISRegion(PostGIS):
    """GiST over the region alone."""

    name = "postgis_region"
    _index = "USING gist (region)"
    _join = (
        "FROM messages m JOIN subscriptions s ON s.region && m.place "
        "WHERE s.rarest = ANY(m.terms) AND s.rest <@ m.terms"
    )
