"""The HTTP library of both clients: its arguments, the meaning of its errors, and a link to a server.

A `Link` awaits the library of `AsyncClient`; with the blocking one its coroutines never wait for a loop.
"""

import asyncio
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx2

from gateway.client.answers import Answer, Failure, Request
from matching.errors import ConfigError

#: Errors before anything was sent.
_NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.UnsupportedProtocol)
#: Errors that mean that no answer came, or not to its end.
_FAILURES = (httpx2.TransportError, httpx2.StreamError)

Library = httpx2.Client | httpx2.AsyncClient


def library_options(url: str, key: str | None, timeout_s: float, headers: Mapping[str, str]) -> dict[str, Any]:
    """Arguments of the library's clients. Raises ConfigError if `url` is not the address of a server."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.username:
        raise ConfigError(f"url: {url!r} is no address of a server; give one such as http://127.0.0.1:8080")
    return {
        "base_url": url,
        "headers": {**headers, **({} if key is None else {"Authorization": f"Bearer {key}"})},
        "timeout": httpx2.Timeout(timeout_s),
        "limits": httpx2.Limits(max_connections=None),
        "follow_redirects": False,
    }


class Link:
    """Sends requests to a server, and reads at most one stream at a time."""

    def __init__(self, library: Library, timeout_s: float):
        self._library: Any = library
        self._timeout_s = timeout_s
        self._waits = isinstance(library, httpx2.AsyncClient)
        self._response: Any = None
        self._chunks: Any = None

    async def send(self, request: Request) -> Answer | Failure:
        """Send a request, and read its answer to the end."""
        try:
            response = await self._done(self._library.send(self._built(request)))
        except _FAILURES as error:
            return self._failure(error)
        return Answer(response.status_code, response.headers, response.content)

    async def open(self, request: Request, silence_s: float) -> Answer | Failure:
        """Send a request whose answer is read by `read` if its status is 200; after `silence_s` seconds without a byte
        the connection counts as lost."""
        await self.close()
        timeout = httpx2.Timeout(self._timeout_s, read=silence_s)
        try:
            self._response = response = await self._done(
                self._library.send(self._built(request, timeout=timeout), stream=True)
            )
            if response.status_code == 200:
                self._chunks = response.aiter_bytes() if self._waits else response.iter_bytes()
                return Answer(response.status_code, response.headers, b"")
            body = await self._done(response.aread() if self._waits else response.read())
        except _FAILURES as error:
            await self.close()
            return self._failure(error)
        await self.close()
        return Answer(response.status_code, response.headers, body)

    async def read(self) -> bytes | Failure | None:
        """The next bytes of the stream; None at its end, after which it is closed, as after a failure."""
        if self._chunks is None:
            return None
        try:
            chunk = await anext(self._chunks, None) if self._waits else next(self._chunks, None)
        except _FAILURES as error:
            await self.close()
            return self._failure(error)
        if chunk is None:
            await self.close()
        return chunk

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        if self._waits:
            await asyncio.sleep(seconds)
        else:
            time.sleep(seconds)

    async def close(self) -> None:
        """Close the stream, if one is open."""
        response, self._response, self._chunks = self._response, None, None
        if response is not None:
            await self._done(response.aclose() if self._waits else response.close())

    async def close_all(self) -> None:
        """Close all connections of the library."""
        await self._done(self._library.aclose() if self._waits else self._library.close())

    async def _done(self, outcome: Any) -> Any:
        return await outcome if self._waits else outcome

    def _built(self, request: Request, **more: Any) -> httpx2.Request:
        return self._library.build_request(
            request.method, request.path, params=request.params or None, headers=request.headers,
            content=request.body, **more,
        )  # fmt: skip

    def _failure(self, error: Exception) -> Failure:
        """An error as a failure: its message names the server; `sent` unless the request never left."""
        name = type(error).__name__
        said = f"{name}: {error}" if str(error) else name
        url = str(self._library.base_url).rstrip("/")
        return Failure(f"no answer from {url} ({said})", not isinstance(error, _NOT_SENT))
