"""A client of NATS, whose event loop runs in a thread; a lost connection is not mended below its caller."""

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import nats.errors
from nats.aio.client import Client

from matching.errors import ConfigError

#: Seconds to connect, between two pings, and to disconnect.
_CONNECT_S, _PING_S, _CLOSE_S = 3, 5, 5.0

_Result = TypeVar("_Result")


class NatsClient:
    """A client that is connected once.

    Parameters
    ----------
    name : str
        Of the source or the sink, for errors.
    servers : sequence of str
        URLs, with user and password if need be.

    Attributes
    ----------
    client : nats.aio.client.Client
    """

    def __init__(self, name: str, servers: Sequence[str]):
        self.client = Client()
        self._name = name
        self._servers = list(servers)
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=_run, args=(self._loop,), name=name, daemon=True).start()

    def begin(self, coroutine: Coroutine[Any, Any, _Result]) -> "Future[_Result]":
        """Run it in the event loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    async def connect(self, **callbacks: Any) -> None:
        """Connect; `callbacks` are those of the library, of which `error_cb` replaces what it prints.

        Raises
        ------
        ConfigError
            If the server refuses the user.
        OSError, nats.errors.Error
            If it cannot be reached.
        """
        try:
            await self.client.connect(
                self._servers,
                allow_reconnect=False,
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                connect_timeout=_CONNECT_S,
                ping_interval=_PING_S,
                name="skyray",
                **callbacks,
            )
        except nats.errors.Error as error:
            if _is_refusal(error):
                raise ConfigError(f"{self._name}: the server refuses the connection: {error}") from error
            raise

    def close(self) -> None:
        """Disconnect, and end the thread; what is under way is cancelled. Never raises."""
        with contextlib.suppress(Exception):
            self.begin(self.client.close()).result(_CLOSE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)


def _is_refusal(error: Exception) -> bool:
    refusals = nats.errors.AuthorizationError, nats.errors.InvalidUserCredentialsError
    return isinstance(error, refusals) or "authorization" in str(error).lower()


def _run(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
    finally:
        loop.close()
