"""All uses of private names of Ray, which a release of Ray may change; no other file uses any.

`tests/unit/topology/test_ray_private.py` tests each name of `NAMES`: run it first with a new release of Ray.
"""

import logging
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ray._common.utils import get_default_system_temp_dir, get_ray_address_file
from ray._private import ray_constants, utils
from ray._private import worker as ray_worker
from ray._private.authentication import authentication_token_setup as authentication

#: Full names of all that is used, and below the options of `ray.init`.
NAMES = (
    "ray._common.utils.get_default_system_temp_dir",
    "ray._common.utils.get_ray_address_file",
    "ray._private.ray_constants.PROCESS_TYPE_GCS_SERVER",
    "ray._private.ray_constants.PROCESS_TYPE_RAYLET",
    "ray._private.ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR",
    "ray._private.ray_constants.ENABLE_RAY_CLUSTER",
    "ray._private.ray_constants.RAY_DISABLE_FAILURE_SIGNAL_HANDLER",
    "ray._private.utils.set_sigterm_handler",
    "ray._private.worker._global_node",
    "ray._private.worker.print_worker_logs",
    "ray._private.node.Node.get_logs_dir_path",
    "ray._private.node.Node.dead_processes",
    "ray._private.authentication.authentication_token_setup.logger",
    "ray._private.authentication.authentication_token_setup.maybe_enable_token_auth_if_token_available",
    "ray._raylet.GcsClient",
)
OPTION_NAMES = ("_node_ip_address", "_temp_dir")

#: The processes that Ray cannot run without.
_VITAL = {ray_constants.PROCESS_TYPE_GCS_SERVER: "control service", ray_constants.PROCESS_TYPE_RAYLET: "raylet"}
#: Environment of a new process that has the effect of `loopback_kept`.
KEEP_LOOPBACK = {ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR: "0"}
#: Joins and leaves; the last line on standard output says why that failed, and an alarm ends what takes too long. Ray
#: by itself would try again and again, and wait a minute for a node on this machine to appear.
TRIAL = """
import os, signal, socket, sys
address, host, port, answer_s = *sys.argv[1:4], int(sys.argv[4])
os.environ["RAY_gcs_server_port_wait_time_s"] = "1"
os.environ["RAY_gcs_server_request_timeout_seconds"] = str(2 * answer_s)
signal.alarm(2 * answer_s)
answers = False
try:
    socket.create_connection((host, int(port)), answer_s / 2).close()
    import ray
    signal.alarm(answer_s)
    ray._raylet.GcsClient(address=address)
    answers = True
    signal.alarm(3 * answer_s)
    ray.init(address=address, log_to_driver=False)
    ray.shutdown()
except Exception as error:
    cause = error.__cause__ or error
    print(f"{type(cause).__name__}:", " ".join(str(cause).split()), flush=True)
    os._exit(2 if answers else 1)
"""


def private_options(address: str, folder: str) -> dict[str, Any]:
    """Options of `ray.init` for a Ray that has this address of its node, and its files in this folder."""
    return dict(zip(OPTION_NAMES, (address, folder), strict=True))


def own_temporary_folder() -> str:
    """Where Ray has its folder by default."""
    return get_default_system_temp_dir()


def address_file() -> str:
    """The file to which `ray start` on this machine writes its address."""
    return get_ray_address_file(None)


def dead_process() -> str | None:
    """Says which process of our own Ray has died; None if none has. Queries the system, not Ray; 10 us."""
    node: Any = ray_worker._global_node
    for kind, process in node.dead_processes() if node is not None else ():
        if kind in _VITAL:
            code = process.returncode
            how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
            return f"the {_VITAL[kind]} of Ray (process {process.pid}, {how}) has died"
    return None


def log_folder() -> str | None:
    """The folder of this node in which Ray's dashboard and `ray logs` look for files; None outside of Ray."""
    node: Any = ray_worker._global_node
    return None if node is None else node.get_logs_dir_path()


@contextmanager
def loopback_kept() -> Iterator[None]:
    """Keep Ray at 127.0.0.1 while it starts or is joined.

    Ray would replace 127.0.0.1 by the machine's network address and listen on all interfaces, unless clusters are
    disabled.
    """
    with _replaced(ray_constants, ENABLE_RAY_CLUSTER=False):
        yield


@contextmanager
def signals_kept() -> Iterator[None]:
    """Keep this process's handler of SIGTERM, if it has one, while Ray starts.

    Ray replaces it twice. The handler in Python raises an error that `ray.wait` turns into another exit code. The
    handler in C++ ends a process that takes more than 3 s to unwind, with a stack trace; an environment variable turns
    it off, but also in workers, whose stack traces are of use.
    """
    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        yield
        return
    in_cpp = _replaced(ray_constants, RAY_DISABLE_FAILURE_SIGNAL_HANDLER=True)
    with in_cpp, _replaced(utils, set_sigterm_handler=lambda _handler: None):
        yield


@contextmanager
def stdout_kept() -> Iterator[None]:
    """Send Ray's output to standard error: standard output is for the caller's JSON document.

    Ray prints warnings of raylets on standard output, also with `log_to_driver` off.
    """
    printed = ray_worker.print_worker_logs

    def to_stderr(data: Any, _: Any, ignore_prefix: bool = False) -> None:
        printed(data, sys.stderr, ignore_prefix)

    with _replaced(ray_worker, print_worker_logs=to_stderr):
        yield


@contextmanager
def _replaced(owner: Any, **values: Any) -> Iterator[None]:
    """Replace attributes of a module within the block."""
    before = {name: getattr(owner, name) for name in values}
    vars(owner).update(values)
    try:
        yield
    finally:
        vars(owner).update(before)


def use_token() -> None:
    """Authenticate with the token of this machine, if there is one: its clusters of `ray start` require it."""
    level = authentication.logger.level
    authentication.logger.setLevel(logging.ERROR)
    try:
        authentication.maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
    finally:
        authentication.logger.setLevel(level)
