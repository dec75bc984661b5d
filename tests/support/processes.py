"""Commands as processes of their own, and everything they have started, however deep."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

import psutil

from tests.support.etl_folder import random_rows, write_etl

ROOT = Path(__file__).resolve().parents[2]
#: Variable by which a process is known for one of ours; children inherit it.
MARK = "MARK_OF_A_TEST"
#: Runs the command line as a child of process 1, as in a container, and ends with it.
ORPHAN = """
import os, sys
reading, writing = os.pipe()
if os.fork() == 0:
    if os.fork() == 0:
        os.set_inheritable(writing, True)
        os.execv(sys.executable, [sys.executable, "-m", "gateway.entry", *sys.argv[1:]])
    os._exit(0)
os.close(writing)
os.wait()
os.read(reading, 1)
"""
NEAR = {"kind": "topk", "keywords": ["w1", "w2"], "lon": 0, "lat": 0, "k": 3, "alpha": 0.5}


class Command:
    """`skyray ...` in its own process group, with what it writes in files.

    Parameters
    ----------
    arguments : sequence
        Of the command line; with `script`, of that instead.
    environment : dict, optional
        Variables to set, or with None to leave out.
    script : str, optional
        Python to run instead of the command line.
    source : int, optional
        Descriptor of its standard input.
    out : int, optional
        Descriptor of its standard output, which `read` then does not have.
    """

    def __init__(
        self,
        arguments: Sequence[object],
        environment: dict[str, str | None] | None = None,
        script: str | None = None,
        source: int | None = None,
        out: int | None = None,
    ):
        self._mark = uuid.uuid4().hex
        changed = {"PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0", "RAY_ADDRESS": None, MARK: self._mark}
        wanted = {**os.environ, "PYTHONFAULTHANDLER": "1", **changed, **(environment or {})}
        begin = ["-m", "gateway.entry"] if script is None else ["-c", script]
        self._out, self._err = (tempfile.TemporaryFile() for _ in range(2))  # noqa: SIM115 - `__exit__` closes them
        self.began_s = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, *begin, *map(str, arguments)],
            cwd=ROOT,
            env={name: value for name, value in wanted.items() if value is not None},
            stdin=source,
            stdout=self._out if out is None else out,
            stderr=self._err,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Whatever a test has found out, nothing stays."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(20)
        for process in self.started():
            process.kill()
        self._out.close()
        self._err.close()

    def started(self) -> list[psutil.Process]:
        """What runs of what the command has started."""
        return [process for process in marked(self._mark) if process.pid != self.process.pid]

    def has_started(self, word: str) -> bool:
        """Whether a process runs that has the word in its command line."""
        return any(word in command_line(process) for process in self.started())

    def await_(self, what: Callable[[], bool], seconds: float = 300) -> None:
        """Poll until something is so while the command still runs."""
        began_s = asked_s = time.monotonic()
        while not what():
            assert self.process.poll() is None, f"ended with {self.process.returncode}: {self.read()}"
            assert asked_s < began_s + seconds, self.read()
            # what takes long to answer, as who runs, is asked less often: the command needs the processor itself
            threading.Event().wait(max(0.01, 4 * (time.monotonic() - asked_s)))
            asked_s = time.monotonic()

    def finish(self, seconds: float = 300) -> tuple[int, str, str]:
        """Wait for the end; exit code, standard output, standard error. One that does not end says where it stands."""
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGABRT)
            self.process.wait(20)
            raise AssertionError(f"had not ended after {seconds:g} s: {self.read()}") from None
        return code, *self.read()

    def read(self) -> tuple[str, str]:
        # not by seeking: the process writes where the file that it shares with us stands
        out, err = (os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0) for file in (self._out, self._err))
        return out.decode(errors="replace"), err.decode(errors="replace")

    def assert_nothing_left(self, seconds: float = 5) -> None:
        """Nothing that the command has started runs any more after so long."""
        deadline = time.monotonic() + seconds
        while left := self.started():
            assert time.monotonic() < deadline, [command_line(process) for process in left]
            threading.Event().wait(0.1)


def marked(mark: str) -> list[psutil.Process]:
    """Processes that run with a value of `MARK` in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def command_line(process: psutil.Process) -> str:
    """Of a process that may have ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def small_run(folder: Path, messages: int, batch: int) -> list[object]:
    """Arguments of a run on Ray over generated messages, into `folder / "out"`; a later `--executor` wins."""
    etl = write_etl(folder / "etl", random_rows(messages))
    rows = [{"subscription_id": f"near {number}", **NEAR, "lat": number} for number in range(20)]
    file = folder / "subscriptions.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [
        *("run", "--messages", etl, "--subscriptions", file, "--out", folder / "out"),
        *("--window", "count:100", "--batch", batch, "--query-bolts", 1, "--executor", "ray"),
    ]
