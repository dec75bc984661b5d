"""The HTTP library of both clients: its arguments, and the meaning of its errors."""

from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx2

from gateway.client.commands import Answer, Failure, Request
from matching.errors import ConfigError

#: Errors before anything was sent.
_NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.UnsupportedProtocol)
#: What means that no answer came, or not to its end.
FAILURES = (httpx2.TransportError, httpx2.StreamError)


class Options(NamedTuple):
    """How a client connects: address of the server, API key, seconds to an answer, headers of every request."""

    url: str
    key: str | None
    timeout_s: float
    headers: Mapping[str, str]


def library_options(options: Options) -> dict[str, Any]:
    """Arguments of the library's clients. Raises ConfigError if `url` is not the address of a server."""
    parts = urlsplit(options.url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.username:
        raise ConfigError(f"url: {options.url!r} is no address of a server; give one such as http://127.0.0.1:8080")
    headers = dict(options.headers)
    if options.key is not None:
        headers["Authorization"] = f"Bearer {options.key}"
    return {
        "base_url": options.url,
        "headers": headers,
        "timeout": httpx2.Timeout(options.timeout_s),
        "limits": httpx2.Limits(max_connections=None),
        "follow_redirects": False,
    }


def arguments_of(request: Request) -> dict[str, Any]:
    """Arguments of the library's `build_request`."""
    return {
        "method": request.method,
        "url": request.path,
        "params": request.params or None,
        "headers": request.headers,
        "content": request.body,
    }


def silent_after(silence_s: float, timeout_s: float) -> httpx2.Timeout:
    """Timeouts of a stream of updates: seconds without a byte, heartbeats included, and for everything else."""
    return httpx2.Timeout(timeout_s, read=silence_s)


def answer_of(response: httpx2.Response, body: bytes) -> Answer:
    return Answer(response.status_code, response.headers, body)


def failure_of(library: httpx2.Client | httpx2.AsyncClient, error: Exception) -> Failure:
    """An error as a failure: its message names the server; `sent` unless the request never left."""
    name = type(error).__name__
    said = f"{name}: {error}" if str(error) else name
    return Failure(f"no answer from {str(library.base_url).rstrip('/')} ({said})", not isinstance(error, _NOT_SENT))
