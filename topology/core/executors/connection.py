"""Ray itself: started on this machine, or joined where it runs, and left again.

Without an address a run has a Ray of its own, whatever clusters run beside it or have left their address behind. With
one, a separate process tries the cluster first: joining an address that does not answer takes minutes and cannot be
interrupted.

Ray lets every user of the machine write to its folder, in which its sockets and the code of its workers lie. A Ray
of our own gets a private folder, which is removed with it.
"""

import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import ray

from matching.errors import ConfigError, TopologyError
from topology.core.executors import orphan_reaper as guarding
from topology.core.executors.orphan_reaper import MARK
from topology.core.executors.ray_private import (
    KEEP_LOOPBACK,
    TRIAL,
    address_file,
    dead_process,
    loopback_kept,
    own_temporary_folder,
    private_options,
    signals_kept,
    stdout_kept,
    use_token,
)

#: How long the head of a cluster may take to answer, once the trial process has started, which may take as long; a
#: node of it on this machine may still be starting, for twice as long.
ANSWER_S = 8
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
#: Paths of sockets may have 107 bytes, and those of Ray take up to 81 below the temporary folder.
_PLACE_BYTES = 107 - len("/ray-12345678/ray/session_2026-01-01_00-00-00_123456_1234567/sockets/plasma_store")
#: Remedy for a cluster that does not answer.
_REMEDY = "start it (ray start --head), or leave --address out to run on this machine"


def _not_ours() -> str | None:
    """A Ray that others have started is not watched."""
    return None


@contextmanager
def connected(address: str | None, log_to_driver: bool = False) -> Iterator[Callable[[], str | None]]:
    """A block with Ray in it: what this process is connected to already, else a cluster, else one of its own.

    Yields a function that returns which process of our own Ray has died, None while all live. After a death, calls of
    Ray may block for ever or end this process: only the end of the block is safe.

    Parameters
    ----------
    address : str, optional
        HOST:PORT of the head of a running cluster, of which this machine has to be a node; `auto` for the one that
        RAY_ADDRESS names, else the last `ray start` here. None, or `local`: Ray is started here, on loopback,
        and ended with the block.
    log_to_driver : bool
        Whether Ray shows what worker processes print.

    Raises
    ------
    ConfigError
        If `address` is none of these.
    TopologyError
        If no cluster answers there within `ANSWER_S`, or Ray does not start on this machine.
    """
    if ray.is_initialized():
        yield _not_ours
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if address == "auto":
        address = _found()
    elif address == "local":
        address = None
    if address is not None:
        use_token()
        _try(address)
    with stdout_kept(), _ended_with_the_block(own=address is None) as folder:
        try:
            with signals_kept():
                _start(address, folder, log_to_driver=log_to_driver, logging_level=logging.ERROR)
            yield dead_process if address is None else _not_ours
        finally:
            ray.shutdown()


def _start(address: str | None, folder: str, **options: Any) -> None:
    try:
        if address is None:
            with loopback_kept():
                own = private_options("127.0.0.1", str(Path(folder, "ray")))
                ray.init(address="local", include_dashboard=False, **own, **options)
        elif _split(address)[0] in _LOOPBACK:
            with loopback_kept():
                ray.init(address=address, **options)
        else:
            ray.init(address=address, **options)
    except Exception as cause:
        what = "Ray does not start on this machine" if address is None else f"cannot join Ray at {address!r}"
        raise TopologyError(f"{what}: {_in_a_line(cause)}; see skyray doctor") from cause


# -- a cluster that runs already


def _found() -> str:
    """The address that `auto` stands for. Ray's own search would also take what some process has started for itself."""
    address = os.environ.get("RAY_ADDRESS") or _address_left()
    if not address:
        raise TopologyError(
            "--address auto finds no Ray cluster: RAY_ADDRESS is not set, and none was started here with ray start; "
            "name it as HOST:PORT, or leave --address out to run on this machine"
        )
    return address


def _address_left() -> str | None:
    """The address of the last `ray start` here, by this user or by root: all users can write to the folder of Ray."""
    path = address_file()
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)) as file:
            owner = os.fstat(file.fileno()).st_uid
            if owner not in (0, os.geteuid()):
                raise TopologyError(
                    f"--address auto: {path}, which names a Ray cluster, belongs to user {owner}: remove it, or name "
                    "the cluster as HOST:PORT"
                )
            return file.read().strip()
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise TopologyError(
            f"--address auto: {path} cannot be read ({error}); name the cluster as HOST:PORT"
        ) from error


def _try(address: str) -> None:
    """See that a cluster answers and can be joined; raises if not. Takes two seconds."""
    host, port = _split(address)
    place = repr(address)
    search = os.pathsep.join(path for path in sys.path if path)
    trial = subprocess.run(
        [sys.executable, "-P", "-c", TRIAL, address, host, port, str(ANSWER_S)],
        env={**os.environ, "PYTHONPATH": search} | (KEEP_LOOPBACK if host in _LOOPBACK else {}),
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if trial.returncode == 0:
        return
    if trial.returncode == -signal.SIGALRM:
        raise TopologyError(f"no Ray cluster answers at {place} within {ANSWER_S} s: {_REMEDY}")
    if "Unauthenticated" in trial.stderr:
        raise TopologyError(
            f"the Ray cluster at {place} asks for a token: set RAY_AUTH_MODE=token, and have its token in "
            "~/.ray/auth_token or RAY_AUTH_TOKEN (ray get-auth-token prints it on the head)"
        )
    said = (trial.stdout.splitlines() or [f"the process that tried it ended with {trial.returncode}"])[-1]
    if "No node info found" in said:
        raise TopologyError(
            f"the Ray cluster at {place} has no node on this machine: add it (ray start --address={host}:{port}), or "
            "start the run on a node of the cluster"
        )
    what = "cannot join the Ray cluster at" if trial.returncode == 2 else "no Ray cluster answers at"
    raise TopologyError(f"{what} {place} ({said}): {_REMEDY}")


def _split(address: str) -> tuple[str, str]:
    """Host and port."""
    if "://" in address:
        raise ConfigError(
            f"--address {address}: tasks call each other, which does not go through a Ray client: name the head's "
            "HOST:PORT, from a node of the cluster"
        )
    host, colon, port = address.rpartition(":")
    if not (host and colon and re.fullmatch("[0-9]{1,5}", port) and 0 < int(port) < 65536):
        raise ConfigError(f"--address {address}: name the head of a Ray cluster as HOST:PORT, or say auto")
    return host.strip("[]"), port


# -- a Ray of our own


@contextmanager
def _ended_with_the_block(own: bool) -> Iterator[str]:
    """End all processes that Ray has started within the block, and their children, however the block is left.

    Ray ends what it has a list of. A start that was interrupted left no list; and once a raylet has died of a Ctrl-C
    that went to all, its agents are orphans and look for it every few seconds only. So all are marked by a
    variable, which every process inherits, and a guard ends them when this process is killed.

    Yields a private folder for Ray's files if it is our `own`, removed with the block, else an empty text.
    """
    mark, code = uuid.uuid4().hex, str(Path(ray.__file__).parent)
    folder = _folder_for_ray() if own else ""
    guard = subprocess.Popen(
        [sys.executable, "-P", guarding.__file__, mark, code, folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert guard.stdin is not None
    pipe = guard.stdin
    os.environ[MARK] = mark
    try:
        yield folder
    finally:
        os.environ.pop(MARK, None)
        try:
            guarding.end_marked(mark, code, folder)
        finally:
            with suppress(OSError):
                pipe.write(b".")
                pipe.flush()
            pipe.close()
            guard.wait()
            if folder:
                shutil.rmtree(folder, ignore_errors=True)


def _folder_for_ray() -> str:
    """A new private folder: where Ray would have its own, or in /tmp if paths were too long for sockets."""
    place = own_temporary_folder()
    if "RAY_TMPDIR" not in os.environ and len(os.fsencode(place)) > _PLACE_BYTES:
        place = "/tmp"
    try:
        return tempfile.mkdtemp(prefix="ray-", dir=place)
    except OSError as error:
        raise TopologyError(f"Ray has no place on this machine: {_in_a_line(error)}; set RAY_TMPDIR") from error


def _in_a_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
