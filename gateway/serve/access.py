"""Who may do what: every request passes here before its route.

A path that is not listed needs the scope `admin`: what a new route forgets to say, it does not open. Without any key
every caller of this machine may do everything. Used by `gateway.serve.app`; the routes ask `caller_of`.
"""

import asyncio
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import parse_qs

from fastapi import Request
from limits import RateLimitItemPerMinute, RateLimitItemPerSecond
from limits.storage import MemoryStorage
from limits.strategies import FixedWindowRateLimiter
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.serve import keys as of_keys
from gateway.serve.keys import Key, KeyRing, Refused
from gateway.serve.limits import Limits
from gateway.serve.problems import Problem, answer, later
from matching.errors import EngineError

#: What anybody may read: whether the server lives, and the page, which asks for a key itself.
_OPEN = frozenset({"/health", "/ready", "/openapi.json", "/", "/topology"})
_OPEN_BELOW = "/page/"
#: Scopes of paths; those below `/v1/` that are not here need `subscribe`.
_SCOPES: dict[str, of_keys.Scope] = {"/v1/messages": "publish", "/metrics": "admin"}
#: Wrong keys of an address a minute, beyond which it has to wait.
MOST_WRONG = 20
#: Seconds that a ticket is valid, and how many there are at a time.
TICKET_S, MOST_TICKETS = 30, 10_000


class Caller(NamedTuple):
    """Who sends a request.

    name : str                   of its key, or its address where none is asked for
    scopes : frozenset of str
    owner : str or None          whose subscriptions it sees and changes; None: those of all
    key : Key or None
    """

    name: str
    scopes: frozenset[of_keys.Scope]
    owner: str | None = None
    key: Key | None = None

    def sees(self, owner: str) -> bool:
        """Whether subscriptions of this owner are there for the caller."""
        return self.owner in (None, owner)

    def may(self, scope: of_keys.Scope) -> bool:
        return scope in self.scopes or "admin" in self.scopes


class Access:
    """Checks keys and tickets, and counts what callers do; used in the event loop.

    Parameters
    ----------
    ring : KeyRing
    limits : Limits
    required : bool
        Whether a key is needed even if there is none.
    """

    def __init__(self, ring: KeyRing, limits: Limits, required: bool = False):
        self.limits = limits
        self._ring = ring
        self._required = required
        self._tickets: OrderedDict[str, tuple[float, Caller]] = OrderedDict()
        self._streams: dict[str, int] = {}
        self._counts = FixedWindowRateLimiter(MemoryStorage())

    @property
    def asks(self) -> bool:
        """Whether requests need a key."""
        return self._required or bool(self._ring.current())

    async def caller(self, scope: Scope) -> Caller:
        """Who sends a request. Raises Problem."""
        address = scope["client"][0] if scope.get("client") else ""
        if not self.asks:
            return Caller(address, frozenset(of_keys.SCOPES))
        if ticket := _ticket_of(scope):
            return self._redeem(ticket)
        text = _key_of(scope)
        if text is None:
            raise _unknown("no_key", "this server asks for a key")
        wrong = RateLimitItemPerMinute(MOST_WRONG)
        if not self._counts.test(wrong, address):
            raise later(429, "too_many_tries", "too many wrong keys came from this address", 60)
        found = (
            self._ring.check(text) if self._ring.is_checked(text) else await asyncio.to_thread(self._ring.check, text)
        )
        if isinstance(found, Refused):
            self._counts.hit(wrong, address)
            raise _unknown(*found)
        return Caller(found.key_id, found.scopes, found.owner, found)

    def lasts(self, caller: Caller) -> Callable[[], bool]:
        """Whether a caller's key still counts, to be asked while its stream is open."""
        return lambda: not self.asks if caller.key is None else self._ring.lasts(caller.key)

    def count_request(self, caller: Caller) -> None:
        """Raises Problem if the caller sends more requests than it may."""
        self._count("requests", self.limits.most_requests_per_s, caller, 1)

    def count_messages(self, caller: Caller, count: int) -> None:
        """Raises Problem if the caller sends more messages than it may."""
        self._count("messages", self.limits.most_messages_per_s, caller, count)

    async def pace_messages(self, caller: Caller, count: int) -> None:
        """As `count_messages`, but waits until the caller may: what a stream of lines needs."""
        most = self.limits.most_messages_per_s
        while most and count > 0:
            try:
                self.count_messages(caller, min(count, most))
                count -= most
            except Problem:
                await asyncio.sleep(0.05)

    def open_stream(self, caller: Caller) -> Callable[[], None]:
        """Count an open stream, and return what ends it. Raises Problem if the caller has too many."""
        most = self.limits.most_streams
        if most and self._streams.get(caller.name, 0) >= most:
            raise later(429, "too_many_streams", f"{most:,} streams of this caller are open, and no more may be", 5)
        self._streams[caller.name] = self._streams.get(caller.name, 0) + 1

        def end() -> None:
            self._streams[caller.name] -= 1
            if not self._streams[caller.name]:
                del self._streams[caller.name]

        return end

    def ticket(self, caller: Caller) -> str:
        """What opens one stream in the place of a key, where headers cannot be sent."""
        now_s = time.monotonic()
        while self._tickets and (len(self._tickets) >= MOST_TICKETS or next(iter(self._tickets.values()))[0] < now_s):
            self._tickets.popitem(last=False)
        text = secrets.token_urlsafe(32)
        self._tickets[text] = now_s + TICKET_S, caller
        return text

    def _redeem(self, ticket: str) -> Caller:
        until_s, caller = self._tickets.pop(ticket, (0.0, None))
        if caller is None or time.monotonic() > until_s or not self.lasts(caller)():
            detail = f"a ticket opens one stream, within {TICKET_S} s"
            raise Problem(401, "wrong_ticket", detail, "query ticket", "POST /v1/tickets for a new one")
        return caller

    def _count(self, what: str, most: int, caller: Caller, count: int) -> None:
        if most and not self._counts.hit(RateLimitItemPerSecond(most), what, caller.name, cost=count):
            raise later(429, f"too_many_{what}", f"{most:,} {what} a second are taken from one caller", 1)


class AccessGate:
    """Lets a request pass to its route, with its `Caller`, or answers it."""

    def __init__(self, app: ASGIApp, access: Access):
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not _is_open(scope["path"]):
            try:
                caller = await self._access.caller(scope)
                wanted = _scope_of(scope["path"])
                if not caller.may(wanted):
                    raise Problem(
                        403,
                        "missing_scope",
                        f"key {caller.name} has not the scope {wanted}",
                        do="use a key that has it",
                    )
                self._access.count_request(caller)
            except Problem as problem:
                await answer(problem)(scope, receive, send)
                return
            except EngineError as error:  # the file of the keys: nobody is let in
                await answer(Problem(503, "bad_keys", str(error), do="mend the file of the keys"))(scope, receive, send)
                return
            scope["caller"] = caller
        await self._app(scope, receive, send)


def caller_of(request: Request) -> Caller:
    """Who sends a request, which has passed the gate."""
    return request.scope["caller"]


def _is_open(path: str) -> bool:
    return path in _OPEN or path.startswith(_OPEN_BELOW)


def _scope_of(path: str) -> of_keys.Scope:
    return _SCOPES.get(path.rstrip("/"), "subscribe" if path.startswith("/v1/") else "admin")


def _unknown(reason: str, detail: str) -> Problem:
    do = "send `Authorization: Bearer KEY`, with a key that `skyray keys create` has made"
    return Problem(401, reason, detail, "header Authorization", do, {"WWW-Authenticate": "Bearer"})


def _key_of(scope: Scope) -> str | None:
    found = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"authorization"), "")
    kind, _, text = found.partition(" ")
    return text.strip() if kind.lower() == "bearer" and text.strip() else None


def _ticket_of(scope: Scope) -> str | None:
    if scope["path"] != "/v1/updates" or b"ticket=" not in scope["query_string"]:
        return None
    return parse_qs(scope["query_string"].decode("latin-1")).get("ticket", [None])[0]
