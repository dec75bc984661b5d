"""`skyray show --page`: a server on the folder of a run, which only reads."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from gateway.serve.app import Hosts, assembled
from gateway.serve.replay import Replay
from gateway.serve.replay_routes import routes
from gateway.serve.server import LOOPBACK, Server, bind
from gateway.serve.tiles import Tiles
from gateway.shell.interrupts import draining
from gateway.shell.terminal import Terminal, cell

#: Seconds between two looks whether it shall end.
_POLL_S = 0.1


def serve_run(folder: Path, port: int, say: Callable[[str], None], tiles: Tiles | None = None) -> int:
    """Serve a run to this machine until it is interrupted.

    Parameters
    ----------
    port : int
        0: any that is free.
    say : callable
        Takes lines for people.
    tiles : Tiles, optional
        Of the page's map.

    Raises
    ------
    ConfigError, InputError
        If the port is taken; as `Replay`.
    """
    with ExitStack() as stack:
        listening = stack.enter_context(bind(LOOPBACK[0], port))
        with Terminal().steps("skyray show") as step:
            step(f"reading {folder}")
            replay = Replay(folder)
        stopping = stack.enter_context(draining())
        app = assembled([routes(replay)], tiles)
        app.add_middleware(Hosts, names=frozenset((*LOOPBACK, "[::1]")))
        stack.enter_context(Server(app, listening))
        figures = replay.figures()
        counts = f"{figures['messages']:,} messages, {replay.facts()['run']['updates']:,} updates"
        say(f"show: {cell(folder)} ({counts}) is on http://{LOOPBACK[0]}:{listening.getsockname()[1]}")
        say("show: ready")
        while not stopping():
            time.sleep(_POLL_S)
    return 0
