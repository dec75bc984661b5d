"""Compiles the kernels of a kind when its first subscription arrives, while the stream runs; and those of texts.

A child process compiles them into the cache (`compiling.kernel_cache`), since the compiler would block the interpreter
of this one; then a thread loads them here, if tasks run in this process. Code that registers subscriptions calls
`is_ready`, or `wait`.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

from distribution.routers import works_on_all_kinds
from matching.kind_table import Kinds
from matching.kinds import KINDS
from topology.settings import RunConfig
from topology.warmup import WORDS, parts, stamp_of, warm_named

ROOT = Path(__file__).resolve().parents[1]
#: Seconds between two calls of `stop`.
_LOOK_S = 0.1
#: How much less than the stream a process that compiles gets of a busy processor.
_NICENESS = 5


class Preparing:
    """Prepares kinds, and `topology.warmup.WORDS`, in the order of the calls of `is_ready`.

    A context manager that ends its child processes.

    Parameters
    ----------
    kinds : Kinds
    engines, windows : mapping of kind to name
        The default of each kind that is not named.
    load : bool
        Load the kernels in this process, too.
    ready : iterable of str
        Kinds that are prepared already.
    tell : callable
        Takes the name of a kind, and whether it is ready now or begins to be prepared.
    """

    def __init__(
        self,
        kinds: Kinds,
        engines: Mapping[str, str],
        windows: Mapping[str, str],
        load: bool,
        ready: Iterable[str] = (),
        tell: Callable[[str, bool], None] = lambda name, is_ready: None,
    ):
        self._kinds = kinds
        self._engines, self._windows = dict(engines), dict(windows)
        self._load = load
        self._tell = tell
        self._most = os.cpu_count() or 1
        self._changed = threading.Condition()
        self._ready = {*ready}
        self._wanted: deque[str] = deque()
        self._preparing: list[str] = []
        self._children: set[subprocess.Popen[bytes]] = set()
        self._working = 0
        self._closed = False

    @classmethod
    def of(cls, config: RunConfig, tell: Callable[[str, bool], None] = lambda name, is_ready: None) -> Self:
        """For a run with these settings. Where tasks work on every kind, all are prepared before it starts."""
        ready = KINDS.names if works_on_all_kinds(config.router) else ()
        return cls(KINDS, config.engine, config.window_index, config.executor == "local", ready, tell)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._closed = True
            self._wanted.clear()
            children = [*self._children]
        for child in children:
            with suppress(ProcessLookupError):
                child.kill()
            child.wait()

    @property
    def preparing(self) -> list[str]:
        """Names of the kinds that `is_ready` was called for and that are not ready yet, in the order of the calls."""
        with self._changed:
            return [*self._preparing, *self._wanted]

    def is_ready(self, name: str) -> bool:
        """Whether a kind's kernels are there; if not, they will be. A name that is no kind's has none."""
        with self._changed:
            if name in self._ready or (name not in self._kinds and name != WORDS):
                return True
            if name not in self._preparing and name not in self._wanted and not self._closed:
                self._wanted.append(name)
                if self._working < self._most:
                    self._working += 1
                    threading.Thread(target=self._work, name="preparing", daemon=True).start()
            return False

    def wait(self, names: Iterable[str], stop: Callable[[], bool] = lambda: False) -> bool:
        """Wait until these kinds are ready; False if `stop` returned True, or it was closed, before."""
        names = [*names]
        while [name for name in names if not self.is_ready(name)]:
            if stop() or self._closed:
                return False
            with self._changed:
                self._changed.wait(_LOOK_S)
        return True

    def leave_a_core(self) -> None:
        """From now on a stream runs beside: one core is left to it."""
        self._most = max(1, (os.cpu_count() or 1) - 1)

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._wanted or self._closed:
                    self._working -= 1
                    return
                name = self._wanted.popleft()
                self._preparing.append(name)
            self._tell(name, False)
            try:
                self._prepare(name)
            finally:
                with self._changed:
                    self._preparing.remove(name)
                    self._ready.add(name)  # else the first batch compiles what is missing
                    self._changed.notify_all()
            if not self._closed:
                self._tell(name, True)

    def _prepare(self, name: str) -> None:
        stamp = stamp_of(name, self._engines.get(name), self._windows.get(name))
        if stamp is not None and not stamp.exists():
            self._compile(name)
        if self._load and not self._closed:
            for _, warm in parts(self._kinds, self._engines, self._windows, used=[name]):
                warm()

    def _compile(self, name: str) -> None:
        """Compile the kernels of a kind in another process; what it fails to compile is compiled when it is loaded."""
        request = json.dumps({"kind": name, "engines": self._engines, "windows": self._windows})
        with self._changed:
            if self._closed:
                return
            child = subprocess.Popen(
                [sys.executable, "-m", "topology.preparing", request], cwd=ROOT, stdin=subprocess.DEVNULL
            )
            self._children.add(child)
        child.wait()
        with self._changed:
            self._children.discard(child)


def main(request: str) -> None:
    """Compile the kernels of a kind, in a child process of `Preparing`; `request` is its JSON."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the stream, which ends this process itself
    os.nice(_NICENESS)
    wanted = json.loads(request)
    warm_named(wanted["kind"], engines=wanted["engines"], windows=wanted["windows"])


if __name__ == "__main__":
    main(sys.argv[1])
