"""The server's socket, and where it may listen."""

import asyncio
import contextlib
import socket

import pytest

from gateway.serve.server import bind
from matching.errors import ConfigError
from tests.support.processes import Command


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_server_sends_answers_at_once(host):
    """Not once their headers are acknowledged, as Nagle's algorithm would have it."""

    async def accepted():
        found = asyncio.get_running_loop().create_future()
        with bind(host, 0) as listening:
            server = await asyncio.start_server(lambda _, writer: found.set_result(writer), sock=listening)
            _, client = await asyncio.open_connection(*listening.getsockname()[:2])
            writer = await found
            chosen = writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            for each in (client, writer):
                each.close()
                with contextlib.suppress(OSError):
                    await each.wait_closed()
            server.close()
            return chosen

    assert asyncio.run(accepted()) == 1


def test_server_whose_port_is_taken_says_so():
    with bind("127.0.0.1", 0) as one, pytest.raises(ConfigError, match="choose another --port"):
        bind("127.0.0.1", one.getsockname()[1])


@pytest.mark.parametrize(
    ("options", "said"),
    [(["--host", "0.0.0.0"], "keys are not there yet"), (["--checkpoint-every", 0], "leave it out")],
)
def test_serve_refuses_what_it_cannot_keep(tmp_path, options, said):
    with Command(["serve", "--out", tmp_path / "out", *options]) as command:
        code, _, error = command.finish(60)
    assert code == 2 and said in error and not (tmp_path / "out").exists()
