"""Compiles the kernels of kinds while a stream runs, those of texts first.

A child process compiles them into the cache (`compiling.kernel_cache`), since the compiler would block the interpreter
of this one; then a thread loads them here, if tasks run in this process. Code that registers subscriptions calls
`is_ready`, or `wait`. What nobody has asked for yet is compiled ahead (`compile_ahead`), and loaded when it is.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
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
    """Prepares kinds, and `topology.warmup.WORDS`, in the order of the calls of `is_ready`, before any others.

    A context manager that ends its child processes.

    Parameters
    ----------
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
        self._asked: set[str] = set()
        self._wanted: deque[str] = deque()  # of these
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
            self._changed.notify_all()
            children = [*self._children]
        for child in children:
            with suppress(ProcessLookupError):
                child.kill()
            child.wait()

    @property
    def preparing(self) -> list[str]:
        """Names of the kinds that are compiled or loaded now, and that are asked for and wait for that."""
        with self._changed:
            return [*self._preparing, *self._wanted]

    def is_ready(self, name: str) -> bool:
        """Whether a kind's kernels are there; if not, they will be. A name that is no kind's has none."""
        with self._changed:
            if name in self._ready or (name not in self._kinds and name != WORDS):
                return True
            if name not in self._asked and not self._closed:
                self._asked.add(name)
                if name not in self._preparing:
                    self._wanted.append(name)
                    if self._working < self._most:
                        self._working += 1
                        threading.Thread(target=self._work, name="preparing", daemon=True).start()
            return False

    def compile_ahead(self, names: Iterable[str]) -> None:
        """Compile kinds before anybody asks for them, in this order, one at a time, while a core is left over.

        Those that are in the cache already are left alone.
        """
        threading.Thread(target=self._work_ahead, args=(list(names),), name="compiling ahead", daemon=True).start()

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
                    self._changed.notify_all()
                    return
                name = self._wanted.popleft()
                self._preparing.append(name)
            self._take(name)

    def _work_ahead(self, names: Sequence[str]) -> None:
        for name in filter(self._is_to_compile, names):
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._working < self._most)
                if self._closed:
                    return
                if name in self._asked or name in self._ready:
                    continue
                self._preparing.append(name)
            self._take(name)

    def _take(self, name: str) -> None:
        """Prepare a kind, which is ready then if somebody has asked for it, also meanwhile."""
        self._tell(name, False)
        try:
            self._prepare(name)
        finally:
            with self._changed:
                self._preparing.remove(name)
                is_ready = name in self._asked
                if is_ready:
                    self._ready.add(name)  # else the first batch compiles what is missing
                self._changed.notify_all()
        if is_ready and not self._closed:
            self._tell(name, True)

    def _prepare(self, name: str) -> None:
        if self._is_to_compile(name):
            self._compile(name)
        if self._load and name in self._asked and not self._closed:
            for _, warm in parts(self._kinds, self._engines, self._windows, used=[name]):
                warm()

    def _is_to_compile(self, name: str) -> bool:
        """Whether kernels of a kind are not known to be in the cache."""
        stamp = stamp_of(name, self._engines.get(name), self._windows.get(name))
        return stamp is not None and not stamp.exists()

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
