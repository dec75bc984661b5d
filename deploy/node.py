"""A node of a Ray cluster, guarded by a token: `python deploy/node.py head`, `python deploy/node.py worker HEAD:6379`.

Runs until Ctrl-C or SIGTERM, and then ends what it has started and nothing else. Whoever reaches a Ray that asks for no
token can have it execute anything, so there is no way here to start one. `--loopback` keeps a cluster to this machine:
Ray itself takes `--node-ip-address 127.0.0.1` for the address of the machine in its network, and listens everywhere.
`deploy/README.md` shows a cluster of two nodes from its start to its end.
"""

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from ray._private import services
from ray.scripts import scripts

PORT = 6379
_STOP_S = 10


def main(arguments: Sequence[str]) -> int:
    """Run a node; the exit code."""
    given, more = _parser().parse_known_args(arguments)
    if os.environ.get("RAY_AUTH_MODE", "token") != "token":
        return _fail(f"RAY_AUTH_MODE is {os.environ['RAY_AUTH_MODE']!r}: leave it out, or set it to token")
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_USAGE_STATS_ENABLED": "0"}
    if not _has_token():
        if given.role == "worker" and not given.loopback:
            return _fail(f"no token: copy {_token_file()} of the head to the same place here (readable by you alone)")
        subprocess.run([Path(sys.executable).with_name("ray"), "get-auth-token", "--generate"], check=True, stdout=-3)
    if given.inside:
        return _start(given, more)
    command = [sys.executable, __file__, "--inside", *arguments]
    node = subprocess.Popen(command, start_new_session=True)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda _number, _frame: _end(node))
    try:
        return node.wait()
    finally:
        _kill(node)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="deploy/node.py", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    roles = parser.add_subparsers(dest="role", required=True)
    head = roles.add_parser("head", help="the node that the others join")
    head.add_argument("--port", type=int, default=PORT, help=f"port of the head ({PORT})")
    worker = roles.add_parser("worker", help="a further node")
    worker.add_argument("address", help="HOST:PORT of the head")
    for role in (head, worker):
        role.add_argument("--loopback", action="store_true", help="for nodes of this machine alone")
        role.epilog = "Further options go to `ray start`, such as --num-cpus 4."
    return parser


def _token_file() -> Path:
    return Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")


def _has_token() -> bool:
    return bool(os.environ.get("RAY_AUTH_TOKEN")) or _token_file().is_file()


def _start(given: argparse.Namespace, more: list[str]) -> int:
    place = ["--head", f"--port={given.port}", "--include-dashboard=false"] if given.role == "head" else []
    if given.role == "worker":
        place = [f"--address={given.address}"]
    if given.loopback:
        # Ray calls it for any address of this machine, also to replace 127.0.0.1.
        services.get_node_ip_address = lambda address=None: "127.0.0.1"
        place.append("--node-ip-address=127.0.0.1")
    scripts.start.main([*place, "--disable-usage-stats", "--block", *more], standalone_mode=False)
    return 0


def _end(node: subprocess.Popen) -> None:
    os.killpg(node.pid, signal.SIGTERM)
    try:
        node.wait(_STOP_S)
    finally:
        _kill(node)
        sys.exit(0)


def _kill(node: subprocess.Popen) -> None:
    """End the processes of a node that have not ended by themselves."""
    try:
        os.killpg(node.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _fail(what: str) -> int:
    sys.stderr.write(f"error: {what}\n")
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
