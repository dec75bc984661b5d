"""`skyray serve --run`: a server on the folder of a run, which only reads."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from gateway.serve.app import Hosts, assembled
from gateway.serve.replay import Replay
from gateway.serve.replay_routes import routes
from gateway.serve.server import Server, bind
from gateway.serve.tiles import Tiles
from gateway.shell.interrupts import draining
from gateway.shell.terminal import Terminal, cell

#: Seconds between two looks whether it shall end.
_POLL_S = 0.1


def serve_run(
    folder: Path, host: str, port: int, hosts: frozenset[str], say: Callable[[str], None], tiles: Tiles | None = None
) -> int:
    """Serve a run until it is interrupted.

    Parameters
    ----------
    folder : Path
    host, port
        Where to listen.
    hosts : frozenset of str
        Names by which the server may be called.
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
        listening = stack.enter_context(bind(host, port))
        with Terminal().steps("skyray serve") as step:
            step(f"reading {folder}")
            replay = Replay(folder)
        stopping = stack.enter_context(draining())
        app = assembled([routes(replay)], tiles)
        app.add_middleware(Hosts, names=hosts)
        stack.enter_context(Server(app, listening, lambda loop: None))
        figures = replay.figures()
        counts = f"{figures['messages']:,} messages, {replay.facts()['run']['updates']:,} updates"
        name = f"[{host}]" if ":" in host else host
        say(f"serve: replays {cell(folder)} ({counts}) on http://{name}:{listening.getsockname()[1]}")
        say("serve: ready")
        while not stopping():
            time.sleep(_POLL_S)
    return 0
