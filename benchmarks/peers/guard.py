"""A server that ends with the process that wanted it, however that process ends.

Whoever is killed with SIGKILL cannot clean up. So the server is not our child but that of a guard: a small process that
holds the read end of a pipe and this process the write end, which the kernel closes whatever happens. Then the guard
stops the server, which cannot have been mistaken for another since it is its own child, and deletes the folder.

`benchmarks.peers.postgis` starts its server so. Run as a program, this file is the guard; it imports nothing of ours.
"""

import os
import select
import shutil
import signal
import subprocess
import sys
import weakref
from collections.abc import Sequence
from pathlib import Path

_GRACE_S = 20.0
_LOOK_EVERY_S = 0.1


class GuardedServer:
    """A server process with its folder, from construction to `stop` or the end of this process.

    Parameters
    ----------
    command : sequence of str
    folder : Path            deleted at the end; the server runs in it, and writes what it says to `log` there
    account : str or None    who runs the server, if not this process's account
    grace_s : float          how long the server may take to end after SIGINT, before it is killed
    """

    def __init__(self, command: Sequence[str | Path], folder: Path, account: str | None = None, grace_s=_GRACE_S):
        guard = [sys.executable, "-I", __file__, str(folder), account or "", str(grace_s)]
        # A session of its own: an interrupt from the keyboard is for this process, which will end the server in order.
        self._guard = subprocess.Popen([*guard, *map(str, command)], stdin=subprocess.PIPE, start_new_session=True)
        self._grace_s = grace_s
        self._end = weakref.finalize(self, _end, self._guard, folder, grace_s)

    @property
    def ended(self) -> bool:
        """Whether the server runs no more."""
        return self._guard.poll() is not None

    def wait(self, seconds: float) -> bool:
        """Wait so long for the server to end; returns `ended`."""
        try:
            self._guard.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def stop(self) -> None:
        """End the server and delete its folder; may be called twice."""
        self._end()


def _end(guard: "subprocess.Popen[bytes]", folder: Path, grace_s: float) -> None:
    assert guard.stdin is not None
    guard.stdin.close()
    try:
        guard.wait(2 * grace_s + 10.0)
    except subprocess.TimeoutExpired:
        guard.kill()
        guard.wait()
    shutil.rmtree(folder, ignore_errors=True)


def _stop(server: "subprocess.Popen[bytes]", grace_s: float) -> None:
    """SIGINT, which is PostgreSQL's fast shutdown: nobody is waited for; SIGKILL if that does not help."""
    server.send_signal(signal.SIGINT)
    try:
        server.wait(grace_s)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def main(folder: str, account: str, grace_s: str, *command: str) -> int:
    """Run the command in the folder until it ends or nobody holds the other end of our standard input."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with Path(folder, "log").open("wb") as log:
        server = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=_heed_signals,
            user=account or None, group=account or None, extra_groups=[] if account else None,
        )  # fmt: skip
    while server.poll() is None:
        if select.select([0], [], [], _LOOK_EVERY_S)[0] and not os.read(0, 64):
            _stop(server, float(grace_s))
            shutil.rmtree(folder, ignore_errors=True)
    return server.returncode


def _heed_signals() -> None:
    """What the guard ignores would be ignored by the server as well."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
