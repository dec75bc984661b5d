"""Guards webhooks against SSRF: a webhook's URL comes from a user, and must not reach addresses inside the network.

A URL is checked when it is registered, and its name is resolved and checked again for every connection, which then goes
to the checked address and no other: a name that changes its address in between (DNS rebinding) gains nothing. TLS and
the header Host keep the name.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any
from urllib.parse import urlsplit

import httpcore2

from gateway.sinks.webhooks.settings import WebhookSettings

Resolver = Callable[[str, int], Awaitable[Sequence[str]]]
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address

#: Networks that the registries call public, and that lead inside: 6to4 relays, NAT64, and a cloud's metadata service.
_CLOSED = [
    ipaddress.ip_network(one)
    for one in (
        "192.0.0.0/24", "192.88.99.0/24", "64:ff9b::/96", "64:ff9b:1::/48", "fec0::/10", "168.63.129.16/32",
    )
]  # fmt: skip
_MOST_URL = 2_000
#: Seconds that a name may take to be resolved.
RESOLVE_S = 5.0


class Forbidden(Exception):
    """A URL or an address that may not be called.

    Parameters
    ----------
    reason : str
        A code.
    detail : str
    """

    def __init__(self, reason: str, detail: str):
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


def is_public(address: str) -> bool:
    """Whether an address belongs to a single machine of the public network."""
    try:
        one: _Address = ipaddress.ip_address(address)
    except ValueError:  # with a zone, as link-local ones have it
        return False
    if isinstance(one, ipaddress.IPv6Address) and (one.ipv4_mapped or one.sixtofour or one.teredo):
        return False
    if one.is_multicast or one.is_reserved or one.is_unspecified or not one.is_global:
        return False
    return not any(one.version == net.version and one in net for net in _CLOSED)


async def resolve(host: str, port: int) -> Sequence[str]:
    """Addresses of a name, by the system's resolver. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(one[4][0]) for one in found))


class Guard:
    """Checks URLs and addresses.

    Parameters
    ----------
    settings : WebhookSettings
    resolver : callable
        (name, port) -> its addresses.
    """

    def __init__(self, settings: WebhookSettings, resolver: Resolver = resolve):
        self._hosts = frozenset(host.lower().rstrip(".") for host in settings.webhook_allow_host or ())
        self._settings = settings
        self._resolver = resolver

    def host_of(self, url: str) -> tuple[str, int]:
        """Host and port of a URL that may be registered, before its name is resolved. Raises Forbidden."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname or "", parts.port
        except ValueError as error:
            raise Forbidden("bad_url", f"the URL cannot be read ({error})") from error
        if len(url) > _MOST_URL or not url.isascii() or any(one <= " " or one in '\\"<>' for one in url):
            raise Forbidden("bad_url", f"a URL has at most {_MOST_URL:,} characters, ASCII ones without spaces")
        if parts.scheme not in ("http", "https") or not host:
            raise Forbidden("bad_url", "a URL begins with https:// and a host")
        if "@" in parts.netloc or parts.fragment:
            raise Forbidden("bad_url", "a URL has neither a user nor a fragment")
        if parts.scheme == "http" and not (self._settings.webhook_allow_http or self._is_allowed(host)):
            raise Forbidden("not_encrypted", "only https is called")
        return host, port or (443 if parts.scheme == "https" else 80)

    async def check(self, url: str) -> None:
        """See that a URL may be called now. Raises Forbidden."""
        await self.addresses(*self.host_of(url))

    async def addresses(self, host: str, port: int) -> Sequence[str]:
        """Addresses of a host, all of which may be called. Raises Forbidden."""
        try:
            async with asyncio.timeout(RESOLVE_S):
                found = await self._resolver(host, port)
        except (OSError, UnicodeError, TimeoutError) as error:
            raise Forbidden("unknown_host", f"{host[:200]!r} has no address now") from error
        if not found:
            raise Forbidden("unknown_host", f"{host[:200]!r} has no address now")
        if not (self._settings.webhook_allow_private or self._is_allowed(host)) and not all(map(is_public, found)):
            raise Forbidden("forbidden_address", f"{host[:200]!r} is not an address of the public network")
        return found

    def _is_allowed(self, host: str) -> bool:
        return host.lower().rstrip(".") in self._hosts


class GuardedBackend(httpcore2.AsyncNetworkBackend):
    """Connects to checked addresses; TLS is begun with the name, by the connection pool."""

    def __init__(self, guard: Guard):
        self._guard = guard
        self._plain: Any = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """See `httpcore2.AsyncNetworkBackend`. Raises Forbidden."""
        failure: Exception | None = None
        addresses = await self._guard.addresses(host, port)
        each_s = timeout / len(addresses) if timeout and addresses else timeout  # one that is silent leaves time
        for address in addresses:
            try:
                return await self._plain.connect_tcp(address, port, each_s, local_address, socket_options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                failure = error
        assert failure is not None, "there is an address"
        raise failure

    async def connect_unix_socket(self, *_: Any, **__: Any) -> httpcore2.AsyncNetworkStream:
        """Never: a URL names a host."""
        raise Forbidden("bad_url", "a URL names a host")

    async def sleep(self, seconds: float) -> None:
        """See `httpcore2.AsyncNetworkBackend`."""
        await asyncio.sleep(seconds)
