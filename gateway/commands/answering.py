"""Opens the socket of `skyray serve`, and answers there while the rest is still imported, which takes a second.

Imports little itself. Who may call is checked before.
"""

import tempfile
from contextlib import ExitStack
from ipaddress import ip_network
from pathlib import Path
from socket import socket
from typing import NamedTuple

from gateway.commands.stream_options import ServerOptions, StreamOptions
from gateway.serve.keys import KeyRing
from gateway.serve.server import LOOPBACK, Server, bind
from gateway.serve.starting import Starting
from gateway.shell.logs import logging_as
from matching.errors import ConfigError
from topology.core.executors.logs import driver_log
from topology.settings import KEYS


class Answering(NamedTuple):
    """A server that answers.

    out : Path             the folder of its stream
    ring : KeyRing
    starting : Starting    what answers, until it has the app of the stream
    server : Server
    serving : ExitStack    ends it
    url : str
    """

    out: Path
    ring: KeyRing
    starting: Starting
    server: Server
    serving: ExitStack
    url: str


def answer(stack: ExitStack, offered: ServerOptions, own: StreamOptions, most_connections: int) -> Answering:
    """Listen and answer, until the stack or what is returned as `serving` is closed.

    Raises
    ------
    ConfigError
        If settings do not fit each other, if the port is taken, or if other machines could call a server without keys.
    """
    out = folder_of(own.out, offered.demo_rate, offered.demo)
    if out is None:
        raise ConfigError("--out: name the folder of the stream; or add --demo")
    proxies = [_network(text) for text in offered.trusted_proxy]
    ring = KeyRing(offered.keys or out / KEYS)
    if offered.host not in LOOPBACK and not ring.current():
        raise ConfigError(
            f"--host {offered.host}: other machines could publish and read without a key; make one first: "
            f"skyray keys create {f'--keys {offered.keys}' if offered.keys else f'--out {out}'} --scope admin"
        )
    stack.enter_context(logging_as(own.log_format))
    listening = stack.enter_context(bind(offered.host, offered.port))
    first = "loading the program"
    serving, starting = stack.enter_context(ExitStack()), Starting(first)
    server = serving.enter_context(Server(starting, listening, most_connections, proxies))
    url = _url_of(listening)
    driver_log().info("listens", url=url, folder=str(out))
    starting.step(first)
    return Answering(out, ring, starting, server, serving, url)


def folder_of(out: Path | None, rate: float | None, demo: bool) -> Path | None:
    """The folder of a stream: the given one, or a new temporary one if there is a demo.

    Raises
    ------
    ConfigError
        If there is a rate of a demo without one.
    """
    if not demo and rate is not None:
        raise ConfigError("server.demo_rate: is the rate of the demo's messages; add --demo, or leave it out")
    return Path(tempfile.mkdtemp(prefix="skyray-demo-")) if demo and out is None else out


def _network(text: str) -> str:
    """An address or a network of --trusted-proxy. Raises ConfigError."""
    try:
        return str(ip_network(text))
    except ValueError as error:
        raise ConfigError(f"--trusted-proxy {text}: {error}; give an address, or a network as 10.0.0.0/8") from None


def _url_of(listening: socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
