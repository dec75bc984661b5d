"""Ends what Ray has started here once the process that started it has ended or was killed.

`topology.core.executors.connection` starts this file as a process of its own that holds the reading end of a pipe. The
pipe closes with the process that writes to it, also when that is killed; Ray's own agents would take a minute to
notice.
"""

import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil

#: Variable that marks what Ray has started for a block; children inherit it.
MARK = "SKYRAY_STARTED_BY"
#: Variable by which Ray tells a process on which raylet it depends.
_RAYLET = "RAY_RAYLET_PID"
#: Seconds in which killed processes end, and between two looks for new ones.
KILLED_S, LOOK_AGAIN_S = 5.0, 0.5


@contextmanager
def outliving_ray() -> Iterator[None]:
    """A block in which Ray is imported: this process then outlives its raylet, also as a child of process 1.

    Ray takes a process whose parent is process 1, as in many containers, and that depends on no raylet it knows of, for
    a worker whose raylet has died, and ends it at once. It reads the variable when it is imported; workers have theirs.
    """
    ours = _RAYLET not in os.environ
    os.environ.setdefault(_RAYLET, str(os.getpid()))
    try:
        yield
    finally:
        if ours:
            os.environ.pop(_RAYLET, None)


def marked(mark: str, folder: str, session: str = "") -> list[psutil.Process]:
    """Running processes of Ray that carry this mark, or have a file of this session open.

    `folder` is where Ray is installed. A process that writes its title over its environment has lost the mark.
    """
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            ours = any(folder in word or word.startswith("ray::") for word in process.cmdline())
            if ours and process.status() != psutil.STATUS_ZOMBIE and _belongs(process, mark, session):
                found.append(process)
    return found


def _belongs(process: psutil.Process, mark: str, session: str) -> bool:
    if process.environ().get(MARK) == mark:
        return True
    return bool(session) and any(file.path.startswith(session) for file in process.open_files())


def end_marked(mark: str, folder: str, session: str = "") -> None:
    """Kill the processes of `marked`, and the processes that they start meanwhile."""
    deadline = time.monotonic() + KILLED_S
    while (left := marked(mark, folder, session)) and time.monotonic() < deadline:
        for process in left:
            with suppress(psutil.Error):
                process.kill()  # nothing that a task holds is in it
        psutil.wait_procs(left, timeout=LOOK_AGAIN_S)


def main(mark: str, folder: str, session: str) -> None:
    """Wait until the pipe closes, and kill the marked processes unless a dot came through it.

    `session` is the folder of Ray's session if this block made it: it is removed with the processes. Else it is "".
    """
    if "." not in sys.stdin.read():
        end_marked(mark, folder, session)
        if session:
            shutil.rmtree(session, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
