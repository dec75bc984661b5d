"""A PostgreSQL server of one test, which can be killed and started again; it belongs to nobody else.

Tests are marked `postgis` (`tests.support.left_out`), since that package brings the server too.
"""

import os
import pwd
import shutil
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from tests.support.serving import free_port

USER, PASSWORD, DATABASE = "skyray", "secret", "alerts"
#: Quick, but a commit is still on disk for a server that is killed: what it wrote, the system has.
_SETTINGS = ("fsync=off", "listen_addresses=127.0.0.1", "unix_socket_directories=", "max_connections=30",
             "shared_buffers=32MB", "logging_collector=off", "autovacuum=off")  # fmt: skip


def programs() -> str:
    """The folder with `initdb` and `postgres`: Debian's newest."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    return str(found[-1].parent) if found else os.path.dirname(shutil.which("initdb") or "initdb")


class PostgresServer:
    """A server on the loopback interface, while the block lasts.

    Attributes
    ----------
    port : int
    """

    def __init__(self) -> None:
        self.port = free_port()
        self._folder = Path(tempfile.mkdtemp(prefix="skyray-postgres-"))
        self._process: subprocess.Popen[Any] | None = None
        # it refuses to be run by root
        self._as: dict[str, Any] = {"user": "postgres", "group": "postgres"} if os.geteuid() == 0 else {}
        self._log = self._folder / "log"

    def __enter__(self) -> "PostgresServer":
        try:
            if self._as:
                owner = pwd.getpwnam("postgres")
                os.chown(self._folder, owner.pw_uid, owner.pw_gid)
            words = self._folder / "password"
            words.write_text(PASSWORD + "\n")
            words.chmod(0o644)
            self._log.touch()
            subprocess.run(
                [f"{programs()}/initdb", "--pgdata", self._folder / "data", "--no-sync", "--username", USER,
                 "--auth", "scram-sha-256", "--pwfile", words, "--encoding", "UTF8", "--locale", "C"],
                check=True, capture_output=True, cwd="/", **self._as,
            )  # fmt: skip
            self.start()
            with self.connect("postgres") as sql:
                sql.execute(f"CREATE DATABASE {DATABASE}")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def uri(self, schema: str = "skyray", user: str = USER, password: str = PASSWORD, database: str = DATABASE) -> str:
        """As `--to` takes it."""
        return f"postgresql://{user}:{password}@127.0.0.1:{self.port}/{database}?schema={schema}"

    def dsn(self, user: str = USER, password: str = PASSWORD, database: str = DATABASE) -> str:
        return self.uri("", user, password, database).partition("?")[0]

    def connect(self, database: str = DATABASE) -> Any:
        """A connection that commits each statement."""
        import psycopg

        return psycopg.connect(self.dsn(database=database), autocommit=True, options="-c lock_timeout=20s")

    def ask(self, statement: str, *given: Any) -> list[tuple[Any, ...]]:
        """The rows of a statement, in a connection of its own."""
        with self.connect() as sql:
            cursor = sql.execute(statement, given or None)
            return [] if cursor.description is None else cursor.fetchall()

    def start(self, wait: bool = True) -> None:
        """Start it, and wait until it answers: after a kill it recovers first."""
        settings = [word for one in _SETTINGS for word in ("-c", one)]
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                [f"{programs()}/postgres", "-D", self._folder / "data", "-p", str(self.port), *settings],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", **self._as,
            )  # fmt: skip
        if wait:
            self.await_answer()

    def await_answer(self, seconds: float = 300) -> None:
        import psycopg

        deadline = time.monotonic() + seconds
        while True:
            assert self._process is not None and self._process.poll() is None, self._log.read_text()
            try:
                self.connect("postgres").close()
                return
            except psycopg.OperationalError:
                assert time.monotonic() < deadline, self._log.read_text()
                threading.Event().wait(0.02)

    def kill(self) -> None:
        """SIGKILL of every process of it, as a power cut of the process: nothing is written any more."""
        if self._process is None:
            return
        there = [psutil.Process(self._process.pid), *_children(self._process.pid)]
        for one in there:
            try:
                one.kill()
            except psutil.NoSuchProcess:
                continue
        self._process.wait(20)
        psutil.wait_procs(there[1:], timeout=300)
        self._process = None


def _children(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
