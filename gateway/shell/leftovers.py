"""Ends the processes that a command has started when it is interrupted.

Ray and Spark end their own processes on the way out. An interrupt while a process starts leaves it without an
owner, and a Java process may then wait for ever; these are ended here.
"""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

#: How long a process may take to end by itself before it is killed.
PATIENCE_S = 5.0


def children() -> set[int]:
    """Ids of the processes that this one has started and that still run; none without /proc."""
    tasks = Path("/proc/self/task")
    try:
        return {int(child) for task in tasks.iterdir() for child in (task / "children").read_text().split()}
    except OSError:
        return set()


def end_children(earlier: set[int], patience_s: float = PATIENCE_S) -> int:
    """End the children that are not among `earlier`, with all that they started; returns how many there were."""
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
    psutil.wait_procs(stubborn, timeout=PATIENCE_S)
    return len(started)


def _quietly(action: Callable[[], None]) -> None:
    import psutil

    with suppress(psutil.NoSuchProcess):
        action()
