"""SIGINT and SIGTERM: a command unwinds and ends within seconds.

A signal raises KeyboardInterrupt in the main thread, so that resources are released; further signals change nothing
meanwhile. A command that does not unwind in time is killed with its children.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, Self

from gateway.shell.terminal import fail

SIGNALS = (signal.SIGINT, signal.SIGTERM)
#: How long a command may take to unwind. Ray takes up to 5 s to end, Spark up to 10.
PATIENCE_S = 15.0
#: How long the main thread may stay in native code that checks no signal, before it begins to unwind.
DEEP_S = 5.0
#: How long a process that the command has started may take to end by itself before it is killed.
END_S = 5.0
#: How soon a signal comes again, in case what it raised was swallowed.
_AGAIN_S = 0.25
#: Signals that come so close together are one press of a key.
_ONE_PRESS_S = 0.3


class Interrupts:
    """A block that SIGINT and SIGTERM end by KeyboardInterrupt; a signal that was ignored before still is.

    Does nothing outside the main thread, where no signal arrives.

    Parameters
    ----------
    patience_s : float
        How long the block may take to end after the first signal, before the process and its children are ended.

    Attributes
    ----------
    came : int or None
        The first signal.
    in_order : bool
        Whether the command has done all that it does at its end, whatever asked for it.
    waits : bool
        The command works until it is told to end, and has not begun: there is nothing to do at its end.
    """

    def __init__(self, patience_s: float = PATIENCE_S):
        self.came: int | None = None
        self.in_order = self.waits = False
        self._patience_s = patience_s
        self._heard_s = 0.0
        self._settled = False
        self._draining = False
        self._first_s: dict[str, float] = {}
        self._reported = threading.Lock()
        self._over = threading.Event()
        self._watcher: threading.Thread | None = None
        self._handlers: dict[int, Any] = {}
        self._earlier: set[int] = set()

    def __enter__(self) -> Self:
        if threading.current_thread() is not threading.main_thread():
            return self
        self._earlier = children()
        self._main = threading.get_ident()
        # Python's handlers wait for the main thread, which may be deep in a library. What arrives at this pipe is seen
        # at once, also when Ray or Spark has put a handler of its own in place.
        self._read_end, self._write_end = os.pipe()
        os.set_blocking(self._write_end, False)
        self._watcher = threading.Thread(target=self._watch, name="interrupts", daemon=True)
        self._watcher.start()
        self._hook, sys.unraisablehook = sys.unraisablehook, self._swallowed
        self._wakeup = signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        for number in SIGNALS:
            before = signal.getsignal(number)
            if before is not signal.SIG_IGN:  # a shell sets this for background jobs
                self._handlers[number] = before
                signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        if self._watcher is None:
            return
        self._over.set()
        for number, before in self._handlers.items():
            signal.signal(number, before)
        signal.set_wakeup_fd(self._wakeup)
        sys.unraisablehook = self._hook
        os.close(self._write_end)  # ends the watcher's read
        self._watcher.join()
        os.close(self._read_end)

    def settle(self) -> None:
        """From here on signals are recorded, but raise nothing."""
        self._settled = True

    @contextmanager
    def draining(self) -> Iterator[Callable[[], bool]]:
        """A block that the first signal does not end; the yielded function returns True after it. A second one does.

        In force from the first call of that function: before it nothing is running that could drain.
        """

        def stop_requested() -> bool:
            self._draining, self.waits = self._watcher is not None, False
            return self.came is not None

        try:
            yield stop_requested
        finally:
            self._draining = False

    def _is_first(self, hearer: str) -> bool:
        """Whether the current signal is the first one, which is recorded; one key press may arrive twice.

        Handler and watcher each have a time of their own: on a busy machine the main thread gets the same signal
        much later.
        """
        now_s = time.monotonic()
        return now_s - self._first_s.setdefault(hearer, now_s) <= _ONE_PRESS_S

    def report(self, more: str = "") -> None:
        """Say once, on standard error, that the command was ended."""
        if not self._reported.acquire(blocking=False):
            return
        fail(("terminated" if self.came == signal.SIGTERM else "interrupted") + more)

    def end_children(self) -> None:
        end_children(self._earlier)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.came = self.came or number
        if self._draining and self._is_first("handler"):
            return
        self._heard_s = time.monotonic()
        if not self._settled and not _unwinding() and not _starting_process(frame):
            raise KeyboardInterrupt

    def _swallowed(self, what: "sys.UnraisableHookArgs") -> None:
        """Hide an interrupt raised where it cannot be caught: it comes again."""
        if what.exc_type is not KeyboardInterrupt:
            self._hook(what)

    def _watch(self) -> None:
        """Wait for the first signal, then for the end."""
        while not self._over.is_set():
            heard = os.read(self._read_end, 1)
            if heard and heard[0] in SIGNALS:
                self.came = self.came or heard[0]
                if self._draining and self._is_first("watcher"):
                    continue
                break
        began_s = self._heard_s = time.monotonic()
        while not self._over.wait(_AGAIN_S):
            now_s = time.monotonic()
            ours = self.came is not None and signal.getsignal(self.came) == self._handle
            if now_s - began_s > self._patience_s or (ours and now_s - self._heard_s > DEEP_S):
                self._end(now_s - began_s)
            elif self.came is not None and ours:
                # Some libraries swallow whatever is raised while they are imported or finalised.
                signal.pthread_kill(self._main, self.came)

    def _end(self, waited_s: float) -> None:
        """The main thread has not ended in time: end without it."""
        try:
            end_children(self._earlier, patience_s=0.0)
            if sys.stderr.isatty():
                sys.stderr.write("\x1b[?25h")  # a live display hides the cursor
            self.report(f"; what had not ended after {waited_s:.0f} s was killed")
        finally:
            os._exit(exit_code(self.came))


#: The block that this process is in.
_CURRENT: list[Interrupts] = []


@contextmanager
def draining() -> Iterator[Callable[[], bool]]:
    """`Interrupts.draining` of the running command; always False without one."""
    if not _CURRENT:
        yield lambda: False
        return
    with _CURRENT[-1].draining() as stop_requested:
        yield stop_requested


def report(more: str) -> None:
    """`Interrupts.report` of the running command."""
    if _CURRENT:
        _CURRENT[-1].report(more)


def begin_to_wait() -> None:
    """The running command works until it is told to end: by SIGTERM, while it starts, it ends in order."""
    if _CURRENT:
        _CURRENT[-1].waits = True


def end_in_order() -> None:
    """The running command serves until it is told to end, and has ended in order: SIGTERM is what it waited for."""
    if _CURRENT:
        _CURRENT[-1].in_order = True


def run_interruptible(command: Callable[[Interrupts], int]) -> int:
    """Run a command that may be interrupted.

    Parameters
    ----------
    command : callable
        Gets the `Interrupts`: an error after `came` is not worth reporting; returns its exit code.

    Returns
    -------
    int
        The command's exit code. After a signal nothing is returned: the process ends, with 130 after SIGINT and 143
        after SIGTERM, one line about it on standard error, and nothing left of what the command has started. A command
        that SIGTERM has ended in order (`end_in_order`) ends with its own exit code, and no line; one that has not
        begun (`begin_to_wait`) with 0.
    """
    with Interrupts() as interrupts:
        _CURRENT[:] = [interrupts]
        try:
            code = command(interrupts)
            interrupts.settle()
        except KeyboardInterrupt:
            interrupts.settle()
            interrupts.in_order = False
            code = exit_code(interrupts.came)
        if interrupts.came is not None or code == exit_code(None):
            if interrupts.came != signal.SIGTERM or not (interrupts.in_order or interrupts.waits):
                interrupts.report()
                code = exit_code(interrupts.came)
            elif interrupts.waits:
                code = 0
            interrupts.end_children()
        if interrupts.came is not None:
            # A normal exit would finalise half-built objects: Ray's C++ parts crash.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    return code


def exit_code(number: int | None) -> int:
    """What a shell expects of a process that a signal has ended; KeyboardInterrupt without one counts as SIGINT."""
    return 128 + (number or signal.SIGINT)


def _unwinding() -> bool:
    """Whether this thread is unwinding from an interrupt."""
    error = sys.exception()
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def _starting_process(frame: FrameType | None) -> bool:
    """Whether a process is being started: it could not be ended yet, and fork swallows exceptions."""
    while frame is not None and frame.f_code.co_name != "_execute_child":
        frame = frame.f_back
    return frame is not None


def children() -> set[int]:
    """Ids of the processes that this one has started and that still run; none without /proc."""
    tasks = Path("/proc/self/task")
    try:
        return {int(child) for task in tasks.iterdir() for child in (task / "children").read_text().split()}
    except OSError:
        return set()


def end_children(earlier: set[int], patience_s: float = END_S) -> int:
    """End the children that are not among `earlier`, with all that they started; returns how many there were.

    Ray and Spark end their own on the way out; one that an interrupt met while it started has no owner, and a Java
    process may then wait for ever.
    """
    import psutil

    started = []
    for number in children() - earlier:
        try:
            child = psutil.Process(number)
            started += [*child.children(recursive=True), child]
        except psutil.NoSuchProcess:
            continue
    for process in started:
        _quietly(process.terminate)
    _, stubborn = psutil.wait_procs(started, timeout=patience_s)
    for process in stubborn:
        _quietly(process.kill)
    psutil.wait_procs(stubborn, timeout=END_S)
    return len(started)


def _quietly(action: Callable[[], None]) -> None:
    import psutil

    with suppress(psutil.NoSuchProcess):
        action()
