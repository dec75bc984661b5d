"""Authentication, authorisation and rate limits: every request passes `AccessGate` before its route.

A path outside `/v1/` that is not listed here needs the scope `admin`. As long as no key was ever made, every caller may
do everything; `skyray serve` then refuses a host that other machines can call.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from fastapi import Request
from limits import RateLimitItem, RateLimitItemPerMinute, RateLimitItemPerSecond
from limits.storage import MemoryStorage
from limits.strategies import FixedWindowRateLimiter
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.serve.fair import Room, Share
from gateway.serve.keys import SCOPES, Key, KeyRing, KeyScope, RefusedKey
from gateway.serve.limits import Limits
from gateway.serve.problems import ApiError, answer, later
from matching.errors import EngineError

#: Paths that need no key: health checks, and the web page, which prompts for a key itself.
_OPEN = frozenset({"/health", "/ready", "/openapi.json", "/", "/topology"})
_OPEN_BELOW = "/page/"
#: Scopes that paths need; other paths below `/v1/` need `subscribe`, all others `admin`.
_SCOPES: dict[str, KeyScope] = {"/v1/messages": "publish", "/v1/objects": "publish", "/metrics": "admin"}
#: Attributes are declared below it: for all subscriptions, so that it needs `admin`.
_DECLARED_BELOW = "/v1/stream/attributes/"
#: Objects are ended below it, which is a message.
_ENDED_BELOW = "/v1/objects/"
#: Wrong keys that an address may send in a minute, until it is told to wait.
MOST_WRONG = 20
#: Bytes of bodies, and of outcomes that wait to be read, of all requests at a time, and of one caller half (`Room`).
MOST_BUFFERED_BYTES = 512 * 2**20
_WRONG_KEYS = RateLimitItemPerMinute(MOST_WRONG)
_BEARER = {"WWW-Authenticate": "Bearer"}
_EVERY_SCOPE = frozenset(SCOPES)


class Caller(NamedTuple):
    """The sender of a request.

    name : str                   id of the key, or the address of the sender if no key is needed
    scopes : frozenset of str
    owner : str or None          owner of the subscriptions that the caller sees and changes; None: of all owners
    key : Key or None
    """

    name: str
    scopes: frozenset[KeyScope]
    owner: str | None = None
    key: Key | None = None

    def sees(self, owner: str) -> bool:
        """Whether the caller sees subscriptions of this owner."""
        return self.owner in (None, owner)

    def may(self, scope: KeyScope) -> bool:
        """Whether the caller has a scope; `admin` includes all."""
        return scope in self.scopes or "admin" in self.scopes


class Access:
    """Checks keys, and counts requests, messages and streams of callers; for the event loop's thread only.

    Parameters
    ----------
    required : bool
        Whether requests need a key even if no key was ever made.
    """

    def __init__(self, ring: KeyRing, limits: Limits, required: bool = False):
        self.limits = limits
        self.buffers = Room(MOST_BUFFERED_BYTES)
        self._ring = ring
        self._required = required
        self._streams = Counter[str]()
        self._counts = FixedWindowRateLimiter(MemoryStorage())

    @property
    def needs_key(self) -> bool:
        """Whether requests need a key."""
        self._ring.current()
        return self._required or self._ring.has_existed

    def caller(self, scope: Scope) -> Caller:
        """The sender of a request. Raises ApiError for a missing or wrong key, or too many wrong keys."""
        address = scope["client"][0] if scope.get("client") else ""
        if not self.needs_key:
            return Caller(address, _EVERY_SCOPE)
        text = _key_of(scope)
        if text is None:
            raise _unauthorized("no_key", "this server needs a key")
        found = self._ring.check(text)
        if isinstance(found, RefusedKey):  # a right key is never refused for the wrong ones beside it
            if not self._counts.hit(_WRONG_KEYS, address):
                raise later(429, "too_many_tries", "too many wrong keys came from this address", 60)
            raise _unauthorized(*found)
        return Caller(found.key_id, found.scopes, found.owner, found)

    def validity(self, caller: Caller) -> Callable[[], bool]:
        """A function that returns whether the caller's key is still valid; open streams call it again and again."""
        return lambda: not self.needs_key if caller.key is None else self._ring.is_valid(caller.key)

    def refuse_if_ended(self, caller: Caller) -> None:
        """Raises ApiError if the caller's key is no longer valid."""
        if not self.validity(caller)():
            if caller.key is None:
                raise _unauthorized("no_key", "this server needs a key now")
            there = self._ring.current().get(caller.key.key_id) == caller.key
            raise _unauthorized("expired_key" if there else "wrong_key", f"key {caller.name} has ended")

    def count_request(self, caller: Caller) -> None:
        """Raises ApiError if the caller sends more requests than it may."""
        if self.limits.most_requests_per_s:
            self._count("requests", RateLimitItemPerSecond(self.limits.most_requests_per_s), caller, 1)

    def count_messages(self, caller: Caller, count: int) -> None:
        """Raises ApiError if the caller sends more messages than it may."""
        most = self.limits.most_messages_per_s
        if most and count > most:
            detail = f"{count:,} messages came at once, and {most:,} a second are taken from one caller"
            raise ApiError(413, "too_many_messages", detail, do="send fewer at once, or lines as application/x-ndjson")
        if most:
            self._count("messages", RateLimitItemPerSecond(most), caller, count)

    async def pace_messages(self, caller: Caller, count: int) -> None:
        """As `count_messages`, but waits instead of raising; for bodies that are streams of lines."""
        most = self.limits.most_messages_per_s
        if not most:
            return
        a_second = RateLimitItemPerSecond(most)
        while count > 0:
            room = min(count, self._counts.get_window_stats(a_second, "messages", caller.name).remaining)
            if room:
                self._count("messages", a_second, caller, room)
                count -= room
            else:
                await asyncio.sleep(0.05)

    @contextmanager
    def stream(self, caller: Caller) -> Iterator[None]:
        """Count an open stream during the block. Raises ApiError if the caller, or all callers, have too many open."""
        most, in_all = self.limits.most_streams, self.limits.most_streams_in_all
        if most and self._streams[caller.name] >= most:
            raise later(429, "too_many_streams", f"{most:,} streams of this caller are open, and no more may be", 5)
        if in_all and self._streams.total() >= in_all:
            raise later(503, "too_many_streams", f"{in_all:,} streams are open, and no more may be", 5)
        self._streams[caller.name] += 1
        try:
            yield
        finally:
            self._streams[caller.name] -= 1
            if not self._streams[caller.name]:
                del self._streams[caller.name]

    def _count(self, what: str, most: RateLimitItem, caller: Caller, count: int) -> None:
        """Add `count` to a caller's rate limit, or raise Problem; a refused request does not count."""
        if not self._counts.test(most, what, caller.name, cost=count):
            seconds = most.get_expiry()
            span = "a second" if seconds == 1 else f"in {seconds} seconds"
            raise later(429, f"too_many_{what}", f"{most.amount:,} {what} {span} are taken from one caller", seconds)
        self._counts.hit(most, what, caller.name, cost=count)


class AccessGate:
    """ASGI middleware: passes a request on with its `Caller`, or answers it with an error."""

    def __init__(self, app: ASGIApp, access: Access):
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not _is_open(scope["path"]):
            try:
                caller = self._access.caller(scope)
                wanted = _scope_of(scope["path"])
                if not caller.may(wanted):
                    raise ApiError(
                        403,
                        "missing_scope",
                        f"key {caller.name} has not the scope {wanted}",
                        do="use a key that has it",
                    )
                self._access.count_request(caller)
            except ApiError as problem:
                await answer(problem)(scope, receive, send)
                return
            except EngineError as error:  # the file of the keys cannot be read
                await answer(ApiError(503, "bad_keys", str(error), do="mend the file of the keys"))(
                    scope, receive, send
                )
                return
            scope["caller"] = caller
            scope["buffer"] = share = Share(self._access.buffers, caller.name)
            try:
                await self._app(scope, receive, send)
            finally:
                share.give_back()
            return
        await self._app(scope, receive, send)


def caller_of(request: Request) -> Caller:
    """The sender of a request, as `AccessGate` has stored it."""
    return request.scope["caller"]


def buffer_of(request: Request) -> Share:
    """What a request has in memory until it is answered, as `AccessGate` has stored it."""
    return request.scope["buffer"]


def header_of(scope: Scope, name: bytes) -> str:
    """The first header of a request with this name, in lower case; "" if it has none."""
    for each, value in scope["headers"]:
        if each == name:
            return value.decode("latin-1")
    return ""


def _is_open(path: str) -> bool:
    return path in _OPEN or path.startswith(_OPEN_BELOW)


def _scope_of(path: str) -> KeyScope:
    if path in _SCOPES:
        return _SCOPES[path]
    if path.startswith(_DECLARED_BELOW):
        return "admin"
    if path.startswith(_ENDED_BELOW):
        return "publish"
    return _SCOPES.get(path.rstrip("/"), "subscribe" if path.startswith("/v1/") else "admin")


def _unauthorized(reason: str, detail: str) -> ApiError:
    do = "send `Authorization: Bearer KEY`, with a key that `skyray keys create` has made"
    return ApiError(401, reason, detail, "header Authorization", do, _BEARER)


def _key_of(scope: Scope) -> str | None:
    kind, _, text = header_of(scope, b"authorization").partition(" ")
    return text.strip() if kind.lower() == "bearer" and text.strip() else None
